"""Where did the time go? Every second a rank waited, blamed on a cause and a resource.

A rank waits for a batch, the batch for its loader: the wait is spread over what building that batch consisted of (reading, decoding,
queueing for and passing the pin thread), each in proportion to its time. A loader with many workers overlaps batches, so what the
builder does in the moments of the wait is always its last stage; what would shorten the wait is any second of the build, and a
second of reading is worth as much as one of decoding. A rank waits for its gradients: blame the tier that bounds the
collective then, moment by moment; while no collective runs, the rank waits for a slower one (straggler). Where a GPU decodes
beside training, half of the shared time is the decoder's. The result of one rank sums to its wall time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sim.events import STALLS, Cause, EventLog, Rank, Work

_NOT_LOADER = frozenset({"gpu", "comm", "copy"})


class Window(NamedTuple):
    """*steps* whole steps between two times (s) of a log, standing for *repeats* times as many."""

    start: float
    end: float
    steps: int
    repeats: float = 1.0


class Blame(NamedTuple):
    """*rank* (index into ``log.ranks``) lost *seconds* in a window to *cause* at *resource*."""

    rank: int
    cause: Cause
    resource: str
    seconds: float


def blame(log: EventLog, window: Window) -> list[Blame]:
    """Return who lost how much time to what in *window*, one entry per rank, cause and resource."""
    lost: dict[tuple[int, Cause, str], float] = defaultdict(float)
    comm = {rank.job: _Timeline(_spans(log, first, "comm", window)) for first, rank in _first_ranks(log)}
    decoders = {rank: _Timeline(_spans(log, rank, "pipeline gpu", window)) for rank in range(len(log.ranks))}
    builds = _builds(log)
    for wait in log.waits:
        start, end = max(wait.t0, window.start), min(wait.t1, window.end)
        if end <= start:
            continue
        if wait.cause is Cause.INPUT:
            pieces = _input_pieces(builds.get((wait.rank, wait.ident), []), end - start)
        elif wait.cause is Cause.GRADIENT:
            pieces = comm[log.ranks[wait.rank].job].pieces(start, end, Cause.STRAGGLER, "slowest rank")
        elif wait.cause is Cause.COMPUTE:
            pieces = _compute_pieces(decoders[wait.rank], wait.resource, start, end)
        else:
            pieces = [(wait.cause, wait.resource, end - start)]
        for cause, resource, seconds in pieces:
            lost[wait.rank, cause, resource] += seconds
    return [Blame(*key, seconds) for key, seconds in lost.items()]


def stall_table(log: EventLog, windows: Sequence[Window], job: int = 0) -> dict[Cause, float]:
    """Return seconds per step of each cause, mean over the ranks of *job* weighted by class size; sums to the step time."""
    table = dict.fromkeys(STALLS, 0.0)
    for _, cause, _, seconds in resource_table(log, windows, job):
        table[cause] += seconds
    return table


def resource_table(log: EventLog, windows: Sequence[Window], job: int = 0) -> list[Blame]:
    """Return seconds per step by cause and resource, mean over the ranks of *job*, largest first (``rank`` is -1)."""
    ranks = {index: rank.size for index, rank in enumerate(log.ranks) if rank.job == job}
    total = sum(ranks.values())
    steps = sum(window.steps * window.repeats for window in windows)
    found: dict[tuple[Cause, str], float] = defaultdict(float)
    for window in windows:
        for rank, cause, resource, seconds in blame(log, window):
            if rank in ranks:
                found[cause, resource] += seconds * window.repeats * ranks[rank] / total / steps
    rows = [Blame(-1, cause, resource, seconds) for (cause, resource), seconds in found.items()]
    return sorted(rows, key=lambda row: (-row.seconds, row.cause, row.resource))


class _Timeline:
    """Work of one stream in order of time; spans do not overlap."""

    def __init__(self, spans: Iterable[Work]) -> None:
        self.spans = sorted(spans, key=lambda span: span.t0)
        self.starts = [span.t0 for span in self.spans]

    def pieces(self, start: float, end: float, gap: Cause, gap_resource: str) -> list[tuple[Cause, str, float]]:
        """Cut [start, end] at the spans; what no span covers is blamed on *gap*."""
        found: list[tuple[Cause, str, float]] = []
        at = start
        for span in self.spans[max(0, bisect_right(self.starts, start) - 1) :]:
            if span.t0 >= end:
                break
            if span.t1 <= at:
                continue
            if span.t0 > at:
                found.append((gap, gap_resource, span.t0 - at))
                at = span.t0
            until = min(span.t1, end)
            found.append((span.cause, span.resource, until - at))
            at = until
        if at < end:
            found.append((gap, gap_resource, end - at))
        return found


def _spans(log: EventLog, rank: int, stream: str, window: Window) -> list[Work]:
    return [w for w in log.work if w.rank == rank and w.stream == stream and w.t1 > window.start and w.t0 < window.end]


def _builds(log: EventLog) -> dict[tuple[int, int], list[Work]]:
    """Return the loader's work on each (rank, batch)."""
    found: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for work in log.work:
        if work.stream not in _NOT_LOADER:
            found[work.rank, work.ident].append(work)
    return found


def _first_ranks(log: EventLog) -> list[tuple[int, Rank]]:
    first: dict[int, int] = {}
    for index, rank in enumerate(log.ranks):
        first.setdefault(rank.job, index)
    return [(index, log.ranks[index]) for index in first.values()]


def _input_pieces(build: list[Work], waited: float) -> list[tuple[Cause, str, float]]:
    """Spread *waited* seconds over the stages of one batch's build; a gap before a stage is queueing for it."""
    if not build:
        return [(Cause.PREP, "loader", waited)]
    build = sorted(build, key=lambda work: work.t1)
    begin = min(work.t0 for work in build)
    scale = waited / (build[-1].t1 - begin)
    pieces = []
    for work in build:
        pieces.append((work.cause, work.resource, scale * (work.t1 - begin)))
        begin = work.t1
    return pieces


def _compute_pieces(decoder: _Timeline, resource: str, start: float, end: float) -> list[tuple[Cause, str, float]]:
    if not decoder.spans:
        return [(Cause.COMPUTE, resource, end - start)]
    shared = sum(seconds for cause, _, seconds in decoder.pieces(start, end, Cause.COMPUTE, "") if cause is Cause.PREP) / 2
    pieces = [(Cause.COMPUTE, resource, end - start - shared)]
    return [*pieces, (Cause.PREP, "GPU decode", shared)] if shared else pieces
