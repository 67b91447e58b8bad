"""What does one data-parallel rank do in a step? Pure: its exchange plan and the layer table become a program of instructions.

The program is memoized for all runs with the same exchange. It does not depend on the GPU or the network, unless the stack fuses tensors
that become ready in the same cycle (Horovod), or the user has an exchange strategy of their own, which receives the ready times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sim.parallel.lower.exchange_plan import BucketPlan, ExchangePlan, plan_exchange
from sim.parallel.program import Instruction, Load, Pack, Program, Start, Unpack, Update, Wait, Work
from sim.spec.identity import IdentityKey, same_layers
from sim.spec.stack import Horovod
from sim.spec.workload import Workload

_KEPT: Final = 512


class StepProgram(NamedTuple):
    """The instructions of a step, and its gradient buckets by number; the units of ``Work`` are layers of the table."""

    instructions: Program
    buckets: tuple[BucketPlan, ...]


def step_program(workload: Workload, ready: Sequence[float], ranks: int) -> StepProgram:
    """Return the program of one of *ranks*, which have each gradient tensor at *ready* (s after backward began)."""
    exchange = workload.training.stack.exchange
    if isinstance(exchange, Horovod) or exchange.own_exchange is not None:
        return _step_program(workload, ready, ranks)
    key = same_layers(workload), workload.training.gradient_accumulation_steps, ranks
    return _untimed(IdentityKey(key, workload, ranks))


@lru_cache(maxsize=_KEPT)
def _untimed(inputs: IdentityKey) -> StepProgram:
    workload, ranks = inputs.held
    return _step_program(workload, (), ranks)


def _step_program(workload: Workload, ready: Sequence[float], ranks: int) -> StepProgram:
    count, exchange = workload.training.gradient_accumulation_steps, plan_exchange(workload, ready, ranks)
    kinds = [exchange] * count
    if count > 1 and workload.training.stack.exchange.no_sync:
        silent = exchange._replace(between=(), buckets=())
        kinds = [silent, *[silent._replace(before=())] * (count - 2), exchange._replace(before=())]
    passes = [each for number, kind in enumerate(kinds) for each in _micro_batch(workload, kind, number)]
    return StepProgram((*passes, Update()), exchange.buckets)


def _micro_batch(workload: Workload, exchange: ExchangePlan, number: int) -> Iterator[Instruction]:
    """Yield one micro-batch; at its end it waits for the buckets, the last bucket first because it usually ends last."""
    yield Load(number)
    yield from _forward(workload, exchange, number)
    yield from _backward(workload, exchange, number)
    host = workload.training.stack.host_waits_for_gradients
    yield from (Wait(_at(bucket.start, number).tag, host) for bucket in reversed(exchange.buckets))
    if exchange.buckets:
        yield Unpack(number)


def _forward(workload: Workload, exchange: ExchangePlan, number: int) -> Iterator[Instruction]:
    gloo = workload.training.stack.library.backend == "gloo"
    yield from _blocking(exchange.before, number, gloo)
    done, last = 0, len(workload.model.layers) - 1
    for place in sorted(exchange.norms):
        yield Work("F", done, place, number)
        yield from _blocking(exchange.norms[place][:1], number, gloo)
        done = place + 1
    if done <= last:
        yield Work("F", done, last, number)
    yield from _blocking(exchange.between, number, host=True)


def _backward(workload: Workload, exchange: ExchangePlan, number: int) -> Iterator[Instruction]:
    """Yield backward from the last layer on: each bucket starts when its tensors are ready, or without overlap after the whole backward."""
    layers, stack = workload.model.layers, workload.training.stack
    left, tensors, bucket = len(layers) - 1, 0, 0
    for place in reversed(range(len(layers))):
        tensors += len(layers[place].gradients)
        full = bucket
        while full < len(exchange.buckets) and exchange.buckets[full].last < tensors and (stack.exchange.overlap or place == 0):
            full += 1
        if place in exchange.norms or full > bucket or place == 0:
            yield Work("B", place, left, number)
            left = place - 1
        if place in exchange.norms:
            yield from _blocking(exchange.norms[place][1:], number, host=stack.library.backend == "gloo")
        for each in range(bucket, full):
            yield Pack(each, number)
            yield _at(exchange.buckets[each].start, number)
        bucket = full


def _blocking(starts: Sequence[Start], number: int, host: bool) -> Iterator[Instruction]:
    """Yield operations that every rank waits for immediately: with *host*, its host as well as its compute stream."""
    for start in starts:
        here = _at(start, number)
        yield from (here, Wait(here.tag, host))


def _at(start: Start, micro_batch: int) -> Start:
    what, bucket, _ = start.tag
    return start._replace(tag=(what, bucket, micro_batch)) if micro_batch else start
