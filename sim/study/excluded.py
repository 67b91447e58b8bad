"""Which machines cannot change what to rent? Those whose lower bounds of time and cost are beaten twice.

A lower bound of a machine's step bounds time and cost of the whole job. A machine is left out if another one is at least as fast and as
cheap as that (so it is not on the Pareto front, nor the nearest to the budget), and if `SHOWN` candidates rank before it (so it is not in
the table). A run is bounded by an epoch that only computes and prepares samples (`sim.study.least_epoch`). For layouts, the first bound
is that of GPUs (`sim.study.plan.least_work`); the search raises it, and ends as soon as the machine is beaten. Machines come in the order
of their bounds, and one whose bound rises much waits for others. What is left out depends neither on that order nor on how many are
computed at once: it is what the final front and table exclude.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from statistics import median
from typing import Final, Protocol

from sim.analysis.cost import Market
from sim.analysis.whole_job import JobPlan, WholeJob
from sim.simulate import steps_per_epoch
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, RunDocument
from sim.study.plan.least_work import LeastWork
from sim.study.recommend import Budget, Candidate, usable_markets, ways_to_pay
from sim.study.rent import price_of_nodes
from sim.study.scenario import Scenario, sorted_overrides
from sim.study.whole_job import in_epochs

SHOWN: Final = 10
"""Maximum number of candidates in the table of `recommend`."""

NEAR: Final = 1e-6
"""Share within which a cutoff is the least."""
PATIENCE: Final = (1.25, 2.0)
"""Factors by which a machine's first search, and each later one, raises the bound of its steps before others come first: estimates. With a
fast network, steps take less than the first; with a slow one, bounds pass it at once, before layouts are priced one by one."""


class StepBounds(Protocol):
    """Lower bounds of the steps of a job."""

    def step_time(self, name: str, nodes: int) -> float:
        """Return the least seconds of a step on *nodes* nodes of the machine *name*; 0 if unknown, as for jobs that cannot run there."""

    def step_time_of(self, document: RunDocument) -> float:
        """Return the least seconds of a step of the run of *document*, at least `step_time` of its machine."""


CandidateRank = tuple[int, float, float]
"""The place of a candidate in the ranking: those within the budget first."""


@dataclass(frozen=True)
class Contest:
    """The terms on which machines compete: a job of *plan* at the global batch of *scenario*, and how it may be paid."""

    scenario: Scenario
    plan: JobPlan
    budget: Budget
    markets: Sequence[Market]
    mean_lifetime: float | None
    """Mean lifetime of spot machines (s); None: as measured."""
    with_failures: bool = False

    @cached_property
    def workload(self) -> Workload:
        """Return the job's workload."""
        return load_workload(self.scenario.workload, sorted_overrides(self.scenario)[1]).spec

    def machine(self, name: str) -> Hardware:
        """Return the machine *name* with the overrides and prices of the scenario. Raise SpecError if it cannot be read."""
        return load_hardware(name, sorted_overrides(self.scenario)[0]).spec

    def candidates(self, row: ComparedMachine) -> list[Candidate]:
        """Return the ways to pay for the machine of *row*, as `recommend` ranks them; none if it has no document."""
        if row.document is None or (machine := self.machine(row.hardware)).hypothetical:
            return []
        markets = usable_markets(machine, self.markets, self.mean_lifetime)
        return ways_to_pay(row.document, machine, self.workload, self.plan, markets, (self.mean_lifetime, self.with_failures))

    def key(self, candidate: Candidate) -> CandidateRank:
        """Return the sort key of *candidate* in the ranking."""
        return (0, *self.budget.prefers(candidate)) if self.budget.allows(candidate) else (1, self.budget.excess(candidate), 0.0)

    def least(self, name: str, nodes: int, step: float) -> list[Candidate]:
        """Return a candidate for each market that is no worse than *nodes* nodes of *name*, whose steps take at least *step* seconds.

        It neither starts up nor writes checkpoints, and is never interrupted.
        """
        machine = self.machine(name)
        assert self.scenario.global_batch is not None
        epoch = step * steps_per_epoch(self.workload, self.scenario.global_batch)
        bounded = []
        for market in usable_markets(machine, self.markets, self.mean_lifetime):
            rate = price_of_nodes(machine, self.workload, nodes, market)
            if rate is None:
                continue
            if self.plan.time is None:
                epochs = in_epochs(self.plan, self.scenario.global_batch, self.workload).epochs or 0.0
                time, paid = epochs * epoch, rate
            else:  # while a revoked machine is replaced, it is not paid for
                epochs, time, paid = self.plan.time / epoch, self.plan.time, rate if market == "on_demand" else 0.0
            job = WholeJob(0.0, time, 0.0, 0.0, 0.0)
            bounded.append(Candidate(name, nodes, market, {}, epochs, job, paid * time, provider=machine.provider))
        return bounded

    def slowed(self, least: Candidate, factor: float) -> Candidate:
        """Return *least*, which `least` returned, with steps that take *factor* times as long."""
        if self.plan.time is not None:
            return replace(least, epochs=least.epochs / factor)
        return replace(least, job=least.job._replace(first_epoch=factor * least.job.first_epoch), cost=factor * least.cost)


class Exclusion:
    """Decides which machines of a *contest* need no run or plan, given the rows that exist, and *work*: by default that of layouts."""

    def __init__(self, contest: Contest, rows: Iterable[ComparedMachine] = (), work: StepBounds | None = None) -> None:
        self._contest, self._work = contest, work or LeastWork(contest.scenario)
        self._keys: list[CandidateRank] = []
        self._reached: list[tuple[float, float]] = []
        """Time per epoch and cost of each candidate."""
        self._least: dict[tuple[str, int], list[Candidate]] = {}
        self._best: Candidate | None = None
        self._ran: list[tuple[tuple[str, int], float]] = []
        """Machines with documents, except in the *rows* that exist at first, and their steps (s)."""
        self._steps: dict[tuple[str, int], float] = {}
        """Seconds of a step, or a bound of them that is above that of `LeastWork`, of each machine that a row has."""
        self._waiting: set[tuple[str, int]] = set()
        """Machines whose search has ended before others excluded them."""
        self.note(rows)
        self._ran.clear()  # of bounds that nobody asks for

    def note(self, rows: Iterable[ComparedMachine]) -> None:
        """Take the candidates and the bounds of *rows* into account."""
        for row in rows:
            step = row.least_step if row.document is None else self._work.step_time_of(row.document)
            if step is not None and row.nodes is not None:
                point = row.hardware, row.nodes
                if row.document is not None:
                    self._ran.append((point, step))
                else:
                    self._waiting.add(point)
                self._steps[point] = step
            for candidate in self._contest.candidates(row):
                if self._best is None or self._contest.key(candidate) < self._contest.key(self._best):
                    self._best = candidate
                insort(self._keys, self._contest.key(candidate))
                self._reached.append((candidate.epoch_time, candidate.cost))

    def in_order(self, points: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return *points*, (machine, nodes), by the best place in the ranking that each may have; those without a bound first."""
        return sorted(points, key=lambda point: min(map(self._contest.key, self._known(point)), default=(0, -inf, -inf)))

    def is_bounded(self, point: tuple[str, int]) -> bool:
        """Return whether anything is known of the steps of *point*, so that it may be excluded."""
        return bool(self._known(point))

    def expected(self, points: Iterable[tuple[str, int]]) -> int:
        """Return how many of *points* will probably be planned: those not beaten if steps exceed bounds as much as those planned so far."""
        ran = [(step, self._work.step_time(*point)) for point, step in self._ran]
        rise = median([max(1.0, step / bound) for step, bound in ran if bound] or [1.0])
        slowed = [[self._contest.slowed(each, rise) for each in self._known(point)] for point in points]
        places = [[(self._contest.key(each), (each.epoch_time, each.cost)) for each in every] for every in slowed]
        keys = sorted([*self._keys, *(key for every in places for key, _ in every)])
        last = keys[SHOWN] if len(keys) > SHOWN else (2, 0.0, 0.0)
        first, least = set[tuple[float, float]](), inf
        for time, cost in sorted([*self._reached, *(pair for every in places for _, pair in every)]):
            if cost < least:
                first.add((time, cost))
                least = cost
        return sum(not every or any(key < last or pair in first for key, pair in every) for every in places)

    @property
    def best(self) -> Candidate | None:
        """Return the candidate that is first in the ranking so far; None if there is none."""
        return self._best

    def excludes(self, point: tuple[str, int]) -> bool:
        """Return whether *point*, with its step or the bound that is known of it, can change neither the table nor the Pareto front."""
        return self._are_beaten(self._known(point))

    def cutoff(self, point: tuple[str, int]) -> float:
        """Return the seconds of a step at which the search of *point* ends: others beat it, or are planned first.

        Infinite if no bound of its steps is known.
        """
        low = self._steps.get(point, self._work.step_time(*point))
        high = PATIENCE[point in self._waiting] * low if self._at(point, low) else inf
        if not self._are_beaten(self._at(point, high)):
            return high
        while high > (1.0 + NEAR) * low:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self._are_beaten(self._at(point, middle)) else (middle, high)
        return high

    def least(self, point: tuple[str, int]) -> list[Candidate]:
        """Return candidates that are no worse than *point*; empty if no bound of its steps is known."""
        if point not in self._least:
            self._least[point] = self._at(point, self._work.step_time(*point))
        return self._least[point]

    def _known(self, point: tuple[str, int]) -> list[Candidate]:
        """Return candidates that are no worse than *point*, by what is known of its steps so far."""
        return self._at(point, self._steps[point]) if point in self._steps else self.least(point)

    def _at(self, point: tuple[str, int], step: float) -> list[Candidate]:
        """Return candidates that are no worse than *point* with steps of at least *step* seconds; empty if it is 0, or none is for rent."""
        try:
            return self._contest.least(*point, step) if step > 0.0 else []
        except SpecError:
            return []

    def _are_beaten(self, least: Sequence[Candidate]) -> bool:
        return bool(least) and all(self._is_beaten(candidate) for candidate in least)

    def _is_beaten(self, least: Candidate) -> bool:
        time, cost = own = (least.epoch_time, least.cost)
        ranked_before = bisect_left(self._keys, self._contest.key(least))
        return ranked_before >= SHOWN and any(t <= time and c <= cost and (t, c) != own for t, c in self._reached)
