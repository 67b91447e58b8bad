"""Send/recv, gather, scatter and reduce: every block arrives, ports carry what they must, and NCCL's cuts are its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.study.collective import collective_table
from sim.training.collectives.broadcast import broadcast_time
from sim.training.collectives.nccl_constants import VERSIONS
from sim.training.collectives.plan import OPS, Tuning
from sim.training.collectives.point_to_point import (
    SENDS,
    gather,
    gather_time,
    root_wire_bytes,
    scatter,
    send_recv,
    send_recv_time,
)
from sim.training.collectives.ring import ring_reduce
from sim.training.collectives.schedule import replay
from tests.training.collectives.ports import received, sent, shared

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


def test_how_nccl_cuts_a_send():
    """By hand from paths.cc and enqueue.cc: 24 connected channels give 32, a NIC 2; a part has 64 KiB, and above 16 MiB a part, more.

    Between nodes LL has no buffer (net.cc: connections that rings do not use are shared).
    """
    wrong = []
    for hardware, nodes, nbytes, channels, protocol in (
        ("hgx-h100", 1, 2**14, 1, "LL"),
        ("hgx-h100", 1, 2**20, 4, "Simple"),
        ("hgx-h100", 1, 2**30, 32, "Simple"),
        ("hgx-h100", 4, 2**14, 1, "Simple"),
        ("hgx-h100", 4, 2**20, 2, "Simple"),
        ("g4dn.12xlarge", 1, 2**14, 1, "LL"),
        ("g4dn.12xlarge", 1, 2**20, 1, "Simple"),
    ):
        (row,) = collective_table(hardware, "send_recv", [nbytes], nodes=nodes).rows
        if (row.channels, row.protocol) != (channels, protocol):
            wrong.append((hardware, nodes, nbytes, row.channels, row.protocol))
        (old,) = collective_table(hardware, "send_recv", [nbytes], nodes=nodes, tuning=Tuning("2.10")).rows
        assert old.protocol == "Simple"
    assert not wrong


def test_no_operation_passes_its_links():
    """Bus bandwidth is what the busiest rank must send per byte: never above its NVLinks, or its NIC where one rank stands on a node."""
    wrong = []
    for version in VERSIONS:
        for op in OPS:
            inside = collective_table("hgx-h100", op, [2**14, 2**22, 2**30], tuning=Tuning(version)).rows
            wrong += [(version, op, row) for row in inside if row.busbw > 450e9 and row.algorithm != "NVLS"]
            between = collective_table("hgx-h100", op, [2**14, 2**22, 2**30], nodes=4, placement="1+1+1+1", tuning=Tuning(version)).rows
            wrong += [(version, op, row) for row in between if row.busbw > 50e9]
            assert all(row.algorithm == SENDS.get(op, row.algorithm) for row in (*inside, *between))
    assert not wrong
