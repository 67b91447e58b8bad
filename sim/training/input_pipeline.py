"""How does the next batch get to a rank? Loaders with the semantics of torch and DALI, on the node's shared disk, cores and links.

torch's DataLoader: each worker builds whole batches; index lists are dealt round-robin; at most ``num_workers * prefetch_factor`` batches
are outstanding; batches are returned in order, so a slow batch delays later ones that are ready; a pin thread copies each batch to pinned
memory. Worker starts are spread over the time of one batch, and workers take turns at a saturated disk. Without workers, the rank builds
its own batches and waits for them. DALI: a pipeline of threads builds one batch at a time, up to two ahead, reads and decodes
concurrently, and leaves the batch on the GPU. Loaders never stop, as if the next epoch followed at once.
Limits: all batches cost the mean, so no worker falls behind by chance. The ranks of a class run in lockstep. With one worker per rank, a
node alternates between reading and decoding, and real ranks would overlap the two.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.clock import SimProcess
from sim.cluster.network import Activity, Network
from sim.events import FULL, Cause, EventLog

CORE_WEIGHT = 1e-10
"""Fair-share weight of one core relative to 1 byte/s on memory and NIC: a core copies about 10 GB/s (the upper end of 5-10 GB/s)."""
PIN_BANDWIDTH = 5e9
"""Bytes/s that one pin thread copies: the lower end of 5-10 GB/s per core, because it reads what another process wrote."""
PAGEABLE_SLOWDOWN = 2.0
"""Copies from pageable memory run at about half the pinned rate: 50 versus 90 Gbps on p3dn.24xlarge (NVIDIA/nccl issue 398)."""
DALI_PREFETCH = 2
"""DALI's default prefetch_queue_depth."""

OTHERS = "memory of other nodes"
DISK = "disk"
STORAGE_NETWORK = "network to the storage"
"""What limits reads from a disk, by their binding resource: the disk itself, or the NICs through which they arrive."""

Usage = Mapping[str, float]


class BatchCost(NamedTuple):
    """The demand of one batch on the node: bytes from disk, core-seconds, bytes to pin and copy, and GPU seconds if the GPU decodes."""

    read: float
    read_cap: float
    """Upper limit on the bytes/s of one reader, which issues its reads sequentially."""
    prep: float
    copy: float
    gpu_prep: float = 0.0
    remote: float = 0.0
    """Bytes from the memory of other nodes."""


@dataclass
class LoaderSite:
    """Where a rank's loader runs: the load of each activity on shared resources, per unit, and the cost of a batch."""

    network: Network
    log: EventLog
    rank: int
    disk: Usage
    cores: Usage
    pin: Usage
    copy: Usage
    gpu: Usage
    cost: BatchCost
    nics: frozenset[str] = frozenset()
    """The links in *disk* that are NICs."""
    disk_readers: float = 1.0
    """Ranks on the node that read from the disk, per rank of this class."""
    bytes_read: float = 0.0
    """Bytes read by each member of the rank class since the last call of `take_reads`."""
    building: dict[int, str] = field(default_factory=dict)
    """The current stage of each batch that is being built, in the order of their start; part of the simulation state."""
    stage_starts: dict[int, list[float]] = field(default_factory=dict)
    """For each batch that is not ready yet, when its build and each later stage began; blame for waits depends on it."""
    peers: Usage = field(default_factory=dict)
    """Load here of one byte fetched from the memory of other nodes, including the byte that this node serves to them in return."""
    peer_cap: float = math.inf
    lag: float = 0.0
    """Seconds between building a batch and passing it on. This shifts the loader's later work relative to the steps that it feeds."""
    _reading: int = 0
    _turns: deque[simpy.Event] = field(default_factory=deque)

    @property
    def cache_key(self) -> Hashable:
        """Return a cache key with everything here that affects the timing of a loader."""
        loads = (self.disk, self.cores, self.pin, self.copy, self.gpu, self.peers)
        return self.rank, *map(self.network.usage_key, loads), self.cost, self.disk_readers, self.peer_cap, self.lag

    @property
    def readers(self) -> int:
        """Return the number of readers that saturate the disk. More readers would only slow all of them down."""
        share = min(self.network.capacity[link] / load for link, load in self.disk.items()) / self.disk_readers
        return max(1, math.ceil(share / self.cost.read_cap * (1 - 1e-9)))

    def start_read(self, readers: int = 1) -> Activity:
        """Begin to read one batch from disk with *readers* parallel readers."""
        self.bytes_read += self.cost.read
        return self.network.start("read", self.cost.read, self.disk, cap=self.cost.read_cap * readers)

    def read_limit(self, read: Activity) -> str:
        """Return what limited *read* last: the disk, or the NICs between it and the node."""
        return STORAGE_NETWORK if read.history and read.history[-1][1] in self.nics else DISK

    def start_remote(self) -> Activity:
        """Begin to fetch the part of one batch that other nodes hold in memory."""
        return self.network.start("read from other nodes", self.cost.remote, self.peers, cap=self.peer_cap)

    def start_prep(self, threads: int = 1) -> Activity:
        """Begin to decode, augment and collate one batch on up to *threads* cores."""
        return self.network.start("prep", self.cost.prep, self.cores, cap=threads, weight=CORE_WEIGHT * threads)

    def build(self, stream: str, batch: int) -> SimProcess:
        """Read one batch, then prepare it, as one worker does."""
        self.stage_starts[batch] = [self.network.env.now]
        if self.cost.read > 0:
            self.building[batch], start = "read", self.network.env.now
            full, limit = yield from self._read()
            self.log.add_work(self.rank, stream, "read", Cause.FETCH, start, limit + FULL * full, batch, self.cost.read)
            self.stage_starts[batch].append(self.network.env.now)
            del self.building[batch]
        if self.cost.remote > 0:
            self.building[batch], start = "remote", self.network.env.now
            remote = self.start_remote()
            yield remote.done
            self.log.add_work(self.rank, stream, "read", Cause.FETCH, start, OTHERS + FULL * _shared(remote), batch, self.cost.remote)
            self.stage_starts[batch].append(self.network.env.now)
            del self.building[batch]
        self.building[batch], start = "prep", self.network.env.now
        prep = self.start_prep()
        yield prep.done
        self.log.add_work(self.rank, stream, "prep", Cause.PREP, start, "cpu cores" + FULL * _shared(prep), batch)
        self.stage_starts[batch].append(self.network.env.now)
        del self.building[batch]

    def _read(self) -> Generator[simpy.Event, object, tuple[bool, str]]:
        """Read one batch when it is this worker's turn, first come, first served; return whether a limit was saturated, and which.

        Equally fast workers that share a disk would stay bunched forever, and leave it idle between bunches. Real workers drift
        apart. Taking turns spreads them out and costs no throughput.
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
        return waits or _shared(read), self.read_limit(read)

    def take_reads(self) -> dict[str, float]:
        """Return the work that the reads begun since the last call put on each resource of the disk."""
        read, self.bytes_read = self.bytes_read, 0.0
        return {link: load * read for link, load in self.disk.items()}


def _shared(activity: Activity) -> bool:
    """Return whether a shared resource, rather than its own cap, limited *activity* at any time."""
    return any(bottleneck for _, bottleneck in activity.history)


class InputPipeline(Protocol):
    """The interface of a loader, as the training loop uses it."""

    site: LoaderSite

    def next_batch(self, rank: int) -> SimProcess:
        """Wait until the next batch is ready."""
        ...

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """Copy the batch to the GPU, unless it is already there."""
        ...

    def state(self) -> tuple[object, ...]:
        """Return the loader's queues, with batches counted from the next one; part of the simulation state."""
        ...

    def since(self) -> tuple[float, ...]:
        """Return when (s) the stages of unfinished batches began; the blame for later waits depends on it."""
        ...


class Synthetic:
    """Tensors created once in host memory: the rank waits only for the copy to the GPU."""

    def __init__(self, site: LoaderSite) -> None:
        self.site = site

    def next_batch(self, rank: int) -> SimProcess:
        """Return at once, because the batch is always ready."""
        yield from ()

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """Copy the batch over PCIe while the rank waits."""
        site = self.site
        if site.cost.copy > 0:
            start = site.network.env.now
            activity = site.network.start("copy", site.cost.copy, site.copy)
            with site.log.waiting(rank, Cause.COPY, "host to device"):
                yield activity.done
            site.log.add_work(rank, "copy", "host to device", Cause.COPY, start, activity.history[-1][1], nbytes=site.cost.copy)

    def state(self) -> tuple[object, ...]:
        """Return an empty state, because nothing is queued."""
        return ()

    def since(self) -> tuple[float, ...]:
        """Return when each stage of the unfinished batches began (s)."""
        return tuple(time for times in self.site.stage_starts.values() for time in times)


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
        self.site.stage_starts.pop(batch, None)


class Queue(Synthetic):
    """Batches that are built ahead, finished sequentially in a second stage, and handed out in order; up to *ahead* are outstanding."""

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
        """Wait until the queue has room to begin *batch*."""
        if batch >= self.taken + self.ahead:
            allowed = self._room[batch] = self.env.event()
            yield allowed

    def finish(self, batch: int) -> SimProcess:
        """Run the second stage of a batch."""
        raise NotImplementedError

    def built(self, batch: int, deliver: Callable[[int], None]) -> None:
        """Pass a built batch to *deliver*, at once or after the site's lag; the lag does not delay the build of the next batch."""
        if self.site.lag > 0:
            self.env.process(self._deliver_later(batch, deliver))
        else:
            deliver(batch)

    def _deliver_later(self, batch: int, deliver: Callable[[int], None]) -> SimProcess:
        yield self.env.timeout(self.site.lag)
        deliver(batch)

    def to_second_stage(self, batch: int) -> None:
        """Queue a batch for the second stage, which processes batches in order of arrival."""
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
        """Make a finished batch available to the rank."""
        self._ready.add(batch)
        self.site.stage_starts.pop(batch, None)
        wanted = self._wanted.pop(batch, None)
        if wanted is not None:
            wanted.succeed()

    def state(self) -> tuple[object, ...]:
        """Return the batches that are ready, waiting for room, in the second stage or being built, counted from the next batch."""
        queues = (sorted(self._ready), sorted(self._room), self._second, self.site.building)
        return (*(tuple(batch - self.taken for batch in queue) for queue in queues), *self.site.building.values())


class WorkerLoader(Queue):
    """torch's DataLoader with *workers* worker processes; the second stage is the pin thread."""

    def __init__(self, site: LoaderSite, workers: int, prefetch_factor: int, pin_memory: bool, start: float) -> None:
        super().__init__(site, workers * prefetch_factor)
        self.workers = workers
        self._pin_memory = pin_memory
        self._started = 0
        # Real workers drift apart because samples differ in size. Evenly spread starts give a deterministic run the same steady state.
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

    def _deliver(self, batch: int) -> None:
        """Pass a built batch to the pin thread, if there is one, or else to the rank."""
        if self._pin_memory:
            self.to_second_stage(batch)
        else:
            self.hand_over(batch)

    def finish(self, batch: int) -> SimProcess:
        """Copy the batch to pinned memory."""
        site, start = self.site, self.env.now
        yield site.network.start("pin", site.cost.copy, site.pin, cap=PIN_BANDWIDTH).done
        site.log.add_work(site.rank, "pin", "pin", Cause.PREP, start, "pin thread", batch, site.cost.copy)

    def state(self) -> tuple[object, ...]:
        """Return the queues, plus the time until all workers have started. The count of batches taken determines which worker is next."""
        return (*super().state(), self.env.now if self._started < self.workers else None)


class DaliPipeline(Queue):
    """DALI: *threads* build one batch at a time, reading while they decode; the second stage copies it and finishes it on the GPU.

    Decoding on the GPU begins as soon as the batch is there, even if the GPU will be idle a little later. A slower disk may delay it into
    such an idle moment. A cold epoch can therefore be faster than a warm one, by at most the launch stall.
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
            site.stage_starts[batch] = [start]
            prep, read = site.start_prep(self._threads), site.start_read(self._threads)
            remote = site.start_remote() if site.cost.remote > 0 else read
            yield prep.done
            late = [name for fetch, name in ((read, site.read_limit(read)), (remote, OTHERS)) if not fetch.done.triggered]
            cause, resource = (Cause.FETCH, late[0]) if late else (Cause.PREP, "cpu cores")
            yield read.done
            yield remote.done
            site.log.add_work(site.rank, "pipeline", cause.value, cause, start, resource, batch, site.cost.read)
            del site.building[batch]
            site.stage_starts[batch].append(self.env.now)
            self.built(batch, self.to_second_stage)

    def finish(self, batch: int) -> SimProcess:
        """Copy the batch to the GPU, and decode it there if the loader decodes on the GPU."""
        site, start = self.site, self.env.now
        yield site.network.start("pipeline copy", site.cost.copy, site.copy).done
        site.log.add_work(site.rank, "pipeline gpu", "copy", Cause.COPY, start, "host to device", batch, site.cost.copy)
        if site.cost.gpu_prep > 0:
            start = self.env.now
            yield site.network.start("gpu prep", site.cost.gpu_prep, site.gpu, cap=1.0).done
            site.log.add_work(site.rank, "pipeline gpu", "gpu prep", Cause.PREP, start, "GPU decode", batch)

    def copy_to_gpu(self, rank: int) -> SimProcess:
        """Do nothing, because the pipeline has left the batch on the GPU."""
        yield from ()
