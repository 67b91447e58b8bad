"""How is a whole plan measured? Point by point; each result is stored at once, and points that are already stored are skipped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from calibration.lab.measure import MeasuredPoint, machine, measure, overcommitted, require_torch
from calibration.lab.network import remove_orphans, require_laboratory
from calibration.lab.plan import LabPlan, LabPoint, points
from calibration.lab.records import RecordLine, is_measured, keep, line_of, raw_file, read_lines
from calibration.measure.processor_use import ProcessorUse
from sim.spec.yaml import SpecError
from sim.units import pluralized, show

Say = Callable[[str], None]


def run_plan(plan: LabPlan, rows: Path, say: Say, limit: float | None = None) -> list[RecordLine]:
    """Measure the points of *plan* that are not yet in *rows*, and return all; after *limit* seconds, no further point is started.

    *say* gets a message about every point. Raise SpecError if this machine cannot build networks, torch is missing, or files conflict.
    """
    require_torch()
    require_laboratory()
    remove_orphans()
    if not rows.parent.is_dir():
        raise SpecError(f"{rows}: the folder '{rows.parent}' does not exist")
    wanted = points(plan)
    lines = read_lines(raw_file(rows))
    if rows.exists() and not raw_file(rows).exists():
        raise SpecError(f"{rows}: already exists, but its {raw_file(rows).name} does not; name another file with -o")
    for text in dict.fromkeys(filter(None, (overcommitted(plan, point.hosts) for point in wanted))):
        say(f"note: {text}")
    todo = [point for point in wanted if not is_measured(lines, plan, point)]
    say(f"{pluralized(len(wanted), 'point')}, {len(wanted) - len(todo)} of them already measured")
    end = time.monotonic() + limit if limit else None
    here = machine()
    for number, point in enumerate(todo, 1):
        if end is not None and time.monotonic() > end:
            say(f"time limit reached with {pluralized(len(todo) - number + 1, 'point')} left; repeat the command to continue")
            break
        before = ProcessorUse.now()
        outcome = _outcome(plan, point)
        others = ProcessorUse.now().others_since(before)
        lines = keep(rows, plan, lines, line_of(plan, point, wanted[point], here, outcome, others))
        say(f"{number}/{len(todo)}  {point.text}: {_outcome_text(outcome)}")
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
    if outcome.carried:
        there, back = 8e-6 * outcome.carried.there, 8e-6 * outcome.carried.back
        text += f"; a plain socket got {there:.0f} and {back:.0f} Mbps, round trip {show(outcome.carried.round_trip, 'time')}"
    return text
