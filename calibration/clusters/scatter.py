"""How do measured step times scatter around fitted ones? By a share of the step and by a time, both estimated from the rows themselves.

The standard deviation of a log step time is ``sigma = sqrt(relative^2 + log(1 + seconds / step)^2)``. The share comes from clocks and
kernels. The time comes from varying network bandwidth, hosts and other ranks, however short the step is: it may be a fifth of a step of
0.1 s, but little of a step of 1 s, so long steps reveal more about a network's constants than short ones. A step that a time makes longer
changes by ``log(1 + seconds / step)``; ``seconds / step`` holds only where that is small. *step* is the predicted one, because the measured
one contains the disturbance: judged by it, disturbed rows would count as exact, and undisturbed short ones as unsure beyond measure
(Carroll and Ruppert, Transformation and Weighting in Regression, 1988, chapter 2). Both parts maximize the likelihood, with a
robust loss in place of the square. A time is only assumed if it improves the log-likelihood by more than the price of one more parameter,
half the logarithm of the number of rows (Schwarz, Annals of Statistics 6, 1978); both alternatives have their own best constants.

That short steps had too much weight was noticed on prediction rows (petuum/adaptdl); a cluster's scatter comes from calibrating rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LEAST_NOISE: Final = 0.018
"""Lower limit of the relative part. Two runs of the same configuration on two DGX A100 differ by 2.6% (root mean square of 52 calibrating
runs, siasosp23/artifacts, dgx and dgx-ext), and one run scatters by a square root of two less. Repeats elsewhere differ by less: by 0.1 to
0.3% in DLPerf, by 0.5 to 0.8% in DeepLearningExamples."""
LINEAR_LOSS_DEVIATIONS: Final = 2.0
"""Standard deviations from which the loss of a residual (of a row or from a prior) grows linearly instead of quadratically."""
_LARGEST: Final = 0.3
_GRID: Final = 40
"""Number of values of each part that are tried."""
_NORMAL: Final = 1.4826
"""Ratio of a normal variable's standard deviation to its median absolute value."""
_IMMATERIAL: Final = 1e-3
"""Share of the shortest step below which a time does not matter beside `LEAST_NOISE`."""
_TURNS: Final = 20
_FARTHEST: Final = 4.0
"""Standard deviations to which larger errors are clipped."""


class Scatter(NamedTuple):
    """Standard deviation of log step times: a share, and a time that is added to the step."""

    relative: float = LEAST_NOISE
    seconds: float = 0.0

    def deviations(self, steps: np.ndarray) -> np.ndarray:
        """Return the standard deviation for predicted step times *steps* (s)."""
        import numpy as np

        return np.asarray(np.hypot(self.relative, np.log1p(self.seconds / steps)))


ScatterEstimator = Callable[["np.ndarray", "np.ndarray", "np.ndarray"], Scatter]
"""Estimates the scatter from errors (of log step times), predicted step times (s) and weights."""


def loss(ratio: np.ndarray) -> np.ndarray:
    """Return the loss of errors of *ratio* standard deviations: half their square, growing linearly beyond `LINEAR_LOSS_DEVIATIONS`."""
    import numpy as np

    return np.asarray(LINEAR_LOSS_DEVIATIONS**2 * (np.sqrt(1.0 + (ratio / LINEAR_LOSS_DEVIATIONS) ** 2) - 1.0))


def misfit(errors: np.ndarray, steps: np.ndarray, weights: np.ndarray, scatter: Scatter) -> float:
    """Return the negative log-likelihood, up to a constant, of the *errors* of log step times at predicted step times *steps* (s)."""
    import numpy as np

    sigma = scatter.deviations(steps)
    return float(np.sum(weights * (np.log(sigma) + loss(errors / sigma))))


def median_scatter(errors: np.ndarray, steps: np.ndarray, weights: np.ndarray) -> Scatter:
    """Return the scatter with only a share, estimated from the median absolute error."""
    import numpy as np

    return Scatter(max(LEAST_NOISE, _NORMAL * float(np.median(np.abs(errors)))))


def likeliest_scatter(errors: np.ndarray, steps: np.ndarray, weights: np.ndarray) -> Scatter:
    """Return the scatter with both parts that maximizes the likelihood of the errors; *weights* of rows are 1 on average."""
    import numpy as np

    lost = np.expm1(np.abs(errors)) * steps
    least = _IMMATERIAL * float(steps.min())
    times = np.geomspace(max(least, float(np.median(lost)) / 30), max(3 * least, float(lost.max())), _GRID)
    return _best(errors, steps, weights, times.tolist())


def penalized_misfit(errors: np.ndarray, steps: np.ndarray, weights: np.ndarray, scatter: Scatter) -> float:
    """Return the negative log-likelihood of the errors: of *scatter* with the price of its time, or of the best share if it has no time."""
    if scatter.seconds == 0.0:
        return misfit(errors, steps, weights, _best(errors, steps, weights, [0.0]))
    return misfit(errors, steps, weights, scatter) + 0.5 * math.log(len(errors))


def _best(errors: np.ndarray, steps: np.ndarray, weights: np.ndarray, times: list[float]) -> Scatter:
    import numpy as np

    tried = [Scatter(share, time) for share in np.geomspace(LEAST_NOISE, _LARGEST, _GRID).tolist() for time in times]
    return min(tried, key=lambda scatter: misfit(errors, steps, weights, scatter))


def widen(scatter: Scatter, errors: np.ndarray, steps: np.ndarray) -> Scatter:
    """Return *scatter*, scaled up until the root mean square of the errors (clipped) is not larger than it predicts."""
    import numpy as np

    clipped = np.minimum(np.abs(errors), _FARTHEST * scatter.deviations(steps))  # once: else fewer than 16 rows would follow the farthest
    for _ in range(_TURNS):  # the deviation grows by less than its time
        factor = float(np.sqrt(np.mean((clipped / scatter.deviations(steps)) ** 2)))
        if factor <= 1.0 + _IMMATERIAL:
            break
        scatter = Scatter(scatter.relative * factor, scatter.seconds * factor)
    return scatter
