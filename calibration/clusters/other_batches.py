"""How long does a job compute at a batch beyond those measured? A constant in each step, and a rate at which layers run.

A step holds work that does not grow with the batch: Python between layers, an optimizer in many small kernels, statistics of gradients,
a host that launches more slowly than the GPU computes. So with ``s(b)`` seconds that the layer model says of batch *b*::

    t(b) = constant + rate s(b)        both >= 0, rate ~ 1 +- what layer models are off by (`calibration/clusters/priors.yaml`)

fitted by least squares of relative errors; a batch beyond the last measured one takes that one's time times ``t(b) / t(last)``. Limits:
where the host bounds every measured step, no run tells the GPU's rate, which is then the prior's; where it bounds none, no floor is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from calibration.clusters.priors import prior
from calibration.clusters.scatter import LEAST_NOISE

_MODEL = prior("compute", "layer model")
_ROUNDS = 3
"""Of the fit and what steps scatter by, in turns."""


class StepModel(NamedTuple):
    """Seconds of a step that no layer takes, times of what the layer model says, how sure both are, and the scatter about them."""

    constant: float
    rate: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    scatter: float

    def time(self, layers: float) -> float:
        """Return seconds of compute where the layer model says *layers*."""
        return self.constant + self.rate * layers

    def growth(self, layers: float, measured: float) -> tuple[float, float]:
        """Return the time for *layers* over that for *measured* seconds of layers, and the standard deviation of its logarithm."""
        here, there = self.time(layers), self.time(measured)
        slope = (1.0 / here - 1.0 / there, layers / here - measured / there)
        variance = sum(slope[i] * self.covariance[i][j] * slope[j] for i in (0, 1) for j in (0, 1))
        return here / there, math.sqrt(max(0.0, variance) + self.scatter**2)


def step_model(layers: Sequence[float], measured: Sequence[float]) -> StepModel:
    """Return what *measured* seconds of compute tell, beside the seconds that the layer model says of the *layers* of each."""
    import numpy as np

    said, took = np.array(layers), np.array(measured)
    noise = LEAST_NOISE
    for _ in range(_ROUNDS):
        design = np.column_stack([1.0 / took, said / took]) / noise
        left = np.vstack([design, [0.0, 1.0 / _MODEL]])
        right = np.append(np.full(len(took), 1.0 / noise), 1.0 / _MODEL)
        covariance = np.linalg.inv(left.T @ left)
        constant, rate = covariance @ left.T @ right
        if constant < 0.0:
            constant, rate = 0.0, float(left[:, 1] @ right / (left[:, 1] @ left[:, 1]))
        elif rate < 0.0:  # larger batches were the faster ones
            constant, rate = float(left[:, 0] @ right / (left[:, 0] @ left[:, 0])), 0.0
        missed = (constant + rate * said) / took - 1.0
        noise = max(LEAST_NOISE, float(np.sqrt(np.mean(missed**2))))
    (first, cross), (_, second) = covariance.tolist()
    return StepModel(float(constant), float(rate), ((first, cross), (cross, second)), noise)
