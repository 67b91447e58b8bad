"""Why does subtracting two runs give a different stall than the waits of one run? This module explains the difference cause by cause.

The causes of a step sum to its time. With x the cause of the stall and S the seconds of a run by cause, this holds exactly::

    T(after) - T(before) = S_after(x) + sum over causes c other than x of (S_after(c) - S_before(c)) - S_before(x)

The left side is the stall by subtraction (Stash, DS-Analyzer). The first term on the right is the stall by direct attribution. Each other
term is a `StallGap`: another cause *grows*, and subtraction counts the growth as the stall; another cause is *hidden* because it now
overlaps with other waits, and subtraction deducts it; or the stall is in the first run *as well*, where subtraction does not see it.
Subtraction also treats the whole first run as compute, including its waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sim.events import Cause

GapKind = Literal["grows", "hidden", "as well"]


class StallGap(NamedTuple):
    """A cause that makes subtraction and direct attribution differ, with its seconds per step in the run before and in the run after."""

    cause: Cause
    kind: GapKind
    before: float
    after: float

    @property
    def seconds(self) -> float:
        """Return how many seconds longer it makes the stall by subtraction than the stall by direct attribution."""
        return -self.before if self.kind == "as well" else self.after - self.before


class StallComparison(NamedTuple):
    """One stall (seconds per step) by both methods and the gaps between them: ``subtraction = direct + sum of the gaps``."""

    subtraction: float
    direct: float
    gaps: tuple[StallGap, ...]


def compare_methods(own: Cause, before: Mapping[Cause, float], after: Mapping[Cause, float]) -> StallComparison:
    """Return the stall of cause *own* by both methods, given the seconds per step of each cause in both runs; largest gaps first."""
    gaps = [StallGap(own, "as well", before[own], after[own])]
    gaps += [
        StallGap(cause, "grows" if after[cause] > before[cause] else "hidden", before[cause], after[cause])
        for cause in after
        if cause != own
    ]
    kept = sorted((gap for gap in gaps if gap.seconds), key=lambda gap: -abs(gap.seconds))
    return StallComparison(sum(after.values()) - sum(before.values()), after[own], tuple(kept))
