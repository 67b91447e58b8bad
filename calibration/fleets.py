"""Which rate will the next fleet have? The predictive interval of a rate, or of the share of a cause, given those of a few fleets.

The logarithms of rates are normal between fleets, with unknown mean and variance. Of n known fleets with the standard deviation s, the next
one differs from their mean by s sqrt(1 + 1/n) times Student's t of n - 1 degrees of freedom. This is exact for any mean and variance.

Shares add up to 1, so only ratios of them spread: logarithms are taken relative to their mean in a fleet, which costs each fleet one degree
of freedom (Aitchison's centered log-ratios, J. R. Stat. Soc. B 44, 1982).
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


def next_shares(fleets: Sequence[Sequence[float]], alike: Sequence[float] = ()) -> NextFleet:
    """Return the law of the factor from the share of a cause in one fleet to that in the next, before shares are scaled to add up to 1.

    *fleets* are shares of the same causes in some fleets, which give the spread; *alike* are rates whose logarithms spread as much.

    Raise ValueError if there are too few shares for a spread.
    """
    logs = np.log(np.array(fleets, dtype=float))
    apart = logs - logs.mean(axis=1, keepdims=True)
    degrees = (logs.shape[0] - 1) * (logs.shape[1] - 1)
    squares = float(np.sum((apart - apart.mean(axis=0)) ** 2))
    if len(alike):
        degrees += len(alike) - 1
        squares += float(np.sum((np.log(alike) - np.mean(np.log(alike))) ** 2))
    if not degrees:
        raise ValueError("a spread needs two causes in two fleets")
    return NextFleet(1.0, math.sqrt(2 * squares / degrees), degrees)
