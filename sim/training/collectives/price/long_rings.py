"""Which walk is the dearest on a ring of many unequal hops? That of `sim.training.collectives.price.recurrence`, over arrays.

Where a few nodes differ the whole ring is given, and long stretches of it repeat a pattern. Moving either end of a window by one pattern
changes the sum by the same amount each time, as long as a whole pattern stays inside, so windows that begin or end deep inside
a stretch are never alone the best, unless they are as long as K allows and the other end stands near an end of a stretch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LONG = 256
"""Hops of a ring beyond which it is worth looking for repeated patterns."""
_PATTERN = 64
"""Hops of the longest pattern looked for: the GPUs of a node."""
_KEPT = 3
"""Patterns at each end of a stretch near which a window may begin or end: a whole one stays inside it, whatever its phase."""


def dearest(occupancy: Sequence[float], latency: Sequence[float], widths: Sequence[tuple[int, int]], steps: int) -> float:
    """Return the time of the dearest walk of *steps* steps over windows of *widths*; *occupancy* and *latency* (s) by hop."""
    busy, late = np.asarray(occupancy, dtype=float), np.asarray(latency, dtype=float)
    near = _near_ends(busy, late) if _LONG < len(busy) <= steps + 1 <= 2 * len(busy) else None
    if near is not None:
        return _best_near(busy, late, near, steps)
    return max(_best(busy, late, span, steps) for span in widths)


def _best(busy: NDArray[np.float64], late: NDArray[np.float64], widths: tuple[int, int], steps: int) -> float:
    """Return the dearest walk over windows of *widths*, from every start."""
    first, last = widths
    period = len(busy)
    turns, rest = divmod(first - 1, period)
    ahead = np.tile(busy + late, last // period + 2)
    sums = np.concatenate([[0.0], np.cumsum(ahead[: rest + last - first + 1 + period])])
    starts = np.arange(period)[:, None]
    spans = np.arange(rest + 1, rest + last - first + 2)[None, :]
    window = sums[starts + spans] - sums[starts] + turns * float((busy + late).sum())
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
