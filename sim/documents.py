"""What is the document, the flat row, or the page of a scenario? The one path from what a user names to the figures that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.report.document import run_document, run_figures
from sim.report.expected_error import expected_error
from sim.report.goodput import goodput_of
from sim.report.layout import layout_document
from sim.report.recommendation import layout_note, recommendation_document
from sim.report.rows import run_row
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.compare import compare, machines
from sim.study.descriptions import Descriptions, descriptions
from sim.study.layout import layout_answer
from sim.study.one_batch import usual_global_batch
from sim.study.plan.machines import needs_layout, planned_rows, shared_batch
from sim.study.pretraining import parts_of
from sim.study.recommend import MARKETS, Budget, recommend, require_one_budget
from sim.study.saving import slowed_beside
from sim.study.scenario import Answer, Scenario, answer, has_layout, refuse_parts, sorted_overrides, workload_name
from sim.study.weeks import Weeks
from sim.study.whole_job import in_epochs


def document(scenario: Scenario) -> dict[str, Any]:
    """Return the document of the only job of *scenario*. Raise SpecError with all that is wrong, or for a file of several jobs."""
    if has_layout(scenario):
        return layout_document(layout_answer(scenario))
    found = _one_job(scenario)
    return run_document(found.run, found.inputs, found.warnings, market=found.market, plan=found.plan)


def _one_job(scenario: Scenario) -> Answer:
    found = answer(scenario)
    if len(found.run.jobs) > 1:
        raise SpecError(f"{scenario.workload}: lists {len(found.run.jobs)} jobs; expected one workload")
    return found


def weeks_document(
    scenario: Scenario, weeks: Weeks, changes: bool = True, progress: Callable[[int, int], None] = lambda done, of: None
) -> dict[str, Any]:
    """Return the document of *weeks* of *scenario*; *changes*: with what other set-ups would do. Raise SpecError.

    *progress* hears how many parts of all are drawn.
    """
    if has_layout(scenario):
        laid_out = layout_answer(scenario)
        run = laid_out.run
        if weeks.tokens is not None:
            parts = parts_of(scenario, run, weeks.tokens, lambda other: layout_answer(other).run)
            laid_out = replace(laid_out, parts=parts)
        return goodput_of(layout_document(laid_out), run.hardware, run.workload, weeks, changes, progress, slowed_beside(run))
    found = _one_job(scenario)
    described = run_document(found.run, found.inputs, found.warnings, market=found.market)
    machine, workload = found.run.hardware, found.run.jobs[0].job.workload
    if weeks.tokens is not None:
        refuse_parts([workload])
    return goodput_of(described, machine, workload, weeks, changes, progress, slowed_beside(found.run))


@dataclass(frozen=True)
class Renting:
    """What to rent among, for how much; the scenario that goes with it names no hardware and has a plan."""

    budget: Budget
    hardware: Sequence[str] = ()
    """Machines to compare; all of the catalogue by default."""
    where: Sequence[str] = ()
    nodes: Sequence[int] = (1, 2, 3, 4)
    on_demand: bool = False
    """Leave spot prices out."""
    mean_lifetime: str | None = None
    """What a spot machine lasts on average, such as ``8 h``, where nobody measured it."""
    with_failures: bool = False
    processes: int | None = None


def recommended(
    scenario: Scenario, renting: Renting, counting: Callable[[str], Callable[[int, int], None] | None] = lambda what: None
) -> tuple[dict[str, Any], list[str]]:
    """Return the document of what to rent for *scenario*, and the machines that can run it. Raise SpecError.

    *counting* is told what is counted and returns who hears how many of those are done.
    """
    plan, counts = scenario.plan, list(renting.nodes)
    if plan is None:
        raise SpecError("the length of the job is missing; write epochs, hours or tokens")
    require_one_budget(plan, renting.budget)
    names = machines(list(renting.hardware), [*renting.where, "nodes=1"] if not renting.hardware else renting.where)
    bare = replace(scenario, plan=None)
    together = None if scenario.batch is not None else scenario.global_batch or usual_global_batch(bare)
    alone = replace(bare, global_batch=None)
    in_epochs(plan, together or 1, load_workload(bare.workload, sorted_overrides(bare)[1]).spec)  # before anything is simulated
    rows = compare(alone, names, document, nodes=counts, global_batch=together, processes=renting.processes, progress=counting("machines"))
    laid = needs_layout(alone, rows)
    if laid:
        together = shared_batch(scenario, names, counts)  # that of `plan`
        rows = planned_rows(replace(alone, global_batch=together), names, counts, layout_document, counting("machines planned"))
    markets = MARKETS[:1] if renting.on_demand else MARKETS
    chosen = recommend(alone, rows, plan, renting.budget, markets, renting.mean_lifetime, renting.with_failures, together)
    found = recommendation_document(workload_name(bare), chosen, list(renting.hardware))
    if laid and together is not None:
        found["notes"].append(layout_note(together))
    return found, [each.hardware for each in rows if each.document]


def row(scenario: Scenario) -> dict[str, Any]:
    """Return the flat row of the only job of *scenario*, units in its keys."""
    if has_layout(scenario):
        return run_row(layout_document(layout_answer(scenario)))
    run = _one_job(scenario).run
    return run_row({**run_figures(run), "expected_error": expected_error(run, 0)})


def reading(
    page: Callable[[Mapping[str, Any], Descriptions | None], str], scenario: Scenario, machines: Sequence[str] = ()
) -> Callable[[Mapping[str, Any]], str]:
    """Return *page* with the inputs of *scenario*, on *machines* if there are any; they are read when the page is made."""
    return lambda document: page(document, descriptions(scenario, machines))
