"""How long a pipelined broadcast takes: the schedule attains the closed form, and many pieces cost no more than one payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.collectives.broadcast import broadcast_time, broadcast_wire_bytes
from tests.oracle.collectives.ports import paced, received, sent, shared
from tests.oracle.collectives.ring import ring_broadcast

counts = st.integers(1, 12)
sizes = st.floats(1, 1e10)
rates = st.floats(1e6, 1e12)
latencies = st.sampled_from([0.0, 1e-6, 1e-3])
pieces = st.integers(1, 6)


@given(counts, sizes, rates, latencies, pieces)
def test_the_schedule_attains_the_closed_form(n, nbytes, bandwidth, latency, pieces):
    """Oracle: the list scheduler and the shared ports, which know nothing of pipelines."""
    transfers = ring_broadcast(range(n), nbytes, pieces)
    expected = broadcast_time(n, nbytes, bandwidth, latency, pieces)
    assert paced(transfers, lambda _: bandwidth, lambda _: latency) == pytest.approx(expected, rel=1e-9)
    assert shared(transfers, bandwidth, latency) == pytest.approx(expected, rel=1e-9)


@given(counts, sizes, pieces)
def test_every_rank_receives_the_payload_once(n, nbytes, pieces):
    """Conservation."""
    transfers = ring_broadcast(range(n), nbytes, pieces)
    assert [received(transfers)[rank] for rank in range(1, n)] == pytest.approx([broadcast_wire_bytes(n, nbytes)] * (n - 1))
    assert [sent(transfers)[rank] for rank in range(n - 1)] == pytest.approx([broadcast_wire_bytes(n, nbytes)] * (n - 1))


def test_pieces_hide_the_hops():
    """Closed form: one piece takes n - 1 payloads, a thousand little more than one."""
    assert broadcast_time(64, 1e9, 1e10, 0) == pytest.approx(63 * 0.1)
    assert broadcast_time(64, 1e9, 1e10, 0, 1000) == pytest.approx(0.1 * 1.062)


def test_one_rank_has_it_already():
    assert ring_broadcast([5], 8) == []
    assert broadcast_time(1, 8, 1, 1, 3) == broadcast_wire_bytes(1, 8) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 8, 1, 0), "at least one rank"),
        ((2, 0, 1, 0), "more than 0 bytes"),
        ((2, float("nan"), 1, 0), "more than 0 bytes"),
        ((2, 8, 0, 0), "bandwidth above zero"),
        ((2, 8, 1, -1), "latency of zero or more"),
        ((2, 8, 1, 0, 0), "at least one piece"),
    ],
)
def test_no_time_for_nonsense(arguments, words):
    with pytest.raises(ValueError, match=words):
        broadcast_time(*arguments)
