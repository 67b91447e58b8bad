"""Where did the time go? Every second that a rank waited is attributed to a cause and a resource.

When a rank waits for a batch, the wait is spread over the stages of building that batch (reading, decoding, queueing for and passing the
pin thread), in proportion to their times. With many overlapping workers, the stage active during the wait is always the last one,
but saving a second in any stage would shorten the wait equally. A disk, or cores, that were full during the whole build bound the loader
and bear the wait; if they were idle at times, more workers or faster other stages would have used them.
When a rank waits for gradients, the wait is attributed, moment by moment, to the tier that bounds the collective then (of two collectives,
the first); while no collective runs, the rank waits for a slower rank (straggler). If a GPU decodes during training, half of the shared
time is attributed to decoding. The seconds of one rank sum to its wall time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

from sim.events import FULL, STALLS, Cause, EventLog, WaitSpan, WorkSpan

NOT_LOADER = frozenset({"gpu", "comm", "copy"})
"""Streams of work that is not the loader's."""
_INSTANT = 1e-12  # seconds
_SAME = 1e-6
"""Share of a build during which a resource may be idle and still count as full: rounding of simulated times."""


class Window(NamedTuple):
    """*steps* whole steps between two times (s) of a log, which represent *repeats* times as many steps.

    No steps: a part of a step, which occurs *repeats* more times in the steps of the window around it.
    """

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


Piece = tuple[Cause, str, float]
"""Cause, resource and seconds."""


def blame(log: EventLog, windows: Sequence[Window], ranks: Container[int] | None = None) -> list[list[Blame]]:
    """Return for each of *windows* the time lost per rank, cause and resource.

    *ranks* must contain all ranks of the selected jobs; None selects all jobs.
    """
    waits = log.waits if ranks is None else [wait for wait in log.waits if wait.rank in ranks]
    works = log.work if ranks is None else [work for work in log.work if work.rank in ranks]
    evidence = _Evidence(log, works)
    return [_blame(waits, evidence, window) for window in windows]


def parts_of(window: Window, windows: Iterable[Window]) -> list[Window]:
    """Return those of *windows* that are parts of steps of *window*, which repeats most; ``repeats`` is then for one of its repeats.

    The last of *windows* may cover steps of *window* once more.
    """
    inside = [each for each in windows if not each.steps and window.start <= each.start and each.end <= window.end]
    most = {(each.start, each.end): each for each in sorted(inside, key=lambda each: each.repeats)}
    return [each._replace(repeats=each.repeats / window.repeats) for each in most.values()]


def align_to_steps(windows: Iterable[Window], times: Sequence[float], until: float) -> list[Window]:
    """Return *windows* moved to whole steps of another job, whose steps begin and end at *times*; ``repeats`` does not change.

    If no window contains a whole step, return the last step that ends by *until* (s), or the first step.
    """
    moved = []
    for window in windows:
        first, last = (max(0, bisect_right(times, end) - 1) for end in (window.start, window.end))
        if last > first:
            moved.append(Window(times[first], times[last], last - first, window.repeats))
    last = max(1, bisect_right(times, until) - 1)
    return moved or [Window(times[last - 1], times[last], 1)]


def stall_table(resources: Iterable[Blame]) -> dict[Cause, float]:
    """Return the seconds of each cause in *resources* (from `resource_table`: per step, so they sum to the step time)."""
    table = dict.fromkeys(STALLS, 0.0)
    for _, cause, _, seconds in resources:
        table[cause] += seconds
    return table


def resource_table(log: EventLog, windows: Sequence[Window], job: int = 0) -> list[Blame]:
    """Return seconds per step by cause and resource: the mean over the ranks of *job*, weighted by class size, largest first.

    ``rank`` is -1 in every row.
    """
    ranks = {index: rank.size for index, rank in enumerate(log.ranks) if rank.job == job}
    total = sum(ranks.values())
    steps = sum(window.steps * window.repeats for window in windows)
    seconds_of: dict[tuple[Cause, str], float] = defaultdict(float)
    for window, rows in zip(windows, blame(log, windows, ranks), strict=True):
        for rank, cause, resource, seconds in rows:
            seconds_of[cause, resource] += seconds * window.repeats * ranks[rank] / total / steps
    mean = [Blame(-1, cause, resource, seconds) for (cause, resource), seconds in seconds_of.items()]
    return sorted(mean, key=lambda row: (-row.seconds, row.cause, row.resource))


def without_overlap(spans: Iterable[WorkSpan]) -> list[WorkSpan]:
    """Return the pieces of collectives sorted by time; if two collectives overlap, the one that began first has the time until it ends."""
    pieces = sorted(spans, key=lambda span: span.t0)
    if all(later.t0 >= span.t1 - _INSTANT for span, later in pairwise(pieces)):
        return pieces
    groups: list[list[WorkSpan]] = []
    last: dict[int, list[WorkSpan]] = {}
    for piece in pieces:
        group = last.get(piece.ident)
        if group is None or piece.t0 > group[-1].t1 + _INSTANT:
            group = last[piece.ident] = []
            groups.append(group)
        group.append(piece)
    cut: list[WorkSpan] = []
    for piece in (piece for group in groups for piece in group):
        begin = max(piece.t0, cut[-1].t1) if cut else piece.t0
        if piece.t1 > begin:
            cut.append(piece._replace(t0=begin))
    return cut


class _Evidence:
    """The work of a log, indexed by the ranks and batches whose waits it explains."""

    def __init__(self, log: EventLog, works: Iterable[WorkSpan]) -> None:
        ranks = log.ranks
        comm: dict[int, list[WorkSpan]] = defaultdict(list)
        decoding: dict[int, list[WorkSpan]] = defaultdict(list)
        self.builds: dict[tuple[int, int], list[WorkSpan]] = defaultdict(list)
        """The loader's work by rank and batch."""
        for work in works:
            if work.stream == "comm":
                comm[work.rank].append(work)
            elif work.stream not in NOT_LOADER:
                self.builds[work.rank, work.ident].append(work)
                if work.stream == "pipeline gpu":
                    decoding[work.rank].append(work)
        self._comm = {rank: _Timeline(without_overlap(spans)) for rank, spans in comm.items()}
        self._first = {ranks[rank].job: rank for rank in sorted(comm, reverse=True)}
        self._ranks = ranks
        self.decoding = {rank: _Timeline(spans) for rank, spans in decoding.items()}
        limited = [work for work in log.work if work.resource.endswith(FULL)]  # of all jobs, which share disks and cores
        self._full = _full_times((ranks[work.rank].node, work) for work in limited)

    @cached_property
    def _begin(self) -> float:
        """When the first work began that a full resource limited; there must be such work."""
        return min(times[0][0] for times in self._full.values())

    def bounding(self, rank: int, build: Sequence[WorkSpan]) -> set[Cause]:
        """Return the causes of the stages of *build* whose resource was full for as long as the build took, until the stage ended."""
        length = max(work.t1 for work in build) - min(work.t0 for work in build)
        node = self._ranks[rank].node
        return {
            work.cause
            for work in build
            if work.resource.endswith(FULL) and _covered(self._full[node, work.cause], max(self._begin, work.t1 - length), work.t1)
        }

    def comm(self, rank: int) -> _Timeline:
        """Return the collectives of *rank*: its own if ranks do not synchronize, else those logged under the first rank of its job."""
        return self._comm.get(rank) or self._comm.get(self._first.get(self._ranks[rank].job, -1)) or _Timeline()


class _Timeline:
    """Work of one stream sorted by time; spans do not overlap."""

    def __init__(self, spans: Iterable[WorkSpan] = ()) -> None:
        self.spans = sorted(spans, key=lambda span: span.t0)
        self._ends = [span.t1 for span in self.spans]

    def pieces(self, start: float, end: float, gap: Cause, gap_resource: str) -> list[Piece]:
        """Cut [start, end] at the spans; time that no span covers is attributed to *gap*."""
        pieces: list[Piece] = []
        at = start
        for index in range(bisect_right(self._ends, start), len(self.spans)):
            span = self.spans[index]
            if span.t0 >= end:
                break
            if span.t0 > at:
                pieces.append((gap, gap_resource, span.t0 - at))
                at = span.t0
            until = min(span.t1, end)
            pieces.append((span.cause, span.resource, until - at))
            at = until
        if at < end:
            pieces.append((gap, gap_resource, end - at))
        return pieces


def _blame(waits: Iterable[WaitSpan], evidence: _Evidence, window: Window) -> list[Blame]:
    lost: dict[tuple[int, Cause, str], float] = defaultdict(float)
    for wait in waits:
        start, end = max(wait.t0, window.start), min(wait.t1, window.end)
        if end <= start:
            continue
        pieces: list[Piece] = [(wait.cause, wait.resource, end - start)]
        if wait.cause is Cause.INPUT:
            build = evidence.builds.get((wait.rank, wait.ident), [])
            pieces = _input_pieces(build, end - start, evidence.bounding(wait.rank, build) if build else set())
        elif wait.cause is Cause.GRADIENT:
            pieces = evidence.comm(wait.rank).pieces(start, end, Cause.STRAGGLER, "slowest rank")
        elif wait.cause is Cause.COMPUTE and wait.rank in evidence.decoding:
            pieces = _compute_pieces(evidence.decoding[wait.rank], wait.resource, start, end)
        for cause, resource, seconds in pieces:
            lost[wait.rank, cause, resource] += seconds
    return [Blame(*key, seconds) for key, seconds in lost.items()]


def _full_times(limited: Iterable[tuple[str, WorkSpan]]) -> dict[tuple[str, Cause], list[tuple[float, float]]]:
    """Return by node and cause the times (s) during which work was *limited* by the node's resource, joined and in order."""
    spans: dict[tuple[str, Cause], list[tuple[float, float]]] = defaultdict(list)
    for node, work in limited:
        spans[node, work.cause].append((work.t0, work.t1))
    return {key: _joined(times) for key, times in spans.items()}


def _joined(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if joined and begin <= joined[-1][1] + _INSTANT * max(1.0, begin):
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _covered(times: Sequence[tuple[float, float]], begin: float, end: float) -> bool:
    """Return whether one of *times* contains [begin, end]."""
    last = bisect_right(times, end, key=lambda time: time[0]) - 1
    margin = _SAME * (end - begin)
    return last >= 0 and times[last][0] <= begin + margin and end - margin <= times[last][1]


def _input_pieces(build: list[WorkSpan], waited: float, bounding: set[Cause]) -> list[Piece]:
    """Spread *waited* seconds over the stages of one batch's build; a gap before a stage counts as queueing for it.

    If exactly one kind of stage is *bounding* the loader, it bears the whole wait.
    """
    if not build:
        return [(Cause.PREP, "loader", waited)]
    build = sorted(build, key=lambda work: work.t1)
    begin = min(work.t0 for work in build)
    times: list[float] = []
    for _, stage in groupby(build, key=lambda work: work.stream):
        # the queue for a stage is spread over all work of the stage, not only its first part
        works = list(stage)
        busy = sum(work.t1 - work.t0 for work in works)
        times += [(work.t1 - work.t0) / busy * (works[-1].t1 - begin) for work in works]
        begin = works[-1].t1
    blamed = [(work, time) for work, time in zip(build, times, strict=True) if len(bounding) != 1 or work.cause in bounding]
    scale = waited / sum(time for _, time in blamed)
    return [(work.cause, work.resource.removesuffix(FULL), scale * time) for work, time in blamed]


def _compute_pieces(decoding: _Timeline, resource: str, start: float, end: float) -> list[Piece]:
    shared = sum(seconds for cause, _, seconds in decoding.pieces(start, end, Cause.COMPUTE, "") if cause is Cause.PREP) / 2
    pieces = [(Cause.COMPUTE, resource, end - start - shared)]
    return [*pieces, (Cause.PREP, "GPU decode", shared)] if shared else pieces
