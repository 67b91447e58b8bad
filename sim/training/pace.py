"""How fast is a class of ranks in a step, and how much later is its slowest rank? The mean of all steps, or a random draw for each step.

Ranks differ by a persistent spread of speed (*persistent_cv*, fixed for a run) and by jitter from step to step (*compute_cv*), both
normal. By default every step has the expected lag, ``m(n) * hypot(persistent_cv, compute_cv)`` times the compute since the ranks last met,
because the slowest of n ranks is the maximum of n normal variables with the summed variance (`sim.training.spread`). If steps are drawn, a
class of any size draws one number per step: the maximum over its ranks, by inverting the distribution function of the maximum (the
product of the ranks' functions).
Limits: ranks are independent, and so are steps except for the persistent part. The class keeps its mean pace and only its slowest rank is
late; if even the slowest rank is early, the whole class is.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from sim.spec.hardware import Gpu
from sim.spec.workload import Workload
from sim.training.spread import expected_maximum, tail_probability

if TYPE_CHECKING:
    from numpy.random import Generator

LEAST = 0.05
"""Lower limit of a drawn step's compute time, as a share of the mean: normal variables are unbounded below, times are not."""
_ALONE = 64
"""Number of slowest ranks that enter the maximum individually if speeds differ. The others are merged into at most as many groups."""
_GRID = 256


class Pace(NamedTuple):
    """The pace of one step: forward and backward take *speed* times their mean time, and *lag* times the mean more on the slowest rank."""

    speed: float
    lag: float


MEAN = Pace(1.0, 0.0)
"""The pace of ranks without any spread."""


class Deviations(NamedTuple):
    """The coefficients of variation of a rank's compute time: from rank to rank, and from step to step."""

    persistent: float
    jitter: float


def deviations(workload: Workload, gpu: Gpu) -> Deviations:
    """Return how ranks of *workload* on *gpu* differ, in any layout, apart from the lengths of their sequences.

    Boards differ more while the large products of decoders keep them at their power limit (``kernels.sustained_cv``).
    """
    noise = workload.training.noise
    sustained = gpu.kernels.sustained_cv if gpu.kernels is not None and workload.model.decodes else 0.0
    return Deviations(
        math.hypot(gpu.persistent_cv, sustained) if noise.persistent_cv is None else noise.persistent_cv,
        math.hypot(gpu.compute_cv, workload.loader_jitter) if noise.compute_cv is None else noise.compute_cv,
    )


def mean_pace(ranks: int, persistent_cv: float, compute_cv: float) -> Iterator[Pace]:
    """Return an endless iterator of one pace, with the lag of the expected slowest of *ranks*."""
    return repeat(Pace(1.0, expected_maximum(ranks) * math.hypot(persistent_cv, compute_cv)))


def drawn_paces(size: int, persistent_cv: float, compute_cv: float, seed: int, name: str) -> Iterator[Pace]:
    """Yield a pace for each step of the class *name* of *size* ranks, drawn from its own random streams."""
    persistent = sorted(persistent_cv * float(value) for value in stream(seed, f"persistent {name}").standard_normal(size))
    for late in maxima(persistent, compute_cv, stream(seed, f"compute {name}")):
        speed = max(LEAST, 1.0 + late)
        yield Pace(speed, 0.0) if size == 1 else Pace(min(1.0, speed), max(0.0, late))


def stream(seed: int, name: str) -> Generator:
    """Return the random generator of one named source. Adding a source does not change the numbers of the others."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))


def maxima(means: Sequence[float], deviation: float, numbers: Generator) -> Iterator[float]:
    """Yield maxima of independent normal variables with ascending *means* and a common *deviation*, with one random number each."""
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
    """Return a grid of points, and the logarithm of the probability that the maximum lies below each point."""
    groups = _groups(means)
    low, high = means[-1] - 4.0 * deviation, means[-1] + 7.0 * deviation
    grid = [low + (high - low) * index / (_GRID - 1) for index in range(_GRID)]
    return grid, [sum(count * math.log1p(-tail_probability((x - mean) / deviation)) for mean, count in groups) for x in grid]


def _groups(means: Sequence[float]) -> list[tuple[float, int]]:
    """Return the largest of *means* individually and the others in groups, as pairs (mean, count)."""
    faster, slowest = means[: -min(_ALONE, len(means))], means[-min(_ALONE, len(means)) :]
    size = math.ceil(len(faster) / _ALONE) or 1
    chunks = [faster[start : start + size] for start in range(0, len(faster), size)]
    return [(sum(chunk) / len(chunk), len(chunk)) for chunk in chunks] + [(mean, 1) for mean in slowest]
