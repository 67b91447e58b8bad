"""Hierarchical all-reduce: every sum everywhere, only a shard leaves its node, and the schedule attains the closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.hierarchical import (
    Level,
    hierarchical_all_reduce,
    hierarchical_all_reduce_time,
    hierarchical_wire_bytes,
)
from tests.oracle.collectives.ports import paced, received, sent, shared
from tests.oracle.collectives.ring import ring_all_reduce_time
from tests.oracle.collectives.schedule import replay

sizes = st.floats(1, 1e10)
latencies = st.sampled_from([0.0, 1e-6, 1e-3])
bandwidths = st.floats(1e6, 1e12)


@st.composite
def placements(draw):
    """Ranks in any order, and how many of them stand on one node."""
    per_node, nodes = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return draw(st.permutations(range(nodes * per_node))), per_node


def inside(ranks, per_node):
    node = {rank: place // per_node for place, rank in enumerate(ranks)}
    return lambda transfer: node[transfer.src] == node[transfer.dst]


@given(placements(), sizes)
def test_every_rank_ends_with_every_sum(placement, nbytes):
    """Oracle: set replay."""
    ranks, per_node = placement
    held = replay(hierarchical_all_reduce(ranks, nbytes, per_node), ranks, len(ranks))
    assert set(held.values()) == {frozenset(ranks)}


@given(placements(), sizes)
def test_only_a_shard_leaves_its_node(placement, nbytes):
    """Closed forms of every rank's bytes within its node and to others; and S (n-1) bytes summed in all, no less than any other."""
    ranks, per_node = placement
    n, transfers, local = len(ranks), hierarchical_all_reduce(ranks, nbytes, per_node), inside(ranks, per_node)
    within, between = hierarchical_wire_bytes(n // per_node, per_node, nbytes)
    for wanted, part in ((within, filter(local, transfers)), (between, (t for t in transfers if not local(t)))):
        moved = list(part)
        assert [sent(moved)[rank] for rank in ranks] == pytest.approx([wanted] * n)
        assert [received(moved)[rank] for rank in ranks] == pytest.approx([wanted] * n)
    assert sum(transfer.reduce_bytes for transfer in transfers) == pytest.approx((n - 1) * nbytes)


@given(placements(), sizes, bandwidths, latencies, bandwidths, latencies)
def test_the_schedule_attains_the_closed_form(placement, nbytes, intra_bandwidth, intra_latency, inter_bandwidth, inter_latency):
    """Oracle: the list scheduler; each rank sends to one at a time within and between nodes, so that ports need no sharing."""
    ranks, per_node = placement
    local = inside(ranks, per_node)
    played = paced(
        hierarchical_all_reduce(ranks, nbytes, per_node),
        lambda transfer: intra_bandwidth if local(transfer) else inter_bandwidth,
        lambda transfer: intra_latency if local(transfer) else inter_latency,
    )
    within = Level(per_node, intra_bandwidth, intra_latency)
    expected = hierarchical_all_reduce_time(nbytes, within, Level(len(ranks) // per_node, inter_bandwidth, inter_latency))
    assert played == pytest.approx(expected, rel=1e-9)


@given(placements(), sizes, bandwidths, latencies)
def test_one_port_for_both_is_enough(placement, nbytes, bandwidth, latency):
    """Oracle: shared ports; and with one bandwidth the bytes take as long as a flat ring's."""
    ranks, per_node = placement
    n = len(ranks)
    sizes = (per_node, n // per_node)
    expected = hierarchical_all_reduce_time(nbytes, *(Level(size, bandwidth, latency) for size in sizes))
    assert shared(hierarchical_all_reduce(ranks, nbytes, per_node), bandwidth, latency) == pytest.approx(expected, rel=1e-9)
    assert hierarchical_all_reduce_time(nbytes, *(Level(size, bandwidth, 0) for size in sizes)) == pytest.approx(
        ring_all_reduce_time(n, nbytes, bandwidth, 0), rel=1e-9
    )


@pytest.mark.parametrize("per_node", [1, 6])
def test_one_level_is_a_ring(per_node):
    """Closed form: one rank per node, or one node."""
    here = hierarchical_all_reduce_time(1e9, Level(per_node, 1e10, 1e-5), Level(6 // per_node, 1e10, 1e-5))
    assert here == pytest.approx(ring_all_reduce_time(6, 1e9, 1e10, 1e-5))
    assert len(hierarchical_all_reduce(range(6), 1e9, per_node)) == 6 * 10


def test_one_rank_sends_nothing():
    assert hierarchical_all_reduce([3], 8, 1) == []
    assert hierarchical_all_reduce_time(8, Level(1, 1, 1), Level(1, 1, 1)) == 0


def test_nodes_must_be_alike():
    with pytest.raises(ValueError, match="6 ranks do not fill nodes of 4: every node needs the same number of ranks, or take a ring"):
        hierarchical_all_reduce(range(6), 8, 4)
    with pytest.raises(ValueError, match="more than 0 bytes"):
        hierarchical_all_reduce(range(6), 0, 3)


@given(
    st.tuples(*[st.integers(1, 4)] * 3), sizes, st.tuples(bandwidths, bandwidths, bandwidths), st.tuples(latencies, latencies, latencies)
)
def test_racks_are_a_level_more(counts, nbytes, bandwidth, latency):
    """Oracle: replay proves every rank ends with every sum; the list scheduler takes the closed form's time."""
    per_node, per_rack, racks = counts
    ranks = range(per_node * per_rack * racks)
    transfers = hierarchical_all_reduce(ranks, nbytes, per_node, per_rack)
    held = replay(transfers, ranks, len(ranks))
    assert all(held[rank, chunk] == frozenset(ranks) for rank in ranks for chunk in ranks)

    def level(transfer):
        blocks = [(end // per_node, end // (per_node * per_rack)) for end in (transfer.src, transfer.dst)]
        return 2 - sum(one == other for one, other in zip(*blocks, strict=True))

    played = paced(transfers, lambda transfer: bandwidth[level(transfer)], lambda transfer: latency[level(transfer)])
    levels = [Level(*each) for each in zip(counts, bandwidth, latency, strict=True)]
    assert played == pytest.approx(hierarchical_all_reduce_time(nbytes, *levels), rel=1e-9)
