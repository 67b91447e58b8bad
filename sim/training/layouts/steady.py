"""How long is a step of many micro-batches? A few are simulated; if each further one adds the same time, the result is extrapolated.

In a pipeline, and if weights are not sharded, turns of its steady state are left out (`turning`). With FSDP and without a pipeline, a
step repeats for each micro-batch (a max-plus system with one input becomes periodic: Baccelli et al., "Synchronization and Linearity",
section 3.7). Three steps that differ by one micro-batch each show whether it has become periodic. It stays so if neither the host nor the
loader is slower than a micro-batch.
Limits: the log does not cover the micro-batches that were not simulated.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from sim.parallel.lower.layouts import program
from sim.parallel.program import Copy, Work
from sim.training.layouts.play import play
from sim.training.layouts.scene import LayoutScene, PlayedLayout, StageStep
from sim.training.layouts.turning import play_turns

_SAME: Final = 1e-9
"""Tolerance, as a share of the step time, for the difference between the increments of two micro-batches."""
_WORTH: Final = 0.7
"""Maximum share of a step's micro-batches up to which extrapolation pays off."""
_FEW: Final = (4, 5, 6)
"""Numbers of micro-batches in the three simulated steps."""

K = TypeVar("K", bound=Hashable)


def play_steadily(scene: LayoutScene) -> PlayedLayout:
    """Return the result of `play`, with an accuracy of 1e-6 (most: 1e-8); with many micro-batches, the log has fewer of them."""
    micro_batches = scene.layout.micro_batches
    alone = scene.layout.shards_parameters and scene.layout.mesh.stages == 1
    if not alone:
        return play_turns(scene) or play(scene)
    if scene.noise.draws or sum(_FEW) > _WORTH * micro_batches:
        return play(scene)
    played = [play(_with_micro_batches(scene, count)) for count in _FEW]
    turn = played[2].time - played[1].time
    if _least_interval(scene) > turn * (1 + _SAME) or not all(
        _steady(*stages) for stages in zip(*(each.stages for each in played), strict=True)
    ):
        return play(scene)
    pairs = zip(played[1].stages, played[2].stages, strict=True)
    return replace(played[2], stages=tuple(_extrapolated(before, last, micro_batches - _FEW[2]) for before, last in pairs))


def _least_interval(scene: LayoutScene) -> float:
    """Return the minimum time (s) of a micro-batch on the host or in the loader, whichever is slower."""
    works = (each for each in scene.programs[0] if isinstance(each, Work) and each.micro_batch == 0)
    host = sum(scene.times[0].span(work.first, work.last, work.part).launch_time(scene.launch_cpu) for work in works)
    host += scene.launch_cpu * sum(isinstance(each, Copy) and each.micro_batch == 0 for each in scene.programs[0])
    return max(host, scene.feed.interval if scene.feed is not None else 0.0)


def _with_micro_batches(scene: LayoutScene, micro_batches: int) -> LayoutScene:
    """Return *scene* with *micro_batches* micro-batches per step, each with unchanged times."""
    layout = replace(scene.layout, micro_batches=micro_batches)
    return replace(scene, layout=layout, programs=tuple(program(layout, stage) for stage in range(layout.mesh.stages)))


def _steady(first: StageStep, second: StageStep, third: StageStep) -> bool:
    """Return whether the last two micro-batches added the same amount to each figure of a stage."""
    within = _SAME * third.time
    return all(
        abs((c - b) - (b - a)) <= within
        for a, b, c in zip(_figures(first, third), _figures(second, third), _figures(third, third), strict=True)
    )


def _figures(step: StageStep, like: StageStep) -> Sequence[float]:
    """Return the figures of *step*, in the order of *like*."""
    return [
        step.time,
        *(step.stalls.get(key, 0.0) for key in like.stalls),
        *(step.resources.get(key, 0.0) for key in like.resources),
        *(step.exposed.get(key, 0.0) for key in like.exposed),
    ]


def _extrapolated(before: StageStep, last: StageStep, turns: int) -> StageStep:
    """Return the step of a stage with *turns* more micro-batches than *last*, which has one more than *before*."""

    def longer(earlier: Mapping[K, float], later: Mapping[K, float]) -> dict[K, float]:
        return {key: value + turns * (value - earlier.get(key, 0.0)) for key, value in later.items()}

    time = last.time + turns * (last.time - before.time)
    return replace(
        last,
        time=time,
        stalls=longer(before.stalls, last.stalls),
        resources=longer(before.resources, last.resources),
        exposed=longer(before.exposed, last.exposed),
        end=last.begin + time,
        clock=(),
    )
