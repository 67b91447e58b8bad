"""Which gradients travel together, and when? Buckets as torch DDP, apex, Horovod and a flat all-reduce form them.

DDP after its first iteration: tensors in the order their gradients become ready; a bucket closes when adding a tensor reaches
its cap; the first cap is 1 MiB, the others 25 MiB (torch/csrc/distributed/c10d/reducer.cpp,
``compute_bucket_assignment_by_size``). Apex closes a bucket when it holds ``message_size`` elements (NVIDIA/apex
apex/parallel/distributed.py); with 1, as Stash runs it, after every tensor. Horovod: `sim.parallel.lower.fusion`. A tensor that travels as
rows (a sparse embedding) has a message of its own, whatever the strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set

from sim.parallel.lower.fusion import Bucket, fused
from sim.parallel.lower.own_exchange import own_buckets
from sim.spec.stack import Stack, Strategy

GRADIENT_ELEMENT = 4.0
"""Bytes by which apex's elements are counted where nothing narrower travels."""

CAPS: Mapping[Strategy, Callable[[Stack, float], Sequence[float]]] = {
    "ddp": lambda stack, _: [stack.first_bucket_cap, stack.bucket_cap],
    "apex": lambda stack, width: [stack.message_size * width],
    "apex_per_tensor": lambda *_: [1.0],
    "flat": lambda *_: [math.inf],
    "parameter_server": lambda stack, _: [stack.first_bucket_cap, stack.bucket_cap] if stack.overlap else [math.inf],
    "parameter_server_async": lambda *_: [math.inf],
}
"""Bytes at which buckets close, by strategy, for gradient elements of some width; the last serves all further buckets."""


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


def stack_buckets(
    sizes: Sequence[float],
    stack: Stack,
    ready: Sequence[float] = (),
    ranks: int = 2,
    element: float = GRADIENT_ELEMENT,
    alone: Set[int] = frozenset(),
) -> list[Bucket]:
    """Return the buckets that *stack*'s strategy makes of gradient tensors of these *sizes* (bytes, ready order), in launch order.

    *ready* are the times (s) at which all *ranks* have them, which Horovod and the user's own exchanges ask for; *element* is the bytes of
    one gradient element; tensors of *alone* share a bucket with no other.
    """
    shared = [index for index in range(len(sizes)) if index not in alone]
    together = [sizes[index] for index in shared]
    if stack.own_exchange is not None and shared:
        packed = own_buckets(stack.own_exchange, together, [ready[index] for index in shared], ranks)
    elif stack.fusion is not None and shared:
        packed = fused([ready[index] for index in shared], together, stack.fusion, ranks)
    else:
        packed = [Bucket(tuple(bucket)) for bucket in assign_buckets(together, CAPS[stack.strategy](stack, element))] if shared else []
    buckets = [Bucket(tuple(shared[index] for index in bucket.tensors), bucket.delay) for bucket in packed]
    return sorted([*buckets, *(Bucket((index,)) for index in sorted(alone))], key=lambda bucket: bucket.tensors[-1])
