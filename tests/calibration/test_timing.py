"""How many repetitions are made, of how many calls? Oracle: a call that is counted."""

from __future__ import annotations

from calibration.probes.timing import LEAST, MOST, repeated, wall_time


def test_short_calls_are_repeated_inside_and_long_ones_at_least_three_times() -> None:
    calls: list[None] = []
    times = repeated(lambda: calls.append(None), "cpu", 0.05)
    assert LEAST <= len(times) <= MOST and all(time > 0 for time in times)
    assert len(calls) > 100 * len(times)  # an append takes well under 10 us
    assert len(repeated(lambda: sum(range(20000)), "cpu", 0.0)) == LEAST


def test_the_clock_counts_every_call() -> None:
    calls: list[None] = []
    assert wall_time(lambda: calls.append(None), 7) > 0 and len(calls) == 7
