"""How much later than the mean are the slowest ranks of a layout? Composed over what meets inside units, over stages and over replicas.

Ranks differ by a persistent spread and by jitter from step to step, both normal (`sim.training.pace`), and replicas by the tokens of
their samples. Ranks that exchange inside units (tensor, context and expert groups) go as slowly as the slowest of them; the slowest of all
such groups of a stage is later still, and that of all stages. The mean of the maximum of n is a closed form; drawn steps take the maxima
themselves, of one number for each rank, so that their mean is the closed form.

Limits: a deviation lasts a step, whatever its micro-batch, unless the workload says how soon jitter changes; while a pipeline fills and
drains a stage goes as slowly as its mean group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from sim.training.pace import LEAST, stream
from sim.training.spread import expected_maximum, maximum_deviation, tail

_POINTS: Final = 200
_REACH: Final = 8.0  # standard deviations
_WIDE: Final = 20.0


@dataclass(frozen=True)
class StageSpread:
    """How much later than the mean the slowest of n ranks is, per second of compute."""

    inside: float
    """Of ranks that exchange inside units."""
    data: float
    """Of all ranks of a stage, beyond those."""
    all: float
    """Of all ranks, beyond those of a stage."""
    speed: float = 1.0
    """What a second of compute in the mean takes, where even the slowest rank is early."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a layout by who waits for whom, and how they differ."""

    inside: int
    """That exchange inside units."""
    replica: int
    """Of one stage that see the same samples."""
    replicas: int
    stages: int
    persistent_cv: float = 0.0
    compute_cv: float = 0.0
    tokens_cv: float = 0.0
    """Of the work of a replica's samples."""
    intervals: float = 1.0
    """Times in a step that ranks that exchange inside units meet with another jitter, the mean of all being that of a step."""

    @property
    def stage(self) -> int:
        """Return the ranks of one stage."""
        return self.replica * self.replicas

    def expected(self) -> StageSpread:
        """Return the mean of all steps."""
        cv = math.hypot(self.persistent_cv, self.compute_cv)
        if self.intervals > 1.0 and self.inside > 1:
            return self._renewed()
        together = max(1, self.inside // self.replica)
        inside = slowest(together, self.inside // together, cv, self.tokens_cv)
        stage = slowest(self.replicas, self.replica, cv, self.tokens_cv)
        every = slowest(self.replicas, self.replica * self.stages, cv, self.tokens_cv)
        return StageSpread(inside, stage - inside, every - stage)

    def _renewed(self) -> StageSpread:
        """Return the mean where jitter is drawn anew in each interval of a step, and those that exchange inside units lose by each.

        Over one of k intervals jitter deviates sqrt(k) as much as over the step. Groups differ by the mean of their k maxima, taken as
        normal: two maxima of n whose members correlate by r do by r / (n s^2) + (1 - 1 / (n s^2)) r^2, s the deviation of a maximum
        (the first Hermite coefficient is exact, the rest is taken as of the second).
        """
        together = max(1, self.inside // self.replica)
        of_interval = math.hypot(self.persistent_cv, self.compute_cv * math.sqrt(self.intervals))
        inside = slowest(together, self.inside // together, of_interval, self.tokens_cv)
        alike = (self.persistent_cv / of_interval) ** 2 if of_interval else 0.0
        deviation = maximum_deviation(self.inside)
        first = 1.0 / (self.inside * deviation**2)
        kept = first * alike + (1.0 - first) * alike**2
        of_groups = of_interval * deviation * math.sqrt(kept + (1.0 - kept) / self.intervals)
        replicas, groups = self.replicas // together, max(1, self.replica // self.inside)
        stage = slowest(replicas, groups, of_groups, self.tokens_cv)
        return StageSpread(inside, stage, slowest(replicas, groups * self.stages, of_groups, self.tokens_cv) - stage)

    def drawn(self, seed: int) -> Iterator[Sequence[StageSpread]]:
        """Yield the spread of each stage, step after step, from random numbers of their own for each part of it."""
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
    """How the steps of a layout differ: all by the mean, or each by what *seed* draws."""

    def __init__(self, ranks: Ranks, seed: int | None = None) -> None:
        self.mean = ranks.expected()
        self.draws = seed is not None
        """Whether steps differ."""
        self._next = ranks.drawn(seed) if seed is not None else iter(())
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
    """Return the expected maximum over *groups* of *size* normal variables with deviation *cv*.

    Those of a group are shifted by one x of deviation *shared_cv*: the distribution function is
    ``F(y) = E[Phi((y - x) / cv)^size]^groups``.
    Where shifts are wide, the maximum of a group is as good as its mean: what it varies adds less than 0.2%.
    """
    if not shared_cv or groups == 1:
        return expected_maximum(groups * size) * cv  # one shift moves the mean of the maximum nowhere
    if cv < shared_cv / _WIDE:
        return expected_maximum(groups) * shared_cv + expected_maximum(size) * cv
    standard, width = NormalDist(), 2 * _REACH / _POINTS
    places = [(index + 0.5) * width - _REACH for index in range(_POINTS)]
    shifts = [(x * shared_cv, standard.pdf(x) * width) for x in places]
    reach = _REACH * (cv + shared_cv)
    step, total = 2 * reach / _POINTS, 0.0
    for index in range(_POINTS):  # E[max] = integral of (1 - F) over y > 0 less that of F over y < 0
        y = (index + 0.5) * step - reach
        one = sum(share * (1.0 - tail((y - shift) / cv)) ** size for shift, share in shifts)
        below = min(1.0, one) ** groups
        total += (1.0 - below if y > 0 else -below) * step
    return total
