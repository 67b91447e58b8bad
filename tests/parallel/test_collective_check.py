"""Oracle: ``ProcessGroupWrapper::runCollectiveChecks`` played message by message."""

from __future__ import annotations

import pytest

from sim.parallel.collective_check import check_time

LATENCY = 1e-4


def received(receive_posted: float, send_posted: float) -> float:
    """Return when data arrive over Gloo: the notice of the receive travels first, and the data follow."""
    return max(receive_posted + LATENCY, send_posted) + LATENCY


def barrier(ranks: int, now: float) -> list[float]:
    """Return when each rank leaves ``monitoredBarrier``, which all enter at *now*."""
    heard = max(received(now, now) for _ in range(1, ranks))  # the first rank has posted all its receives
    return [heard, *(received(now, heard) for _ in range(1, ranks))]


def ring(begin: list[float]) -> list[float]:
    """Return when each rank has gathered from all others in a ring."""
    ready = begin
    for _ in range(len(begin) - 1):
        ready = [max(received(own, before), own) for own, before in zip(ready, [ready[-1], *ready[:-1]], strict=True)]
    return ready


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_a_check_is_a_barrier_and_two_rings(ranks: int) -> None:
    left = barrier(ranks, 0.0)
    assert left[0] == pytest.approx(2 * LATENCY)
    assert left[1:] == pytest.approx([3 * LATENCY] * (ranks - 1))
    played = max(ring(ring([max(left)] * ranks)))
    assert check_time(ranks, LATENCY) == pytest.approx(played)


def test_one_rank_compares_nothing() -> None:
    assert check_time(1, LATENCY) == 0
