"""Do our buckets equal torch's own assignment? Oracle: ``torch.distributed._compute_bucket_assignment_by_size``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.buckets import assign_buckets

distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")
if not hasattr(distributed, "_compute_bucket_assignment_by_size"):
    pytest.skip("this torch has no _compute_bucket_assignment_by_size", allow_module_level=True)

sizes = st.lists(st.integers(1, 2000), min_size=1, max_size=60)
caps = st.lists(st.integers(1, 10_000), min_size=1, max_size=3)


@given(sizes, caps)
def test_buckets_are_torchs(elements, limits):
    """Random gradient tensors in ready order, with one to three caps: the same indices in the same buckets."""
    import torch

    tensors = [torch.empty(count, device="meta") for count in elements]
    theirs, _ = distributed._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), list(range(len(tensors))))
    assert assign_buckets([4.0 * count for count in elements], limits) == theirs
