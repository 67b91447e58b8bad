"""What would Stash have measured on this machine? Its runs RUN0 to RUN3 and the two-node twin are simulated, along with direct stalls.

The runs are ordinary scenarios: synthetic data on one GPU and on all GPUs, real data cold and warm; the twin is the same job on two nodes
with half the GPUs each. Because the direct stalls of a run sum to its step, each differential stall is the sum over causes of the change
between its two runs. This shows where and why the two methods differ.

Limits: steady-state steps, so nothing that happens before Stash's fifth step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sim.analysis.attribution import StallComparison, compare_methods
from sim.analysis.differential import Rates, RunTimes, rates
from sim.events import Cause
from sim.simulate import Run
from sim.spec.library import load_hardware
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError
from sim.study.jobs_file import jobs_file
from sim.study.needs import Needs, needs
from sim.study.rent import price_of_job
from sim.study.scenario import Scenario, answer, prepare


@dataclass(frozen=True)
class Profile:
    """The runs of the Stash procedure and the results derived from them."""

    one_gpu: Run
    synthetic: Run
    real: Run
    twin: Run | None
    times: RunTimes
    stall_causes: Mapping[str, Mapping[Cause, float]]
    """Each differential stall (seconds per step) by cause according to direct attribution: the change between its two runs."""
    comparisons: Mapping[str, StallComparison]
    """Each stall by subtraction and by direct attribution, seconds per step, and why the two differ."""
    rates: Rates
    needs: Needs
    inputs: Mapping[str, str]
    """SHA-256 of each description."""
    costs: Mapping[str, float | None]
    """USD of an epoch on all nodes: ``cold``, ``warm`` and ``ingestion`` (synthetic)."""


class Runs(NamedTuple):
    """RUN0, RUN1, and RUN2 with RUN3 (the cold and the warm epoch of one run)."""

    one_gpu: Run
    synthetic: Run
    real: Run

    def times(self, twin: Run | None = None) -> RunTimes:
        """Return the seconds of an epoch's steps in each run; *twin* is RUN1 on two nodes."""
        job = self.real.jobs[0]
        return RunTimes(
            job.first.steps * self.one_gpu.jobs[0].warm.step_time,
            self.synthetic.jobs[0].warm.time,
            job.first.time,
            job.warm.time,
            twin.jobs[0].warm.time if twin else None,
        )


def runs(scenario: Scenario) -> Runs:
    """Return RUN0 to RUN3 of *scenario*."""
    return Runs(one_gpu_run(scenario), synthetic_run(scenario), _run(scenario))


def one_gpu_run(scenario: Scenario) -> Run:
    """Return RUN0: synthetic data on one GPU of the machine."""
    return _run(replace(scenario, gpus=None, placement="1", nodes=1 if scenario.nodes else None, global_batch=None), "synthetic")


def synthetic_run(scenario: Scenario) -> Run:
    """Return RUN1: synthetic data on all GPUs."""
    return _run(scenario, "synthetic")


def _is_heterogeneous(run: Run) -> bool:
    """Return whether the GPUs of *run* differ in kind or batch."""
    return len({slot.node.gpu.name for slot in run.cluster if slot.lent_gpus}) > 1 or bool(run.jobs[0].job.workload.training.batches)


def profile(scenario: Scenario, twin: str | None = None) -> Profile:
    """Return the result of the Stash procedure for *scenario*; *twin* names the machine with half the GPUs ('none' leaves it out).

    By default, *twin* is the catalog's machine of the same provider that has half as many of the same GPUs, if there is one.
    """
    stash_runs = runs(scenario)
    one_gpu, synthetic, real = stash_runs
    job = real.jobs[0]
    if _is_heterogeneous(real):
        raise SpecError("profile follows Stash, which assumes identical GPUs; 'python -m sim run' shows the stalls of mixed machines")
    paired = _twin(scenario, synthetic, twin)
    times = stash_runs.times(paired)
    samples = float(job.warm.steps * job.job.samples)
    data_rates = rates(times, samples)
    all_gpus = synthetic.jobs[0].warm.stalls
    pairs = {
        Cause.INTERCONNECT: (one_gpu.jobs[0].warm.stalls, all_gpus),
        Cause.PREP: (all_gpus, job.warm.stalls),
        Cause.FETCH: (job.warm.stalls, job.first.stalls),
    }
    if paired:
        pairs[Cause.NETWORK] = (all_gpus, paired.jobs[0].warm.stalls)
    made_of = {cause.value: _change(before, after) for cause, (before, after) in pairs.items()}
    differing = {cause.value: compare_methods(cause, before, after) for cause, (before, after) in pairs.items()}
    rate = price_of_job(real)
    costs = {
        name: None if rate is None else rate * duration
        for name, duration in (("cold", times.cold), ("warm", times.warm), ("ingestion", times.synthetic))
    }
    return Profile(one_gpu, synthetic, real, paired, times, made_of, differing, data_rates, needs(real), prepare(scenario).inputs, costs)


def _run(scenario: Scenario, loader: str | None = None) -> Run:
    if jobs_file(scenario.workload) is not None:
        raise SpecError(f"{scenario.workload}: lists several jobs; the Stash procedure profiles one workload")
    overrides = (*scenario.overrides, f"input.loader={loader}") if loader else scenario.overrides
    return answer(replace(scenario, overrides=overrides)).run


def _change(before: Mapping[Cause, float], after: Mapping[Cause, float]) -> dict[Cause, float]:
    return {cause: after[cause] - before[cause] for cause in after}


# --- the twin --------------------------------------------------------------------------------------------------------


def _twin(scenario: Scenario, run: Run, name: str | None) -> Run | None:
    """Return RUN1 on two nodes of half the GPUs, or None if there is no such machine."""
    if name == "none" or (name is None and len(run.jobs[0].job.placement) > 1):
        return None
    named = name or _half_machine(run)
    if named is None:
        return None
    own, others = run.node().gpu.name, {group.node.gpu.name for group in load_hardware(named).spec.groups if group.role == "worker"}
    if others != {own}:
        listed = " and ".join(sorted(others))
        raise SpecError(f"--twin {named}: has {listed}, {run.hardware.name} {own}; the twin must have half as many GPUs of the same kind")
    gpus = run.jobs[0].job.ranks
    if gpus % 2:
        raise SpecError(f"--twin {named}: two nodes cannot share {gpus} GPUs evenly")
    return _run(replace(scenario, hardware=named, nodes=2, placement=None, gpus=gpus, overrides=_workload_only(scenario)), "synthetic")


def _workload_only(scenario: Scenario) -> tuple[str, ...]:
    """Return the overrides that do not refer to the machine's node, groups or price."""
    return tuple(text for text in scenario.overrides if not text.strip().startswith(("node", "groups", "price")))


def _half_machine(run: Run) -> str | None:
    """Return the machine of the catalog with half as many of the same GPUs by the same provider; of several, the shortest name."""
    own = run.hardware
    gpu, gpus = run.node().gpu.name, run.jobs[0].job.ranks
    rows, _ = hardware_rows()
    fitting = [
        str(row["name"])
        for row in rows
        if (row["provider"], row["gpu"], row["nodes"]) == (own.provider, gpu, 1) and row["gpus"] == gpus / 2 and row["name"] != own.name
    ]
    return min(fitting, key=lambda names: (len(names), names), default=None)
