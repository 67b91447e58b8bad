"""Why does subtracting two runs find another stall than the waits of one run? What else differs between the runs, cause by cause.

The causes of a step sum to it, so with x the stall's own cause and S a run's seconds by cause, exactly::

    T(after) - T(before) = S_after(x) + sum over causes c other than x of (S_after(c) - S_before(c)) - S_before(x)

The left side is the stall by subtraction (Stash, DS-Analyzer), the first term on the right what direct attribution finds. Each other
term is a `Gap`: another cause *grows*, which subtraction counts as the stall; it is *hidden*, since it passes unseen during other
waits, which subtraction takes off; or the stall is in the run before *as well*, where subtraction does not see it. Subtraction also takes
all of the first run for compute, its waits included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sim.events import Cause

GapKind = Literal["grows", "hidden", "as well"]


class Gap(NamedTuple):
    """A cause that keeps subtraction and direct attribution apart: its seconds per step in the run before and in the one after."""

    cause: Cause
    kind: GapKind
    before: float
    after: float

    @property
    def seconds(self) -> float:
        """Return by how much it makes the stall longer by subtraction than by direct attribution."""
        return -self.before if self.kind == "as well" else self.after - self.before


class Apart(NamedTuple):
    """One stall (seconds per step) by both methods, and what keeps them apart: ``subtraction = direct + sum of the gaps``."""

    subtraction: float
    direct: float
    gaps: tuple[Gap, ...]


def apart(own: Cause, before: Mapping[Cause, float], after: Mapping[Cause, float]) -> Apart:
    """Return the stall of cause *own* between two runs, given the seconds per step of each cause in both; large gaps first."""
    gaps = [Gap(own, "as well", before[own], after[own])]
    gaps += [
        Gap(cause, "grows" if after[cause] > before[cause] else "hidden", before[cause], after[cause]) for cause in after if cause != own
    ]
    kept = sorted((gap for gap in gaps if gap.seconds), key=lambda gap: -abs(gap.seconds))
    return Apart(sum(after.values()) - sum(before.values()), after[own], tuple(kept))
