"""Which few steps represent a warm epoch in a trace? Steady ones: an exact period, repeated as often as needed.

A period repeats exactly, so copies of it, each shifted by its length, are what the simulation would have done next: every span that ends
in the period ends again in each copy. Batches are built ahead of the step that uses them, so a copy shifts a whole build together with
its batch number. If an epoch has no exact period, or one of many steps, the last steps of its longest window represent it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from sim.analysis.stalls import NOT_LOADER, without_overlap
from sim.events import Cause, EventLog, WaitSpan, WorkSpan
from sim.simulate import Run

LONGEST_PERIOD = 24
"""Maximum number of steps of a period that is repeated whole; a longer one is represented by its last steps."""
_ROUNDING = 1e-9  # share of a period: states that differ by less are equal (sim.analysis.steady_state)
_INSTANT = 1e-12  # seconds

AnySpan = TypeVar("AnySpan", WaitSpan, WorkSpan)


@dataclass(frozen=True)
class RankExcerpt:
    """Whole steps of one rank class; *boundaries* are the ends of steps (s), beginning with the end of the step before them."""

    index: int
    """Index in ``log.ranks``."""
    boundaries: Sequence[float]
    waits: Sequence[WaitSpan]
    compute: Sequence[WorkSpan]
    collectives: Sequence[WorkSpan]
    """Each from the moment at which this rank could begin it until its end."""
    bounds: Sequence[WorkSpan]
    """What bounds the collectives while they run."""
    copies: Sequence[WorkSpan]
    loader: Sequence[WorkSpan]


@dataclass(frozen=True)
class Excerpt:
    """A few warm steps of every rank, and the load of each resource (in its own units/s) from each time of change on."""

    ranks: Sequence[RankExcerpt]
    loads: dict[str, list[tuple[float, float]]]
    note: str
    left_out: str = ""
    """How many of the micro-batches of a step are shown, if not all."""


def excerpt(run: Run, steps: int = 3) -> Excerpt:
    """Return at least *steps* warm steps of *run*, or as many as it has."""
    warm, log = run.jobs[0].warm, run.log
    window = max(warm.windows, key=lambda ranks: ranks.steps * ranks.repeats)
    repeats = warm.exact and window.repeats > 1 and window.steps <= max(steps, LONGEST_PERIOD)
    loop = _Loop(window.start, window.end, math.ceil(steps / window.steps) if repeats else 0)
    note = f"{loop.copies * window.steps} steady-state steps"
    if not repeats:
        note = "the last simulated steps of a warm epoch; their mean may differ from that of the epoch"
    workers = [job.job.workload.input.num_workers for job in run.jobs]
    comm = _comm(log)
    ranks = []
    for index, rank in enumerate(log.ranks):
        boundaries = _boundaries(log, index, loop, steps)
        if len(boundaries) > 1:
            pieces = comm.get(index) or comm.get(
                next(other for other, other_rank in enumerate(log.ranks) if other_rank.job == rank.job), []
            )
            ends = zip(log.steps[index], log.micro_batches[index], strict=True)
            taken = sum(count for end, count in ends if loop.ends_in(end)) if loop.copies else 0
            ranks.append(_rank(log, index, boundaries, loop, pieces, _Builders(taken, workers[rank.job])))
    left_out = _left_out(run)
    return Excerpt(ranks, _played_loads(log, loop, ranks), f"{note}; {left_out}" if left_out else note, left_out)


def _left_out(run: Run) -> str:
    """Return a clause that says how many of the micro-batches of a step are shown, if not all."""
    every, shown = run.jobs[0].job.workload.training.gradient_accumulation_steps, run.log.micro_batches[0][-1]
    return "" if shown == every else micro_batches_shown(shown, every)


def micro_batches_shown(shown: int, every: int) -> str:
    """Return a clause that says that only *shown* of *every* micro-batch of a step are shown."""
    return f"{shown:,} of the {every:,} micro-batches of a step are shown, which the others repeat (--exact shows all)"


@dataclass(frozen=True)
class _Loop:
    """The period from *start* to *end* (s), repeated *copies* times; 0 leaves the log as it is."""

    start: float
    end: float
    copies: int

    @property
    def period(self) -> float:
        return self.end - self.start

    def ends_in(self, time: float) -> bool:
        """Return whether something that ends at *time* ends in the period."""
        slack = _ROUNDING * self.period
        return self.start + slack < time <= self.end + slack

    def begins_in(self, time: float) -> bool:
        """Return whether something that begins at *time* begins in the period; not at its end, where the simulation may have stopped."""
        slack = _ROUNDING * self.period
        return self.start - slack <= time < self.end - slack

    def played(self, spans: Iterable[AnySpan], start: float, end: float) -> list[AnySpan]:
        """Return the repeated *spans* between *start* and *end*, in order and cut off there."""
        moved = list(spans)
        if self.copies:
            kept = [span for span in moved if self.ends_in(span.t1)]
            moved = [_moved(span, copy * self.period) for copy in range(-1, self.copies + 1) for span in kept]
        clipped = [span._replace(t0=max(span.t0, start), t1=min(span.t1, end)) for span in moved if span.t1 > start and span.t0 < end]
        return _in_order(clipped)


@dataclass(frozen=True)
class _Builders:
    """The number of batches that a period *takes*, and the number of *workers* that build them."""

    takes: int
    workers: int


def _moved(span: AnySpan, later: float) -> AnySpan:
    return span._replace(t0=span.t0 + later, t1=span.t1 + later)


def _in_order(spans: Iterable[AnySpan]) -> list[AnySpan]:
    """Return *spans* of one stream in order of time; if rounding makes two overlap, the later one begins at the end of the earlier."""
    ordered: list[AnySpan] = []
    for span in sorted(spans, key=lambda span: (span.t0, span.t1)):
        begin = max(span.t0, ordered[-1].t1) if ordered else span.t0
        if span.t1 > begin:
            ordered.append(span._replace(t0=begin))
    return ordered


def _boundaries(log: EventLog, rank: int, loop: _Loop, steps: int) -> list[float]:
    """Return the end of the step before the excerpt, and of each step of *rank* in it."""
    ends = log.steps.get(rank, [])
    slack = _ROUNDING * loop.period
    if not loop.copies:
        begun = min((wait.t0 for wait in log.waits if wait.rank == rank), default=0.0)
        return [begun, *(end for end in ends if end <= loop.end + slack)][-steps - 1 :]
    own = [end for end in ends if loop.ends_in(end)]
    if not own:
        return []
    first = own[-1] - loop.period
    return [first, *(end + copy * loop.period for copy in range(loop.copies) for end in own)]


def _rank(
    log: EventLog, index: int, boundaries: Sequence[float], loop: _Loop, pieces: Sequence[WorkSpan], loader: _Builders
) -> RankExcerpt:
    start, end = boundaries[0], boundaries[-1]
    waits = [wait for wait in log.waits if wait.rank == index]
    streams: dict[str, list[WorkSpan]] = defaultdict(list)
    for work in log.work:
        if work.rank == index:
            streams[work.stream if work.stream in NOT_LOADER else "loader"].append(work)
    return RankExcerpt(
        index,
        boundaries,
        loop.played(waits, start, end),
        loop.played(streams["gpu"], start, end),
        loop.played(_collectives(pieces, waits, streams["gpu"], index), start, end),
        loop.played([piece._replace(rank=index) for piece in pieces], start, end),
        loop.played(streams["copy"], start, end),
        _builds(streams["loader"], waits, loop, (start, end), loader.takes, loader.workers),
    )


# --- collectives -----------------------------------------------------------------------------------------------------


def _comm(log: EventLog) -> dict[int, list[WorkSpan]]:
    """Return what bounds collectives while they run, by the rank under which they are logged."""
    works_of: dict[int, list[WorkSpan]] = defaultdict(list)
    for work in log.work:
        if work.stream == "comm":
            works_of[work.rank].append(work)
    return {rank: _in_order(without_overlap(works)) for rank, works in works_of.items()}


def _collectives(pieces: Sequence[WorkSpan], waits: Sequence[WaitSpan], compute: Sequence[WorkSpan], rank: int) -> list[WorkSpan]:
    """Return one span for each collective in *pieces*, beginning when *rank* has arrived at it and its stream is free."""
    ready: dict[int, list[float]] = defaultdict(list)
    for work in compute:
        ready[work.ident].append(work.t1)
    gradient = [wait for wait in waits if wait.cause is Cause.GRADIENT]
    collectives: list[WorkSpan] = []
    free = -math.inf
    for group in _by_collective(pieces):
        arrived = _arrival(group[0], ready.get(group[0].ident, []) if group[0].ident >= 0 else [], gradient)
        collectives.append(group[-1]._replace(rank=rank, t0=max(free, arrived), t1=group[-1].t1))
        free = group[-1].t1
    return collectives


def _arrival(first: WorkSpan, ready: Sequence[float], gradient: Sequence[WaitSpan]) -> float:
    """Return when a rank arrived at the collective that begins with *first*: its gradients were *ready*, or it began to wait."""
    begin = first.t0
    place = bisect_left(gradient, begin, key=lambda wait: wait.t0)
    waited = gradient[place - 1] if place else None
    arrived = waited.t0 if waited and waited.t1 >= begin else begin
    earlier = [wait.t1 for wait in gradient[max(0, place - 2) : place] if wait.t1 < begin]
    last = bisect_right(ready, begin)
    return min(arrived, ready[last - 1]) if last and ready[last - 1] > max(earlier, default=-math.inf) else arrived


def _by_collective(pieces: Sequence[WorkSpan]) -> list[list[WorkSpan]]:
    """Return *pieces* grouped by collective: only the last piece of one has its bytes, and nothing comes between its pieces."""
    groups: list[list[WorkSpan]] = []
    for piece in pieces:
        last = groups[-1][-1] if groups else None
        if last is None or last.nbytes > 0 or last.ident != piece.ident or piece.t0 > last.t1 + _INSTANT:
            groups.append([])
        groups[-1].append(piece)
    return groups


# --- loaders ---------------------------------------------------------------------------------------------------------


def _builds(
    works: Sequence[WorkSpan], waits: Sequence[WaitSpan], loop: _Loop, between: tuple[float, float], taken: int, workers: int
) -> list[WorkSpan]:
    """Return the loader's work in *between*, and all work on batches that are waited for in it; a period uses *taken* batches."""
    start, end = between
    wanted = [(wait.ident, wait.t1) for wait in waits if wait.cause is Cause.INPUT]
    if not loop.copies:
        own_batches = {ident for ident, when in wanted if start < when <= end}
        return [work for work in works if work.ident in own_batches or (work.t1 > start and work.t0 < end)]
    builds = {ident: list(group) for ident, group in groupby(sorted(works, key=lambda work: work.ident), key=lambda work: work.ident)}
    models = _models(builds, [ident for ident, when in wanted if loop.ends_in(when)], loop, taken)
    shown_works = []
    for ident, needed in models.items():
        build = builds.get(ident, [])
        ahead = math.ceil((loop.end - min((work.t0 for work in build), default=loop.end)) / loop.period) + 1
        for copy in range(-ahead, loop.copies + ahead + 1):
            moved = [_renumbered(_moved(work, copy * loop.period), ident + copy * taken, workers) for work in build]
            shown = any(work.t1 > start and work.t0 < end for work in moved)
            shown_works += moved if shown or (needed and -1 <= copy <= loop.copies) else []
    return [
        work
        for _, stream in groupby(sorted(shown_works, key=lambda work: work.stream), lambda work: work.stream)
        for work in _in_order(stream)
    ]


def _models(builds: dict[int, list[WorkSpan]], waited: Sequence[int], loop: _Loop, taken: int) -> dict[int, bool]:
    """Return a batch to copy for each of those that a period uses, and whether the rank waits for it."""
    if taken == 0:
        return {}
    most = max((len(build) for build in builds.values()), default=0)
    complete = [ident for ident, build in builds.items() if len(build) == most and any(loop.ends_in(work.t1) for work in build)]
    models = {ident % taken: ident for ident in sorted(complete)} | {ident % taken: ident for ident in waited}
    return {ident: ident in waited for ident in models.values()}


def _renumbered(work: WorkSpan, ident: int, workers: int) -> WorkSpan:
    stream = f"worker {ident % workers}" if work.stream.startswith("worker") and workers else work.stream
    return work._replace(ident=ident, stream=stream)


# --- links -----------------------------------------------------------------------------------------------------------


def loads(log: EventLog) -> dict[str, list[tuple[float, float]]]:
    """Return the load of each resource of *log* from each time of change on, as (s, units/s); empty unless the log kept its rates."""
    on: dict[str, dict[int, float]] = defaultdict(dict)
    load_of: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for time, changes in groupby(log.rates, key=lambda change: change.t):
        touched: set[str] = set()
        for change in changes:
            for link, load in change.usage:
                touched.add(link)
                if change.rate > 0:
                    on[link][change.activity] = change.rate * load
                else:
                    on[link].pop(change.activity, None)
        for link in touched:
            load_of[link].append((time, math.fsum(on[link].values())))
    return dict(load_of)


def _played_loads(log: EventLog, loop: _Loop, ranks: Sequence[RankExcerpt]) -> dict[str, list[tuple[float, float]]]:
    start = min((rank.boundaries[0] for rank in ranks), default=0.0)
    end = max((rank.boundaries[-1] for rank in ranks), default=0.0)
    load_of = {}
    for link, steps in loads(log).items():
        moved = steps
        if loop.copies:
            once = [(time, load) for time, load in steps if loop.begins_in(time)]
            moved = [(time + copy * loop.period, load) for copy in range(-1, loop.copies + 1) for time, load in once]
        before = [load for time, load in moved if time <= start]
        load_of[link] = [(start, before[-1] if before else 0.0), *((time, load) for time, load in moved if start < time < end)]
    return load_of
