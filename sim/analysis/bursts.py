"""How often is a job interrupted if its machines are revoked in bursts? The rate of revocations that follow no other within a recovery.

Machines that are rented together reach the provider's limit on their age together, and so do many of those that replace them. Revocations
during the recovery from another one lose no further work, and lengthen the recovery little. Closed forms, which assume random times between
failures, therefore take a burst as one interruption. The lives of all machines are drawn, without the job.
"""

from __future__ import annotations

import math

import numpy as np

from sim.analysis.transient import Lives

_DRAWN = 400_000
"""Revocations that are drawn: with so many, the rate of bursts is known to about 1%."""


def burst_rate(lives: Lives, nodes: int, time: float, away: float, recovery: float, share: float = 1.0) -> float:
    """Return the rate (1/s) of bursts of revocations of *nodes* machines in *time* (s), each at least *recovery* (s) after any other.

    The next machine begins its life *away* (s) after a revocation. Only a *share* of revocations strike.
    """
    courses = max(1, math.ceil(_DRAWN / (nodes * (1 + time / lives.mean))))
    random, chance = np.random.default_rng(0), np.random.default_rng(1)
    due, revoked = lives.draws(courses * nodes, random).reshape(courses, nodes), [np.full((courses, 1), np.inf)]
    while (due <= time).any():
        strikes = (due <= time) & (chance.random(due.shape) < share)
        revoked.append(np.where(strikes, due, np.inf))
        due = due + away + lives.draws(due.size, random).reshape(due.shape)
    moments = np.sort(np.concatenate(revoked, axis=1), axis=1)
    strikes = np.isfinite(moments)
    moments[~strikes] = 0.0
    return float((strikes & (np.diff(moments, axis=1, prepend=-math.inf) > recovery)).sum()) / courses / time
