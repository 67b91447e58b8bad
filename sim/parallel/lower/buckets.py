"""Which gradients are exchanged together? Buckets as formed by torch DDP, apex, Horovod and a flat all-reduce.

DDP, after its first iteration, takes tensors in the order in which their gradients become ready. A bucket closes when a tensor makes it
reach its cap; the first cap is 1 MiB, the others 25 MiB (torch/csrc/distributed/c10d/reducer.cpp,
``compute_bucket_assignment_by_size``). Apex closes a bucket when it holds ``message_size`` elements (NVIDIA/apex
apex/parallel/distributed.py); with 1, as Stash runs it, after every tensor. Horovod: `sim.parallel.lower.fusion`. A tensor that is sent as
rows (a sparse embedding) has a message of its own with any strategy. When a bucket starts: `sim.parallel.lower.step_program`. Layouts:
`sim.parallel.lower.bucketed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import assert_never

from sim.parallel.lower.fusion import Bucket, fused_buckets
from sim.parallel.lower.own_exchange import own_buckets
from sim.spec.stack import (
    Apex,
    ApexPerTensor,
    AsyncParameterServer,
    Ddp,
    Exchange,
    Flat,
    Horovod,
    ParameterServer,
)  # fmt: skip

GRADIENT_ELEMENT = 4.0
"""Default bytes of a gradient element, by which apex's limit in elements is converted to bytes."""


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


def exchange_buckets(
    sizes: Sequence[float],
    exchange: Exchange,
    ready: Sequence[float] = (),
    ranks: int = 2,
    element: float = GRADIENT_ELEMENT,
    single_tensors: Set[int] = frozenset(),
) -> list[Bucket]:
    """Return the buckets that *exchange* forms from gradient tensors of *sizes* (bytes, in ready order), in launch order.

    *ready* are the times (s) at which all *ranks* have the tensors; only Horovod and a user's own exchange need them. *element* is the
    bytes of one gradient element. Each tensor in *single_tensors* has a bucket of its own.
    """
    shared = [index for index in range(len(sizes)) if index not in single_tensors]
    together = [sizes[index] for index in shared]
    packed = _packed(together, exchange, [ready[index] for index in shared] if ready else [], ranks, element) if shared else []
    buckets = [Bucket(tuple(shared[index] for index in bucket.tensors), bucket.delay) for bucket in packed]
    return sorted([*buckets, *(Bucket((index,)) for index in sorted(single_tensors))], key=lambda bucket: bucket.tensors[-1])


def _packed(sizes: Sequence[float], exchange: Exchange, ready: Sequence[float], ranks: int, element: float) -> list[Bucket]:
    """Return the buckets that *exchange* forms from tensors of *sizes* (bytes), none of which has a bucket of its own."""
    if exchange.own_exchange is not None:
        return own_buckets(exchange.own_exchange, sizes, ready, ranks)
    match exchange:
        case Horovod(fusion=fusion):
            return fused_buckets(ready, sizes, fusion, ranks)
        case Ddp():
            caps = [exchange.first_bucket_cap, exchange.bucket_cap]
        case Apex():
            caps = [exchange.message_size * element]
        case ApexPerTensor():
            caps = [1.0]
        case ParameterServer():
            caps = [exchange.first_bucket_cap, exchange.bucket_cap] if exchange.overlap else [math.inf]
        case Flat() | AsyncParameterServer():
            caps = [math.inf]
        case other:
            assert_never(other)
    return [Bucket(tuple(bucket)) for bucket in assign_buckets(sizes, caps)]
