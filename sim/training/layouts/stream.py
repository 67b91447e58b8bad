"""How fast do streamed samples reach a node, and when is the first micro-batch there?

A node downloads at what its workers reach together, its NICs carry, and the store gives each of the nodes:
``rate = min(workers * per_reader, nics, store / nodes)``; a micro-batch of all ranks that load takes ``bytes * compressed * repeats /
rate``. Before the first micro-batch, ``mosaic`` needs a shard for each of its samples, at most those of a shuffled block; ``huggingface``
fills the buffer of each worker. Limits: connections are alike and never fail; what the store answers late is ``start``, once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.spec.hardware import Node
from sim.spec.stream import Stream
from sim.spec.workload import Workload


@dataclass(frozen=True)
class Download:
    """What a node downloads from: bytes/s of all its workers together, of one of them, and how often each sample comes."""

    rate: float
    of_worker: float
    repeats: float
    """Bytes downloaded for one byte of a sample on the node."""


def download_of(stream: Stream, node: Node, nodes: int, readers: int, ranks: int, workers: int) -> Download:
    """Return what each of *nodes* downloads with *readers* of the *ranks* that load, *workers* each (0: the ranks themselves)."""
    nics = node.nic.count * node.nic.bandwidth
    each = min(stream.store.per_writer or math.inf, nics, stream.store.bandwidth)
    together = min(readers * max(1, workers) * each, nics, stream.store.bandwidth / nodes)
    return Download(together, each, stream.compressed * stream.repeats(ranks))


def first_batch_time(stream: Stream, download: Download, workload: Workload, readers: int, workers: int) -> float:
    """Return the seconds until each of *readers* on a node has its first micro-batch."""
    sample, batch = workload.dataset.sample, workload.training.batch
    if stream.library == "mosaic":
        shards = min(readers * batch, math.ceil(stream.window * sample / stream.shard))
        return stream.store.start + max(1, shards) * max(stream.shard, sample) * download.repeats / download.rate
    wanted = readers * max(1, workers) * max(stream.window, batch) * sample * download.repeats
    return stream.store.start + wanted / download.rate
