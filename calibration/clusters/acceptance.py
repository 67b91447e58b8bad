"""Which fitted constants predict rows that they were not fitted on? Those are kept; what predicts no better than its prior stays there.

Each calibrating row is left out in turn, and the others' most probable constants predict it; one linearisation about the fit of all rows
serves all turns (the formula for leaving one out of a ridge regression is exact there: Allen, Technometrics 16, 1974). Constants go that
are not worth a margin beside their priors, the least useful first. A row counts by its ranks: predictions are asked about more of them.
What one row alone tells of, as the loss of its own job, says nothing of it when it is left out: it only widens its scatter.

Rows of one job share what its description gets wrong, and rows of one scale were run together; a row left out alone is told by its like.
What is asked of a calibration are other jobs and other scales: constants go as well that predict a job or a scale left out whole worse
than their priors do (leaving out by what rows share: Roberts et al., Ecography 40, 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from calibration.clusters.scatter import ROBUST, loss

if TYPE_CHECKING:
    import numpy as np

ALONE: Final = 0.5
"""Share of its own fitted value from which a row tells it nearly alone: more than all others and the prior together."""
MARGIN: Final = 0.5
"""Logarithm of odds by which left-out rows must be more probable: less is within what a few rows tell (estimate)."""


class Shared(NamedTuple):
    """What rows have in common: a number a row, of its job or its scale; rows of one number are left out together as well."""

    of_row: tuple[int, ...]
    theirs: frozenset[int] = frozenset()
    """Constants (indices) that belong to one of them, so that the others are not asked for them."""


@dataclass(frozen=True)
class Linear:
    """Rows about a fit of constants (log factors): what they were missed by there, and how they move with each constant."""

    missed: np.ndarray
    """Logarithm of predicted over measured step time, one a row."""
    slope: np.ndarray
    """Change of that logarithm with each constant, rows by constants."""
    values: np.ndarray
    """The constants of the fit."""
    widths: np.ndarray
    """Standard deviations of their priors about zero."""
    sigma: np.ndarray
    """Standard deviation of each row's logarithm."""
    weights: np.ndarray
    """Of the rows in the fit, one on average."""
    counts: np.ndarray
    """Of the rows when predictions are judged."""
    described: np.ndarray
    """What the rows are missed by with all constants at their priors: simulated, for a step is no straight line that far away."""
    own: tuple[int, ...] = ()
    """Constants (indices) of one row each."""
    shared: tuple[Shared, ...] = ()

    @property
    def alone(self) -> np.ndarray:
        """Return the variance of each row that comes of the constants that it tells alone."""
        import numpy as np

        own = list(self.own)
        return np.asarray(((self.slope[:, own] * self.widths[own]) ** 2).sum(axis=1))

    @property
    def ways(self) -> range:
        """Return the ways of leaving rows out: one at a time, then by each of what they share."""
        return range(1 + len(self.shared))

    def left_out(self, kept: Sequence[int], way: int = 0) -> np.ndarray:
        """Return the miss of each row, predicted without the rows left out beside it, with only the constants *kept* (indices) free.

        A row of which those left out are nearly the only ones to tell is predicted by the prior.
        """
        import numpy as np

        kept = [one for one in kept if one not in self.own]
        if not kept:
            return self.described
        wanted = self.slope @ self.values - self.missed  # what the constants would have to say of each row
        slope = self.slope[:, kept]
        robust = 1.0 / np.sqrt(1.0 + (self.missed / self.sigma / ROBUST) ** 2)
        precision = 1.0 / (self.sigma**2 / (self.weights * robust) + self.alone)
        curvature = slope.T @ (slope * precision[:, None]) + np.diag(self.widths[kept] ** -2.0)
        spread = np.linalg.solve(curvature, slope.T)
        found = spread @ (precision * wanted)
        of_row = range(len(wanted)) if way == 0 else self.shared[way - 1].of_row
        here, missed = slope @ found - wanted, np.array(self.described)
        for number in set(of_row):
            out = np.flatnonzero(np.array(of_row) == number)
            rest = np.linalg.inv((1.0 + 1e-9) * np.eye(len(out)) - (slope[out] @ spread[:, out]) * precision[out])
            told = 1.0 - 1.0 / np.diagonal(rest) <= ALONE  # of one row: its lever
            missed[out[told]] = (rest @ here[out])[told]
        return missed

    def doubt(self, missed: np.ndarray) -> float:
        """Return how improbable rows are that are *missed* by so much."""
        import numpy as np

        return float(np.sum(self.counts * loss(missed / np.sqrt(self.sigma**2 + self.alone))))


def useful(about: Linear, blocks: Sequence[Sequence[int]]) -> list[int]:
    """Return the constants (indices) to be fitted, of *blocks* that act at one place each; what is in no block is not judged.

    A block, or all together, goes unless it predicts single rows left out better by `MARGIN` than with its constants at their priors, and
    where it predicts jobs or scales worse by as much. So does a single constant of several, where it is worse in either: constants of one
    place explain the same rows, and which of them carries a loss decides how it grows with scale. So what is returned never predicts rows
    left out worse than the priors of all that is judged.
    """
    kept = list(range(len(about.values)))
    tried: list[tuple[tuple[int, ...], int, float]] = []
    for way in about.ways:
        theirs = about.shared[way - 1].theirs if way else frozenset[int]()
        judged = [tuple(block) for block in blocks if not theirs & set(block)]
        together = tuple(one for block in judged for one in block)
        tried += [(block, way, -MARGIN if way else MARGIN) for block in (*judged, together)]
        tried += [((one,), way, -MARGIN) for one in together]
    while True:
        here = [about.doubt(about.left_out(kept, way)) for way in about.ways]
        gain, worst = -1.0, tuple[int, ...]()
        for block, way, margin in tried:
            if set(block) & set(kept):
                without = about.doubt(about.left_out([other for other in kept if other not in block], way))
                gain, worst = max((gain, worst), (here[way] + margin - without, block))
        if gain < 0.0:
            return kept
        kept = [other for other in kept if other not in worst]
