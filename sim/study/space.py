"""Which points does a sweep visit? A grid, or a Sobol sequence, over the fields that ``--vary KEY=VALUES`` names.

``10..400 Gbps:7`` is seven values from 10 to 400 Gbps, evenly spaced (``1..64:log4`` evenly in the logarithm), ``25,50,100 Gbps`` is a
list, and ``64..512`` doubles. A unit is written once, at the end, for all values; words and numbers without a unit are used as they are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sim.spec.yaml import SpecError
from sim.units import shorten

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_SPAN = re.compile(rf"\s*({_NUMBER})\s*(\S*?)\s*\.\.\s*({_NUMBER})\s*([^:]*?)\s*(?::\s*(log)?\s*(\d+))?\s*", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_NUMBER})\s*(.*?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class SweptField:
    """One field and the values it takes, as they would be written in YAML."""

    key: str
    values: tuple[str, ...]
    range_ends: tuple[float, float] | None = None
    """Smallest and largest number of a range, between which a Sobol sequence draws; None for a list."""
    unit: str = ""
    is_integer: bool = False
    """Whether both ends are whole numbers without a unit, so that drawn values are rounded."""

    def value_at(self, share: float) -> str:
        """Return the value at *share* (0 to 1) of the range, or of the list."""
        if self.range_ends is None:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        low, high = self.range_ends
        return _written(low + share * (high - low), self.unit, self.is_integer)


def axis(text: str) -> SweptField:
    """Return the field and values of ``KEY=VALUES``. Raise SpecError for text that cannot be read."""
    key, equals, values = text.partition("=")
    key, values = key.strip(), values.strip()
    if not equals or not key or not values:
        raise SpecError(f"--vary {text}: write KEY=VALUES, for example node.nic.bandwidth='10..400 Gbps:7'")
    span = _SPAN.fullmatch(values) if values.count("..") < 2 else None
    if span is not None:
        return _range(key, text, *span.groups())
    if ".." in values:
        raise SpecError(f"--vary {text}: write a range as two numbers, one unit and the number of values, such as 10..400 Gbps:7")
    return SweptField(key, _list(text, [part.strip() for part in values.split(",")]))


def _range(key: str, text: str, low: str, early: str, high: str, unit: str, log: str | None, count: str | None) -> SweptField:
    if early and early != unit:
        raise SpecError(f"--vary {text}: mixes the units '{early}' and '{unit}'; write one unit, at the end")
    ends = float(low), float(high)
    if ends[1] <= ends[0]:
        raise SpecError(f"--vary {text}: {_upwards(low, high, unit)}")
    if count is not None and int(count) < 2:
        raise SpecError(f"--vary {text}: write 2 or more values after ':'")
    if (log or count is None) and ends[0] <= 0:
        raise SpecError(f"--vary {text}: a logarithmic range must start above 0")
    if not all(map(math.isfinite, ends)) or len(count or "") > 20:
        raise SpecError(f"--vary {shorten(text)}: a number is too large")
    _check_count(int(count or 0), f"--vary {text}", f"{low}..{high}{' ' if unit else ''}{unit}:10")
    integral = not unit and all(end.is_integer() for end in ends)
    if count is None:
        numbers = [ends[0] * 2.0**step for step in range(math.ceil(math.log2(ends[1] / ends[0])))] + [ends[1]]
    elif log:
        numbers = [ends[0] * (ends[1] / ends[0]) ** (step / (int(count) - 1)) for step in range(int(count))]
    else:
        numbers = [ends[0] + (ends[1] - ends[0]) * step / (int(count) - 1) for step in range(int(count))]
    return SweptField(key, tuple(dict.fromkeys(_written(number, unit, integral) for number in numbers)), ends, unit, integral)


def _upwards(low: str, high: str, unit: str) -> str:
    """Return what to write instead of a range from *low* to *high*, which does not go up."""
    if float(low) == float(high):
        return f"a range needs two different ends; for one value, write {low} {unit}".rstrip()
    if float(high) <= 0:
        return "a range goes up, and without a number of values after ':' it starts above 0"
    return f"a range goes up; write {high}..{low} {unit}".rstrip()


def _list(text: str, parts: Sequence[str]) -> tuple[str, ...]:
    if not all(parts):
        raise SpecError(f"--vary {text}: a value is missing between two commas")
    read = [_VALUE.fullmatch(part) for part in parts]
    comparable = [(float(match.group(1)), match.group(2)) if match is not None else part for part, match in zip(parts, read, strict=True)]
    twice = next((part for part, value in zip(parts, comparable, strict=True) if comparable.count(value) > 1), None)
    if twice is not None:
        raise SpecError(f"--vary {text}: {twice} appears twice")
    units = {match.group(2) for match in read if match is not None and match.group(2)}
    if all(read) and len(units) > 1:
        raise SpecError(f"--vary {text}: mixes the units {', '.join(sorted(units))}; write one unit, at the end")
    if all(read) and units:
        unit = units.pop()
        return tuple(f"{match.group(1)} {unit}" for match in read if match is not None)
    return tuple(parts)


def _written(number: float, unit: str, integral: bool) -> str:
    shown = str(round(number)) if integral else f"{number:.12g}"
    return f"{shown} {unit}" if unit else shown


Point = tuple[tuple[str, str], ...]
"""Field and value of each axis."""


MOST_POINTS = 100_000
"""Maximum number of points of one sweep: a night on 16 cores at half a second each."""


def _check_count(points: int, text: str, hint: str) -> None:
    """Raise SpecError if *points* exceeds the limit of a sweep, before any point is created."""
    if points > MOST_POINTS:
        raise SpecError(f"{text}: {points:,} points are more than the {MOST_POINTS:,} allowed; did you mean {hint}?")


def grid(axes: Sequence[SweptField]) -> list[Point]:
    """Return every combination of the values of *axes*, the last axis varying fastest."""
    _once(axes)
    keys = [axis.key for axis in axes]
    _check_count(
        math.prod(len(axis.values) for axis in axes), "--vary " + " --vary ".join(keys), "--sobol 1024 (points spread over all axes)"
    )
    return [tuple(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def sobol(axes: Sequence[SweptField], points: int, seed: int) -> list[Point]:
    """Return *points* points of a scrambled Sobol sequence over *axes* (scipy.stats.qmc), the same for the same *seed*."""
    _once(axes)
    if points < 1:
        raise SpecError(f"--sobol {points}: write 1 or more points")
    _check_count(points, f"--sobol {points}", "--sobol 1024")
    from scipy.stats import qmc

    shares = qmc.Sobol(len(axes), rng=seed).random_base2(max(0, math.ceil(math.log2(points))))[:points]
    return [tuple((axis.key, axis.value_at(float(share))) for axis, share in zip(axes, row, strict=True)) for row in shares]


def points_of(texts: Sequence[str], count: int | None, seed: int) -> list[Point]:
    """Return the points of the ``KEY=VALUES`` *texts*: their grid, or *count* points of a Sobol sequence."""
    axes = [axis(text) for text in texts]
    return grid(axes) if count is None else sobol(axes, count, seed)


def _once(axes: Sequence[SweptField]) -> None:
    if not axes:
        raise SpecError("--vary KEY=VALUES: name at least one field, for example --vary node.nic.bandwidth='10..400 Gbps:7'")
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice:
        raise SpecError(f"--vary {twice}: appears twice; write all its values in one option")
