"""What is the document, the flat row, or the page of a scenario? The one path from what a user names to the figures that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.report.document import run_document, run_figures
from sim.report.goodput import goodput_of
from sim.report.layout import layout_document
from sim.report.rows import run_row
from sim.spec.yaml import SpecError
from sim.study.descriptions import Descriptions, descriptions
from sim.study.layout import has_layout, layout_answer
from sim.study.scenario import Answer, Scenario, answer
from sim.study.weeks import Weeks


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

    *progress* hears how many of those are done.
    """
    if has_layout(scenario):
        laid_out = layout_answer(scenario)
        return goodput_of(layout_document(laid_out), laid_out.run.hardware, laid_out.run.workload, weeks, changes, progress)
    found = _one_job(scenario)
    described = run_document(found.run, found.inputs, found.warnings, market=found.market)
    return goodput_of(described, found.run.hardware, found.run.jobs[0].job.workload, weeks, changes, progress)


def row(scenario: Scenario) -> dict[str, Any]:
    """Return the flat row of the only job of *scenario*, units in its keys."""
    if has_layout(scenario):
        return run_row(layout_document(layout_answer(scenario)))
    return run_row(run_figures(_one_job(scenario).run))


def reading(
    page: Callable[[Mapping[str, Any], Descriptions | None], str], scenario: Scenario, machines: Sequence[str] = ()
) -> Callable[[Mapping[str, Any]], str]:
    """Return *page* with the inputs of *scenario*, on *machines* if there are any; they are read when the page is made."""
    return lambda document: page(document, descriptions(scenario, machines))
