"""How long is a step of many micro-batches? Few are simulated; where each further turn adds the same to everything, so do the rest.

A schedule repeats between its warm-up and its cool-down, and so do the kernels and messages of a turn (a max-plus system with one input
becomes periodic: Baccelli et al., "Synchronization and Linearity", section 3.7). Three steps that differ by a micro-batch each tell whether
it has. Limits: what happens when is not logged for the micro-batches that were not simulated.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from sim.parallel.lower.layouts import Layout, program
from sim.training.layouts.play import play
from sim.training.layouts.scene import Played, Scene, StageStep

_SAME: Final = 1e-9
"""Of a step: what a turn may add more or less than the one before it."""
_WORTH: Final = 0.7
"""Of the micro-batches of a step: as many simulated ones still pay."""
_SETTLES: Final = "1f1b"
"""The pipeline schedule that a micro-batch repeats. Interleaved ones settle late where the host is behind, and the backlog of messages of
gpipe grows with the micro-batches."""

K = TypeVar("K", bound=Hashable)


def play_steadily(scene: Scene) -> Played:
    """Return the step that `play` returns, within 1e-9 of it, with the log of fewer micro-batches where there are many."""
    counts = _counts(scene.layout)
    if not counts or scene.noise.draws:
        return play(scene)
    few = [play(_of(scene, count)) for count in counts]
    turn = few[2].time - few[1].time
    fed = scene.feed is None or scene.feed.interval < turn * (1 - _SAME)
    if not fed or not all(_steady(*stages) for stages in zip(*(each.stages for each in few), strict=True)):
        return play(scene)
    turns = scene.layout.micro_batches - counts[2]
    pairs = zip(few[1].stages, few[2].stages, strict=True)
    return replace(few[2], stages=tuple(_after(before, last, turns) for before, last in pairs))


def _counts(layout: Layout) -> tuple[int, ...]:
    """Return three numbers of micro-batches in place of that of *layout*; none where its schedule does not settle, or little is saved."""
    stages, wanted = layout.mesh.stages, layout.micro_batches
    if layout.own is not None or (stages > 1 and layout.schedule != _SETTLES):
        return ()
    first = 2 * stages + 2
    counts = first, first + 1, first + 2
    return counts if sum(counts) < _WORTH * wanted else ()


def _of(scene: Scene, micro_batches: int) -> Scene:
    """Return *scene* with so many micro-batches a step, each of which takes what it took."""
    layout = replace(scene.layout, micro_batches=micro_batches)
    return replace(scene, layout=layout, programs=tuple(program(layout, stage) for stage in range(layout.mesh.stages)))


def _steady(first: StageStep, second: StageStep, third: StageStep) -> bool:
    """Tell whether the last turn added to each figure of a stage what the turn before it did."""
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


def _after(before: StageStep, last: StageStep, turns: int) -> StageStep:
    """Return the step of a stage *turns* turns longer than *last*, which is one longer than *before*."""

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
