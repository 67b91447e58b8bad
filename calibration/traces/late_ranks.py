"""How long do ranks wait for late ones in a profile? Their own work between meetings, as it varies from rank to rank and step to step.

Where ranks meet, all wait for the latest. In a step they lose ``sum over intervals between meetings of (max - mean over ranks)``, and
its mean over steps is a mean of maxima, not the maximum of means. `sim.training.spread` and `sim.training.layouts.noise` lose
``m(n) hypot(persistent_cv, compute_cv sqrt(k))`` of compute, with *n* ranks and jitter that changes *k* times in a step. The two
deviations and *k* are chosen so that this is the measured loss, whatever its distribution (for two ranks it is the L-scale: Hosking,
J. R. Stat. Soc. B 52, 1990). They divide it as the variance components of ranks and steps do (two-way analysis of variance; what slows all
ranks of a step makes nobody wait).
Limits: other numbers of ranks lose as with normal deviations. Only durations on one rank are used, so clocks need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from sim.training.spread import expected_maximum

RankWork = Sequence[Sequence[float]]
"""Own work (s) of a rank: by step, by interval between meetings."""

_LEAST_STEPS = 3
"""Fewest steps from which the variation of a rank without others is taken."""


@dataclass(frozen=True)
class WorkVariation:
    """How the work of ranks varies, as coefficients of variation of a step's work; None if the profile does not show it."""

    persistent_cv: float | None
    compute_cv: float | None
    intervals: float = 1.0
    """Number of times in a step that jitter changes."""
    step_work: float = 0.0
    """Mean work (s) of a rank in a step, of which the coefficients are shares."""

    def of(self, seconds: float) -> WorkVariation:
        """Return the same variation as shares of *seconds*, the part of a step's work that varies in the simulator."""
        scale = self.step_work / seconds if seconds else 0.0
        persistent, jitter = (None if cv is None else cv * scale for cv in (self.persistent_cv, self.compute_cv))
        return WorkVariation(persistent, jitter, self.intervals, seconds)


def lost_time(group: Sequence[RankWork]) -> float:
    """Return the time (s) of a step for which the ranks of *group*, who meet after each interval, wait for the latest of them."""
    return fmean(math.fsum(max(times) - fmean(times) for times in zip(*of_ranks, strict=True)) for of_ranks in zip(*group, strict=True))


def work_variation(groups: Sequence[Sequence[RankWork]]) -> WorkVariation:
    """Return how ranks vary that meet in *groups*, after each interval of their work; groups of one rank show only jitter."""
    meeting = [_comparable(group) for group in groups if len(group) > 1]
    if not meeting:
        return _alone([rank for group in groups for rank in group])
    work = fmean(_mean_work(group) for group in meeting)
    if not work:
        return WorkVariation(None, None)
    cv = fmean(lost_time(group) / _mean_work(group) / expected_maximum(len(group)) for group in meeting if _mean_work(group))
    components = [_components(group) for group in meeting]
    persistent, jitter = (fmean(each) for each in zip(*components, strict=True))  # variances
    most = float(min(len(step) for group in meeting for rank in group for step in rank))
    of_interval = cv**2 - persistent  # the variance of jitter in an interval, relative to the mean
    if of_interval <= jitter or most == 1.0:  # a deviation lasts a step
        scale = cv / math.sqrt(persistent + jitter) if cv else 0.0
        return WorkVariation(math.sqrt(persistent) * scale, math.sqrt(jitter) * scale, 1.0, work)
    intervals = min(of_interval / jitter, most) if jitter else most
    return WorkVariation(math.sqrt(persistent), math.sqrt(of_interval / intervals), intervals, work)


def _comparable(group: Sequence[RankWork]) -> Sequence[RankWork]:
    """Return *group*; with whole steps as intervals if its ranks did not meet equally often in all steps."""
    if len({len(step) for rank in group for step in rank}) == 1:
        return group
    return [[[math.fsum(step)] for step in rank] for rank in group]


def _mean_work(group: Sequence[RankWork]) -> float:
    return fmean(math.fsum(step) for rank in group for step in rank)


def _components(group: Sequence[RankWork]) -> tuple[float, float]:
    """Return the variances of a step's work between ranks and, for one rank, between steps, relative to the square of its mean.

    With one step, all variation counts as that between ranks.
    """
    mean = _mean_work(group) or 1.0
    steps = [[math.fsum(step) / mean for step in rank] for rank in group]
    of_ranks, of_steps = [fmean(rank) for rank in steps], [fmean(step) for step in zip(*steps, strict=True)]
    freedom = (len(of_ranks) - 1) * (len(of_steps) - 1)
    rest = math.fsum(
        (share - of_rank - of_step + 1.0) ** 2
        for rank, of_rank in zip(steps, of_ranks, strict=True)
        for share, of_step in zip(rank, of_steps, strict=True)
    )
    jitter = rest / freedom if freedom else 0.0
    return max(0.0, variance(of_ranks) - jitter / len(of_steps)), jitter


def _alone(ranks: Sequence[RankWork]) -> WorkVariation:
    """Return how single ranks vary from step to step; how they differ from others is unknown."""
    totals = [[math.fsum(step) for step in rank] for rank in ranks]
    usable = [own for own in totals if len(own) >= _LEAST_STEPS and fmean(own)]
    jitter = fmean(stdev(own) / fmean(own) for own in usable) if usable else None
    return WorkVariation(None, jitter, step_work=fmean(fmean(own) for own in totals) if totals else 0.0)
