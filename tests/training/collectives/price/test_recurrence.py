"""The time of a ring: the closed form against the recurrence it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.collectives.price.long_rings import longest_walk
from sim.training.collectives.price.recurrence import _best_of_few, _widths, ring_steps, ring_time

seconds = st.one_of(st.just(0.0), st.floats(1e-9, 1.0))
hops = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=9)


def step_by_step(occupancy, latency, steps):
    """Play the recurrence of the module's docstring, step after step."""
    n = len(occupancy)
    start = [0.0] * n
    arrive = [busy + late for busy, late in zip(occupancy, latency, strict=True)]
    for _ in range(steps - 1):
        start = [max(arrive[i - 1], start[i] + occupancy[i]) for i in range(n)]
        arrive = [start[i] + occupancy[i] + latency[i] for i in range(n)]
    return max(arrive)


@given(hops, st.integers(1, 60))
def test_equals_the_recurrence(pattern, steps):
    """Oracle: the recurrence itself, played."""
    occupancy, latency = zip(*pattern, strict=True)
    assert ring_time(occupancy, latency, steps).total == pytest.approx(step_by_step(occupancy, latency, steps), rel=1e-12)


@given(hops, st.integers(1, 40))
def test_a_pattern_stands_for_all_its_repetitions(pattern, nodes):
    """Oracle: the recurrence on the whole ring of up to 360 hops; the pattern alone gives the same to 1e-12."""
    occupancy, latency = zip(*pattern, strict=True)
    steps = max(1, ring_steps("all_reduce", len(pattern) * nodes))
    expected = step_by_step(occupancy * nodes, latency * nodes, steps)
    assert ring_time(occupancy, latency, steps).total == pytest.approx(expected, rel=1e-12)
    assert ring_time(occupancy * nodes, latency * nodes, steps).total == pytest.approx(expected, rel=1e-12)


@given(hops, st.integers(1, 60))
def test_arrays_say_what_plain_python_says(pattern, steps):
    """The two ways of comparing windows, each on rings that are long or short."""
    occupancy, latency = zip(*pattern, strict=True)
    widths = _widths(len(pattern), steps)
    few = max(_best_of_few(occupancy, latency, span, steps) for span in widths)
    assert longest_walk(occupancy, latency, widths, steps) == pytest.approx(few, rel=1e-12)


@given(st.integers(2, 512), st.floats(1, 1e10), st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_uniform_rings(n, nbytes, bandwidth, latency):
    """Closed form: 2(n-1)/n * S/B + 2(n-1) * latency, to 1e-12."""
    duration = ring_time([nbytes / n / bandwidth], [latency], ring_steps("all_reduce", n))
    wire = 2 * (n - 1) / n * nbytes / bandwidth
    assert duration.total == pytest.approx(wire + 2 * (n - 1) * latency, rel=1e-12)
    assert duration.latency == pytest.approx(2 * (n - 1) * latency, rel=1e-9, abs=1e-12 * duration.total)


@given(hops, st.integers(1, 40), st.data())
def test_more_time_anywhere_never_saves_any(pattern, steps, data):
    """Monotone in every occupancy and latency, and no faster than the busiest hop or one way round it."""
    occupancy, latency = (list(column) for column in zip(*pattern, strict=True))
    before = ring_time(occupancy, latency, steps).total
    assert before >= steps * max(occupancy) * (1 - 1e-12)
    place = data.draw(st.integers(0, len(pattern) - 1))
    data.draw(st.sampled_from([occupancy, latency]))[place] += 0.5
    assert ring_time(occupancy, latency, steps).total >= before * (1 - 1e-12)


def test_a_million_nodes_cost_no_more_than_few():
    """Closed form on a pattern whose best walk is plain: no occupancy, so every step moves on and meets every latency in turn."""
    steps = ring_steps("all_reduce", 2_000_000)
    assert ring_time([0.0, 0.0], [1e-6, 3e-6], steps).total == pytest.approx(2e-6 * steps, rel=1e-12)


def test_nothing_to_do():
    assert ring_time([1.0], [1.0], 0) == (0.0, 0.0)
    assert ring_time([0.0], [0.0], 5) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("occupancy", "latency", "steps"),
    [([], [], 1), ([1.0], [1.0, 2.0], 1), ([-1.0], [0.0], 1), ([1.0], [0.0], -1), ([float("nan")], [0.0], 1)],
)
def test_impossible_rings_are_refused(occupancy, latency, steps):
    with pytest.raises(ValueError, match=r"zero or more|one occupancy"):
        ring_time(occupancy, latency, steps)
