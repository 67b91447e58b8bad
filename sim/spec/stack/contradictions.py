"""How are fields refused that contradict each other? Each contradiction with the sentence that says so; the first that holds is raised."""

from __future__ import annotations

from collections.abc import Iterable

Contradiction = tuple[bool, str]
"""Whether fields contradict each other in some way, and the sentence that says so."""


def refuse(contradictions: Iterable[Contradiction]) -> None:
    """Raise ValueError with the sentence of the first of *contradictions* that holds."""
    for holds, sentence in contradictions:
        if holds:
            raise ValueError(sentence)
