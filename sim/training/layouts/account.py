"""What do the ranks of one stage wait for in each step? Every wait with its cause, and the exposed time of each kind of group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sim.events import LAYOUT_STALLS, Cause, EventLog
from sim.events import WaitSpan as Waited
from sim.training.communicator import LimitPiece
from sim.training.layouts.scene import GROUPS, StageStep


class Account:
    """The waits of the rank with the index *index* in the log."""

    def __init__(self, log: EventLog, index: int) -> None:
        self.log = log
        self.index = index
        self.ends: list[float] = [0.0]
        self.exposed: list[dict[str, float]] = []

    @property
    def step(self) -> int:
        """Return the number of the current step."""
        return len(self.exposed) - 1

    def begin_step(self) -> None:
        """Mark the beginning of a step."""
        self.exposed.append(dict.fromkeys(GROUPS, 0.0))

    def end_step(self) -> None:
        """Mark the end of the step."""
        self.ends.append(self.log.clock())

    def add_wait(self, cause: Cause, resource: str, start: float, end: float) -> None:
        """Record a wait, unless it took no time."""
        if end > start:
            self.log.waits.append(Waited(self.index, cause, resource, -1, start, end))

    def add_waits(self, pieces: Iterable[LimitPiece]) -> None:
        """Record sequential waits."""
        for piece in pieces:
            self.add_wait(*piece)

    def add_exchange(self, pieces: Iterable[LimitPiece], group: str) -> None:
        """Record the sequential waits for an operation of a kind of *group*.

        Only messages are exposed in it, and other stages that are still at work in the pipeline: not slower ranks, and not launches.
        """
        for piece in pieces:
            self.add_wait(*piece)
            if piece.cause not in (Cause.STRAGGLER, Cause.LAUNCH):
                self.add_exposed("pipeline" if piece.cause is Cause.PIPELINE else group, max(0.0, piece.t1 - piece.t0))

    def add_exposed(self, group: str, seconds: float) -> None:
        """Add *seconds* to the compute time lost to messages of a kind of *group*."""
        self.exposed[-1][group] += seconds

    def last_step(self, clock: Sequence[float], count: int = 1) -> StageStep:
        """Return the mean of the last *count* steps by cause and resource; *clock* has the end of each instruction of the last step."""
        first, begin, end = self.ends[-1 - count], *self.ends[-2:]
        resources: dict[tuple[Cause, str], float] = defaultdict(float)
        for wait in self.log.waits:
            if wait.rank == self.index and wait.t0 >= first:
                resources[wait.cause, wait.resource] += (wait.t1 - wait.t0) / count
        stalls = dict.fromkeys(LAYOUT_STALLS, 0.0)
        for (cause, _), seconds in resources.items():
            stalls[cause] += seconds
        exposed = {group: sum(step[group] for step in self.exposed[-count:]) / count for group in GROUPS}
        return StageStep((end - first) / count, stalls, dict(resources), exposed, begin, end, tuple(clock))
