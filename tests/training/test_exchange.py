"""When do gradients travel: after the slowest rank, in order, and what that costs; with collectives of known length."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.events import Cause, EventLog
from sim.parallel.lower.exchange_plan import start_of
from sim.parallel.program import Message
from sim.training.exchange import Backend, GradientExchange
from tests.examples import examples
from tests.harness import layer, machine, run, toy_workload
from tests.oracle.collectives.broadcast import broadcast_time


class Rank:
    """Follows given times in every step."""

    def __init__(self, scene, index, ready, lag=0.0):
        self.scene, self.index, self.ready, self.lag = scene, index, ready, lag

    def train(self, steps):
        env, exchange = self.scene.env, self.scene.exchange
        for _ in range(steps):
            start = env.now
            for scalar in self.scene.scalars:
                exchange.start(self.index, scalar, self.lag * (env.now == start))
                yield from exchange.wait(self.index, scalar.tag)
            self.scene.forward.append((self.index, env.now))
            for bucket, time in zip(self.scene.buckets, self.ready, strict=True):
                yield env.timeout(max(0.0, start + time - env.now))
                exchange.start(self.index, bucket, self.lag)
            for bucket in reversed(self.scene.buckets):
                yield from exchange.wait(self.index, bucket.tag)
            self.scene.ended.append((self.index, env.now))


class Late(Rank):
    """Has backward left to do when the last bucket has long been reduced."""

    def train(self, steps):
        for _ in range(steps):
            (bucket,) = self.scene.buckets
            self.scene.exchange.start(self.index, bucket)
            yield self.scene.env.timeout(self.ready[0])
            yield from self.scene.exchange.wait(self.index, bucket.tag)
            self.scene.ended.append((self.index, self.scene.env.now))


class Scene:
    """Ranks that meet in all-reduces of one second each, or of what *lasting* says of a bucket."""

    def __init__(self, *ready, blocking=0, lag=0.0, delay=0.0, steps=1, kind=Rank, streams=1, lasting=None):
        self.env = simpy.Environment()
        self.log = EventLog(lambda: self.env.now)
        self.begun, self.forward, self.ended = [], [], []
        self.lasting = lasting or {}
        message = (Message("all_reduce", 100.0),)
        self.scalars = [start_of(f"scalar {index}", message) for index in range(blocking)]
        self.buckets = [start_of(f"bucket {index}", message, index, delay) for index in range(len(ready[0]))]
        self.exchange = GradientExchange(self.env, self.log, range(len(ready)), Backend(self.collective, Cause.NETWORK, streams), [])
        for index, times in enumerate(ready):
            rank = kind(self, index, times, lag)
            self.env.process(rank.train(steps))
        self.env.run()

    def collective(self, name, ident, nbytes, op):
        self.begun.append((name, self.env.now))
        yield self.env.timeout(self.lasting.get(ident, 1.0))


def test_starts_at_the_slowest_rank():
    """By hand: ranks ready at 2 and 5 s meet at 5 s and have their sum at 6 s; each waits for it from when it is ready."""
    scene = Scene([2.0], [5.0])
    assert scene.begun == [("bucket 0", 5.0)]
    assert scene.ended == [(0, 6.0), (1, 6.0)]
    assert [(wait.rank, wait.cause, wait.t0, wait.t1) for wait in scene.log.waits] == [
        (0, Cause.GRADIENT, 2.0, 6.0),
        (1, Cause.GRADIENT, 5.0, 6.0),
    ]


def test_buckets_go_in_order_one_at_a_time():
    """By hand: bucket 1 is ready while bucket 0 travels, and waits for it; bucket 2 comes later than both have ended."""
    scene = Scene([1.0, 1.5, 9.0])
    assert scene.begun == [("bucket 0", 1.0), ("bucket 1", 2.0), ("bucket 2", 9.0)]
    assert scene.ended == [(0, 10.0)]


def test_two_streams_take_buckets_in_order_side_by_side():
    """By hand: of four buckets of a second each, ready at once, two go at a time; the scalar before them goes alone."""
    scene = Scene([1.0, 1.0, 1.0, 1.0], blocking=1, streams=2, steps=2)
    step = [("scalar 0", 0.0), *((f"bucket {index}", 1.0 + index // 2) for index in range(4))]
    assert scene.begun == [(name, 3.0 * number + time) for number in range(2) for name, time in step]
    assert scene.ended == [(0, 3.0), (0, 6.0)]


def test_a_step_ends_with_whichever_bucket_ends_last():
    """By hand: the first of two buckets takes five seconds beside the other's one; the rank waits for both."""
    scene = Scene([1.0, 2.0], streams=2, lasting={0: 5.0})
    assert scene.begun == [("bucket 0", 1.0), ("bucket 1", 2.0)]
    assert scene.ended == [(0, 6.0)]
    assert [(wait.t0, wait.t1) for wait in scene.log.waits] == [(2.0, 3.0), (3.0, 6.0)]


def test_exchange_hides_behind_compute():
    """By hand: what ended before backward does costs nothing; only the last bucket shows."""
    scene = Scene([1.0, 3.0, 5.0])
    (wait,) = scene.log.waits
    assert (wait.t0, wait.t1) == (5.0, 6.0)


def test_blocking_operations_stand_before_backward():
    """By hand: three scalars one after another hold every rank for three seconds; the first starts at the slowest rank."""
    scene = Scene([4.0], [4.0], blocking=3, lag=0.5)
    assert scene.begun == [("scalar 0", 0.5), ("scalar 1", 1.5), ("scalar 2", 2.5), ("bucket 0", 4.5)]
    assert scene.forward == [(0, 3.5), (1, 3.5)]


def test_a_lagging_member_delays_the_start():
    """By hand: the slowest member of a class is half a second behind it."""
    scene = Scene([2.0], lag=0.5)
    assert scene.begun == [("bucket 0", 2.5)]
    assert scene.ended == [(0, 3.5)]


def test_steps_repeat():
    """By hand: the next step's operations wait for its own arrivals."""
    scene = Scene([2.0, 2.5], [1.0, 3.0], blocking=1, steps=3)
    per_step = [("scalar 0", 0.0), ("bucket 0", 2.0), ("bucket 1", 3.0)]
    assert scene.begun == [(name, 4.0 * step + time) for step in range(3) for name, time in per_step]


def test_a_rank_that_comes_late_to_a_finished_step_goes_on_at_once():
    """By hand: ranks with 3 and 5 s of backward after the only bucket never wait for its one second, though one is a step ahead."""
    scene = Scene([3.0], [5.0], steps=2, kind=Late)
    assert scene.begun == [("bucket 0", 0.0), ("bucket 0", 5.0)]
    assert scene.ended == [(0, 3.0), (1, 5.0), (0, 6.0), (1, 10.0)]


def test_a_rank_that_comes_to_another_operation_than_the_others_is_told() -> None:
    env = simpy.Environment()
    exchange = GradientExchange(env, EventLog(lambda: env.now), [0, 1], None, [])
    first, second = (start_of(f"bucket {index}", (Message("all_reduce", 1.0),), index) for index in range(2))
    exchange.start(0, first)
    with pytest.raises(RuntimeError, match="rank 1 starts bucket 1, but bucket 0 is next"):
        exchange.start(1, second)


# --- whole runs ------------------------------------------------------------------------------------------------------

PER_TENSOR = {"strategy": "apex_per_tensor", "blocking_scalar_all_reduces": 3}


def exchange_stall(tensors, elements, stack=PER_TENSOR, **keys):
    """Seconds per step that gradients are waited for, with *elements* over *tensors* of four layers."""
    layers = [layer(1e-3, 2e-3, *[elements // tensors] * (tensors // 4)) for _ in range(4)]
    epoch = run(machine(4, nvlink=1e9, launch=1e-5, hop_latency=1e-6), toy_workload(layers, stack=stack, **keys)).jobs[0].warm
    return epoch.stalls[Cause.INTERCONNECT]


@pytest.mark.parametrize("tensors", [4, 160])
def test_per_tensor_makes_one_all_reduce_each_and_three_scalars(tensors):
    """Stash's stack (facts A7): as many all-reduces per step as gradient tensors, and three blocking ones."""
    layers = [layer(1e-3, 2e-3, *[100] * (tensors // 4)) for _ in range(4)]
    epoch = run(machine(4), toy_workload(layers, stack=PER_TENSOR, samples=40), exact=True).jobs[0].warm
    names = {work.name for work in epoch.log.work if work.stream == "comm"}
    assert names == {f"bucket {index}" for index in range(tensors)} | {f"scalar {index}" for index in range(3)}
    for name in ("scalar 0", "bucket 0", f"bucket {tensors - 1}"):
        times = [work for work in epoch.log.work if work.name == name and work.t1 <= epoch.windows[-1].end]
        assert len(times) == epoch.steps


@settings(max_examples=15)
@given(st.integers(1, 20), st.integers(1, 20))
def test_stall_grows_with_tensors_at_fixed_bytes(one, other):
    """Directional (A6): more tensors, each with its own latency."""
    few, many = sorted((one, other))
    elements = 4 * 5 * 7 * 9 * 11 * 13 * 16 * 17 * 19
    assert exchange_stall(4 * few, elements) <= exchange_stall(4 * many, elements) * (1 + 1e-3)
    assert few == many or exchange_stall(4 * few, 4000 * few * many) < exchange_stall(4 * many, 4000 * few * many)


@examples(5, 15, st.integers(1, 10**7), st.integers(1, 10**7))
def test_stall_grows_with_bytes_at_fixed_tensors(one, other):
    """Directional (A6): more bytes in as many tensors."""
    few, many = sorted((one, other))
    assert exchange_stall(16, 16 * few) <= exchange_stall(16, 16 * many) * (1 + 1e-9)


def test_flat_waits_for_all_of_it_after_backward():
    """Closed form: nothing overlaps, so the whole all-reduce shows: launch + 1.5 S/B + 6 latencies."""
    stall = exchange_stall(4, 4_000_000, {"strategy": "flat", "overlap": False})
    assert stall == pytest.approx(1e-5 + 1.5 * 16e6 / 1e9 + 6e-6)


def test_compute_slows_beside_a_collective():
    """Closed form: one bucket's 15 ms exchange runs wholly beside a backward layer of 1 s, which takes 15 ms x 1/5 longer."""
    layers = [layer(0.1, 1), layer(0.1, 0.1, 2_500_000)]
    slowed = run(machine(4, nvlink=1e9), toy_workload(layers, stack={"overlap_slowdown": 1.25})).jobs[0].warm
    assert slowed.stalls[Cause.COMPUTE] == pytest.approx(1.3 + 15e-3 * (1 - 1 / 1.25))
    assert slowed.stalls[Cause.INTERCONNECT] == 0


def test_compute_stands_still_at_persistent_norms_beside_a_collective():
    """Closed form: of 15 ms of exchange beside backward shows what comes after half a 20th of it, as far as one of its 20 norms is away."""
    norms = [layer(0, 0, 1, op="norm")] * 20
    layers = [layer(0.1, 0.2, 1), layer(0, 0, 1, op="conv"), *norms, layer(0.01, 0.02, 2_500_000)]
    free, held = (run(machine(4, nvlink=1e9), half_precision(layers, {"persistent_norms": held})).jobs[0].warm for held in (False, True))
    compute = free.stalls[Cause.COMPUTE]
    assert held.stalls[Cause.COMPUTE] == pytest.approx(compute)
    shown = held.stalls[Cause.INTERCONNECT] - free.stalls[Cause.INTERCONNECT]
    assert shown == pytest.approx(15e-3 - 2 / 3 * compute / 20 / 2, rel=0.02)
    assert sum(held.stalls.values()) == pytest.approx(held.step_time)


def half_precision(layers, stack):
    workload = toy_workload(layers, buffers=1e3, stack=stack)
    return workload.with_training(precision="amp_fp16")


def test_buffers_are_broadcast_before_backward():
    """Closed form: 1 MB of buffers passes three hops in pieces of 512 KiB, NCCL's for broadcasts; one is on each hop at once."""
    layers = [layer(0.1, 0.1, 1)]
    epoch = run(machine(4, nvlink=1e9), toy_workload(layers, buffers=1e6, stack={"broadcast_buffers": True})).jobs[0].warm
    assert epoch.stalls[Cause.INTERCONNECT] == pytest.approx(broadcast_time(4, 1e6, 1e9, 0.0, pieces=1e6 / 2**19), rel=1e-4)


STRATEGIES = {
    "ddp": {"strategy": "ddp", "bucket_cap": "4 MB", "first_bucket_cap": "1 MB"},
    "apex": {"strategy": "apex", "message_size": 1_000_000},
    "apex_per_tensor": {"strategy": "apex_per_tensor"},
    "horovod": {
        "strategy": "horovod",
        "fusion": {"threshold": "8 MB", "cycle_time": "1 ms", "control_latency": "10 us", "request_time": "0 s", "source": "test"},
    },
}
TOP_K = {"compression": {"method": "top_k", "density": 0.01, "source": "test"}}


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=10)
@given(st.lists(st.tuples(st.floats(1e-3, 1e-2), st.integers(10_000, 3_000_000)), min_size=1, max_size=6))
def test_overlap_never_costs_time(name, table):
    """Directional, on an idle network: whatever travels while backward runs need not be waited for after it."""
    layers = [layer(1e-3, backward, elements) for backward, elements in table]
    beside, after = (
        run(machine(4, nvlink=1e9), toy_workload(layers, stack=STRATEGIES[name] | {"overlap": overlap})).jobs[0].warm.step_time
        for overlap in (True, False)
    )
    cycle = 1.5e-3 if name == "horovod" else 0.0  # the last gradient may just miss a cycle that the first one started
    assert beside <= after * (1 + 1e-9) + cycle


@pytest.mark.parametrize("name", STRATEGIES)
def test_bytes_on_the_comm_stream_are_the_gradients(name):
    """Conservation: a step's collectives carry every gradient byte once, half of them on a 16-bit wire."""
    layers = [layer(1e-3, 5e-3, 1_000_000, 500) for _ in range(4)]
    for keys, nbytes in (({}, 4 * 4_002_000), ({"wire_dtype": "fp16"}, 2 * 4_002_000)):
        epoch = run(machine(4, nvlink=1e9), toy_workload(layers, stack=STRATEGIES[name] | keys, samples=40), exact=True).jobs[0].warm
        carried = sum(work.nbytes for work in epoch.log.work if work.stream == "comm" and work.t1 <= epoch.windows[-1].end)
        assert carried == pytest.approx(nbytes * epoch.steps)


def test_horovod_shows_its_cycle():
    """By hand: one gradient, ready at the end of backward, waits half a cycle of 20 ms and two agreements of 2 hops of 1 ms."""
    fusion = {"threshold": "1 GB", "cycle_time": "20 ms", "control_latency": "1 ms", "request_time": "0 s", "source": "test"}
    workload = toy_workload([layer(0.1, 0.1, 1_000_000)], stack={"strategy": "horovod", "fusion": fusion})
    warm = run(machine(4, nvlink=1e9), workload).jobs[0].warm
    assert warm.stalls[Cause.INTERCONNECT] == pytest.approx(10e-3 + 4e-3 + 1.5 * 4e-3)
    cycle = sum(blamed.seconds for blamed in warm.resources if blamed.resource == "Horovod's cycle")
    assert cycle == pytest.approx(14e-3)


def test_accumulation_exchanges_once_or_each_time():
    """Closed form: 6 ms of exchange after backward, once in four micro-batches or, without no_sync, four times."""
    layers = [layer(0.1, 0.1, 1_000_000)]
    for no_sync, times in ((True, 1), (False, 4)):
        workload = toy_workload(layers, stack={"no_sync": no_sync, "strategy": "flat", "overlap": False}, accumulation=4)
        warm = run(machine(4, nvlink=1e9), workload).jobs[0].warm
        assert warm.stalls[Cause.INTERCONNECT] == pytest.approx(times * 1.5 * 4e-3)
        assert warm.stalls[Cause.COMPUTE] == pytest.approx(0.8)


def test_sync_batch_norm_stops_every_rank_at_every_layer():
    """Closed form: two layers, each a gather of 4 x (2C+1) floats (3/4 of it over each hop) and a sum of 2C (1.5 times)."""
    norms = [layer(0.1, 0.1, 100_000, 100_000, op="norm") for _ in range(2)]
    layers = [layer(0.1, 0.1, 10, op="conv"), *norms]
    stack = {"sync_batch_norm": True, "strategy": "flat"}
    plain, synchronized = (
        run(machine(4, nvlink=1e9), toy_workload(layers, buffers=1.0, stack=keys)).jobs[0].warm for keys in ({"strategy": "flat"}, stack)
    )
    expected = 2 * (0.75 * 4 * 200_001 * 4 + 1.5 * 200_000 * 4) / 1e9
    assert synchronized.stalls[Cause.INTERCONNECT] - plain.stalls[Cause.INTERCONNECT] == pytest.approx(expected, rel=1e-4)


def test_a_blocking_operation_waits_for_the_bucket_before_it():
    """By hand: one stream; a sum asked for at 1 s, while a bucket of one second travels since 0.5 s, begins at 1.5 s."""
    env = simpy.Environment()
    log = EventLog(lambda: env.now)
    begun = []

    def collective(name, ident, nbytes, op):
        begun.append((name, op, env.now))
        yield env.timeout(1.0)

    message = (Message("all_reduce", 1.0),)
    norm = start_of("norm", (Message("all_gather", 1.0),))
    buckets = [start_of(f"bucket {index}", message, index) for index in range(2)]
    exchange = GradientExchange(env, log, [0], Backend(collective, Cause.NETWORK), [])

    def rank():
        yield env.timeout(0.5)
        exchange.start(0, buckets[0])
        yield env.timeout(0.5)
        exchange.start(0, norm)
        yield from exchange.wait(0, norm.tag)
        exchange.start(0, buckets[1])
        for bucket in reversed(buckets):
            yield from exchange.wait(0, bucket.tag)

    env.process(rank())
    env.run()
    assert begun == [("bucket 0", "all_reduce", 0.5), ("norm", "all_gather", 1.5), ("bucket 1", "all_reduce", 2.5)]


def test_compression_trades_bytes_for_work():
    """Directional: a hundredth of the elements as values and places, from 4 ranks, is 4% of an all-reduce's bytes over each hop."""
    layers = [layer(0.01, 0.02, 2_000_000)]
    flat = {"strategy": "flat", "overlap": False}
    dense, sparse = (run(machine(4, nvlink=1e9), toy_workload(layers, stack=flat | keys)).jobs[0].warm for keys in ({}, TOP_K))
    assert dense.stalls[Cause.INTERCONNECT] == pytest.approx(1.5 * 8e6 / 1e9, rel=1e-6)
    assert sparse.stalls[Cause.INTERCONNECT] == pytest.approx(0.75 * 4 * 2 * 0.01 * 8e6 / 1e9, rel=1e-6)
