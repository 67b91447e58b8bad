"""How far off may the energy and the CO2 of a job be? The errors of power, step, PUE and grid, taken together.

Energy is power times time times PUE, so the logarithms of their errors add up. The errors are taken as independent of each other: those of
power were measured at known times, those of steps without meters, and neither knows the site. One error is common to power and time: a step
that waits longer than predicted draws less in the mean, so the product is off by less than this says. The error of power is that of the
next kind of job, given a few: zero in the mean, with a scale that is estimated from their errors, so it follows Student's t. A job of given
days is as long as it is, and its step's error does not count. CO2 adds how much the intensity of a grid changes until the job runs and, in
an unknown region, how far countries are from the world's mean.

Limits: the measured kinds of jobs ran on one kind of machine; the error of a step is that of a new job in any source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_DRAWN: Final = 20_000
"""Drawn errors: the ends of a 95% interval are then known to about 2%."""
INTERVALS: Final = {"interval50": (0.25, 0.75), "interval95": (0.025, 0.975)}
"""Names of intervals, with the shares below their ends."""


class PowerLaw(NamedTuple):
    """Errors of the power of *kinds* kinds of measured jobs: the root mean square of their logarithms is *log_error*."""

    log_error: float
    kinds: int


class SpreadOf(NamedTuple):
    """The interval *low* to *high* that contains 95% of the ratios of true to predicted values."""

    low: float
    high: float

    def draws(self, random: np.random.Generator) -> Array:
        """Draw ratios: log-normal on each side of 1 or, if 1 is not inside, between the ends."""
        import numpy as np

        low, high = math.log(self.low), math.log(self.high)
        middle = 0.0 if low < 0 < high else 0.5 * (low + high)
        normal = random.standard_normal(_DRAWN) / 1.96
        return np.asarray(np.exp(middle + np.where(normal < 0, middle - low, high - middle) * normal))


def energy_ratios(power: PowerLaw, pue: SpreadOf, step: SpreadOf | None = None, seed: int = 0) -> Array:
    """Draw ratios of the true to the predicted energy of a job; *step* is None if its time is given."""
    import numpy as np

    of_power, of_pue, of_step = (np.random.default_rng(own) for own in np.random.SeedSequence(seed).spawn(3))
    ratios = np.exp(power.log_error * of_power.standard_t(power.kinds, _DRAWN)) * pue.draws(of_pue)
    return np.asarray(ratios if step is None else ratios * step.draws(of_step))


def intensity_ratios(change: SpreadOf, countries: Sequence[float] = (), seed: int = 1) -> Array:
    """Draw ratios of the true to the assumed carbon intensity: its *change* until the job runs, and one of *countries*, if there are any.

    Intensities of countries are relative to the assumed one.
    """
    import numpy as np

    of_change, of_country = (np.random.default_rng(own) for own in np.random.SeedSequence(seed).spawn(2))
    ratios = change.draws(of_change)
    return np.asarray(ratios * of_country.choice(np.array(countries), _DRAWN) if countries else ratios)


def intervals(values: Array, ratios: Array) -> dict[str, list[float]]:
    """Return the 50 and 95% intervals of *values*, such as those of drawn courses, times *ratios*: each ratio meets one of the values."""
    import numpy as np

    met = values[np.arange(ratios.size) % values.size] * ratios
    return {name: [float(end) for end in np.quantile(met, ends)] for name, ends in INTERVALS.items()}


def power_law(errors: Mapping[str, Sequence[float]]) -> PowerLaw:
    """Return the law of power, given the relative *errors* of predictions of each kind of job: rows of one kind count as one."""
    squares = [sum(math.log1p(error) ** 2 for error in rows) / len(rows) for rows in errors.values()]
    return PowerLaw(math.sqrt(sum(squares) / len(squares)), len(squares))
