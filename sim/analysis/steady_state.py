"""When does a simulation repeat or settle? Exact period detection at step boundaries, and means of steps with random times.

At each step boundary, everything that determines the future (queue levels, outstanding work, pending waits) is recorded relative to the
current time and rounded to 1e-9 of a step. When this state recurs, everything between the two boundaries recurs too: the period is exact
and the rest of the epoch is arithmetic. Limits of a period: nothing random may be drawn within it, and slow state (burst credits) must not
change the rates; the caller stops using the period when it does.

Steps with random times have no period. MSER-5 cuts their warm-up (White, SIMULATION 69(6), 1997: drop as many means of five steps
as minimizes the standard error of the rest). Batch means give the interval (Law, Simulation Modeling and Analysis, section 9.5.3).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

_RESOLUTION = 1e-9
_BATCH = 5
_BATCHES = 20
_STUDENT = 2.093
"""97.5% quantile of Student's t with 19 degrees of freedom, for 20 batches."""


class Period(NamedTuple):
    """A period between two step boundaries: from step *first* at *start* (s) to step *last* at *end* (s)."""

    first: int
    last: int
    start: float
    end: float

    @property
    def steps(self) -> int:
        """Return the number of steps in one period."""
        return self.last - self.first

    @property
    def duration(self) -> float:
        """Return the duration (s) of one period."""
        return self.end - self.start


class State(NamedTuple):
    """The state at a step boundary: *queues* are compared exactly, *times* (s before or after now) to within 1e-9 of *scale*."""

    queues: Hashable
    times: tuple[float, ...]
    scale: float

    def rounded(self) -> Hashable:
        """Return a hashable form of the state that compares exactly."""
        unit = self.scale * _RESOLUTION
        return (self.queues, tuple(round(time / unit) for time in self.times))


class PeriodDetector:
    """Records the states at step boundaries and detects when one recurs."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._history: list[tuple[int, float, State]] = []

    def observe(self, step: int, now: float, state: State) -> Period | None:
        """Record *state* after *step* steps at time *now* (s); return the period if the state has occurred before."""
        place = self._seen.setdefault(state.rounded(), len(self._history))
        self._history.append((step, now, state))
        earlier, then, _ = self._history[place]
        return Period(earlier, step, then, now) if earlier < step else None

    def nearest(self) -> Period:
        """Return the stretch up to now, at least half of the history, with the most similar ends: the best whole number of periods."""
        step, now, _ = self._history[-1]
        (first, then, _), _ = self._closest()
        return Period(first, step, then, now)

    def mismatch(self) -> float:
        """Return how much the ends of the nearest stretch differ, as a share of a step; infinite if they are not comparable."""
        return self._closest()[1]

    def _closest(self) -> tuple[tuple[int, float, State], float]:
        """Return the beginning of the nearest stretch, and how much its ends differ."""
        _, _, last = self._history[-1]
        candidates = self._history[len(self._history) // 8 : max(len(self._history) // 2, 1)]
        comparable = [entry for entry in candidates if entry[2].queues == last.queues and len(entry[2].times) == len(last.times)]
        if not comparable:
            return candidates[0], math.inf

        def difference(entry: tuple[int, float, State]) -> float:
            return max((abs(a - b) for a, b in zip(entry[2].times, last.times, strict=True)), default=0.0)

        begin = min(comparable, key=difference)
        return begin, difference(begin) / last.scale

    def forget(self) -> None:
        """Discard the history because rates have changed."""
        self._seen.clear()
        self._history.clear()


class SteadyMean(NamedTuple):
    """The mean step time (s) from step *first* on, with *half_width* (s) of its 95% confidence interval."""

    first: int
    mean: float
    half_width: float


def steady_mean(durations: Sequence[float]) -> SteadyMean | None:
    """Return the mean to which the *durations* (s) of steps settle, or None if there are too few."""
    first = warm_up(durations)
    kept = durations[first:]
    size = len(kept) // _BATCHES
    if size < 1:
        return None
    kept = kept[len(kept) - size * _BATCHES :]
    means = [sum(kept[start : start + size]) / size for start in range(0, len(kept), size)]
    mean = sum(means) / _BATCHES
    variance = sum((batch - mean) ** 2 for batch in means) / (_BATCHES - 1)
    return SteadyMean(first, mean, _STUDENT * math.sqrt(variance / _BATCHES))


def warm_up(durations: Sequence[float]) -> int:
    """Return how many of the first *durations* to drop as warm-up by MSER-5; at most half."""
    means = [sum(durations[start : start + _BATCH]) / _BATCH for start in range(0, len(durations) - _BATCH + 1, _BATCH)]
    sums = [0.0, *accumulate(means)]
    squares = [0.0, *accumulate(mean * mean for mean in means)]

    def error(cut: int) -> float:
        count = len(means) - cut
        total = sums[-1] - sums[cut]
        return max(0.0, squares[-1] - squares[cut] - total * total / count) / count**2

    return _BATCH * min(range(len(means) // 2 + 1), key=error) if means else 0
