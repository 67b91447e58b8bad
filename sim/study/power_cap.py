"""How does a power limit on GPUs change the steps of a job? Steps get longer at less power, by the measured curve of the power model.

Limits: only compute is slower; the curve is that of one model on one GPU (`sim.analysis.energy`), and lower limits are unmeasured.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.analysis.energy import NodePower, gpu_power, limit_power, node_power, power_model, shares_of
from sim.mesh import LayoutRun
from sim.spec.hardware import Node
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.arguments import power_cap_of
from sim.study.weeks import Steps, steps_of
from sim.training.layer_times import mix_of
from sim.units import show_least


class LimitedSteps(NamedTuple):
    """Steps with GPUs limited to *cap* (W), and figures without the limit; power per node, energy (J) per sample."""

    cap: float
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
    return limit_steps(steps_of(described, run.hardware, run.workload), limit)


def least_share(node: Node, workload: Workload, limit: str) -> float:
    """Return a lower bound of the energy of a step with each GPU of *node* limited to *limit*, relative to the energy without the limit.

    No part of the power falls by a larger factor than the power of a computing GPU, and no step gets shorter.
    """
    gpu = node.gpu
    if gpu.power is None:
        return 1.0
    return min(1.0, power_cap_of(limit) / (gpu.power * gpu_power(gpu, power_model(), mix_of(workload, gpu)).compute))


def require_measured(node: Node, workload: Workload, limit: str) -> None:
    """Raise SpecError if the effect of *limit* on a GPU of *node* that trains *workload* is unknown."""
    gpu, model = node.gpu, power_model()
    if gpu.power is None:
        raise SpecError(
            f"--power-cap {limit}: the power of {gpu.name} is not specified; leave the limit out, or write --set node.gpu.power='700 W'"
        )
    least = model.cap[0][0] * gpu.power * gpu_power(gpu, model, mix_of(workload, gpu)).compute
    if power_cap_of(limit) < least:
        raise SpecError(
            f"--power-cap {limit}: no measurements cover limits so far below a GPU's draw; write {show_least(least, 'power')} or more"
        )


def limit_steps(steps: Steps, limit: str) -> LimitedSteps:
    """Return *steps* with each GPU limited to *limit*, such as ``500 W``. Raise SpecError if the effect is unknown."""
    cap, gpu, model = power_cap_of(limit), steps.node.gpu, power_model()
    if steps.others:
        raise SpecError(f"--power-cap {limit}: {steps.hardware} has several kinds of nodes; a limit is supported for one kind only")
    require_measured(steps.node, steps.workload, limit)
    mix = mix_of(steps.workload, gpu)
    several, stalls, used = steps.nodes > 1, steps.stalls, round(steps.gpus / steps.nodes)
    after = limit_power(steps.node, model, stalls, cap, several, mix, used)
    before = node_power(steps.node, model, shares_of(stalls), several, used, mix=mix)
    assert after is not None and before is not None  # the power of the GPU is specified
    longer = after.step_time - sum(stalls.values())
    slower = steps._replace(step_time=steps.step_time + longer, stalls={**stalls, "compute": stalls.get("compute", 0.0) + longer})
    joules, joules_before = (
        steps.nodes * model.pue * power.total * time / steps.samples
        for power, time in ((after.power, slower.step_time), (before, steps.step_time))
    )
    return LimitedSteps(cap, slower, after.power, joules, steps.step_time, joules_before)
