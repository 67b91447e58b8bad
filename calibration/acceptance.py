"""Which fitted constants predict rows that they were not fitted on? Those are kept; what predicts no better than its prior stays there.

Each calibrating row is left out in turn, and the others' most probable constants predict it; one linearisation about the fit of all rows
serves all turns (the formula for leaving one out of a ridge regression is exact there: Allen, Technometrics 16, 1974). A constant goes
where leaving it at its prior predicts as well, the least useful first. A row counts by its ranks: predictions are asked about more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibration.scatter import ROBUST, loss

if TYPE_CHECKING:
    import numpy as np


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

    def left_out(self, kept: Sequence[int]) -> np.ndarray:
        """Return the miss of each row, predicted by the others with only the constants *kept* (indices) free."""
        import numpy as np

        wanted = self.slope @ self.values - self.missed  # what the constants would have to say of each row
        if not len(kept):
            return np.asarray(-wanted)
        slope = self.slope[:, list(kept)]
        robust = 1.0 / np.sqrt(1.0 + (self.missed / self.sigma / ROBUST) ** 2)
        precision = self.weights * robust / self.sigma**2
        curvature = slope.T @ (slope * precision[:, None]) + np.diag(self.widths[list(kept)] ** -2.0)
        spread = np.linalg.solve(curvature, slope.T)
        found = spread @ (precision * wanted)
        lever = np.minimum(precision * np.einsum("ij,ji->i", slope, spread), 1.0 - 1e-9)
        return np.asarray((slope @ found - wanted) / (1.0 - lever))

    def doubt(self, missed: np.ndarray) -> float:
        """Return how improbable rows are that are *missed* by so much."""
        import numpy as np

        return float(np.sum(self.counts * loss(missed / self.sigma)))


def useful(about: Linear, judged: Sequence[int]) -> list[int]:
    """Return the constants (indices) to be fitted: of those *judged*, only what predicts left-out rows better than its prior does."""
    kept = list(range(len(about.values)))
    here = about.doubt(about.left_out(kept))
    while True:
        tried = [(about.doubt(about.left_out([other for other in kept if other != one])), one) for one in kept if one in judged]
        if not tried or min(tried)[0] > here:
            return kept
        here, worst = min(tried)
        kept.remove(worst)
