"""How many repetitions are made, of how many calls? Oracle: a clock by which every call takes the same time, and a call that is counted."""

from __future__ import annotations

import pytest

from calibration.measure.probes import timing
from calibration.measure.probes.timing import LEAST_REPETITION_TIME, LEAST_REPETITIONS, MOST_REPETITIONS, repetition_times, wall_time


@pytest.mark.parametrize(
    ("one", "seconds", "count", "inner"),
    [(1e-6, 0.01, 10, 1000), (1e-6, 1.0, MOST_REPETITIONS, 1000), (0.5, 0.1, LEAST_REPETITIONS, 1), (0.01, 0.05, 5, 1)],
)
def test_short_calls_are_repeated_inside_and_long_ones_at_least_three_times(
    one: float, seconds: float, count: int, inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_counts: list[int] = []
    monkeypatch.setattr(timing, "wall_time", lambda call, inner: call_counts.append(inner) or inner * one)
    times = repetition_times(lambda: None, "cpu", seconds)
    assert times == pytest.approx([one] * count)
    assert call_counts == [1, 1] + [inner] * count  # a call to warm up, one to see how long it takes
    assert inner * one >= LEAST_REPETITION_TIME


def test_the_clock_counts_every_call() -> None:
    calls: list[None] = []
    assert wall_time(lambda: calls.append(None), 7) > 0 and len(calls) == 7
