"""What is '25 Gbps' in SI, and back? This is the only module that knows units.

A quantity is written as a number and a unit: ``25 Gbps``, ``16 GiB``, ``30 us``, ``24.48 USD/h``. Inside the program every
quantity is a plain float in SI: seconds, bytes, bytes/s, FLOP, FLOP/s, USD/s. ``bps`` counts bits and ``B/s`` bytes; GB is
10^9 bytes and GiB 2^30. A quantity without a unit is rejected, because a silently misread unit is the most expensive mistake that a
performance model can make.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_HOUR: Final = 3600.0


def _scaled(unit: str, factor: float = 1.0, prefixes: dict[str, float] = _DECIMAL) -> dict[str, float]:
    return {prefix + unit: scale * factor for prefix, scale in prefixes.items()}


_BYTES: Final = _scaled("B") | _scaled("B", prefixes=_BINARY)

UNITS: Final[dict[str, dict[str, float]]] = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": _HOUR, "d": 24 * _HOUR},
    "size": _BYTES,
    "bandwidth": {unit + "/s": scale for unit, scale in _BYTES.items()} | _scaled("bps", 1 / 8) | _scaled("bit/s", 1 / 8),
    "work": _scaled("FLOP"),
    "compute rate": _scaled("FLOP/s") | _scaled("FLOPS"),
    "frequency": _scaled("Hz"),
    "rate": {"1/s": 1.0, "/s": 1.0, "IOPS": 1.0, "kIOPS": 1e3, "samples/s": 1.0, "images/s": 1.0},
    "price": {"USD/h": 1 / _HOUR, "USD/s": 1.0},
    "money": {"USD": 1.0},
    "power": _scaled("W"),
    "failure rate": {"/d": 1 / (24 * _HOUR), "/h": 1 / _HOUR, "/y": 1 / (365 * 24 * _HOUR)},
    "carbon intensity": {"g/kWh": 1e-3 / 3.6e6, "kg/kWh": 1 / 3.6e6},
    "time per byte": {"s/B": 1.0, "s/MB": 1e-6, "s/GB": 1e-9},
    "fraction": {"%": 0.01},
}
"""Accepted units of each dimension, with the factor to SI."""

_EXAMPLE: Final = {
    "time": "20 ms",
    "size": "16 GiB",
    "bandwidth": "25 Gbps",
    "work": "4.1 GFLOP",
    "compute rate": "15.7 TFLOP/s",
    "frequency": "2.7 GHz",
    "rate": "3000 IOPS",
    "price": "24.48 USD/h",
    "money": "100 USD",
    "power": "300 W",
    "failure rate": "0.0032 /d",
    "carbon intensity": "380 g/kWh",
    "time per byte": "0.45 s/GB",
    "fraction": "0.84",
}

_NUMBER: Final = r"[+-]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY: Final = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµμ%/][A-Za-z0-9%/]*|1/s)?\s*")

_COMMON: Final = {
    "size": "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB",
    "bandwidth": "Mbps, Gbps are bits, MB/s, GB/s, MiB/s, GiB/s bytes",
    "work": "FLOP, MFLOP, GFLOP, TFLOP",
    "compute rate": "GFLOP/s, TFLOP/s, PFLOP/s",
    "frequency": "MHz, GHz",
    "power": "W, kW",
}
"""The units to list in a message for dimensions that have too many to list all."""


class UnitError(ValueError):
    """Text that is not a quantity of the wanted dimension."""


def accepted_units(dimension: str, usual: str = "") -> str:
    """Return how to write a quantity of *dimension*, for error messages; see `example`."""
    return f"write for example {example(dimension, usual)}"


def example(dimension: str, usual: str = "") -> str:
    """Return an example of a quantity of *dimension*, and its units: a *usual* value if given."""
    shown = _COMMON.get(dimension) or ", ".join(unit for unit in UNITS[dimension] if unit.isascii())
    return f"'{usual or _EXAMPLE[dimension]}' (units: {shown})"


def parse(value: object, dimension: str, usual: str = "") -> float:
    """Return *value*, text such as ``25 Gbps``, in SI units of *dimension*; *usual* is an example for messages.

    A fraction may also be a bare number, and thousands may be separated by commas, as they are shown. Raise UnitError for a missing,
    unknown or wrong unit, for nan and for infinity.
    """
    if isinstance(value, str):
        return _parse_text(value, dimension, usual)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnitError(f"expected a {dimension}, not {shorten(value)}; {accepted_units(dimension, usual)}")
    if dimension != "fraction":
        raise UnitError(f"the number {shorten(value)} has no unit; {accepted_units(dimension, usual)}")
    try:
        return _finite(float(value), value)
    except OverflowError:
        raise UnitError(f"{shorten(value)} is too large for a {dimension}") from None


@lru_cache(maxsize=4096)
def _parse_text(text: str, dimension: str, usual: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if dimension == "price" and "gpu" in text.lower():
        raise UnitError(f"{shorten(text)} is the price of a GPU; write that of a node with all its GPUs, for example {example(dimension)}")
    if match is None:
        raise UnitError(f"{shorten(text)} is not a {dimension}; {accepted_units(dimension, usual)}")
    number, unit = match[1].replace(",", ""), match[2]
    if unit is None and dimension == "fraction":
        return _finite(float(number), text)
    if unit is None:
        raise UnitError(f"{shorten(text)} has no unit; {accepted_units(dimension, usual)}")
    scale = UNITS[dimension].get(unit)
    if scale is None:
        owner = next((name for name, units in UNITS.items() if unit in units), None)
        similar = _in_bits(str(unit), dimension) or _other_spelling(str(unit), UNITS[dimension])
        hint = f" (did you mean {similar}?)" if similar else ""
        reason = f"'{unit}' is a unit of {owner}" if owner else f"unknown unit {shorten(unit)}{hint}"
        raise UnitError(f"{reason}, expected a {dimension}; {accepted_units(dimension, usual)}")
    # Dividing by a whole number keeps 10 us at 1e-05; 1e-6 itself is no float, and 10 times it is 9.999...e-06.
    return _finite(float(number) * scale if scale >= 1 else float(number) / round(1 / scale), text)


_BITS: Final = re.compile(r"([kKMGT])(?:b/s|b|b[eE]|[bB]its?(?:/s|ps)?)")
"""Bits per second as people write them: 10 Gb/s, 10 Gbit, 10 GbE."""


def _in_bits(unit: str, dimension: str) -> str:
    """Return the standard spelling of *unit* if it is another spelling of bits per second; b is a bit, B a byte."""
    match = _BITS.fullmatch(unit) if dimension == "bandwidth" else None
    return f"{match[1]}bps" if match else ""


def _other_spelling(unit: str, units: Iterable[str]) -> str:
    """Return which of *units* is *unit* in another case, or with "ps" for "/s"; empty if none is."""
    plain = unit.lower().removesuffix("ps")
    if unit.islower() and unit.endswith("b/s"):
        return f"{unit[:-3].upper()}bps or {unit[:-3].upper()}B/s"  # bits or bytes: only the case of the b distinguishes them
    spellings = [
        name for name in units if unit.lower() == name.lower() or (plain != unit.lower() and plain == name.lower().removesuffix("/s"))
    ]
    bits = [name for name in spellings if name.endswith("ps")]
    return " or ".join(bits if unit.islower() and bits else [name for name in spellings if name not in bits] or spellings)


def _finite(number: float, written: object) -> float:
    if not math.isfinite(number):
        raise UnitError(f"{shorten(written)} is not a finite number")
    return number


def any_of(choices: Sequence[object]) -> str:
    """Return *choices* as a list in words: ``1, 2 or 4``."""
    first = ", ".join(map(str, choices[:-1]))
    return f"{first} or {choices[-1]}" if first else str(choices[0])


def all_of(names: Sequence[object], most: int | None = None) -> str:
    """Return *names* as a list in words: ``1, 2 and 4``; of more than *most*, those first and the number of the others."""
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most:,} more"]
    first = ", ".join(map(str, names[:-1]))
    return f"{first} and {names[-1]}" if first else str(names[0])


_SUFFIXED: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([kKmM])", re.ASCII)


def ambiguous_count(text: str) -> str:
    """Return which two numbers a count such as ``8k`` or ``1.5M`` may be: thousands or 1024s; empty if *text* is no such count.

    Tokens of a whole job are decimal (``300B``); sequences and batches are as often powers of two.
    """
    if (match := _SUFFIXED.fullmatch(text.strip())) is None:
        return ""
    power = 1 if match[2] in "kK" else 2
    counts = [f"{float(match[1]) * base**power:.0f}" for base in (1000, 1024)]
    return f"is ambiguous; write {any_of(counts)}"


def shorten(value: object, length: int = 40) -> str:
    """Return ``repr(value)`` for a message, cut to *length* characters; None is the ``null`` of YAML."""
    try:
        text = "null" if value is None else repr(value)
    except ValueError:  # an integer beyond Python's limit for decimal conversion
        return "an enormous number"
    return text if len(text) <= length else text[: length - 3] + "..."


_SHOWN: Final[dict[str, list[tuple[float, str]]]] = {
    "time": [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (_HOUR, "h")],
    "size": [(1.0, "B"), (1e3, "KB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")],
    "binary size": [(1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB")],
    "bandwidth": [(1.0, "B/s"), (1e3, "KB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")],
    "bit rate": [(1 / 8, "bps"), (1e3 / 8, "Kbps"), (1e6 / 8, "Mbps"), (1e9 / 8, "Gbps"), (1e12 / 8, "Tbps")],
    "work": [(1.0, "FLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP")],
    "compute rate": [(1.0, "FLOP/s"), (1e9, "GFLOP/s"), (1e12, "TFLOP/s"), (1e15, "PFLOP/s")],
    "frequency": [(1.0, "Hz"), (1e6, "MHz"), (1e9, "GHz")],
    "rate": [(1.0, "/s")],
    "price": [(1 / _HOUR, "USD/h")],
    "money": [(1.0, "USD")],
    "power": [(1.0, "W"), (1e3, "kW"), (1e6, "MW")],
    "energy": [(1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (1e6, "MJ")],
    "billed energy": [(3.6e6, "kWh"), (3.6e9, "MWh"), (3.6e12, "GWh")],
    "mass": [(1.0, "kg"), (1e3, "t")],
    "failure rate": [(1 / (365 * 24 * _HOUR), "/y"), (1 / (24 * _HOUR), "/d")],
    "carbon intensity": [(1e-3 / 3.6e6, "g/kWh")],
    "time per byte": [(1e-9, "s/GB")],
    "fraction": [(0.01, "%")],
}
"""Units for showing each dimension. ``binary size``, ``bit rate`` and ``billed energy`` are alternative units of size, bandwidth and
energy."""

PARSED: Final = {"binary size": "size", "bit rate": "bandwidth"}
"""Dimension in which `parse` reads quantities of a dimension that only `show` knows."""


def dollars(usd: float) -> str:
    """Return an amount of *usd* as text: with cents, and below ten cents with two significant digits (``0.0003``)."""
    if usd == 0 or abs(usd) >= 0.095:
        return f"{usd:,.2f}"
    return f"{usd:.{1 - math.floor(math.log10(abs(usd)))}f}".rstrip("0")


def rounded_dollars(usd: float) -> str:
    """Return a predicted amount of *usd* as text: from 100 on with three digits, as times have, because predictions are off by percents."""
    return dollars(usd) if abs(usd) < 99.995 else three_digits(usd)


def three_digits(number: float) -> str:
    """Return *number*, of 100 or more, with three digits and zeros for the others: 73,100."""
    unit = 10.0 ** (math.floor(math.log10(abs(number))) - 2)
    return f"{round(number / unit) * unit:,.0f}"


def rate_text(rate: float) -> str:
    """Return a rate as a whole number, or with three digits if it is below 100."""
    return f"{rate:,.0f}" if rate >= 99.5 else f"{rate:.3g}"


def pluralized(count: int, what: str) -> str:
    """Return *count* of *what* in words: 1 GPU, 2,048 GPUs."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def and_also(text: str, more: str) -> str:
    """Return *text* with *more* after a semicolon, or after the question that it ends in; *text* alone if there is no more."""
    return f"{text}{' ' if text.endswith('?') else '; '}{more}" if more else text


def signed_percent(change: float) -> str:
    """Return a relative *change* in percent with its sign; no change is +0.0%."""
    return f"{round(100 * change, 1) + 0.0:+.1f}%"  # + 0.0: never -0.0


def show_tokens(tokens: float) -> str:
    """Return a number of tokens as it is written in options: ``300B``, ``1.5T``, or in digits if it is not as round."""
    scale, letter = next(((scale, letter) for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if tokens >= scale), (1.0, ""))
    short = f"{tokens / scale:g}"
    return f"{short}{letter}" if float(short) * scale == tokens else f"{tokens:.0f}"


def axis_unit(seconds: Sequence[float]) -> tuple[str, float]:
    """Return name and length (s) of the unit in which an axis shows *seconds*: the longest that half of them reach, hours at most."""
    middle = sorted(seconds)[(len(seconds) - 1) // 2] if seconds else 0.0
    return next(((name, length) for name, length in (("hours", 3600.0), ("minutes", 60.0)) if middle >= length), ("seconds", 1.0))


def _shown_unit(value: float, dimension: str, digits: int) -> tuple[float, str]:
    """Return size (SI) and name of the unit in which `show` writes *value*."""
    if value == 0 and dimension == "time":
        return 1.0, "s"
    units = _SHOWN[dimension]
    return next((unit for unit in reversed(units) if abs(value) >= unit[0] * (1 - 0.5 * 10.0**-digits)), units[0])


def show(value: float, dimension: str, digits: int = 3) -> str:
    """Return *value* (SI) as text with *digits* significant digits and the largest unit that leaves a number of at least one."""
    scale, unit = _shown_unit(value, dimension, digits)
    return f"{rounded(value / scale, digits)}{'' if unit == '%' else ' '}{unit}"


def show_least(value: float, dimension: str, digits: int = 3) -> str:
    """Return *value* as `show` does, but rounded up, so that the text is at least *value*."""
    scale = _shown_unit(value, dimension, digits)[0]
    digit = 10.0 ** min(0, math.floor(math.log10(value / scale)) - digits + 1) if value > 0 else 1.0
    return show(math.ceil(value / scale / digit - 1e-9) * digit * scale, dimension, digits)


def rounded(number: float, digits: int = 3) -> str:
    """Return *number* with *digits* significant digits, or all digits before the point; exponents only beyond 15 digits.

    Thousands are separated by commas.
    """
    if abs(number) < 1e9:
        number = float(f"{number:.12g}")  # sums of the same terms in another order are rounded alike
    if 10 ** (digits - 1) <= abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:,.{digits}g}"
