"""How is a whole plan measured? Point by point; each result is stored at once, and points that are already stored are skipped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from calibration.lab.measure import MeasuredPoint, environment_facts, measure, overcommit_warning, require_torch
from calibration.lab.network import remove_orphans, require_laboratory
from calibration.lab.plan import LabPlan, LabPoint, plan_points
from calibration.lab.records import RecordLine, is_measured, raw_file, read_lines, record_line, store_line
from calibration.measure.processor_use import ProcessorUse
from sim.spec.yaml import SpecError
from sim.units import pluralized, show

Notify = Callable[[str], None]


def run_plan(plan: LabPlan, rows: Path, notify: Notify, limit: float | None = None) -> list[RecordLine]:
    """Measure the points of *plan* that are not yet in *rows*, and return all; after *limit* seconds, no further point is started.

    *notify* gets a message about every point. Raise SpecError if this machine cannot build networks, torch is missing, or files conflict.
    """
    require_torch()
    require_laboratory()
    remove_orphans()
    if not rows.parent.is_dir():
        raise SpecError(f"{rows}: the folder '{rows.parent}' does not exist")
    wanted = plan_points(plan)
    lines = read_lines(raw_file(rows))
    if rows.exists() and not raw_file(rows).exists():
        raise SpecError(f"{rows}: already exists, but its {raw_file(rows).name} does not; name another file with -o")
    for text in dict.fromkeys(filter(None, (overcommit_warning(plan, point.hosts) for point in wanted))):
        notify(f"note: {text}")
    todo = [point for point in wanted if not is_measured(lines, plan, point)]
    notify(f"{pluralized(len(wanted), 'point')}, {len(wanted) - len(todo)} of them already measured")
    end = time.monotonic() + limit if limit else None
    here = environment_facts()
    for number, point in enumerate(todo, 1):
        if end is not None and time.monotonic() > end:
            notify(f"time limit reached with {pluralized(len(todo) - number + 1, 'point')} left; repeat the command to continue")
            break
        before = ProcessorUse.now()
        outcome = _outcome(plan, point)
        others = ProcessorUse.now().others_since(before)
        lines = store_line(rows, plan, lines, record_line(plan, point, wanted[point], here, outcome, others))
        notify(f"{number}/{len(todo)}  {point.text}: {_outcome_text(outcome)}")
    return lines


def _outcome(plan: LabPlan, point: LabPoint) -> MeasuredPoint | SpecError:
    try:
        return measure(plan, point)
    except SpecError as error:
        return error


def _outcome_text(outcome: MeasuredPoint | SpecError) -> str:
    if isinstance(outcome, SpecError):
        return f"failed: {outcome}"
    text = f"{show(outcome.step_time, 'time')} per step"
    if outcome.socket_rates:
        there, back = 8e-6 * outcome.socket_rates.forward, 8e-6 * outcome.socket_rates.backward
        text += f"; a plain socket got {there:.0f} and {back:.0f} Mbps, round trip {show(outcome.socket_rates.round_trip, 'time')}"
    return text
