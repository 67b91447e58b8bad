"""Between which values of a knob does another layout take the lead? Its value varies from a quarter to four times that of the plan.

At each half and double, all layouts are searched for the one that leads by its recurrence. If it is not the plan's, bisection finds two
neighboring values between which the lead changes. Bisection first compares recurrences. Then both layouts are simulated at these two
values; if the results contradict the recurrences, bisection continues with simulated steps. A third layout that leads there replaces the
second. Layouts that differ only in their micro-batches count as one, with the micro-batch of the quickest recurrence. A layout that is
equal to the plan's (`EQUAL`) does not take the lead.

Limits: within an octave, the lead between two layouts changes only once; a layout that leads only in simulation, but not by its
recurrence, is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Final, NamedTuple

from sim.spec.yaml import SpecError
from sim.study.plan.refine import simulate_step
from sim.study.plan.search import EQUAL, Limits, PlacedCandidates, best_by_recurrence, outcome_of
from sim.study.plan.space import LayoutCandidate

OCTAVES: Final = 2
"""Maximum number of times that a value is halved or doubled."""
CHALLENGERS: Final = 3
"""Maximum number of layouts that are compared with the plan's between two values, in sequence."""


@dataclass(frozen=True)
class Knob:
    """A value that may vary: *planned_value* is the plan's; *layouts_at* returns the layouts at another value, or raises SpecError."""

    planned_value: float
    steps: int
    """Values per octave, evenly spaced."""
    layouts_at: Callable[[float], PlacedCandidates]
    is_integer: bool = True

    def values(self, up: bool, octaves: int) -> list[float]:
        """Return the values from its own up or down to that many *octaves* away."""
        values = [self.planned_value]
        for octave in range(octaves):
            low = self.planned_value * 2.0**octave if up else self.planned_value / 2.0 ** (octave + 1)
            shares = range(1, self.steps + 1) if up else range(self.steps - 1, -1, -1)
            values += [low * (1.0 + share / self.steps) for share in shares]
        return [value for value in values if not self.is_integer or value == int(value)]


class Flip(NamedTuple):
    """Two neighboring values of a knob between which another layout takes the lead."""

    holding_value: float
    """The value at which the plan's layout still leads *winner*."""
    losing_value: float
    winner: LayoutCandidate
    end: float
    """The value farther away at which both were compared by simulation."""
    deficit: float | None
    """How much higher the objective of the plan's layout is at *end*, relative to *winner*'s; None if it does not run there."""


class Flips(NamedTuple):
    """Where the lead changes, among values from *least* to *most* at which layouts run."""

    planned_value: float
    least: float
    most: float
    flips: Sequence[Flip]


def same_but_micro_batches(one: LayoutCandidate, other: LayoutCandidate) -> bool:
    """Return whether two layouts differ only in their micro-batches."""
    return one._replace(micro_batches=1, batch=1) == other._replace(micro_batches=1, batch=1)


def filter_layouts(layouts: PlacedCandidates, candidate: LayoutCandidate) -> PlacedCandidates:
    """Return the layouts in *layouts* that differ from *candidate* at most in their micro-batches."""
    matching = [(setting, [each for each in every if same_but_micro_batches(candidate, each)]) for setting, every in layouts]
    return [(setting, every) for setting, every in matching if every]


def flips(knob: Knob, best: LayoutCandidate, limits: Limits, leaders: Mapping[float, LayoutCandidate | None]) -> Flips:
    """Return the nearest values on either side between which a layout other than the plan's *best* takes the lead.

    *leaders* are the layouts already found to lead at some values; None: no layout fits.
    """
    views, changes, ends = _Views(knob, limits), [], {False: knob.planned_value, True: knob.planned_value}
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
            flip = None if same_but_micro_batches(best, leader) else _nearest(views, best, leader, values)
            if flip is not None:
                changes.append(flip)
                break
    return Flips(knob.planned_value, ends[False], ends[True], tuple(changes))


class _Views:
    """The objective of layouts at the values of a knob, each computed once; infinite if they do not run."""

    def __init__(self, knob: Knob, limits: Limits) -> None:
        self._knob, self._limits = knob, limits
        self.layouts = cache(self._layouts)
        self.leader = cache(self._leader)
        self.least = cache(self._least)
        self.simulated = cache(self._simulated)

    def _layouts(self, value: float) -> PlacedCandidates:
        try:
            return self._knob.layouts_at(value)
        except SpecError:
            return []

    def _leader(self, value: float) -> LayoutCandidate | None:
        first = best_by_recurrence(self.layouts(value), self._limits)
        return None if first is None else first[1].candidate

    def _least(self, candidate: LayoutCandidate, value: float) -> float:
        first = best_by_recurrence(filter_layouts(self.layouts(value), candidate), self._limits)
        return inf if first is None else first[0]

    def _simulated(self, candidate: LayoutCandidate, value: float) -> float:
        first = best_by_recurrence(filter_layouts(self.layouts(value), candidate), self._limits)
        if first is None:
            return inf
        step = simulate_step(first[1], self._limits.memory)
        return outcome_of(first[1], step, first[0], self._limits).value


_ObjectiveAt = Callable[[LayoutCandidate, float], float]
"""Maps a layout and a value of the knob to the objective (lower is better)."""


def _nearest(views: _Views, best: LayoutCandidate, leader: LayoutCandidate, values: Sequence[float]) -> Flip | None:
    """Return the flip nearest to the first of *values*, given that *leader* leads at the last; None if simulation contradicts that."""
    flip, end, challenger = None, values[-1], leader
    for _ in range(CHALLENGERS):
        nearer = _crossing(views, best, challenger, _comparable(views, best, challenger, values[: values.index(end) + 1]))
        if nearer is None:
            break
        flip = nearer if flip is None else nearer._replace(end=flip.end, deficit=flip.deficit)
        end = flip.losing_value
        third = views.leader(end)
        if third is None or same_but_micro_batches(third, best) or same_but_micro_batches(third, challenger):
            break
        challenger = third
    return flip


def _comparable(views: _Views, best: LayoutCandidate, other: LayoutCandidate, values: Sequence[float]) -> list[float]:
    """Return the *values* at which *other* runs and *best* either runs or never runs again, and the last value."""
    runs = [bool(filter_layouts(views.layouts(value), best)) for value in values]
    beyond = len(runs) - runs[::-1].index(True)
    return [
        value
        for place, value in enumerate(values)
        if place == len(values) - 1 or ((runs[place] or place >= beyond) and filter_layouts(views.layouts(value), other))
    ]


def _crossing(views: _Views, best: LayoutCandidate, other: LayoutCandidate, values: Sequence[float]) -> Flip | None:
    """Return between which of *values* *other* overtakes *best*, which leads at the first; None if it also leads at the last."""

    def leads(value_of: _ObjectiveAt, place: int) -> bool:
        return place == 0 or value_of(best, values[place]) <= (1.0 + EQUAL) * value_of(other, values[place])

    def last(value_of: _ObjectiveAt, low: int, high: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if leads(value_of, middle) else (low, middle)
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
