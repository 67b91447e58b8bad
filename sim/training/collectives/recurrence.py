"""How long does a ring of unequal hops take, alone? Exactly as long as its slowest walk.

Hop i is busy for b_i (seconds) with each chunk and delivers it l_i later; rank i + 1 may pass on in step k + 1 what arrived in
step k:

    start_i(k) = max(arrive_{i-1}(k-1), start_i(k-1) + b_i),    arrive_i(k) = start_i(k) + b_i + l_i,    k = 1..K

Unrolled, the last arrival is the dearest walk of K steps, each of which stays at its hop for b_i or moves on for b_i + l_i. A walk
that meets w hops in a row (w <= K) meets each once and spends its K - w other steps at the busiest of them, so

    T = max over start j and width w of    sum of b_i + l_i over the window  +  (K - w) * max of b_i over the window.

On a ring of p hops repeated by N equal nodes windows look alike from node to node, so p starts are enough; a window of width
w >= p holds the busiest hop, and a further whole period changes the sum by the same amount each time, so only the shortest and the
longest widths can be best. Hence N enters through K alone and the cost, p^2, does not grow with it. Exact, not a bound;
contention and jitter are left to the executors.

Where a few nodes differ the whole ring is given, and long stretches of it repeat a pattern. Moving either end of a window by one pattern
changes the sum by the same amount each time, as long as a whole pattern stays inside, so windows that begin or end deep inside
a stretch are never alone the best, unless they are as long as K allows and the other end stands near an end of a stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LONG = 256
"""Hops of a ring beyond which it is worth looking for repeated patterns."""
_PATTERN = 64
"""Hops of the longest pattern looked for: the GPUs of a node."""
_KEPT = 3
"""Patterns at each end of a stretch near which a window may begin or end: a whole one stays inside it, whatever its phase."""


class RingTime(NamedTuple):
    """*total* (s), and the share of it that latency adds to what the busiest hop needs for its bytes alone."""

    total: float
    latency_share: float

    @property
    def latency(self) -> float:
        """Return the seconds beyond the busiest hop's own."""
        return self.total * self.latency_share


def ring_time(occupancy: Sequence[float], latency: Sequence[float], steps: int) -> RingTime:
    """Return the time of *steps* steps on a ring whose hops have these *occupancy* and *latency* (s), in order.

    A ring that repeats a pattern, one per node, needs the pattern only: the number of its nodes is in *steps*.
    """
    busy = np.asarray(occupancy, dtype=float)
    late = np.asarray(latency, dtype=float)
    if busy.ndim != 1 or busy.shape != late.shape or not busy.size:
        raise ValueError(f"every hop has one occupancy and one latency: {busy.shape} and {late.shape}")
    if steps < 0 or not (busy >= 0).all() or not (late >= 0).all():
        raise ValueError("steps, occupancies and latencies are zero or more")
    if steps == 0:
        return RingTime(0.0, 0.0)
    near = _near_ends(busy, late) if _LONG < len(busy) <= steps + 1 <= 2 * len(busy) else None
    if near is not None:
        total = _best_near(busy, late, near, steps)
    else:
        total = max(_best(busy, late, widths, steps) for widths in _widths(len(busy), steps))
    bare = steps * float(busy.max())
    return RingTime(total, max(0.0, 1 - bare / total) if total > 0 else 0.0)


def all_reduce_steps(n: int) -> int:
    """Return the steps of a ring all-reduce of *n* ranks."""
    return 2 * (n - 1)


def _widths(period: int, steps: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of window widths among which the best one is."""
    if steps <= 2 * period:
        return [(1, steps)]
    return [(1, 2 * period), (max(2 * period + 1, steps - period + 1), steps)]


def _best(busy: NDArray[np.float64], late: NDArray[np.float64], widths: tuple[int, int], steps: int) -> float:
    """Return the dearest walk over windows of *widths*, from every start."""
    first, last = widths
    period = len(busy)
    whole, rest = divmod(first - 1, period)
    ahead = np.tile(busy + late, last // period + 2)
    sums = np.concatenate([[0.0], np.cumsum(ahead[: rest + last - first + 1 + period])])
    starts = np.arange(period)[:, None]
    spans = np.arange(rest + 1, rest + last - first + 2)[None, :]
    window = sums[starts + spans] - sums[starts] + whole * float((busy + late).sum())
    width = np.arange(first, last + 1)[None, :]
    return float((window + (steps - width) * _busiest(busy, width.shape[1], first)).max())


def _busiest(busy: NDArray[np.float64], count: int, first: int) -> NDArray[np.float64]:
    """Return the largest occupancy in each window of width first, first + 1, .., from every start."""
    period = len(busy)
    if first >= period:
        return np.full((period, count), busy.max())
    starts = np.arange(period)[:, None]
    around = busy[(starts + np.arange(first + count - 1)[None, :]) % period]
    return np.asarray(np.maximum.accumulate(around, axis=1)[:, first - 1 :])


def _near_ends(busy: NDArray[np.float64], late: NDArray[np.float64]) -> NDArray[np.intp] | None:
    """Return the hops of a ring that are not deep inside a stretch that repeats a pattern; None where most are."""
    fewest = None
    for pattern in range(1, min(_PATTERN, len(busy) // 8) + 1):
        again = (busy[pattern:] == busy[:-pattern]) & (late[pattern:] == late[:-pattern])
        ends = np.flatnonzero(np.diff(np.concatenate([[False], again, [False]]).astype(np.int8)))
        keep = np.ones(len(busy), dtype=bool)
        for first, last in zip(ends[::2], ends[1::2] + pattern, strict=True):  # hops first .. last - 1 repeat
            keep[first + _KEPT * pattern : max(last - _KEPT * pattern, 0)] = False
        if fewest is None or keep.sum() < fewest.sum():
            fewest = keep
    return np.flatnonzero(fewest) if fewest is not None and fewest.sum() < len(busy) // 2 else None


def _best_near(busy: NDArray[np.float64], late: NDArray[np.float64], near: NDArray[np.intp], steps: int) -> float:
    """Return the dearest walk over windows that begin and end at hops *near*, or begin or end there and are as long as *steps*."""
    count = len(busy)
    sums = np.concatenate([[0.0], np.cumsum(np.tile(busy + late, 3))])
    ends = np.concatenate([near, near + count, near + 2 * count])
    width = ends[None, :] + 1 - near[:, None]
    within = (width >= 1) & (width <= steps)
    around = np.where(np.arange(len(ends))[None, :] >= np.arange(len(near))[:, None], np.tile(busy[near], 3)[None, :], 0.0)
    busiest = np.maximum.accumulate(around, axis=1)
    walks = sums[ends + 1][None, :] - sums[near][:, None] + (steps - width) * busiest
    starts = np.concatenate([near, near + count - steps % count + 1]) % count
    return float(max(walks[within].max(), (sums[starts + steps] - sums[starts]).max()))
