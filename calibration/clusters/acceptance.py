"""Which fitted constants predict rows that they were not fitted on? Those are kept; what predicts no better than its prior stays there.

Each calibrating row is left out in turn, and the others' most probable constants predict it; one linearisation about the fit of all rows
serves all turns (the formula for leaving one out of a ridge regression is exact there: Allen, Technometrics 16, 1974). Constants go that
are not worth a margin beside their priors, the least useful first. A row counts by its ranks: predictions are asked about more of them.
What one row alone tells of, as the loss of its own job, says nothing of it when it is left out: it only widens its scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calibration.clusters.scatter import ROBUST, loss

if TYPE_CHECKING:
    import numpy as np

ALONE: Final = 0.5
"""Share of its own fitted value from which a row tells it nearly alone: more than all others and the prior together."""
MARGIN: Final = 0.5
"""Logarithm of odds by which left-out rows must be more probable: less is within what a few rows tell (estimate)."""


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

    @property
    def alone(self) -> np.ndarray:
        """Return the variance of each row that comes of the constants that it tells alone."""
        import numpy as np

        own = list(self.own)
        return np.asarray(((self.slope[:, own] * self.widths[own]) ** 2).sum(axis=1))

    def left_out(self, kept: Sequence[int]) -> np.ndarray:
        """Return the miss of each row, predicted by the others with only the constants *kept* (indices) free.

        A row that is nearly the only one to tell of a constant is predicted by the prior where it is left out.
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
        moved = spread @ (precision * wanted)
        lever = np.minimum(precision * np.einsum("ij,ji->i", slope, spread), 1.0 - 1e-9)
        return np.where(lever > ALONE, self.described, (slope @ moved - wanted) / (1.0 - lever))

    def doubt(self, missed: np.ndarray) -> float:
        """Return how improbable rows are that are *missed* by so much."""
        import numpy as np

        return float(np.sum(self.counts * loss(missed / np.sqrt(self.sigma**2 + self.alone))))


def useful(about: Linear, blocks: Sequence[Sequence[int]]) -> list[int]:
    """Return the constants (indices) to be fitted, of *blocks* that act at one place each; what is in no block is not judged.

    A block, or all together, goes unless it predicts rows left out better by `MARGIN` than with its constants at their priors; a single
    constant of several goes where it is worse by as much: constants of one place explain the same rows, and which of them carries a loss
    decides how it grows with scale. So what is returned never predicts rows left out worse than the priors of all that is judged.
    """
    kept = list(range(len(about.values)))
    here = about.doubt(about.left_out(kept))
    together = tuple(one for block in blocks for one in block)
    tried = [(tuple(block), MARGIN) for block in (*blocks, together)] + [((one,), -MARGIN) for one in together]
    while True:
        left = [(one, margin) for one, margin in tried if set(one) & set(kept)]
        gains = [(here + margin - about.doubt(about.left_out([other for other in kept if other not in one])), one) for one, margin in left]
        gain, worst = max(gains, default=(-1.0, ()))
        if gain < 0.0:
            return kept
        kept = [other for other in kept if other not in worst]
        here = about.doubt(about.left_out(kept))
