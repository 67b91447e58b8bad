"""What do the catalogue's machines cost, and how old is each price? One row for each machine with a price."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from sim.spec.catalogue import suggestions
from sim.spec.days import STALE_DAYS, first_day, is_future
from sim.spec.listing import HARDWARE, Column, Row, hardware_rows, select
from sim.spec.yaml import SpecError
from sim.units import any_of

_KEPT: Final = {column.name: column for column in HARDWARE}
PRICES: Final = (
    *(_KEPT[name] for name in ("name", "gpus", "price", "spot")),
    Column("gpu_price", "per GPU", "price_per_gpu_usd_per_h", "price", 4),
    *(_KEPT[name] for name in ("gpu", "provider", "nodes", "region", "priced", "spot_priced")),
    Column("age", "days", "age_days", "number"),
    Column("spot_age", "spot days", "spot_age_days", "number"),
    Column("mark", "mark"),
)


_NAMES: Final = ("name", "gpu", "provider")
"""Columns in which the names given by the user are looked up."""


def price_rows(today: date) -> tuple[list[Row], list[str]]:
    """Return a row for every machine of the catalogue with a price, and the problems of files that cannot be read.

    Ages are days until *today*; ``mark`` tells which prices are older than `STALE_DAYS` days, and which have a date after *today*.
    """
    rows, problems = hardware_rows()
    return [_row(row, today) for row in rows if row["price"] is not None or row["spot"] is not None], problems


def named_rows(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the *rows* whose machine, GPU or provider is in *names*; all rows if *names* is empty.

    Raise SpecError for a name that matches no row.
    """
    matches = [{id(row) for column in _NAMES for row in select(rows, [f"{column}={name}"], PRICES)} for name in names]
    for name, row_ids in zip(names, matches, strict=True):
        if not row_ids:
            near = suggestions(name, sorted({str(row[column]) for row in rows for column in _NAMES if row[column]}))
            hint = f"did you mean {any_of(near)}?" if near else "'python -m sim prices' lists all of them"
            raise SpecError(f"{name}: no machine, GPU or provider with a price; {hint}")
    return [row for row in rows if not names or any(id(row) in row_ids for row_ids in matches)]


def _row(row: Row, today: date) -> Row:
    gpus, price = row["gpus"], row["price"] if row["price"] is not None else row["spot"]
    age = _age(row["priced"], today) if row["price"] is not None else None
    spot_age = _age(row["spot_priced"], today)
    old = [name for name, days in (("on demand", age), ("spot", spot_age)) if days is not None and days > STALE_DAYS]
    dates = (("on demand", row["priced"] if row["price"] is not None else ""), ("spot", row["spot_priced"]))
    early = [name for name, written in dates if is_future(str(written or ""), today)]
    marks = [f"{what}: {', '.join(which)}" for what, which in (("old", old), ("in the future", early)) if which]
    per_gpu = price / gpus if isinstance(price, float) and isinstance(gpus, int) and gpus else None
    return row | {"gpu_price": per_gpu, "age": age, "spot_age": spot_age, "mark": "; ".join(marks)}


def _age(written: object, today: date) -> int | None:
    return (today - first_day(str(written))).days if written else None
