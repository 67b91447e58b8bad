"""How do measured steps scatter about the fitted ones? By a share of the step and by a time, both seen on the rows themselves.

``sigma = sqrt(relative^2 + (seconds / step)^2)`` of the logarithm of a step time. The share is clocks and kernels; the time is what a
network whose bandwidth comes and goes, hosts and other ranks take from a step however short it is: of a step of 0.1 s it may be a fifth,
of one of a second little, so long steps tell of a network's constants what short ones cannot. The two are those under which the misses
are most probable, with a robust loss in the place of a square; a time is only assumed where that is more probable, each with its own most
probable constants, by what one more parameter costs, half the logarithm of the rows (Schwarz, Annals of Statistics 6, 1978).

That short steps had too much weight was noticed on prediction rows (petuum/adaptdl); which scatter a cluster has, rows that calibrate say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LEAST_NOISE: Final = 0.03
"""Relative: two runs of the same configurations on DGX-A100 differ by 2.3 to 3.1% (siasosp23/artifacts, dgx and dgx-ext)."""
ROBUST: Final = 2.0
"""Standard deviations from which a residual, of a row or from a prior, counts by its size and no longer by its square."""
_LARGEST: Final = 0.3
_GRID: Final = 40
"""Values of each part that are tried, between the least and the largest miss."""
_NORMAL: Final = 1.4826
"""Standard deviation of a normal variable over its median size."""
_FARTHEST: Final = 4.0
"""Standard deviations beyond which a miss counts no more."""


class Scatter(NamedTuple):
    """Standard deviation of log step times: a share, and seconds over the step."""

    relative: float = LEAST_NOISE
    seconds: float = 0.0

    def of(self, steps: np.ndarray) -> np.ndarray:
        """Return it for *steps* (s)."""
        import numpy as np

        return np.asarray(np.hypot(self.relative, self.seconds / steps))


Look = Callable[["np.ndarray", "np.ndarray", "np.ndarray"], Scatter]
"""Tells the scatter from misses (log step times), their steps (s) and weights."""


def loss(ratio: np.ndarray) -> np.ndarray:
    """Return what misses of *ratio* standard deviations cost: half their square, and beyond `ROBUST` their size."""
    import numpy as np

    return np.asarray(ROBUST**2 * (np.sqrt(1.0 + (ratio / ROBUST) ** 2) - 1.0))


def improbability(missed: np.ndarray, steps: np.ndarray, weights: np.ndarray, scatter: Scatter) -> float:
    """Return minus the logarithm of the probability of misses (log step times) at *steps* (s), but for a constant."""
    import numpy as np

    sigma = scatter.of(steps)
    return float(np.sum(weights * (np.log(sigma) + loss(missed / sigma))))


def usual(missed: np.ndarray, steps: np.ndarray, weights: np.ndarray) -> Scatter:
    """Return the scatter by a share alone that the median miss tells."""
    import numpy as np

    return Scatter(max(LEAST_NOISE, _NORMAL * float(np.median(np.abs(missed)))))


def seen(missed: np.ndarray, steps: np.ndarray, weights: np.ndarray) -> Scatter:
    """Return the scatter by both parts under which the misses are most probable; rows count by their *weights*, one on average."""
    import numpy as np

    lost = np.abs(missed) * steps
    return _best(missed, steps, weights, np.geomspace(max(1e-6, float(np.median(lost)) / 30), max(3e-6, float(lost.max())), _GRID).tolist())


def doubt_of(missed: np.ndarray, steps: np.ndarray, weights: np.ndarray, scatter: Scatter) -> float:
    """Return how improbable misses are by the parts that *scatter* has, the price of its time included."""
    if scatter.seconds == 0.0:
        return improbability(missed, steps, weights, _best(missed, steps, weights, [0.0]))
    return improbability(missed, steps, weights, scatter) + 0.5 * math.log(len(missed))


def _best(missed: np.ndarray, steps: np.ndarray, weights: np.ndarray, times: list[float]) -> Scatter:
    import numpy as np

    tried = [Scatter(share, time) for share in np.geomspace(LEAST_NOISE, _LARGEST, _GRID).tolist() for time in times]
    return min(tried, key=lambda scatter: improbability(missed, steps, weights, scatter))


def widened(scatter: Scatter, missed: np.ndarray, steps: np.ndarray) -> Scatter:
    """Return *scatter*, or a wider one of the same form, such that the root mean square of the misses is what it says."""
    import numpy as np

    ratio = np.minimum(np.abs(missed) / scatter.of(steps), _FARTHEST)
    factor = max(1.0, float(np.sqrt(np.mean(ratio**2))))
    return Scatter(scatter.relative * factor, scatter.seconds * factor)
