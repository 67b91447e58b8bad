"""What is the document, the flat row, or the page of a scenario? The one path from the user's input to the reported figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from sim.analysis.cost import Market, price
from sim.analysis.transient import lifetimes_of
from sim.analysis.whole_job import JobPlan
from sim.mesh import LayoutRun
from sim.report.basis import machine_label, merged_by_machine
from sim.report.comparison import width_note
from sim.report.document import run_document, run_figures
from sim.report.expected_error import expected_error
from sim.report.extras import require_failures
from sim.report.goodput import goodput_of, goodput_of_run
from sim.report.layouts.layout import layout_document
from sim.report.limited import under_power_cap
from sim.report.recommendation import batch_note, candidate_words, gap_note, recommendation_document
from sim.report.rows import run_row
from sim.simulate import Run
from sim.spec.elsewhere import read_files
from sim.spec.library import load_hardware, load_workload
from sim.spec.memo import caching_inside
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.arguments import mean_lifetime_of, require_power_cap
from sim.study.compare import ComparedMachine, compare, machines, require_priced
from sim.study.computing import Computing, question_of
from sim.study.descriptions import Descriptions, descriptions
from sim.study.excluded import Contest, Exclusion
from sim.study.jobs_file import jobs_file
from sim.study.journal import Journal
from sim.study.layout import LayoutAnswer, layout_answer
from sim.study.least_epoch import LeastRun
from sim.study.not_validated import not_validated
from sim.study.one_batch import own_batch_option, usual_global_batch
from sim.study.options import Weeks
from sim.study.plan.machines import (
    MachinePlanning,
    needs_layout,
    planned_rows,
    require_readable_workload,
    rows_to_plan,
    shared_batch,
    with_planned_layouts,
)
from sim.study.pool import Progress
from sim.study.power_cap import slower_runs
from sim.study.pretraining import parts_of
from sim.study.recommend import MARKETS, Budget, Candidate, recommend, require_one_budget, unrentable
from sim.study.saving import slowdown_by_store
from sim.study.scenario import Answer, Scenario, answer, has_layout, refuse_parts, sorted_overrides, workload_name
from sim.study.weeks import reliability_of
from sim.study.whole_job import in_epochs


def document(scenario: Scenario) -> dict[str, Any]:
    """Return the document of the only job of *scenario*. Raise SpecError listing all problems, or for a file with several jobs."""
    if has_layout(scenario):
        return layout_document(layout_answer(scenario))
    answered = _one_job(scenario)
    return run_document(answered.run, answered.inputs, answered.warnings, market=answered.market, plan=answered.plan)


def _one_job(scenario: Scenario, keep_log: bool = True) -> Answer:
    answered = answer(scenario, keep_log=keep_log)
    if len(answered.run.jobs) > 1:
        raise SpecError(f"{scenario.workload}: lists {len(answered.run.jobs)} jobs; expected one workload")
    return answered


def weeks_document(scenario: Scenario, weeks: Weeks, changes: bool = True, progress: Progress = lambda done, of: None) -> dict[str, Any]:
    """Return the document of *weeks* of *scenario*; with *changes* it also has the effect of other settings. Raise SpecError.

    *progress* is called with the number of parts that are done and their total.
    """
    if has_layout(scenario):
        laid_out = layout_answer(scenario)
        run = laid_out.run
        if weeks.tokens is not None:
            parts = parts_of(scenario, run, weeks.tokens, lambda other: layout_answer(other).run)
            laid_out = replace(laid_out, parts=parts)
        result = goodput_of(layout_document(laid_out), run.hardware, run.workload, weeks, changes, progress, slowdown_by_store(run))
        return result | {"notes": [*result["notes"], *not_validated(run)]}
    answered = _one_job(scenario)
    described = run_document(answered.run, answered.inputs, answered.warnings, market=answered.market)
    machine, workload = answered.run.hardware, answered.run.jobs[0].job.workload
    if weeks.tokens is not None:
        refuse_parts([workload])
    slowed, slower = slowdown_by_store(answered.run), slower_runs(answered.run)
    return goodput_of(described, machine, workload, weeks, changes, progress, slowed, slower)


@dataclass(frozen=True)
class Documents:
    """Makes documents with more content than `document`: figures under a *power_cap*, and weeks with failures.

    The key ``weeks`` holds the outcome of the job of *plan* with failures, for each of the *markets* that has a price. Spot machines last
    *mean_lifetime* on average, or as long as measured; if neither is available, they have no weeks.
    """

    plan: JobPlan | None = None
    markets: Sequence[Market] = ()
    mean_lifetime: str | None = None
    power_cap: str | None = None
    spares: int | None = None
    reliability: str | None = None

    def __call__(self, scenario: Scenario) -> dict[str, Any]:
        """Return the document of the only job of *scenario*. Raise SpecError as `document` does."""
        if has_layout(scenario):
            return self.layout_document(layout_answer(scenario))
        answered = _one_job(scenario)
        described = run_document(answered.run, answered.inputs, answered.warnings, market=answered.market, plan=answered.plan)
        return self._added(described, answered.run, answered.run.jobs[0].job.workload, answered.plan)

    def layout_document(self, answer: LayoutAnswer) -> dict[str, Any]:
        """Return the document of *answer*."""
        return self._added(layout_document(answer), answer.run, answer.run.workload, answer.plan)

    def _added(self, described: dict[str, Any], run: Run | LayoutRun, workload: Workload, job: JobPlan | None) -> dict[str, Any]:
        has_lifetime = self.mean_lifetime is not None or lifetimes_of(run.hardware.first_workers.node.gpu) is not None
        weeks: dict[str, Any] = {}
        uncapped, slower = described, slower_runs(run)
        if self.power_cap is not None:
            described = under_power_cap(described, run.hardware, workload, self.power_cap, job, slower)
        if self.plan is None or not self.markets:
            return described
        for market in self.markets:
            if price(run.hardware, market) is None or (market == "spot" and not has_lifetime):
                continue
            base = uncapped | {"price": uncapped["price"] | {"market": market}}
            mean_lifetime = self.mean_lifetime if market == "spot" else None
            weeks[market] = goodput_of_run(
                base, run.hardware, workload, self.plan, slowdown_by_store(run), power_cap=self.power_cap, mean_lifetime=mean_lifetime,
                spares=self.spares, reliability=self.reliability, slower=slower,
            )  # fmt: skip
        return described | {"weeks": weeks}


@dataclass(frozen=True)
class RentalOptions:
    """Which machines may be rented, and for how much; the accompanying scenario names no hardware and has a plan."""

    budget: Budget
    hardware: Sequence[str] = ()
    """Machines to compare; all single machines of the catalog by default."""
    where: Sequence[str] = ()
    nodes: Sequence[int] = (1, 2, 3, 4)
    on_demand: bool = False
    """Leave spot prices out."""
    mean_lifetime: str | None = None
    """Mean lifetime of a spot machine, such as ``8 h``, if unmeasured."""
    with_failures: bool = False
    power_cap: str | None = None
    """Power limit of each GPU, such as ``500 W``, which applies to the figures of all candidates."""
    processes: int | None = None
    journal: Path | None = None
    """File that stores the rows of machines, so that an interrupted recommendation continues from there."""
    cluster: str | None = None
    """Address of a dask scheduler whose workers compute, in place of processes."""
    notice: Callable[[str], None] = lambda text: None
    """Called with a message when the cluster has a problem."""
    searching: Callable[[str], None] | None = None
    """Called with the progress of the search of a machine's layouts, if it runs in this process."""
    spares: int | None = None
    """Spare nodes, which are paid for; by default as in `Weeks`."""
    reliability: str | None = None
    """How often machines fail: a level or a file; the middle level by default."""


def recommendation(
    scenario: Scenario, renting: RentalOptions, counter: Callable[[str], Progress | None] = lambda what: None
) -> tuple[dict[str, Any], list[str]]:
    """Return the document of what to rent for *scenario*, and the machines that can run it. Raise SpecError.

    *counter* is called with the name of what is counted, and returns a callback for the number of items done and their total.
    """
    plan, counts = scenario.plan, list(renting.nodes)
    require_failures(renting.with_failures, renting.reliability, renting.spares)
    require_power_cap(renting.power_cap)
    if plan is None:
        raise SpecError("the length of the job is missing; write --epochs, --hours or --tokens")
    require_one_budget(plan, renting.budget)
    only_machines = [] if renting.hardware else ["nodes=1"]  # whatever the conditions: the number of nodes is recommended
    names = machines(list(renting.hardware), [*renting.where, *only_machines])
    require_priced(scenario.prices, names)
    bare = replace(scenario, plan=None)
    if (own := own_batch_option(scenario)) and scenario.global_batch is not None:
        raise SpecError(f"{own} and --global-batch: write one of the two")
    global_batch = None if own else scenario.global_batch or usual_global_batch(bare, max(counts, default=1))
    without_batch = replace(bare, global_batch=None)
    in_epochs(plan, global_batch or 1, load_workload(bare.workload, sorted_overrides(bare)[1]).spec)  # before anything is simulated
    markets = MARKETS[:1] if renting.on_demand else MARKETS
    make_document = Documents(power_cap=renting.power_cap)
    if renting.with_failures:
        make_document = Documents(plan, markets, renting.mean_lifetime, renting.power_cap, renting.spares, renting.reliability)
    left = _rows_left(scenario, names, global_batch, markets, make_document, renting, counter)
    rows, global_batch, failing = left.rows, left.global_batch, renting.with_failures
    limited, tried = replace(without_batch, power_cap=renting.power_cap), [] if left.contest is None else counts
    chosen = recommend(limited, rows, plan, renting.budget, markets, renting.mean_lifetime, failing, global_batch, tried)
    tries = len(names) * len(counts or (1,)), len({(row.hardware, row.nodes) for row in rows if row.document is not None})
    document = recommendation_document(workload_name(bare), chosen, list(renting.hardware), left.bounds, tries)
    gaps = [each.document["layout_gap"] for each in rows if each.document and "layout_gap" in each.document]
    document["notes"] += [batch_note(global_batch, scenario.batch)] if gaps and left.needs_plan and global_batch is not None else []
    document["notes"] += [gap_note(gaps)] if gaps else []
    document["notes"] += filter(None, [width_note([each.document for each in rows if each.document])])
    document["notes"] += merged_by_machine(
        {machine_label(ran): (ran["expected_error"] or {}).get("not_validated", ()) for each in rows if (ran := each.document) is not None}
    )
    return document, [each.hardware for each in rows if each.document]


class _RowsLeft(NamedTuple):
    """The rows that no bound excludes, at a global batch, and the bounds of those that are excluded."""

    rows: list[ComparedMachine]
    global_batch: int | None
    needs_plan: bool
    """Whether the job runs on no machine as it is."""
    contest: Contest | None
    """None if nothing may be excluded."""
    bounds: list[Candidate]


def _rows_left(
    scenario: Scenario, names: Sequence[str], global_batch: int | None, markets: Sequence[Market], make_document: Documents,
    renting: RentalOptions, counter: Callable[[str], Progress | None],
) -> _RowsLeft:  # fmt: skip
    """Return the rows of *names* for the job of *scenario*, as it is or planned; the arguments are those of `recommendation`."""
    without_batch, counts = replace(scenario, plan=None, global_batch=None), list(renting.nodes)
    reasons = {name: unrentable(without_batch, name, markets, renting.mean_lifetime) for name in names}
    excluded = [name for name in names if reasons[name]]  # planning for these would be useless
    rentable, of_layout = [name for name in names if not reasons[name]], make_document.layout_document
    with _computing(without_batch, names, make_document, renting) as by, caching_inside():
        contest = _contest(replace(scenario, global_batch=global_batch), markets, renting)
        as_it_is = None if contest is None else Exclusion(contest, work=LeastRun(contest.scenario))
        notice = _without_repeats(renting.notice)
        hears = _with_best(counter("machines"), as_it_is, notice)
        compared = partial(
            compare, without_batch, documents=make_document, nodes=counts, global_batch=global_batch, computing=by, progress=hears
        )
        rows = compared(names if as_it_is is None else rentable, exclusion=as_it_is)
        unpriced = [ComparedMachine(name, None, None, reasons[name]) for name in excluded]
        if as_it_is is not None:
            rows += unpriced if any(row.document for row in rows) else compared(excluded)
        simulated = {(row.hardware, row.nodes) for row in rows}
        needs_plan, hears, exclusion = needs_layout(without_batch, rows), counter("machines planned"), None
        if needs_plan:
            global_batch = shared_batch(scenario, names, counts)  # the same as in `plan`
            contest = _contest(replace(scenario, global_batch=global_batch), markets, renting)
        with_batch = replace(without_batch, global_batch=global_batch)
        if contest is not None and (needs_plan or rows_to_plan(with_batch, rows, excluded)):
            exclusion = Exclusion(contest, () if needs_plan else rows)
        hears = _with_best(hears, exclusion, notice)
        planning = MachinePlanning(of_layout, renting.power_cap, by, exclusion, hears, renting.searching)
        if needs_plan:
            rows = planned_rows(with_batch, rentable, counts, planning) + unpriced
        else:
            rows = with_planned_layouts(with_batch, rows, planning, excluded)
    left = {(row.hardware, row.nodes) for row in rows} | {(name, count) for name in excluded for count in counts}
    rules = [(exclusion if point in simulated else as_it_is, point) for point in product(names, counts) if point not in left]
    bounds = [least for rule, point in rules if rule is not None for least in rule.least(point)]
    return _RowsLeft(rows, global_batch, needs_plan, contest, bounds)


def _with_best(hears: Progress | None, exclusion: Exclusion | None, notice: Callable[[str], None]) -> Progress | None:
    """Return *hears*, which also gives *notice* of the best candidate so far."""
    if exclusion is None:
        return hears

    def hears_best(done: int, of: int) -> None:
        if (best := exclusion.best) is not None:
            notice(f"best so far: {candidate_words(best)}")
        if hears is not None:
            hears(done, of)

    return hears_best


def _without_repeats(notice: Callable[[str], None]) -> Callable[[str], None]:
    """Return *notice*, which is not given the same text twice in a row."""
    last = ""

    def once(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            notice(text)

    return once


def _contest(scenario: Scenario, markets: Sequence[Market], renting: RentalOptions) -> Contest | None:
    """Return the terms by which machines are left out; None if none are: named ones, and where nothing bounds them."""
    plan, scenario = scenario.plan, replace(scenario, plan=None)
    if plan is None or renting.hardware or scenario.global_batch is None or not renting.nodes:
        return None
    if load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.pretraining is not None:
        return None
    mean = None if renting.mean_lifetime is None else mean_lifetime_of(renting.mean_lifetime)
    return Contest(scenario, plan, renting.budget, markets, mean, renting.with_failures)


@contextmanager
def _computing(scenario: Scenario, names: Sequence[str], make_document: Documents, renting: RentalOptions) -> Iterator[Computing]:
    """Yield how to compute the rows of *names* for *renting*, with its journal open. Raise SpecError if the journal cannot be opened."""
    if renting.journal is None and renting.cluster is None:
        yield Computing(renting.processes)
        return
    for_hardware, _ = sorted_overrides(scenario)
    with read_files() as read:
        require_readable_workload(scenario)
        for name in names:
            with suppress(SpecError):  # its row reports the error
                load_hardware(name, for_hardware)
        if renting.reliability is not None:
            reliability_of(renting.reliability)
    with Journal(renting.journal) as journal:
        yield Computing(renting.processes, renting.cluster, journal, question_of(asdict(make_document), read), read, renting.notice)


def require_tokens(scenario: Scenario) -> None:
    """Raise SpecError if the plan of *scenario* is in tokens, which its model does not have on any machine."""
    if scenario.plan is not None and jobs_file(scenario.workload) is None:
        in_epochs(scenario.plan, 1, load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec)


def comparison_rows(
    scenario: Scenario,
    names: Sequence[str],
    nodes: Sequence[int] = (),
    processes: int | None = None,
    counter: Callable[[str], Progress | None] = lambda what: None,
    power_cap: str | None = None,
) -> list[ComparedMachine]:
    """Return a row for each machine of *names* and each number of *nodes*; a decoder gets a layout on machines where it needs one.

    A *power_cap* limits the GPUs, and applies to all figures.
    """
    require_priced(scenario.prices, names)
    require_power_cap(power_cap)
    require_tokens(scenario)
    make_document = Documents(power_cap=power_cap)
    by = Computing(processes)
    rows = compare(scenario, names, make_document, nodes=nodes, computing=by, progress=counter("machines"))
    planning = MachinePlanning(make_document.layout_document, power_cap, by, progress=counter("machines planned"))
    return with_planned_layouts(scenario, rows, planning)


def row(scenario: Scenario) -> dict[str, Any]:
    """Return the flat row of the only job of *scenario*, with units in its keys and its power cap applied, if it has one."""
    if has_layout(scenario):
        laid = layout_answer(scenario)
        return run_row(_limited(layout_document(laid), laid.run, laid.run.workload, scenario.power_cap))
    run = _one_job(scenario, keep_log=False).run
    described = {**run_figures(run), "expected_error": expected_error(run, 0)}
    return run_row(_limited(described, run, run.jobs[0].job.workload, scenario.power_cap))


def _limited(described: dict[str, Any], run: Run | LayoutRun, workload: Workload, cap: str | None) -> dict[str, Any]:
    return described if cap is None else under_power_cap(described, run.hardware, workload, cap, slower=slower_runs(run))


def with_inputs(
    page: Callable[[Mapping[str, Any], Descriptions | None], str], scenario: Scenario, machines: Sequence[str] = ()
) -> Callable[[Mapping[str, Any]], str]:
    """Return *page* bound to the inputs of *scenario* (on *machines*, if any); these inputs are read when the page is rendered."""
    return lambda document: page(document, descriptions(scenario, machines))
