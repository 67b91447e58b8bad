"""How long does a transient machine live, and what does losing it cost? Kaplan-Meier lifetimes, checkpoints, Young's interval.

Survival is ``S(t) = product over revocations at t_i <= t of (1 - d_i / r_i)``, r_i machines being watched just before t_i (Kaplan and
Meier, JASA 53, 1958); machines that outlive the provider's cap are taken back then. Writing a checkpoint takes 3.75 s and 0.0200 s for
each MB (fitted to cake-lab/CM-DARE, 6 to 204 MB to cloud storage). Where machines fail at random with mean time M between failures of any,
work of ``sqrt(2 C M)`` between checkpoints loses least (Young, CACM 17, 1974), and the whole job takes
``M exp(R/M) (exp((t + C)/M) - 1) W/t`` (Daly, FGCS 22, 2006): the closed forms that tests compare with.

Limits: lifetimes are independent of each other and of the hour; those of 2019 on Google Compute Engine are the only ones at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.spec.hardware import Gpu
from sim.spec.library import catalogue, load_part
from sim.spec.lifetimes import Lifetimes

CHECKPOINT_START = 3.75
"""Seconds of a checkpoint whatever its size: least squares over 16 models of cake-lab/CM-DARE (R2 0.92)."""
CHECKPOINT_PER_BYTE = 0.0200e-6
"""Seconds for each byte of a checkpoint: the same fit."""
STORAGE_RATE = 57.19e6
"""Bytes/s between a worker and cloud storage: cake-lab/CM-DARE measured 57.19 +- 3.44 MB/s."""


@dataclass(frozen=True)
class Survival:
    """Share of machines alive, as steps: *alive* from each of *times* (s) on. At *cap* (s) all are taken back."""

    times: tuple[float, ...]
    alive: tuple[float, ...]
    cap: float = math.inf

    def at(self, age: float) -> float:
        """Return the share that is still alive at *age* (s)."""
        if age >= self.cap:
            return 0.0
        before = int(np.searchsorted(self.times, age, side="right"))
        return self.alive[before - 1] if before else 1.0

    def draw(self, random: np.random.Generator) -> float:
        """Return a lifetime (s): one of the measured ones, or the cap."""
        place = int(np.searchsorted(-np.asarray(self.alive), -random.random(), side="left"))
        return self.times[place] if place < len(self.times) else self.cap

    def draws(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* lifetimes (s)."""
        places = np.searchsorted(-np.asarray(self.alive), -random.random(count), side="left")
        return np.asarray([*self.times, self.cap])[places]

    @property
    def mean(self) -> float:
        """Return the mean lifetime (s), the area below the curve."""
        edges = (0.0, *self.times, self.cap)
        return sum((after - before) * share for before, after, share in zip(edges[:-1], edges[1:], (1.0, *self.alive), strict=True))


@dataclass(frozen=True)
class ExponentialLives:
    """Machines that are revoked at random, independent of their age; *mean* in seconds."""

    mean: float

    def draw(self, random: np.random.Generator) -> float:
        """Return a lifetime (s)."""
        return float(random.exponential(self.mean))

    def draws(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* lifetimes (s)."""
        return random.exponential(self.mean, count)


Lives = Survival | ExponentialLives


def kaplan_meier(revoked: Sequence[float], watched: Sequence[float], cap: float = math.inf) -> Survival:
    """Return the survival of machines of which some were *revoked* (s) and others *watched* (s) until then, alive. Empty is an error."""
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
    """Return what the catalogue knows of machines with *gpu*, or None."""
    parts = (load_part(Lifetimes, name, "hardware/parts/lifetimes") for name in catalogue("hardware/parts/lifetimes"))
    return next((part for part in parts if gpu.name in part.gpus), None)


def checkpoint_time(nbytes: float) -> float:
    """Return the seconds that writing a checkpoint of *nbytes* to cloud storage takes."""
    return CHECKPOINT_START + CHECKPOINT_PER_BYTE * nbytes


def restore_time(nbytes: float) -> float:
    """Return the seconds that reading a checkpoint of *nbytes* back takes."""
    return nbytes / STORAGE_RATE


def young_interval(checkpoint: float, mean_between: float) -> float:
    """Return the work (s) between checkpoints that loses least where failures are *mean_between* (s) apart on average."""
    return math.sqrt(2.0 * checkpoint * mean_between)


def daly_time(work: float, interval: float, checkpoint: float, restart: float, mean_between: float) -> float:
    """Return the mean seconds of *work* (s) in pieces of *interval* (s), each checkpointed; failures may hit restarts as well."""
    return mean_between * math.exp(restart / mean_between) * math.expm1((interval + checkpoint) / mean_between) * work / interval
