"""How far is the slowest rank of a stage behind the others? By its spread of their compute, less what they waited for it.

The slowest rank meets nobody late: what blocks that wait for it on the GPUs of the others take from their compute, it is spared. That
gains it nothing where the others make up for it while they wait for something else.
"""

from __future__ import annotations

import simpy


class SlowestRank:
    """The slowest rank of one stage, whose others are simulated."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._behind = 0.0
        """Seconds, were its compute slowed as that of the others is."""
        self._spared = 0.0
        """Of each second of the others' compute, what blocks that wait for it take from them."""
        self._sooner = 0.0
        """Seconds of that which the others have not made up for."""
        self._computing = False
        self._since = 0.0
        """Since when the others compute, or rest."""

    def falls_behind(self, seconds: float) -> None:
        """Note that it needed so many *seconds* more than the others for what these computed."""
        self._behind += seconds

    def is_spared(self, share: float) -> None:
        """Note that from now on the others lose this *share* of their compute to what waits for it."""
        self.turn(self._computing)
        self._spared = share

    def turn(self, computing: bool) -> None:
        """Note that the others are *computing* from now on, or not."""
        now = self.env.now
        self._sooner = self._sooner + self._spared * (now - self._since) if self._computing else self._not_made_up()
        self._computing, self._since = computing, now

    def works_on(self) -> None:
        """Note that the others did not rest until now, though nothing of theirs was on a GPU: they exchanged inside of their work."""
        self._since = self.env.now

    def go_on(self, since: float) -> None:
        """Note that the others could not go on before *since* (s), however early they had come: that much they have made up for."""
        self._sooner, self._since = min(self._not_made_up(), max(0.0, self.env.now - since)), self.env.now

    def late(self) -> float:
        """Return by how many seconds it is behind now, while the others do not compute."""
        return max(0.0, self._behind - self._not_made_up())

    def met(self, late: float) -> None:
        """Note that the others have waited for it, which is still *late* seconds behind."""
        self._behind, self._sooner, self._since = late, 0.0, self.env.now

    def _not_made_up(self) -> float:
        return max(0.0, self._sooner - (self.env.now - self._since))
