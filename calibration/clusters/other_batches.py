"""How long does a job compute at a batch outside the measured range? A constant per step, plus a rate at which layers run.

A step contains work that does not grow with the batch: Python between layers, an optimizer in many small kernels, gradient statistics, a
host that launches more slowly than the GPU computes. With ``s(b)``, the layer model's seconds for batch *b*, the compute time is::

    t(b) = constant + rate s(b)        both >= 0, rate ~ 1 +- the error of layer models (`calibration/clusters/priors.yaml`)

fitted by least squares of relative errors. A batch outside the range takes the time of the nearest measured one times the ratio of their
``t(b)``. Limits: if the host bounds every measured step, the GPU's rate stays at its prior; if it bounds none, the runs do not reveal the
host's lower limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from calibration.clusters.priors import prior
from calibration.clusters.scatter import LEAST_NOISE

_MODEL = prior("compute", "layer model")
_ROUNDS = 3
"""Rounds in which the model and the scatter of steps are fitted in turn."""


class StepModel(NamedTuple):
    """The constant seconds of a step, the factor on the layer model's time, the covariance of both, and the scatter around them."""

    constant: float
    rate: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    scatter: float

    def time(self, layers: float) -> float:
        """Return the seconds of compute for *layers* seconds of the layer model."""
        return self.constant + self.rate * layers

    def growth(self, layers: float, measured: float) -> tuple[float, float]:
        """Return `time` of *layers* over that of *measured* (seconds of the layer model), and the standard deviation of its logarithm."""
        here, there = self.time(layers), self.time(measured)
        slope = (1.0 / here - 1.0 / there, layers / here - measured / there)
        variance = sum(slope[i] * self.covariance[i][j] * slope[j] for i in (0, 1) for j in (0, 1))
        return here / there, math.sqrt(max(0.0, variance) + self.scatter**2)


def step_model(layers: Sequence[float], measured: Sequence[float]) -> StepModel:
    """Return the model that fits the *measured* seconds of compute, given the layer model's seconds of each in *layers*."""
    import numpy as np

    modeled, times = np.array(layers), np.array(measured)
    noise = LEAST_NOISE
    for _ in range(_ROUNDS):
        design = np.column_stack([1.0 / times, modeled / times]) / noise
        left = np.vstack([design, [0.0, 1.0 / _MODEL]])
        right = np.append(np.full(len(times), 1.0 / noise), 1.0 / _MODEL)
        covariance = np.linalg.inv(left.T @ left)
        constant, rate = covariance @ left.T @ right
        if constant < 0.0:
            constant, rate = 0.0, float(left[:, 1] @ right / (left[:, 1] @ left[:, 1]))
        elif rate < 0.0:  # larger batches were faster
            constant, rate = float(left[:, 0] @ right / (left[:, 0] @ left[:, 0])), 0.0
        errors = (constant + rate * modeled) / times - 1.0
        noise = max(LEAST_NOISE, float(np.sqrt(np.mean(errors**2))))
    (first, cross), (_, second) = covariance.tolist()
    return StepModel(float(constant), float(rate), ((first, cross), (cross, second)), noise)
