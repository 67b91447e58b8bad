"""What does a table of predictions contain, and how large are the errors?"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from calibration.blind.predictions import BlindPrediction
from calibration.blind.questions import UNITS, BlindQuestion
from sim.spec.strict import csv_lines, csv_number, csv_rows
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError

COLUMNS: Final = ("kind", "name", "precision", "batch", "unit", "predicted", "low", "high", "measured", "note")


def prediction_row(question: BlindQuestion, prediction: BlindPrediction | None) -> dict[str, Any]:
    """Return the row of *question*, which is not measured yet, with its *prediction*."""
    cells: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    cells |= {"kind": question.kind, "name": question.name, "precision": question.precision, "batch": question.batch}
    cells["unit"] = UNITS.get(question.kind, "s")
    if prediction is None:
        return cells | {"note": "not predicted"}
    numbers = {"predicted": prediction.value, "low": prediction.low, "high": prediction.high}
    return cells | {name: f"{value:.5g}" for name, value in numbers.items() if value is not None}


def question_key(question: BlindQuestion) -> tuple[str, ...]:
    """Return the key of *question*, which identifies its row in a table."""
    return question.kind, question.name, question.precision, str(question.batch)


def row_key(row: dict[str, str]) -> tuple[str, ...]:
    """Return the key of *row*, equal to the `question_key` of its question."""
    return row["kind"], row["name"], row["precision"], row["batch"]


def write_table(path: Path, rows: Sequence[dict[str, Any]], heading: str) -> None:
    """Write *rows* as CSV below the comment line *heading*, atomically."""
    text = io.StringIO()
    text.write(f"# {heading}\n")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table that `predict` wrote. Raise SpecError if *path* is no such table."""
    rows = csv_rows(csv_lines(path), str(path))
    _, header = next(rows, (1, []))
    if tuple(header) != COLUMNS:
        raise SpecError(f"{path}: the columns are not {', '.join(COLUMNS)}; pass a table written by 'python -m calibration blind'")
    return [_checked(dict(zip(COLUMNS, cells, strict=False)), len(cells), f"{path}:{line}") for line, cells in rows]


def _checked(row: dict[str, str], cells: int, where: str) -> dict[str, str]:
    """Return *row*. Raise SpecError if it does not have one cell for each column, or a number is not one."""
    if cells != len(COLUMNS):
        raise SpecError(f"{where}: {cells} cells, but the table has {len(COLUMNS)} columns")
    if bool(row["low"]) != bool(row["high"]):
        raise SpecError(f"{where}: has only one of low and high; write both or neither")
    for name in ("predicted", "low", "high", "measured"):
        if row[name]:
            csv_number(row[name], f"{where}: {name}", "a number above 0", lambda value: value > 0)
    return row


class BlindScore(NamedTuple):
    """Errors (predicted / measured - 1) of the predictions of one kind and precision."""

    kind: str
    precision: str
    rows: int
    signed: float
    median: float
    p90: float
    inside: float | None
    """Share of the measured values inside their 95% interval; None without intervals."""


def score_rows(rows: Sequence[dict[str, str]]) -> list[BlindScore]:
    """Return the errors of the *rows* that were predicted and measured, by kind and precision."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        if row["predicted"] and row["measured"]:
            groups.setdefault((row["kind"], row["precision"]), []).append(row)
    results = []
    for (kind, precision), group in groups.items():
        errors = np.array([float(row["predicted"]) / float(row["measured"]) - 1 for row in group])
        bounded = [float(row["low"]) <= float(row["measured"]) <= float(row["high"]) for row in group if row["low"]]
        sizes = np.abs(errors)
        figures = (float(np.median(errors)), float(np.median(sizes)), float(np.percentile(sizes, 90)))
        results.append(BlindScore(kind, precision, len(group), *figures, sum(bounded) / len(bounded) if bounded else None))
    return results


def scores_text(scores: Sequence[BlindScore]) -> str:
    """Return the errors as a table, or a hint what to do if nothing has been measured yet."""
    if not scores:
        return "nothing in this table has been measured yet: run it with --measure -o FILE.csv on the predicted machine"
    lines = [f"{'':24} {'rows':>5} {'signed':>8} {'median':>8} {'p90':>8}  inside 95%"]
    for one in scores:
        inside = "" if one.inside is None else f"{100 * one.inside:.0f}%"
        figures = f"{100 * one.signed:+7.1f}% {100 * one.median:7.1f}% {100 * one.p90:7.1f}%"
        lines.append(f"{(one.kind + ' ' + one.precision).strip():24} {one.rows:5} {figures}  {inside}".rstrip())
    return "\n".join(lines)
