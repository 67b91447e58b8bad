"""Send/recv, gather, scatter and reduce: every block arrives, and ports carry what they must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.broadcast import broadcast_time
from tests.oracle.collectives.point_to_point import gather, gather_time, root_wire_bytes, scatter, send_recv, send_recv_time
from tests.oracle.collectives.ports import received, sent, shared
from tests.oracle.collectives.ring import ring_reduce
from tests.oracle.collectives.schedule import replay

orders = st.integers(1, 10).flatmap(lambda n: st.permutations(range(n)))
sizes = st.floats(1, 1e10)
at_once = st.integers(1, 8)
latencies = st.sampled_from([0.0, 1e-6, 1e-3])


@given(orders, sizes, at_once, st.floats(1e6, 1e12), latencies)
def test_schedules_attain_the_closed_forms(ranks, nbytes, at_once, bandwidth, latency):
    """Oracle: the list scheduler on fairly shared ports, which knows nothing of roots."""
    n = len(ranks)
    for schedule in (gather, scatter):
        expected = gather_time(n, nbytes, bandwidth, latency, at_once)
        assert shared(schedule(ranks, nbytes, at_once), bandwidth, latency) == pytest.approx(expected, rel=1e-9)
    assert shared(send_recv(ranks, nbytes), bandwidth, latency) == pytest.approx(send_recv_time(n, nbytes, bandwidth, latency), rel=1e-9)


@given(orders, sizes, at_once)
def test_blocks_arrive_and_bytes_are_conserved(ranks, nbytes, at_once):
    """Oracle: set replay; the root of a gather ends with every block, every rank of a scatter with its own, and ports carry just those."""
    n, root = len(ranks), ranks[0]
    own = {(rank, chunk): frozenset([rank] if chunk == place else []) for place, rank in enumerate(ranks) for chunk in range(n)}
    held = replay(gather(ranks, nbytes, at_once), ranks, n, own)
    assert all(held[root, place] == {rank} for place, rank in enumerate(ranks))
    of_root = {(rank, chunk): frozenset([root] if rank == root else []) for rank in ranks for chunk in range(n)}
    held = replay(scatter(ranks, nbytes, at_once), ranks, n, of_root)
    assert all(held[rank, place] == {root} for place, rank in enumerate(ranks))
    assert received(gather(ranks, nbytes, at_once))[root] == pytest.approx(root_wire_bytes(n, nbytes))
    assert sent(scatter(ranks, nbytes, at_once))[root] == pytest.approx(root_wire_bytes(n, nbytes))
    held = replay(send_recv(ranks, nbytes), ranks, n, own)
    assert all(held[ranks[(place + 1) % n], place] == {rank} for place, rank in enumerate(ranks))


@given(orders, sizes, st.integers(1, 5), st.floats(1e6, 1e12), latencies)
def test_a_reduce_is_a_broadcast_backwards(ranks, nbytes, pieces, bandwidth, latency):
    """Oracles: set replay (the root holds every contribution to every piece once), and a broadcast's closed form."""
    transfers = ring_reduce(ranks, nbytes, pieces)
    held = replay(transfers, ranks, pieces)
    assert all(held[ranks[0], piece] == set(ranks) for piece in range(pieces))
    assert shared(transfers, bandwidth, latency) == pytest.approx(broadcast_time(len(ranks), nbytes, bandwidth, latency, pieces), rel=1e-9)
