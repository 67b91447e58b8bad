"""Which number is in a table cell with a unit, a remark or a deviation? `read_cell` returns it, and how it was read.

Only cells with one meaning are read: ``4k`` tokens of a sequence are 4,096, ``2900 ms`` are 2.9 s, ``61 GB`` are 56.8 GiB, and tokens of
a global batch are sequences if they are a whole number of them. Others stay text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_FORM: Final = re.compile(
    r"(?:~|\u2248|ca\.\s*|approx\.\s*)?(?P<number>\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)\s*"
    r"(?:(?:\u00b1|\+/-)\s*[\d.]+\s*)?(?P<unit>[a-z%][a-z/\s]*?)?\s*(?P<remark>\(.*\))?",
    re.IGNORECASE,
)
"""A number, perhaps rounded, with its deviation, its unit, and a remark in parentheses."""
_MORE: Final = re.compile("off-?load|shared", re.IGNORECASE)
"""Remarks that say more than the number does: what is not on the GPU, and experts beside those that a router chooses."""
_SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "s/it", "s/iter", "s/step"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds", "ms/it", "ms/iter", "ms/step"), 1e-3),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
}
_THOUSANDS: Final[Mapping[str, float]] = {"k": 1e3, "m": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12}
_GIB: Final[Mapping[str, float]] = {"gib": 1.0, "mib": 2.0**-10, "gb": 1e9 / 2**30, "mb": 1e6 / 2**30}
_TOKEN_RATE: Final = re.compile(r"(k?)\s*(?:tok(?:en)?s?/s(?:ec|econd)?(?:/(?:gpu|device|chip))?)?")
_SAMPLE_RATE: Final = re.compile(r"(k?)\s*(?:(?:image|img|im|sample|sequence|seq|sentence|example)s?\s*/\s*s(?:ec|econd)?)?")
_OWN_UNITS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpus": ("gpu", "gpus"),
    "nodes": ("node", "nodes"),
    "seq_len": ("tokens",),
    "global_batch": ("seq", "seqs", "sequences", "samples"),
}
"""Units that change nothing, by column."""
_PLAIN_FORM: Final = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?|\d{1,3}(,\d{3})+(\.\d+)?|\.\d+(e[+-]?\d+)?", re.IGNORECASE)


class Reading(NamedTuple):
    """The number of a cell, and how it was read in words: empty if it is a plain number."""

    value: float
    words: str = ""


def read_cell(column: str, cell: str, sequence: float = 0.0) -> Reading | None:
    """Return the number of *cell* in *column*; None if it has none of 0 or more. *sequence*: tokens of the row's sequence, 0 if unknown."""
    value = _plain_number(cell)
    if value is not None:
        return Reading(value)
    form = _FORM.fullmatch(cell)
    number = _plain_number(form.group("number")) if form else None
    if form is None or number is None or _MORE.search(form.group("remark") or ""):
        return None
    value = _in_unit(column, number, (form.group("unit") or "").strip().lower(), sequence)
    return None if value is None else Reading(value, f"{column} {value:,.12g} by {cell!r}")


def _plain_number(cell: str) -> float | None:
    """Return the number in *cell*, which may group its digits by commas; None if it holds something else, or less than 0."""
    if not _PLAIN_FORM.fullmatch(cell):
        return None
    value = float(cell.replace(",", ""))
    return value if math.isfinite(value) else None


def _in_unit(column: str, number: float, unit: str, sequence: float) -> float | None:
    """Return *number* of *unit* in the unit of *column*; None if the unit does not belong there."""
    if not unit or unit in _OWN_UNITS.get(column, ()):
        return number
    if column in ("step_time_s", "exposed_sync_s"):
        return number * _SECONDS[unit] if unit in _SECONDS else None
    if column in ("throughput_samples_per_s", "throughput_samples_per_s_per_gpu"):
        rate = _SAMPLE_RATE.fullmatch(unit.removesuffix("/gpu") if column.endswith("_per_gpu") else unit)
        return None if rate is None else number * (1e3 if rate.group(1) else 1.0)
    if column == "params":
        return number * _THOUSANDS[unit] if unit in _THOUSANDS else None
    if column == "memory_peak_GiB_reported":
        return number * _GIB[unit] if unit in _GIB else None
    if column == "seq_len":
        return number * 1024 if re.fullmatch(r"k(\s*tokens)?", unit) else None
    if column == "throughput_tokens_per_s":
        rate = _TOKEN_RATE.fullmatch(unit) if "/gpu" not in unit else None
        return None if rate is None else number * (1e3 if rate.group(1) else 1.0)
    if column == "tokens_per_s_per_gpu":
        rate = _TOKEN_RATE.fullmatch(unit)
        return None if rate is None else number * (1e3 if rate.group(1) else 1.0)
    return _sequences(number, unit, sequence) if column == "global_batch" else None


def _sequences(number: float, unit: str, sequence: float) -> float | None:
    """Return how many sequences *number* tokens are; K and M are powers of ten or of two, whichever gives a whole number of sequences."""
    named = re.fullmatch(r"([km]?)\s*tok(?:en)?s?", unit)
    if named is None or not sequence:
        return None
    powers = {"": (1,), "k": (1000, 1024), "m": (1000**2, 1024**2)}[named.group(1)]
    counts = {count for power in powers if (count := number * power / sequence) == int(count)}
    return counts.pop() if len(counts) == 1 else None
