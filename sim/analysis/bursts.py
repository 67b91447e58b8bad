"""How often is a job interrupted if its machines are revoked in bursts? The rate of revocations that follow no other within a recovery.

Machines that are rented together reach the provider's limit on their age together, and so do many of those that replace them. Revocations
during the recovery from another one lose no further work, and lengthen the recovery little. Closed forms, which assume random times between
failures, therefore take a burst as one interruption. The lives of all machines are drawn, without the job.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.analysis.transient import Lives

_DRAWN = 400_000
"""Revocations that are drawn: with so many, the rate of bursts is known to about 1%."""
_MOST_LIVES = 100
"""Mean lifetimes of a machine that are drawn, of a longer job the first ones: by then, ages are well mixed."""


class Bursts(NamedTuple):
    """Rates (1/s) of bursts of revocations."""

    rate: float
    """Of all bursts."""
    without_copies: float
    """Of bursts in which a machine is revoked while one of its neighbors in a ring is away, so that copies in their memory are lost."""


def burst_rates(lives: Lives, nodes: int, time: float, away: float, recovery: float, share: float = 1.0) -> Bursts:
    """Return the rates of bursts of revocations of *nodes* machines in *time* (s), each at least *recovery* (s) after any other.

    The next machine begins its life *away* (s) after a revocation. Only a *share* of revocations strike.
    """
    time = min(time, _MOST_LIVES * lives.mean)
    courses = max(1, math.ceil(_DRAWN / (nodes * (1 + time / lives.mean))))
    random, chance = np.random.default_rng(0), np.random.default_rng(1)
    due, drawn = lives.draws(courses * nodes, random).reshape(courses, nodes), []
    while (due <= time).any():
        strikes = (due <= time) & (chance.random(due.shape) < share)
        drawn.append(np.where(strikes, due, np.inf))
        due = due + away + lives.draws(due.size, random).reshape(due.shape)
    if not drawn:
        return Bursts(0.0, 0.0)
    revoked = np.stack(drawn)
    lost = np.zeros(revoked.shape, dtype=np.bool_)
    for each in drawn if nodes > 1 else ():
        for neighbor in (np.roll(each, 1, axis=1), np.roll(each, -1, axis=1)):
            lost |= (neighbor <= revoked) & (revoked < neighbor + away)
    rates = (_separate(np.where(which, revoked, np.inf), recovery) / courses / time for which in (np.isfinite(revoked), lost))
    return Bursts(*rates)


def _separate(moments: NDArray[np.float64], recovery: float) -> int:
    """Return how many of the finite *moments* (by round, course and machine) come more than *recovery* after any other of their course."""
    ordered = np.sort(np.moveaxis(moments, 0, 1).reshape(moments.shape[1], -1), axis=1)
    finite = np.isfinite(ordered)
    ordered[~finite] = 0.0
    return int((finite & (np.diff(ordered, axis=1, prepend=-math.inf) > recovery)).sum())
