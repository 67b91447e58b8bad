"""Do our buckets equal torch's own assignment? Oracle: ``torch.distributed._compute_bucket_assignment_by_size``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.lower.buckets import assign_buckets
from sim.parallel.lower.exchange_plan import plan_exchange
from tests.harness import layer, toy_workload
from tests.late import Late

pytestmark = pytest.mark.needs("torch")
distributed: Any = Late("torch.distributed")
sizes = st.lists(st.integers(1, 2000), min_size=1, max_size=60)
caps = st.lists(st.integers(1, 10_000), min_size=1, max_size=3)
two_caps = st.lists(st.integers(1, 10_000), min_size=1, max_size=2)


@pytest.fixture(autouse=True, scope="module")
def _its_assignment() -> None:
    if not hasattr(distributed, "_compute_bucket_assignment_by_size"):
        pytest.skip("this torch has no _compute_bucket_assignment_by_size")


@given(sizes, caps)
def test_buckets_are_torchs(elements, limits):
    """Random gradient tensors in ready order, with one to three caps: the same indices in the same buckets."""
    import torch

    tensors = [torch.empty(count, device="meta") for count in elements]
    theirs, _ = distributed._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), list(range(len(tensors))))
    assert assign_buckets([4.0 * count for count in elements], limits) == theirs


@given(st.lists(st.tuples(st.integers(1, 2000), st.sampled_from(["fp32", "bf16", "fp64"])), min_size=1, max_size=40), two_caps)
def test_buckets_of_mixed_types_are_torchs(tensors, limits):
    """Gradients of several types in ready order: the same sets; torch keeps the buckets left over at the end in no order."""
    import torch

    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
    made = [torch.empty(count, dtype=types[dtype], device="meta") for count, dtype in tensors]
    theirs, _ = distributed._compute_bucket_assignment_by_size(made, limits, [False] * len(made), list(range(len(made))))
    stack = {"first_bucket_cap": f"{limits[0]} B", "bucket_cap": f"{limits[-1]} B", "strategy": "ddp"}
    layers = [layer(0.1, 0.1, count, dtypes=[dtype]) for count, dtype in reversed(tensors)]
    workload = toy_workload(layers, stack=stack)
    buckets = plan_exchange(workload, range(1, len(tensors) + 1), 2).buckets
    assert sorted(bucket.last for bucket in buckets) == sorted(bucket[-1] for bucket in theirs)
    nbytes = sorted(sum(made[index].nbytes for index in bucket) for bucket in theirs)
    assert sorted(sum(message.nbytes for message in bucket.start.messages) for bucket in buckets) == nbytes
