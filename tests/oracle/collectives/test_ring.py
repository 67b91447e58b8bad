"""Ring schedules end with the right sums, and send no byte more than they must."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.collectives.price.recurrence import ring_steps
from tests.oracle.collectives.ports import paced, shared
from tests.oracle.collectives.ring import (
    all_reduce_wire_bytes,
    ring_all_gather,
    ring_all_gather_time,
    ring_all_reduce,
    ring_all_reduce_time,
    ring_broadcast,
    ring_reduce_scatter,
)
from tests.oracle.collectives.schedule import replay

orders = st.integers(1, 20).flatmap(lambda n: st.permutations(range(n)))
sizes = st.floats(1, 1e12)


@given(orders, sizes)
def test_all_reduce_ends_with_every_sum_everywhere(ranks, nbytes):
    """Oracle: set replay."""
    n = len(ranks)
    held = replay(ring_all_reduce(ranks, nbytes), ranks, n)
    assert set(held.values()) == {frozenset(ranks)}


@given(orders, sizes)
def test_all_reduce_sends_the_least_over_every_hop(ranks, nbytes):
    """Closed form: 2(n-1)/n of the payload over each hop of the ring, in 2(n-1) steps, and (n-1)/n of it reduced by each rank."""
    n = len(ranks)
    sent, reduced = defaultdict(float), defaultdict(float)
    transfers = ring_all_reduce(ranks, nbytes)
    for transfer in transfers:
        sent[transfer.src, transfer.dst] += transfer.nbytes
        reduced[transfer.dst] += transfer.reduce_bytes
    assert len(transfers) == n * ring_steps("all_reduce", n)
    if n > 1:
        assert set(sent) == set(zip(ranks, (*ranks[1:], ranks[0]), strict=True))
        assert list(sent.values()) == pytest.approx([all_reduce_wire_bytes(n, nbytes)] * n)
        assert list(reduced.values()) == pytest.approx([(n - 1) / n * nbytes] * n)


@given(orders, sizes)
def test_reduce_scatter_leaves_each_rank_its_chunk(ranks, nbytes):
    """Oracle: set replay; position p holds the whole of chunk p."""
    held = replay(ring_reduce_scatter(ranks, nbytes), ranks, len(ranks))
    assert all(held[rank, place] == set(ranks) for place, rank in enumerate(ranks))


@given(orders, sizes)
def test_all_gather_spreads_every_chunk(ranks, nbytes):
    """Oracle: set replay from one chunk on each rank."""
    n = len(ranks)
    start = {(rank, chunk): frozenset([chunk] if place == chunk else []) for place, rank in enumerate(ranks) for chunk in range(n)}
    held = replay(ring_all_gather(ranks, nbytes), ranks, n, start)
    assert all(held[rank, chunk] == {chunk} for rank in ranks for chunk in range(n))


@given(orders, sizes, st.integers(1, 5))
def test_broadcast_reaches_all(ranks, nbytes, pieces):
    """Oracle: set replay; and every rank but the first receives the payload once."""
    transfers = ring_broadcast(ranks, nbytes, pieces)
    held = replay(transfers, ranks, pieces)
    assert set(held.values()) == {frozenset(ranks[:1])}
    assert sum(transfer.nbytes for transfer in transfers) == pytest.approx((len(ranks) - 1) * nbytes)


@given(st.integers(1, 12), sizes, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_schedules_attain_the_closed_forms(n, nbytes, bandwidth, latency):
    """Oracle: the list scheduler with a whole port for each transfer, and ports that are shared when two want one: none does."""
    gather = ring_all_gather_time(n, nbytes, bandwidth, latency)
    for schedule, expected in (
        (ring_all_reduce, ring_all_reduce_time(n, nbytes, bandwidth, latency)),
        (ring_all_gather, gather),
        (ring_reduce_scatter, gather),
    ):
        transfers = schedule(range(n), nbytes)
        assert paced(transfers, lambda _: bandwidth, lambda _: latency) == pytest.approx(expected, rel=1e-9)
        assert shared(transfers, bandwidth, latency) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ranks", [[], [0, 0]])
def test_no_ring_without_distinct_ranks(ranks):
    with pytest.raises(ValueError, match="each of its ranks once"):
        ring_all_reduce(ranks, 8)


@pytest.mark.parametrize("nbytes", [0, -1, float("nan")])
def test_no_collective_of_nothing(nbytes):
    with pytest.raises(ValueError, match="moves more than"):
        ring_all_reduce([0, 1], nbytes)


def test_a_broadcast_has_pieces():
    with pytest.raises(ValueError, match="at least one piece"):
        ring_broadcast([0, 1], 8, 0)
