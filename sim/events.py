"""What happened? The waits, work, rates and decisions of one run: the only data passed from simulation to analysis.

*Waits* tile each rank's wall time: the only way a rank waits is ``with log.waiting(rank, Cause.COPY): yield ...``, so a wait
without a cause cannot be written. *Work* records what streams, loader workers and collectives did meanwhile, and may overlap.
Two causes are resolved later: a rank that waits for its next batch (INPUT) or for its gradients (GRADIENT) waits for work done
elsewhere, and `sim.analysis.stalls` attributes the wait to what that work was doing at each moment.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple


class Cause(StrEnum):
    """What a rank waits for. INPUT and GRADIENT are resolved by analysis; the others are the closed list of stalls."""

    COMPUTE = "compute"
    FETCH = "fetch"
    PREP = "prep"
    COPY = "copy"
    INTERCONNECT = "interconnect"
    NETWORK = "network"
    STRAGGLER = "straggler"
    LAUNCH = "launch"
    PIPELINE = "pipeline"
    INPUT = "input"
    GRADIENT = "gradient"


FULL = " (full)"
"""Suffix of the name of a resource that limited its work; without it, the work was limited by its own speed."""

STALLS: tuple[Cause, ...] = tuple(cause for cause in Cause if cause not in (Cause.PIPELINE, Cause.INPUT, Cause.GRADIENT))
"""The keys of the stall table of a data-parallel run, in this order."""

LAYOUT_STALLS: tuple[Cause, ...] = (*STALLS, Cause.PIPELINE)
"""The same for a run with a layout: waiting for other stages of a pipeline is a cause of its own."""


def causes_of(*tables: Container[str]) -> tuple[Cause, ...]:
    """Return the causes in any of the stall *tables*, in table order: only tables of layouts have `Cause.PIPELINE`."""
    return tuple(cause for cause in LAYOUT_STALLS if any(cause.value in table for table in tables))


class LoggedRank(NamedTuple):
    """A class of equal ranks that are simulated once, with index *number* in ``log.ranks``; *size* is the number of ranks in it.

    *gpus* are the members on one *node*, which represents all nodes that are used in the same way.
    """

    job: int
    number: int
    size: int
    node: str
    gpus: tuple[int, ...]


class WaitSpan(NamedTuple):
    """*rank* (an index into ``log.ranks``) waited from *t0* to *t1* (seconds); *ident* is the batch it waited for, or -1."""

    rank: int
    cause: Cause
    resource: str
    ident: int
    t0: float
    t1: float


class WorkSpan(NamedTuple):
    """*stream* of *rank* did *name* from *t0* to *t1*, moving *nbytes*; *ident* is its batch or bucket.

    A collective belongs to every rank of its job: it is recorded once, under the job's first rank.
    """

    rank: int
    stream: str
    name: str
    cause: Cause
    resource: str
    ident: int
    nbytes: float
    t0: float
    t1: float


class RateChange(NamedTuple):
    """From *t* on, *activity* proceeds at *rate* (its own units per second); its load on each link is *rate* times the value in *usage*."""

    t: float
    activity: int
    name: str
    rate: float
    usage: tuple[tuple[str, float], ...]


_new = tuple.__new__
"""Builds a NamedTuple from a tuple of all its fields in half the time; a log has hundreds of thousands of them."""


class _Waiting:
    """Context manager of one wait of a rank; it is entered more often than any other, so it is a plain class for speed."""

    __slots__ = ("_log", "_start", "_wait")

    def __init__(self, log: EventLog, rank: int, cause: Cause, resource: str, ident: int) -> None:
        self._log = log
        self._wait = (rank, cause, resource, ident)

    def __enter__(self) -> None:
        self._start = self._log.clock()
        self._log.waiting_since[self._wait[0]] = (self._wait[1], self._start)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            del self._log.waiting_since[self._wait[0]]
            if (end := self._log.clock()) > self._start:
                self._log.waits.append(_new(WaitSpan, (*self._wait, self._start, end)))


@dataclass
class EventLog:
    """Everything that one simulation records; *clock* returns the simulated time in seconds."""

    clock: Callable[[], float]
    keep_rates: bool = False
    """Whether to record every change of rate; only link plots, traces and tests need them."""
    ranks: list[LoggedRank] = field(default_factory=list)
    waits: list[WaitSpan] = field(default_factory=list)
    work: list[WorkSpan] = field(default_factory=list)
    rates: list[RateChange] = field(default_factory=list)
    capacity: dict[str, float] = field(default_factory=dict)
    links: dict[str, dict[str, str]] = field(default_factory=dict)
    """By slot, the name in ``capacity`` under which each physical link of a node is recorded: equal links share one name."""
    decisions: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, list[float]] = field(default_factory=dict)
    """The times at which each rank ended its steps (s)."""
    micro_batches: dict[int, list[int]] = field(default_factory=dict)
    """How many micro-batches of each of these steps were simulated; the others repeat some of them."""
    waiting_since: dict[int, tuple[Cause, float]] = field(default_factory=dict)
    """Waits in progress, by rank, with their start times: part of the state that decides what happens next."""

    def waiting(self, rank: int, cause: Cause, resource: str = "", ident: int = -1) -> _Waiting:
        """Record that *rank* waits for *cause* (at *resource*) while the block runs. Raise RuntimeError if it is already waiting."""
        if rank in self.waiting_since:
            raise RuntimeError(f"rank {rank} waits for {self.waiting_since[rank][0]} already")
        return _Waiting(self, rank, cause, resource, ident)

    def interrupt(self, pauses: Sequence[tuple[float, float]], cause: Cause) -> list[tuple[float, float]]:
        """Turn *pauses* (s) in the wait recorded last into waits for *cause*; return the intervals that remain of it."""
        wait, remaining = self.waits.pop(), []
        for number, (t0, t1) in enumerate(pairwise([wait.t0, *(time for pause in pauses for time in pause), wait.t1])):
            if t1 > t0:
                self.waits.append(WaitSpan(wait.rank, cause, "", -1, t0, t1) if number % 2 else wait._replace(t0=t0, t1=t1))
                remaining += [] if number % 2 else [(t0, t1)]
        return remaining

    def add_work(
        self,
        rank: int,
        stream: str,
        name: str,
        cause: Cause,
        start: float,
        resource: str = "",
        ident: int = -1,
        nbytes: float = 0.0,
        end: float | None = None,
    ) -> None:
        """Record work of *rank* that began at *start* and ends now (or ended at *end*)."""
        end = self.clock() if end is None else end
        if end > start:
            self.work.append(_new(WorkSpan, (rank, stream, name, cause, resource, ident, nbytes, start, end)))
