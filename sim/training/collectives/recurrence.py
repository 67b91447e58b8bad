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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
