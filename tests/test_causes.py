"""Oracle: the closed list of causes."""

from __future__ import annotations

from sim.causes import COLORS, MEANINGS
from sim.events import LAYOUT_STALLS


def test_every_cause_has_a_color_of_its_own_and_words() -> None:
    assert tuple(COLORS) == tuple(MEANINGS) == LAYOUT_STALLS
    assert len(set(COLORS.values())) == len(set(MEANINGS.values())) == len(LAYOUT_STALLS)
