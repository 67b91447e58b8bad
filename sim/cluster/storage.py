"""How fast does a volume deliver samples? As fast as the tightest of its IOPS, its bandwidth and the node's ceilings allow.

``rate = min(bandwidth, node bandwidth, min(IOPS, node IOPS) * sample / I/Os per sample)``. A sample that is a file of its own
costs ``ceil(sample / io_size)`` I/Os; packed records are read in full I/Os. Volumes sold by size (Amazon EBS gp2) have
``clamp(IOPS per GiB * size, least, most)`` IOPS, and exceed that up to ``burst_iops`` while a bucket of I/O credits lasts, which
refills at the baseline rate. Without credits, throughput is baseline IOPS x 256 KiB (EBS user guide, "General Purpose SSD").

Limits: enough reads are outstanding to fill the volume, so latency does not lower the rate; neighbouring files are not merged into
one I/O and metadata reads are free; no first-touch penalty of volumes restored from snapshots; credits of throughput (st1) are
described as credits of I/Os of the largest size.
"""

from __future__ import annotations

import math
from copy import copy

from sim.spec.hardware import Storage, Volume
from sim.spec.workload import Dataset

_GIB = 2.0**30
_ROUNDING = 1e-9
"""Share of a full bucket below which a level is empty, and above whose complement it is full: floating-point residue of a drain."""


def baseline_iops(volume: Volume) -> float:
    """Return the I/Os per second that *volume*, all its stripes together, sustains for ever."""
    of_each = max(volume.baseline_iops, volume.iops_per_gib * volume.size / _GIB)
    return volume.count * min(of_each, volume.max_iops)


def burst_iops(volume: Volume) -> float:
    """Return the I/Os per second of *volume* while its credits last: never below the baseline."""
    if volume.burst_iops is None:
        return baseline_iops(volume)
    return max(baseline_iops(volume), volume.count * volume.burst_iops)


def bandwidth(volume: Volume) -> float:
    """Return the bytes/s that *volume*, all its stripes together, never exceeds."""
    of_each = volume.bandwidth
    if volume.small is not None and volume.size <= volume.small.size:
        of_each = min(of_each, volume.small.bandwidth)
    return volume.count * of_each


def ios_per_sample(volume: Volume, dataset: Dataset) -> float:
    """Return the I/Os that reading one sample of *dataset* takes. Raise ValueError for samples without bytes."""
    if dataset.sample <= 0:
        raise ValueError(f"a sample of {dataset.sample:g} bytes cannot be read: its size must be positive")
    ios = dataset.sample / volume.io_size
    return ios if dataset.files == "packed" else float(math.ceil(ios))


def most_iops(storage: Storage, burst: bool) -> float:
    """Return the I/Os per second that *storage* serves, by volume and node; *burst* tells whether credits are left."""
    return min(burst_iops(storage.volume) if burst else baseline_iops(storage.volume), storage.iops or math.inf)


def most_bandwidth(storage: Storage) -> float:
    """Return the bytes/s that *storage* delivers at most, by volume and node."""
    return min(bandwidth(storage.volume), storage.bandwidth or math.inf)


def read_rate(storage: Storage, dataset: Dataset, burst: bool) -> float:
    """Return the bytes/s at which *storage* delivers samples of *dataset*; *burst* tells whether credits are left."""
    return min(most_bandwidth(storage), most_iops(storage, burst) * dataset.sample / ios_per_sample(storage.volume, dataset))


def epochs_until_empty(before: float, after: float) -> int | None:
    """Return how many epochs pass, after one that took a bucket from *before* to *after* credits, until one like it empties it.

    0 where that one did itself; None where none ever will: ``after / (before - after)``, rounded up.
    """
    if before <= 0 or after >= before:
        return None
    return math.ceil(after / (before - after))


class Credits:
    """The bucket of I/O credits of one volume, full at the start: every I/O takes one, and they return at the baseline rate.

    A volume that cannot burst has an empty bucket for ever.
    """

    def __init__(self, volume: Volume) -> None:
        self.baseline = baseline_iops(volume)
        bursts = burst_iops(volume) > self.baseline
        self.capacity = volume.count * volume.burst_credits if bursts else 0.0
        self.level = self.capacity
        """I/O operations left above the baseline."""

    def emptied(self) -> Credits:
        """Return the same bucket with nothing in it."""
        empty = copy(self)
        empty.level = 0.0
        return empty

    @property
    def left(self) -> bool:
        """Whether the volume may burst now."""
        return self.level > 0

    def advance(self, duration: float, iops: float) -> None:
        """Let *duration* seconds pass at *iops* I/Os per second; the level stays within empty and full.

        End the interval at `time_to_empty` where *iops* is above the baseline: an empty bucket no longer allows that rate.
        """
        if duration < 0 or iops < 0:
            raise ValueError(f"{duration:g} s at {iops:g} IOPS: neither may be negative")
        level = self.level + (self.baseline - iops) * duration
        rounding = _ROUNDING * self.capacity
        if level <= rounding:
            level = 0.0
        elif level >= self.capacity - rounding:
            level = self.capacity
        self.level = level

    def time_to_empty(self, iops: float) -> float:
        """Return the seconds until the bucket is empty at *iops*, infinite at or below the baseline."""
        return self.level / (iops - self.baseline) if iops > self.baseline else math.inf
