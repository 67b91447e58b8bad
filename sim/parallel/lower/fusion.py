"""Which gradients does Horovod reduce together, and when? Those that became ready within a cycle, in ready order, up to a threshold.

A background thread wakes every cycle; ranks agree on which tensors all of them have (horovod/common/controller.cc,
``ComputeResponseList``), then each tensor joins the message before it if both fit the fusion buffer (``FuseResponses``; it looks
ahead past one that does not fit only where types differ). What they agree on costs time on the host, as collectives of a few bytes
take ``log2(n)`` hops: two bit vectors and-ed where the response cache knows the tensors; else requests gathered at the first rank,
which reads one for every tensor and rank, and its answer broadcast. The thread's clock runs free of the step; here a cycle ends half
a cycle after the first tensor is ready, the mean. Limits: all tensors of one type; the thread never waits for a collective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from sim.spec.stack import Fusion


class Bucket(NamedTuple):
    """Gradient tensors that travel together, by their place in ready order; launched *delay* seconds after the last is ready."""

    tensors: tuple[int, ...]
    delay: float = 0.0


def fused(ready: Sequence[float], sizes: Sequence[float], fusion: Fusion, ranks: int) -> list[Bucket]:
    """Return the messages made of tensors of *sizes* (bytes) that all *ranks* have at times *ready* (s, growing)."""
    cached = len(sizes) <= fusion.response_cache
    period = max(fusion.cycle_time, negotiation(fusion, ranks, 0))
    ticks = [_tick(time, ready[0], period) for time in ready]
    buckets: list[Bucket] = []
    for tick, group in groupby(range(len(sizes)), key=lambda index: ticks[index]):
        tensors = list(group)
        launch = tick + negotiation(fusion, ranks, 0 if cached else len(tensors))
        buckets += [Bucket(together, launch - ready[together[-1]]) for together in fill(tensors, sizes, fusion.threshold)]
    return buckets


def negotiation(fusion: Fusion, ranks: int, requests: int) -> float:
    """Return the seconds in which *ranks* agree on what is ready, each with *requests* tensors that the response cache does not know."""
    return 2 * math.ceil(math.log2(ranks)) * fusion.control_latency + requests * ranks * fusion.request_time


def fill(tensors: Sequence[int], sizes: Sequence[float], threshold: float) -> list[tuple[int, ...]]:
    """Return *tensors* in runs, in order, each within *threshold* bytes together unless one alone exceeds it."""
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
    """Return when the background thread next wakes at or after *time*."""
    if period <= 0:
        return time
    return first + (max(0, math.ceil((time - first) / period - 0.5)) + 0.5) * period
