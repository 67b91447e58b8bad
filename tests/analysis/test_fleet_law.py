"""Are the rates of drawn fleets spread as their interval says? Oracles: quantiles of scipy's normal and Student's t distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim.analysis.fleet_law import FleetInterval, fleet_factors
from tests.late import stats

NORMAL = np.random.default_rng(0).standard_normal(200_000)


@pytest.mark.parametrize("degrees", [1, 3, 4, 30, math.inf])
def test_the_interval_has_95_percent_of_fleets_and_the_law_has_its_quartiles(degrees: float) -> None:
    interval = FleetInterval(0.2, 3.0, degrees)
    drawn = fleet_factors(NORMAL, interval)
    low, first, middle, third, high = np.quantile(drawn, [0.025, 0.25, 0.5, 0.75, 0.975])
    law = stats.norm() if degrees == math.inf else stats.t(degrees)
    quartile = law.ppf(0.75) / law.ppf(0.975)
    expected = [0.2, 0.2**quartile, 1.0, 3.0**quartile, 3.0]
    assert [low, first, middle, third, high] == pytest.approx(expected, rel=0.05)


def test_the_mean_is_finite_and_a_larger_draw_is_a_larger_factor() -> None:
    """Oracle: the ends are the 99% interval of Student's t, for the 1% of fleets beyond it."""
    ordered = fleet_factors(np.sort(NORMAL), FleetInterval(1 / 5.0, 5.0, 4))
    assert (np.diff(ordered) >= 0).all()
    end = 5.0 ** (stats.t(4).ppf(0.995) / stats.t(4).ppf(0.975))
    assert [ordered[0], ordered[-1]] == pytest.approx([1 / end, end])
    assert float(np.mean(ordered == ordered[-1])) == pytest.approx(0.005, abs=0.001)
