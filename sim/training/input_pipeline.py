"""How does the next batch get to a rank? Loaders with torch's and DALI's semantics, on the node's shared disk, cores and links.

torch's DataLoader: one worker builds one whole batch; index lists are dealt round-robin; at most ``num_workers *
prefetch_factor`` batches are outstanding; they are returned in order, so one slow batch holds up later ones that are ready; a
pin thread copies each to pinned memory. Workers start spread over one batch's time. With no workers the rank builds its own batches while it waits. DALI: a pipeline of
threads builds one batch at a time, two ahead, reading beside decoding, and leaves it on the GPU.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

import simpy

from sim.cluster.network import Network
from sim.events import Cause, EventLog

SimProcess = Generator[simpy.Event, object, None]

CORE_WEIGHT = 1e-10
"""Fair share of one core against bytes/s on memory and NIC: one core copies about 10 GB/s (upper end of 5-10 GB/s per core)."""
PIN_BANDWIDTH = 5e9
"""Bytes/s that one pin thread copies: the lower end of 5-10 GB/s per core, as it reads what another process wrote."""
PAGEABLE_SLOWDOWN = 2.0
"""Pageable copies run at about half the pinned rate: 50 against 90 Gbps on p3dn.24xlarge (NVIDIA/nccl issue 398)."""
DALI_PREFETCH = 2
"""DALI's default prefetch_queue_depth."""

Usage = Mapping[str, float]


@dataclass(frozen=True)
class BatchCost:
    """What one batch asks of the node: bytes from disk, core-seconds, bytes to pin and copy, GPU seconds of a GPU loader."""

    read: float
    read_cap: float
    """Most bytes/s that one reader gets, as it waits for each of its reads."""
    prep: float
    copy: float
    gpu_prep: float = 0.0


@dataclass(frozen=True)
class Site:
    """Where a rank's loader runs: the loads that one unit of each activity puts on shared resources, and what a batch costs."""

    network: Network
    log: EventLog
    rank: int
    disk: Usage
    cores: Usage
    pin: Usage
    copy: Usage
    gpu: Usage
    cost: BatchCost

    def fetch(self, stream: str, batch: int) -> SimProcess:
        """Read one batch from disk."""
        if self.cost.read > 0:
            start = self.network.env.now
            yield self.network.start("read", self.cost.read, self.disk, cap=self.cost.read_cap).done
            self.log.did(self.rank, stream, "read", Cause.FETCH, start, "disk", batch, self.cost.read)

    def prepare(self, stream: str, batch: int, threads: int = 1) -> SimProcess:
        """Decode, augment and collate one batch on up to *threads* cores."""
        start = self.network.env.now
        yield self.network.start("prep", self.cost.prep, self.cores, cap=threads, weight=CORE_WEIGHT * threads).done
        self.log.did(self.rank, stream, "prep", Cause.PREP, start, "cpu cores", batch)


class InputPipeline(Protocol):
    """What the training loop asks of any loader."""

    def next_batch(self, rank: int) -> SimProcess:
        """Wait until the next batch is there."""
        ...

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """Copy it to the GPU, unless it is there already."""
        ...

    def state(self) -> tuple[object, ...]:
        """Return the loader's queues relative to the next batch: part of what decides the future."""
        ...


class Synthetic:
    """Tensors made once in host memory: nothing to wait for but the copy to the GPU."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def next_batch(self, rank: int) -> SimProcess:
        """Have the batch at once."""
        yield from ()

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """Copy the batch over PCIe while the rank waits."""
        site = self.site
        if site.cost.copy > 0:
            start = site.network.env.now
            activity = site.network.start("copy", site.cost.copy, site.copy)
            with site.log.waiting(rank, Cause.COPY, "host to device"):
                yield activity.done
            site.log.did(rank, "copy", "host to device", Cause.COPY, start, activity.history[-1][1], nbytes=site.cost.copy)

    def state(self) -> tuple[object, ...]:
        """Nothing is queued."""
        return ()


class Inline(Synthetic):
    """``num_workers=0``: the rank reads and decodes each batch itself."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._taken = 0

    def next_batch(self, rank: int) -> SimProcess:
        """Build the batch while the rank waits."""
        batch, self._taken = self._taken, self._taken + 1
        with self.site.log.waiting(rank, Cause.INPUT, ident=batch):
            yield from self.site.fetch("worker 0", batch)
            yield from self.site.prepare("worker 0", batch)


class Queue(Synthetic):
    """Batches built ahead, finished one after another in a second stage, and handed out in order."""

    def __init__(self, site: Site, batches: int, ahead: int) -> None:
        super().__init__(site)
        self.env = site.network.env
        self.batches = batches
        self.ahead = ahead
        self.taken = 0
        self._ready: set[int] = set()
        self._wanted: dict[int, simpy.Event] = {}
        self._room: dict[int, simpy.Event] = {}
        self._second: list[int] = []

    def next_batch(self, rank: int) -> SimProcess:
        """Wait for the next batch in order, and make room for one more."""
        batch = self.taken
        if batch not in self._ready:
            wanted = self._wanted[batch] = self.env.event()
            with self.site.log.waiting(rank, Cause.INPUT, ident=batch):
                yield wanted
        self._ready.discard(batch)
        self.taken += 1
        allowed = self._room.pop(self.taken + self.ahead - 1, None)
        if allowed is not None:
            allowed.succeed()

    def room(self, batch: int) -> SimProcess:
        """Wait until *batch* may be begun."""
        if batch >= self.taken + self.ahead:
            allowed = self._room[batch] = self.env.event()
            yield allowed

    def finish(self, batch: int) -> SimProcess:
        """Do what the second stage does to a batch."""
        raise NotImplementedError

    def to_second_stage(self, batch: int) -> None:
        """Queue a batch for the second stage, which takes them in the order they come."""
        self._second.append(batch)
        if len(self._second) == 1:
            self.env.process(self._run_second_stage())

    def _run_second_stage(self) -> SimProcess:
        while self._second:
            batch = self._second[0]
            yield from self.finish(batch)
            self._second.pop(0)
            self.hand_over(batch)

    def hand_over(self, batch: int) -> None:
        """Put a finished batch where the rank finds it."""
        self._ready.add(batch)
        wanted = self._wanted.pop(batch, None)
        if wanted is not None:
            wanted.succeed()

    def state(self) -> tuple[object, ...]:
        """Batches that are ready, wait for room, or are in the second stage, counted from the next batch."""
        queues = (sorted(self._ready), sorted(self._room), self._second)
        return tuple(tuple(batch - self.taken for batch in queue) for queue in queues)


class WorkerLoader(Queue):
    """torch's DataLoader with *workers* processes of its own; the second stage is the pin thread."""

    def __init__(self, site: Site, batches: int, workers: int, prefetch_factor: int, pin_memory: bool, start: float) -> None:
        super().__init__(site, batches, workers * prefetch_factor)
        self.workers = workers
        self._deliver = self.to_second_stage if pin_memory else self.hand_over
        self._busy: dict[int, tuple[int, str]] = {}
        self._started = 0
        # Samples of unequal size make workers drift apart; evenly spread starts give a deterministic run that steady state.
        spread = site.cost.prep + site.cost.read / site.cost.read_cap
        for worker in range(workers):
            self.env.process(self._work(worker, start + spread * worker / workers))

    def _work(self, worker: int, start: float) -> SimProcess:
        yield self.env.timeout(start)
        self._started += 1
        stream = f"worker {worker}"
        for batch in range(worker, self.batches, self.workers):
            yield from self.room(batch)
            self._busy[worker] = (batch, "fetch")
            yield from self.site.fetch(stream, batch)
            self._busy[worker] = (batch, "prep")
            yield from self.site.prepare(stream, batch)
            del self._busy[worker]
            self._deliver(batch)

    def finish(self, batch: int) -> SimProcess:
        """Copy the batch to pinned memory."""
        site, start = self.site, self.env.now
        yield site.network.start("pin", site.cost.copy, site.pin, cap=PIN_BANDWIDTH).done
        site.log.did(site.rank, "pin", "pin", Cause.PREP, start, "pin thread", batch, site.cost.copy)

    def state(self) -> tuple[object, ...]:
        """Add each worker's batch and stage; who comes next follows from the count taken."""
        stages = tuple(sorted((batch - self.taken, stage) for batch, stage in self._busy.values()))
        return (*super().state(), stages, self._started)


class DaliPipeline(Queue):
    """DALI: *threads* build one batch at a time, reading beside decoding; the second stage copies it and finishes it on the GPU."""

    def __init__(self, site: Site, batches: int, threads: int) -> None:
        super().__init__(site, batches, DALI_PREFETCH)
        self._threads = threads
        self._building = -1
        self.env.process(self._build())

    def _build(self) -> SimProcess:
        site, network = self.site, self.site.network
        for batch in range(self.batches):
            yield from self.room(batch)
            self._building, start = batch, self.env.now
            prep = network.start("prep", site.cost.prep, site.cores, cap=self._threads, weight=CORE_WEIGHT * self._threads)
            read = network.start("read", site.cost.read, site.disk, cap=site.cost.read_cap * self._threads) if site.cost.read > 0 else None
            yield prep.done
            cause, resource = Cause.PREP, "cpu cores"
            if read is not None and not read.done.triggered:
                yield read.done
                cause, resource = Cause.FETCH, "disk"
            site.log.did(site.rank, "pipeline", cause.value, cause, start, resource, batch, site.cost.read)
            self._building = -1
            self.to_second_stage(batch)

    def finish(self, batch: int) -> SimProcess:
        """Copy the batch to the GPU, and decode it there if the GPU takes part."""
        site, start = self.site, self.env.now
        yield site.network.start("pipeline copy", site.cost.copy, site.copy).done
        site.log.did(site.rank, "pipeline gpu", "copy", Cause.COPY, start, "host to device", batch, site.cost.copy)
        if site.cost.gpu_prep > 0:
            start = self.env.now
            yield site.network.start("gpu prep", site.cost.gpu_prep, site.gpu, cap=1.0).done
            site.log.did(site.rank, "pipeline gpu", "gpu prep", Cause.PREP, start, "GPU decode", batch)

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """The pipeline left the batch on the GPU."""
        yield from ()

    def state(self) -> tuple[object, ...]:
        """Add the batch the pipeline is building."""
        return (*super().state(), self._building - self.taken if self._building >= 0 else None)
