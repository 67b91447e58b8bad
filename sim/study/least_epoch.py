"""How fast is an epoch of a scenario at most, and how cheap? As if its GPUs only computed: nothing is simulated.

A step takes at least as long as one GPU computes without waiting for messages, data or other ranks; with pipeline stages, at least as long
as the mean stage. In plain data parallelism, it also takes at least as long as the processors of a node, or the workers of a loader, need
to prepare its samples, except for the batches that loaders may build ahead. Such a bound takes some milliseconds where a simulation takes
some hundred, and the times of equal GPUs are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sim.analysis.cost import price
from sim.cluster.build import Slot
from sim.mesh import least_compute
from sim.mesh import prepare as prepare_layout
from sim.simulate import steps_per_epoch
from sim.spec import memo
from sim.spec.hardware import Hardware, Node
from sim.spec.library import load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.layout import placed_scenario
from sim.study.one_batch import at_global_batch
from sim.study.scenario import Scenario, has_layout, prepare, sorted_overrides
from sim.training.job import core_time
from sim.training.step_plan import plan_step

_BELOW: Final = 1.0 - 1e-9
"""Factor by which a bound is below the same sum in another order."""


class LeastEpoch(NamedTuple):
    """Lower bounds of the seconds and the USD of an epoch."""

    time: float
    cost: float | None
    """None if the machine has no price."""


def least_epoch(scenario: Scenario) -> LeastEpoch | None:
    """Return lower bounds of an epoch of *scenario*, 0 if nothing is known; None if it certainly cannot run."""
    with memo.caching_inside():
        try:
            hardware, time = _least_layout_time(scenario) if has_layout(scenario) else _least_time(scenario)
        except SpecError:
            return None
        rate = price(hardware, scenario.market)
        return LeastEpoch(_BELOW * time, None if rate is None else _BELOW * rate * time)


class LeastRun:
    """Lower bounds of the steps of *scenario* at its global batch, as it is, on any number of nodes of any machine.

    A step is what an epoch takes divided by its steps at that batch, which a machine may miss a bit (`sim.study.one_batch`).
    """

    def __init__(self, scenario: Scenario) -> None:
        assert scenario.global_batch is not None
        workload = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec
        self._steps = steps_per_epoch(workload, scenario.global_batch)
        self._scenario, self._total = replace(scenario, global_batch=None), scenario.global_batch
        self._times: dict[tuple[str, int], float] = {}

    def step_time(self, name: str, nodes: int) -> float:
        """Return the least seconds of a step on *nodes* nodes of the machine *name*; 0 if unknown, as for jobs that cannot run there."""
        if (name, nodes) not in self._times:
            try:
                least = least_epoch(at_global_batch(replace(self._scenario, hardware=name, nodes=nodes), self._total))
            except SpecError:
                least = None
            self._times[name, nodes] = 0.0 if least is None else least.time / self._steps
        return self._times[name, nodes]

    def step_time_of(self, document: Mapping[str, Any]) -> float:
        """Return the least seconds of a step of the run of *document*, of any epoch: disks may give out only after the first."""
        epoch: float = min(document["first_epoch"]["epoch_time_s"], document["epoch_time_s"])
        return epoch / self._steps


def _least_layout_time(scenario: Scenario) -> tuple[Hardware, float]:
    """Return the hardware, and the least seconds of an epoch of a layout."""
    machine, _, workload, gpus = placed_scenario(scenario)
    layout = prepare_layout(machine.spec, workload, gpus)
    samples = workload.training.batch * layout.mesh.data * layout.micro_batches
    step = 0.0 if workload.training.noise.draw else least_compute(machine.spec, workload, layout)
    return machine.spec, step * steps_per_epoch(workload, samples)


def _least_time(scenario: Scenario) -> tuple[Hardware, float]:
    """Return the same for plain data parallelism."""
    question = prepare(scenario)
    job, nodes = question.jobs[0], [group.node for group in question.hardware.worker_groups]
    if len(question.jobs) > 1 or job.groups or job.workload.training.noise.draw:  # batches of several sizes, or drawn steps
        return question.hardware, 0.0
    steps, options = steps_per_epoch(job.workload, job.samples), job.workload.input
    compute = min(plan_step(job.workload, node.gpu, node.host.cpu.launching, job.ranks).isolated_time for node in nodes)
    if options.own_loader is not None:
        return question.hardware, steps * compute
    gpus = min(len(part.gpus) for part in job.placement)
    ahead = options.num_workers * options.prefetch_factor
    return question.hardware, max(steps * compute, max(0, steps - ahead) * min(_least_prep(job.workload, node, gpus) for node in nodes))


def _least_prep(workload: Workload, node: Node, gpus: int) -> float:
    """Return the least seconds in which *node* prepares the samples of a step for *gpus* of its GPUs."""
    training, workers = workload.training, workload.input.num_workers
    prep = training.gradient_accumulation_steps * training.batch * core_time(workload) / node.host.cpu.speed
    return max(gpus * prep / Slot("node", node, 1, ()).cores, prep / workers if workers else 0.0)
