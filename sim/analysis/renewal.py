"""Which share of its time does a long run spend on kept work? The closed form for random failures and a fixed work interval.

Failures of the job occur at rate ``1/M`` in wall-clock time, also during recovery. Work of ``D`` seconds alternates with a blocking save of
``b``; a checkpoint is complete ``p >= b`` seconds after its save began. The gap X between two failures is exponential and recovery takes R.
So ``m = 1 + floor((X - R - D - p)/(D + b))`` checkpoints are completed in a gap, and the effective share is exactly
``E[m] D / M = D/M E[exp(-R/M)] exp(-(D + p)/M) / (1 - exp(-(D + b)/M))``. With ``p = b`` this is Daly's expectation (FGCS 22, 2006).
The best interval solves ``1 - exp(-(D + b)/M) = D/M``. The estimates of Young (CACM 17, 1974), Daly and Meta (arXiv 2410.21680) are
included for comparison.

Limits: no waiting for spares, no repeats, no slow nodes, no silent corruption; `sim.analysis.course` simulates those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sim.analysis.transient import young_interval


class Uniform(NamedTuple):
    """A time (s) that is uniformly distributed between *low* and *high*."""

    low: float
    high: float

    @property
    def mean(self) -> float:
        """Return the mean (s)."""
        return 0.5 * (self.low + self.high)

    def laplace(self, rate: float) -> float:
        """Return ``E[exp(-rate * time)]``."""
        wide = rate * (self.high - self.low)
        return math.exp(-rate * self.low) * (-math.expm1(-wide) / wide if wide > 1e-9 else 1.0)


def laplace_of_sum(spans: Sequence[Uniform], rate: float) -> float:
    """Return ``E[exp(-rate * sum)]`` for the sum of independent *spans*."""
    return math.prod(span.laplace(rate) for span in spans)


def effective_share(mean_between: float, interval: float, blocking: float, persist: float, recovery: float) -> float:
    """Return the share of time spent on kept work; *recovery* is ``E[exp(-R/M)]`` (`laplace_of_sum`), all times are in seconds."""
    if interval <= 0 or interval + blocking < persist * (1 - 1e-9):  # of `best_interval`, rounding may leave a little less
        raise ValueError(f"an interval of {interval:g} s is shorter than a checkpoint of {persist:g} s; checkpoints would overlap")
    rate = 1.0 / mean_between
    return rate * interval * recovery * math.exp(-rate * (interval + persist)) / -math.expm1(-rate * (interval + blocking))


def kept_until(
    time: float, mean_between: float, interval: float, blocking: float, persist: float, recovery_time: float, recovery: float
) -> float:
    """Return the mean work (s) kept of *time* (s) of training, with failures, if the work in progress at its end is kept as well.

    Sums over the checkpoints of each gap. A failure at ``t`` follows the one before at an exponential distance or, with probability
    ``exp(-t/M)``, none. *recovery_time* is the mean of the recoveries, *recovery* is ``E[exp(-R/M)]``.
    """
    rate, cycle, first = 1.0 / mean_between, interval + blocking, interval + persist
    left = max(time - recovery_time, 0.0)  # after a recovery at the start

    def saves(span: float) -> int:
        return math.floor((span - first) / cycle) + 1 if span >= first else 0

    def powers(count: int) -> float:
        """Return the sum of ``exp(-cycle/M) ** n`` over n below *count*."""
        return math.expm1(-rate * cycle * count) / math.expm1(-rate * cycle)

    of_first, of_later, saved = saves(time), saves(left), math.exp(-rate * first)
    kept = saved * powers(of_first) - of_first * math.exp(-rate * time)
    if of_later:
        spare = (left - first) / cycle - (of_later - 1)  # of a cycle, behind the last checkpoint
        weighted = spare * powers(of_later) + (of_later - 1 - math.exp(-rate * cycle) * powers(of_later - 1)) / -math.expm1(-rate * cycle)
        never = saved * powers(of_later) - of_later * math.exp(-rate * left)
        kept += recovery * (rate * saved * cycle * weighted - never)
    unbroken = math.exp(-rate * time) * _done(time, interval, cycle)
    return interval * kept + unbroken + recovery * _in_progress(left, rate, interval, cycle)


def _done(time: float, interval: float, cycle: float) -> float:
    """Return the work (s) done in *time* (s) without a failure."""
    cycles = math.floor(time / cycle)
    return cycles * interval + min(time - cycles * cycle, interval)


def _in_progress(time: float, rate: float, interval: float, cycle: float) -> float:
    """Return the mean work (s) since the last failure if that was less than *time* (s) ago, else zero."""
    cycles = math.floor(time / cycle)
    full = math.expm1(-rate * interval) * math.expm1(-rate * cycle * cycles) / -math.expm1(-rate * cycle)
    last = -math.exp(-rate * cycle * cycles) * math.expm1(-rate * min(time - cycles * cycle, interval))
    return (full + last) / rate - math.exp(-rate * time) * _done(time, interval, cycle)


def best_interval(mean_between: float, blocking: float, persist: float = 0.0, work_overhead: float = 1e-3) -> float:
    """Return the work (s) between checkpoints that maximizes kept work, long enough that checkpoints do not overlap.

    *work_overhead* is the lower limit of the cost (s) of a save, so that saves without cost do not lead to an interval of zero.
    """
    cost = max(blocking, work_overhead)
    low, high = 0.0, mean_between
    for _ in range(200):  # bisect: 1 - exp(-(D + b)/M) - D/M crosses zero once between 0 and M
        middle = 0.5 * (low + high)
        if -math.expm1(-(middle + cost) / mean_between) > middle / mean_between:
            low = middle
        else:
            high = middle
    return max(0.5 * (low + high), persist - blocking)


def daly_interval(blocking: float, mean_between: float) -> float:
    """Return Daly's higher-order estimate of the best interval (s): equation 37 of FGCS 22, 2006."""
    if blocking >= 2 * mean_between:
        return mean_between
    part = math.sqrt(blocking / (2 * mean_between))
    return young_interval(blocking, mean_between) * (1 + part / 3 + part * part / 9) - blocking


def meta_ettr(failures_per_time: float, overhead: float, interval: float, blocking: float) -> float:
    """Return Meta's expected ETTR: ``(1 - N r_f (u0 + D/2)) / (1 + w/D)`` (arXiv 2410.21680); *overhead* is u0 (s)."""
    return (1 - failures_per_time * (overhead + interval / 2)) / (1 + blocking / interval)
