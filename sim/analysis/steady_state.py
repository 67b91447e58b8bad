"""When does a simulation repeat itself, or settle? Exact period detection at step boundaries; means of drawn steps.

Whatever decides the future (queue levels, outstanding work, waits that have not ended) is written down at each step boundary relative to
now, rounded to 1e-9 of a step. When it recurs, everything between the two boundaries will recur too: the period is exact
and the rest of the epoch is arithmetic. Limits of a period: nothing random may be drawn in between, and slow state (burst credits) must not
change the rates; the caller ends the shortcut where it does.

Drawn steps have no period. MSER-5 cuts their warm-up (White, SIMULATION 69(6), 1997: of the means of five steps, drop as many as makes
the standard error of the rest least) and batch means give the interval (Law, Simulation Modeling and Analysis, section 9.5.3).
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
    """The simulation repeats between two boundaries: from step *first* at *start* (s) to step *last* at *end*."""

    first: int
    last: int
    start: float
    end: float

    @property
    def steps(self) -> int:
        """Return the steps of one period."""
        return self.last - self.first

    @property
    def duration(self) -> float:
        """Return the seconds of one period."""
        return self.end - self.start


class State(NamedTuple):
    """What decides the future at a boundary: *queues* compare exactly, *times* (s from now, or since) to 1e-9 of *scale*."""

    queues: Hashable
    times: tuple[float, ...]
    scale: float

    def rounded(self) -> Hashable:
        """Return the state as something that compares and hashes exactly."""
        unit = self.scale * _RESOLUTION
        return (self.queues, tuple(round(time / unit) for time in self.times))


class PeriodDetector:
    """Remembers states at step boundaries; tells when one recurs."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._history: list[tuple[int, float, State]] = []

    def observe(self, step: int, now: float, state: State) -> Period | None:
        """Note *state* after *step* steps at time *now* (s); return the period if it has been seen before."""
        place = self._seen.setdefault(state.rounded(), len(self._history))
        self._history.append((step, now, state))
        earlier, then, _ = self._history[place]
        return Period(earlier, step, then, now) if earlier < step else None

    def nearest(self) -> Period:
        """Return the stretch of at least half of what was seen, up to now, whose ends are most alike: the best whole number of periods."""
        step, now, _ = self._history[-1]
        (first, then, _), _ = self._closest()
        return Period(first, step, then, now)

    def apart(self) -> float:
        """Return how far apart the ends of the nearest stretch are, as a share of a step; infinite where they are not comparable."""
        return self._closest()[1]

    def _closest(self) -> tuple[tuple[int, float, State], float]:
        """Return where the nearest stretch begins, and how far apart its ends are."""
        _, _, last = self._history[-1]
        candidates = self._history[len(self._history) // 8 : max(len(self._history) // 2, 1)]
        alike = [entry for entry in candidates if entry[2].queues == last.queues and len(entry[2].times) == len(last.times)]
        if not alike:
            return candidates[0], math.inf

        def apart(entry: tuple[int, float, State]) -> float:
            return max((abs(a - b) for a, b in zip(entry[2].times, last.times, strict=True)), default=0.0)

        begin = min(alike, key=apart)
        return begin, apart(begin) / last.scale

    def forget(self) -> None:
        """Start afresh, as rates have changed."""
        self._seen.clear()
        self._history.clear()


class Settled(NamedTuple):
    """From step *first* on, steps take *mean* seconds, within *half_width* of it at 95%."""

    first: int
    mean: float
    half_width: float


def settled(durations: Sequence[float]) -> Settled | None:
    """Return what the steps' *durations* (s) settle to; None for too few of them."""
    first = warm_up(durations)
    kept = durations[first:]
    size = len(kept) // _BATCHES
    if size < 1:
        return None
    kept = kept[len(kept) - size * _BATCHES :]
    means = [sum(kept[start : start + size]) / size for start in range(0, len(kept), size)]
    mean = sum(means) / _BATCHES
    variance = sum((batch - mean) ** 2 for batch in means) / (_BATCHES - 1)
    return Settled(first, mean, _STUDENT * math.sqrt(variance / _BATCHES))


def warm_up(durations: Sequence[float]) -> int:
    """Return how many of the steps' *durations* to drop: at most half, by MSER-5."""
    means = [sum(durations[start : start + _BATCH]) / _BATCH for start in range(0, len(durations) - _BATCH + 1, _BATCH)]
    sums = [0.0, *accumulate(means)]
    squares = [0.0, *accumulate(mean * mean for mean in means)]

    def error(cut: int) -> float:
        count = len(means) - cut
        total = sums[-1] - sums[cut]
        return max(0.0, squares[-1] - squares[cut] - total * total / count) / count**2

    return _BATCH * min(range(len(means) // 2 + 1), key=error) if means else 0
