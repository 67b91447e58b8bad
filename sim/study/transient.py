"""How long does a job take on machines that may be revoked, and what does it cost? A distribution over many drawn lifetimes.

The job is a long run (`sim.analysis.course`) whose only faults are revocations. The policy decides what follows. ``wait``: all stop, go
back to the last checkpoint, and wait for the replacement; ``shrink``: the others continue; ``replace``: the same until a replacement joins.
Asynchronous workers lose nothing, because variables are on the servers, which are rented on demand. But if the chief is replaced, stock
TensorFlow restarts all of them from the last checkpoint (cake-lab/CM-DARE measured that rework). Synchronous workers restart together from
there whenever one leaves or joins (pytorch.org/docs/stable/elastic/run.html, "Membership Changes"). If no worker is left, all are rented
again. Limits: the batch per worker is fixed, so fewer workers take smaller steps; lifetimes are independent; a replacement is always
available, with a page cache as warm as the others'; servers and on-demand machines are never lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sim.analysis.course import draw
from sim.analysis.crew import ElasticRules
from sim.analysis.long_run import ZERO_TIME, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.transient import Lives, young_interval
from sim.spec.yaml import SpecError
from sim.units import show

SpotPolicy = Literal["shrink", "replace", "wait"]
POLICIES: tuple[SpotPolicy, ...] = ("shrink", "replace", "wait")

SEARCHED = 9
"""Checkpoint intervals tried between the duration of one checkpoint and the whole job, and again around the best of them."""
_SURELY = 1.0 + 1e-9
"""A mean time that is longer by this factor is longer whatever the rounding of its sum."""
_NEVER = 20.0
"""Duration of a checkpoint, in mean times between random revocations, that one in exp(20) survives: such a job is not drawn."""


@dataclass(frozen=True)
class SpotJob:
    """A job on transient workers; times in seconds, prices in USD/s."""

    work: float
    """Total samples."""
    speeds: tuple[float, ...]
    """Samples/s with 1, 2, ... workers alive; its length is the number of rented workers."""
    lives: Lives
    policy: SpotPolicy
    start_up: float = 0.0
    """From the request until the workers run; paid for, as in the whole job of `run`."""
    replacement: float = 0.0
    checkpoint: float = 0.0
    restore: float = 0.0
    price: float = 0.0
    """Price of one worker."""
    fixed_price: float = 0.0
    """Price of all machines that are never revoked, together."""
    in_step: bool = False
    """Whether workers are synchronous, so that all restart if one leaves or joins; ``wait`` assumes that they are."""

    @property
    def restarts(self) -> bool:
        """Return whether all go back to the last checkpoint if one leaves or joins."""
        return self.in_step or self.policy == "wait"


class DrawnCourse(NamedTuple):
    """One drawn course of a job."""

    time: float
    cost: float
    revocations: int
    lost: float
    """Samples that were computed twice."""


def as_long_run(job: SpotJob, interval: float) -> LongRun:
    """Return *job*, once its workers run, as a long run with a checkpoint every *interval* samples; its only faults are revocations."""
    full, workers = job.speeds[-1], len(job.speeds)
    waits = (0.0,) * (workers - 1) + (1.0,)
    members = ElasticRules(
        waits if job.policy == "wait" else tuple(speed / full for speed in job.speeds),
        job.policy != "shrink",
        job.restarts,
        job.policy == "replace",
    )
    revocation = DrawnCause("revocation", 1.0, ZERO_TIME, ZERO_TIME, 1.0, repair=Uniform(job.replacement, job.replacement))
    saving = Saving(min(interval, job.work) / full, job.checkpoint, job.checkpoint, job.restore)
    return LongRun(
        workers, 0, saving, [revocation], (0.0, 0.0, 0.0), work=job.work / full, lives=(job.lives, 0.0), elastic_rules=members
    )  # fmt: skip


def draw_courses(job: SpotJob, interval: float, trials: int, seed: int = 0, longest_mean: float = math.inf) -> list[DrawnCourse]:
    """Return *trials* courses of *job* with a checkpoint every *interval* samples (infinite: only the result is saved).

    The lifetimes of a trial depend only on *seed*, so all intervals see the same ones. If one never ends, or if their mean time exceeds
    *longest_mean* (s), all figures are infinite.
    """
    drawn = draw(as_long_run(job, interval), trials, seed, all_or_none=True, longest_mean=longest_mean - job.start_up)
    rented = len(job.speeds) * job.start_up + drawn.rented_nodes * job.replacement
    ends = np.isfinite(drawn.elapsed)
    times = job.start_up + np.where(ends, drawn.elapsed, 0.0)
    costs = (rented + drawn.node_seconds) * job.price + times * job.fixed_price
    figures = (np.where(ends, of, math.inf).tolist() for of in (times, costs, drawn.lost["rework"] * job.speeds[-1]))
    return [
        DrawnCourse(time, cost, int(count), lost) for time, cost, lost, count in zip(*figures, drawn.interruptions.tolist(), strict=True)
    ]


def undisturbed_time(job: SpotJob, interval: float = math.inf) -> float:
    """Return the seconds of *job* without a revocation."""
    pieces = max(1, math.ceil(job.work / interval - 1e-9)) if interval < math.inf else 1
    return job.start_up + job.work / job.speeds[-1] + pieces * job.checkpoint


def best_interval(job: SpotJob, trials: int, seed: int = 0) -> float:
    """Return the samples between checkpoints with the least mean time, by search over the same drawn lifetimes.

    Raise SpecError if the job would not end with any interval.
    """

    least = math.inf

    def mean_time(interval: float) -> float:
        """Return the mean time, or infinity if it is longer than with an interval tried before."""
        nonlocal least
        outcomes = draw_courses(job, interval, trials, seed, least * _SURELY)
        time = float(np.mean([outcome.time for outcome in outcomes]))
        least = min(least, time)
        return time

    between = job.lives.mean / len(job.speeds)
    if job.checkpoint > _NEVER * between and job.restarts:
        raise SpecError(
            f"machines are revoked every {show(between, 'time', 2)} on average, but a checkpoint takes {show(job.checkpoint, 'time', 2)}, "
            f"so the job never ends; {'rent fewer workers, or ' if len(job.speeds) > 1 else ''}rent on demand"
        )
    shortest = min(job.work, max(job.checkpoint, 1.0) * job.speeds[-1])
    tried = np.geomspace(shortest, job.work, SEARCHED)
    expected = young_interval(job.checkpoint, between) * job.speeds[-1]
    order = np.argsort(abs(np.log(tried / max(expected, shortest))))  # the best early, so that few of the others are drawn to their ends
    times = [math.inf] * SEARCHED
    for number in order:
        times[number] = mean_time(float(tried[number]))
    place = int(np.argmin(times))
    if not math.isfinite(times[place]):
        raise SpecError("revocations are too frequent to complete a checkpoint; rent fewer workers, or rent on demand")
    around = np.geomspace(tried[max(0, place - 1)], tried[min(SEARCHED - 1, place + 1)], SEARCHED)
    finer = {float(interval): mean_time(float(interval)) for interval in around} | {float(tried[place]): times[place]}
    return min(finer, key=lambda interval: (finer[interval], -interval))


class Spread(NamedTuple):
    """A drawn distribution: mean, quantiles, the middle 95% of outcomes, and the standard error of the mean."""

    mean: float
    p50: float
    p90: float
    low: float
    high: float
    error: float


def spread(outcomes: Sequence[DrawnCourse], of: Callable[[DrawnCourse], float]) -> Spread:
    """Return how one figure is distributed over *outcomes*."""
    values = np.array([of(outcome) for outcome in outcomes])
    p50, p90, low, high = (float(value) for value in np.quantile(values, [0.5, 0.9, 0.025, 0.975]))
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return Spread(float(values.mean()), p50, p90, low, high, error)
