"""How are rows laid out in a terminal? In aligned columns under titles, with text to the left and figures to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Title(NamedTuple):
    """The title of a column; *left* aligns it to the left, as for text."""

    text: str
    left: bool = False


def align(titles: Sequence[Title], rows: Sequence[Sequence[str]]) -> str:
    """Return *rows* of cells below *titles*, two spaces between columns."""
    lines = [[title.text for title in titles], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if title.left else cell.rjust(width) for cell, width, title in zip(line, widths, titles, strict=True)
        ).rstrip()
        for line in lines
    )
