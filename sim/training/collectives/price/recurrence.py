"""How long does a ring of unequal hops take without contention? Exactly the time of its longest walk.

Hop i is busy for b_i seconds with each chunk and delivers it l_i seconds later. Rank i + 1 may pass on in step k + 1 what arrived in step
k. The last arrival is the longest walk of K steps, each of which stays at its hop for b_i or moves on for b_i + l_i::

    T = max over start j and width w of    sum of b_i + l_i over the window  +  (K - w) * max of b_i over the window

For a ring of p hops repeated by N equal nodes, p starts are enough, and among widths beyond p only the shortest and the longest can be
best. The run time, p^2, therefore does not grow with N. The result is exact, not a bound; contention and jitter are left to the executors.
`sim.training.collectives.price.long_rings` handles rings of many hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

ROUNDS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often each operation goes around a ring; other operations are pipelines along it."""

_MOST_PYTHON_WINDOWS = 1024
"""Number of windows up to which plain Python is faster than numpy, even without the time to import it."""


class RingTime(NamedTuple):
    """The *total* time (s), and the share of it in excess of the bytes on the busiest hop."""

    total: float
    latency_share: float

    @property
    def latency(self) -> float:
        """Return the time (s) in excess of the bytes on the busiest hop."""
        return self.total * self.latency_share


def ring_time(occupancy: Sequence[float], latency: Sequence[float], steps: int) -> RingTime:
    """Return the time of *steps* steps on a ring; *occupancy* and *latency* (s) are by hop, in order.

    For a ring that repeats the pattern of one node, the pattern is enough: *steps* reflects the number of nodes.
    """
    if not occupancy or len(occupancy) != len(latency):
        raise ValueError(f"every hop has one occupancy and one latency: {len(occupancy)} and {len(latency)}")
    if steps < 0 or not all([value >= 0 for value in (*occupancy, *latency)]):
        raise ValueError("steps, occupancies and latencies are zero or more")
    if steps == 0:
        return RingTime(0.0, 0.0)
    total = _longest_walk(occupancy, latency, steps)
    bare = steps * max(occupancy)
    return RingTime(total, max(0.0, 1 - bare / total) if total > 0 else 0.0)


def _longest_walk(occupancy: Sequence[float], latency: Sequence[float], steps: int) -> float:
    """Return the time of the longest walk."""
    if min(occupancy) == max(occupancy) and min(latency) == max(latency):
        return steps * (occupancy[0] + latency[0])
    widths = _widths(len(occupancy), steps)
    if len(occupancy) * sum(last - first + 1 for first, last in widths) <= _MOST_PYTHON_WINDOWS:
        return max(_best_of_few(occupancy, latency, span, steps) for span in widths)
    from sim.training.collectives.price.long_rings import longest_walk

    return longest_walk(occupancy, latency, widths, steps)


def ring_steps(op: str, ranks: int) -> int:
    """Return the number of steps of *op*, one of `ROUNDS`, on a ring of *ranks* ranks."""
    return ROUNDS[op] * (ranks - 1)


def _widths(period: int, steps: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of window widths that can be best."""
    if steps <= 2 * period:
        return [(1, steps)]
    return [(1, 2 * period), (max(2 * period + 1, steps - period + 1), steps)]


def _best_of_few(busy: Sequence[float], late: Sequence[float], widths: tuple[int, int], steps: int) -> float:
    """Return the time of the longest walk over windows of *widths*, from every start."""
    first, last = widths
    period = len(busy)
    sums = list(accumulate((one + other for one, other in zip(busy, late, strict=True)), initial=0.0))
    around, once_around = [*busy, *busy], sums[period]
    sums += [once_around + value for value in sums[1:]]
    best = 0.0
    for start in range(period):
        busiest = max(around[start : start + min(first - 1, period)], default=0.0)
        for width in range(first, last + 1):
            busiest = max(busiest, around[start + (width - 1) % period])
            turns, rest = divmod(width, period)
            best = max(best, turns * once_around + sums[start + rest] - sums[start] + (steps - width) * busiest)
    return best
