"""Which nodes a job has: the earliest of many moments, in groups, is the earliest of all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.crew import _Moments


@given(nodes=st.integers(1, 70), seed=st.integers(0, 2**32), changes=st.integers(0, 60))
def test_the_earliest_of_groups_is_the_earliest_of_all(nodes: int, seed: int, changes: int) -> None:
    """Oracle: NumPy's minimum and its first place, over all nodes in one row; many moments are equal, as those of a limit of the age."""
    random = np.random.default_rng(seed)
    plain = random.integers(0, 5, (3, nodes)).astype(float)
    moments, courses = _Moments(plain.copy()), np.arange(3)
    for _ in range(changes):
        course, node, moment = random.integers(3, size=1), random.integers(nodes, size=1), random.choice([1.0, 2.0, np.inf], size=1)
        plain[course, node] = moment
        moments.put(course, node, moment)
        if random.random() < 0.1:
            plain[course] = moment
            moments.put_all(course, moment, nodes)
        assert moments.earliest(courses).tolist() == plain.min(axis=1).tolist()
        some = np.flatnonzero(np.isfinite(plain.min(axis=1)))
        assert moments.node(some).tolist() == plain[some].argmin(axis=1).tolist()
