"""Do intervals of energy contain the truth as often as they say? Oracles: drawn jobs, products by hand, years of grids."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim.analysis.energy import country_ratios, power_model
from sim.analysis.energy_error import INTERVALS, PowerLaw, SpreadOf, energy_ratios, intensity_ratios, intervals, power_law

PUE, STEP, SURE = SpreadOf(0.94, 1.04), SpreadOf(0.6, 1.5), SpreadOf(1 - 1e-12, 1 + 1e-12)


def true_ratios(spread: SpreadOf, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw ratios of which 95% are in *spread*, half of them below 1."""
    ends = np.log([spread.low, spread.high])
    normal = random.standard_normal(count)
    return np.asarray(np.exp(abs(normal) / 1.95996 * np.where(normal < 0, ends[0], ends[1])))


@pytest.mark.parametrize(
    ("scale", "with_step"),
    [
        pytest.param(scale, with_step, marks=() if with_step == (scale != 0.1) else pytest.mark.nightly)
        for scale in (0.02, 0.1, 0.3)
        for with_step in (True, False)
    ],
)
def test_intervals_contain_the_truth_as_often_as_they_say(scale: float, with_step: bool) -> None:
    """Synthetic truth: three kinds of jobs measured, a fourth predicted; the interval knows the errors of the three alone."""
    random, trials = np.random.default_rng(1), 400
    step = STEP if with_step else None
    truth = np.exp(scale * random.standard_normal(trials)) * true_ratios(PUE, trials, random)
    truth *= true_ratios(STEP, trials, random) if with_step else 1.0
    measured = np.expm1(scale * random.standard_normal((trials, 3)))
    inside = dict.fromkeys(INTERVALS, 0)
    for one, errors in zip(truth, measured, strict=True):
        spread = intervals(np.array([1.0]), energy_ratios(power_law({str(kind): [error] for kind, error in enumerate(errors)}), PUE, step))
        for name, (low, high) in spread.items():
            inside[name] += low <= one <= high
    assert inside["interval95"] / trials == pytest.approx(0.955, abs=0.03)  # sums of Student's t and known spreads: never below
    assert inside["interval50"] / trials == pytest.approx(0.53, abs=0.08)


def test_rows_of_one_kind_count_as_one() -> None:
    """Oracle: by hand."""
    law = power_law({"a": [math.expm1(0.1), math.expm1(-0.1)], "b": [math.expm1(0.2)]})
    assert law.log_error == pytest.approx(math.sqrt((0.01 + 0.04) / 2)) and law.kinds == 2


def test_errors_multiply() -> None:
    """Oracle: variances of logarithms add; without an error of their own, the others are all there is."""
    alone = energy_ratios(PowerLaw(0.0, 3), SURE, STEP)
    assert np.quantile(alone, [0.025, 0.5, 0.975]) == pytest.approx([0.6, 1.0, 1.5], rel=0.02)
    both = np.log(energy_ratios(PowerLaw(0.0, 3), STEP, STEP))
    assert both.var() == pytest.approx(2 * np.log(alone).var(), rel=0.03)
    one_sided = energy_ratios(PowerLaw(0.0, 3), SURE, SpreadOf(1.1, 1.4))
    assert np.quantile(one_sided, [0.025, 0.5, 0.975]) == pytest.approx([1.1, math.sqrt(1.54), 1.4], rel=0.01)
    drawn = np.array([1.0, 3.0])
    assert intervals(drawn, np.ones(1000))["interval50"] == [1.0, 3.0]
    narrow, wide = (intervals(drawn, energy_ratios(PowerLaw(0.08, 3), PUE, step)) for step in (None, STEP))
    assert wide["interval95"][0] < narrow["interval95"][0] < narrow["interval50"][0] <= narrow["interval50"][1] < narrow["interval95"][1]


def test_an_unknown_region_is_one_of_the_countries() -> None:
    ratios = intensity_ratios(SURE, country_ratios())
    assert set(np.round(ratios, 6)) == set(np.round(country_ratios(), 6))
    of_change = intensity_ratios(SpreadOf(*power_model().intensity_change))
    assert np.ptp(np.log(ratios)) > 3 and np.quantile(of_change, [0.025, 0.975]) == pytest.approx([0.21, 1.66], rel=0.03)
