"""Which gradients travel together: closed forms of the three strategies."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.lower.buckets import assign_buckets, exchange_buckets
from tests.harness import toy_workload

sizes = st.lists(st.floats(1, 1e9), min_size=1, max_size=50)
MIB = 2.0**20


def exchange(**keys):
    return toy_workload(stack=keys).training.stack.exchange


def tensors_of(gradients, alone=frozenset(), **keys):
    """The tensors of each bucket that an exchange makes of *gradients*."""
    return [list(bucket.tensors) for bucket in exchange_buckets(gradients, exchange(**keys), range(len(gradients)), single_tensors=alone)]


@given(sizes, st.lists(st.floats(1, 1e9), min_size=1, max_size=3))
def test_every_tensor_travels_once_and_in_order(tensors, caps):
    """Conservation: the buckets put together are the tensors, in ready order."""
    assert [index for bucket in assign_buckets(tensors, caps) for index in bucket] == list(range(len(tensors)))


@given(sizes, st.floats(1, 1e9), st.floats(1, 1e9))
def test_a_bucket_closes_when_it_reaches_its_cap(tensors, first, cap):
    """Definition (reducer.cpp): every bucket but the last reaches its cap, and does so with its last tensor."""
    buckets = assign_buckets(tensors, [first, cap])
    for number, bucket in enumerate(buckets[:-1]):
        limit = first if number == 0 else cap
        assert sum(tensors[index] for index in bucket) >= limit
        assert sum(tensors[index] for index in bucket[:-1]) < limit


@given(sizes)
def test_per_tensor_is_one_bucket_each_and_flat_is_one_in_all(tensors):
    assert tensors_of(tensors, strategy="apex_per_tensor") == [[index] for index in range(len(tensors))]
    assert tensors_of(tensors, strategy="flat") == [list(range(len(tensors)))]


def test_ddp_has_a_small_first_bucket():
    """torch's defaults: 1 MiB, then 25 MiB."""
    assert tensors_of([MIB] * 60) == [[0], list(range(1, 26)), list(range(26, 51)), list(range(51, 60))]


def test_no_tensor_no_bucket():
    assert assign_buckets([], [1.0]) == []
    assert assign_buckets([1.0], [math.inf]) == [[0]]
