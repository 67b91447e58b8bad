"""How long is a hop under each protocol? By hand from NCCL's own table, and between the latencies that a class was fitted with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.topology import Route
from sim.spec.hardware import Transport
from sim.training.collectives.nccl.protocols import hop_latency


def route(simple: float, ll: float | None) -> Route:
    """A hop over NVLink with these latencies, seconds."""
    latencies = {"hop_latency": f"{simple!r} s"} | ({} if ll is None else {"hop_latency_ll": f"{ll!r} s"})
    given = {"name": "toy", "launch": "0 s", "efficiency": 1.0, "source": "test"}
    return Route((("gpu0>gpu1",),), "NVL", Transport.model_validate(given | latencies))


def test_ll128_stands_between_ll_and_simple_as_in_nccls_table():
    """By hand: rings over NVLink take 0.6, 1.9 and 3.4 us, so ln(1.9/0.6) / ln(3.4/0.6) = 0.6645 of the way from 1 to 10 us; trees 1.25."""
    assert hop_latency(route(10e-6, 1e-6), False, "LL128") == pytest.approx(10**0.66451 * 1e-6, rel=1e-4)
    assert hop_latency(route(10e-6, 1e-6), False, "LL128", "Tree") == pytest.approx(10**0.42314 * 1e-6, rel=1e-4)
    assert hop_latency(route(14e-6, 2.7e-6), True, "LL128") == pytest.approx(4e-6)  # NCCL's own between nodes give NCCL's own
    assert hop_latency(route(10e-6, None), False, "LL128") == pytest.approx(10e-6 * 1.9 / 3.4)  # of a class that was not fitted under LL


@given(simple=st.floats(1e-6, 1e-3), share=st.floats(0.01, 1.0))
def test_protocols_are_in_order(simple, share):
    """Monotone: LL is no slower than LL128, and LL128 no slower than Simple."""
    hops = [hop_latency(route(simple, share * simple), False, protocol) for protocol in ("LL", "LL128", "Simple")]
    assert hops == sorted(hops)
