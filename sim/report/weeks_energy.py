"""How much energy do weeks of training use, by what the job does, and with which error? From drawn courses to figures, and to words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.analysis.energy import KWH
from sim.analysis.long_run import Courses
from sim.report.energy import grid_words
from sim.report.power_error import energy_intervals, interval_words
from sim.study.goodput import Goodput


def energy_of_courses(answer: Goodput, courses: Courses) -> NDArray[np.float64] | None:
    """Return the joules of the site in each of *courses*: nodes draw power by what the job does, spares are always idle."""
    elapsed, power = courses.elapsed, answer.power
    working, waiting, idle = power["working"], power["waiting"], power["idle"]
    if working is None or waiting is None or idle is None:
        return None
    busy = courses.work + courses.lost["rework"] + courses.lost["degraded"]
    paused = courses.lost["detection"] + courses.lost["checkpoint"]
    node = busy * working.total + paused * waiting.total + np.maximum(elapsed - busy - paused, 0.0) * idle.total
    nodes = courses.node_seconds / elapsed  # all nodes, unless the job continues without revoked ones
    return np.asarray(answer.pue * (nodes * node + answer.run.spares * idle.total * elapsed))


def energy_with_errors(answer: Goodput, courses: Courses) -> dict[str, Any] | None:
    """Return intervals of energy and CO2 of single *courses* with the errors of predictions; None if these are unknown."""
    joules, error = energy_of_courses(answer, courses), answer.steps.power_error
    if joules is None:
        return None
    return energy_intervals(error, answer.steps.expected_error, answer.grid.figures, joules / KWH, answer.weeks.days is not None)


def energy_error_text(document: Mapping[str, Any]) -> str:
    """Return a sentence on the errors of energy and CO2 of *document*, in which the intervals of the outcomes are those of runs."""
    if document["energy_kwh"] is None:
        return ""
    spread = document["energy"]["with_errors"]
    if spread is None:
        return "Expected error of the energy: unknown, because no similar node or step was measured."
    return f"Energy: {interval_words(spread['errors_of'], *(spread[key]['interval95'] for key in ('energy_kwh', 'co2_kg')))}."


def energy_notes(document: Mapping[str, Any]) -> list[str]:
    """Return which grid and PUE the energy and the CO2 of *document* are for, or why it has none."""
    grid = document["energy"]["grid"]
    if document["energy_kwh"] is None:
        return ["no power data for this GPU, so energy is not shown"]
    why = ", because the region is unknown (goodput --region)" if grid["assumed"] else ""
    return [
        f"CO2 at {grid_words(grid)}{why}; PUE {document['energy']['pue']:g}{'; spares idle and are paid for' if document['spares'] else ''}"
    ]
