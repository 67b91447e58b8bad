"""How much later than the mean does the slowest of n ranks finish? The expected maximum of n equal normal variables.

Compute times of ranks vary from step to step with a coefficient of variation *cv*, and a collective starts when the slowest rank arrives.
Its mean lag is ``m(n) * cv`` times the compute done since the ranks last met, with ``m(n) = E[max of n standard normals]``: 0 for one
rank, 0.56 for 2, 1.42 for 8, 2.07 for 32 (David and Nagaraja, Order Statistics, 2003, section 3). The mean is deterministic, so steps
repeat exactly; `sim.training.pace` draws random steps. Limits: ranks are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_FARTHEST = 9.0  # standard deviations; beyond them the integrand is below 1e-18
_POINTS = 2000


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of *count* independent standard normal variables, to 1e-9."""
    # E[max] = integral over x > 0 of (1 - F^n) minus integral over x < 0 of F^n, F the normal distribution
    return _integral(count, lambda x, above, below: above - below)


@lru_cache(maxsize=256)
def maximum_deviation(count: int) -> float:
    """Return the standard deviation of the maximum of *count* independent standard normal variables."""
    # E[max^2] = integral over x > 0 of 2 x (1 - F(x)^n + F(-x)^n)
    return math.sqrt(_integral(count, lambda x, above, below: 2.0 * x * (above + below)) - expected_maximum(count) ** 2)


def _integral(count: int, function: Callable[[float, float, float], float]) -> float:
    """Return the integral over x > 0 of *function*, with the arguments x, 1 - F(x)^n and F(-x)^n, by Simpson's rule."""
    if count < 1:
        raise ValueError(f"the maximum of {count} values: expected at least one")
    step = _FARTHEST / _POINTS
    total = 0.0
    for index in range(_POINTS + 1):
        x = index * step
        above = -math.expm1(count * math.log1p(-tail_probability(x)))
        below = math.exp(count * math.log(tail_probability(x)))
        weight = 1 if index in (0, _POINTS) else 4 if index % 2 else 2
        total += weight * function(x, above, below)
    return total * step / 3


def tail_probability(x: float) -> float:
    """Return the probability that a standard normal variable exceeds *x*."""
    return 0.5 * math.erfc(x / math.sqrt(2))
