"""How are contradictory fields rejected? Each check is paired with an error message; the first one that applies is raised."""

from __future__ import annotations

from collections.abc import Iterable

Contradiction = tuple[bool, str]
"""Whether some fields contradict each other, and the error message for it."""


def refuse(contradictions: Iterable[Contradiction]) -> None:
    """Raise ValueError with the message of the first of *contradictions* that applies."""
    for holds, sentence in contradictions:
        if holds:
            raise ValueError(sentence)
