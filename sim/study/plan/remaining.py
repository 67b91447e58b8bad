"""How much of a search is left, and how long will that take? An estimate from its results, and from the time of its latest answers.

The search ends when the table is full of layouts that no remaining one can beat. The value of the last layout of the table is estimated
from the increase of bounds in refinement so far, and from the share of simulated layouts that do not thrash. Layouts that cannot come
below that value are not counted, because their bounds will exclude them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from sim.study.plan.refine import FLOOR, LEAST, Level, LookAhead, Refine, RefineResult, RefineTask, StepBound

RECENT: Final = 16
"""Number of answers of each kind over which times are averaged: about those of one wave of two processes (`sim.study.plan.ahead`)."""


class RemainingWork(NamedTuple):
    """The expected remaining work of a search."""

    bounds: float
    simulations: float
    seconds: float


class Outlook:
    """Answers like *refine*, and records the time of answers by *clock* (s) and the increase of bounds."""

    def __init__(self, refine: Refine, clock: Callable[[], float]) -> None:
        self._refine, self._clock = refine, clock
        self._seconds: dict[Level, deque[float]] = {FLOOR: deque(maxlen=RECENT), LEAST: deque(maxlen=RECENT)}
        self._rises: dict[Level, list[float]] = {FLOOR: [], LEAST: []}
        self._values: list[float] = []
        self._good = 0
        self._simulations = 0

    def answer(self, task: RefineTask, ahead: LookAhead, value: float) -> RefineResult:
        """Return the result of *task* for a layout with the bound *value* so far."""
        begin = self._clock()
        answer = self._refine(task, ahead)
        self._seconds[task.level].append(self._clock() - begin)
        self._simulations += task.level == LEAST
        if isinstance(answer, StepBound) and value > 0.0:
            self._rises[FLOOR].append(max(1.0, answer.value / value))
        return answer

    def record(self, value: float, least: float, penalty: float) -> None:
        """Record a simulated layout of *value*, which is *penalty* times its value without thrashing, and of the bound *least*."""
        self._values.append(value)
        self._rises[LEAST].append(value / penalty / least if least > 0.0 else 1.0)
        self._good += penalty == 1.0

    def remaining_work(self, queue: Sequence[tuple[float, int, Level]], shown: int, most: int) -> RemainingWork:
        """Return the remaining work of a search for *shown* rows; *queue* holds (value, number, level); at most *most* are simulated."""
        rise, above = (median(self._rises[level] or [1.0]) for level in (LEAST, FLOOR))
        good = (self._good + 1) / (self._simulations + 1)  # layouts that did not fit after all are not good either
        bounded = [value * above if level == FLOOR else value for value, _, level in queue]
        last = _last(sorted([(value, 1.0) for value in self._values] + [(value * rise, good) for value in bounded]), shown)
        bounds = sum(level == FLOOR and value < last for value, _, level in queue)
        simulations = min(most - len(self._values), sum(value < last for value in bounded))
        return RemainingWork(bounds, simulations, bounds * self._mean(FLOOR) + simulations * self._mean(LEAST))

    def _mean(self, level: Level) -> float:
        return fmean(self._seconds[level]) if self._seconds[level] else 0.0


def _last(values: Sequence[tuple[float, float]], shown: int) -> float:
    """Return the value of the last of *shown* rows of a table, from ascending *values*, each with the probability that it counts."""
    taken = 0.0
    for value, share in values:
        taken += share
        if taken >= shown:
            return value
    return float("inf")
