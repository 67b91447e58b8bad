"""Which values does ``1..16`` mean? ``A..B[:n]``: n values from A to B; without n, doublings from A up to B."""

from __future__ import annotations

import re

from sim.spec.yaml import SpecError

_RANGE = re.compile(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*(?::\s*(\d+))?)?\s*")


def whole_numbers(text: str, option: str) -> list[int]:
    """Return the positive whole numbers that *text* (``4``, ``1..16``, ``1..16:4``) means; *option* names it in messages."""
    match = _RANGE.fullmatch(text)
    text = text or repr("")
    if match is None:
        raise SpecError(f"{option} {text}: write a number such as 4, or a range such as 1..16 (doubling) or 1..16:6 (6 values)")
    low, high, count = (int(part) if part else None for part in match.groups())
    if not low:
        raise SpecError(f"{option} {text}: write 1 or more")
    if high is None:
        return [low]
    if high < low:
        raise SpecError(f"{option} {text}: a range goes up; write {high}..{low}")
    if count is None:
        return [*_doublings(low, high), high]
    if count < 1:
        raise SpecError(f"{option} {text}: write 1 or more values after ':'")
    step = (high - low) / max(count - 1, 1)
    return list(dict.fromkeys(round(low + index * step) for index in range(count)))


def one_number(text: str | None, option: str) -> int | None:
    """Return the one whole number that *text* means, if there is any; *option* names it in messages."""
    found = whole_numbers(text, option) if text is not None else [None]
    if len(found) != 1:
        raise SpecError(f"{option} {text}: one number is due here")
    return found[0]


def _doublings(low: int, high: int) -> list[int]:
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return values
