"""One course of a job on transient workers, event by event with a heap: written for itself, it is what drawn arrays are compared with."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from sim.study.transient import DrawnCourse, SpotJob


@dataclass
class Progress:
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
class Course:
    """A job under way: the time, who is alive, and what will happen to them (a heap of time, worker, whether it joins)."""

    job: SpotJob
    life: Callable[[int], float]
    """The life of the worker that joins at the event of a number; below 0 those of the start."""
    progress: Progress
    now: float
    events: list[tuple[float, int, bool]] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    paid: float = 0.0
    """Worker-seconds."""
    revocations: int = 0
    lost: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        for worker in range(len(self.job.speeds)):
            self.number = worker - len(self.job.speeds)
            self.join(worker)
            self.paid += self.job.start_up

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
        self.number += 1
        if joins:
            self.rejoin(worker)
        else:
            self.revoke(worker)

    def join(self, worker: int) -> None:
        self.alive.add(worker)
        heapq.heappush(self.events, (self.now + self.life(self.number), worker, False))

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
            self.paid += self.job.replacement


def course(job: SpotJob, interval: float, life: Callable[[int], float]) -> DrawnCourse:
    """Return one course of *job* with a checkpoint every *interval* samples (infinite: only the result is saved)."""
    run = Course(job, life, Progress(job.work, min(interval, job.work), job.checkpoint), job.start_up)
    while not run.progress.finished:
        run.step()
    cost = run.paid * job.price + run.now * job.fixed_price
    return DrawnCourse(run.now, cost, run.revocations, run.lost)
