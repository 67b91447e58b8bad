"""Which gradients travel together? Buckets as torch DDP, apex and a flat all-reduce form them.

DDP after its first iteration: tensors in the order their gradients become ready; a bucket closes when adding a tensor reaches
its cap; the first cap is 1 MiB, the others 25 MiB (torch/csrc/distributed/c10d/reducer.cpp,
``compute_bucket_assignment_by_size``). Apex with ``message_size=1``, as Stash runs it, closes a bucket after every tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.spec.stack import Stack


def assign_buckets(sizes: Sequence[float], caps: Sequence[float]) -> list[list[int]]:
    """Return the indices of *sizes* (bytes, in ready order) in each bucket; the last of *caps* (bytes) serves all further buckets."""
    buckets: list[list[int]] = []
    current: list[int] = []
    filled = 0.0
    for index, size in enumerate(sizes):
        current.append(index)
        filled += size
        if filled >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(current)
            current, filled = [], 0.0
    if current:
        buckets.append(current)
    return buckets


def stack_buckets(sizes: Sequence[float], stack: Stack) -> list[list[int]]:
    """Return the buckets that *stack*'s strategy makes of gradient tensors of these *sizes* (bytes, ready order)."""
    if stack.strategy == "apex_per_tensor":
        return assign_buckets(sizes, [1.0])
    if stack.strategy == "flat":
        return assign_buckets(sizes, [math.inf])
    return assign_buckets(sizes, [stack.first_bucket_cap, stack.bucket_cap])
