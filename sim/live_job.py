"""How far is one job while its epoch is simulated? Its ranks, and the steps that have ended, with what was left out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sim.analysis.stalls import Window
from sim.analysis.steady_state import PeriodDetector, steady_mean
from sim.training.step import Replica

LEAST_LIVE_STEPS = 100
"""Minimum of steps simulated one by one if they have no period but drift slowly, as with a loader nearly as fast as the GPU."""
DRIFT_LIMIT = 1e-3
"""Largest difference, as a share of a step, between two states at least half of these steps apart for the drift to count as slow. The
mean of the steps in between is then off by a fiftieth of that, and the mean of an epoch, over which the drift goes on, by at most 1e-4
(Stash's cases of DALI on p2.8xlarge, compared with simulating every step)."""


@dataclass
class LiveJob:
    """One job while it is simulated: its ranks, and the times (s) at which its first rank started and ended each step.

    Asynchronous *workers* do not wait for each other: a step of the job ends when their steps since the last one add up to *workers*.
    """

    ranks: list[Replica]
    boundaries: list[float]
    workers: int = 0
    """Ranks of an asynchronous job; 0 if all ranks are synchronous."""
    updates: int = 0
    detector: PeriodDetector = field(default_factory=PeriodDetector)
    """The job's own states in this regime, if several jobs run: together they may never recur."""
    regime_start: int = 0
    """Steps of the job before this regime."""
    left_out: Mapping[int, Window] = field(default_factory=dict)
    """For each step some of whose micro-batches were not simulated, a window that they repeat (`sim.micro_batches`)."""

    @property
    def durations(self) -> list[float]:
        """Return the seconds of each step since rates last changed."""
        return [self.seconds(step, step + 1) for step in range(self.regime_start, len(self.boundaries) - 1)]

    def seconds(self, first: int, last: int) -> float:
        """Return the seconds from the end of step *first* to that of step *last*, with what was left out of the simulation."""
        return (
            self.boundaries[last]
            - self.boundaries[first]
            + sum((window.end - window.start) * window.repeats for window in self._left_out_of(first, last))
        )

    def windows(self, first: int, last: int, repeats: float = 1.0) -> list[Window]:
        """Return the window from the end of step *first* to that of step *last*, and those of what was left out of it."""
        begin, end = self.boundaries[first], self.boundaries[last]
        inside = [window._replace(repeats=window.repeats * repeats) for window in self._left_out_of(first, last)]
        return [Window(begin, end, last - first, repeats), *inside]

    def _left_out_of(self, first: int, last: int) -> list[Window]:
        return [self.left_out[step] for step in range(first, last) if step in self.left_out] if self.left_out else []

    def is_steady(self) -> bool:
        """Return whether the job's own state hardly drifts, and the mean of its steps is precise to the same limit."""
        enough = len(self.durations) >= LEAST_LIVE_STEPS and self.detector.mismatch() <= DRIFT_LIMIT
        mean = steady_mean(self.durations) if enough else None
        return mean is not None and mean.half_width <= DRIFT_LIMIT * mean.mean

    def counts(self, rank: int, size: int) -> bool:
        """Record that the *size* ranks of the class *rank* have ended a step; return whether the job has ended one."""
        if not self.workers:
            return rank == self.ranks[0].index
        self.updates += size
        if self.updates < self.workers:
            return False
        self.updates -= self.workers
        return True
