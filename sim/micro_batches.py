"""Which micro-batches of a data-parallel step are left out of the simulation? Whole periods, once the state recurs between two of them.

Between the first and the last micro-batch of a step, all are equal: they exchange nothing until the last one, or each of them the same.
When the state at the begin of a micro-batch recurs (`sim.analysis.steady_state`), what follows recurs too, and every rank leaves out the
same number of micro-batches at its next one. A window that represents no steps stands for them. A pace that is drawn lasts a whole step,
so drawn steps settle one by one. Limits: the log does not cover the micro-batches that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sim.analysis.stalls import Window
from sim.analysis.steady_state import PeriodDetector, State
from sim.training.step import Replica

LEAST: Final = 8
"""Micro-batches of a step from which leaving some out is worth the search for a period; it takes three to see one."""


class _Totals(NamedTuple):
    """What only grows during a step, on one rank."""

    worked: float
    """Compute (s) since the ranks last met."""
    read: float
    """Bytes read by its loader."""


class MicroBatches:
    """The micro-batches of the *ranks* of one job. *state* returns the simulation's state relative to a time scale (s)."""

    def __init__(self, ranks: Sequence[Replica], state: Callable[[float], State]) -> None:
        self.ranks = ranks
        self.left_out: dict[int, Window] = {}
        """For each step some of whose micro-batches are left out, the window that they repeat."""
        self._state = state
        self._step = -1
        self._detector = PeriodDetector()
        self._last = 0.0
        """Time (s) at which the first rank began its last micro-batch."""
        self._progress: dict[int, list[_Totals]] = {}
        """Progress of each rank when the first began each micro-batch of this step."""
        self._due: dict[int, int] = {}
        """Micro-batches that each rank has yet to leave out."""
        for rank in ranks:
            rank.leave_out = self.begin

    def begin(self, rank: Replica, number: int) -> int:
        """Register that *rank* is about to begin its micro-batch *number* of a step; return how many it leaves out first."""
        if rank is self.ranks[0]:
            self._observe(rank.env.now, number)
        return self._due.pop(rank.index, 0)

    def _observe(self, now: float, number: int) -> None:
        """Look for a period that ends now, and leave out as many as possible of those that would follow in this step."""
        if number == 0:
            self._step += 1
            self._detector.forget()
            self._progress.clear()
        elif number >= 2 and self._step not in self.left_out:  # the first micro-batch may differ
            self._progress[number] = [_Totals(rank.worked, rank.input.site.bytes_read) for rank in self.ranks]
            period = self._detector.observe(number, now, self._state(max(now - self._last, 1e-9)))
            if period is not None:
                self._leave_out(period.start, now, period.first, number)
        self._last = now

    def _leave_out(self, start: float, now: float, first: int, number: int) -> None:
        each = number - first
        following = max([number, *(rank.micro_batch + 1 for rank in self.ranks[1:])])  # of the rank that is furthest
        repeats = (self.ranks[0].micro_batches - 1 - following) // each  # without the last one, which may differ
        if repeats < 1:
            return
        self.left_out[self._step] = Window(start, now, 0, repeats)
        for rank, then, here in zip(self.ranks, self._progress[first], self._progress[number], strict=True):
            rank.worked += repeats * (here.worked - then.worked)
            rank.input.site.bytes_read += repeats * (here.read - then.read)
            self._due[rank.index] = repeats * each
