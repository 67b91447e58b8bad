"""How are rows of figures written to a file? As CSV, or as Parquet if pyarrow is installed; nested figures become separate columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from sim.spec.whole_file import replacement_file
from sim.spec.yaml import SpecError

Rows = Iterable[Mapping[str, Any]]
"""Rows that can be iterated over more than once."""

_UNITS = ("_bytes", "_usd", "_s")


def flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* with nested figures flattened by joining their keys; a unit stays at the end (``stalls_s.copy`` is ``copy_s``)."""
    flattened: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            unit = next((unit for unit in _UNITS if key.endswith(unit)), "")
            stem = "" if key == "stalls_s" else f"{key.removesuffix(unit)}_"
            flattened |= {f"{stem}{name}{unit}": part for name, part in flatten(value).items()}
        else:
            flattened[key] = value
    return flattened


def figures_csv(rows: Rows) -> str:
    """Return *rows* as CSV text, with a column for every key that any of them has."""
    text = io.StringIO()
    _write_csv(text, rows)
    return text.getvalue()


def check_table(path: Path) -> None:
    """Raise SpecError unless `write_table` can write *path*; to be called before the rows are computed."""
    if path.suffix not in (".csv", ".parquet"):
        raise SpecError(f"{path}: write FILE.csv or FILE.parquet")
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; write FILE.csv or FILE.parquet")
    if not path.parent.is_dir():
        raise SpecError(f"{path}: cannot be written: there is no folder {path.parent}")
    if path.suffix == ".parquet":
        _pyarrow()


def write_table(path: Path, rows: Rows) -> None:
    """Write *rows* to *path*, as CSV or Parquet by its suffix. They are iterated over twice, and never held in memory all at once."""
    with replacement_file(path) as temporary:
        if path.suffix == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                _write_csv(file, rows)
        else:
            _write_parquet(temporary, rows)


def _write_csv(file: TextIO, rows: Rows) -> None:
    writer = csv.DictWriter(file, list(_columns(rows)), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(safe_cells(flatten(row)) for row in rows)


def safe_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* with an apostrophe before text that a spreadsheet would run as a formula: it starts with = + - @, a tab or a return."""
    return {key: f"'{value}" if isinstance(value, str) and _is_formula(value) else value for key, value in row.items()}


def _is_formula(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return len(text) > 1 and text[0] in "=+-@\t\r"
    return False


ROW_GROUP = 5000
"""Rows of a Parquet file that are held in memory at once."""


def _write_parquet(path: Path, rows: Rows) -> None:
    arrow = _pyarrow()
    from pyarrow import parquet

    plain = {str: arrow.string(), float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_()}

    def column(kinds: set[type]) -> Any:
        """Return the type of a column with values of these *kinds*: integers mixed with floats are floats, any other mixture is text."""
        if not kinds or len(kinds) == 1:
            return plain[kinds.pop()] if kinds else arrow.null()
        return arrow.float64() if kinds == {int, float} else arrow.string()

    kinds = _columns(rows)
    schema = arrow.schema([(name, column(types - {type(None)})) for name, types in kinds.items()])
    texts = [name for name in kinds if schema.field(name).type == arrow.string()]
    flattened = map(flatten, rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(flattened, ROW_GROUP)):
            for row in group:
                row |= {name: str(row[name]) for name in texts if row.get(name) is not None}
            writer.write_table(arrow.Table.from_pylist(group, schema))


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise SpecError("a .parquet file needs pyarrow: pip install pyarrow, or write .csv") from None
    return pyarrow


def _columns(rows: Rows) -> dict[str, set[type]]:
    """Return every column that any of *rows* has, with the types of its values."""
    types_of: dict[str, set[type]] = {}
    for row in rows:
        for name, value in flatten(row).items():
            types_of.setdefault(name, set()).add(type(value))
    return types_of
