"""When is the next micro-batch ready? Loaders of the ranks of the first stage, with torch's semantics, as a recurrence.

Worker k mod n builds micro-batch k: it reads it from the node's disk, which serves one reader at a time, and prepares it on a core. At most
``num_workers * prefetch_factor`` micro-batches are built or in progress, and they are handed out in order. Thus ready(k) follows from when
its worker, the disk and the cores became free, and from when micro-batch k minus that depth was taken. Without workers, a rank builds its
own micro-batches and waits for them.
Ranks that share samples (of a tensor or context group) read them once per node. A stream of tokens is never cached; for other data sets,
the page cache holds its share of a warm epoch. Then all loading ranks of a node copy at once (`copy_time`). Limits: nodes are equal; the
memory of other nodes is not used; copies share no links with messages, and those of tokens, a few hundred kB, take no time.
"""

from __future__ import annotations

import math
from collections import Counter
from copy import copy
from dataclasses import dataclass, field, replace

from sim.cluster import page_cache
from sim.cluster.storage import baseline_iops, ios_per_sample, most_bandwidth
from sim.cluster.topology import node_graph
from sim.events import Cause
from sim.parallel.mesh import Mesh
from sim.spec.hardware import Node, Storage
from sim.spec.stream import Stream
from sim.spec.workload import Workload
from sim.training.input_pipeline import PAGEABLE_SLOWDOWN
from sim.training.job import batch_cost
from sim.training.layouts.stream import download_of

DISK, CORES, STORE = "disk", "cpu cores", "object store"


@dataclass(frozen=True)
class Feed:
    """The times (s) of one micro-batch for each of the loading ranks of a node, and how many may be built ahead."""

    disk: float
    """Time of the node's disk, for all of these ranks together."""
    read: float
    """Time in which one rank reads its own micro-batch, without contention for the disk."""
    prep: float
    """Time on one core."""
    cores: float
    """Time of all cores of the node, for all of these ranks together."""
    workers: int
    """Number of workers of each rank; 0 means that the rank loads itself."""
    ahead: int
    source: str = DISK
    """What bounds the reads of all these ranks: the disk, or the store from which samples are streamed."""

    @property
    def interval(self) -> float:
        """Return the time (s) between two micro-batches if they are taken as soon as they are ready."""
        return max(self.disk, self.cores, (self.read + self.prep) / max(self.workers, 1))

    @property
    def slowest(self) -> tuple[Cause, str]:
        """Return what bounds the interval."""
        return (Cause.FETCH, self.source) if self.disk >= self.interval else (Cause.PREP, CORES)


def feed_of(node: Node, workload: Workload, mesh: Mesh) -> Feed | None:
    """Return the feed of the ranks of *mesh*, or None if data are always ready (synthetic) or *node* specifies no storage."""
    options = workload.input
    if options.loader == "synthetic" or node.storage is None:
        return None
    readers = readers_of(mesh)
    from_disk = _from_disk(node, node.storage, workload, mesh, readers)
    if options.stream is None:
        return from_disk
    return _streamed(from_disk, options.stream, node, workload, mesh, readers)


def copy_time(node: Node, workload: Workload, mesh: Mesh) -> float:
    """Return the time (s) for which a loading rank waits for the copy of a micro-batch to its GPU; DALI has copied it before."""
    options = workload.input
    if options.loader.startswith("dali") or workload.model.decodes:
        return 0.0
    graph = node_graph(node)
    loading = (mesh.place(rank)[1] for rank in mesh.on_node(mesh.place(mesh.rank(pipeline=0))[0]) if mesh.stage_of(rank) == 0)
    loads = Counter(link for gpu in loading for link in graph.host_to_device(gpu).links)
    nbytes = workload.training.batch * workload.dataset.prepared * (1.0 if options.pin_memory else PAGEABLE_SLOWDOWN)
    return nbytes * max(load / graph.links[link].capacity for link, load in loads.items())


def readers_of(mesh: Mesh) -> int:
    """Return the number of ranks of one node that load their own samples."""
    first = mesh.place(mesh.rank(pipeline=0))[0]
    return len({mesh.coordinate(rank, "data") for rank in mesh.on_node(first) if mesh.stage_of(rank) == 0})


def count_loading(mesh: Mesh) -> tuple[int, int]:
    """Return the number of nodes with loading ranks, and the number of ranks with their own samples."""
    ranks = [rank for rank in range(mesh.gpus) if mesh.stage_of(rank) == 0]
    return len({mesh.place(rank)[0] for rank in ranks}), len({mesh.coordinate(rank, "data") for rank in ranks})


def _streamed(feed: Feed, stream: Stream, node: Node, workload: Workload, mesh: Mesh, readers: int) -> Feed:
    """Return *feed* if samples are downloaded first: to the disk, which is then written instead of read, or bypassing it."""
    nodes, ranks = count_loading(mesh)
    download = download_of(stream, node, nodes, readers, ranks, feed.workers)
    nbytes = workload.training.batch * workload.dataset.sample * download.repeats
    store = readers * nbytes / download.rate
    past = stream.library == "huggingface"
    disk, read = (0.0, 0.0) if past else (feed.disk, feed.read)
    source = STORE if store > disk else DISK
    return replace(feed, disk=max(disk, store), read=read + nbytes / download.rate_per_worker, source=source)


def _from_disk(node: Node, storage: Storage, workload: Workload, mesh: Mesh, readers: int) -> Feed:
    options, dataset, host = workload.input, workload.dataset, node.host
    hits = 0.0
    if dataset.sequence is None:  # a stream of tokens is read once
        fraction = page_cache.cached_fraction(page_cache.capacity(host.memory, node.page_cache), dataset.samples * dataset.sample)
        hits = page_cache.hit_ratio(node.page_cache, fraction, math.ceil(mesh.gpus / mesh.gpus_per_node))
    iops = min(baseline_iops(storage.volume), storage.iops or math.inf)
    nics = node.nic.count * node.nic.bandwidth if storage.volume.over_network else math.inf
    rate = min(most_bandwidth(storage), iops * dataset.sample / ios_per_sample(storage.volume, dataset), nics)
    cost = batch_cost(workload, node, rate, hits)
    return Feed(
        readers * cost.read / rate,
        cost.read / cost.read_cap,
        cost.prep,
        readers * cost.prep / host.physical_cores,
        options.num_workers,
        options.num_workers * options.prefetch_factor,
    )


@dataclass
class RankLoader:
    """The loader of one rank during a run. It begins with no batches built if *starts_empty*, else with as many as it may build ahead."""

    feed: Feed
    starts_empty: bool
    take_times: list[float] = field(default_factory=list)
    """Time (s) at which each micro-batch was taken."""
    workers: list[float] = field(default_factory=list)
    """Time (s) at which each worker becomes free."""
    disk: float = 0.0
    cores: float = 0.0
    ready: float = 0.0
    """Time (s) at which the latest micro-batch is ready."""

    def __post_init__(self) -> None:
        each = self.feed.read + self.feed.prep  # evenly spread starts, as in `sim.training.input_pipeline`
        count = max(1, self.feed.workers)
        self.workers = [each * worker / count if self.starts_empty else 0.0 for worker in range(count)]

    def copy(self) -> RankLoader:
        """Return a loader in the same state."""
        same = copy(self)
        same.take_times, same.workers = list(self.take_times), list(self.workers)
        return same

    def next(self, now: float) -> tuple[float, list[tuple[Cause, str, float]]]:
        """Return when the micro-batch requested at *now* (s) is ready, and its limits, each with the time (s) until which it applies."""
        feed, number = self.feed, len(self.take_times)
        if number < feed.ahead and not self.starts_empty:
            self.take_times.append(now)
            return now, []
        worker = number % len(self.workers)
        allowed = now if not feed.ahead else self.take_times[number - feed.ahead] if number >= feed.ahead else 0.0
        begins = max(self.workers[worker], allowed, self.disk if feed.disk > 0 else 0.0)
        read = begins + max(feed.disk, feed.read)
        self.disk = begins + feed.disk
        self.cores = max(self.cores, read) + feed.cores
        built = max(read + feed.prep, self.cores)
        self.workers[worker] = built
        self.ready = max(self.ready, built)
        ready = max(now, self.ready)
        self.take_times.append(ready)
        return ready, [(*feed.slowest, begins), (Cause.FETCH, feed.source, read), (Cause.PREP, CORES, self.ready)]

    def leads(self, now: float) -> tuple[float, ...]:
        """Return what decides when further micro-batches are ready, relative to *now* (s); empty while some of those built ahead are left.

        Equal leads at two times mean that the loader repeats in between.
        """
        feed, number = self.feed, len(self.take_times)
        if number < feed.ahead + len(self.workers):
            return ()
        turn = number % len(self.workers)
        times = (*self.workers[turn:], *self.workers[:turn], self.disk, self.cores, self.ready, *self.take_times[number - feed.ahead :])
        return tuple(time - now for time in times)
