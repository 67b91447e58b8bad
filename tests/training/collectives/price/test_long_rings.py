"""Long rings: the few windows that are enough, against all windows and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.collectives.price import long_rings
from sim.training.collectives.price.recurrence import ring_steps, ring_time

seconds = st.one_of(st.just(0.0), st.floats(1e-9, 1.0))
stretches = st.lists(st.tuples(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4), st.integers(1, 30)), min_size=1, max_size=4)


@given(stretches, st.sampled_from([1, 2]))
def test_few_windows_are_enough_on_rings_of_long_stretches(parts, rounds):
    """Oracle: all windows. Up to four kinds of nodes one after another, each up to 30 times."""
    ring = [hop for pattern, count in parts for hop in pattern * count]
    busy, late = (np.array(values) for values in zip(*ring, strict=True))
    steps = rounds * (len(ring) - 1)
    near = long_rings._near_ends(busy, late)
    if near is not None and steps:
        exact = long_rings._best(busy, late, (1, steps), steps)
        assert long_rings._best_near(busy, late, near, steps) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("nodes", [64, 2048])
def test_a_long_ring_with_one_slow_node(nodes):
    """Closed form: every step takes the 3 s of the slowest hop, whose latency of 0.5 s counts once; leaving it for another only loses."""
    quick, slow = [(1.0, 0.1)] * 7 + [(2.0, 0.5)], [(1.5, 0.1)] * 7 + [(3.0, 0.5)]
    busy, late = zip(*(quick * (nodes - 1) + slow), strict=True)
    near = long_rings._near_ends(np.array(busy), np.array(late))
    assert near is not None and len(near) < 100
    steps = ring_steps("all_reduce", len(busy))
    assert ring_time(busy, late, steps).total == pytest.approx(3.0 * steps + 0.5, rel=1e-12)
