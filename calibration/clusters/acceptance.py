"""Which fitted constants predict rows that they were not fitted to? Those are kept; the others stay at their priors.

Each calibrating row is left out in turn and predicted with the most probable constants of the others. One linearization around the fit of
all rows serves all turns (the leave-one-out formula of ridge regression is exact there: Allen, Technometrics 16, 1974). Constants that do
not improve on their priors by a margin are dropped, the least useful first. A row counts in proportion to its ranks, because predictions
are mostly for more ranks. A constant that only one row determines, such as the slowdown of its own job, cannot be fitted when that row is
left out: it only widens the row's scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calibration.clusters.scatter import LINEAR_LOSS_DEVIATIONS, loss

if TYPE_CHECKING:
    import numpy as np

MOST_LEVERAGE: Final = 0.5
"""Leverage above which a row determines its own fitted value nearly alone: it counts more than all others and the prior together."""
LEAST_LOG_ODDS: Final = 0.5
"""Log odds by which left-out rows must be more probable; less is not significant with a few rows (estimate)."""


@dataclass(frozen=True)
class LinearizedFit:
    """Rows, linearized around a fit of constants (log factors): their errors there, and their changes with each constant."""

    errors: np.ndarray
    """Logarithm of predicted over measured step time, one per row."""
    slopes: np.ndarray
    """Derivative of that logarithm with respect to each constant, rows by constants."""
    values: np.ndarray
    """The constants of the fit."""
    widths: np.ndarray
    """Standard deviations of their priors about zero."""
    sigma: np.ndarray
    """Standard deviation of each row's logarithm."""
    weights: np.ndarray
    """Weights of the rows in the fit, 1 on average."""
    counts: np.ndarray
    """Weights of the rows when predictions are judged."""
    prior_errors: np.ndarray
    """Errors of the rows with all constants at their priors; simulated, because the linearization does not reach that far."""
    single_row_constants: tuple[int, ...] = ()
    """Constants (indices) that only one row determines."""

    @property
    def single_row_variance(self) -> np.ndarray:
        """Return the variance of each row due to the constants that it alone determines."""
        import numpy as np

        own = list(self.single_row_constants)
        return np.asarray(((self.slopes[:, own] * self.widths[own]) ** 2).sum(axis=1))

    def left_out_errors(self, kept: Sequence[int]) -> np.ndarray:
        """Return the error of each row, predicted from the others with only the constants *kept* (indices) free.

        A row that determines its fitted value nearly alone is predicted by the prior when it is left out.
        """
        import numpy as np

        kept = [one for one in kept if one not in self.single_row_constants]
        if not kept:
            return self.prior_errors
        wanted = self.slopes @ self.values - self.errors  # the contribution of the constants that each row requires
        slope = self.slopes[:, kept]
        robust = 1.0 / np.sqrt(1.0 + (self.errors / self.sigma / LINEAR_LOSS_DEVIATIONS) ** 2)
        precision = 1.0 / (self.sigma**2 / (self.weights * robust) + self.single_row_variance)
        curvature = slope.T @ (slope * precision[:, None]) + np.diag(self.widths[kept] ** -2.0)
        spread = np.linalg.solve(curvature, slope.T)
        moved = spread @ (precision * wanted)
        lever = np.minimum(precision * np.einsum("ij,ji->i", slope, spread), 1.0 - 1e-9)
        return np.where(lever > MOST_LEVERAGE, self.prior_errors, (slope @ moved - wanted) / (1.0 - lever))

    def misfit(self, errors: np.ndarray) -> float:
        """Return the negative log-likelihood, up to a constant, of rows with the errors *errors*."""
        import numpy as np

        return float(np.sum(self.counts * loss(errors / np.sqrt(self.sigma**2 + self.single_row_variance))))


def select_constants(fit: LinearizedFit, blocks: Sequence[Sequence[int]]) -> list[int]:
    """Return the constants (indices) to fit. Each of *blocks* has those that act at one place; a constant in no block is always kept.

    A block, or all blocks together, is dropped unless it predicts left-out rows better by `LEAST_LOG_ODDS` than with its constants at their
    priors. A single constant is dropped only if predictions are worse with it by `LEAST_LOG_ODDS`, because constants of one place explain
    the same rows, but losses grow differently with scale. So the result never predicts left-out rows worse than the priors do.
    """
    kept = list(range(len(fit.values)))
    here = fit.misfit(fit.left_out_errors(kept))
    all_constants = tuple(one for block in blocks for one in block)
    tried = [(tuple(block), LEAST_LOG_ODDS) for block in (*blocks, all_constants)] + [((one,), -LEAST_LOG_ODDS) for one in all_constants]
    while True:
        candidates = [(one, margin) for one, margin in tried if set(one) & set(kept)]
        gains = [
            (here + margin - fit.misfit(fit.left_out_errors([other for other in kept if other not in one])), one)
            for one, margin in candidates
        ]
        gain, worst = max(gains, default=(-1.0, ()))
        if gain < 0.0:
            return kept
        kept = [other for other in kept if other not in worst]
        here = fit.misfit(fit.left_out_errors(kept))
