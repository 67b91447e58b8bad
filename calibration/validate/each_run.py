"""What was measured and predicted of each run, if there are few? A table with a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sim.report.columns import Title, align
from sim.units import show

MOST: Final = 20
"""Most runs that are listed; of more, predictions.csv has each."""


class EachRun(NamedTuple):
    """A scored run: its file and line, what ran, and the step (s) as measured and as predicted, with the 95% interval."""

    where: str
    what: str
    measured: float
    predicted: float
    low: float
    high: float


def each_run_lines(runs: Sequence[EachRun]) -> list[str]:
    """Return a table of *runs* and an empty line; nothing for no run or more than `MOST`."""
    if not 0 < len(runs) <= MOST:
        return []
    titles = [Title("each run", True), Title("", True), Title("measured"), Title("predicted"), Title("error"), Title("95% interval")]
    rows = [
        [
            run.where, run.what, show(run.measured, "time"), show(run.predicted, "time"),
            f"{100 * (run.predicted / run.measured - 1):+.1f}%",
            f"{show(run.low, 'time')} to {show(run.high, 'time')}" + ("" if run.low <= run.measured <= run.high else " (outside)"),
        ]
        for run in runs
    ]  # fmt: skip
    return [*align(titles, rows).splitlines(), ""]
