"""Between which values does another layout take the lead? Of one knob, from a quarter to four times what it is, either way.

At each half and double, the layout that leads by its recurrence is looked for among all there are. Where that is not the plan's,
halving finds two neighbouring values between which the two change places: by their recurrences first, then both layouts are simulated on
either side, and where that contradicts, halving goes on with simulated steps. A third layout that leads there takes the place of the
second. Layouts that differ in micro-batches alone count as one, with the micro-batch of the quickest recurrence.

Limits: within an octave two layouts change places once; one that leads only by simulation, not by its recurrence, is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Final, NamedTuple

from sim.spec.yaml import SpecError
from sim.study.plan.floor import Setting
from sim.study.plan.refine import simulated
from sim.study.plan.search import Limits, outcome_of, quickest
from sim.study.plan.space import LayoutCandidate

OCTAVES: Final = 2
"""How often a value is halved or doubled at most."""
CHALLENGERS: Final = 3
"""Layouts that are compared with the plan's between two values, one after the other, at most."""

Ways = Sequence[tuple[Setting, Sequence[LayoutCandidate]]]


@dataclass(frozen=True)
class Knob:
    """What may be different: *own* is its value in the plan, *ways* are the layouts at another. These raise SpecError."""

    own: float
    steps: int
    """Values of each octave, evenly apart."""
    ways: Callable[[float], Ways]
    whole: bool = True

    def values(self, up: bool, octaves: int) -> list[float]:
        """Return the values from its own up or down to so many *octaves* from it."""
        values = [self.own]
        for octave in range(octaves):
            low = self.own * 2.0**octave if up else self.own / 2.0 ** (octave + 1)
            shares = range(1, self.steps + 1) if up else range(self.steps - 1, -1, -1)
            values += [low * (1.0 + share / self.steps) for share in shares]
        return [value for value in values if not self.whole or value == int(value)]


class Flip(NamedTuple):
    """Two neighbouring values of a knob between which another layout takes the lead."""

    holds: float
    """Where the plan's layout still leads *winner*."""
    lost: float
    winner: LayoutCandidate
    end: float
    """The value farther off at which both were compared, simulated."""
    behind: float | None
    """By what share of *winner*'s the plan's layout is worth more at *end*; None where it does not run there."""


class Flips(NamedTuple):
    """Where the lead changes, within the values *least* to *most* at which layouts run."""

    own: float
    least: float
    most: float
    flips: Sequence[Flip]


def alike(one: LayoutCandidate, other: LayoutCandidate) -> bool:
    """Tell whether two layouts differ in micro-batches alone."""
    return one._replace(micro_batches=1, batch=1) == other._replace(micro_batches=1, batch=1)


def only(ways: Ways, candidate: LayoutCandidate) -> Ways:
    """Return of *ways* the layouts like *candidate*."""
    alone = [(setting, [each for each in every if alike(candidate, each)]) for setting, every in ways]
    return [(setting, every) for setting, every in alone if every]


def flips(knob: Knob, best: LayoutCandidate, limits: Limits, leaders: Mapping[float, LayoutCandidate | None]) -> Flips:
    """Return where another layout than the plan's *best* takes the lead, the nearest such place on either side.

    *leaders* are the layouts that lead at some values; None: none fits.
    """
    views, changes, ends = _Views(knob, limits), [], {False: knob.own, True: knob.own}
    for up in ends:
        for octave in range(1, OCTAVES + 1):
            values = knob.values(up, octave)
            end = values[-1]
            if end == ends[up]:
                break
            leader = leaders[end] if end in leaders else views.leader(end)
            if leader is None:
                break
            ends[up] = end
            flip = None if alike(best, leader) else _nearest(views, best, leader, values)
            if flip is not None:
                changes.append(flip)
                break
    return Flips(knob.own, ends[False], ends[True], tuple(changes))


class _Views:
    """What layouts are worth at the values of a knob, each worked out once; no end where they do not run."""

    def __init__(self, knob: Knob, limits: Limits) -> None:
        self._knob, self._limits = knob, limits
        self.ways = cache(self._ways)
        self.leader = cache(self._leader)
        self.least = cache(self._least)
        self.simulated = cache(self._simulated)

    def _ways(self, value: float) -> Ways:
        try:
            return self._knob.ways(value)
        except SpecError:
            return []

    def _leader(self, value: float) -> LayoutCandidate | None:
        first = quickest(self.ways(value), self._limits)
        return None if first is None else first[1].candidate

    def _least(self, candidate: LayoutCandidate, value: float) -> float:
        first = quickest(only(self.ways(value), candidate), self._limits)
        return inf if first is None else first[0]

    def _simulated(self, candidate: LayoutCandidate, value: float) -> float:
        first = quickest(only(self.ways(value), candidate), self._limits)
        if first is None:
            return inf
        step = simulated(first[1], self._limits.memory)
        return outcome_of(first[1], step, first[0], self._limits).value


_Worth = Callable[[LayoutCandidate, float], float]
"""What a layout is worth at a value."""


def _nearest(views: _Views, best: LayoutCandidate, leader: LayoutCandidate, values: Sequence[float]) -> Flip | None:
    """Return the flip of *values* that is nearest to their first, where *leader* leads at their last; None where it does not, simulated."""
    flip, end, challenger = None, values[-1], leader
    for _ in range(CHALLENGERS):
        nearer = _crossing(views, best, challenger, _comparable(views, best, challenger, values[: values.index(end) + 1]))
        if nearer is None:
            break
        flip = nearer if flip is None else nearer._replace(end=flip.end, behind=flip.behind)
        end = flip.lost
        third = views.leader(end)
        if third is None or alike(third, best) or alike(third, challenger):
            break
        challenger = third
    return flip


def _comparable(views: _Views, best: LayoutCandidate, other: LayoutCandidate, values: Sequence[float]) -> list[float]:
    """Return those of *values* that both layouts divide, those beyond which *best* does not run at all, and the last."""
    runs = [bool(only(views.ways(value), best)) for value in values]
    beyond = len(runs) - runs[::-1].index(True)
    return [
        value
        for place, value in enumerate(values)
        if place == len(values) - 1 or ((runs[place] or place >= beyond) and only(views.ways(value), other))
    ]


def _crossing(views: _Views, best: LayoutCandidate, other: LayoutCandidate, values: Sequence[float]) -> Flip | None:
    """Return between which of *values* *other* gets ahead of *best*, which leads at the first; None where it leads at the last as well."""

    def leads(worth: _Worth, place: int) -> bool:
        return place == 0 or worth(best, values[place]) <= worth(other, values[place])

    def last(worth: _Worth, low: int, high: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if leads(worth, middle) else (low, middle)
        return low

    end = len(values) - 1
    if end < 1 or leads(views.simulated, end):
        return None
    place = last(views.least, 0, end)
    if not leads(views.simulated, place):
        place = last(views.simulated, 0, place)
    elif place + 1 < end and leads(views.simulated, place + 1):
        place = last(views.simulated, place + 1, end)
    behind = views.simulated(best, values[end]) / views.simulated(other, values[end]) - 1.0
    return Flip(values[place], values[place + 1], other, values[end], behind if behind < inf else None)
