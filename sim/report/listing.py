"""How does the catalogue look? Aligned columns of hardware and workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.spec.listing import HARDWARE, WORKLOADS, Column, Row, exported, hardware_rows, select, workload_rows
from sim.spec.yaml import SpecError

_KINDS = {"hardware": (hardware_rows, HARDWARE), "workloads": (workload_rows, WORKLOADS)}


def listing(kind: str, where: Sequence[str]) -> tuple[str, dict[str, list[Row]], list[str]]:
    """Return the catalogue of *kind* ("" for both) as text and as rows, where all conditions hold, and what is wrong with it."""
    if kind and kind not in _KINDS:
        raise SpecError(f"list {kind}: write hardware or workloads")
    if where and not kind:
        kind = "hardware"
    texts: list[str] = []
    found: dict[str, list[Row]] = {}
    problems: list[str] = []
    for name in [kind] if kind else list(_KINDS):
        read, columns = _KINDS[name]
        rows, wrong = read()
        rows = select(rows, where, columns)
        problems += wrong
        texts.append(columns_text(rows, columns))
        found[name] = [exported(row, columns) for row in rows]
    return "\n\n".join(texts), found, problems


def columns_text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return *rows* in aligned columns, numbers to the right."""
    cells: list[list[str]] = [
        [column.title for column in columns],
        *([column.shown(row[column.name]) for column in columns] for row in rows),
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "\n".join(_line(line, widths, columns) for line in cells)


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Any]) -> str:
    aligned = (
        cell.rjust(width) if column.dimension else cell.ljust(width) for cell, width, column in zip(cells, widths, columns, strict=True)
    )
    return "  ".join(aligned).rstrip()
