"""How are the times of a profile's passes distributed over the layers of a table? In proportion to the computed times of the layers.

Backward is distributed bucket by bucket if the trace names buckets. The number of launches of each layer is chosen so that the GPU waits
for the host as long as it did in the profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calibration.traces.host_lead import launches_scale
from calibration.traces.pass_times import PassSeconds, PassTimes
from calibration.traces.profiled_job import JobMachine
from sim.parallel.program import Work
from sim.spec.layer import Layer
from sim.spec.measured import MeasuredTimes
from sim.spec.segments import layers_to_recompute, segments
from sim.spec.workload import Workload
from sim.training.layer_times import layer_times
from sim.training.step_plan import StepClocks, plan_key, plan_step, timed_pass


class _LayerGroup(NamedTuple):
    """Layers of one pass (indices in the table, in execution order) that share a measured time, and that time."""

    places: Sequence[int]
    measured: PassSeconds
    other_time: float
    """Time (s) in it that is not due to its layers: copies of gradients into buckets, and recomputed forward passes."""
    drained: bool = False
    """Whether the host waits for the GPU before it launches these layers."""


def with_pass_times(base: Workload, machine: JobMachine, measured: PassTimes, ranks: int) -> tuple[Layer, ...]:
    """Return the layers of *base* with the times *measured*, distributed in proportion to the computed times."""
    layers, count = base.model.layers, len(base.model.layers)
    times, rounds = layer_times(base, machine.gpu), base.training.gradient_accumulation_steps if measured.micro_batches == 1 else 1
    launch = base.training.stack.kernels.launch_cpu / machine.launch_speed
    timeline = StepClocks(launch)
    stack = base.training.stack
    forward = _LayerGroup(range(count), measured.total("forward"), 0.0, drained=stack.library.backend == "gloo")
    ahead = _distributed(forward, times.forward, times.forward_launches, rounds, timeline)
    recompute_times = {place: sum(ahead[0][other] for other in others) for place, others in layers_to_recompute(segments(base)).items()}
    back: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for number, group in enumerate(_backward_groups(base, machine, measured, ranks)):
        recompute = sum(recompute_times.get(place, 0.0) for place in group.places) * rounds
        drained = number == 0 and ranks > 1 and stack.exchange.blocking_scalar_all_reduces > 0
        group = group._replace(other_time=group.other_time + recompute, drained=drained)
        scaled = _distributed(group, times.backward, times.backward_launches, rounds, timeline)
        back[0].update(scaled[0])
        back[1].update(scaled[1])
    return tuple(
        layer.model_copy(update={"measured": measured_times(ahead[0][place], back[0][place], ahead[1][place], back[1][place])})
        for place, layer in enumerate(layers)
    )


def measured_times(
    forward: float, backward: float, forward_launches: float, backward_launches: float, upkeep: float = 0.0
) -> MeasuredTimes:
    """Return the measured times of a layer, from seconds and numbers of launches."""
    times = {"forward": f"{forward!r} s", "backward": f"{backward!r} s", "upkeep": f"{upkeep!r} s"}
    return MeasuredTimes.model_validate(times | {"forward_launches": forward_launches, "backward_launches": backward_launches})


def _backward_groups(base: Workload, machine: JobMachine, measured: PassTimes, ranks: int) -> list[_LayerGroup]:
    """Return the layers of backward grouped by bucket if the trace shows the times of each bucket, else one group of all layers."""
    computed = timed_pass(plan_key(base, machine.gpu, machine.launch_speed))
    count = len(base.model.layers)
    cuts: list[tuple[int, int]] = []
    copied, done = [], 0
    for work, segment in plan_step(base, machine.gpu, machine.launch_speed, ranks).passes("B"):
        until = count - work.first if isinstance(work, Work) else done
        cuts.append((until, segment.bucket))
        copied.append(segment.compute - sum(part.compute for part in computed.backward[done:until]))
        done = until
    buckets = {place for which, place in measured.parts if which == "backward"}
    if base.training.gradient_accumulation_steps > 1 or {bucket for _, bucket in cuts} != buckets or len({*cuts}) != len(buckets):
        rounds = (
            base.training.gradient_accumulation_steps if measured.micro_batches == 1 and not base.training.stack.exchange.no_sync else 1
        )
        return [_LayerGroup(range(count - 1, -1, -1), measured.total("backward"), sum(copied) * rounds)]
    starts = [0, *(until for until, _ in cuts)]
    return [
        _LayerGroup([count - 1 - place for place in range(start, until)], measured.parts["backward", bucket], other_time)
        for start, (until, bucket), other_time in zip(starts, cuts, copied, strict=False)
    ]


def _distributed(
    group: _LayerGroup, times: Sequence[float], launches: Sequence[float], rounds: int, timeline: StepClocks
) -> tuple[dict[int, float], dict[int, float]]:
    """Return time (s) and launches of each layer of *group*, which runs *rounds* times per step, and advance *timeline*."""
    computed = sum(times[place] for place in group.places)
    seconds = max(0.0, group.measured.seconds - group.other_time) / rounds
    scale = seconds / computed if computed else 0.0
    taken = {place: times[place] * scale for place in group.places}
    stall = group.measured.host_wait / rounds
    other_time = group.other_time / rounds
    timeline.gpu += group.measured.rank_wait / rounds
    if group.drained:
        timeline.host = timeline.gpu
    launched = launches_scale([(taken[place], launches[place]) for place in group.places], stall, timeline)
    for place in group.places:
        timeline.run(taken[place], launches[place] * launched)
    timeline.gpu += other_time
    return taken, {place: launches[place] * launched for place in group.places}
