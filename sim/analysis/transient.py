"""How long does a transient machine live, and what does losing it cost? Kaplan-Meier lifetimes, checkpoints, Young's interval.

Survival is ``S(t) = product over revocations at t_i <= t of (1 - d_i / r_i)`` with r_i machines observed just before t_i (Kaplan and
Meier, JASA 53, 1958). Machines that reach the provider's cap are revoked then. Writing a checkpoint takes 3.75 s plus 0.0200 s per MB
(fitted to cake-lab/CM-DARE, 6 to 204 MB to cloud storage). If failures are random with a mean time M between failures of any machine,
work of ``sqrt(2 C M)`` between checkpoints loses least (Young, CACM 17, 1974), and the whole job takes
``M exp(R/M) (exp((t + C)/M) - 1) W/t`` (Daly, FGCS 22, 2006). Tests compare with these closed forms.

Limits: lifetimes are independent of each other and of the time of day; the only data are from Google Compute Engine in 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.spec.hardware import Gpu
from sim.spec.library import catalog, load_part
from sim.spec.lifetimes import Lifetimes

CHECKPOINT_START = 3.75
"""Time (s) of a checkpoint independent of its size: least squares over 16 models of cake-lab/CM-DARE (R2 0.92)."""
CHECKPOINT_PER_BYTE = 0.0200e-6
"""Time (s) per byte of a checkpoint: the same fit."""
STORAGE_RATE = 57.19e6
"""Bytes/s between a worker and cloud storage: cake-lab/CM-DARE measured 57.19 +- 3.44 MB/s."""


@dataclass(frozen=True)
class Survival:
    """The share of machines alive as a step function: *alive_shares* from each of *times* (s) on. All machines are revoked at *cap* (s)."""

    times: tuple[float, ...]
    alive_shares: tuple[float, ...]
    cap: float = math.inf

    def at(self, age: float) -> float:
        """Return the share that is still alive at *age* (s)."""
        if age >= self.cap:
            return 0.0
        before = int(np.searchsorted(self.times, age, side="right"))
        return self.alive_shares[before - 1] if before else 1.0

    def draw(self, random: np.random.Generator) -> float:
        """Return a lifetime (s): one of the measured ones, or the cap."""
        place = int(np.searchsorted(-np.asarray(self.alive_shares), -random.random(), side="left"))
        return self.times[place] if place < len(self.times) else self.cap

    def draws(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* lifetimes (s)."""
        places = np.searchsorted(-np.asarray(self.alive_shares), -random.random(count), side="left")
        return np.asarray([*self.times, self.cap])[places]

    @property
    def mean(self) -> float:
        """Return the mean lifetime (s), the area below the curve."""
        edges = (0.0, *self.times, self.cap)
        return sum((after - before) * share for before, after, share in zip(edges[:-1], edges[1:], (1.0, *self.alive_shares), strict=True))


@dataclass(frozen=True)
class ExponentialLives:
    """Lifetimes of machines that are revoked at random, independently of their age; *mean* is in seconds."""

    mean: float

    def draw(self, random: np.random.Generator) -> float:
        """Return a lifetime (s)."""
        return float(random.exponential(self.mean))

    def draws(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* lifetimes (s)."""
        return random.exponential(self.mean, count)


@dataclass(frozen=True)
class CrowdLives(ExponentialLives):
    """Times between revocations of one machine of many, at random; *mean* (s) is that of all together (Palm-Khinchin theorem)."""


Lives = Survival | ExponentialLives


def kaplan_meier(revoked: Sequence[float], watched: Sequence[float], cap: float = math.inf) -> Survival:
    """Return the survival of machines: some were *revoked* at these ages (s), others *watched* alive up to these ages (s).

    Raise ValueError if both are empty.
    """
    machines = len(revoked) + len(watched)
    if not machines:
        raise ValueError("no machine was observed, so there are no lifetimes")
    share, times, alive = 1.0, [], []
    for time in sorted(set(revoked)):
        at_risk = sum(life >= time for life in revoked) + sum(life >= time for life in watched)
        share *= 1.0 - sum(life == time for life in revoked) / at_risk
        times.append(time)
        alive.append(share)
    return Survival(tuple(times), tuple(alive), cap)


def survival(lifetimes: Lifetimes) -> Survival:
    """Return the survival of the machines in *lifetimes*."""
    return kaplan_meier(lifetimes.revoked, [lifetimes.cap] * lifetimes.survived, lifetimes.cap)


def lifetimes_of(gpu: Gpu) -> Lifetimes | None:
    """Return the lifetimes in the catalog of machines with *gpu*, or None."""
    parts = (load_part(Lifetimes, name) for name in catalog("hardware/parts/lifetimes"))
    return next((part for part in parts if gpu.name in part.gpus), None)


def cloud_checkpoint_time(nbytes: float) -> float:
    """Return the time (s) to write a checkpoint of *nbytes* to cloud storage."""
    return CHECKPOINT_START + CHECKPOINT_PER_BYTE * nbytes


def restore_time(nbytes: float) -> float:
    """Return the time (s) to read a checkpoint of *nbytes* back."""
    return nbytes / STORAGE_RATE


def young_interval(checkpoint: float, mean_between: float) -> float:
    """Return the work (s) between checkpoints that minimizes the loss if failures are *mean_between* (s) apart on average."""
    return math.sqrt(2.0 * checkpoint * mean_between)
