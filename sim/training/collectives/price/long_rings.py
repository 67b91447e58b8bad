"""Which walk takes longest on a ring of many unequal hops? The recurrence of `sim.training.collectives.price.recurrence`, with numpy.

If a few nodes differ, the input is the whole ring, and long stretches of it repeat a pattern. Moving either end of a window by one pattern
changes the sum by the same amount each time, as long as a whole pattern remains inside. Windows that begin or end deep inside a stretch
are thus never the only best ones, except windows of the maximum length K whose other end is near an end of a stretch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LONG = 256
"""Number of hops from which looking for repeated patterns pays off."""
_PATTERN = 64
"""Hops of the longest pattern considered: the GPUs of a node."""
_KEPT = 3
"""Patterns at each end of a stretch in which windows may begin or end, enough for a whole pattern inside at any phase."""


def longest_walk(occupancy: Sequence[float], latency: Sequence[float], widths: Sequence[tuple[int, int]], steps: int) -> float:
    """Return the time of the longest walk of *steps* steps over windows of *widths*; *occupancy* and *latency* (s) are by hop."""
    busy, late = np.asarray(occupancy, dtype=float), np.asarray(latency, dtype=float)
    near = _near_ends(busy, late) if _LONG < len(busy) <= steps + 1 <= 2 * len(busy) else None
    if near is not None:
        return _best_near(busy, late, near, steps)
    return max(_best(busy, late, span, steps) for span in widths)


def _best(busy: NDArray[np.float64], late: NDArray[np.float64], widths: tuple[int, int], steps: int) -> float:
    """Return the time of the longest walk over windows of *widths*, from every start."""
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
    """Return the largest occupancy in each window of *count* widths (*first*, *first* + 1, ..), from every start."""
    period = len(busy)
    if first >= period:
        return np.full((period, count), busy.max())
    starts = np.arange(period)[:, None]
    around = busy[(starts + np.arange(first + count - 1)[None, :]) % period]
    return np.asarray(np.maximum.accumulate(around, axis=1)[:, first - 1 :])


def _near_ends(busy: NDArray[np.float64], late: NDArray[np.float64]) -> NDArray[np.intp] | None:
    """Return the hops that are not deep inside a stretch of repeated patterns, or None if these are not a minority."""
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
    """Return the time of the longest walk over windows with both ends at hops *near*, or with one end there and a length of *steps*."""
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
