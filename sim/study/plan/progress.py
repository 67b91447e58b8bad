"""How is the progress of a search worded? In one line."""

from __future__ import annotations

from sim.study.plan.search import Tally
from sim.units import pluralized, show


def progress_text(tally: Tally) -> str:
    """Return the progress of a search in one line."""
    if tally.best is None and tally.bounded:
        return f"{pluralized(tally.bounded, 'layout')} of {tally.candidates:,} bounded, none simulated so far"
    if tally.best is None:
        return f"{tally.infeasible:,} of {tally.candidates:,} layouts do not fit, and none fits so far"
    if tally.remaining_work is None:
        return f"first layout simulated, {show(tally.best.step_time, 'time')} per step; computing bounds of {tally.candidates:,} layouts"
    done, runs_left = len(tally.outcomes), round(tally.remaining_work.simulations)
    time_left = f", about {show(tally.remaining_work.seconds, 'time', 2)} left" if tally.remaining_work.seconds >= 1 else ""
    return (
        f"{pluralized(done, 'layout')} simulated, about {runs_left:,} more, best {show(tally.best.step_time, 'time')} per step{time_left}"
    )
