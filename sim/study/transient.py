"""How long does a job take on machines that may be taken away, and what does it cost? A distribution over many drawn lives.

Work flows at a speed that depends on how many workers are alive, in pieces that each end with a checkpoint; a piece of work counts once it
is saved. What a revocation does is the policy: ``wait``: all stop, go back to the last checkpoint, and wait for the replacement;
``shrink``: the others go on; ``replace``: as shrink, until a replacement joins. Asynchronous workers lose nothing by that, since variables
live on the servers, which are rented on demand; but where the chief is replaced, stock TensorFlow starts all of them from the last
checkpoint (cake-lab/CM-DARE measured that rework). Workers in step restart together from the last checkpoint whenever one goes or joins
(elastic training by torchrun: pytorch.org/docs/stable/elastic/run.html, "Membership Changes": existing workers are stopped, a new group
starts). Where nobody is left, all are rented again.

Limits: the batch per worker stays, so that fewer of them make smaller steps; independent lives; a replacement can always be had; the
page cache of a replacement is as warm as that of the others; servers and on-demand machines are never lost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from sim.analysis.transient import Lives
from sim.spec.yaml import SpecError

Policy = Literal["shrink", "replace", "wait"]
POLICIES: tuple[Policy, ...] = ("shrink", "replace", "wait")

MOST_REVOCATIONS = 10_000
"""Of one job: beyond, revocations come faster than checkpoints, and it would never end."""
SEARCHED = 9
"""Checkpoint intervals tried between one checkpoint's own duration and the whole job, and again around the best of them."""


@dataclass(frozen=True)
class SpotJob:
    """A job on transient workers; seconds, and USD/s."""

    work: float
    """Samples in all."""
    speeds: tuple[float, ...]
    """Samples/s with 1, 2, ... workers alive; its length is how many are rented."""
    lives: Lives
    policy: Policy
    start_up: float = 0.0
    """From the request until the workers run."""
    unpaid: float = 0.0
    """Of the start-up (and of a replacement's), what is not paid for."""
    replacement: float = 0.0
    checkpoint: float = 0.0
    restore: float = 0.0
    price: float = 0.0
    """Of one worker."""
    fixed_price: float = 0.0
    """Of all machines that are never revoked, together."""
    in_step: bool = False
    """Whether workers train in step, so that all restart where one goes or joins; ``wait`` takes them to."""

    @property
    def restarts(self) -> bool:
        """Return whether all go back to the last checkpoint where one goes or joins."""
        return self.in_step or self.policy == "wait"


class Outcome(NamedTuple):
    """One drawn course of a job."""

    time: float
    cost: float
    revocations: int
    lost: float
    """Samples that were computed twice."""


@dataclass
class _Progress:
    """What is computed and what of it is saved, in samples; *pause* is left of a checkpoint being written or read, in seconds."""

    work: float
    interval: float
    checkpoint: float
    done: float = 0.0
    saved: float = 0.0
    pause: float = 0.0

    @property
    def finished(self) -> bool:
        return self.saved >= self.work

    def advance(self, speed: float, time: float) -> float:
        """Compute and save for *time* seconds, or until all is saved; return the seconds that took."""
        taken = 0.0
        while taken < time and not self.finished:
            left = time - taken
            if self.pause > 0:
                spent = min(self.pause, left)
                self.pause -= spent
                if self.pause <= 0:
                    self.saved = self.done
            elif self.done == self.saved and (cycles := self._cycles(speed, left)):
                spent = cycles * (self.interval / speed + self.checkpoint)
                self.done = self.saved = self.done + cycles * self.interval
            else:
                spent = self._compute(speed, left)
            taken += spent
        return min(taken, time)

    def _cycles(self, speed: float, left: float) -> int:
        """Return how many whole intervals with their checkpoints fit into *left* seconds, the last interval of the job left out."""
        rest = (self.work - self.done) / self.interval
        return max(0, math.floor(min(left / (self.interval / speed + self.checkpoint), math.ceil(rest) - 1)))

    def _compute(self, speed: float, left: float) -> float:
        end = min(self.saved + self.interval, self.work)
        if left < (end - self.done) / speed:
            self.done += left * speed
            return left
        spent = (end - self.done) / speed
        self.done = end
        self.pause = self.checkpoint
        if self.checkpoint <= 0:
            self.saved = end
        return spent

    def go_back(self, restore: float) -> float:
        """Start again from what is saved, read in *restore* seconds; return the samples that are lost."""
        lost, self.done, self.pause = self.done - self.saved, self.saved, restore
        return lost


@dataclass
class _Course:
    """A job under way: the time, who is alive, and what will happen to them (a heap of time, worker, whether it joins)."""

    job: SpotJob
    random: np.random.Generator
    progress: _Progress
    now: float
    events: list[tuple[float, int, bool]] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    paid: float = 0.0
    """Worker-seconds."""
    revocations: int = 0
    lost: float = 0.0

    def __post_init__(self) -> None:
        for worker in range(len(self.job.speeds)):
            self.join(worker)
            self.paid += self.job.start_up - self.job.unpaid

    def step(self) -> None:
        """Go on until the next event, or the end."""
        until, worker, joins = self.events[0]
        stopped = not self.alive or (self.job.policy == "wait" and len(self.alive) < len(self.job.speeds))
        span = until - self.now
        spent = span if stopped else self.progress.advance(self.job.speeds[len(self.alive) - 1], span)
        self.now += spent
        self.paid += len(self.alive) * spent
        if self.progress.finished:
            return
        heapq.heappop(self.events)
        if joins:
            self.rejoin(worker)
        else:
            self.revoke(worker)

    def join(self, worker: int) -> None:
        self.alive.add(worker)
        heapq.heappush(self.events, (self.now + self.job.lives.draw(self.random), worker, False))

    def rejoin(self, worker: int) -> None:
        self.join(worker)
        if self.job.restarts or (self.job.policy == "replace" and worker == 0):
            self.lost += self.progress.go_back(self.job.restore)

    def revoke(self, worker: int) -> None:
        self.alive.remove(worker)
        self.revocations += 1
        if self.job.restarts:
            self.lost += self.progress.go_back(self.job.restore)
        again = [worker] if self.job.policy != "shrink" else list(range(len(self.job.speeds))) if not self.alive else []
        for each in again:
            heapq.heappush(self.events, (self.now + self.job.replacement, each, True))
            self.paid += max(0.0, self.job.replacement - self.job.unpaid)


def course(job: SpotJob, interval: float, random: np.random.Generator) -> Outcome:
    """Return one course of *job* with a checkpoint every *interval* samples (infinite: only the result is saved)."""
    run = _Course(job, random, _Progress(job.work, min(interval, job.work), job.checkpoint), job.start_up)
    while not run.progress.finished:
        if run.revocations > MOST_REVOCATIONS:
            return Outcome(math.inf, math.inf, run.revocations, math.inf)
        run.step()
    cost = run.paid * job.price + (run.now - job.unpaid) * job.fixed_price
    return Outcome(run.now, cost, run.revocations, run.lost)


def courses(job: SpotJob, interval: float, trials: int, seed: int = 0) -> list[Outcome]:
    """Return *trials* courses of *job*; the lives of trial i depend on *seed* and i alone, so that intervals meet the same lives."""
    found: list[Outcome] = []
    for trial in range(trials):
        found.append(course(job, interval, np.random.default_rng([seed, trial])))
        if math.isinf(found[-1].time):
            break  # the mean is infinite whatever follows
    return found


def undisturbed(job: SpotJob, interval: float = math.inf) -> float:
    """Return the seconds of *job* without a revocation."""
    pieces = max(1, math.ceil(job.work / interval)) if interval < math.inf else 1
    return job.start_up + job.work / job.speeds[-1] + pieces * job.checkpoint


def best_interval(job: SpotJob, trials: int, seed: int = 0) -> float:
    """Return the samples between checkpoints with the least mean time, by search over the same drawn lives.

    Raise SpecError where the job would not end with any of them.
    """

    def mean_time(interval: float) -> float:
        return float(np.mean([found.time for found in courses(job, interval, trials, seed)]))

    shortest = min(job.work, max(job.checkpoint, 1.0) * job.speeds[-1])
    tried = np.geomspace(shortest, job.work, SEARCHED)
    times = [mean_time(float(interval)) for interval in tried]
    place = int(np.argmin(times))
    if not math.isfinite(times[place]):
        raise SpecError("revocations come faster than a checkpoint can be written: rent fewer workers, or on demand")
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


def spread(outcomes: Sequence[Outcome], of: Callable[[Outcome], float]) -> Spread:
    """Return how one figure is distributed over *outcomes*."""
    values = np.array([of(outcome) for outcome in outcomes])
    p50, p90, low, high = (float(value) for value in np.quantile(values, [0.5, 0.9, 0.025, 0.975]))
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return Spread(float(values.mean()), p50, p90, low, high, error)
