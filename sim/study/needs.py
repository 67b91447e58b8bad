"""What would remove the data stalls? The least disk, page cache and cores with which the input keeps up, found by simulating with more.

DS-Analyzer (arXiv 2007.06775) answers this with its rates, ``min(fetch, prep, ingestion)``, which assumes that reading and decoding
overlap perfectly. A torch worker reads a batch and then decodes it, so if cores are short as well, more disk bandwidth is needed.
Needs are found by bisection on runs, because step time falls with every resource: a stall is gone when the step is within 1% of the step
without it.

Limits: each need assumes that the other resources stay as they are; `cores` means faster preparation, with loader workers to use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sim.cluster import page_cache
from sim.cluster.storage import read_rate
from sim.simulate import Run, simulate
from sim.spec.hardware import Hardware, Node, Storage
from sim.spec.input import Dataset

GONE = 1.01
"""A step up to this many times as long as without a stall counts as free of it: half the noise of repeated measurements (2-4%)."""
_MOST = 1e4
"""Largest factor of a resource that is tried."""
_PRECISION = 1.01


@dataclass(frozen=True)
class Needs:
    """What would let the input keep up with the GPUs; None if it already does, or if no amount of that resource alone would."""

    disk_bandwidth: float | None
    """Bytes/s of one node's disk, with latency scaled to match, so that the cold epoch waits for no reads."""
    cached_fraction: float | None
    """Share of the data set in each node's page cache, so that later epochs wait for no reads."""
    cores: float | None
    """Number of cores of one node, at their present speed, so that warm epochs wait for no preparation."""


def needs(real: Run) -> Needs:
    """Return the needs of the only job of *real*; if its nodes differ, for the best of them, and for the others in proportion."""
    job, nodes, dataset = real.jobs[0], real.nodes(), real.jobs[0].job.workload.dataset
    if job.job.workload.input.loader == "synthetic":
        return Needs(None, None, None)
    core_factor = least_sufficient_factor(
        lambda factor: _warm(real, lambda each_node: _with_faster_cores(each_node, factor)),
        _warm(real, lambda each_node: _with_faster_cores(each_node, _MOST)),
    )
    cores = None if core_factor is None else core_factor * max(node.host.physical_cores for node in nodes)
    disks = [node.storage for node in nodes if node.storage is not None]
    if not disks:
        return Needs(None, None, cores)
    cold = job.first.step_time > GONE * job.warm.step_time  # burst credits may hide what the disk alone would not
    disk = least_sufficient_factor(lambda factor: _cold(real, factor), job.warm.step_time) if cold else None
    held = max(page_cache.capacity(node.host.memory, node.page_cache) for node in nodes)
    size = dataset.samples * dataset.sample
    memory_factor = least_sufficient_factor(
        lambda factor: _warm(real, lambda each_node: _with_more_memory(each_node, factor)),
        _warm(real, lambda each_node: _with_more_memory(each_node, _MOST)),
    )
    rate = max(read_rate(disk, dataset, burst=False) for disk in disks)
    return Needs(
        None if disk is None else disk * rate,
        None if memory_factor is None else min(1.0, memory_factor * page_cache.cached_fraction(held, size)),
        cores,
    )


def least_sufficient_factor(step_time: Callable[[float], float], without: float) -> float | None:
    """Return the least factor above 1 at which *step_time* equals that *without* the stall; None if 1 is enough or none helps."""
    if step_time(1.0) <= GONE * without or step_time(_MOST) > GONE * without:
        return None
    low, high = 1.0, _MOST
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if step_time(middle) <= GONE * without else (middle, high)
    return high


def _warm(real: Run, change: Callable[[Node], Node]) -> float:
    return simulate(_each_node(real.hardware, change), [real.jobs[0].job], cold=False).jobs[0].warm.step_time


def _cold(real: Run, factor: float) -> float:
    """Return the step time of the cold epoch with a disk *factor* times as fast as the node's own without burst credits."""
    dataset = real.jobs[0].job.workload.dataset
    faster = _each_node(real.hardware, lambda node: _with_faster_disk(node, dataset, factor))
    return simulate(faster, [real.jobs[0].job]).jobs[0].first.step_time


def _each_node(hardware: Hardware, change: Callable[[Node], Node]) -> Hardware:
    groups = tuple(group.model_copy(update={"node": change(group.node)}) for group in hardware.groups)
    return hardware.model_copy(update={"groups": groups})


def _with_faster_cores(node: Node, factor: float) -> Node:
    cpu = node.host.cpu
    launches = {"launch_speed": factor * cpu.launch_speed} if cpu.launch_speed else {}
    cpu = cpu.model_copy(update={"speed": factor * cpu.speed, **launches})
    return node.model_copy(update={"host": node.host.model_copy(update={"cpu": cpu})})


def _with_more_memory(node: Node, factor: float) -> Node:
    return node.model_copy(update={"host": node.host.model_copy(update={"memory": factor * node.host.memory})})


def _with_faster_disk(node: Node, dataset: Dataset, factor: float) -> Node:
    """Return *node* with a disk *factor* times as fast, in bytes/s and in latency, and with ample IOPS."""
    if node.storage is None:
        return node
    plenty = _MOST * node.storage.volume.max_iops
    update = {
        "bandwidth": factor * read_rate(node.storage, dataset, burst=False), "latency": node.storage.volume.latency / factor, "small": None,
        "count": 1, "baseline_iops": plenty, "max_iops": plenty, "burst_iops": None,
    }  # fmt: skip
    return node.model_copy(update={"storage": Storage(volume=node.storage.volume.model_copy(update=update), source=node.storage.source)})
