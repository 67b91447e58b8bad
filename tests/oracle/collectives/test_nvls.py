"""All-reduce in the switch: every sum everywhere, n + 1 shards out of and into each GPU, and the schedule attains the closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.nvls import SWITCH, nvls_all_reduce, nvls_all_reduce_time, nvls_wire_bytes
from tests.oracle.collectives.ports import in_turn, paced, port_loads, received, sent, shared
from tests.oracle.collectives.ring import ring_all_reduce_time
from tests.oracle.collectives.schedule import ScheduleError, replay

orders = st.integers(1, 10).flatmap(lambda n: st.permutations(range(n)))
sizes = st.floats(1, 1e10)
pieces = st.integers(1, 5)
latencies = st.sampled_from([0.0, 1e-6, 1e-3])


@given(orders, sizes, pieces)
def test_every_rank_ends_with_every_sum(ranks, nbytes, pieces):
    """Oracle: set replay with the switch as a reducer that holds nothing at first."""
    held = replay(nvls_all_reduce(ranks, nbytes, pieces), ranks, pieces * len(ranks), reducers=[SWITCH])
    assert set(held.values()) == {frozenset(ranks)}


def test_the_switch_must_be_a_reducer():
    """The schedule does not order what GPUs bring to the switch; one that could not add it as it comes would fail."""
    with pytest.raises(ScheduleError, match="race"):
        replay(nvls_all_reduce([0, 1], 8), [0, 1], 2)


@given(orders, sizes, pieces)
def test_one_shard_more_than_the_payload(ranks, nbytes, pieces):
    """Closed form: n + 1 of n shards out of and into each GPU; the switch reads n payloads, and sums them."""
    n = len(ranks)
    transfers = nvls_all_reduce(ranks, nbytes, pieces)
    assert [sent(transfers)[rank] for rank in ranks] == pytest.approx([nvls_wire_bytes(n, nbytes)] * n)
    assert [received(transfers)[rank] for rank in ranks] == pytest.approx([nvls_wire_bytes(n, nbytes)] * n)
    assert sum(transfer.reduce_bytes for transfer in transfers) == pytest.approx(n * nbytes if n > 1 else 0)


@given(st.integers(2, 10), sizes, pieces, st.floats(1e6, 1e12), latencies)
def test_the_schedule_attains_the_closed_form(n, nbytes, pieces, bandwidth, latency):
    """Oracle: the list scheduler, stores after loads or at the same time; in both cases no GPU's port is overloaded."""
    transfers = nvls_all_reduce(range(n), nbytes, pieces)
    loads = [transfer for transfer in transfers if transfer.channel == 0]
    stores = [transfer._replace(after=()) for transfer in transfers if transfer.channel == 1]

    def beside(transfer):
        full_share = transfer.channel == (0 if transfer.dst == SWITCH else 1)
        return bandwidth * (n if full_share else 1) / (n + 1)

    for together, rate in ((transfers, beside), (loads, lambda _: bandwidth), (stores, lambda _: bandwidth)):
        assert all(load <= bandwidth * (1 + 1e-9) for (end, _), load in port_loads(together, rate).items() if end != SWITCH)
    alone = paced(_stores_last(transfers), lambda _: bandwidth, lambda _: latency)
    shares = paced(transfers, beside, lambda _: latency)
    assert min(alone, shares) == pytest.approx(nvls_all_reduce_time(n, nbytes, bandwidth, latency, pieces), rel=1e-9)


def _stores_last(transfers):
    """Stores held back until all loads are in."""
    marked = [transfer._replace(reduce_bytes=1.0 - transfer.channel) for transfer in transfers]
    return in_turn(marked)


@given(st.integers(2, 8), st.integers(1, 4), latencies)
def test_fair_ports_are_no_slower_and_never_beyond_their_bandwidth(n, pieces, latency):
    """Oracle: ports that share themselves max-min between loads and stores."""
    played = shared(nvls_all_reduce(range(n), 1e9, pieces), 1e10, latency, wide=[SWITCH])
    expected = nvls_all_reduce_time(n, 1e9, 1e10, latency, pieces)
    assert max(0.7 * expected, nvls_wire_bytes(n, 1e9) / 1e10) <= played <= expected * (1 + 1e-9)


def test_twice_a_ring_where_there_are_many():
    """Closed form: 2(n-1) / (n+1) of a ring's speed for large payloads; and four hops of latency, not 2(n-1)."""
    assert ring_all_reduce_time(8, 1e9, 1e11, 0) / nvls_all_reduce_time(8, 1e9, 1e11, 0, 10**6) == pytest.approx(14 / 9, rel=1e-4)
    assert ring_all_reduce_time(72, 8, 1e11, 1e-6) / nvls_all_reduce_time(72, 8, 1e11, 1e-6) == pytest.approx(142 / 4, rel=1e-3)


def test_one_rank_sends_nothing():
    assert nvls_all_reduce([3], 8, 2) == []
    assert nvls_all_reduce_time(1, 8, 1, 1, 2) == nvls_wire_bytes(1, 8) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0, SWITCH], 8), "is the switch"),
        (([0, 1], 0), "more than 0 bytes"),
        (([0, 1], 8, 0), "at least one piece"),
    ],
)
def test_what_the_switch_cannot_do(arguments, words):
    with pytest.raises(ValueError, match=words):
        nvls_all_reduce(*arguments)
