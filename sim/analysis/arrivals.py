"""When does a fault or a planned stop strike each course of a long run? In wall-clock time, whatever the job does.

Faults come by a law (`sim.analysis.failure_law`), at a rate that differs between fleets (log-normal between the ends of its interval) and
nodes (gamma), followed by repeats; a new fleet fails early. Beside them there are rare events that take several nodes, and planned stops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.analysis.long_run import Array, LongRun

FAULT, REPEAT, SEVERAL, PLANNED = range(4)
"""Kinds of what strikes."""


class Arrivals:
    """What strikes next, by kind; every array has one value for each course."""

    def __init__(self, run: LongRun, rates: Array, random: Mapping[str, np.random.Generator]) -> None:
        self._run, self._rates, self._random, self._trials = run, rates, random, rates.size
        pending = run.repeats[0] * float(rates.max(initial=0.0)) * run.repeats[1] / (1 - run.repeats[0])
        self._repeats = np.full((rates.size, max(4, math.ceil(pending + 6 * math.sqrt(pending)))), math.inf)
        self._hazard = np.zeros(rates.size)
        self._fault = self._next_fault(np.arange(rates.size))
        self._several = self._exponential("correlated", run.correlated[0])
        self._planned = self._exponential("planned", run.planned[0])

    def due(self, a: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        """Return when the next of each kind strikes the courses *a*."""
        return self._fault[a], self._repeats[a].min(axis=1), self._several[a], self._planned[a]

    def renew(self, a: NDArray[np.intp], kind: NDArray[np.intp], moment: Array) -> None:
        """Draw when the next of each *kind* comes that has just struck the courses *a*, and what repeats at which *moment* after it."""
        again = a[kind == FAULT]
        times = self._next_fault(again)
        self._fault[again] = times[again]
        repeated = a[kind == REPEAT]
        self._repeats[repeated, self._repeats[repeated].argmin(axis=1)] = math.inf
        for number, waiting, stream, rate in (
            (SEVERAL, self._several, "correlated", self._run.correlated[0]),
            (PLANNED, self._planned, "planned", self._run.planned[0]),
        ):
            if rate > 0:
                due = a[kind == number]
                waiting[due] += self._exponential(stream, rate)[due]
        share, after = self._run.repeats
        if share > 0:
            random = self._random["repeat"]
            follows, delay = random.random(self._trials), random.exponential(after, self._trials)
            parents = a[(kind <= REPEAT) & (follows[a] < share)]
            place = self._repeats[parents].argmax(axis=1)  # a free one, or the farthest
            self._repeats[parents, place] = moment[parents] + delay[parents]

    def _exponential(self, stream: str, rate: float) -> Array:
        drawn = self._random[stream].exponential(size=self._trials)
        return drawn / rate if rate > 0 else np.full(self._trials, math.inf)

    def _next_fault(self, active: NDArray[np.intp]) -> Array:
        """Return when the hazard of each course reaches one more draw of the law; all that are not *active* keep theirs."""
        self._hazard[active] += self._run.law.gaps(self._trials, self._random["faults"])[active]
        with np.errstate(divide="ignore"):
            times = np.where(self._rates > 0, self._hazard / self._rates, math.inf)
        early, within = self._run.new_fleet
        if early <= 0:
            return np.asarray(times)
        start = np.zeros(self._trials)
        end = np.minimum(times, 1e12)
        for _ in range(60):  # bisect rate * t + early * (1 - exp(-t/within)) = hazard
            middle = 0.5 * (start + end)
            short = self._rates * middle + early * (1 - self._run.repeats[0]) * -np.expm1(-middle / within) < self._hazard
            start, end = np.where(short, middle, start), np.where(short, end, middle)
        return np.asarray(np.where(end >= 0.999e12, math.inf, end))
