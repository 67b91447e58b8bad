"""How far is the slowest rank of a stage behind the others? By the spread times their compute, minus the time they waited for it.

The slowest rank never waits for others in an operation. Thread blocks that wait for it on the GPUs of the others slow their compute, but
not its own, so it catches up by that amount. It gains nothing if the others make up for the loss while they wait for something else.
"""

from __future__ import annotations

from typing import NamedTuple

import simpy


class Lateness(NamedTuple):
    """What decides how far the slowest rank of a stage is behind the others, while these do not compute."""

    behind: float
    """How far it would be behind (s) if its compute were slowed like that of the others."""
    sooner: float
    """The part of the compute (s) that the others lost to blocks waiting for it, for which they have not made up yet."""


class SlowestRank:
    """The slowest rank of one stage; the other ranks are the simulated ones."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._behind = 0.0
        """How far it would be behind (s) if its compute were slowed like that of the others."""
        self._spared = 0.0
        """Share of the others' compute time that is lost to blocks waiting for the slowest rank."""
        self._sooner = 0.0
        """The part of this loss (s) for which the others have not made up yet."""
        self._computing = False
        self._since = 0.0
        """Time (s) since which the others have been computing, or idle."""

    def add_lag(self, seconds: float) -> None:
        """Register that it needed *seconds* more than the others for the same compute."""
        self._behind += seconds

    def spare(self, share: float) -> None:
        """Register that from now on the others lose this *share* of their compute time to blocks that wait for the slowest rank."""
        self.set_computing(self._computing)
        self._spared = share

    def set_computing(self, computing: bool) -> None:
        """Register that from now on the others are *computing*, or idle."""
        now = self.env.now
        self._sooner = self._sooner + self._spared * (now - self._since) if self._computing else self._not_made_up()
        self._computing, self._since = computing, now

    def mark_busy(self) -> None:
        """Register that the others were not idle until now, although their GPUs did not compute: they exchanged messages inside units."""
        self._since = self.env.now

    def resume(self, since: float) -> None:
        """Register that the others could not continue before *since* (s), even if they had arrived earlier, and so made up for losses."""
        self._sooner, self._since = min(self._not_made_up(), max(0.0, self.env.now - since)), self.env.now

    def lateness(self) -> Lateness:
        """Return what decides its lag from now on, while the others do not compute."""
        return Lateness(self._behind, self._not_made_up())

    def set_lateness(self, lateness: Lateness) -> None:
        """Set what decides its lag from now on, while the others do not compute."""
        (self._behind, self._sooner), self._since = lateness, self.env.now

    def lag(self) -> float:
        """Return how far (s) it is behind now, while the others do not compute."""
        return max(0.0, self._behind - self._not_made_up())

    def set_lag(self, late: float) -> None:
        """Register that the others have waited for it, and that it is still *late* seconds behind."""
        self._behind, self._sooner, self._since = late, 0.0, self.env.now

    def _not_made_up(self) -> float:
        return max(0.0, self._sooner - (self.env.now - self._since))
