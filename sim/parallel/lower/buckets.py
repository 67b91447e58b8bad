"""Which gradients are exchanged together? Buckets as formed by torch DDP, apex, Horovod and a flat all-reduce.

DDP, after its first iteration, takes tensors in the order in which their gradients become ready. A bucket closes when a tensor makes it
reach its cap; the first cap is 1 MiB, the others 25 MiB (torch/csrc/distributed/c10d/reducer.cpp,
``compute_bucket_assignment_by_size``). Apex closes a bucket when it holds ``message_size`` elements (NVIDIA/apex
apex/parallel/distributed.py); with 1, as Stash runs it, after every tensor. Horovod: `sim.parallel.lower.fusion`. A tensor that is sent as
rows (a sparse embedding) has a message of its own with any strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set

from sim.parallel.lower.fusion import Bucket, fused_buckets
from sim.parallel.lower.own_exchange import own_buckets
from sim.spec.stack import Stack, Strategy

GRADIENT_ELEMENT = 4.0
"""Default bytes of a gradient element, by which apex's limit in elements is converted to bytes."""

CAPS: Mapping[Strategy, Callable[[Stack, float], Sequence[float]]] = {
    "ddp": lambda stack, _: [stack.first_bucket_cap, stack.bucket_cap],
    "apex": lambda stack, width: [stack.message_size * width],
    "apex_per_tensor": lambda *_: [1.0],
    "flat": lambda *_: [math.inf],
    "parameter_server": lambda stack, _: [stack.first_bucket_cap, stack.bucket_cap] if stack.overlap else [math.inf],
    "parameter_server_async": lambda *_: [math.inf],
}
"""Bytes at which buckets close, by strategy, given the stack and the bytes per element; the last applies to all further buckets."""


def assign_buckets(sizes: Sequence[float], caps: Sequence[float]) -> list[list[int]]:
    """Return the indices of *sizes* (bytes, in ready order) in each bucket; the last of *caps* (bytes) applies to all further buckets."""
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
    single_tensors: Set[int] = frozenset(),
) -> list[Bucket]:
    """Return the buckets that the strategy of *stack* forms from gradient tensors of *sizes* (bytes, in ready order), in launch order.

    *ready* are the times (s) at which all *ranks* have the tensors; only Horovod and a user's own exchange need them. *element* is the
    bytes of one gradient element. Each tensor in *single_tensors* has a bucket of its own.
    """
    shared = [index for index in range(len(sizes)) if index not in single_tensors]
    together = [sizes[index] for index in shared]
    if stack.own_exchange is not None and shared:
        packed = own_buckets(stack.own_exchange, together, [ready[index] for index in shared], ranks)
    elif stack.fusion is not None and shared:
        packed = fused_buckets([ready[index] for index in shared], together, stack.fusion, ranks)
    else:
        packed = [Bucket(tuple(bucket)) for bucket in assign_buckets(together, CAPS[stack.strategy](stack, element))] if shared else []
    buckets = [Bucket(tuple(shared[index] for index in bucket.tensors), bucket.delay) for bucket in packed]
    return sorted([*buckets, *(Bucket((index,)) for index in sorted(single_tensors))], key=lambda bucket: bucket.tensors[-1])
