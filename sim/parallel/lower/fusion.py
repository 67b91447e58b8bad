"""Which gradients does Horovod reduce together, and when? Tensors that became ready within a cycle, in ready order, up to a threshold.

A background thread wakes up every cycle. Ranks agree on which tensors all of them have (horovod/common/controller.cc,
``ComputeResponseList``); then each tensor joins the message before it if both fit into the fusion buffer (``FuseResponses``; it looks past
a tensor that does not fit only if types differ). This negotiation takes host time, because collectives of a few bytes need ``log2(n)``
hops: two bit vectors are and-ed if the tensors are in the response cache; otherwise requests are gathered at the first rank, which
reads one for every tensor and rank, and its response is broadcast. The thread's clock is independent of the step; here a cycle ends half a
cycle (the mean) after the first tensor is ready. Limits: all tensors have one type; the thread never waits for a collective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from sim.spec.stack import Fusion


class Bucket(NamedTuple):
    """Gradient tensors in one message, by their place in ready order; it is launched *delay* seconds after the last is ready."""

    tensors: tuple[int, ...]
    delay: float = 0.0


def fused_buckets(ready: Sequence[float], sizes: Sequence[float], fusion: Fusion, ranks: int) -> list[Bucket]:
    """Return the fused messages of tensors of *sizes* (bytes) that all *ranks* have at times *ready* (s, increasing)."""
    cached = len(sizes) <= fusion.response_cache
    period = max(fusion.cycle_time, negotiation_time(fusion, ranks, 0))
    ticks = [_tick(time, ready[0], period) for time in ready]
    buckets: list[Bucket] = []
    for tick, group in groupby(range(len(sizes)), key=lambda index: ticks[index]):
        tensors = list(group)
        launch = tick + negotiation_time(fusion, ranks, 0 if cached else len(tensors))
        buckets += [Bucket(together, launch - ready[together[-1]]) for together in fill_buffers(tensors, sizes, fusion.threshold)]
    return buckets


def negotiation_time(fusion: Fusion, ranks: int, requests: int) -> float:
    """Return the time (s) for *ranks* to agree on ready tensors, each with *requests* tensors that are not in the response cache."""
    return 2 * math.ceil(math.log2(ranks)) * fusion.control_latency + requests * ranks * fusion.request_time


def fill_buffers(tensors: Sequence[int], sizes: Sequence[float], threshold: float) -> list[tuple[int, ...]]:
    """Return *tensors* in consecutive runs of at most *threshold* bytes each, except for single tensors above it."""
    runs: list[tuple[int, ...]] = []
    room = -1.0
    for tensor in tensors:
        if sizes[tensor] <= room:
            runs[-1] = (*runs[-1], tensor)
            room -= sizes[tensor]
        else:
            runs.append((tensor,))
            room = threshold - sizes[tensor]
    return runs


def _tick(time: float, first: float, period: float) -> float:
    """Return when the background thread next wakes up at or after *time*."""
    if period <= 0:
        return time
    return first + (max(0, math.ceil((time - first) / period - 0.5)) + 0.5) * period
