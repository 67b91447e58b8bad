"""How long does a rank that shards, splits or pipelines the model compute in a profile? Its steps without its collectives.

On a GPU this is the time of its kernels. On CPUs, with Gloo, it is the time of its operators and the host time between them while no
collective is active. Work belongs to the pass in which the host launched it: to backward while autograd runs and from its end to the
optimizer; to the optimizer from its step on, and on the stages of a pipeline from the end of the last pass on, because all of that is done
once a step; otherwise to forward. The times of a stage are distributed over its layers in proportion to their computed times, minus the
work that the simulator adds itself: recomputed forward passes and gradient accumulation.
Limits: kernels that overlap with a collective count with their full time; FSDP's copies count with the layers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from calibration.traces.import_trace import MESSAGE, ImportedJob, awaited
from calibration.traces.kineto import CPU, RankTrace, TraceSpan
from calibration.traces.pass_times import overlap, union
from calibration.traces.table_times import measured_times
from sim.cluster.gpu import layer_time
from sim.mesh import layout_scene, prepare
from sim.parallel.lower.layouts import Layout
from sim.parallel.shares import rank_layer
from sim.parallel.stack_options import mesh_options
from sim.parallel.units import units
from sim.spec.hardware import Gpu, Hardware
from sim.spec.layer import Layer
from sim.spec.measured import MeasuredOn, MeasuredTimes
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.training.layouts.bound import least_time
from sim.training.spread import expected_maximum


class RankPasses(NamedTuple):
    """Times (s) of a rank's own work in a step."""

    forward: float
    backward: float
    update: float


def step_passes(trace: RankTrace) -> list[RankPasses]:
    """Return the times of a rank's own work by step. Raise SpecError if the profile does not show the passes."""
    excluded = _Excluded.of(trace)
    return [_of_step(trace, step, excluded) for step in _steps(trace)]


def rank_passes(imported: ImportedJob) -> dict[int, RankPasses]:
    """Return the times of each traced rank's own work, as means over steps."""
    return {trace.rank: mean_passes(step_passes(trace)) for trace in imported.traces}


def mean_passes(passes: Sequence[RankPasses]) -> RankPasses:
    """Return the mean of *passes*."""
    return RankPasses(*map(fmean, zip(*passes, strict=True)))


def _steps(trace: RankTrace) -> list[TraceSpan]:
    """Return the steps that count: all but the first, if there are others."""
    steps = [trace.steps[number] for number in sorted(trace.steps)]
    return steps[1:] or steps


def rank_work(trace: RankTrace) -> list[list[float]]:
    """Return the own work (s) of a rank by step, and with Gloo by interval between collectives for which its operators wait."""
    if trace.gpu != CPU:
        return [[math.fsum(passes)] for passes in step_passes(trace)]
    excluded = _Excluded.of(trace)
    return [_intervals(trace, step, excluded) for step in _steps(trace)]


class _Excluded(NamedTuple):
    """Intervals that are not a rank's own work: inside its operators or kernels, and between them."""

    inside: Sequence[tuple[float, float]]
    between: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, trace: RankTrace) -> _Excluded:
        """Return the intervals of *trace*. With Gloo, operators wait inside for collectives but not for messages, which overlap."""
        if trace.gpu != CPU:
            return cls((), ())
        return cls(union(awaited(trace)), union(trace.collectives))


def _intervals(trace: RankTrace, step: TraceSpan, excluded: _Excluded) -> list[float]:
    """Return the own work (s) of a rank on a CPU in the intervals of a step between collectives."""
    ran = union(span for span in trace.compute if step.t0 <= span.t0 < step.t1)
    edges = [step.t0, *(time for span in ran for time in span), step.t1]
    idle = list(zip(edges[::2], edges[1::2], strict=True))
    met = [(max(step.t0, begin), min(step.t1, end)) for begin, end in excluded.inside if begin < step.t1 and end > step.t0]
    edges = [step.t0, *(time for span in met for time in span), step.t1]
    return [
        end
        - begin
        - math.fsum(overlap(excluded.between, max(begin, start), min(end, stop)) for start, stop in idle if stop > begin and start < end)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    ]


def _of_step(trace: RankTrace, step: TraceSpan, excluded: _Excluded) -> RankPasses:
    backward = sorted((span.t0, span.t1) for span in trace.backward if step.t0 <= span.t0 < step.t1)
    update = min((span.t0 for span in trace.optimizer if step.t0 <= span.t0 < step.t1), default=None)
    if not backward or update is None or update < backward[0][0]:
        raise SpecError(f"{trace.file}: {step.name} shows no backward pass followed by an optimizer; profile whole steps")
    last = max(end for _, end in backward)
    if any(MESSAGE.match(span.name) for span in trace.collectives):
        update = min(update, last)  # what a stage does after its last pass, such as joining outputs, is done once a step
    times = dict.fromkeys(RankPasses._fields, 0.0)
    done, on_cpu = step.t0, trace.gpu == CPU
    for span in sorted((span for span in trace.compute if step.t0 <= span.launched < step.t1), key=lambda span: span.t0):
        begin = max(span.t0, done)
        own = max(0.0, span.t1 - begin) - overlap(excluded.inside, begin, span.t1)
        if on_cpu and span.t0 > done:
            own += span.t0 - done - overlap(excluded.between, done, span.t0)
        done = max(done, span.t1)
        times[_pass_of(span.launched, backward, last, update)] += own
    if on_cpu and step.t1 > done:
        times["update"] += step.t1 - done - overlap(excluded.between, done, step.t1)
    return RankPasses(**times)


def _pass_of(launched: float, backward: Sequence[tuple[float, float]], last: float, update: float) -> str:
    """Return the pass of work that the host launched at *launched*.

    *backward* are the intervals of autograd's operators, *last* is the end of the last one, and *update* the begin of the optimizer's step.
    """
    if launched >= update:
        return "update"
    place = bisect_right(backward, (launched, float("inf"))) - 1
    return "backward" if launched >= last or (place >= 0 and launched < backward[place][1]) else "forward"


def stage_passes(passes: Mapping[int, RankPasses], layout: Layout) -> list[RankPasses]:
    """Return the times of a rank of each stage of *layout*, per micro-batch and per update, from the *passes* of ranks in a step.

    Raise SpecError if none of the ranks is of some stage.
    """
    stages = []
    for stage in range(layout.mesh.stages):
        own = [each for rank, each in passes.items() if layout.mesh.stage_of(rank) == stage]
        if not own:
            rank = next(rank for rank in range(layout.mesh.gpus) if layout.mesh.stage_of(rank) == stage)
            raise SpecError(f"no trace is of a rank of pipeline stage {stage}; add that of rank {rank}, for example")
        forward, backward, update = mean_passes(own)
        stages.append(RankPasses(forward / layout.micro_batches, backward / layout.micro_batches, update))
    return stages


def without_copies(base: Workload) -> Workload:
    """Return *base* without FSDP's copies, which the measured times of passes include."""
    stack = base.training.stack
    if stack.mesh is None or not stack.mesh.copies:
        return base
    stack = stack.model_copy(update={"mesh": stack.mesh.model_copy(update={"copies": False})})
    return base.with_training(stack=stack)


def with_measured_passes(
    hardware: Hardware, gpus_per_node: int | None, base: Workload, measured: Sequence[RankPasses], on: MeasuredOn, launches: bool
) -> Workload:
    """Return *base* with the times *measured* on a rank of each stage of *hardware*, of which *gpus_per_node* GPUs are used (None: all).

    With *launches*, layers have their computed launches. The simulator adds work to a pass that is not in its layers; the times of the
    layers are reduced by this amount.
    """
    layout = prepare(hardware, base, gpus_per_node)

    def with_passes(seconds: Sequence[RankPasses]) -> Workload:
        passes = [(layout.units_of(stage), {"F": each.forward, "B": each.backward}) for stage, each in enumerate(seconds)]
        layers = with_unit_times(base, on.gpu, passes, launches)
        return base.model_copy(update={"model": base.model.model_copy(update={"layers": layers, "measured": on})})

    draft = with_passes(measured)
    scene = layout_scene(hardware, draft, prepare(hardware, draft, gpus_per_node))
    reduced = []
    for stage, each in enumerate(measured):
        forward, backward = (sum(scene.times[stage](unit, part).compute for unit in layout.units_of(stage)) for part in ("F", "B"))
        reduced.append(RankPasses(max(0.0, 2 * each.forward - forward), max(0.0, 2 * each.backward - backward), each.update))
    return with_passes(reduced)


def pipeline_cv(
    hardware: Hardware, gpus_per_node: int | None, base: Workload, by_step: Sequence[Sequence[RankPasses]], on: MeasuredOn, launches: bool
) -> float:
    """Return the ``compute_cv`` with which a pipeline loses as much as by the passes of its stages in each step, instead of their means.

    *by_step* holds the passes of a rank of each stage by step. Steps take the time of the simulator's recurrence, which is convex in the
    passes (`sim.training.layouts.bound`). The simulator loses ``m(stages) compute_cv`` of the first stage's passes.
    """
    passes = [*by_step, [mean_passes(own) for own in zip(*by_step, strict=True)]]
    times = []
    for each in passes:
        timed = with_measured_passes(hardware, gpus_per_node, base, each, on, launches)
        times.append(least_time(layout_scene(hardware, _without_noise(timed), prepare(hardware, timed, gpus_per_node))))
    micro_batches = base.training.gradient_accumulation_steps
    compute = micro_batches * (passes[-1][0].forward + passes[-1][0].backward)
    return max(0.0, fmean(times[:-1]) - times[-1]) / expected_maximum(len(passes[0])) / compute if compute else 0.0


def _without_noise(workload: Workload) -> Workload:
    """Return *workload* with equal ranks."""
    noise = workload.training.noise.model_copy(update={"compute_cv": 0.0, "persistent_cv": 0.0, "compute_correlation": None})
    return workload.with_training(noise=noise)


def with_unit_times(
    base: Workload, gpu: Gpu, passes: Sequence[tuple[Sequence[int], Mapping[str, float]]], launches: bool = False
) -> tuple[Layer, ...]:
    """Return the layers of *base* with measured times: *passes* holds, for each set of units (numbers), their total times (s) of F and B.

    A total is distributed in proportion to the times computed on *gpu* for one rank's part of each layer. With *launches* each layer has
    its computed number of launches, else none.
    """
    training, members = base.training, [layers for _, _, layers in units(base.model)]
    again = mesh_options(base).gathers_again
    times: dict[int, MeasuredTimes] = {}
    for numbers, seconds in passes:
        own = [layer for number in numbers for layer in members[number]]
        parts = [
            rank_layer(unit, index, training.parallel, again)
            for unit in (members[number] for number in numbers)
            for index in range(len(unit))
        ]
        ran, scaled = {}, {}
        for part, backward in (("F", False), ("B", True)):
            ran[part] = [layer_time(layer, gpu, training.precision, base.layer_stack, training.batch, backward) for layer in parts]
            scaled[part] = seconds[part] / sum(kernels.time for kernels in ran[part])
        for layer, ahead, back in zip(own, ran["F"], ran["B"], strict=True):
            counts = (ahead.launches, back.launches) if launches else (0.0, 0.0)
            times[id(layer)] = measured_times(ahead.time * scaled["F"], back.time * scaled["B"], *counts)
    return tuple(layer.model_copy(update={"measured": times[id(layer)]}) for layers in members for layer in layers)


def layout_optimizer_factor(
    hardware: Hardware, gpus_per_node: int | None, workload: Workload, seconds: float, stages: slice = slice(None)
) -> float:
    """Return the stack's ``optimizer_factor`` with which the optimizer takes *seconds* on average over *stages*, by default all."""
    scene = layout_scene(hardware, workload, prepare(hardware, workload, gpus_per_node))
    computed = fmean(time for time, _ in scene.updates[stages])
    return workload.training.stack.update.optimizer_factor * seconds / computed
