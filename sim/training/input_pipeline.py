"""How does the next batch get to a rank? Loaders with torch's and DALI's semantics, on the node's shared disk, cores and links.

torch's DataLoader: one worker builds one whole batch; index lists are dealt round-robin; at most ``num_workers *
prefetch_factor`` batches are outstanding; they are returned in order, so one slow batch holds up later ones that are ready; a
pin thread copies each to pinned memory. Workers start spread over one batch's time and take turns at a full disk. With no workers
the rank builds its own batches while it waits. DALI: a pipeline of threads builds one batch at a time, two ahead, reading beside
decoding, and leaves it on the GPU. Loaders work without end, as if the next epoch followed at once. Limits: the ranks of one class
keep step, so that with one worker each a node reads and decodes by turns, where real ranks would overlap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import simpy

from sim.cluster.network import Activity, Network
from sim.events import FULL, Cause, EventLog

SimProcess = Generator[simpy.Event, object, None]

CORE_WEIGHT = 1e-10
"""Fair share of one core against bytes/s on memory and NIC: one core copies about 10 GB/s (upper end of 5-10 GB/s per core)."""
PIN_BANDWIDTH = 5e9
"""Bytes/s that one pin thread copies: the lower end of 5-10 GB/s per core, as it reads what another process wrote."""
PAGEABLE_SLOWDOWN = 2.0
"""Pageable copies run at about half the pinned rate: 50 against 90 Gbps on p3dn.24xlarge (NVIDIA/nccl issue 398)."""
DALI_PREFETCH = 2
"""DALI's default prefetch_queue_depth."""

OTHERS = "memory of other nodes"

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
    remote: float = 0.0
    """Bytes from the memory of other nodes."""


@dataclass
class LoaderSite:
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
    crowd: float = 1.0
    """Ranks on the node that read from the disk, per rank of this class."""
    bytes_read: float = 0.0
    """By each member of the rank class, since `take_reads` last asked."""
    building: dict[int, str] = field(default_factory=dict)
    """What workers do to which batch, in the order they began: part of the state that decides what happens next."""
    begun: dict[int, list[float]] = field(default_factory=dict)
    """For each batch that nobody can take yet, when its build and each later stage of it began: who is blamed depends on it."""
    peers: Usage = field(default_factory=dict)
    """What a byte from the memory of other nodes takes here, where as many are served to them."""
    peer_cap: float = math.inf
    lag: float = 0.0
    """Seconds that a batch lies still once it is built: what shifts a loader's later work against the steps that it feeds."""
    _reading: int = 0
    _turns: deque[simpy.Event] = field(default_factory=deque)

    @property
    def made_of(self) -> Hashable:
        """Return everything that decides what a loader finds here."""
        loads = (self.disk, self.cores, self.pin, self.copy, self.gpu, self.peers)
        return self.rank, *map(self.network.asked, loads), self.cost, self.crowd, self.peer_cap, self.lag

    @property
    def readers(self) -> int:
        """Return how many readers fill the disk; further ones would only make all of them late together."""
        share = min(self.network.capacity[link] / load for link, load in self.disk.items()) / self.crowd
        return max(1, math.ceil(share / self.cost.read_cap * (1 - 1e-9)))

    def start_read(self, readers: int = 1) -> Activity:
        """Begin to read one batch from disk, by so many *readers* side by side."""
        self.bytes_read += self.cost.read
        return self.network.start("read", self.cost.read, self.disk, cap=self.cost.read_cap * readers)

    def start_remote(self) -> Activity:
        """Begin to fetch what other nodes have of one batch."""
        return self.network.start("read from other nodes", self.cost.remote, self.peers, cap=self.peer_cap)

    def start_prep(self, threads: int = 1) -> Activity:
        """Begin to decode, augment and collate one batch on up to *threads* cores."""
        return self.network.start("prep", self.cost.prep, self.cores, cap=threads, weight=CORE_WEIGHT * threads)

    def build(self, stream: str, batch: int) -> SimProcess:
        """Read one batch, then prepare it, as one worker does."""
        self.begun[batch] = [self.network.env.now]
        if self.cost.read > 0:
            self.building[batch], start = "read", self.network.env.now
            full = yield from self._read()
            self.log.did(self.rank, stream, "read", Cause.FETCH, start, "disk" + FULL * full, batch, self.cost.read)
            self.begun[batch].append(self.network.env.now)
            del self.building[batch]
        if self.cost.remote > 0:
            self.building[batch], start = "remote", self.network.env.now
            remote = self.start_remote()
            yield remote.done
            self.log.did(self.rank, stream, "read", Cause.FETCH, start, OTHERS + FULL * _shared(remote), batch, self.cost.remote)
            self.begun[batch].append(self.network.env.now)
            del self.building[batch]
        self.building[batch], start = "prep", self.network.env.now
        prep = self.start_prep()
        yield prep.done
        self.log.did(self.rank, stream, "prep", Cause.PREP, start, "cpu cores" + FULL * _shared(prep), batch)
        self.begun[batch].append(self.network.env.now)
        del self.building[batch]

    def _read(self) -> Generator[simpy.Event, object, bool]:
        """Read one batch once it is this worker's turn, first come first served; return whether the disk was full.

        Workers of equal speed that share a disk would stay bunched for ever, and leave it idle between bunches; real ones drift
        apart. Taking turns spreads them and costs no throughput.
        """
        waits = self._reading >= self.readers
        if waits:
            turn = self.network.env.event()
            self._turns.append(turn)
            yield turn
        else:
            self._reading += 1
        read = self.start_read()
        yield read.done
        if self._turns:
            self._turns.popleft().succeed()
        else:
            self._reading -= 1
        return waits or _shared(read)

    def take_reads(self) -> dict[str, float]:
        """Return the work that reads begun since the last call put on each resource of the disk."""
        read, self.bytes_read = self.bytes_read, 0.0
        return {link: load * read for link, load in self.disk.items()}


def _shared(activity: Activity) -> bool:
    """Tell whether a resource, not its own cap, held *activity* back at any time."""
    return any(bottleneck for _, bottleneck in activity.history)


class InputPipeline(Protocol):
    """What the training loop asks of any loader."""

    site: LoaderSite

    def next_batch(self, rank: int) -> SimProcess:
        """Wait until the next batch is there."""
        ...

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """Copy it to the GPU, unless it is there already."""
        ...

    def state(self) -> tuple[object, ...]:
        """Return the loader's queues relative to the next batch: part of what decides the future."""
        ...

    def since(self) -> tuple[float, ...]:
        """Return the times (s) at which what is being built was begun: part of what decides who will be blamed."""
        ...


class Synthetic:
    """Tensors made once in host memory: nothing to wait for but the copy to the GPU."""

    def __init__(self, site: LoaderSite) -> None:
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

    def since(self) -> tuple[float, ...]:
        """Return when each stage of what is being built began."""
        return tuple(time for times in self.site.begun.values() for time in times)


class Inline(Synthetic):
    """``num_workers=0``: the rank reads and decodes each batch itself."""

    def __init__(self, site: LoaderSite) -> None:
        super().__init__(site)
        self._taken = 0

    def next_batch(self, rank: int) -> SimProcess:
        """Build the batch while the rank waits."""
        batch, self._taken = self._taken, self._taken + 1
        with self.site.log.waiting(rank, Cause.INPUT, ident=batch):
            yield from self.site.build("worker 0", batch)
        self.site.begun.pop(batch, None)


class Queue(Synthetic):
    """Batches built ahead, finished one after another in a second stage, and handed out in order."""

    def __init__(self, site: LoaderSite, ahead: int) -> None:
        super().__init__(site)
        self.env = site.network.env
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

    def built(self, batch: int, deliver: Callable[[int], None]) -> None:
        """Pass on a batch that is built, now or after the site's lag, during which the next is built."""
        if self.site.lag > 0:
            self.env.process(self._lie_still(batch, deliver))
        else:
            deliver(batch)

    def _lie_still(self, batch: int, deliver: Callable[[int], None]) -> SimProcess:
        yield self.env.timeout(self.site.lag)
        deliver(batch)

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
        self.site.begun.pop(batch, None)
        wanted = self._wanted.pop(batch, None)
        if wanted is not None:
            wanted.succeed()

    def state(self) -> tuple[object, ...]:
        """Batches that are ready, wait for room, are in the second stage or being built, counted from the next batch."""
        queues = (sorted(self._ready), sorted(self._room), self._second, self.site.building)
        return (*(tuple(batch - self.taken for batch in queue) for queue in queues), *self.site.building.values())


class WorkerLoader(Queue):
    """torch's DataLoader with *workers* processes of its own; the second stage is the pin thread."""

    def __init__(self, site: LoaderSite, workers: int, prefetch_factor: int, pin_memory: bool, start: float) -> None:
        super().__init__(site, workers * prefetch_factor)
        self.workers = workers
        self._deliver = self.to_second_stage if pin_memory else self.hand_over
        self._started = 0
        # Samples of unequal size make workers drift apart; evenly spread starts give a deterministic run that steady state.
        spread = site.cost.prep + site.cost.read / site.cost.read_cap
        for worker in range(workers):
            self.env.process(self._work(worker, start + spread * worker / workers))

    def _work(self, worker: int, start: float) -> SimProcess:
        yield self.env.timeout(start)
        self._started += 1
        for batch in count(worker, self.workers):
            yield from self.room(batch)
            yield from self.site.build(f"worker {worker}", batch)
            self.built(batch, self._deliver)

    def finish(self, batch: int) -> SimProcess:
        """Copy the batch to pinned memory."""
        site, start = self.site, self.env.now
        yield site.network.start("pin", site.cost.copy, site.pin, cap=PIN_BANDWIDTH).done
        site.log.did(site.rank, "pin", "pin", Cause.PREP, start, "pin thread", batch, site.cost.copy)

    def state(self) -> tuple[object, ...]:
        """Add the time until all workers have started; which of them comes next follows from the count taken."""
        return (*super().state(), self.env.now if self._started < self.workers else None)


class DaliPipeline(Queue):
    """DALI: *threads* build one batch at a time, reading beside decoding; the second stage copies it and finishes it on the GPU.

    Decode on the GPU begins when its batch is there, whether or not the GPU would have an idle moment later. So a slower disk may move it
    into such a moment, and a cold epoch be faster than a warm one, by the launch stall at most.
    """

    def __init__(self, site: LoaderSite, threads: int) -> None:
        super().__init__(site, DALI_PREFETCH)
        self._threads = threads
        self.env.process(self._build())

    def _build(self) -> SimProcess:
        site = self.site
        for batch in count():
            yield from self.room(batch)
            site.building[batch], start = "both", self.env.now
            site.begun[batch] = [start]
            prep, read = site.start_prep(self._threads), site.start_read(self._threads)
            remote = site.start_remote() if site.cost.remote > 0 else read
            yield prep.done
            late = [name for fetch, name in ((read, "disk"), (remote, OTHERS)) if not fetch.done.triggered]
            cause, resource = (Cause.FETCH, late[0]) if late else (Cause.PREP, "cpu cores")
            yield read.done
            yield remote.done
            site.log.did(site.rank, "pipeline", cause.value, cause, start, resource, batch, site.cost.read)
            del site.building[batch]
            site.begun[batch].append(self.env.now)
            self.built(batch, self.to_second_stage)

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
