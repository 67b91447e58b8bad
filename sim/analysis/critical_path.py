"""Which activities determine the step time? The critical path: a chain of activities, each of which waited for the one before it.

The walk starts at the end of a step. The activity that ended then is on the path; the walk goes back to its start, then to the activity
that ended at that time and so let it start. A steady window repeats, so the walk wraps around until it meets an activity again. The part
between the two visits is a cycle, and this cycle bounds the rate (Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity,
1992, chapter 3). The seconds of the cycle by cause and resource sum to the step time. If a resource becomes faster by a share p, the step
saves ``p / (1 + p)`` of the resource's seconds, until another cycle is longer. Work that is not on the path is hidden.

Limits, which `sim.study.whatif` does not have (docs/model/stalls.md): only one of two equally long cycles is found; a collective counts as
its slowest part; launches are logged only if compute does not hide them; of asynchronous workers, only the first is followed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import floor
from typing import NamedTuple

from sim.analysis.stalls import NOT_LOADER, Blame, Piece, Window, parts_of
from sim.events import FULL, Cause, EventLog, WaitSpan, WorkSpan

_SAME = 1e-7
"""Times that differ by less than this share of a step are treated as equal (states recur to 1e-9 of a step)."""

_DECODE = "GPU decode"

_LoggedSpan = WorkSpan | WaitSpan
_SpanKey = tuple[object, ...]


class _PathStretch(NamedTuple):
    """A stretch of the path back to *begin*: its *pieces*, and the activity *before* that ended then (None: the thread of *rank*)."""

    begin: float
    pieces: tuple[Piece, ...]
    before: _LoggedSpan | None
    rank: int


def critical_path(log: EventLog, windows: Sequence[Window]) -> list[Blame]:
    """Return the seconds per step on the critical path of the first job by cause and resource, largest first.

    They sum to the step time in the one of *windows* that represents the most steps. ``rank`` is -1 in every row.
    """
    window = max(windows, key=lambda window: window.steps * window.repeats)
    blamed: dict[tuple[Cause, str], float] = defaultdict(float)
    for part in (window._replace(repeats=1.0), *parts_of(window, windows)):
        walk = _Walk(log, part._replace(steps=part.steps or 1), [index for index, rank in enumerate(log.ranks) if rank.job == 0])
        for key, seconds in walk.cycle().items():
            blamed[key] += part.repeats * seconds
    rows = [Blame(-1, cause, resource, seconds / window.steps) for (cause, resource), seconds in blamed.items() if seconds > 0]
    return sorted(rows, key=lambda row: (-row.seconds, row.cause, row.resource))


class _Ended:
    """Activities of one kind, sorted by their end times."""

    def __init__(self, activities: Iterable[_LoggedSpan]) -> None:
        self.activities = sorted(activities, key=lambda activity: activity.t1)
        self.ends = [activity.t1 for activity in self.activities]

    def at(self, time: float, tolerance: float) -> list[_LoggedSpan]:
        """Return the activities that ended at *time*, to within *tolerance*, nearest first."""
        close = self.activities[bisect_left(self.ends, time - tolerance) : bisect_right(self.ends, time + tolerance)]
        return sorted(close, key=lambda activity: abs(activity.t1 - time))

    def overlap(self, begin: float, end: float) -> float:
        """Return how long (s) one of them was active between *begin* and *end*; the activities do not overlap."""
        later = self.activities[bisect_right(self.ends, begin) :]
        return sum(min(end, each.t1) - max(begin, each.t0) for each in takewhile(lambda each: each.t0 < end, later))

    def last_by(self, time: float) -> _LoggedSpan | None:
        """Return the last activity that ended by *time*."""
        place = bisect_right(self.ends, time)
        return self.activities[place - 1] if place else None


_NEVER = _Ended(())


class _Walk:
    """The walk back through one window of a log."""

    def __init__(self, log: EventLog, window: Window, ranks: Sequence[int]) -> None:
        self._ranks, self._window = ranks, window
        self._length = window.end - window.start
        self._tolerance = _SAME * self._length / window.steps
        self._node = [rank.node for rank in log.ranks]
        groups: dict[_SpanKey, list[_LoggedSpan]] = defaultdict(list)
        for wait in log.waits:
            groups["thread", wait.rank].append(wait)
            if wait.cause is Cause.GRADIENT:
                groups["meets", wait.rank].append(wait)
            elif wait.cause is Cause.COMPUTE:
                groups["compute", wait.rank].append(wait)
        for work in log.work:
            for key in self._keys(work):
                groups[key].append(work)
        self._groups = {key: _Ended(ended) for key, ended in groups.items()}

    def _keys(self, work: WorkSpan) -> list[_SpanKey]:
        """Return the keys of the groups to which *work* belongs."""
        if work.stream == "gpu":
            return [("bucket", work.rank, work.ident)]
        if work.stream == "comm":
            return [("comm", work.rank), _recurring_key(work)]
        keys: list[_SpanKey] = [_recurring_key(work)]
        if work.resource == _DECODE:
            keys.append((_DECODE, work.rank))
        if work.stream not in NOT_LOADER:
            keys += [("batch", work.rank, work.ident), ("stream", work.rank, work.stream)]
        if work.resource.endswith(FULL):
            keys.append(self._full(work))
        return keys

    def _full(self, work: WorkSpan) -> _SpanKey:
        return ("full", self._node[work.rank], work.cause)

    def _group(self, *key: object) -> _Ended:
        return self._groups.get(key, _NEVER)

    def cycle(self) -> dict[tuple[Cause, str], float]:
        """Return the seconds of each cause and resource on the cycle, per trip around the window."""
        trail: list[tuple[int, tuple[Piece, ...]]] = []
        turns = 0
        seen: dict[tuple[_LoggedSpan, int], int] = {}
        here, at = self._thread(self._ranks[0], self._window.end, 0.0)
        while (key := (here, round(at / self._tolerance))) not in seen:
            seen[key] = len(trail)
            back = self._stretch(here, at)
            trail.append((turns, back.pieces))
            here, at, more = self._shifted(back)
            turns += more
        around = trail[seen[key] :]
        path: dict[tuple[Cause, str], float] = defaultdict(float)
        for _, pieces in around:
            for cause, resource, seconds in pieces:
                path[cause, resource] += seconds / (turns - around[0][0])
        return path

    def _thread(self, rank: int, at: float, tolerance: float) -> tuple[_LoggedSpan, float]:
        """Return the wait of *rank*'s thread that ended at *at*, to within *tolerance*, or that contains *at*; and its time."""
        waits = self._group("thread", rank)
        if ended := waits.at(at, tolerance):
            return ended[0], ended[0].t1
        return waits.activities[min(bisect_left(waits.ends, at), len(waits.ends) - 1)], at

    def _shifted(self, back: _PathStretch) -> tuple[_LoggedSpan, float, int]:
        """Return the activity before *back*, shifted into the window by whole window lengths, its end, and the number of shifts."""
        turns = max(0, floor((self._window.start + self._tolerance - back.begin) / self._length) + 1)
        at = back.begin + turns * self._length
        before = back.before
        if before is not None and turns:
            before = next(iter(self._group(*_recurring_key(before)).at(at, self._tolerance)), None)
        if before is None:
            return *self._thread(back.rank, at, self._tolerance if turns else 0.0), turns
        return before, before.t1, turns

    # --- who let it start ----------------------------------------------------------------------------------------

    def _stretch(self, here: _LoggedSpan, at: float) -> _PathStretch:
        if isinstance(here, WaitSpan):
            return self._before_wait(here, at)
        return self._before_collective(here, at) if here.stream == "comm" else self._before_build(here, at)

    def _before_wait(self, wait: WaitSpan, at: float) -> _PathStretch:
        """Return what *wait* waited for until *at*: the work that ended then, or the time of the wait itself."""
        cause, resource, ended = wait.cause, wait.resource, list[_LoggedSpan]()
        if cause is Cause.INPUT:
            ended = self._group("batch", wait.rank, wait.ident).at(at, self._tolerance)
            cause, resource = Cause.PREP, "loader"
        elif cause is Cause.GRADIENT:
            ended = self._group("comm", self._logged_rank(wait.rank)).at(at, self._tolerance)
            cause, resource = Cause.STRAGGLER, "slowest rank"
        if begun := [work for work in ended if work.t0 < at]:
            return _PathStretch(at, (), begun[0], wait.rank)
        done = (cause, resource, at - wait.t0)
        if cause is Cause.COMPUTE:
            return _PathStretch(wait.t0, self._split_shared(done, _DECODE, (Cause.PREP, _DECODE), wait, at), None, wait.rank)
        return _PathStretch(wait.t0, (done,), None, wait.rank)

    def _split_shared(self, done: Piece, group: str, other: tuple[Cause, str], here: _LoggedSpan, at: float) -> tuple[Piece, ...]:
        """Split *done* on a GPU: half of the time during which *group* was active as well is attributed to *other*."""
        shared = self._group(group, here.rank).overlap(here.t0, at) / 2
        return (*done[:2], done[2] - shared), (*other, shared)

    def _logged_rank(self, rank: int) -> int:
        """Return the rank under which the collectives of *rank* are logged."""
        return rank if ("comm", rank) in self._groups else self._ranks[0]

    def _before_collective(self, piece: WorkSpan, at: float) -> _PathStretch:
        """Return the collective before *piece*, or the rank that arrived at it last."""
        done = (piece.cause, piece.resource, at - piece.t0)
        if ended := [before for before in self._group("comm", piece.rank).at(piece.t0, self._tolerance) if before.t0 < piece.t0]:
            return _PathStretch(piece.t0, (done,), ended[0], piece.rank)
        ranks = [rank for rank in self._ranks if self._logged_rank(rank) == piece.rank]
        arrived, last = max((self._arrived(rank, piece), rank) for rank in ranks)
        return _PathStretch(arrived, (done, (Cause.STRAGGLER, "slowest rank", piece.t0 - arrived)), None, last)

    def _arrived(self, rank: int, piece: WorkSpan) -> float:
        """Return when *rank* was ready for *piece*: at the end of its bucket's backward pass, or when it began to wait."""
        if piece.ident >= 0:
            bucket = self._group("bucket", rank, piece.ident).last_by(piece.t0 + self._tolerance)
            return bucket.t1 if bucket else piece.t0
        waits = self._group("meets", rank)
        place = bisect_right(waits.ends, piece.t0 + self._tolerance)
        return min(piece.t0, waits.activities[place].t0) if place < len(waits.ends) else piece.t0

    def _before_build(self, work: WorkSpan, at: float) -> _PathStretch:
        """Return what delayed a loader's *work*; at a full resource, the last work that left it."""
        resource = work.resource.removesuffix(FULL)
        if resource != work.resource:
            left = self._group(*self._full(work)).last_by(at - self._tolerance)
            if left is not None and left.t1 > work.t0 + self._tolerance:
                return _PathStretch(left.t1, ((work.cause, resource, at - left.t1),), left, left.rank)
        done: tuple[Piece, ...] = ((work.cause, resource, at - work.t0),)
        if resource == _DECODE and (computed := self._group("compute", work.rank).activities):
            done = self._split_shared(done[0], "compute", (Cause.COMPUTE, computed[0].resource), work, at)
        for key in (("batch", work.rank, work.ident), ("stream", work.rank, work.stream)):
            if ended := [before for before in self._group(*key).at(work.t0, self._tolerance) if before.t0 < work.t0]:
                return _PathStretch(work.t0, done, ended[0], work.rank)
        return _PathStretch(work.t0, done, None, work.rank)


def _recurring_key(activity: _LoggedSpan) -> _SpanKey:
    """Return the key shared by two occurrences of the same activity that are whole window lengths apart."""
    if isinstance(activity, WaitSpan):
        return ("thread", activity.rank)
    if activity.stream == "comm":
        return ("comm", activity.rank, activity.cause, activity.resource)
    return ("work", activity.rank, activity.cause, activity.name)
