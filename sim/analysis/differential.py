"""What do Stash and DS-Analyzer make of the times of their runs? Their formulas, pure.

RUN0 trains on synthetic data on one GPU, RUN1 on all, RUN2 on real data with a cold page cache, RUN3 with a warm one; every GPU
does the same number of steps. With T0..T3 the times of one epoch's steps (`analyze.py` of aakash-sharma/DS-Analyzer, the code
behind Stash, arXiv 2208.14344)::

    interconnect = T1 - T0            % of T1            network = T1(two nodes) - T1(one node, as many GPUs)   % of T1(one node)
    prep (CPU)   = T3 - T1            % of T3            fetch (disk) = T2 - T3                                 % of T2

Upstream runs RUN0 and RUN1 for the k-th part of an epoch (k = 2) and divides the prep stall by the unscaled T3, and computes
fetch as ``T2 - prep``, which counts the whole ingestion time as a disk stall; `literal` does the same. DS-Analyzer (arXiv
2007.06775) defines fetch as above. Negative differences are reported as zero, as upstream does.
"""

from __future__ import annotations

from typing import NamedTuple

SYNTHETIC_DIVISOR = 2.0
"""Part of an epoch's steps that upstream's synthetic runs do (harness.py, ``synthetic_div_factor``)."""


NO_READING = 1e-3
"""Share of the cold epoch below which it does not differ from a warm one: the first batch, which nothing hides, takes that long."""


class RunTimes(NamedTuple):
    """Seconds that the steps of one epoch take in RUN0, RUN1, RUN2 and RUN3, and in RUN1 of the two-node twin, if there is one."""

    one_gpu: float
    synthetic: float
    cold: float
    warm: float
    twin: float | None = None


class Stall(NamedTuple):
    """*time* (s per epoch), and the same as a share (1 = 100%) of the run it is measured against."""

    time: float
    share: float


def interconnect(times: RunTimes) -> Stall:
    """Return what exchanging gradients inside the machine adds: never above 100%."""
    return stall(times.synthetic - times.one_gpu, times.synthetic)


def prep(times: RunTimes, literal: bool = False) -> Stall:
    """Return what decoding and augmentation add once the page cache is warm; *literal* gives upstream's per-cent basis."""
    lost = times.warm - times.synthetic
    if literal:
        return stall(lost / SYNTHETIC_DIVISOR, times.warm)
    return stall(lost, times.warm)


def fetch(times: RunTimes, literal: bool = False) -> Stall:
    """Return what reading from disk adds in the cold epoch; *literal* gives upstream's formula, ingestion time and all."""
    if literal:
        return stall(times.cold / SYNTHETIC_DIVISOR - (times.warm - times.synthetic) / SYNTHETIC_DIVISOR, times.cold)
    return stall(times.cold - times.warm, times.cold)


def network(times: RunTimes) -> Stall | None:
    """Return what two nodes lose against one with as many GPUs, without bound (a slowdown of 5 is 400%); None without a twin."""
    return None if times.twin is None else stall(times.twin - times.synthetic, times.synthetic)


def stall(lost: float, total: float) -> Stall:
    """Return *lost* seconds as a stall of a run that takes *total*; below zero there is none."""
    kept = max(0.0, lost)
    return Stall(kept, kept / total)


class Rates(NamedTuple):
    """DS-Analyzer's samples per second of the whole machine, by the times of its runs.

    RUN2's rate is none of them: ``1 / (1 / prep + 1 / fetch)``, which is below both.
    """

    ingestion: float
    """samples / RUN1, with data in GPU memory: what the GPUs could take."""
    prep: float
    """samples / RUN3, with data in the page cache; near `ingestion` where no preparation is waited for."""
    fetch: float | None
    """samples / (RUN2 - RUN3): what reading adds to an epoch, not what the disk gives; None where it adds nothing."""


def rates(times: RunTimes, samples: float) -> Rates:
    """Return the rates of an epoch of *samples* samples."""
    reading = times.cold - times.warm
    return Rates(samples / times.synthetic, samples / times.warm, samples / reading if reading > NO_READING * times.cold else None)
