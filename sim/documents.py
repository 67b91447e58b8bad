"""What is the document, or the flat row, of a scenario? The one path from what a user names to the figures that programs read."""

from __future__ import annotations

from typing import Any

from sim.report.document import run_document
from sim.report.rows import run_row
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer


def document(scenario: Scenario) -> dict[str, Any]:
    """Return the document of the only job of *scenario*. Raise SpecError with all that is wrong, or for a file of several jobs."""
    found = answer(scenario)
    whole = run_document(found.run, found.inputs, found.warnings)
    if "jobs" in whole:
        raise SpecError(f"{scenario.workload}: lists {len(whole['jobs'])} jobs; one workload is due here")
    return whole


def row(scenario: Scenario) -> dict[str, Any]:
    """Return the flat row of the only job of *scenario*, units in its keys."""
    return run_row(document(scenario))
