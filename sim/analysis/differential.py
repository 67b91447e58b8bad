"""Which stalls do Stash and DS-Analyzer derive from the times of their runs? This module has their formulas as pure functions.

RUN0 trains on synthetic data on one GPU, RUN1 on all GPUs, RUN2 on real data with a cold page cache, RUN3 with a warm one. Every GPU
does the same number of steps. T0..T3 are the times of the steps of one epoch (`analyze.py` of aakash-sharma/DS-Analyzer, the code
behind Stash, arXiv 2208.14344)::

    interconnect = T1 - T0            % of T1            network = T1(two nodes) - T1(one node, as many GPUs)   % of T1(one node)
    prep (CPU)   = T3 - T1            % of T3            fetch (disk) = T2 - T3                                 % of T2

Upstream runs RUN0 and RUN1 for 1/k of an epoch (k = 2) and divides the prep stall by the unscaled T3. It computes fetch as
``T2 - prep``, which counts the whole ingestion time as a disk stall. With `literal`, the functions do the same. DS-Analyzer (arXiv
2007.06775) defines fetch as above. Negative differences are reported as zero, as upstream does.
"""

from __future__ import annotations

from typing import NamedTuple

SYNTHETIC_DIVISOR = 2.0
"""Upstream's synthetic runs do the steps of an epoch divided by this number (harness.py, ``synthetic_div_factor``)."""


NO_READING = 1e-3
"""A cold epoch that is longer than a warm one by less than this share counts as equal: the first batch, never hidden, takes that long."""


class RunTimes(NamedTuple):
    """Times (s) of the steps of one epoch in RUN0, RUN1, RUN2 and RUN3, and in RUN1 of the two-node twin, if there is one."""

    one_gpu: float
    synthetic: float
    cold: float
    warm: float
    twin: float | None = None


class Stall(NamedTuple):
    """A stall: *time* (s per epoch), and *share* (1 = 100%) of the time of the run that it is measured against."""

    time: float
    share: float


def interconnect_stall(times: RunTimes) -> Stall:
    """Return the stall that the exchange of gradients inside the machine adds; never above 100%."""
    return stall_of(times.synthetic - times.one_gpu, times.synthetic)


def prep_stall(times: RunTimes, literal: bool = False) -> Stall:
    """Return the stall that decoding and augmentation add with a warm page cache; *literal* uses upstream's basis for the share."""
    lost = times.warm - times.synthetic
    if literal:
        return stall_of(lost / SYNTHETIC_DIVISOR, times.warm)
    return stall_of(lost, times.warm)


def fetch_stall(times: RunTimes, literal: bool = False) -> Stall:
    """Return the stall that reading from disk adds in the cold epoch; *literal* uses upstream's formula, which includes ingestion time."""
    if literal:
        return stall_of(times.cold / SYNTHETIC_DIVISOR - (times.warm - times.synthetic) / SYNTHETIC_DIVISOR, times.cold)
    return stall_of(times.cold - times.warm, times.cold)


def network_stall(times: RunTimes) -> Stall | None:
    """Return the stall of two nodes compared with one node of as many GPUs, unbounded (a slowdown of 5 is 400%); None without a twin."""
    return None if times.twin is None else stall_of(times.twin - times.synthetic, times.synthetic)


def stall_of(lost: float, total: float) -> Stall:
    """Return *lost* seconds as a stall of a run of *total* seconds; negative values count as zero."""
    kept = max(0.0, lost)
    return Stall(kept, kept / total)


class Rates(NamedTuple):
    """DS-Analyzer's rates (samples/s of the whole machine), from the times of its runs.

    The rate of RUN2 is not included. It is ``1 / (1 / prep + 1 / fetch)``, below both.
    """

    ingestion: float
    """samples / RUN1, with data in GPU memory: the rate at which the GPUs can consume samples."""
    prep: float
    """samples / RUN3, with data in the page cache; close to `ingestion` if the GPUs do not wait for preparation."""
    fetch: float | None
    """samples / (RUN2 - RUN3): from the time that reading adds to an epoch, not the rate of the disk; None if it adds nothing."""


def rates(times: RunTimes, samples: float) -> Rates:
    """Return the rates of an epoch of *samples* samples."""
    reading = times.cold - times.warm
    return Rates(samples / times.synthetic, samples / times.warm, samples / reading if reading > NO_READING * times.cold else None)
