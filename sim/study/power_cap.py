"""What does a limit on the power of GPUs do to the steps of a job? Longer steps at less power, by the measured curve of the power model.

Limits: compute alone is slower; the curve is that of one model on one GPU (`sim.analysis.energy`), and nobody measured below its end.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.analysis.energy import NodePower, capped, draw_of, node_power, power_model, shares_of
from sim.spec.yaml import SpecError
from sim.study.weeks import Steps, quantity
from sim.training.layer_times import mix_of
from sim.units import show


class Limited(NamedTuple):
    """Steps with GPUs limited to *cap* (W), beside those *without* a limit; power of a node, J of a sample."""

    cap: float
    steps: Steps
    power: NodePower
    joules: float
    step_time_without: float
    joules_without: float


def limited(steps: Steps, limit: str) -> Limited:
    """Return *steps* with each GPU limited to *limit*, such as ``500 W``. Raise SpecError where nobody knows what that does."""
    cap, gpu, model = quantity(limit, "power", "--power-cap"), steps.node.gpu, power_model()
    if steps.others:
        raise SpecError(f"--power-cap {limit}: {steps.hardware} has several kinds of nodes; a limit is worked out for one")
    mix = mix_of(steps.workload, gpu)
    several, stalls = steps.nodes > 1, steps.stalls
    after, before = capped(steps.node, model, stalls, cap, several, mix), node_power(steps.node, model, shares_of(stalls), several, mix=mix)
    if after is None or before is None or gpu.power is None:
        raise SpecError(f"--power-cap {limit}: no power is known of {gpu.name}; leave it out, or write --set node.gpu.power='700 W'")
    least = model.cap[0][0] * gpu.power * draw_of(gpu, model, mix).compute
    if cap < least:
        raise SpecError(f"--power-cap {limit}: nobody measured limits so far below what a GPU draws; write {show(least, 'power')} or more")
    longer = after.step_time - sum(stalls.values())
    slower = steps._replace(step_time=steps.step_time + longer, stalls={**stalls, "compute": stalls.get("compute", 0.0) + longer})
    joules, joules_before = (
        steps.nodes * model.pue * power.total * time / steps.samples
        for power, time in ((after.power, slower.step_time), (before, steps.step_time))
    )
    return Limited(cap, slower, after.power, joules, steps.step_time, joules_before)
