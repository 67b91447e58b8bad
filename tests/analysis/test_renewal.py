"""Are the closed forms of long runs the ones of the papers? Oracles: Daly's expectation, brute force, Meta's formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.renewal import (
    Uniform,
    best_interval,
    daly_interval,
    effective_share,
    kept_until,
    laplace_of_sum,
    meta_ettr,
)
from sim.analysis.transient import young_interval
from tests.oracle.daly import daly_time

HOUR = 3600.0


def test_a_synchronous_checkpoint_is_daly_s() -> None:
    for mean, interval, blocking, restart in ((2 * HOUR, 600.0, 30.0, 300.0), (HOUR, 1200.0, 200.0, 0.0), (50 * HOUR, HOUR, 5.0, 900.0)):
        share = effective_share(mean, interval, blocking, blocking, math.exp(-restart / mean))
        assert share == pytest.approx(1.0 / daly_time(1.0, interval, blocking, restart, mean), rel=1e-12)


def test_a_checkpoint_in_the_background_is_lost_with_what_it_held() -> None:
    """Oracle: a sum over the number of complete checkpoints in an exponential gap, term by term."""
    mean, interval, blocking, persist, restart = HOUR, 500.0, 3.0, 90.0, 120.0
    cycle = interval + blocking
    at_least = [math.exp(-(restart + interval + persist + number * cycle) / mean) for number in range(2000)]
    expected = sum(at_least) * interval / mean
    assert effective_share(mean, interval, blocking, persist, math.exp(-restart / mean)) == pytest.approx(expected, rel=1e-9)


def test_no_interval_is_better_than_the_best() -> None:
    for mean, blocking in ((2 * HOUR, 30.0), (HOUR, 300.0), (100 * HOUR, 2.0)):
        best = best_interval(mean, blocking)
        share = effective_share(mean, best, blocking, blocking, 1.0)
        others = [effective_share(mean, best * factor, blocking, blocking, 1.0) for factor in (0.3, 0.8, 0.97, 1.03, 1.3, 3.0)]
        assert share > max(others)


def test_young_and_daly_are_right_to_their_order() -> None:
    """Young is off by the order of the cost over the mean, Daly by less; both meet the exact interval where saves cost little."""
    for share in (1e-2, 1e-3, 1e-4):
        mean, blocking = HOUR, share * HOUR
        exact = best_interval(mean, blocking)
        young, daly = abs(young_interval(blocking, mean) / exact - 1), abs(daly_interval(blocking, mean) / exact - 1)
        assert young < 1.5 * math.sqrt(share)
        assert daly < 0.1 * young


def test_meta_s_formula_is_near_where_failures_are_rare() -> None:
    """In its range (little is lost for each failure, failures are rare) arXiv 2410.21680 finds it within 5%."""
    for mean, overhead, blocking in ((20 * HOUR, 300.0, 10.0), (8 * HOUR, 600.0, 30.0), (30 * HOUR, 1200.0, 300.0)):
        interval = best_interval(mean, blocking)
        exact = effective_share(mean, interval, blocking, blocking, math.exp(-overhead / mean))
        assert meta_ettr(1 / mean, overhead, interval, blocking) == pytest.approx(exact, rel=0.01)


def test_the_laplace_transform_of_even_times_is_their_mean_of_exponentials() -> None:
    span, rate = Uniform(20.0, 400.0), 1 / 300.0
    steps = 20_000
    numeric = sum(math.exp(-rate * (20 + 380 * (number + 0.5) / steps)) for number in range(steps)) / steps
    assert span.laplace(rate) == pytest.approx(numeric, rel=1e-8)
    assert laplace_of_sum([span, Uniform(60.0, 60.0)], rate) == pytest.approx(numeric * math.exp(-0.2), rel=1e-8)


def test_an_interval_shorter_than_a_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter than a checkpoint of 90 s"):
        effective_share(HOUR, 50.0, 3.0, 90.0, 1.0)
    assert best_interval(HOUR, 1e-3, persist=500.0) == pytest.approx(500.0, rel=1e-4)


MEANS = st.floats(2.0, 8.0).map(lambda power: 10.0**power)
"""Mean times between failures (s), from minutes to years."""
COSTS = st.floats(-6.0, -0.3).map(lambda power: 10.0**power)
"""Times of saves and recoveries, relative to the mean time between failures."""


@given(mean=MEANS, blocking=COSTS, apart=COSTS, restart=COSTS)
def test_daly_s_expectation_over_wide_ranges(mean: float, blocking: float, apart: float, restart: float) -> None:
    share = effective_share(mean, apart * mean, blocking * mean, blocking * mean, math.exp(-restart))
    assert share == pytest.approx(1.0 / daly_time(1.0, apart * mean, blocking * mean, restart * mean, mean), rel=1e-9)


@given(mean=MEANS, blocking=COSTS, persist=st.floats(1.0, 30.0), factor=st.floats(0.05, 20.0))
def test_no_interval_is_better_than_the_best_over_wide_ranges(mean: float, blocking: float, persist: float, factor: float) -> None:
    """Of those in which checkpoints do not overlap."""
    cost = max(blocking * mean, 1e-3)
    best = best_interval(mean, cost, persist * cost)
    other = max(best * factor, (persist - 1) * cost)
    assert effective_share(mean, best, cost, persist * cost, 1.0) >= effective_share(mean, other, cost, persist * cost, 1.0) * (1 - 1e-9)


@given(mean=MEANS, blocking=COSTS)
def test_young_and_daly_over_wide_ranges(mean: float, blocking: float) -> None:
    """Oracles: their orders in the square root of the cost over the mean."""
    if blocking * mean < 1e-3:
        return  # `best_interval` takes at least that
    exact, small = best_interval(mean, blocking * mean), math.sqrt(blocking)
    assert abs(young_interval(blocking * mean, mean) / exact - 1) < 1.5 * small + 1e-6
    if blocking < 0.1:
        assert abs(daly_interval(blocking * mean, mean) / exact - 1) < 0.2 * blocking + 1e-6


@given(mean=MEANS, overhead=COSTS, apart=COSTS, saves=COSTS)
def test_meta_s_formula_is_right_to_its_order(mean: float, overhead: float, apart: float, saves: float) -> None:
    """Oracle: what it leaves out is of second order in the times over the mean time between failures."""
    exact = effective_share(mean, apart * mean, saves * apart * mean, saves * apart * mean, math.exp(-overhead))
    meta = meta_ettr(1 / mean, overhead * mean, apart * mean, saves * apart * mean)
    assert abs(meta - exact) < (overhead + apart + saves) * (overhead + apart) + 1e-9


@given(mean=MEANS, blocking=COSTS, persist=st.floats(1.0, 30.0), restart=COSTS, better=st.floats(1.0, 10.0))
def test_what_helps_never_lowers_the_closed_form(mean: float, blocking: float, persist: float, restart: float, better: float) -> None:
    """Rarer failures, saves that cost less or are complete sooner, and shorter recoveries, each at its best interval."""

    def share(mean: float, blocking: float, persist: float, restart: float) -> float:
        cost = max(blocking, 1e-3)
        interval = best_interval(mean, cost, cost * persist)
        return effective_share(mean, interval, cost, cost * persist, math.exp(-restart / mean))

    before = share(mean, blocking * mean, persist, restart * mean)
    for after in (
        share(mean * better, blocking * mean, persist, restart * mean),
        share(mean, blocking * mean / better, persist, restart * mean),
        share(mean, blocking * mean, max(1.0, persist / better), restart * mean),
        share(mean, blocking * mean, persist, restart * mean / better),
    ):
        assert after >= before * (1 - 1e-9)


@pytest.mark.parametrize("interval", [50.0, 700.0, 3000.0, 9000.0, 1e9])
@pytest.mark.parametrize("mean", [800.0, 4000.0, 1e6])
@pytest.mark.parametrize(("blocking", "persist"), [(0.0, 0.0), (30.0, 30.0), (5.0, 40.0)])
def test_a_given_time_keeps_what_is_done_when_it_is_up(interval: float, mean: float, blocking: float, persist: float) -> None:
    """Oracle: courses drawn one after another, with recoveries of one length, for any interval, also one longer than the time."""
    time, recovery, random = 10_000.0, 120.0, np.random.default_rng(1)
    cycle, works = interval + blocking, []
    for _ in range(4000):
        now, resume, kept = 0.0, 0.0, 0.0
        while True:
            failure = now + random.exponential(mean)
            trained = max(min(failure, time) - resume, 0.0)
            if failure >= time:
                cycles = math.floor(trained / cycle)
                works.append(kept + cycles * interval + min(trained - cycles * cycle, interval))
                break
            kept += max(0, math.floor((trained - interval - persist) / cycle) + 1) * interval
            now, resume = failure, failure + recovery
    expected = kept_until(time, mean, interval, blocking, persist, recovery, math.exp(-recovery / mean))
    assert abs(expected - np.mean(works)) < 4 * np.std(works) / math.sqrt(len(works)) + 1e-6 * time


def test_a_long_time_keeps_the_share_of_the_renewal_process() -> None:
    for mean, interval, blocking, persist in ((3600.0, 500.0, 3.0, 90.0), (2e6, 300.0, 0.1, 2.0), (1e5, 4.0, 1e-3, 3.0)):
        recovery = math.exp(-300.0 / mean)
        share = effective_share(mean, interval, blocking, persist, recovery)
        long = 1e4 * mean
        assert kept_until(long, mean, interval, blocking, persist, 300.0, recovery) / long == pytest.approx(share, rel=2e-4)
