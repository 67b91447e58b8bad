"""Oracle: sequences made to repeat, whose period is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.steady_state import Period, PeriodDetector, State, steady_mean, warm_up


def state(queue: object, *times: float) -> State:
    return State((queue,), times, 1.0)


def test_a_state_that_recurs_is_a_period() -> None:
    detector = PeriodDetector()
    assert detector.observe(1, 10.0, state("a", 0.1)) is None
    assert detector.observe(2, 11.0, state("b", 0.2)) is None
    assert detector.observe(3, 13.0, state("a", 0.1)) == Period(1, 3, 10.0, 13.0)


def test_times_compare_to_a_billionth_of_a_step() -> None:
    detector = PeriodDetector()
    detector.observe(1, 0.0, state("a", 0.5))
    assert detector.observe(2, 1.0, state("a", 0.5 + 1e-7)) is None
    assert detector.observe(3, 2.0, state("a", 0.5 + 1e-11)) == Period(1, 3, 0.0, 2.0)


@given(warm_up=st.integers(0, 20), length=st.integers(1, 12))
def test_the_period_of_a_cycle_after_a_warm_up(warm_up: int, length: int) -> None:
    """A made-up sequence: *warm_up* distinct states, then a cycle of *length* states and seconds."""
    detector = PeriodDetector()
    for step in range(warm_up + length):
        assert detector.observe(step, float(step), state(step if step < warm_up else ("cycle", (step - warm_up) % length))) is None
    period = detector.observe(warm_up + length, float(warm_up + length), state(("cycle", 0)))
    assert period is not None
    assert (period.first, period.steps, period.duration) == (warm_up, length, float(length))


def test_forgetting_starts_afresh() -> None:
    detector = PeriodDetector()
    detector.observe(1, 0.0, state("a"))
    detector.forget()
    assert detector.observe(2, 1.0, state("a")) is None


def test_nearest_is_the_stretch_whose_ends_are_most_alike() -> None:
    """Ten states with the same queues; that of step 3 differs least from the last."""
    detector = PeriodDetector()
    for step in range(10):
        detector.observe(step, float(step), state("q", {3: 0.30, 9: 0.31}.get(step, 0.9 + step / 100)))
    stretch = detector.nearest()
    assert (stretch.first, stretch.last) == (3, 9)
    assert stretch.duration == pytest.approx(6.0)


def test_how_far_apart_the_ends_of_the_nearest_stretch_are() -> None:
    """A drift of 0.001 of a step of 2 s each step: after 100 steps the nearest is step 50; other queues are not comparable."""
    detector = PeriodDetector()
    for step in range(1, 101):
        detector.observe(step, 2.0 * step, State(("q",), (0.3 + 0.002 * step,), 2.0))
    assert detector.mismatch() == pytest.approx(0.001 * (100 - detector.nearest().first))
    assert detector.nearest().first == 50
    detector.observe(101, 202.0, state("other", 0.3))
    assert detector.mismatch() == math.inf


@given(seen=st.integers(1, 50))
def test_nearest_takes_at_least_half_of_what_was_seen(seen: int) -> None:
    """Whatever the states were: the stretch ends now, leaves out the first eighth, and holds the later half."""
    detector = PeriodDetector()
    for step in range(1, seen + 1):
        detector.observe(step, 2.0 * step, state(step))
    stretch = detector.nearest()
    assert (stretch.last, stretch.end) == (seen, 2.0 * seen)
    assert seen / 2 - 1 <= stretch.steps <= seen * 7 / 8 + 1
    assert stretch.duration == 2.0 * stretch.steps


# --- drawn steps -----------------------------------------------------------------------------------------------------


def test_a_warm_up_is_cut_where_it_ends() -> None:
    """By hand: 30 slow steps before 100 equal ones; the cut is within one batch of five of their end."""
    assert warm_up([9.0] * 30 + [1.0, 1.1] * 50) in (30, 35)
    assert warm_up([1.0, 1.1] * 50) == 0
    assert warm_up([1.0, 2.0]) == 0


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """300 samples of 200 normal steps each: 95%, known to about 1.3% from so many."""
    chance = random.Random(7)
    intervals = [steady_mean([chance.gauss(1.0, 0.1) for _ in range(200)]) for _ in range(300)]
    covered = sum(abs(interval.mean - 1.0) <= interval.half_width for interval in intervals)
    assert 0.91 <= covered / 300 <= 0.98


def test_few_steps_have_no_interval() -> None:
    assert steady_mean([1.0] * 19) is None
