"""In which groups of rows are predicted collectives far off?

Rows are grouped by network, operation, size, number of ranks or system. The error of a group is the median over its systems of each
system's median, one vote per system.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from calibration.collectives.fit import band_of
from calibration.collectives.quoted import Coverage, coverage, widening
from calibration.collectives.scores import PredictedCollective, aim_of
from sim.spec.yaml import SpecError

RANKS: Final = (("2 ranks", 2), ("3-8 ranks", 8), ("9-32 ranks", 32), ("> 32 ranks", math.inf))
"""Ranges of the number of ranks, with the largest of each."""
WORST: Final = 10
"""Number of worst groups to list."""
GROUPINGS: Final[Mapping[str, Callable[[PredictedCollective], str]]] = {
    "network": lambda row: row.record.network,
    "op": lambda row: row.record.op,
    "size": lambda row: band_of(row.record.nbytes),
    "ranks": lambda row: next(name for name, most in RANKS if row.record.nodes * row.record.gpus_per_node <= most),
    "system": lambda row: row.record.system,
}
"""What rows can be grouped by."""


def parse_groupings(text: str) -> tuple[str, ...]:
    """Return the names of `GROUPINGS` in *text*, which separates them by commas; none if it is empty. Raise SpecError for other names."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in GROUPINGS:
            raise SpecError(f"--by {text}: '{name}' is unknown; choose from {','.join(GROUPINGS)}")
    return names


class RowGroup(NamedTuple):
    """The errors of one group of rows; *key* has a value for each name that they are grouped by."""

    key: tuple[str, ...]
    points: int
    systems: int
    median: float
    """Median over systems of each one's median absolute error."""
    signed: float
    """The same of signed errors, above zero if predictions are too slow."""
    p90: float
    """90th percentile of the absolute errors of all rows."""
    aim: float | None
    """The aim for the median, if its network and size have one."""

    @property
    def excess(self) -> float:
        """Return the median as a multiple of the aim; without an aim, 0."""
        return self.median / self.aim if self.aim else 0.0


def row_groups(predictions: Sequence[PredictedCollective], by: Sequence[str]) -> list[RowGroup]:
    """Return the groups of *predictions* by each of *by*, names of `GROUPINGS`, in the order of their keys."""
    rows_of: dict[tuple[str, ...], list[PredictedCollective]] = defaultdict(list)
    for row in predictions:
        rows_of[tuple(GROUPINGS[name](row) for name in by)].append(row)
    return [_row_group(key, rows) for key, rows in sorted(rows_of.items())]


def _row_group(key: tuple[str, ...], rows: Sequence[PredictedCollective]) -> RowGroup:
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        errors[row.record.system].append(row.error)
    absolute = [median(map(abs, of_system)) for of_system in errors.values()]
    signed = median(median(of_system) for of_system in errors.values())
    aims = {aim_of(row.record.network, band_of(row.record.nbytes)) for row in rows}
    aim = aims.pop() if len(aims) == 1 else None
    return RowGroup(key, len(rows), len(errors), median(absolute), signed, float(np.quantile([abs(row.error) for row in rows], 0.9)), aim)


# --- text and document -----------------------------------------------------------------------------------------------


def groups_document(predictions: Sequence[PredictedCollective], by: Sequence[str]) -> dict[str, Any]:
    """Return the groups and the coverage of *predictions* as JSON values."""
    groups = [
        {
            **dict(zip(by, group.key, strict=True)),
            **{name: getattr(group, name) for name in ("points", "systems", "median", "signed", "p90", "aim")},
        }
        for group in row_groups(predictions, by)
    ]
    return {"groups": groups, "coverage": [each._asdict() for each in coverage(predictions, widening(predictions))]}


def groups_text(predictions: Sequence[PredictedCollective], by: Sequence[str]) -> str:
    """Return the groups of *predictions*, those that miss their aims by the largest factor, and the coverage as text."""
    groups = row_groups(predictions, by)
    widths = [max(len(text) for text in (name, *(group.key[place] for group in groups))) for place, name in enumerate(by)]
    header = " ".join(f"{name:{width}}" for name, width in zip(by, widths, strict=True))
    header += f" {'rows':>5} {'systems':>7} {'median':>6} {'signed':>6} {'p90':>5} {'aim':>4}"

    def line(group: RowGroup) -> str:
        key = " ".join(f"{text:{width}}" for text, width in zip(group.key, widths, strict=True))
        aim = f"{100 * group.aim:.0f}%" if group.aim else "-"
        shown = f"{100 * group.median:>5.0f}% {100 * group.signed:>+5.0f}% {100 * group.p90:>4.0f}% {aim:>4}"
        return f"{key} {group.points:>5} {group.systems:>7} {shown}"

    missed = sorted((group for group in groups if group.excess > 1), key=lambda group: -group.excess)[:WORST]
    lines = ["errors of systems left out of every fit, one vote per system", header, *map(line, groups)]
    if missed:
        lines += ["", "farthest above their aims", header, *map(line, missed)]
    factor = widening(predictions)
    lines += ["", f"rows of a new system within the 90th percentile that is quoted, {factor:.2f} times that of other systems"]
    lines += [f"{'over':28} {'systems':>7} {'rows':>5} {'within':>6}", *map(_covered, coverage(predictions, factor))]
    return "\n".join(lines)


def _covered(each: Coverage) -> str:
    within = "-" if each.within is None else f"{100 * each.within:.0f}%"
    return f"{each.carrier:28} {each.systems:>7} {each.quoted:>5} {within:>6}"
