"""Halving and doubling ends with every sum everywhere, in a ring's bytes and a logarithm of its steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.halving_doubling import (
    halving_doubling_all_reduce,
    halving_doubling_time,
    halving_doubling_wire_bytes,
)
from tests.oracle.collectives.ports import paced, received, sent, shared
from tests.oracle.collectives.ring import all_reduce_wire_bytes, ring_all_reduce_time
from tests.oracle.collectives.schedule import replay

orders = st.sampled_from([1, 2, 4, 8, 16]).flatmap(lambda n: st.permutations(range(n)))
sizes = st.floats(1, 1e10)


@given(orders, sizes)
def test_every_rank_ends_with_every_sum(ranks, nbytes):
    """Oracle: set replay."""
    held = replay(halving_doubling_all_reduce(ranks, nbytes), ranks, len(ranks))
    assert set(held.values()) == {frozenset(ranks)}


@given(orders, sizes)
def test_each_rank_sends_as_much_as_in_a_ring(ranks, nbytes):
    """Closed form: 2(n-1)/n of the payload, half of it to be summed."""
    n = len(ranks)
    transfers = halving_doubling_all_reduce(ranks, nbytes)
    summed = sum(transfer.reduce_bytes for transfer in transfers)
    assert [sent(transfers)[rank] for rank in ranks] == pytest.approx([halving_doubling_wire_bytes(n, nbytes)] * n)
    assert [received(transfers)[rank] for rank in ranks] == pytest.approx([all_reduce_wire_bytes(n, nbytes)] * n)
    assert summed == pytest.approx((n - 1) * nbytes)


@given(orders, sizes, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_schedule_attains_the_closed_form(ranks, nbytes, bandwidth, latency):
    """Oracle: the list scheduler with a whole port for each transfer, and ports that are shared when two want one: none does."""
    transfers = halving_doubling_all_reduce(ranks, nbytes)
    expected = halving_doubling_time(len(ranks), nbytes, bandwidth, latency)
    assert paced(transfers, lambda _: bandwidth, lambda _: latency) == pytest.approx(expected, rel=1e-9)
    assert shared(transfers, bandwidth, latency) == pytest.approx(expected, rel=1e-9)


@given(st.sampled_from([2, 4, 8, 64, 1024]), sizes)
def test_never_slower_than_a_ring_on_a_uniform_network(n, nbytes):
    """Closed form: the same bytes, 2 log2 n latencies for 2(n-1)."""
    gain = ring_all_reduce_time(n, nbytes, 1e10, 1e-5) - halving_doubling_time(n, nbytes, 1e10, 1e-5)
    assert gain == pytest.approx(2 * (n - 1 - (n.bit_length() - 1)) * 1e-5, abs=1e-12 + 1e-9 * nbytes / 1e10)


def test_one_rank_sends_nothing():
    assert halving_doubling_all_reduce([7], 8) == []
    assert halving_doubling_time(1, 8, 1, 1) == 0


@pytest.mark.parametrize(("n", "words"), [(3, "use 2 or 4 ranks"), (6, "use 4 or 8 ranks"), (12, "use 8 or 16 ranks")])
def test_other_numbers_of_ranks_are_told_what_works(n, words):
    for ask in (lambda: halving_doubling_all_reduce(range(n), 8), lambda: halving_doubling_time(n, 8, 1, 0)):
        with pytest.raises(ValueError, match=f"power of two of ranks, not {n}; {words}, or ring or tree"):
            ask()
