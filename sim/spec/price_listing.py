"""What do the catalog's machines cost, and how old is each price? One row for each machine with a price."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from sim.spec.catalog import suggestions
from sim.spec.days import STALE_DAYS, first_day, is_future
from sim.spec.listing import HARDWARE, Column, Row, hardware_rows, select
from sim.spec.yaml import SpecError
from sim.units import any_of

_KEPT: Final = {column.name: column for column in HARDWARE}


def _amount(name: str, title: str, export: str) -> Column:
    return Column(name, title, export, "price", unit_in_title=True)


PRICES: Final = (
    *(_KEPT[name] for name in ("name", "gpus")),
    _amount("price", "$/h", _KEPT["price"].export),
    _amount("spot", "spot $/h", _KEPT["spot"].export),
    _amount("gpu_price", "$/GPU-h", "price_per_gpu_usd_per_h"),
    *(_KEPT[name] for name in ("gpu", "provider", "nodes", "region", "priced", "spot_priced")),
    Column("age", "days", "age_days", "number"),
    Column("spot_age", "spot days", "spot_age_days", "number"),
    _amount("cheapest", "cheapest $/h", "cheapest_usd_per_h"),
    Column("cheapest_region", "in", "cheapest_region"),
    Column("cheapest_of", "of", "cheapest_of"),
    _amount("cheapest_spot", "cheapest spot $/h", "cheapest_spot_usd_per_h"),
    Column("cheapest_spot_region", "in", "cheapest_spot_region"),
    Column("cheapest_spot_of", "of", "cheapest_spot_of"),
    Column("mark", "mark"),
)
_BY_IMPORTANCE: Final = (
    "name", "price", "gpus", "gpu", "spot", "provider", "mark", "priced", "gpu_price", "cheapest", "cheapest_spot", "region", "spot_priced",
    "age", "spot_age", "cheapest_region", "cheapest_spot_region", "cheapest_of", "cheapest_spot_of", "nodes",
)  # fmt: skip
_KINDS: Final = ("provider", "gpu", "name")
"""Columns in which the names given by the user are looked up, in this order."""


def fitting_columns(rows: Sequence[Row], width: int) -> tuple[Column, ...]:
    """Return the columns of `PRICES` that fit *width* characters with *rows*, the most important ones first to be kept."""
    taken, kept = -2, set[str]()
    by_name = {column.name: column for column in PRICES}
    for name in _BY_IMPORTANCE:
        column = by_name[name]
        wide = 2 + max(len(column.title), *(len(column.format(row[name])) for row in rows), 0)
        if taken + wide <= width or not kept:
            taken, kept = taken + wide, kept | {name}
    return tuple(column for column in PRICES if column.name in kept)


def price_rows(today: date) -> tuple[list[Row], list[str]]:
    """Return a row for every machine of the catalog with a price, and the problems of files that cannot be read.

    Ages are days until *today*; ``mark`` tells which prices are older than `STALE_DAYS` days, and which have a date after *today*.
    """
    rows, problems = hardware_rows()
    return [_row(row, today) for row in rows if row["price"] is not None or row["spot"] is not None], problems


def named_rows(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the *rows* of the machines in *names*, and those that have one of its providers and one of its GPUs; all if it is empty.

    Raise SpecError for a name that matches no row, and for providers that have none of the GPUs.
    """
    of_kind: dict[str, set[int]] = {}
    for name in names:
        kind, matching = _matching(rows, name)
        of_kind[kind] = of_kind.get(kind, set()) | matching
    machines = of_kind.pop("name", set())
    both = set.intersection(*of_kind.values()) if of_kind else set()
    if len(of_kind) == 2 and not both:
        here = sorted({str(row["gpu"]) for row in rows if id(row) in of_kind["provider"]})
        raise SpecError(f"{' '.join(names)}: no machine of the provider has this GPU; it has {any_of(here)}")
    return [row for row in rows if not names or id(row) in machines | both]


def _matching(rows: Sequence[Row], name: str) -> tuple[str, set[int]]:
    """Return the first column in which *name* matches *rows*, and the ids of these rows."""
    for column in _KINDS:
        if matching := {id(row) for row in select(rows, [f"{column}={name}"], PRICES)}:
            return column, matching
    near = suggestions(name, sorted({str(row[column]) for row in rows for column in _KINDS if row[column]}))
    providers = ", ".join(sorted({str(row["provider"]) for row in rows if row["provider"]}))
    hint = f"did you mean {any_of(near)}?" if near else f"providers: {providers}; 'python -m sim prices' lists all machines"
    raise SpecError(f"{name}: no machine, GPU or provider with a price; {hint}")


def _row(row: Row, today: date) -> Row:
    gpus, price = row["gpus"], row["price"] if row["price"] is not None else row["spot"]
    age = _age(row["priced"], today) if row["price"] is not None else None
    spot_age = _age(row["spot_priced"], today)
    old = [name for name, days in (("on demand", age), ("spot", spot_age)) if days is not None and days > STALE_DAYS]
    dates = (("on demand", row["priced"] if row["price"] is not None else ""), ("spot", row["spot_priced"]))
    early = [name for name, written in dates if is_future(str(written or ""), today)]
    undated = [name for name, written in dates if not written and row["price" if name == "on demand" else "spot"] is not None]
    named = (("old", old), ("in the future", early), ("undated", undated))
    marks = [f"{what}: {', '.join(which)}" for what, which in named if which]
    per_gpu = price / gpus if isinstance(price, float) and isinstance(gpus, int) and gpus else None
    return row | {"gpu_price": per_gpu, "age": age, "spot_age": spot_age, "mark": "; ".join(marks)}


def _age(written: object, today: date) -> int | None:
    return (today - first_day(str(written))).days if written else None
