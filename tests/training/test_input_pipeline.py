"""How batches come: torch's and DALI's rules, and the throughput they allow, in closed form."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.training.input_pipeline import DALI_PREFETCH, PIN_BANDWIDTH, BatchCost, DaliPipeline, Inline, LoaderSite, Synthetic, WorkerLoader
from tests.examples import examples

CORES, DISK, PCIE = 8.0, 100.0, 1e10


class Scene:
    """One rank that takes batches and computes on each for *compute* seconds."""

    def __init__(self, make, cost, compute=0.0, steps=40, members=1.0):
        self.env = simpy.Environment()
        self.log = EventLog(lambda: self.env.now, keep_rates=True)
        self.network = Network(self.env, self.log)
        for name, capacity in (("cores", CORES), ("disk", DISK), ("dram", 1e12), ("pcie", PCIE), ("gpu", 1.0)):
            self.network.add_link(name, capacity)
        self.site = LoaderSite(
            self.network, self.log, 0, {"disk": members}, {"cores": members}, {"dram": members}, {"pcie": members}, {"gpu": members}, cost
        )
        self.input = make(self.site)
        self.taken = []
        self.env.process(self.train(compute))
        while len(self.taken) < steps:
            self.env.step()

    def train(self, compute):
        while True:
            yield from self.input.next_batch(0)
            self.taken.append(self.env.now)
            yield from self.input.copy_to_gpu(0)
            yield self.env.timeout(compute)

    def rate(self, skip=20):
        """Batches per second once the loader is under way."""
        return (len(self.taken) - 1 - skip) / (self.taken[-1] - self.taken[skip])


def workers(count, prefetch_factor=2, pin_memory=False, start=0.0):
    return lambda site: WorkerLoader(site, count, prefetch_factor, pin_memory, start)


def cost(read=0.0, prep=0.0, copy=0.0, read_cap=1e9, gpu_prep=0.0):
    return BatchCost(read, read_cap, prep, copy, gpu_prep)


# --- torch's DataLoader ----------------------------------------------------------------------------------------------


@examples(15, None, count=st.integers(1, 6), read=st.floats(0, 5), prep=st.floats(0.1, 5))
def test_workers_bound_the_loader(count, read, prep):
    """Closed form: with cores and disk to spare, *count* batches come per fetch + prep of one."""
    scene = Scene(workers(count), cost(read, prep, read_cap=1.0), steps=30 * count)
    assert scene.rate(5 * count) == pytest.approx(count / (read + prep), rel=0.05)


@examples(12, None, count=st.integers(9, 24), prep=st.floats(0.1, 5))
def test_cores_bound_the_loader(count, prep):
    """Closed form: more workers than cores share them; cores/prep batches a second."""
    scene = Scene(workers(count), cost(prep=prep), steps=30 * count)
    assert scene.rate(5 * count) == pytest.approx(CORES / prep, rel=0.05)


@examples(15, None, count=st.integers(1, 6), read=st.floats(10, 100))
def test_the_disk_bounds_the_loader(count, read):
    """Closed form: readers that are not held by their own latency share the disk's bandwidth."""
    scene = Scene(workers(count), cost(read=read), steps=30 * count)
    assert scene.rate(5 * count) == pytest.approx(DISK / read, rel=0.05)


@examples(20, None, count=st.integers(1, 5), factor=st.integers(1, 4), prep=st.floats(0.1, 3), compute=st.floats(0.1, 3), pin=st.booleans())
def test_at_most_so_many_batches_are_outstanding(count, factor, prep, compute, pin):
    """torch's rule: batch b is begun only when b - num_workers * prefetch_factor have been taken; and it is delivered in order."""
    scene = Scene(workers(count, factor, pin), cost(prep=prep, copy=1e6), compute)
    begun = {work.ident: work.t0 for work in scene.log.work if work.name == "prep"}
    for batch, start in begun.items():
        if batch >= count * factor:
            assert start >= scene.taken[batch - count * factor]
    assert scene.taken == sorted(scene.taken)
    last = "pin" if pin else "prep"
    ready = {work.ident: work.t1 for work in scene.log.work if work.name == last}
    assert all(time >= ready[batch] for batch, time in enumerate(scene.taken))


@examples(20, None, count=st.integers(1, 5), prep=st.floats(0.1, 3), compute=st.floats(0, 3))
def test_batches_are_dealt_round_robin(count, prep, compute):
    """torch's rule: worker w builds batches w, w + num_workers, and so on."""
    scene = Scene(workers(count), cost(prep=prep), compute)
    dealt = defaultdict(list)
    for work in scene.log.work:
        dealt[work.stream].append(work.ident)
    for worker in range(count):
        batches = dealt[f"worker {worker}"]
        assert batches == list(range(worker, worker + count * len(batches), count))


class OneSlowBatch(WorkerLoader):
    """Batch 3 takes ten seconds longer than the others."""

    def _work(self, worker, start):
        for batch in range(worker, 1000, self.workers):
            yield from self.room(batch)
            yield self.env.timeout(1.0 + 10.0 * (batch == 3))
            self._deliver(batch)


def test_one_slow_batch_holds_up_those_that_are_ready():
    """Head of line, by hand: batches 4 to 6 are ready at 2 s, but wait for batch 3, and batch 7 is built after it by the same worker."""
    scene = Scene(lambda site: OneSlowBatch(site, 4, 2, False, 0.0), cost(), compute=0.1, steps=12)
    assert scene.taken[:3] == pytest.approx([1.0, 1.1, 1.2])
    assert scene.taken[3:] == pytest.approx([11.0, 11.1, 11.2, 11.3, 12.0, 12.1, 12.2, 12.3, 13.0])


def test_a_full_queue_hides_the_loader():
    """By hand: four workers of 1 s each feed a step of 0.5 s; after the first batch nothing is waited for."""
    scene = Scene(workers(4), cost(prep=1.0), compute=0.5)
    assert [wait for wait in scene.log.waits if wait.t0 > 1.0] == []
    assert scene.rate() == pytest.approx(2.0)


def test_the_pin_thread_takes_one_batch_at_a_time():
    """Closed form: eight workers build 8 batches a second, the pin thread copies one in 0.5 s, never two at once."""
    scene = Scene(workers(8, pin_memory=True), cost(prep=1.0, copy=PIN_BANDWIDTH / 2), steps=30)
    spans = [work for work in scene.log.work if work.stream == "pin"]
    assert all(later.t0 >= earlier.t1 for earlier, later in pairwise(spans))
    assert all(work.t1 - work.t0 == pytest.approx(0.5) for work in spans)
    assert scene.rate() == pytest.approx(2.0)


def test_workers_start_when_they_have_been_started():
    scene = Scene(workers(2, start=3.0), cost(prep=1.0), steps=1)
    assert scene.taken == [4.0]


def test_no_worker_means_the_rank_does_it_itself():
    """Closed form: fetch + prep + compute one after another, and the rank waits for its input meanwhile."""
    scene = Scene(Inline, cost(read=2.0, prep=3.0, read_cap=1.0), compute=5.0)
    assert scene.rate() == pytest.approx(1 / 10.0)
    assert {(wait.cause, round(wait.t1 - wait.t0, 9)) for wait in scene.log.waits} == {(Cause.INPUT, 5.0)}


def test_members_of_a_class_share_cores():
    """Folding: two equal ranks with six workers each want 12 of 8 cores, so each gets 2/3 of one per worker."""
    scene = Scene(workers(6), cost(prep=1.0), members=2.0, steps=180)
    assert scene.rate(30) == pytest.approx(CORES / 2, rel=0.05)


# --- DALI ------------------------------------------------------------------------------------------------------------


@given(threads=st.integers(1, 8), read=st.floats(0, 5), prep=st.floats(0.1, 20))
def test_dali_reads_beside_decoding(threads, read, prep):
    """Closed form: all threads work on one batch, and the longer of reading and decoding counts."""
    scene = Scene(lambda site: DaliPipeline(site, threads), cost(read, prep, read_cap=1.0))
    assert scene.rate() == pytest.approx(threads / max(read, prep), rel=1e-6)
    spans = [work for work in scene.log.work if work.stream == "pipeline"]
    assert {work.cause for work in spans} == {Cause.FETCH if read > prep * (1 + 1e-9) else Cause.PREP}


@given(prep=st.floats(0.1, 3), compute=st.floats(0, 3))
def test_dali_works_two_batches_ahead(prep, compute):
    """DALI's rule: batch b is begun only when batch b - 2 has been taken."""
    scene = Scene(lambda site: DaliPipeline(site, 1), cost(prep=prep), compute)
    for work in scene.log.work:
        if work.stream == "pipeline" and work.ident >= DALI_PREFETCH:
            assert work.t0 >= scene.taken[work.ident - DALI_PREFETCH]


def test_dali_copies_and_decodes_on_the_gpu_itself():
    """Closed form: the second stage copies 5 GB at 10 GB/s and decodes for 0.7 s; the rank copies nothing."""
    scene = Scene(lambda site: DaliPipeline(site, 4), cost(prep=1.0, copy=5e9, gpu_prep=0.7))
    assert scene.rate() == pytest.approx(1 / 1.2)
    assert {wait.cause for wait in scene.log.waits} == {Cause.INPUT}


# --- what a rank does itself -----------------------------------------------------------------------------------------


def test_synthetic_data_are_copied_only():
    """Closed form: 5 GB at 10 GB/s; no loader."""
    scene = Scene(Synthetic, cost(copy=5e9), compute=1.0)
    assert scene.rate() == pytest.approx(1 / 1.5)
    assert {wait.cause for wait in scene.log.waits} == {Cause.COPY}


def test_reads_are_counted_once():
    """Conservation: what the disk carried is what the loader says it read, on every resource of the disk."""
    scene = Scene(workers(3), cost(read=7.0, prep=1.0), steps=20)
    reads = {work.ident for work in scene.log.work if work.name == "read"}
    assert scene.site.take_reads()["disk"] == pytest.approx(
        7.0 * (len(reads) + sum(stage == "read" for stage in scene.site.building.values()))
    )
    assert scene.site.take_reads() == {"disk": 0.0}
