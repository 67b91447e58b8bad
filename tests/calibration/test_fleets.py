"""Does the interval of the next fleet contain as many fleets as it says? Oracle: synthetic fleets, drawn from the assumed law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from calibration.fleets import NextFleet, next_fleet, next_shares
from calibration.longrun import DAY, held_out, planned_stops, rates_of_others
from sim.analysis.fleet_law import FleetInterval, fleet_factors
from sim.study.weeks import reliability_of

SETS = 4000
DRAWS = 800


def drawn_of(law: tuple[float, float, float, float], random: np.random.Generator, draws: int = DRAWS) -> np.ndarray:
    """Rates of fleets as `goodput` draws them, for a *law* given as low, middle, high and degrees of freedom."""
    low, middle, high, degrees = law
    return middle * fleet_factors(random.standard_normal(draws), FleetInterval(low / middle, high / middle, degrees))


def coverage(fleets: int, spread: float, alike: int = 0, sets: int = SETS) -> list[float]:
    """The share of *sets* in which a fleet left out is in the middle 50 and 95% of drawn fleets, given the rates of *fleets* others."""
    random = np.random.default_rng(fleets)
    inside = np.zeros(2)
    for _ in range(sets):
        *rates, left_out = np.exp(random.normal(1.0, spread, fleets + 1))
        law = next_fleet(rates, np.exp(random.normal(-2.0, spread, alike)))
        ends = law.quantile(0.025), law.middle, law.quantile(0.975), law.degrees_of_freedom
        rank = float(np.mean(drawn_of(ends, random) < left_out))
        inside += [abs(rank - 0.5) < 0.25, abs(rank - 0.5) < 0.475]
    return (inside / sets).tolist()


@pytest.mark.parametrize(
    ("fleets", "spread", "alike"),
    [
        (5, 0.5, 0),
        (2, 0.6, 5),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((4, 1.5, 0), (2, 0.3, 0), (1, 0.6, 4))),
    ],
)
def test_as_many_fleets_left_out_are_inside_as_the_interval_says(fleets: int, spread: float, alike: int) -> None:
    """With the spread taken as known (1.96 standard deviations), 88% would be inside given five fleets, and 86% given four."""
    half, most = coverage(fleets, spread, alike)
    assert half == pytest.approx(0.50, abs=4 * math.sqrt(0.25 / SETS) + 1 / DRAWS)
    assert most == pytest.approx(0.95, abs=4 * math.sqrt(0.0475 / SETS) + 2 / DRAWS)


def test_counts_of_a_fleet_left_out_are_inside_with_nodes_that_differ() -> None:
    """Rates are known by counts, as in the records, and nodes differ. The noise of counts adds to the spread: a little more are inside."""
    random, shape = np.random.default_rng(0), 1.07
    node_days = np.array([2000 * 330, 1000 * 330, 1200 * 90, 48 * 118, 260 * 348, 2048 * 54])  # those of the records
    nodes = np.array([2000, 1000, 1200, 48, 260, 2048])
    inside, sets = 0, 2000
    for _ in range(sets):
        means = 0.003 * np.exp(random.normal(0.0, 0.5, 6)) * random.gamma(shape * nodes, 1 / (shape * nodes)) * node_days
        *counted, left_out = random.poisson(means)
        law = next_fleet([max(count, 0.5) / each for count, each in zip(counted, node_days[:5], strict=True)])
        rates = drawn_of((law.quantile(0.025), law.middle, law.quantile(0.975), law.degrees_of_freedom), random)
        counts = random.poisson(rates * random.gamma(shape * 2048, 1 / (shape * 2048), DRAWS) * node_days[5])
        inside += abs(float(np.mean(counts < left_out)) - 0.5) < 0.475
    assert 0.94 < inside / sets < 0.98


def levels(rates: Sequence[float]) -> dict[str, list[float]]:
    """The rates of the levels: all fleets, the lower third and the upper third, each with its median and 95% interval."""
    law = next_fleet(rates)
    thirds = {"middle": (0.0, 1.0), "low": (0.0, 1 / 3), "high": (2 / 3, 1 / 3)}
    return {name: [law.quantile(start + length * share) for share in (0.025, 0.5, 0.975)] for name, (start, length) in thirds.items()}


@pytest.mark.parametrize("name", ["low", "middle", "high"])
def test_the_rates_of_each_level_are_those_of_the_next_fleet(name: str) -> None:
    expected, rate = levels(rates_of_others("llama3"))[name], reliability_of(name).rate
    assert [rate.low, rate.value, rate.high] == pytest.approx(expected, rel=0.01)
    assert rate.degrees_of_freedom == next_fleet(rates_of_others("llama3")).degrees_of_freedom == 4


@pytest.mark.parametrize(("name", "tail"), [("low", (0.1, 0.25)), ("high", (0.75, 0.9))])
def test_the_tail_of_a_third_of_fleets_is_drawn_as_far_out_as_it_is(name: str, tail: tuple[float, float]) -> None:
    """Oracle: quantiles of the law of the next fleet; a log-normal tail would be up to 35% off."""
    rate, law = reliability_of(name).rate, next_fleet(rates_of_others("llama3"))
    drawn = drawn_of((rate.low, rate.value, rate.high, 4), np.random.default_rng(0), 100_000)
    expected = [law.quantile((2 / 3 if name == "high" else 0.0) + share / 3) for share in tail]
    assert np.quantile(drawn, tail).tolist() == pytest.approx(expected, rel=0.15)


def test_planned_stops_spread_as_much_as_failures() -> None:
    law = next_fleet(list(planned_stops().values()), rates_of_others("llama3"))
    planned = reliability_of("middle").planned
    assert planned.interval is not None and law.degrees_of_freedom == planned.degrees_of_freedom == 6
    expected = [law.quantile(0.025), law.middle, law.quantile(0.975)]
    assert [each * DAY for each in (planned.interval[0], planned.rate, planned.interval[1])] == pytest.approx(expected, rel=0.01)


def test_planned_stops_are_of_a_job_and_not_of_its_nodes() -> None:
    """Three jobs of 48 to 2,048 nodes: their stops a day spread as much as failures of fleets, per node three times as much."""
    nodes = {"llama3": 2048, "byterobust": 1200, "bloom": 48}
    per_job, per_node = (float(np.std([math.log(rate / size) for rate, size in zip(planned_stops().values(), sizes, strict=True)], ddof=1))
                         for sizes in ((1, 1, 1), nodes.values()))  # fmt: skip
    assert list(planned_stops()) == list(nodes) and per_job < 0.75 and per_node > 1.8
    assert reliability_of("middle").planned.nodes == min(nodes.values())


STEPFUN, H200 = (104, 48, 47), (61.0, 34.1, 4.9)
"""GPU, network and host: faults of InfiniteHBD-Trace, and percent of the H200 cluster of the paper notes."""


@pytest.mark.parametrize("name", ["low", "middle", "high"])
def test_intervals_of_causes_are_those_of_the_next_fleet(name: str) -> None:
    law = next_shares([STEPFUN, H200], rates_of_others("llama3"))
    for cause in reliability_of(name).causes:
        assert cause.degrees_of_freedom == law.degrees_of_freedom == 6 and cause.interval is not None
        low, high = (min(1.0, cause.share * law.quantile(share)) for share in (0.025, 0.975))
        assert cause.interval == pytest.approx((low, high), rel=0.01)


def causes_inside(law_of: Callable[[np.ndarray, np.ndarray, np.ndarray], NextFleet], sets: int = 400) -> float:
    """The share of causes of synthetic fleets that are inside 95% of drawn ones, given one fleet and the spread of two (`law_of`)."""
    random, inside = np.random.default_rng(1), 0.0
    middle = np.log([cause.share for cause in reliability_of("middle").causes])
    for _ in range(sets):
        fleets = np.exp(middle + random.normal(0.0, 0.6, (3, 6)))
        one, other, left_out = fleets / fleets.sum(axis=1, keepdims=True)
        law = law_of(one[:3], other[:3], np.exp(random.normal(0.0, 0.6, 5)))
        ends = [(law.quantile(0.025), 1.0, min(law.quantile(0.975), 1 / share), law.degrees_of_freedom) for share in one]
        drawn = np.stack([share * drawn_of(end, random) for share, end in zip(one, ends, strict=True)])
        drawn /= drawn.sum(axis=0)
        inside += float(np.mean(np.abs((drawn < left_out[:, None]).mean(axis=1) - 0.5) < 0.475))
    return inside / sets


def test_as_many_causes_of_fleets_left_out_are_inside_as_the_interval_says() -> None:
    """Before, 1.96 standard deviations of one fleet, taken as known and without those of the fleet that is known, had 70% inside."""

    def of_one_fleet(one: np.ndarray, other: np.ndarray, rates: np.ndarray) -> NextFleet:
        return NextFleet(1.0, float(np.sqrt(np.mean(np.log((one / one.sum()) / (other / other.sum())) ** 2) / 2)), 10**6)

    assert causes_inside(lambda one, other, rates: next_shares([one.tolist(), other.tolist()], rates.tolist())) == pytest.approx(
        0.95, abs=0.02
    )
    assert causes_inside(of_one_fleet) < 0.75


@pytest.mark.parametrize(("fleet", "degrees", "planned"), [("llama3", 4, 5), ("byterobust", 3, 4), ("bloom", 3, 4)])
def test_a_fleet_is_predicted_without_itself(fleet: str, degrees: int, planned: int) -> None:
    """The spread of planned stops too is that of other fleets: one job's stops, and failures of the pool without the fleet."""
    data = held_out(fleet)
    assert (data.rate.degrees_of_freedom, data.planned.degrees_of_freedom) == (degrees, planned)
