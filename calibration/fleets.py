"""Which rate will the next fleet have? The predictive interval of a rate, given the rates of a few fleets.

The logarithms of rates are normal between fleets, with unknown mean and variance. Of n known fleets with the standard deviation s, the next
one differs from their mean by s sqrt(1 + 1/n) times Student's t of n - 1 degrees of freedom. This is exact for any mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit


class NextFleet(NamedTuple):
    """The law of the rate of the next fleet: log-Student-t around *middle*."""

    middle: float
    """Median; in the unit of the known rates."""
    scale: float
    """Unit of Student's t, for the logarithm of the rate."""
    degrees_of_freedom: int

    def quantile(self, share: float) -> float:
        """Return the rate that is above that of this *share* of fleets."""
        return self.middle * math.exp(self.scale * float(stdtrit(self.degrees_of_freedom, share)))


def next_fleet(rates: Sequence[float], alike: Sequence[float] = ()) -> NextFleet:
    """Return the law of the next fleet, given the *rates* of others.

    *alike* are rates of another kind whose logarithms spread as much between fleets; they add to the estimate of the spread.

    Raise ValueError if there are too few rates for a spread.
    """
    kinds = [np.log(kind) for kind in (rates, alike) if len(kind)]
    degrees = sum(kind.size - 1 for kind in kinds)
    if not len(rates) or not degrees:
        raise ValueError("a spread needs two rates of the same kind")
    variance = sum(float(np.sum((kind - kind.mean()) ** 2)) for kind in kinds) / degrees
    return NextFleet(math.exp(float(np.mean(np.log(rates)))), math.sqrt(variance * (1 + 1 / len(rates))), degrees)
