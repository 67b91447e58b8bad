"""Which parameters explain measured times, and how sure are they? The most probable ones, with 95% intervals.

A time is a sum of parts, ``t = sum_k design[k] * exp(x_k)``: a fixed cost and one for each FLOP, byte or step. Measured times scatter about
it by a factor whose logarithm is normal, with one spread for all points, which is not known. Each ``x_k`` has a normal prior. The maximum
a posteriori is found by Gauss-Newton steps with damping (Nocedal and Wright, Numerical Optimization, 2006, section 10.3); the covariance is
that of the linearised problem (Bishop, Pattern Recognition and Machine Learning, 2006, section 4.4). Points beyond two spreads count by
their distance, not its square (Huber, Robust Statistics, 1981), so that a kernel that is odd does not decide the others. As the spread is
estimated from the same points, an interval takes Student's t with as many degrees of freedom as points exceed parameters that data decide.

A parameter that the data do not narrow to half of its prior is *not identified*: its interval is the prior's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.spec.yaml import SpecError

Vector = NDArray[np.float64]

LEAST_NOISE: Final = 0.01
"""Relative: what a repetition of the same probe on a quiet machine differs by at least."""
NARROWED: Final = 0.5
"""Share of the prior's width below which the data have decided a parameter."""
LEVEL: Final = 0.95
VAGUE: Final = 3.0
"""Width of a prior that says little: a factor of 20 either way within one standard deviation."""
ROBUST: Final = 2.0
"""Spreads, by the median distance, from which a point counts by its distance."""
_ROUNDS: Final = 40
_TURNS: Final = 6
"""Of parameters, spread and weights by turns."""
_CLOSE: Final = 1e-7


class Unknown(NamedTuple):
    """One parameter: its usual value, and the width of the normal prior of its logarithm."""

    name: str
    usual: float
    width: float = VAGUE


@dataclass(frozen=True)
class PosteriorEstimate:
    """One parameter found."""

    name: str
    value: float
    low: float
    """Ends of the 95% interval."""
    high: float
    identified: bool
    """Whether the data, and not the prior alone, say so."""


@dataclass(frozen=True)
class Posterior:
    """What was found, and how the points lie about it."""

    estimates: tuple[PosteriorEstimate, ...]
    noise: float
    """Standard deviation of the logarithm of a time about the model."""
    residuals: Vector
    """Logarithm of measured over modelled, one a point."""

    def __getitem__(self, name: str) -> PosteriorEstimate:
        """Return the parameter *name*."""
        return next(estimate for estimate in self.estimates if estimate.name == name)


PosteriorModel = Callable[[Vector], tuple[Vector, Vector]]
"""Of the logarithms of parameters: the logarithms of the times they make, one a point, and their slopes, one row a point."""


def explain(design: Vector, times: Vector, unknowns: Sequence[Unknown]) -> Posterior:
    """Return the parameters that explain *times* (s); row i of *design* holds what each parameter counts for in time i.

    Raise SpecError where there is no time to explain, or one is not positive.
    """

    def model(here: Vector) -> tuple[Vector, Vector]:
        parts = design * np.exp(here)
        total = parts.sum(axis=1)
        return np.log(total), parts / total[:, None]

    return explain_by(model, times, unknowns)


def explain_by(model: PosteriorModel, times: Vector, unknowns: Sequence[Unknown]) -> Posterior:
    """Return the parameters of any *model* that explain *times* (s); for the rest see `explain`."""
    if not len(times) or not np.all(times > 0):
        raise SpecError("nothing to fit: expected times above zero")
    usual, widths = np.log([one.usual for one in unknowns]), np.array([one.width for one in unknowns])
    logs, values, noise, weights = np.log(times), np.array(usual), 0.1, np.ones(len(times))
    for _ in range(_TURNS):
        values = _climbed(_Points(model, logs, weights / noise**2, usual, widths), values)
        modelled, slope = model(values)
        residuals = logs - modelled
        precision = slope.T @ (slope * weights[:, None]) / noise**2
        covariance = np.linalg.inv(precision + np.diag(widths**-2.0))
        freedom = max(1.0, len(times) - float(np.trace(covariance @ precision)))
        noise = max(LEAST_NOISE, math.sqrt(float(residuals @ (weights * residuals)) / freedom))
        weights = 1.0 / np.maximum(1.0, np.abs(residuals) / (ROBUST * max(LEAST_NOISE, 1.4826 * float(np.median(np.abs(residuals))))))
    estimates = (
        _estimate(one, mean, math.sqrt(spread), freedom) for one, mean, spread in zip(unknowns, values, np.diag(covariance), strict=True)
    )
    return Posterior(tuple(estimates), noise, residuals)


class _Points(NamedTuple):
    """What is explained: logarithms of times with their precision, and the priors."""

    model: PosteriorModel
    logs: Vector
    precision: Vector
    usual: Vector
    widths: Vector

    def doubt(self, here: Vector, residuals: Vector) -> float:
        """Return minus twice the logarithm of the probability of *here*, which leaves *residuals*, but for a constant."""
        return float(residuals @ (self.precision * residuals) + np.sum(((here - self.usual) / self.widths) ** 2))

    def at(self, here: Vector) -> tuple[Vector, Vector, float]:
        """Return residuals, slopes and doubt at *here*."""
        modelled, slope = self.model(here)
        residuals = self.logs - modelled
        return residuals, slope, self.doubt(here, residuals)


def _climbed(points: _Points, here: Vector) -> Vector:
    """Return the most probable parameters of *points*, from *here* on."""
    damping, (residuals, slope, doubt) = 1e-3, points.at(here)
    for _ in range(_ROUNDS):
        weighted = slope * points.precision[:, None]
        curvature = slope.T @ weighted + np.diag(points.widths**-2.0)
        gradient = weighted.T @ residuals - (here - points.usual) / points.widths**2
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
        there = here + np.clip(step, -2.0, 2.0)
        point = points.at(there)
        if point[2] > doubt:
            damping *= 8.0
            continue
        gained = doubt - point[2]
        here, damping, (residuals, slope, doubt) = there, damping / 4.0, point
        if gained < _CLOSE:
            break
    return here


def _estimate(unknown: Unknown, mean: float, spread: float, freedom: float) -> PosteriorEstimate:
    identified = spread < NARROWED * unknown.width
    reach = (student(freedom) if identified else student(math.inf)) * spread
    return PosteriorEstimate(unknown.name, math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), identified)


def student(freedom: float) -> float:
    """Return the half width of a 95% interval in standard deviations: 1.96, and more where the spread is known from few points."""
    from scipy.stats import norm, t

    reach: Any = norm.ppf(0.5 + LEVEL / 2) if math.isinf(freedom) else t.ppf(0.5 + LEVEL / 2, freedom)
    return float(reach)


def mean_of(name: str, values: Sequence[float]) -> Posterior:
    """Return the typical one of repeated positive *values*, as the only parameter *name*."""
    usual = float(np.median(values)) if len(values) else 1.0
    return explain(np.ones((len(values), 1)), np.array(values, dtype=float), [Unknown(name, usual)])
