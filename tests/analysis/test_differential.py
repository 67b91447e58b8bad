"""Oracle: the formulas as aakash-sharma/DS-Analyzer's analyze.py codes them, and DS-Analyzer's definitions, computed here by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.differential import RunTimes, fetch_stall, interconnect_stall, network_stall, prep_stall, rates

times = st.floats(1.0, 1e6)


@given(times, times, times, times, times)
def test_stalls_are_the_differences_of_the_runs(t0: float, t1: float, t2: float, t3: float, twin: float) -> None:
    run_times = RunTimes(t0, t1, t2, t3, twin)
    assert interconnect_stall(run_times).time == pytest.approx(max(0.0, t1 - t0), rel=1e-9)
    assert prep_stall(run_times).share == pytest.approx(max(0.0, (t3 - t1) / t3), rel=1e-9)
    assert fetch_stall(run_times).share == pytest.approx(max(0.0, (t2 - t3) / t2), rel=1e-9)
    lost = network_stall(run_times)
    assert lost is not None
    assert lost.share == pytest.approx(max(0.0, (twin - t1) / t1), rel=1e-9)
    assert interconnect_stall(run_times).share < 1.0  # "up to 90%": bounded by its own basis


@given(times, times, times, times)
def test_literal_formulas_are_upstreams(t0: float, t1: float, t2: float, t3: float) -> None:
    # upstream: RUN0 and RUN1 last half an epoch, k = 2; prep = T3/k - T1 over T3, fetch = T2/k - prep over T2
    half, k = t1 / 2, 2.0
    upstream_prep = t3 / k - half
    assert prep_stall(RunTimes(t0, t1, t2, t3), literal=True).share == pytest.approx(max(0.0, upstream_prep / t3), rel=1e-9, abs=1e-12)
    upstream_fetch = t2 / k - upstream_prep
    assert fetch_stall(RunTimes(t0, t1, t2, t3), literal=True).share == pytest.approx(max(0.0, upstream_fetch / t2), rel=1e-9, abs=1e-12)


def test_a_slowdown_of_five_is_four_hundred_per_cent() -> None:
    lost = network_stall(RunTimes(1.0, 10.0, 10.0, 10.0, 50.0))
    assert lost is not None
    assert lost.share == pytest.approx(4.0)
    assert network_stall(RunTimes(1.0, 10.0, 10.0, 10.0)) is None


def test_rates_are_samples_over_the_time_of_each_step_of_the_method() -> None:
    step_rates = rates(RunTimes(50.0, 100.0, 500.0, 250.0), 1000.0)
    assert step_rates == (10.0, 4.0, 4.0)
    assert rates(RunTimes(50.0, 100.0, 250.01, 250.0), 1000.0).fetch is None
