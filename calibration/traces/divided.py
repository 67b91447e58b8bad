"""What does a rank that shards or splits the model compute in a profile of processors? Its steps without its collectives.

Over Gloo the host waits for each collective on the spot (`host_waits` of a stack), so what is left of a step when the time in ``gloo:``
annotations is taken out is the rank's own work: forward until the first operator of backward, backward until the optimizer, the optimizer.
These times are shared among the layers of a described layout in the ratio of what is computed for them.
Limits: jobs on processors whose collectives overlap nothing; no pipelines, in which messages travel beside compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import NamedTuple

from calibration.traces.import_trace import Imported
from calibration.traces.kineto import CPU, RankTrace, Span
from sim.cluster.gpu import layer_time
from sim.mesh import mesh_options, prepare, scene_of
from sim.parallel.split import shared, units
from sim.spec.hardware import Gpu, Hardware
from sim.spec.measured import MeasuredTimes
from sim.spec.workload import Layer, Workload
from sim.spec.yaml import SpecError


class Passes(NamedTuple):
    """Seconds of a rank's own work in a step."""

    forward: float
    backward: float
    update: float


def own_passes(found: Imported) -> Passes:
    """Return what a rank computes in a step: the median over steps, the mean over ranks.

    Raise SpecError where the profile cannot tell.
    """
    each = [_of_rank(trace) for trace in found.traces]
    return Passes(*(mean(passes[place] for passes in each) for place in range(len(Passes._fields))))


def _of_rank(trace: RankTrace) -> Passes:
    if trace.gpu != CPU:
        raise SpecError(
            f"{trace.file}: shows {trace.divided}, so that ranks divide the model among them, on GPUs; of such jobs only those on "
            "processors are replayed: describe the layout, and let --record calibrate it"
        )
    if any(span.name.startswith(("gloo:send", "gloo:recv")) for span in trace.collectives):
        raise SpecError(f"{trace.file}: shows messages between stages; pipelined jobs are not replayed: describe the layout instead")
    steps = [trace.steps[number] for number in sorted(trace.steps)]
    return Passes(*(median(times) for times in zip(*(_of_step(trace, step) for step in steps[1:] or steps), strict=True)))


def _of_step(trace: RankTrace, step: Span) -> Passes:
    backward = min((span.t0 for span in trace.backward if step.t0 <= span.t0 < step.t1), default=None)
    update = min((span.t0 for span in trace.optimizer if step.t0 <= span.t0 < step.t1), default=None)
    if backward is None or update is None or update < backward:
        raise SpecError(f"{trace.file}: {step.name} shows no backward followed by an optimizer; profile whole steps")
    edges = (step.t0, backward, update, step.t1)
    return Passes(*(end - begin - _covered(trace.collectives, begin, end) for begin, end in pairwise(edges)))


def _covered(spans: Iterable[Span], begin: float, end: float) -> float:
    """Return the seconds from *begin* to *end* in which one of *spans* goes on."""
    total, until = 0.0, begin
    for span in sorted(spans, key=lambda span: span.t0):
        total += max(0.0, min(span.t1, end) - max(span.t0, until))
        until = max(until, min(span.t1, end))
    return total


def timed_layers(base: Workload, gpu: Gpu, passes: Sequence[tuple[Sequence[int], Mapping[str, float]]]) -> tuple[Layer, ...]:
    """Return the layers of *base* with measured times: for units (numbers) the seconds of F and B that they take together.

    The seconds are shared in the ratio of what is computed on *gpu* for one rank's part of each layer.
    """
    training, members = base.training, [layers for _, _, layers in units(base.model)]
    again = mesh_options(base).gathers_again
    times: dict[int, MeasuredTimes] = {}
    for numbers, seconds in passes:
        own = [layer for number in numbers for layer in members[number]]
        parts = [shared(layer, training.parallel, again) for layer in own]
        of_passes = {}
        for part, backward in (("F", False), ("B", True)):
            computed = [layer_time(layer, gpu, training.precision, base.layer_stack, training.batch, backward).time for layer in parts]
            of_passes[part] = [seconds[part] * each / sum(computed) for each in computed]
        for layer, forward, back in zip(own, of_passes["F"], of_passes["B"], strict=True):
            times[id(layer)] = MeasuredTimes.model_validate({"forward": f"{forward!r} s", "backward": f"{back!r} s"})
    return tuple(layer.model_copy(update={"measured": times[id(layer)]}) for layers in members for layer in layers)


def optimizer_factor(hardware: Hardware, workload: Workload, seconds: float) -> float:
    """Return the stack's ``optimizer_factor`` with which the optimizer takes *seconds* in the mean over stages."""
    scene = scene_of(hardware, workload, prepare(hardware, workload))
    computed = sum(time for time, _ in scene.updates) / len(scene.updates)
    return workload.training.stack.optimizer_factor * seconds / computed
