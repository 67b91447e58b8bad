"""Which machine should I rent? The cheapest that meets the time budget, or the fastest that meets the money budget.

Every machine of the catalogue, with one or more nodes, on demand and on the spot market, is a candidate; the whole job counts
(`sim.analysis.whole_job`), not an epoch. Where the validated error of a prediction is known, the answer says whether the choice
survives it, and always by how much a prediction or a price must be off before another candidate wins.

Spot machines are revoked (`sim.study.transient`): their time and cost are expected values where the lives of their kind are known.

Limits: elsewhere spot prices without revocations, which the notes say; all nodes of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from sim.analysis.cost import Market, price
from sim.analysis.whole_job import Plan, WholeJob, whole_job
from sim.cluster.storage import most_bandwidth
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.compare import Row
from sim.study.nearest import nearest_that_runs
from sim.study.scenario import Scenario, sorted_overrides
from sim.study.spot import expected

MARKETS: tuple[Market, ...] = ("on_demand", "spot")


@dataclass(frozen=True)
class Budget:
    """What the job may take: *time* (s) or *money* (USD), one of the two."""

    time: float | None = None
    money: float | None = None

    def allows(self, candidate: Candidate) -> bool:
        """Tell whether *candidate* stays within it."""
        return self.excess(candidate) <= 1.0

    def excess(self, candidate: Candidate) -> float:
        """Return what *candidate* takes over what it may take; 1 is all of it."""
        if self.time is not None:
            return candidate.job.total / self.time
        return candidate.cost / (self.money or 1.0)

    def prefers(self, candidate: Candidate) -> tuple[float, float]:
        """Return what to keep small among those allowed: cost within a time, time within a cost; the other one breaks ties."""
        key = (candidate.cost, candidate.job.total)
        return key if self.time is not None else key[::-1]


@dataclass(frozen=True)
class Candidate:
    """One way to run the job."""

    hardware: str
    nodes: int
    market: Market
    document: Mapping[str, Any]
    job: WholeJob
    cost: float
    """USD for the whole job."""


@dataclass(frozen=True)
class Recommendation:
    """The best candidate within the budget (None where nothing is), all of them in order of preference, and what to know."""

    budget: Budget
    best: Candidate | None
    runner_up: Candidate | None
    nearest: Candidate | None
    """What comes closest to the budget where nothing meets it."""
    ranked: Sequence[Candidate]
    """Those within the budget first, best first; then the others, nearest first."""
    left_out: Mapping[str, str]
    """Machines that cannot run the job or have no price, and why."""
    notes: Sequence[str]


def recommend(scenario: Scenario, rows: Sequence[Row], plan: Plan, budget: Budget, markets: Sequence[Market] = MARKETS) -> Recommendation:
    """Return what to rent for a job of *plan*, given the *rows* that `sim.study.compare` makes of the workload."""
    if (budget.time is None) == (budget.money is None):
        raise SpecError("--budget-hours or --budget-usd: write one of the two")
    for_hardware, for_workload = sorted_overrides(scenario)
    workload = load_workload(scenario.workload, for_workload).spec
    candidates: list[Candidate] = []
    left_out: dict[str, str] = {}
    for row in rows:
        if row.document is None:
            left_out.setdefault(row.hardware, row.problem)
            continue
        machine = load_hardware(row.hardware, for_hardware).spec
        if machine.hypothetical:
            left_out[row.hardware] = f"{row.hardware}: hypothetical, nobody rents it"
            continue
        found = _candidates(row.document, machine, workload, plan, markets)
        if not found:
            left_out[row.hardware] = f"{row.hardware}: no price is known ({' or '.join(markets)})"
        candidates += found
    allowed = sorted(filter(budget.allows, candidates), key=budget.prefers)
    others = sorted((found for found in candidates if not budget.allows(found)), key=budget.excess)
    best, runner_up = (*allowed, None, None)[:2]
    ran = any(row.document is not None for row in rows)
    notes = _notes(budget, best, runner_up, others) if ran else [nearest_that_runs(scenario, left_out)]
    return Recommendation(budget, best, runner_up, None if best else next(iter(others), None), [*allowed, *others], left_out, notes)


def _candidates(
    document: Mapping[str, Any], machine: Hardware, workload: Workload, plan: Plan, markets: Sequence[Market]
) -> list[Candidate]:
    """Return the ways to pay for one machine."""
    compute = document["stalls_s"]["compute"] / document["step_time_s"]
    first, warm = document["first_epoch"]["epoch_time_s"], document["epoch_time_s"]
    job = whole_job(plan, first, warm, compute, checkpoint_time(workload, machine))
    described = sum(group.count for group in machine.groups)
    found = []
    for market in markets:
        rate = price(machine, market)
        if rate is None:
            continue
        rate *= document["nodes"] / described
        candidate = Candidate(machine.name, document["nodes"], market, document, job, rate * job.total)
        if market == "spot" and (drawn := expected(machine, workload, document["nodes"], job, plan.epochs, rate)) is not None:
            time, cost = drawn
            candidate = replace(candidate, job=job._replace(revocations=time - job.total), cost=cost)
        if candidate.cost < inf:  # a job that revocations keep from its end is no way to run it
            found.append(candidate)
    return found


def checkpoint_time(workload: Workload, machine: Hardware) -> float:
    """Return the seconds that one checkpoint of weights and optimizer state takes to the first node's disk; 0 without a disk."""
    storage = machine.groups[0].node.storage
    nbytes = 4.0 * workload.model.parameters * (1 + workload.training.optimizer.states)
    return nbytes / most_bandwidth(storage) if storage else 0.0


def _notes(budget: Budget, best: Candidate | None, runner_up: Candidate | None, others: Sequence[Candidate]) -> list[str]:
    """Return how sure the choice is, and what would change it."""
    if best is None:
        return []
    notes = [_sureness(budget, best)]
    if best.market == "spot":
        notes.append(_revoked(best))
    spare = 1.0 / budget.excess(best)
    limit = "time" if budget.time is not None else "money"
    notes.append(f"it stays within the {limit} budget while the job takes up to {100 * (spare - 1):.0f} % longer than predicted")
    if runner_up is not None:
        ratio = budget.prefers(runner_up)[0] / budget.prefers(best)[0]
        what = "price" if budget.time is not None else "predicted time"
        name = f"{runner_up.hardware} ({runner_up.nodes} nodes, {runner_up.market.replace('_', '-')})"
        notes.append(f"{name} would be chosen if its {what} fell by {100 * (1 - 1 / ratio):.0f} %")
    better = [found for found in others if budget.prefers(found) < budget.prefers(best)]
    if better:
        near = min(better, key=budget.excess)
        notes.append(f"{near.hardware} ({near.nodes} nodes) would win with a budget {100 * (budget.excess(near) - 1):.0f} % larger")
    return notes


def _revoked(best: Candidate) -> str:
    if best.job.revocations == 0.0:
        return "how long such spot machines live is not known: a revocation would make it take longer and cost more"
    return "time and cost are means over revocations as 2019 on Google Compute Engine; `spot` shows how they spread"


def _sureness(budget: Budget, best: Candidate) -> str:
    known = best.document.get("expected_error")
    if not known:
        return "no measurement of this kind of machine backs the prediction"
    holds = budget.excess(best) * (1.0 + known["p90"]) <= 1.0
    verdict = "the budget is met even so" if holds else "the budget may be missed by that"
    median, p90 = 100 * known["median"], 100 * known["p90"]
    return f"such predictions were off by {median:.0f} % in the median, {p90:.0f} % at the 90th percentile; {verdict}"
