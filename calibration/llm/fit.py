"""Which constants fit the measured runs? Gauss-Newton on log step times, shrunk toward the priors, with each source left out in turn.

A source weighs as much as its rows, up to `ROWS_THAT_COUNT`. Large errors count less (a Cauchy-like weight), so that outliers do not
distort a rate. One Jacobian serves all folds: a fold solves the linearized problem without the rows of its source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from calibration.llm.case import Case
from calibration.llm.closed_form import step
from calibration.llm.priors import priors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS_THAT_COUNT: Final = 60.0
NOISE: Final = 0.08
"""Deviation of a row's log step time that counts as noise: repeats, and details that a table does not state (estimate)."""
ROUNDS: Final = 30
"""Rounds after which a fit that has not converged is an error."""
FULL_ROUNDS: Final = 5
"""Rounds that take full steps. Later ones take ever smaller ones: a step time is a maximum of host and GPU, so the linearized problem has
kinks, across which full steps jump back and forth."""
SHRINKING: Final = 0.6
"""Length of a later round's step, relative to that of the round before."""
TOLERANCE: Final = 0.005
"""The fit has converged if no constant's logarithm changes by more than this in a round."""
CONFIRMED: Final = ("host.experts",)
"""Constants that stay at their prior unless runs of `SOURCES_NEEDED` sources depend on them."""
SOURCES_NEEDED: Final = 2
"""As for factors by generation of GPUs (`published.LEAST_SOURCES`): a single source may be an exception (estimate). Without
Megatron-Bridge, three runs of one configuration alone determined the host's time for experts."""
SHOWN: Final = 0.01
"""Smallest elasticity of a step to a constant with which a run counts as depending on it (estimate)."""
FIXED: Final = 1e-6
"""Width of the prior of a constant that is not fitted."""
DIFFERENCE_STEP: Final = 0.02
"""Change of a constant's logarithm by which derivatives are estimated."""


def is_usable(case: Case) -> bool:
    """Return whether *case* is used in fits: it ran, was measured, and is within the limits of its source."""
    return bool(case.row.status == "ok" and case.measured and case.is_within(case.fitted_within))


def thin(cases: Sequence[Case], most: int = 120) -> list[Case]:
    """Return at most *most* cases of each source, sampled evenly."""
    total = Counter(case.row.source for case in cases)
    passed: Counter[str] = Counter()
    kept = []
    for case in cases:
        source = case.row.source
        number = passed[source]
        passed[source] += 1
        stride = max(1.0, total[source] / most)
        if math.floor(number / stride) != math.floor((number - 1) / stride):
            kept.append(case)
    return kept


def fit(cases: Sequence[Case]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the constants fitted to *cases* and, by source, those fitted without that source."""
    import numpy as np

    rows = thin([case for case in cases if is_usable(case)])
    prior_of = priors()
    names = list(prior_of)
    prior = np.log([prior_of[name].value for name in names])
    deviation = np.array([prior_of[name].width for name in names])
    counts = Counter(case.row.source for case in rows)
    base = np.array([min(1.0, ROWS_THAT_COUNT / counts[case.row.source]) for case in rows])
    theta = prior.copy()
    residual = _residuals(rows, names, theta)
    jacobian = at_priors = _jacobian(rows, names, theta, residual)
    widths = _widths([case.row.source for case in rows], names, at_priors, deviation)
    for round_number in range(ROUNDS):
        jacobian = _jacobian(rows, names, theta, residual) if round_number else at_priors
        before, solved = theta, _solve(theta, residual, jacobian, base, prior, widths)
        theta = before + SHRINKING ** max(0, round_number - FULL_ROUNDS) * (solved - before)
        residual = _residuals(rows, names, theta)
        if np.max(np.abs(theta - before)) < TOLERANCE:
            break
    else:
        raise ValueError(f"the fit of {len(names)} constants moves on after {ROUNDS} rounds")
    without = {}
    for source in sorted(counts):
        keep = np.array([case.row.source != source for case in rows])
        widths = _widths([case.row.source for case in rows if case.row.source != source], names, at_priors[keep], deviation)
        fold = _solve(theta, residual[keep], jacobian[keep], base[keep], prior, widths)
        fold = np.where(widths == FIXED, prior, fold)  # further away than one solution moves
        without[source] = dict(zip(names, np.exp(fold).tolist(), strict=True))
    return dict(zip(names, np.exp(theta).tolist(), strict=True)), without


def _widths(
    sources: Sequence[str], names: Sequence[str], at_priors: NDArray[np.float64], deviation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return *deviation* with `FIXED` for those of `CONFIRMED` on which runs of too few *sources* (one a row) depend at the priors."""
    widths = deviation.copy()
    for index in map(names.index, CONFIRMED):
        shown = {source for source, slope in zip(sources, at_priors[:, index], strict=True) if abs(slope) > SHOWN}
        if len(shown) < SOURCES_NEEDED:
            widths[index] = FIXED
    return widths


def _residuals(rows: Sequence[Case], names: Sequence[str], theta: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    at = dict(zip(names, np.exp(theta).tolist(), strict=True))
    return np.array([math.log(step(case, at)[0] / (case.measured or 1.0)) for case in rows])


def _jacobian(rows: Sequence[Case], names: Sequence[str], theta: NDArray[np.float64], residual: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    columns = []
    for index in range(len(names)):
        moved = theta.copy()
        moved[index] += DIFFERENCE_STEP
        columns.append((_residuals(rows, names, moved) - residual) / DIFFERENCE_STEP)
    return np.array(columns).T


def _solve(
    theta: NDArray[np.float64],
    residual: NDArray[np.float64],
    jacobian: NDArray[np.float64],
    base: NDArray[np.float64],
    prior: NDArray[np.float64],
    deviation: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the logarithms of the constants that minimize the linearized errors plus their distance from the priors."""
    import numpy as np

    moved = np.zeros_like(theta)
    for _ in range(6):
        errors = residual + jacobian @ moved
        weight = base / (NOISE**2 + errors**2)
        left = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / deviation**2)
        right = -jacobian.T @ (weight * residual) - (theta - prior) / deviation**2
        moved = np.clip(np.linalg.solve(left, right), -1.0, 1.0)
    return theta + moved
