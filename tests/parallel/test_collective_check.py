"""Oracle: ``ProcessGroupWrapper::runCollectiveChecks`` played message by message."""

from __future__ import annotations

import pytest

from sim.parallel.collective_check import check_time


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
def test_a_check_is_a_barrier_and_two_rings(ranks: int) -> None:
    barrier = [(rank, 0) for rank in range(1, ranks)] + [(0, rank) for rank in range(1, ranks)]  # the first hears and answers in turn
    ring = range(ranks - 1)  # steps, in each of which all send at once
    assert check_time(ranks, 1e-4) == pytest.approx((len(barrier) + 2 * len(ring)) * 1e-4)
