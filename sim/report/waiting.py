"""What does a reader of a long job need to know about its waiting for spares? How long repairs take, and that few runs wait."""

from __future__ import annotations

import math

import numpy as np

from sim.analysis.long_run import Courses
from sim.study.goodput import DAY, Goodput
from sim.units import show

_DECISIVE = 0.01
"""Share of the time from which waiting for spares is explained, if nothing loses more."""


def waiting_notes(answer: Goodput, courses: Courses) -> list[str]:
    """Return how long repairs take if *courses*, which all finish, lose most to waiting for spares, and how they differ in that."""
    waits, elapsed = courses.lost["spare_wait"], courses.elapsed.sum()
    lost = {name: float(seconds.sum()) for name, seconds in courses.lost.items()}
    shares, times = zip(*answer.run.repair, strict=True)
    if max(lost, key=lost.__getitem__) != "spare_wait" or lost["spare_wait"] < _DECISIVE * elapsed or times[0] == times[-1]:
        return []
    half, most, all_of_them = (_days(float(np.interp(share, shares, times))) for share in (0.5, 0.9, 1.0))
    longest = np.sort(waits)[-math.ceil(waits.size / 10) :].sum() / waits.sum()
    return [
        f"waiting for spares loses most: half of the repairs of failed nodes take up to {half}, 90% up to {most}, and the longest "
        f"{all_of_them}; {100 * longest:.0f}% of the waiting is in the tenth of the runs that wait longest, so the mean can "
        "lie outside the intervals (--spares adds nodes)"
    ]


def _days(seconds: float) -> str:
    return f"{seconds / DAY:.3g} d" if seconds >= DAY else show(seconds, "time", 3)
