"""How far apart are the rates of fleets? From the 95% interval of a rate to the rates of drawn fleets.

The logarithm of a rate is taken as normal between fleets. Its mean and spread are estimates: the rate of the next fleet then follows
Student's t, with one degree of freedom less than fleets are known. Its 95% interval is wider than 1.96 standard deviations, and its tails
are longer than normal ones.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DRAWN: Final = 0.99
"""Share of fleets that are drawn from Student's t; the others are at its ends, because the mean of a rate would be infinite. A few known
fleets do not show how far out the last one in a hundred is. The 50 and 95% intervals do not depend on this."""


class FleetInterval(NamedTuple):
    """Interval of 95% of fleets, relative to the middle."""

    low: float
    high: float
    degrees_of_freedom: float = math.inf
    """Degrees of freedom of the estimated spread; infinite for a spread that is known (log-normal)."""


def fleet_factors(normal: Array, interval: FleetInterval) -> Array:
    """Map standard *normal* draws to factors with median 1, of which 95% are in *interval*; a larger draw is a larger factor."""
    ends = np.where(normal < 0, -math.log(interval.low), math.log(interval.high))
    return np.asarray(np.exp(_of_half_width(normal, interval.degrees_of_freedom) * ends))


def _of_half_width(normal: Array, degrees_of_freedom: float) -> Array:
    """Map standard *normal* draws to draws that are between -1 and 1 in 95% of cases."""
    if degrees_of_freedom == math.inf:
        return np.asarray(normal / 1.96)
    from scipy.special import ndtr, stdtrit

    half_width, end = (stdtrit(degrees_of_freedom, 0.5 + share / 2) for share in (0.95, _DRAWN))
    return np.asarray(np.clip(stdtrit(degrees_of_freedom, ndtr(normal)), -end, end) / half_width)
