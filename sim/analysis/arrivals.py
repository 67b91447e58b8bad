"""When does the next event strike in each of many simulated courses of a job, and what kind of event is it?

Faults arrive in wall-clock time, independently of what the job does. They follow a law (`sim.analysis.failure_law`) at the rate of each
course, and arrive more often while a fleet is new. A share of faults is followed by a repeat. Rare events take down several nodes at once,
and some stops are planned. `sim.analysis.crew` draws when nodes are revoked and join; those two kinds have the last two numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.analysis.fleet_law import Array
from sim.analysis.long_run import MOST_REPEATS, LongRun

FAULT, REPEAT, SEVERAL, PLANNED, REVOKED, JOINED = range(6)
"""Kinds of events: a first fault, a fault that repeats another, a fault of several nodes, a planned stop, a node revoked, a node joined."""
_NEVER = 1e12
"""Time (s) after which a fault counts as never happening."""


class Arrivals:
    """The next event of each kind in each course; every array has one value or one row per course."""

    def __init__(self, run: LongRun, rates: Array, others: Mapping[str, Array], random: Mapping[str, np.random.Generator]) -> None:
        self.run, self.trials, self.rates, self.others, self.random = run, rates.size, rates, others, random
        self.again = np.minimum(run.repeats[0] * others["repeats"], MOST_REPEATS)
        """Share of faults that are followed by a repeat."""
        self.early = run.new_fleet[0] * others["new_fleet"]
        pending = run.repeats[1] * float((self.again * rates / (1 - self.again)).max(initial=0.0))
        self.children = np.full((self.trials, max(4, math.ceil(pending + 6 * math.sqrt(pending)))), math.inf)
        """Times of the pending repeats."""
        self.next_repeat = np.full(self.trials, math.inf)
        """The earliest of these times."""
        self.idle_children = np.zeros(self.children.shape, dtype=np.bool_)
        """Which repeats follow a fault that did not strike; they do not strike either."""
        self.hazard = np.zeros(self.trials)
        self.next_fault = self._next_fault(np.arange(self.trials))
        self.next_several = self._exponential("correlated", run.correlated[0])
        self.next_planned = self._exponential("planned", run.planned[0])

    def next_times(self, a: NDArray[np.intp]) -> list[Array]:
        """Return the time of the next event of each kind up to `PLANNED` in the courses *a*."""
        return [self.next_fault[a], self.next_repeat[a], self.next_several[a], self.next_planned[a]]

    def is_harmless(self, a: NDArray[np.intp], kind: NDArray[np.intp], at: Array) -> NDArray[np.bool_]:
        """Return in which of the courses *a* the event of this *kind* at time *at* is a fault or a revocation that does not strike.

        Repeats of such a fault do not strike either.
        """
        if self.run.strike_share >= 1.0:
            return np.zeros(a.size, dtype=np.bool_)
        passes = self.random["striking"].random(self.trials)[a] >= self.run.strike_share
        repeats = kind == REPEAT
        passes &= np.isin(kind, (FAULT, SEVERAL, REVOKED))
        passes[repeats] = self.idle_children[a[repeats], self.children[a[repeats]].argmin(axis=1)]
        return np.asarray(passes & (at < self.run.horizon))

    def renew(self, a: NDArray[np.intp], kind: NDArray[np.intp], at: Array, idle: NDArray[np.bool_]) -> None:
        """Draw the successors of the events that have just occurred in the courses *a*, whether they struck or were *idle*.

        This draws the next event of the same *kind*, and whether and when a fault is followed by a repeat.
        """
        again, repeated = a[kind == FAULT], a[kind == REPEAT]
        self.next_fault[again] = self._next_fault(again)
        self.children[repeated, self.children[repeated].argmin(axis=1)] = math.inf
        for number, waiting, stream, rate in (
            (SEVERAL, self.next_several, "correlated", self.run.correlated[0]),
            (PLANNED, self.next_planned, "planned", self.run.planned[0]),
        ):
            if rate > 0:
                due = a[kind == number]
                waiting[due] += self._exponential(stream, rate, due)
        share, after = self.run.repeats
        if share > 0:
            random = self.random["repeat"]
            follows, delay = random.random(self.trials), random.exponential(after, self.trials)
            faults = np.flatnonzero(kind <= REPEAT)
            if not faults.size:
                return
            fertile = faults[follows[a[faults]] < self.again[a[faults]]]
            parents = a[fertile]
            place = self.children[parents].argmax(axis=1)  # a free slot, or the latest repeat
            self.children[parents, place] = at[fertile] + delay[parents]
            self.idle_children[parents, place] = idle[fertile]
            changed = np.concatenate((repeated, parents))
            self.next_repeat[changed] = self.children[changed].min(axis=1)

    def _exponential(self, stream: str, rate: float, a: NDArray[np.intp] | slice = slice(None)) -> Array:
        """Return the time until the next event of *stream* in the courses *a*; drawn for all, so that one does not depend on the others."""
        drawn = self.random[stream].exponential(size=self.trials)[a]
        return np.asarray(drawn / (rate * self.others[stream][a])) if rate > 0 else np.full(drawn.size, math.inf)

    def _next_fault(self, active: NDArray[np.intp]) -> Array:
        """Redraw the thresholds of the *active* courses, and return when their accumulated hazards reach them."""
        gaps = self.run.law.gaps(self.trials, self.random["faults"])  # of all courses, so that the draws of one do not depend on the others
        if not active.size:
            return np.empty(0)
        self.hazard[active] += gaps[active]
        hazard, rates = self.hazard[active], self.rates[active]
        with np.errstate(divide="ignore"):
            times = np.where(rates > 0, hazard / rates, math.inf)
        if self.run.new_fleet[0] <= 0:
            return np.asarray(times)
        early, within = (self.early * (1 - self.again))[active], self.run.new_fleet[1]
        start = np.zeros(active.size)
        end = np.minimum(times, _NEVER)
        for _ in range(60):  # bisect rate * t + early * (1 - exp(-t/within)) = hazard
            middle = 0.5 * (start + end)
            short = rates * middle + early * -np.expm1(-middle / within) < hazard
            start, end = np.where(short, middle, start), np.where(short, end, middle)
        return np.asarray(np.where(end >= 0.999 * _NEVER, math.inf, end))
