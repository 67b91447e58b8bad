"""How do rows of figures reach a file? As CSV, or as Parquet where pyarrow is installed; nested figures become columns of their own."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sim.spec.yaml import SpecError

Rows = Sequence[Mapping[str, Any]]


_UNITS = ("_bytes", "_usd", "_s")


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* with the keys of nested figures joined to their own; a unit stays at the end (``stalls_s.copy`` is ``copy_s``)."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            unit = next((unit for unit in _UNITS if key.endswith(unit)), "")
            stem = "" if key == "stalls_s" else f"{key.removesuffix(unit)}_"
            found |= {f"{stem}{name}{unit}": part for name, part in flat(value).items()}
        else:
            found[key] = value
    return found


def figures_csv(rows: Rows) -> str:
    """Return CSV text of *rows*, with a header of every column that any of them has."""
    flattened = [flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(_columns(flattened)), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(flattened)
    return text.getvalue()


def figures_table(rows: Rows, suffix: str) -> str | bytes:
    """Return *rows* as a file of the kind *suffix* (``.csv``, ``.parquet``) has. Raise SpecError for any other."""
    if suffix == ".csv":
        return figures_csv(rows)
    if suffix != ".parquet":
        raise SpecError(f"a table in a file '*{suffix}': write .csv or .parquet")
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise SpecError("a .parquet file needs pyarrow: pip install 'stallsim[parquet]', or write .csv") from None
    flattened = [flat(row) for row in rows]
    columns = {name: [row.get(name) for row in flattened] for name in _columns(flattened)}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


def _columns(rows: Rows) -> dict[str, None]:
    return dict.fromkeys(key for row in rows for key in row)
