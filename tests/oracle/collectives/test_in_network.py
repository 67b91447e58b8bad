"""Aggregation in the network: every sum everywhere, one payload each way on every link, and the closed form is attained."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.in_network import (
    height,
    in_network_all_reduce,
    in_network_all_reduce_time,
    in_network_wire_bytes,
    switch_tree,
)
from tests.oracle.collectives.ports import paced, port_loads, received, sent, shared
from tests.oracle.collectives.schedule import replay
from tests.oracle.collectives.tree import tree_all_reduce_time

orders = st.integers(1, 20).flatmap(lambda n: st.permutations(range(n)))
radices = st.integers(2, 8)
sizes = st.floats(1, 1e10)
pieces = st.integers(1, 5)


@given(orders, radices, sizes, pieces)
def test_every_rank_ends_with_every_sum(ranks, radix, nbytes, pieces):
    """Oracle: set replay with the switches as reducers that hold nothing at first."""
    parents = switch_tree(ranks, radix)
    held = replay(in_network_all_reduce(ranks, nbytes, parents, pieces), ranks, pieces, reducers=set(parents.values()))
    assert {held[rank, piece] for rank in ranks for piece in range(pieces)} == {frozenset(ranks)}


@given(orders, radices, sizes, pieces)
def test_one_payload_each_way_on_every_link(ranks, radix, nbytes, pieces):
    """Conservation: each host sends and receives S whatever the number of hosts, each switch S per child and S for its parent."""
    parents = switch_tree(ranks, radix)
    transfers = in_network_all_reduce(ranks, nbytes, parents, pieces)
    children = Counter(parents.values())
    wanted = {end: (children[end] + (end in parents)) * nbytes for end in {*parents, *children}}
    assert dict(received(transfers)) == pytest.approx(wanted)
    assert dict(sent(transfers)) == pytest.approx(wanted)
    assert [sent(transfers)[rank] for rank in ranks] == pytest.approx([in_network_wire_bytes(len(ranks), nbytes)] * len(ranks))


@given(orders, radices, sizes, pieces, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_schedule_attains_the_closed_form(ranks, radix, nbytes, pieces, bandwidth, latency):
    """Oracle: the list scheduler with one stream per link and direction, so that a host's port and a switch's ports are never shared."""
    parents = switch_tree(ranks, radix)
    transfers = in_network_all_reduce(ranks, nbytes, parents, pieces)
    loads = port_loads(transfers, lambda _: bandwidth)
    assert all(loads[rank, way] == bandwidth for rank in ranks for way in ("in", "out") if len(ranks) > 1)
    expected = in_network_all_reduce_time(len(ranks), nbytes, bandwidth, latency, radix, pieces)
    assert paced(transfers, lambda _: bandwidth, lambda _: latency) == pytest.approx(expected, rel=1e-9)


@given(st.integers(2, 9), radices, pieces, st.sampled_from([0.0, 1e-3]))
def test_one_port_per_host_is_enough(n, radix, pieces, latency):
    """Oracle: shared ports, of hosts only where a single switch does all."""
    parents = switch_tree(range(n), max(radix, n))
    played = shared(in_network_all_reduce(range(n), 1e9, parents, pieces), 1e10, latency, wide=[-1])
    assert played == pytest.approx(in_network_all_reduce_time(n, 1e9, 1e10, latency, max(radix, n), pieces), rel=1e-9)


@given(st.integers(1, 500), st.integers(2, 64))
def test_height_is_the_trees(n, radix):
    """Oracle: walk up from every rank; and no switch has more children than its radix."""
    parents = switch_tree(range(n), radix)
    for rank in range(n):
        hops, here = 0, rank
        while here in parents:
            here, hops = parents[here], hops + 1
        assert hops == height(n, radix)
    assert max(Counter(parents.values()).values(), default=0) <= radix


def test_a_tree_of_any_shape():
    """Oracle: by hand. Rank 2 hangs on the root, 0 and 1 one switch below: two pieces of 4 bytes at 1 byte/s over 4 hops, 1 s each."""
    parents = {0: -1, 1: -1, -1: -2, 2: -2}
    transfers = in_network_all_reduce([0, 1, 2], 8, parents, 2)
    assert replay(transfers, [0, 1, 2], 2, reducers=[-1, -2])[2, 1] == {0, 1, 2}
    assert paced(transfers, lambda _: 1, lambda _: 1) == (2 + 3) * 4 + 4


def test_half_of_the_bytes_of_host_trees():
    """Closed form: S/B for large payloads where hosts need 2S/B."""
    hosts = tree_all_reduce_time(64, 1e9, 1e10, 0, 10**6)
    assert hosts / in_network_all_reduce_time(64, 1e9, 1e10, 0, 32, 10**6) == pytest.approx(2, rel=1e-4)


def test_one_rank_sends_nothing():
    assert switch_tree([3], 4) == {}
    assert in_network_all_reduce([3], 8, {}, 2) == []
    assert in_network_all_reduce_time(1, 8, 1, 1, 4, 2) == in_network_wire_bytes(1, 8) == 0


@pytest.mark.parametrize(
    ("parents", "words"),
    [
        ({0: -1}, r"ranks \[1\] hang on no switch"),
        ({0: 1, 1: -1}, r"ranks \[1\] have children"),
        ({0: -1, 1: -1, -3: -1}, r"\[-3\] are leaves"),
        ({0: -1, 1: -2}, "one root"),
        ({0: -1, 1: -1, -1: -2, -2: -1}, "no circles"),
    ],
)
def test_trees_that_cannot_aggregate(parents, words):
    with pytest.raises(ValueError, match=words):
        in_network_all_reduce([0, 1], 8, parents)


def test_switches_that_cannot():
    with pytest.raises(ValueError, match="at least two children, not 1"):
        switch_tree([0, 1], 1)
    with pytest.raises(ValueError, match="at least two children, not 0"):
        height(3, 0)
    with pytest.raises(ValueError, match="negative numbers are switches"):
        switch_tree([0, -1], 4)
