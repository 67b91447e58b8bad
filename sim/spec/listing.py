"""What is in the catalog? One row per hardware and workload file, read without the layer tables, and filters such as ``gpus>=8``.

Values in rows are in SI units under plain names; `export_row` adds the units to the names, for JSON and CSV.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sim import units
from sim.spec import library, memo
from sim.spec.catalog import advice_on_unused_gpu, catalog, contents, suggestions
from sim.spec.decoder import parameter_count
from sim.spec.hardware import Group, Hardware
from sim.spec.references import Resolver
from sim.spec.transformer import Transformer
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

Value = str | int | float | None
Row = dict[str, Value]


@dataclass(frozen=True)
class Column:
    """One column of a listing: its name in filters, its title, its name in JSON, and the format of its values."""

    name: str
    title: str
    export: str = ""
    dimension: str = ""
    """A dimension of ``units`` for a quantity; ``number`` for a count; empty for text."""
    digits: int = 3
    unit_in_title: bool = False
    """Whether the title has the unit of prices, USD per hour, so that the cells are plain numbers."""
    empty: str = ""
    """What a cell shows for an empty text."""

    def format(self, value: Value) -> str:
        """Return *value* as text for a table."""
        if value is None:
            return "-"
        if self.dimension in ("", "number") or isinstance(value, str):
            return f"{value:,}" if isinstance(value, int) else str(value) or self.empty
        return per_hour_text(value * units.UNITS["time"]["h"]) if self.unit_in_title else units.show(value, self.dimension, self.digits)


def per_hour_text(usd_per_h: float) -> str:
    """Return *usd_per_h* with cents; below 1 USD/h with a tenth of a cent where there is one."""
    cents = f"{usd_per_h:.2f}"
    tenths = f"{usd_per_h:.3f}"
    return cents if usd_per_h >= 1 or tenths.endswith("0") else tenths


HARDWARE: Final = (
    Column("name", "hardware"),
    Column("provider", "provider"),
    Column("nodes", "nodes", "nodes", "number"),
    Column("gpus", "GPUs", "gpus", "number"),
    Column("gpu", "GPU"),
    Column("gpu_memory", "GPU memory", "gpu_memory_bytes", "binary size"),
    Column("nic", "NIC", "nic_bytes_per_s", "bit rate", 4),
    Column("price", "price", "price_usd_per_h", "price", 4),
    Column("spot", "spot price", "spot_usd_per_h", "price", 4),
    Column("region", "region", "price_region"),
    Column("priced", "prices of", "prices_of", empty="undated"),
    Column("spot_priced", "spot of", "spot_price_of", empty="undated"),
)
WORKLOADS: Final = (
    Column("name", "workload"),
    Column("model", "model"),
    Column("parameters", "parameters", "parameters", "number"),
    Column("dataset", "data set"),
    Column("batch", "batch per GPU", "batch", "number"),
    Column("precision", "precision"),
    Column("stack", "stack"),
)


def hardware_rows() -> tuple[list[Row], list[str]]:
    """Return a row for every valid hardware file of the catalog, and the problems of the others.

    The number of GPUs counts all workers; GPU, GPU memory and NIC are of one node in the first group; the price is for all nodes.
    Files are read again only if one of them has changed.
    """
    rows, problems = _hardware_rows(contents("hardware"))
    return [dict(row) for row in rows], list(problems)


@lru_cache(maxsize=4)
def _hardware_rows(_: Hashable) -> tuple[list[Row], list[str]]:
    with memo.caching_inside():  # machines share their parts
        return rows_of("hardware", lambda path: _hardware_row(library.load(Hardware, path).spec))


def workload_rows() -> tuple[list[Row], list[str]]:
    """Return a row for every valid workload file of the catalog, and the problems of the others."""
    return rows_of("workloads", _workload_row)


def select(rows: Iterable[Row], conditions: Iterable[str], columns: tuple[Column, ...]) -> list[Row]:
    """Return the *rows* that match all *conditions*, each ``NAME=VALUE`` or with ``!= < <= > >=``; see `condition`."""
    rows = list(rows)
    tests = [condition(text, columns, rows) for text in conditions]
    return [row for row in rows if all(test(row) for test in tests)]


def without_match(rows: Sequence[Row], conditions: Sequence[str], columns: tuple[Column, ...]) -> str:
    """Return a sentence on why no row matches *conditions*: the first one that no row matches on its own, and its column's values."""
    unmatched = next((text for text in conditions if not select(rows, [text], columns)), None)
    if unmatched is None:
        return f"no row matches all of {' and '.join(conditions)}{_either(conditions)}"
    column = _column(unmatched, columns)
    if column.dimension:
        values = [value for row in rows if isinstance(value := row[column.name], int | float)]
        description = (
            f"{column.name} ranges from {column.format(min(values))} to {column.format(max(values))}"
            if values
            else "no row has a value in this column"
        )
        return f"no row matches {unmatched}; {description}"
    texts = sorted({str(row[column.name]) for row in rows if row[column.name]})
    match = _CONDITION.fullmatch(unmatched)
    if match and column.name == "gpu" and (unowned := advice_on_unused_gpu(match[3])):
        return f"no row matches {unmatched}; {unowned}"
    if match and (several := re.split(r"[|;]| or ", match[3]))[1:] and {each.strip() for each in several} <= set(texts):
        return f"no row matches {unmatched}; write {match[1]}={','.join(each.strip() for each in several)} for any of them"
    near = suggestions(match[3] if match else "", texts)
    shown = f"did you mean {units.any_of(near)}?" if near else f"values: {', '.join(texts[:20])}{' ...' * (len(texts) > 20)}"
    return f"no row matches {unmatched}; {shown}"


def _either(conditions: Sequence[str]) -> str:
    """Return advice to write a list of values if *conditions* give one column several; empty if none has several."""
    values: dict[str, list[str]] = {}
    for text in conditions:
        if (match := _CONDITION.fullmatch(text)) and match[2] in ("=", "=="):
            values.setdefault(match[1], []).append(match[3])
    name = next((name for name, several in values.items() if len(several) > 1), None)
    return "" if name is None else f"; {name}={','.join(values[name])} means any of them"


def export_row(row: Row, columns: tuple[Column, ...]) -> Row:
    """Return *row* with names that contain the units, such as ``price_usd_per_h``."""
    return {
        column.export or column.name: _per_hour(row[column.name]) if column.dimension == "price" else row[column.name] for column in columns
    }


_CONDITION: Final = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|!=|==?|<|>)\s*(.+?)\s*")
_TESTS: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": lambda value, wanted: math.isclose(value, wanted, rel_tol=1e-6),
    "!=": lambda value, wanted: not math.isclose(value, wanted, rel_tol=1e-6),
    "<": lambda value, wanted: value < wanted,
    "<=": lambda value, wanted: value <= wanted,
    ">": lambda value, wanted: value > wanted,
    ">=": lambda value, wanted: value >= wanted,
}


def condition(text: str, columns: tuple[Column, ...], rows: Iterable[Row] = ()) -> Callable[[Row], bool]:
    """Return a function that tests a row against the condition *text*; raise SpecError if it is not a condition on *columns*.

    A list matches any of its values (``gpu=A100,H100``), and a range every number from its first to its last (``gpus=1..8``). Each text
    in a list with ``=`` must match one of *rows*, if there are any: a misspelled one would silently leave rows out. Text is compared
    case-insensitively, and ``*`` matches anything; text that equals the value of none of *rows* also matches whole words (``gpu=V100``
    finds ``V100-SXM2-16GB``). Quantities have a unit (``gpu_memory>=40GiB``) unless the name has it (``price_usd_per_h<10``). A row
    without a value matches only ``!=``.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SpecError(f"--where {text}: write NAME=VALUE, for example {_example(columns)}; also with != < <= > >=")
    name, sign, written = match[1], match[2].replace("==", "="), match[3]
    column = _column(text, columns)
    if "," in written and sign in ("=", "!="):
        rows = list(rows)
        texts = [f"{name}{sign}{one}" for one in written.split(",")]
        several = [condition(one, columns, rows) for one in texts]
        for one, test in zip(texts, several, strict=True):
            if rows and sign == "=" and not column.dimension and not any(map(test, rows)):
                raise SpecError(f"--where {text}: {without_match(rows, [one], columns)}")
        return lambda row: (any if sign == "=" else all)(test(row) for test in several)
    if not column.dimension:
        return _text_test(text, column, sign, written, rows)
    if ".." in written and sign in ("=", "!="):
        first, last = (end.strip() for end in written.split("..", 1))
        if _number(text, column, name, first) > _number(text, column, name, last):
            raise SpecError(f"--where {text}: the range ends before it begins; write {name}{sign}{last}..{first}")
        ends = [condition(f"{name}>={first}", columns), condition(f"{name}<={last}", columns)]
        return lambda row: all(test(row) for test in ends) == (sign == "=")
    wanted = _number(text, column, name, written)
    return lambda row: sign == "!=" if (value := row[column.name]) is None else _TESTS[sign](float(value), wanted)


def _column(text: str, columns: tuple[Column, ...]) -> Column:
    """Return the column to which the condition *text* refers."""
    match = _CONDITION.fullmatch(text)
    name = match[1] if match else ""
    column = next((column for column in columns if name in (column.name, column.export)), None)
    if column is None:
        near = suggestions(name, [column.name for column in columns], most=1)
        hint = f"did you mean '{near[0]}'?" if near else f"columns: {', '.join(column.name for column in columns)}"
        raise SpecError(f"--where {text}: no column '{name}'; {hint}")
    return column


def _text_test(text: str, column: Column, sign: str, written: str, rows: Iterable[Row]) -> Callable[[Row], bool]:
    if sign not in ("=", "!="):
        raise SpecError(f"--where {text}: {column.name} is text; write {column.name}={written} or {column.name}!={written}")
    pattern = written.lower()
    if not any(fnmatchcase(_lower(row, column), pattern) for row in rows):
        words = re.compile(rf"(?<![a-z0-9]){re.escape(pattern)}(?![a-z0-9])")
        return lambda row: bool(words.search(_lower(row, column))) == (sign == "=")
    return lambda row: fnmatchcase(_lower(row, column), pattern) == (sign == "=")


def _lower(row: Row, column: Column) -> str:
    return str(row[column.name] or "").lower()


def _number(text: str, column: Column, name: str, written: str) -> float:
    try:
        if column.dimension == "number" or name == column.export:
            scale = 1 / units.UNITS["time"]["h"] if column.dimension == "price" else 1.0
            return float(written) * scale
        return units.parse(written, units.PARSED.get(column.dimension, column.dimension))
    except units.UnitError as error:
        raise SpecError(f"--where {text}: {error}") from None
    except ValueError:
        dashed = re.fullmatch(r"(\d+)\s*[-\u2013]\s*(\d+)", written)
        hint = f"; write a range as {name}={dashed[1]}..{dashed[2]}" if dashed else ""
        raise SpecError(f"--where {text}: '{written}' is not a number{hint}") from None


def _example(columns: tuple[Column, ...]) -> str:
    counts = [f"{column.name}=8" for column in columns if column.dimension == "number"]
    return " or ".join([f"{columns[1].name}=...", *counts[:1]])


def _per_hour(value: Value) -> Value:
    return value * units.UNITS["time"]["h"] if isinstance(value, float) else value


def rows_of(folder: str, row: Callable[[Path], Row]) -> tuple[list[Row], list[str]]:
    """Return a row for every valid file of *folder* in the catalog, and the problems of the others."""
    rows, problems = [], []
    for path in catalog(folder).values():
        try:
            rows.append(row(path))
        except SpecError as error:
            problems.extend(error.problems)
    return rows, problems


def _hardware_row(hardware: Hardware) -> Row:
    groups = hardware.groups
    node = groups[0].node
    return {
        "name": hardware.name,
        "provider": hardware.provider,
        "nodes": sum(group.count for group in groups),
        "gpus": hardware.worker_gpus,
        "gpu": node.gpu.name,
        "gpu_memory": node.gpu.memory,
        "nic": node.nic.bandwidth * node.nic.count,
        "price": _price(groups, [group.price.on_demand if group.price else None for group in groups]),
        "spot": _price(groups, [group.price.spot if group.price else None for group in groups]),
        "region": next((group.price.region or None for group in groups if group.price), None),
        "priced": next((group.price.date for group in groups if group.price), None),
        "spot_priced": next((group.price.day_of_spot for group in groups if group.price and group.price.spot), None),
        **_cheapest(groups),
    }


def _cheapest(groups: tuple[Group, ...]) -> Row:
    """Return the lowest prices of all nodes in any region, with their regions and days."""
    blocks = [group.price.cheapest if group.price else None for group in groups]
    first = next((block for block in blocks if block), None)
    return {
        "cheapest": _price(groups, [block.on_demand if block else None for block in blocks]),
        "cheapest_region": (first.region or None) if first and first.on_demand is not None else None,
        "cheapest_of": (first.date or None) if first and first.on_demand is not None else None,
        "cheapest_spot": _price(groups, [block.spot if block else None for block in blocks]),
        "cheapest_spot_region": (first.spot_region or None) if first and first.spot is not None else None,
        "cheapest_spot_of": (first.day_of_spot or None) if first and first.spot is not None else None,
    }


def _price(groups: tuple[Group, ...], prices: Sequence[float | None]) -> float | None:
    total = [price * group.count for price, group in zip(prices, groups, strict=True) if price is not None]
    return sum(total) if len(total) == len(groups) else None


def _workload_row(path: Path) -> Row:
    resolver = Resolver(heads_only=True)
    document = resolver.finish(resolver.open(path, Workload), Workload)
    if resolver.problems:
        raise SpecError(resolver.problems)
    value = document.value
    return {
        "name": _text(value, "name"),
        "model": _text(value, "model", "name"),
        "parameters": _whole(value, "model", "parameters") or decoder_parameters(value.get("model")),
        "dataset": _text(value, "dataset", "name"),
        "batch": _whole(value, "training", "batch"),
        "precision": _text(value, "training", "precision") or "fp32",
        "stack": _text(value, "training", "stack", "name"),
    }


def decoder_parameters(model: Any) -> int | None:
    """Return the number of parameters of *model* (plain data) from its ``transformer``; None if it has none, or an invalid one."""
    shape = _at(model, "transformer")
    try:
        return parameter_count(Transformer.model_validate(shape)) if shape is not None else None
    except ValueError:  # reported when the model is loaded
        return None


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any, *names: str) -> str:
    text = _at(value, *names)
    return text if isinstance(text, str) else ""


def _whole(value: Any, *names: str) -> int | None:
    number = _at(value, *names)
    return int(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
