"""How is the catalog listed? In aligned columns of hardware, workloads and parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sim.spec.catalog import suggestions
from sim.spec.listing import HARDWARE, WORKLOADS, Column, Row, export_row, hardware_rows, select, without_match, workload_rows
from sim.spec.parts_listing import PARTS
from sim.spec.yaml import SpecError

_ListedRows = Callable[[], tuple[list[Row], list[str]]]
_WHOLE: dict[str, tuple[_ListedRows, tuple[Column, ...]]] = {"hardware": (hardware_rows, HARDWARE), "workloads": (workload_rows, WORKLOADS)}
_KINDS = _WHOLE | {name: (parts.rows, parts.columns) for name, parts in PARTS.items()}
KINDS = tuple(_KINDS)
"""The kinds that can be listed."""


class Listing(NamedTuple):
    """A list as text and as rows by kind; the files that are broken; the reason why no row is left, if none is."""

    text: str
    rows: dict[str, list[Row]]
    problems: list[str]
    empty: str = ""


def listing(kind: str, where: Sequence[str]) -> Listing:
    """Return the rows of *kind* ("" for hardware and workloads) in the catalog that meet all conditions of *where*."""
    if kind and kind not in _KINDS:
        similar = suggestions(kind, list(_KINDS), most=1)
        raise SpecError(f"list {kind}: " + (f"did you mean {similar[0]}?" if similar else f"write one of {', '.join(_KINDS)}"))
    if where and not kind:
        kind = "hardware"
    texts: list[str] = []
    rows_of_kind: dict[str, list[Row]] = {}
    problems: list[str] = []
    empty = ""
    for name in [kind] if kind else list(_WHOLE):
        read, columns = _KINDS[name]
        rows, wrong = read()
        chosen = select(rows, where, columns)
        problems += wrong
        empty = without_match(rows, where, columns) if where and not chosen else ""
        texts.append(columns_text(chosen, columns))
        rows_of_kind[name] = [export_row(row, columns) for row in chosen]
    return Listing("\n\n".join(texts), rows_of_kind, problems, empty)


def columns_text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return *rows* in aligned columns, numbers to the right."""
    cells: list[list[str]] = [
        [column.title for column in columns],
        *([column.format(row[column.name]) for column in columns] for row in rows),
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "\n".join(_line(line, widths, columns) for line in cells)


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Any]) -> str:
    aligned = (
        cell.rjust(width) if column.dimension else cell.ljust(width) for cell, width, column in zip(cells, widths, columns, strict=True)
    )
    return "  ".join(aligned).rstrip()
