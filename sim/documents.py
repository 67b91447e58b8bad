"""What is the document, or the flat row, of a scenario? The one path from what a user names to the figures that programs read."""

from __future__ import annotations

from typing import Any

from sim.report.document import run_document, run_figures
from sim.report.rows import run_row
from sim.spec.yaml import SpecError
from sim.study.scenario import Answer, Scenario, answer


def document(scenario: Scenario) -> dict[str, Any]:
    """Return the document of the only job of *scenario*. Raise SpecError with all that is wrong, or for a file of several jobs."""
    found = _one_job(scenario)
    return run_document(found.run, found.inputs, found.warnings, market=found.market, plan=found.plan)


def _one_job(scenario: Scenario) -> Answer:
    found = answer(scenario)
    if len(found.run.jobs) > 1:
        raise SpecError(f"{scenario.workload}: lists {len(found.run.jobs)} jobs; one workload is due here")
    return found


def row(scenario: Scenario) -> dict[str, Any]:
    """Return the flat row of the only job of *scenario*, units in its keys."""
    return run_row(run_figures(_one_job(scenario).run))
