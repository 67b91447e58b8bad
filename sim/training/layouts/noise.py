"""How much later than the mean are the slowest ranks of a layout? Computed for groups inside units, for stages, and for all ranks.

Ranks differ by a persistent spread and by jitter from step to step, both normal (`sim.training.pace`); replicas also differ by the tokens
of their samples. Ranks that exchange inside units (tensor, context and expert groups) are as slow as the slowest of them. The slowest of
all such groups of a stage is later still, and the slowest of all stages even more. The mean of the maximum of n ranks is a closed form.
Drawn steps take the maxima of one random number per rank, so their mean equals the closed form.
Limits: a deviation lasts a whole step, over all micro-batches, unless the workload specifies how fast jitter changes; it then costs more
where ranks meet often: inside units, and at every operation of a stage that the host waits for. While a pipeline fills and drains, a stage
is as slow as its mean group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from sim.training.pace import LEAST, stream
from sim.training.spread import expected_maximum, maximum_deviation, tail_probability

_POINTS: Final = 200
_REACH: Final = 8.0  # standard deviations
_WIDE: Final = 20.0


@dataclass(frozen=True)
class StageSpread:
    """How much later than the mean the slowest of n ranks is, per second of compute."""

    inside: float
    """Among ranks that exchange inside units."""
    data: float
    """Among all ranks of a stage, in addition to *inside*."""
    all: float
    """Among all ranks, in addition to those of a stage."""
    speed: float = 1.0
    """Factor on compute time, below 1 if even the slowest rank is early."""


@dataclass(frozen=True)
class RankVariation:
    """The numbers of ranks of a layout that wait for each other, and how ranks differ."""

    inside: int
    """Number of ranks that exchange inside units."""
    replica: int
    """Number of ranks of one stage with the same samples."""
    replicas: int
    stages: int
    persistent_cv: float = 0.0
    compute_cv: float = 0.0
    tokens_cv: float = 0.0
    """Coefficient of variation of the work of a replica's samples."""
    intervals: float = 1.0
    """Number of intervals of a step with independent jitter; *compute_cv* is for the whole step."""
    stage_intervals: float = 1.0
    """Number of those intervals after which all ranks of a stage meet."""

    @property
    def stage(self) -> int:
        """Return the number of ranks of one stage."""
        return self.replica * self.replicas

    def expected(self) -> StageSpread:
        """Return the spread averaged over steps."""
        cv = math.hypot(self.persistent_cv, self.compute_cv)
        if self.intervals > 1.0 and (self.inside > 1 or self.stage_intervals > 1.0):
            return self._expected_over_intervals()
        together = max(1, self.inside // self.replica)
        inside = slowest(together, self.inside // together, cv, self.tokens_cv)
        stage = slowest(self.replicas, self.replica, cv, self.tokens_cv)
        every = slowest(self.replicas, self.replica * self.stages, cv, self.tokens_cv)
        return StageSpread(inside, stage - inside, every - stage)

    def _expected_over_intervals(self) -> StageSpread:
        """Return the spread averaged over steps if jitter is redrawn in each interval of a step.

        Ranks that exchange inside units then lose time in each interval. Over one of k intervals, jitter has sqrt(k) times its deviation
        over the step. When all ranks of a stage meet, groups differ by the mean of their maxima since they last met, which is taken as
        normal. If the members of two sets of n ranks have a correlation of r, their maxima have one of r / (n s^2) + (1 - 1 / (n s^2)) r^2,
        with s the deviation of a maximum (the first Hermite coefficient is exact; the rest is treated as second order).
        """
        together = max(1, self.inside // self.replica)
        of_interval = math.hypot(self.persistent_cv, self.compute_cv * math.sqrt(self.intervals))
        inside = slowest(together, self.inside // together, of_interval, self.tokens_cv)
        correlation = (self.persistent_cv / of_interval) ** 2 if of_interval else 0.0
        deviation = maximum_deviation(self.inside)
        first = 1.0 / (self.inside * deviation**2)
        correlation_of_maxima = first * correlation + (1.0 - first) * correlation**2
        between = self.intervals / self.stage_intervals  # two times at which the ranks of a stage meet
        of_groups = of_interval * deviation * math.sqrt(correlation_of_maxima + (1.0 - correlation_of_maxima) / between)
        replicas, groups = self.replicas // together, max(1, self.replica // self.inside)
        stage = slowest(replicas, groups, of_groups, self.tokens_cv)
        return StageSpread(inside, stage, slowest(replicas, groups * self.stages, of_groups, self.tokens_cv) - stage)

    def draw(self, seed: int) -> Iterator[Sequence[StageSpread]]:
        """Yield the spread of each stage for step after step, with a separate random stream for each component."""
        persistent = self.persistent_cv * stream(seed, "persistent layout").standard_normal((self.stages, self.replicas, self.replica))
        jitter, tokens = stream(seed, "compute layout"), stream(seed, "tokens layout")
        while True:
            late = persistent + self.compute_cv * jitter.standard_normal(persistent.shape)
            late += self.tokens_cv * tokens.standard_normal((1, self.replicas, 1))
            groups = late.reshape(self.stages, -1, self.inside).max(axis=2)
            every, spreads = float(groups.max()), []
            for of_stage in groups:
                inside, stage = float(of_stage.mean()), float(of_stage.max())
                spreads.append(StageSpread(max(0.0, inside), stage - inside, every - stage, max(LEAST, 1.0 + min(0.0, inside))))
            yield spreads


class LayoutNoise:
    """The spread in the steps of a layout: the mean for all steps, or drawn for each step from *seed*."""

    def __init__(self, ranks: RankVariation, seed: int | None = None) -> None:
        self.mean = ranks.expected()
        self.draws = seed is not None
        """Whether the spread is drawn for each step."""
        self._next = ranks.draw(seed) if seed is not None else iter(())
        self._steps: list[Sequence[StageSpread]] = []

    def at(self, step: int, stage: int) -> StageSpread:
        """Return the spread of *stage* in *step*."""
        if not self.draws:
            return self.mean
        while len(self._steps) <= step:
            self._steps.append(next(self._next))
        return self._steps[step][stage]


@lru_cache(maxsize=256)
def slowest(groups: int, size: int, cv: float, shared_cv: float = 0.0) -> float:
    """Return the expected maximum over *groups* groups of *size* normal variables with deviation *cv*.

    All variables of a group are shifted by a common normal x with deviation *shared_cv*. The distribution function of the maximum is
    ``F(y) = E[Phi((y - x) / cv)^size]^groups``. If shifts are wide, the maximum of a group is replaced by its mean: its variation adds less
    than 0.2%.
    """
    if not shared_cv or groups == 1:
        return expected_maximum(groups * size) * cv  # a single common shift does not change the mean of the maximum
    if cv < shared_cv / _WIDE:
        return expected_maximum(groups) * shared_cv + expected_maximum(size) * cv
    standard, width = NormalDist(), 2 * _REACH / _POINTS
    places = [(index + 0.5) * width - _REACH for index in range(_POINTS)]
    shifts = [(x * shared_cv, standard.pdf(x) * width) for x in places]
    reach = _REACH * (cv + shared_cv)
    step, total = 2 * reach / _POINTS, 0.0
    for index in range(_POINTS):  # E[max] = integral of (1 - F) over y > 0 minus integral of F over y < 0
        y = (index + 0.5) * step - reach
        of_group = sum(share * (1.0 - tail_probability((y - shift) / cv)) ** size for shift, share in shifts)
        below = min(1.0, of_group) ** groups
        total += (1.0 - below if y > 0 else -below) * step
    return total
