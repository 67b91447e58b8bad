"""How fast is a class of ranks in a step, and how much later is its slowest rank? The mean of all steps, or drawn step by step.

Ranks differ by a persistent spread of speed (*persistent_cv*, fixed for a run) and by jitter from step to step (*compute_cv*), both
normal. By default every step has the expected lag: ``m(n) * hypot(persistent_cv, compute_cv)`` of the compute since ranks last met, as
the slowest of n is the maximum of n normal variables of the summed variance (`sim.training.spread`). Where steps are drawn, a class
takes one number a step whatever its size: the maximum of its ranks, by the inverse of its distribution function (the product of theirs).
Limits: ranks independent, steps independent but for the persistent part; a class as a whole keeps its mean pace, only its slowest is
late; where even that one is early, all are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from sim.training.spread import expected_maximum, tail

if TYPE_CHECKING:
    from numpy.random import Generator

LEAST = 0.05
"""Share of its mean compute time that a drawn step takes at least: normal variables have no end, times have."""
_ALONE = 64
"""Slowest ranks that stand for themselves in a maximum of ranks of unlike speed; the others in as many groups."""
_GRID = 256


class Pace(NamedTuple):
    """In one step forward and backward take *speed* times their mean, and the slowest rank *lag* of their mean more."""

    speed: float
    lag: float


MEAN = Pace(1.0, 0.0)
"""Of equal ranks."""


def mean_pace(ranks: int, persistent_cv: float, compute_cv: float) -> Iterator[Pace]:
    """Return the same pace for ever: that of the expected slowest of *ranks*."""
    return repeat(Pace(1.0, expected_maximum(ranks) * math.hypot(persistent_cv, compute_cv)))


def drawn_paces(size: int, persistent_cv: float, compute_cv: float, seed: int, name: str) -> Iterator[Pace]:
    """Yield a pace for each step of a class of *size* ranks called *name*, drawn from streams of its own."""
    persistent = sorted(persistent_cv * float(value) for value in stream(seed, f"persistent {name}").standard_normal(size))
    for late in maxima(persistent, compute_cv, stream(seed, f"compute {name}")):
        speed = max(LEAST, 1.0 + late)
        yield Pace(speed, 0.0) if size == 1 else Pace(min(1.0, speed), max(0.0, late))


def stream(seed: int, name: str) -> Generator:
    """Return the random numbers of one named source; adding a source moves no other."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))


def maxima(means: Sequence[float], deviation: float, numbers: Generator) -> Iterator[float]:
    """Yield the maximum of independent normal variables with *means*, in growing order, and one *deviation*: one draw for each."""
    if deviation <= 0:
        yield from repeat(means[-1])
    if means[0] == means[-1]:
        while True:
            above = -math.expm1(math.log(1.0 - numbers.random()) / len(means))  # 1 - u^(1/n), without cancellation
            yield means[0] - deviation * NormalDist().inv_cdf(min(max(above, 1e-300), 1.0 - 1e-16))
    grid, logs = _distribution(means, deviation)
    import numpy as np

    while True:
        yield float(np.interp(math.log(1.0 - numbers.random()), logs, grid))


def _distribution(means: Sequence[float], deviation: float) -> tuple[list[float], list[float]]:
    """Return points, and the logarithm of the probability that the maximum lies below each."""
    groups = _groups(means)
    low, high = means[-1] - 4.0 * deviation, means[-1] + 7.0 * deviation
    grid = [low + (high - low) * index / (_GRID - 1) for index in range(_GRID)]
    return grid, [sum(count * math.log1p(-tail((x - mean) / deviation)) for mean, count in groups) for x in grid]


def _groups(means: Sequence[float]) -> list[tuple[float, int]]:
    """Return the largest of *means* one by one and the others in groups: (mean, how many)."""
    many, last = means[: -min(_ALONE, len(means))], means[-min(_ALONE, len(means)) :]
    size = math.ceil(len(many) / _ALONE) or 1
    chunks = [many[start : start + size] for start in range(0, len(many), size)]
    return [(sum(chunk) / len(chunk), len(chunk)) for chunk in chunks] + [(mean, 1) for mean in last]
