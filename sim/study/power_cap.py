"""How does a power limit on GPUs change the steps of a job? Compute takes longer at less power, by the measured curve of the power model.

Data-parallel runs are simulated again with such GPUs (`slower_runs`), so that work that overlaps with compute stays hidden. Limits: only
compute is slower; the curve is that of one model on one GPU (`sim.analysis.energy`), and lower limits are unmeasured. With a layout only
waits for input get shorter as compute gets longer (`with_slower_compute`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from sim.analysis.energy import NodePower, computing_power, limited_speed, node_power, power_model, shares_of, with_slower_compute
from sim.cluster.build import place
from sim.mesh import LayoutRun
from sim.simulate import Run, simulate
from sim.spec.hardware import Node
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.arguments import power_cap_of
from sim.study.faster import faster
from sim.study.weeks import Steps, steps_of
from sim.training.job import Job
from sim.training.layer_times import mix_of
from sim.units import show_least

SlowerRuns = Callable[[float], Run]
"""Returns a run again, with GPUs that compute at a share of their speed."""


def slower_runs(run: Run | LayoutRun) -> SlowerRuns | None:
    """Return how to simulate *run* with slower GPUs, each speed once; None for layouts of other kinds, which are not simulated again."""
    if isinstance(run, LayoutRun) and run.workload.training.has_layout:
        return None
    # plain data parallelism may be one of a plan's layouts
    own = [Job(run.workload, place(run.hardware, run.gpus))] if isinstance(run, LayoutRun) else [job.job for job in run.jobs]

    @cache
    def at_speed(speed: float) -> Run:
        hardware, jobs = faster(run.hardware, own, ("gpu",), speed)
        return simulate(hardware, jobs, seed=run.seed, keep_log=False)

    return at_speed


class LimitedSteps(NamedTuple):
    """Steps with GPUs limited to *cap* (W), and figures without the limit; power per node, energy (J) per sample."""

    cap: float
    speed: float
    """Speed of a limited GPU while it computes, relative to its speed without the limit."""
    steps: Steps
    power: NodePower
    joules: float
    step_time_without: float
    joules_without: float


def limit_run(run: LayoutRun, limit: str) -> LimitedSteps:
    """Return the steps of *run* with each GPU limited to *limit*. Raise SpecError as `limit_steps` does."""
    described = {
        "nodes": run.nodes, "gpus": run.gpus, "step_time_s": run.step_time, "throughput_samples_per_s": run.throughput,
        "stalls_s": {cause.value: seconds for cause, seconds in run.stalls.items()}, "price": {"market": "on_demand"},
    }  # fmt: skip
    steps, slower = steps_of(described, run.hardware, run.workload), slower_runs(run)
    if slower is None:
        return limit_steps(steps, limit)

    def at_speed(speed: float) -> Steps:
        warm = slower(speed).jobs[0].warm
        return steps._replace(step_time=warm.step_time, stalls={cause.value: seconds for cause, seconds in warm.stalls.items()})

    return limit_steps(steps._replace(at_speed=at_speed), limit)


def least_share(node: Node, workload: Workload, limit: str) -> float:
    """Return a lower bound of the energy of a step with each GPU of *node* limited to *limit*, relative to the energy without the limit.

    No part of the power falls by a larger factor than the power of a computing GPU, and no step gets shorter.
    """
    gpu = node.gpu
    if gpu.power is None:
        return 1.0
    return min(1.0, power_cap_of(limit) / computing_power(gpu, power_model(), mix_of(workload, gpu)))


def require_measured(node: Node, workload: Workload, limit: str) -> None:
    """Raise SpecError if the effect of *limit* on a GPU of *node* that trains *workload* is unknown."""
    gpu, model = node.gpu, power_model()
    if gpu.power is None:
        raise SpecError(
            f"--power-cap {limit}: the power of {gpu.name} is not specified; leave the limit out, or write --set node.gpu.power='700 W'"
        )
    least = model.cap[0][0] * computing_power(gpu, model, mix_of(workload, gpu))
    if power_cap_of(limit) < least:
        raise SpecError(
            f"--power-cap {limit}: no measurements cover limits so far below a GPU's draw; write {show_least(least, 'power')} or more"
        )


def limit_steps(steps: Steps, limit: str) -> LimitedSteps:
    """Return *steps* with each GPU limited to *limit*, such as ``500 W``. Raise SpecError if the effect is unknown."""
    cap, model = power_cap_of(limit), power_model()
    if steps.others:
        raise SpecError(f"--power-cap {limit}: {steps.hardware} has several kinds of nodes; a limit is supported for one kind only")
    require_measured(steps.node, steps.workload, limit)
    mix = mix_of(steps.workload, steps.node.gpu)
    several, used = steps.nodes > 1, round(steps.gpus / steps.nodes)
    before = node_power(steps.node, model, shares_of(steps.stalls), several, used, mix=mix)
    speed = limited_speed(steps.node, model, cap, mix)
    slower = _at_speed(steps, speed)
    after = node_power(steps.node, model, shares_of(slower.stalls), several, used, mix=mix, cap=cap)
    assert before is not None and after is not None  # the power of the GPU is specified
    joules, joules_before = (
        steps.nodes * model.pue * power.total * time / steps.samples
        for power, time in ((after, slower.step_time), (before, steps.step_time))
    )
    return LimitedSteps(cap, speed, slower, after, joules, steps.step_time, joules_before)


def _at_speed(steps: Steps, speed: float) -> Steps:
    """Return *steps* with GPUs that compute at *speed*: simulated if possible, else with longer compute and shorter waits for input."""
    if speed == 1.0:
        return steps
    if steps.at_speed is not None:
        return steps.at_speed(speed)
    stalls = with_slower_compute(steps.stalls, speed, steps.workload.input.ahead)
    return steps._replace(step_time=steps.step_time + sum(stalls.values()) - sum(steps.stalls.values()), stalls=stalls)
