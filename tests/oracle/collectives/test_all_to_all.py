"""Every block reaches its rank, no port serves two at once, and the schedule attains the closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.all_to_all import all_to_all, all_to_all_time, all_to_all_wire_bytes
from tests.oracle.collectives.ports import paced, received, sent, shared
from tests.oracle.collectives.schedule import replay

orders = st.integers(1, 12).flatmap(lambda n: st.permutations(range(n)))
sizes = st.floats(1, 1e10)


@given(orders, sizes, st.integers(1, 8))
def test_every_block_reaches_its_rank(ranks, nbytes, at_once):
    """Oracle: set replay; position p begins with blocks (p, .) and ends with blocks (., p)."""
    n = len(ranks)
    blocks = {(rank, chunk): frozenset([rank] if chunk // n == place else []) for place, rank in enumerate(ranks) for chunk in range(n * n)}
    held = replay(all_to_all(ranks, nbytes, at_once), ranks, n * n, blocks)
    assert all(held[ranks[q], p * n + q] == {ranks[p]} for p in range(n) for q in range(n))


@given(orders, sizes)
def test_each_rank_sends_what_has_to_leave_it(ranks, nbytes):
    """Conservation: all blocks but its own, as many bytes in as out."""
    n = len(ranks)
    transfers = all_to_all(ranks, nbytes)
    assert [sent(transfers)[rank] for rank in ranks] == pytest.approx([all_to_all_wire_bytes(n, nbytes)] * n)
    assert [received(transfers)[rank] for rank in ranks] == pytest.approx([all_to_all_wire_bytes(n, nbytes)] * n)


@given(orders, sizes, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_schedule_attains_the_closed_form(ranks, nbytes, bandwidth, latency):
    """Oracle: the list scheduler with a whole port for each transfer, and ports that are shared when two want one: none does."""
    transfers = all_to_all(ranks, nbytes)
    expected = all_to_all_time(len(ranks), nbytes, bandwidth, latency)
    assert paced(transfers, lambda _: bandwidth, lambda _: latency) == pytest.approx(expected, rel=1e-9)
    assert shared(transfers, bandwidth, latency) == pytest.approx(expected, rel=1e-9)


@given(orders, sizes, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-6, 1e-3]), st.integers(1, 8))
def test_partners_at_once_share_the_ports_and_the_latency(ranks, nbytes, bandwidth, latency, at_once):
    """Oracle: the list scheduler on ports that share themselves; as many bytes, ceil((n - 1) / k) latencies."""
    expected = all_to_all_time(len(ranks), nbytes, bandwidth, latency, at_once)
    assert shared(all_to_all(ranks, nbytes, at_once), bandwidth, latency) == pytest.approx(expected, rel=1e-9)


def test_a_slow_rank_sends_one_block_after_another():
    """Oracle: by hand. Rank 0 needs 10 s for a block, the others 1 s: its second block leaves at 10 s, whatever it has received."""
    assert paced(all_to_all([0, 1, 2], 3), lambda transfer: 0.1 if transfer.src == 0 else 1, lambda _: 0) == 20


def test_one_rank_keeps_its_block():
    assert all_to_all([3], 8) == []
    assert all_to_all_time(1, 8, 1, 1) == 0


def test_no_exchange_of_nothing():
    with pytest.raises(ValueError, match="more than 0 bytes"):
        all_to_all([0, 1], 0)
    with pytest.raises(ValueError, match="each of its ranks once"):
        all_to_all([0, 0], 8)
