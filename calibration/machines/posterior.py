"""Which parameters explain measured times, and how certain are they? The maximum a posteriori, with 95% intervals.

A time is a sum of terms, ``t = sum_k design[k] * exp(x_k)``: a fixed cost and costs per FLOP, byte or step. Measured times scatter about it
with a log-normal error; its standard deviation is unknown and equal for all points. Each ``x_k`` has a normal prior. Damped Gauss-Newton
steps find the maximum a posteriori (Nocedal and Wright, Numerical Optimization, 2006, section 10.3). The covariance is taken from the
linearized problem (Bishop, Pattern Recognition and Machine Learning, 2006, section 4.4). Residuals beyond two standard deviations have a
linear instead of a quadratic loss (Huber, Robust Statistics, 1981), which limits the influence of outliers. Because the standard deviation
is estimated from the same points, intervals use Student's t; its degrees of freedom are the number of points minus the effective number
of parameters that the data determine. A parameter whose standard deviation is not below half of its prior's is *not identified*.
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
"""Least relative scatter: that of repetitions of one probe on a quiet machine."""
IDENTIFIED_WIDTH: Final = 0.5
"""Share of the prior's width below which a parameter is identified by the data."""
CONFIDENCE: Final = 0.95
VAGUE_WIDTH: Final = 3.0
"""Width of a vague prior: one standard deviation is a factor of 20 either way."""
LINEAR_LOSS_DEVIATIONS: Final = 2.0
"""Standard deviations, estimated from the median absolute residual, beyond which the loss is linear."""
_ROUNDS: Final = 40
_TURNS: Final = 6
"""Alternating updates of parameters, noise and weights."""
_CLOSE: Final = 1e-7


class FitParameter(NamedTuple):
    """One parameter: its usual value, and the width of the normal prior of its logarithm."""

    name: str
    usual: float
    width: float = VAGUE_WIDTH


@dataclass(frozen=True)
class PosteriorEstimate:
    """The estimate of one parameter."""

    name: str
    value: float
    low: float
    """Ends of the 95% interval."""
    high: float
    identified: bool
    """Whether the data, and not only the prior, determine the value."""


@dataclass(frozen=True)
class Posterior:
    """The estimates, and the scatter of the points about the model."""

    estimates: tuple[PosteriorEstimate, ...]
    noise: float
    """Standard deviation of the logarithm of measured over modeled time."""
    residuals: Vector
    """Logarithm of measured over modeled time, one value per point."""

    def __getitem__(self, name: str) -> PosteriorEstimate:
        """Return the parameter *name*."""
        return next(estimate for estimate in self.estimates if estimate.name == name)


PosteriorModel = Callable[[Vector], tuple[Vector, Vector]]
"""Maps logarithms of parameters to logarithms of times, one per point, and their derivatives, one row per point."""


def fit_terms(design: Vector, times: Vector, parameters: Sequence[FitParameter]) -> Posterior:
    """Fit the sum of terms to *times* (s); row i of *design* holds the coefficient of each parameter in time i.

    Raise SpecError if there are no times or one of them is not positive.
    """

    def model(here: Vector) -> tuple[Vector, Vector]:
        parts = design * np.exp(here)
        total = parts.sum(axis=1)
        return np.log(total), parts / total[:, None]

    return fit_posterior(model, times, parameters)


def fit_posterior(model: PosteriorModel, times: Vector, parameters: Sequence[FitParameter], starts: Sequence[Vector] = ()) -> Posterior:
    """Fit the parameters of any *model* to *times* (s). Raise SpecError as `fit_terms` does.

    *starts* are log factors on the usual values from which the search begins as well; the most probable result counts.
    """
    if not len(times) or not np.all(times > 0):
        raise SpecError("nothing to fit: expected times above zero")
    usual, widths = np.log([parameter.usual for parameter in parameters]), np.array([parameter.width for parameter in parameters])
    logs, values, noise, weights = np.log(times), np.array(usual), 0.1, np.ones(len(times))
    searched = [values, *(usual + start for start in starts)]
    for _ in range(_TURNS):
        points = _Points(model, logs, weights / noise**2, usual, widths)
        ends = [_maximized(points, start) for start in searched]
        values = min(ends, key=lambda end: points.at(end)[2]) if len(ends) > 1 else ends[0]
        searched = [values]
        modeled, slope = model(values)
        residuals = logs - modeled
        precision = slope.T @ (slope * weights[:, None]) / noise**2
        covariance = np.linalg.inv(precision + np.diag(widths**-2.0))
        freedom = max(1.0, len(times) - float(np.trace(covariance @ precision)))
        noise = max(LEAST_NOISE, math.sqrt(float(residuals @ (weights * residuals)) / freedom))
        weights = 1.0 / np.maximum(
            1.0, np.abs(residuals) / (LINEAR_LOSS_DEVIATIONS * max(LEAST_NOISE, 1.4826 * float(np.median(np.abs(residuals)))))
        )
    estimates = (
        _estimate(parameter, mean, math.sqrt(spread), freedom)
        for parameter, mean, spread in zip(parameters, values, np.diag(covariance), strict=True)
    )
    return Posterior(tuple(estimates), noise, residuals)


class _Points(NamedTuple):
    """The logarithms of measured times with their precisions, the model and the priors."""

    model: PosteriorModel
    logs: Vector
    precision: Vector
    usual: Vector
    widths: Vector

    def misfit(self, here: Vector, residuals: Vector) -> float:
        """Return minus twice the log posterior at *here*, which leaves *residuals*, up to a constant."""
        return float(residuals @ (self.precision * residuals) + np.sum(((here - self.usual) / self.widths) ** 2))

    def at(self, here: Vector) -> tuple[Vector, Vector, float]:
        """Return residuals, derivatives and the misfit at *here*."""
        modeled, slope = self.model(here)
        residuals = self.logs - modeled
        return residuals, slope, self.misfit(here, residuals)


def _maximized(points: _Points, here: Vector) -> Vector:
    """Return the most probable parameters of *points*, starting the search at *here*."""
    damping, (residuals, slope, misfit) = 1e-3, points.at(here)
    for _ in range(_ROUNDS):
        weighted = slope * points.precision[:, None]
        curvature = slope.T @ weighted + np.diag(points.widths**-2.0)
        gradient = weighted.T @ residuals - (here - points.usual) / points.widths**2
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
        candidate = here + np.clip(step, -2.0, 2.0)
        point = points.at(candidate)
        if point[2] > misfit:
            damping *= 8.0
            continue
        gained = misfit - point[2]
        here, damping, (residuals, slope, misfit) = candidate, damping / 4.0, point
        if gained < _CLOSE:
            break
    return here


def _estimate(parameter: FitParameter, mean: float, spread: float, freedom: float) -> PosteriorEstimate:
    identified = spread < IDENTIFIED_WIDTH * parameter.width
    half_width = (interval_half_width(freedom) if identified else interval_half_width(math.inf)) * spread
    return PosteriorEstimate(parameter.name, math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width), identified)


def interval_half_width(freedom: float) -> float:
    """Return the half width of a 95% interval in standard deviations: 1.96, and more with few degrees of *freedom*."""
    from scipy.stats import norm, t

    half_width: Any = norm.ppf(0.5 + CONFIDENCE / 2) if math.isinf(freedom) else t.ppf(0.5 + CONFIDENCE / 2, freedom)
    return float(half_width)


def fit_mean(name: str, values: Sequence[float]) -> Posterior:
    """Fit the typical value of repeated positive *values* as the only parameter, *name*."""
    usual = float(np.median(values)) if len(values) else 1.0
    return fit_terms(np.ones((len(values), 1)), np.array(values, dtype=float), [FitParameter(name, usual)])
