"""Which machine should I rent? The cheapest within the time budget, or the fastest within the money budget.

Every machine of the catalog is a candidate, with one or more nodes, on demand and on the spot market. The whole job counts
(`sim.study.whole_job`), not an epoch; a job of fixed duration is judged by the number of its epochs. If the validated error of a
prediction is known, notes state whether the choice holds within it. They also state by how much a prediction or a price must be off
before another candidate wins.

Spot machines are revoked (`sim.study.transient`): their time and cost are expected values, with checkpoints to cloud storage at the best
interval, as in `spot`. Other machines write a checkpoint to their disk each epoch. Limits: machines with unmeasured lifetimes are no
candidates on the spot market, unless a mean lifetime is specified; all nodes are of one kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from sim.analysis.cost import Market, price
from sim.analysis.transient import lifetimes_of
from sim.analysis.whole_job import START_UP, JobPlan, WholeJob
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.arguments import mean_lifetime_of
from sim.study.compare import ComparedMachine
from sim.study.nearest import nearest_that_runs
from sim.study.one_batch import GPUS, own_batch_option, usual_global_batch
from sim.study.rent import price_of_nodes
from sim.study.scenario import Scenario, sorted_overrides
from sim.study.spot import expected_outcome
from sim.study.whole_job import course
from sim.units import pluralized, rounded, show

LITTLE, MUCH = 0.1, 0.2
"""Shares: a note mentions a candidate that takes at most `LITTLE` more of the minimized figure and saves `MUCH` of the other one."""
MOST_LISTED = 6
"""Maximum number of machines that a note names; further ones are counted."""
MARKETS: tuple[Market, ...] = ("on_demand", "spot")


@dataclass(frozen=True)
class Budget:
    """The limit of the job: *time* (s) or *money* (USD), one of the two."""

    time: float | None = None
    money: float | None = None

    def allows(self, candidate: Candidate) -> bool:
        """Return whether *candidate* stays within the budget."""
        return self.excess(candidate) <= 1.0

    def excess(self, candidate: Candidate) -> float:
        """Return the share of the budget that *candidate* takes; 1 is all of it."""
        if self.time is not None:
            return candidate.job.total / self.time
        return candidate.cost / (self.money or 1.0)

    def prefers(self, candidate: Candidate) -> tuple[float, float]:
        """Return the sort key of allowed candidates: cost for a time budget, time per epoch for a money budget; the other breaks ties."""
        key = (candidate.cost, candidate.epoch_time)
        return key if self.time is not None else key[::-1]


@dataclass(frozen=True)
class Candidate:
    """One way to run the job."""

    hardware: str
    nodes: int
    market: Market
    document: Mapping[str, Any]
    epochs: float
    job: WholeJob
    cost: float
    """USD for the whole job."""
    interval: float | None = None
    """Seconds of work between checkpoints to cloud storage on spot machines that are revoked; otherwise None."""
    provider: str = ""
    """The provider that rents the machine out."""

    @property
    def epoch_time(self) -> float:
        """Return the seconds of the whole job per epoch."""
        return self.job.total / self.epochs if self.epochs else inf


@dataclass(frozen=True)
class Recommendation:
    """The best candidate within the budget (None if there is none), all candidates in order of preference, and notes."""

    plan: JobPlan
    budget: Budget
    best: Candidate | None
    runner_up: Candidate | None
    nearest: Candidate | None
    """The candidate closest to the budget, if none meets it."""
    ranked: Sequence[Candidate]
    """Those within the budget first, best first; then the others, nearest first."""
    left_out: Mapping[str, str]
    """Machines that cannot run the job or have no price, and why."""
    notes: Sequence[str]
    machines: Mapping[str, Hardware] = field(default_factory=dict)
    """Descriptions of the candidates' machines by name, with their prices."""
    markets: Sequence[Market] = MARKETS


def recommend(
    scenario: Scenario,
    rows: Sequence[ComparedMachine],
    plan: JobPlan,
    budget: Budget,
    markets: Sequence[Market] = MARKETS,
    mean_lifetime: str | None = None,
    with_failures: bool = False,
    global_batch: int | None = None,
    tried: Sequence[int] = (),
) -> Recommendation:
    """Return what to rent for a job of *plan*, given the *rows* that `sim.study.compare` returns for the workload.

    *with_failures*: machines also fail, as in `goodput`; the document of each row has the weeks of its markets under ``weeks``.

    Spot machines last *mean_lifetime* (a time such as ``20 h``) on average, at random; without it, measured lifetimes are used, if any.
    *global_batch* is that of all *rows*; None if each GPU has the same batch instead, so that more GPUs take larger steps.
    *tried* are numbers of nodes that were considered, although all their rows may have been left out.
    """
    require_one_budget(plan, budget)
    mean = None if mean_lifetime is None else mean_lifetime_of(mean_lifetime)
    gathered = _gathered(scenario, rows, plan, markets, mean, with_failures)
    allowed = sorted(filter(budget.allows, gathered.candidates), key=budget.prefers)
    others = sorted((candidate for candidate in gathered.candidates if not budget.allows(candidate)), key=budget.excess)
    best, runner_up = (*allowed, None, None)[:2]
    near = None if best else next(iter(others), None)
    if all(row.document is None for row in rows):
        notes = [nearest_that_runs(scenario, gathered.left_out)]
    else:
        notes = [
            *_failure_notes(best or near, with_failures),
            *_notes(plan, budget, allowed, others, mean),
            *_market_notes(gathered.candidates, markets, gathered.unmeasured),
            *_node_notes([*tried, *(row.nodes for row in rows)]),
            *_partly_left_out(rows),
            _batch_note(scenario, rows, global_batch),
        ]
    notes = [note for note in notes if note]
    return Recommendation(plan, budget, best, runner_up, near, [*allowed, *others], gathered.left_out, notes, gathered.machines, markets)


def require_one_budget(plan: JobPlan, budget: Budget) -> None:
    """Raise SpecError unless *budget* limits either time or money, and money if *plan* fixes the time."""
    if (budget.time is None) == (budget.money is None):
        raise SpecError("--budget-hours or --budget-usd: write one of the two, for example --budget-hours 12")
    if plan.time is not None and budget.time is not None:
        raise SpecError("--hours and --budget-hours: --hours already fixes the time; write --budget-usd, or --epochs")


class _Gathered(NamedTuple):
    """Candidates, machines left out with the reason, machines with unmeasured spot lifetimes, and the candidates' machines, by name."""

    candidates: list[Candidate]
    left_out: dict[str, str]
    unmeasured: set[str]
    machines: dict[str, Hardware]


def _gathered(
    scenario: Scenario, rows: Sequence[ComparedMachine], plan: JobPlan, markets: Sequence[Market], mean: float | None, with_failures: bool
) -> _Gathered:
    """Return the candidates from *rows* on *markets*; spot machines last *mean* seconds on average, or as long as measured if None."""
    for_hardware, for_workload = sorted_overrides(scenario)
    workload = load_workload(scenario.workload, for_workload).spec
    gathered = _Gathered([], {}, set(), {})
    for row in rows:
        if row.document is None:
            reason = _of_several_groups(scenario, row.hardware) or row.problem
            if reason.startswith(f"{row.hardware}: "):  # of layouts, the reason on the most nodes says what would fit
                gathered.left_out[row.hardware] = reason
            gathered.left_out.setdefault(row.hardware, reason)
            continue
        machine = load_hardware(row.hardware, for_hardware).spec
        priced = usable_markets(machine, markets, mean)
        candidates = [] if machine.hypothetical else ways_to_pay(row.document, machine, workload, plan, priced, (mean, with_failures))
        if len(priced) < len(markets) and not machine.hypothetical:
            gathered.unmeasured.add(machine.name)
        if candidates:
            gathered.machines[machine.name] = machine
            gathered.candidates.extend(candidates)
        else:
            gathered.left_out[machine.name] = f"{machine.name}: {_why_not(machine, markets, priced)}"
    for name in gathered.machines:  # they may have been left out on other numbers of nodes
        gathered.left_out.pop(name, None)
    return gathered


def unrentable(scenario: Scenario, name: str, markets: Sequence[Market], mean_lifetime: str | None) -> str:
    """Return why the machine *name* cannot be rented on *markets* for any job; empty if it can, or if it cannot be read."""
    try:
        machine = load_hardware(name, sorted_overrides(scenario)[0]).spec
    except SpecError:
        return ""
    priced = usable_markets(machine, markets, None if mean_lifetime is None else mean_lifetime_of(mean_lifetime))
    if machine.hypothetical or all(price(machine, market) is None for market in priced):
        return f"{machine.name}: {_why_not(machine, markets, priced)}"
    return ""


def _of_several_groups(scenario: Scenario, name: str) -> str:
    """Return why a machine with several groups of workers is left out; empty if *name* has one group, or cannot be read."""
    try:
        machine = load_hardware(name, sorted_overrides(scenario)[0]).spec
    except SpecError:
        return ""
    groups = sum(group.role == "worker" for group in machine.groups)
    if groups < 2:
        return ""
    return f"{machine.name}: has {groups} groups of workers, but only numbers of equal nodes are tried; `compare` shows its time and cost"


def _partly_left_out(rows: Sequence[ComparedMachine]) -> list[str]:
    """Return notes on machines that run the job on some numbers of nodes but not on others, and why."""
    ran = {row.hardware for row in rows if row.document is not None}
    failed: dict[str, list[ComparedMachine]] = defaultdict(list)
    for row in rows:
        if row.document is None and row.hardware in ran and row.nodes is not None:
            failed[row.hardware].append(row)
    reasons = {
        name: each[0].problem.removeprefix(f"{name}, {each[0].nodes} nodes: ").removeprefix(f"{name}: ") for name, each in failed.items()
    }
    return [
        f"{name}: not on {', '.join(str(row.nodes) for row in each)} node{'s' * ([row.nodes for row in each] != [1])}: {reasons[name]}"
        for name, each in failed.items()
    ]


def usable_markets(machine: Hardware, markets: Sequence[Market], mean: float | None) -> Sequence[Market]:
    """Return *markets* without the spot market if *machine* has a price there, but its lifetime is unknown."""
    if price(machine, "spot") is None or mean is not None or lifetimes_of(machine.first_workers.node.gpu) is not None:
        return markets
    return [market for market in markets if market != "spot"]


def _why_not(machine: Hardware, markets: Sequence[Market], priced: Sequence[Market]) -> str:
    """Return why *machine*, which can run the job, cannot be rented on *markets*; *priced* are those of them that may be used."""
    if machine.hypothetical:
        return "hypothetical, not for rent"
    if len(priced) < len(markets):
        return _UNMEASURED
    wanted = " or ".join(market.replace("_", "-") for market in markets)
    of_spot = f"a file with 'extends: {machine.name}' and a price only this one"
    alone = of_spot if markets[0] == "spot" else f"--price {machine.name}='10 USD/h' only this one"
    return f"no {wanted} price specified; --set price.{markets[0]}='10 USD/h' gives every machine that price, {alone}"


def ways_to_pay(
    document: Mapping[str, Any], machine: Hardware, workload: Workload, plan: JobPlan, markets: Sequence[Market],
    disturbed: tuple[float | None, bool],
) -> list[Candidate]:  # fmt: skip
    """Return the ways to pay for one machine; *disturbed* is the mean lifetime (s) of spot machines, and whether machines fail."""
    mean, with_failures = disturbed
    job = course(plan, document, machine, workload)
    candidates = []
    for market in markets:
        rate = price_of_nodes(machine, workload, document["nodes"], market)
        if rate is None:
            continue
        cost = rate * job.parts.total
        candidate = Candidate(machine.name, document["nodes"], market, document, job.epochs, job.parts, cost, provider=machine.provider)
        if with_failures:
            candidate = _with_failures(candidate, plan, machine, workload, rate)
        elif market == "spot":
            candidate = _with_revocations(candidate, plan, machine, workload, rate, mean)
        if candidate.cost < inf:  # infinite if revocations keep the job from finishing
            candidates.append(candidate)
    return candidates


def _with_failures(candidate: Candidate, plan: JobPlan, machine: Hardware, workload: Workload, rate: float) -> Candidate:
    """Return *candidate* with failures, by the effective share in the drawn weeks of its market; their spares are paid for as well.

    Checkpoints are those of the weeks; what they lose otherwise, except for the start, counts as failures.
    """
    weeks = candidate.document["weeks"][candidate.market]
    share, failing = weeks["effective_share"], candidate
    if plan.time is not None:
        shorter = course(plan._replace(time=plan.time * share), candidate.document, machine, workload)
        failing = replace(candidate, epochs=shorter.epochs, job=shorter.parts)
    work = failing.job.total - failing.job.start_up - failing.job.checkpoints
    duration = work / share if plan.time is None else plan.time
    saves = work * weeks["lost_s"]["checkpoint"] / weeks["work_s"]
    start_up = min(failing.job.start_up, duration - work - saves)
    job = failing.job._replace(start_up=start_up, checkpoints=saves, failures=duration - work - saves - start_up)
    paid = (candidate.nodes + weeks["spares"]) / candidate.nodes
    interval = weeks["checkpoint"]["interval_s"]["used"] if candidate.market == "spot" else None
    return replace(failing, job=job, cost=rate * paid * duration, interval=interval)


def _with_revocations(
    candidate: Candidate, plan: JobPlan, machine: Hardware, workload: Workload, rate: float, mean: float | None
) -> Candidate:
    """Return *candidate* on spot machines with revocations; lifetimes are measured, or *mean* seconds on average.

    A job of fixed duration does the epochs of a job that is shorter by the factor by which revocations lengthen it.
    """
    drawn = expected_outcome(machine, workload, candidate.nodes, candidate.job, plan.checkpoints, rate, mean)
    if drawn is None or drawn.time == inf:
        return replace(candidate, cost=inf)
    revoked, duration = candidate, drawn.time
    if plan.time is not None:
        shorter = course(plan._replace(time=plan.time * plan.time / drawn.time), candidate.document, machine, workload)
        revoked, duration = replace(candidate, epochs=shorter.epochs, job=shorter.parts), plan.time
    start_up = min(drawn.start_up, duration)
    job = revoked.job._replace(start_up=start_up, checkpoints=min(drawn.checkpoints, duration - start_up))
    interval = drawn.interval if drawn.interval < inf else None
    return replace(
        revoked, job=job._replace(revocations=max(0.0, duration - job.total)), cost=drawn.cost * duration / drawn.time, interval=interval
    )


# --- how sure, and what would change it ------------------------------------------------------------------------------


def _notes(plan: JobPlan, budget: Budget, allowed: Sequence[Candidate], others: Sequence[Candidate], mean: float | None) -> list[str]:
    """Return notes on how sure the choice is, and on what would change it."""
    best, runner_up = (*allowed, None, None)[:2]
    if best is None:
        return []
    notes = [_error_note(plan, budget, best)]
    if best.market == "spot":
        notes.append(_spot_note(best, mean))
    if plan.time is None:
        spare, limit = 1.0 / budget.excess(best), "time" if budget.time is not None else "money"
        share = "less than 1%" if spare < 1.01 else f"{'only ' if spare < 1.1 else ''}{100 * (spare - 1):.0f}%"
        over = f"{share} before the {limit} budget is exceeded"
        notes.append(f"headroom: {over if spare < 2 else f'the {limit} budget is {rounded(spare, 2)} times what the job needs'}")
    if runner_up is not None:
        fall = 1 - budget.prefers(best)[0] / budget.prefers(runner_up)[0]
        what = "price" if budget.time is not None else "predicted time"
        share = "less than 0.1%" if fall < 0.001 else f"{100 * fall:.2g}%"
        notes.append(f"{_named(runner_up)} would be chosen if its {what} fell by {share}")
    notes += _bargain_notes(budget, best, allowed)
    better = [candidate for candidate in others if budget.prefers(candidate) < budget.prefers(best)]
    if better:
        near = min(better, key=budget.excess)
        notes.append(f"{_named(near)} would win with a budget {100 * (budget.excess(near) - 1):.0f}% larger")
    return notes


def _failure_notes(best: Candidate | None, with_failures: bool) -> list[str]:
    """Return a note on what the figures of *best* include if they are *with_failures*."""
    if best is None or not with_failures:
        return []
    weeks = best.document["weeks"][best.market]
    kept = f"{100 * weeks['effective_share']:.1f}% of the time is useful work"
    rented = f"a failed machine is replaced within {show(START_UP, 'time')}, so no spare is paid for (--spares)"
    spares = rented if weeks["rents_another"] else f"the cost includes {pluralized(weeks['spares'], 'spare node')} (--spares)"
    of = f"failures: mean of {weeks['trials']:,} simulated runs at failure rate '{weeks['reliability']['level']}', as in `goodput`"
    counted = f"{weeks['interruptions']:.2g} interruptions and {weeks['planned_stops']:.2g} planned stops"
    drawn = f"{of}; {kept}, with {counted}; compiling at the start and slow nodes count too"
    return [f"{drawn}; {spares}"]


def _bargain_notes(budget: Budget, best: Candidate, allowed: Sequence[Candidate]) -> list[str]:
    """Return a note on how much time a little more money would save, or how much money a little more time would, for the *budget*."""
    spent, other = budget.prefers(best)
    near = [bargain for bargain in allowed if budget.prefers(bargain)[0] <= (1.0 + LITTLE) * spent]
    bargain = min(near, key=lambda each: budget.prefers(each)[1])
    saved, more = 1.0 - budget.prefers(bargain)[1] / other, budget.prefers(bargain)[0] / spent - 1.0
    if saved < MUCH:
        return []
    less, longer = f"{100 * saved:.0f}% less", f"{100 * more:.2g}%"
    bargained = f"takes {less} time and costs {longer} more" if budget.time is not None else f"costs {less} and takes {longer} longer"
    return [f"{_named(bargain)} {bargained}"]


_UNMEASURED = "no interruption data for spot machines; --mean-lifetime 20h considers them"


def _market_notes(candidates: Sequence[Candidate], markets: Sequence[Market], unmeasured: Set[str]) -> list[str]:
    """Return notes on machines that were not considered on the spot market: without a price there, or without measured lifetimes."""
    names = sorted(unmeasured & {candidate.hardware for candidate in candidates})
    without_lives = [f"{_listed(names)}: {_UNMEASURED}"] if names else []
    return [*without_lives, *_without_price(candidates, markets, unmeasured)]


def _listed(names: Iterable[str]) -> str:
    """Return *names* in order; if there are many, the first few and how many more."""
    ordered = sorted(names)
    few = ordered if len(ordered) <= MOST_LISTED + 1 else [*ordered[:MOST_LISTED], f"{len(ordered) - MOST_LISTED} more"]
    return f"{', '.join(few[:-1])} and {few[-1]}" if len(few) > 1 else "".join(few)


def _without_price(candidates: Sequence[Candidate], markets: Sequence[Market], unmeasured: Set[str]) -> list[str]:
    priced = {candidate.hardware for candidate in candidates if candidate.market == "spot"} | unmeasured
    others = {candidate.hardware for candidate in candidates} - priced
    if "spot" not in markets or not others:
        return []
    if len(others) <= len(priced):
        return [f"no spot price is available for {_listed(others)}"]
    if not priced:
        return ["no spot prices are available for any of them"]
    return [f"of the machines compared, only {_listed(priced)} {'has' if len(priced) == 1 else 'have'} a spot price"]


def _node_notes(tried: Iterable[int | None]) -> list[str]:
    """Return a note on which numbers of nodes were *tried*, if they were requested."""
    counts = sorted({count for count in tried if count is not None})
    if not counts:
        return []
    written = [f"{count:,}" for count in counts]
    listed = " and ".join(filter(None, (", ".join(written[:-1]), written[-1])))
    return [f"tried with {listed} node{'s' * (counts != [1])}; --nodes tries other counts"]


def _batch_note(scenario: Scenario, rows: Sequence[ComparedMachine], global_batch: int | None) -> str:
    """Return a note on the candidates' global batch, because an epoch is worth less the larger it is; empty for planned layouts only."""
    documents = [row.document for row in rows if row.document is not None]
    if documents and all("layout_gap" in document for document in documents):
        return ""  # stated with their layouts
    batches = sorted({round(each["throughput_samples_per_s"] * each["step_time_s"]) for each in documents})
    if global_batch is not None:
        most = max((row.nodes or 1 for row in rows), default=1)
        usual_batch, of_gpus = usual_global_batch(scenario, most), usual_global_batch(scenario)
        gpus = GPUS if usual_batch == of_gpus else GPUS * most
        usual = f", the workload's own on {gpus:,} GPUs" if global_batch == usual_batch else ""
        near = f"; {batches[0]:,} to {batches[-1]:,} where GPUs do not divide it" if batches and set(batches) != {global_batch} else ""
        return (
            f"all candidates train at a global batch of {global_batch:,}{usual} (fewer GPUs accumulate gradients{near}); --global-batch N "
            "sets another, --batch N sets the batch per GPU instead"
        )
    if not batches:
        return ""
    own = own_batch_option(scenario) or "the batch of each GPU"
    if len(batches) == 1:
        return f"the global batch is {batches[0]:,}, as follows from {own}; use --global-batch N instead to set another"
    return (
        f"global batches range from {batches[0]:,} to {batches[-1]:,}, as follows from {own}, so the same number of epochs may not train "
        "equally well; use --global-batch N instead to compare at the same one"
    )


def _named(candidate: Candidate) -> str:
    return f"{candidate.hardware} ({pluralized(candidate.nodes, 'node')}, {candidate.market.replace('_', '-')})"


def _spot_note(best: Candidate, mean: float | None) -> str:
    work = best.job.total - best.job.start_up - best.job.checkpoints - best.job.revocations
    often = best.interval is not None and best.interval < 0.999 * work
    saves = (
        f"a checkpoint goes to cloud storage every {show(best.interval or 0.0, 'time')} of work; "
        if often
        else "only the result is saved; "
    )
    lives = "as measured on Google Compute Engine in 2019" if mean is None else f"at random, after {show(mean, 'time')} on average"
    return f"{saves}time and cost are means over revocations {lives}; `spot` shows the spread"


def _error_note(plan: JobPlan, budget: Budget, best: Candidate) -> str:
    error = best.document.get("expected_error")
    if not error:
        return "the prediction is not backed by any measured run on this kind of machine"
    median, p90 = f"{100 * error['median']:.0f}%", f"{100 * error['p90']:.0f}%"
    holds = budget.excess(best) * (1.0 + error["p90"]) <= 1.0
    verdict = f"even at {p90} this choice stays within the budget" if holds else f"at {p90} this choice would exceed the budget"
    if plan.time is not None:
        verdict = "the number of epochs may be off by as much"
    return f"similar predictions missed by {median} (median) to {p90} (p90); {verdict}"
