"""How fast does a volume deliver samples? At the lowest of the rates that IOPS, bandwidth and the limits of the node allow.

``rate = min(bandwidth, node bandwidth, min(IOPS, node IOPS) * sample / I/Os per sample)``. A sample in a file of its own takes
``ceil(sample / io_size)`` I/Os; packed records are read in full I/Os. Volumes whose IOPS depend on size (Amazon EBS gp2) have
``clamp(IOPS per GiB * size, least, most)`` IOPS. They exceed that up to ``burst_iops`` while a bucket of I/O credits lasts, which
refills at the baseline rate. Without credits, throughput is baseline IOPS x 256 KiB (EBS user guide, "General Purpose SSD").

Limits: enough reads are outstanding to fill the volume, so latency does not lower the rate; adjacent files are not merged into
one I/O and metadata reads take no time; no first-touch penalty for volumes restored from snapshots; throughput credits (st1) are
described as credits for I/Os of the largest size.
"""

from __future__ import annotations

import math
from copy import copy

from sim.spec.hardware import Storage, Volume
from sim.spec.input import Dataset

_GIB = 2.0**30
_ROUNDING = 1e-9
"""A level within this share of empty or full counts as empty or full, because draining leaves rounding errors."""


def baseline_iops(volume: Volume) -> float:
    """Return the I/Os per second that *volume*, all its stripes together, sustains indefinitely."""
    of_each = max(volume.baseline_iops, volume.iops_per_gib * volume.size / _GIB)
    return volume.count * min(of_each, volume.max_iops)


def burst_iops(volume: Volume) -> float:
    """Return the I/Os per second of *volume* while its credits last: never below the baseline."""
    if volume.burst_iops is None:
        return baseline_iops(volume)
    return max(baseline_iops(volume), volume.count * volume.burst_iops)


def bandwidth(volume: Volume) -> float:
    """Return the maximum bytes/s of *volume*, all its stripes together."""
    of_each = volume.bandwidth
    if volume.small is not None and volume.size <= volume.small.size:
        of_each = min(of_each, volume.small.bandwidth)
    return volume.count * of_each


def ios_per_sample(volume: Volume, dataset: Dataset) -> float:
    """Return the number of I/Os to read one sample of *dataset*. Raise ValueError for samples without bytes."""
    if dataset.sample <= 0:
        raise ValueError(f"a sample of {dataset.sample:g} bytes cannot be read: its size must be positive")
    ios = dataset.sample / volume.io_size
    return ios if dataset.files == "packed" else float(math.ceil(ios))


def most_iops(storage: Storage, burst: bool) -> float:
    """Return the maximum I/Os per second of *storage*, given volume and node; *burst* tells whether credits are left."""
    return min(burst_iops(storage.volume) if burst else baseline_iops(storage.volume), storage.iops or math.inf)


def most_bandwidth(storage: Storage) -> float:
    """Return the maximum bytes/s of *storage*, given volume and node."""
    return min(bandwidth(storage.volume), storage.bandwidth or math.inf)


def read_rate(storage: Storage, dataset: Dataset, burst: bool) -> float:
    """Return the bytes/s at which *storage* delivers samples of *dataset*; *burst* tells whether credits are left."""
    return min(most_bandwidth(storage), most_iops(storage, burst) * dataset.sample / ios_per_sample(storage.volume, dataset))


def epochs_until_empty(before: float, after: float) -> int | None:
    """Return the number of epochs until the credits run out, if each uses *before* - *after*.

    This is ``after / (before - after)``, rounded up: 0 if *after* is 0. None if the credits never run out.
    """
    if before <= 0 or after >= before:
        return None
    return math.ceil(after / (before - after))


class Credits:
    """The bucket of I/O credits of one volume, initially full: every I/O takes one, and they refill at the baseline rate.

    The bucket of a volume that cannot burst is always empty.
    """

    def __init__(self, volume: Volume) -> None:
        self.baseline = baseline_iops(volume)
        bursts = burst_iops(volume) > self.baseline
        self.capacity = volume.count * volume.burst_credits if bursts else 0.0
        self.level = self.capacity
        """I/O operations left above the baseline."""

    def empty_copy(self) -> Credits:
        """Return an empty copy of the bucket."""
        empty = copy(self)
        empty.level = 0.0
        return empty

    @property
    def can_burst(self) -> bool:
        """Whether the volume may burst now."""
        return self.level > 0

    def advance(self, duration: float, iops: float) -> None:
        """Advance by *duration* seconds at *iops* I/Os per second; the level stays between empty and full.

        If *iops* is above the baseline, end the interval when the bucket is empty: it no longer allows that rate.
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
