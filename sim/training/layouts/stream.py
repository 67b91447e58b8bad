"""How fast do streamed samples reach a node, and when is the first micro-batch ready?

The download rate of a node is limited by its workers, by its NICs, and by its share of the store:
``rate = min(workers * per_reader, nics, store / nodes)``. A micro-batch of all loading ranks takes ``bytes * compressed * repeats / rate``.
Before the first micro-batch, ``mosaic`` needs a shard for each of its samples, at most the shards of a shuffled block; ``huggingface``
fills the buffer of each worker. Limits: connections are equal and never fail; the latency of the store is ``start``, paid once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.spec.hardware import Node
from sim.spec.stream import Stream
from sim.spec.workload import Workload


@dataclass(frozen=True)
class Download:
    """The download rates of a node (bytes/s), of all its workers together and of one of them, and the bytes per byte of sample."""

    rate: float
    rate_per_worker: float
    repeats: float
    """Bytes downloaded per byte of a sample on the node."""


def download_of(stream: Stream, node: Node, nodes: int, readers: int, ranks: int, workers: int) -> Download:
    """Return the download rates of each of *nodes* nodes, which has *readers* of the *ranks* loading ranks, with *workers* each.

    0 workers means that the ranks load themselves.
    """
    nics = node.nic.count * node.nic.bandwidth
    each = min(stream.store.per_writer or math.inf, nics, stream.store.bandwidth)
    together = min(readers * max(1, workers) * each, nics, stream.store.bandwidth / nodes)
    return Download(together, each, stream.compressed * stream.repeats(ranks))


def first_batch_time(stream: Stream, download: Download, workload: Workload, readers: int, workers: int) -> float:
    """Return the time (s) until each of *readers* loading ranks on a node has its first micro-batch."""
    sample, batch = workload.dataset.sample, workload.training.batch
    if stream.library == "mosaic":
        shards = min(readers * batch, math.ceil(stream.window * sample / stream.shard))
        return stream.store.start + max(1, shards) * max(stream.shard, sample) * download.repeats / download.rate
    nbytes = readers * max(1, workers) * max(stream.window, batch) * sample * download.repeats
    return stream.store.start + nbytes / download.rate
