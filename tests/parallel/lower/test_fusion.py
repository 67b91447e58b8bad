"""Which gradients Horovod fuses and when: by hand, and what must hold of any ready times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.lower.fusion import fill_buffers, fused_buckets, negotiation_time
from sim.spec.stack import Fusion


def fusion(threshold=1e12, cycle=1.0, **keys):
    described = {"threshold": f"{threshold!r} B", "cycle_time": f"{cycle!r} s", "control_latency": "0 s", "request_time": "0 s"}
    return Fusion.model_validate(described | {"source": "test"} | keys)


def launches(ready, buckets):
    return [pytest.approx(ready[bucket.tensors[-1]] + bucket.delay) for bucket in buckets]


def test_tensors_of_one_cycle_travel_together():
    """By hand: cycles of 1 s end at 0.5, 1.5 and 2.5 s after the first tensor; tensors at 0, 0.4, 0.6 and 2 s."""
    ready = [10.0, 10.4, 10.6, 12.0]
    buckets = fused_buckets(ready, [1.0] * 4, fusion(), 2)
    assert [bucket.tensors for bucket in buckets] == [(0, 1), (2,), (3,)]
    assert launches(ready, buckets) == [10.5, 11.5, 12.5]


def test_the_threshold_splits_a_cycle():
    """By hand (FuseResponses): a message takes tensors while both fit; one that is too large goes alone."""
    assert fill_buffers([0, 1, 2, 3, 4], [3.0, 4.0, 4.0, 20.0, 1.0], 8.0) == [(0, 1), (2,), (3,), (4,)]
    ready = [0.0, 0.1, 0.2]
    buckets = fused_buckets(ready, [6.0, 6.0, 2.0], fusion(threshold=8.0), 2)
    assert [bucket.tensors for bucket in buckets] == [(0,), (1, 2)]
    assert launches(ready, buckets) == [0.5, 0.5]


def test_no_fusion_without_a_buffer():
    """Horovod's documentation: a threshold of zero turns fusion off."""
    assert [bucket.tensors for bucket in fused_buckets([0.0] * 3, [1.0] * 3, fusion(threshold=0.0), 2)] == [(0,), (1,), (2,)]


def test_negotiation_with_and_without_response_cache():
    """Closed form: two collectives of log2(n) hops; without the cache the first rank reads every rank's request for every tensor."""
    keys = {"control_latency": "10 us", "request_time": "1 us"}
    assert negotiation_time(fusion(**keys), 16, 0) == pytest.approx(2 * 4 * 10e-6)
    ready = [0.0] * 5
    (cached,) = fused_buckets(ready, [1.0] * 5, fusion(**keys), 16)
    (uncached,) = fused_buckets(ready, [1.0] * 5, fusion(**keys, response_cache=0), 16)
    (full,) = fused_buckets(ready, [1.0] * 5, fusion(**keys, response_cache=4), 16)
    assert cached.delay == pytest.approx(0.5 + 80e-6)
    assert uncached.delay == full.delay == pytest.approx(0.5 + 80e-6 + 5 * 16 * 1e-6)


def test_a_slow_negotiation_lengthens_the_cycle():
    """By hand: where agreeing takes 2 s, the thread cannot wake each second."""
    buckets = fused_buckets([0.0, 1.4], [1.0, 1.0], fusion(control_latency="1 s"), 2)
    assert [bucket.tensors for bucket in buckets] == [(0,), (1,)]
    assert launches([0.0, 1.4], buckets) == [1 + 2, 3 + 2]


def test_without_a_cycle_nothing_waits():
    assert fused_buckets([0.0, 0.5], [1.0, 1.0], fusion(cycle=0.0), 2) == [((0,), 0.0), ((1,), 0.0)]


tables = st.lists(st.tuples(st.floats(0, 0.1), st.floats(1, 1e8)), min_size=1, max_size=60)


@given(tables, st.floats(1e-4, 1e3), st.floats(0, 2e8), st.integers(2, 2048), st.integers(0, 64))
def test_every_tensor_once_in_order_and_never_before_it_is_ready(table, cycle, threshold, ranks, cache):
    """Conservation; and by definition no message exceeds the buffer unless it is one tensor, nor waits longer than a cycle and an
    agreement."""
    gaps, sizes = zip(*table, strict=True)
    ready = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    described = fusion(threshold, cycle, response_cache=cache, control_latency="10 us", request_time="1 us")
    buckets = fused_buckets(ready, sizes, described, ranks)
    assert [tensor for bucket in buckets for tensor in bucket.tensors] == list(range(len(sizes)))
    longest = max(cycle, negotiation_time(described, ranks, 0)) + negotiation_time(described, ranks, len(sizes))
    for bucket in buckets:
        assert -1e-9 <= bucket.delay <= longest * (1 + 1e-9) + 1e-9
        assert len(bucket.tensors) == 1 or sum(sizes[tensor] for tensor in bucket.tensors) <= threshold * (1 + 1e-9)


@given(tables)
def test_an_endless_cycle_is_a_flat_all_reduce(table):
    """Limit: a cycle longer than backward and a boundless buffer leave one message of everything."""
    gaps, sizes = zip(*table, strict=True)
    ready = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    (bucket,) = fused_buckets(ready, sizes, fusion(1e14, 2 * sum(gaps) + 1), 8)
    assert bucket.tensors == tuple(range(len(sizes)))
