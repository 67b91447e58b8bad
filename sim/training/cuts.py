"""After which layers do ranks start an operation? The cuts of each micro-batch's passes, from its exchange plan; pure.

Worked out once for all runs that exchange the same: neither the GPU nor the network decides, unless the stack fuses what becomes ready in
the same cycle (Horovod), or the user's own exchange looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sim.spec.identity import Same
from sim.spec.workload import Workload
from sim.training.exchange_plan import BucketPlan, ExchangePlan, plan_exchange
from sim.training.layer_times import same_layers
from sim.training.operations import Operation

_KEPT: Final = 512


class Cut(NamedTuple):
    """Ends a segment: *layers* of the pass have run, then the *bucket* (its place, or -1) is filled, then *operation* starts."""

    layers: int
    operation: Operation
    bucket: int = -1


class Program(NamedTuple):
    """What one micro-batch exchanges: the cuts of its forward pass and of its backward pass, and its gradient buckets."""

    forward: tuple[Cut, ...]
    backward: tuple[Cut, ...]
    buckets: tuple[BucketPlan, ...]


def programs(workload: Workload, ready: Sequence[float], ranks: int) -> tuple[Program, ...]:
    """Return the program of each micro-batch of a step of *ranks* that have each gradient tensor at *ready* (s after backward began)."""
    if workload.training.stack.fusion is not None or workload.training.stack.own_exchange is not None:
        return _programs(workload, ready, ranks)
    key = same_layers(workload), workload.training.gradient_accumulation_steps, ranks
    return _untimed(Same(key, workload, ranks))


@lru_cache(maxsize=_KEPT)
def _untimed(asked: Same) -> tuple[Program, ...]:
    workload, ranks = asked.held
    return _programs(workload, (), ranks)


def _programs(workload: Workload, ready: Sequence[float], ranks: int) -> tuple[Program, ...]:
    count, exchange = workload.training.gradient_accumulation_steps, plan_exchange(workload, ready, ranks)
    whole, silent = exchange, exchange._replace(between=(), buckets=())
    kinds = [whole] * count
    if count > 1 and workload.training.stack.no_sync:
        kinds = [silent, *[silent._replace(before=())] * (count - 2), whole._replace(before=())]
    known = {id(kind): Program(_forward(workload, kind), _backward(workload, kind), kind.buckets) for kind in kinds}
    return tuple(known[id(kind)] for kind in kinds)


def _forward(workload: Workload, exchange: ExchangePlan) -> tuple[Cut, ...]:
    before = [Cut(0, operation) for operation in exchange.before]
    norms = [Cut(place + 1, exchange.norms[place][0]) for place in sorted(exchange.norms)]
    between = [Cut(len(workload.model.layers), operation) for operation in exchange.between]
    return (*before, *norms, *between)


def _backward(workload: Workload, exchange: ExchangePlan) -> tuple[Cut, ...]:
    """Return where backward is cut: each bucket leaves as soon as its tensors are there, without overlap after the last layer."""
    layers, overlap = workload.model.layers, workload.training.stack.overlap
    found: list[Cut] = []
    tensors = bucket = 0
    for done, place in enumerate(reversed(range(len(layers))), start=1):
        if place in exchange.norms:
            found.append(Cut(done, exchange.norms[place][1]))
        tensors += len(layers[place].gradients)
        while bucket < len(exchange.buckets) and exchange.buckets[bucket].last < tensors and (overlap or place == 0):
            found.append(Cut(done, exchange.buckets[bucket].operation, bucket))
            bucket += 1
    return tuple(found)
