"""Which values does ``1..16`` mean? ``A..B[:n]``: n values from A to B; without n, doublings from A up to B."""

from __future__ import annotations

import re

from sim.spec.yaml import SpecError
from sim.units import shorten

_RANGE = re.compile(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*(?::\s*(\d+))?)?\s*")


MOST_VALUES = 1_000
"""Maximum number of values of one range; each is a run."""
MOST = {"--nodes": 100_000, "--gpus": 1_000_000}
"""The largest number of an option: an order of magnitude above any cluster."""


def whole_numbers(text: str | None, option: str) -> list[int]:
    """Return the positive whole numbers that *text* (``4``, ``1..16``, ``1..16:4``; None: none) means; *option* names it in messages."""
    if text is None:
        return []
    match = _RANGE.fullmatch(text)
    text = text or repr("")
    if len(text) > 100:
        raise SpecError(f"{option} {shorten(text)}: write a number such as 4")
    if match is None:
        raise SpecError(f"{option} {text}: write a number such as 4, or a range such as 1..16 (doubling) or 1..16:6 (6 values)")
    low, high, count = (int(part) if part else None for part in match.groups())
    if not low:
        raise SpecError(f"{option} {text}: write 1 or more")
    most = MOST.get(option, 10**9)
    if max(low, high or low) > most:
        raise SpecError(f"{option} {text}: write {most:,} or less")
    if high is None:
        return [low]
    if high < low:
        raise SpecError(f"{option} {text}: a range goes up{f'; write {high}..{low}' if high else ' from 1 or more'}")
    if count is None:
        return [*_doublings(low, high), high]
    if count < 1:
        raise SpecError(f"{option} {text}: write 1 or more values after ':'")
    if min(count, high - low + 1) > MOST_VALUES:
        raise SpecError(
            f"{option} {text}: {min(count, high - low + 1):,} runs are more than the {MOST_VALUES:,} allowed; did you mean "
            f"{low}..{high}:10?"
        )
    step = (high - low) / max(count - 1, 1)
    return list(dict.fromkeys(round(low + index * step) for index in range(count)))


def listed_numbers(text: str | None, option: str) -> list[int]:
    """Return the numbers of *text*, which may be a list of numbers and ranges, such as ``1,2,4``; *option* names it in messages."""
    if text is None:
        return []
    parts = [whole_numbers(part, option) for part in text.split(",")]
    return list(dict.fromkeys(number for numbers in parts for number in numbers))


def one_number(text: str | None, option: str) -> int | None:
    """Return the single whole number in *text*, if there is any text; *option* names it in messages."""
    numbers = whole_numbers(text, option)
    if len(numbers) > 1:
        raise SpecError(f"{option} {text}: expected one number, such as {option} {numbers[-1]}")
    return numbers[0] if numbers else None


def _doublings(low: int, high: int) -> list[int]:
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return values
