"""What does each rank of a graph wait for while its GPU is idle? Every moment of the step is attributed to one cause.

A moment in which the GPU computes is compute. Otherwise it is attributed to the first that applies: the collective or message in progress
on this rank (the one that began first); the host; the memory; other ranks that have not arrived at an operation where this rank waits; or,
if this rank has finished, ranks that are still at work. Waiting for a message to be sent counts as pipeline, waiting for other members of a
collective as straggler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from sim.events import LAYOUT_STALLS, Cause, WaitSpan, WorkSpan
from sim.training.graphs.run import CompletedOperation, PlayedGraphs, operation_name

_COMPUTES, _MOVES, _HOST, _MEMORY, _MEETS = range(5)
_RANKED: Final = {"gpu": _COMPUTES, "host": _HOST, "memory": _MEMORY}
NOTHING_LEFT: Final = "ranks that are still running"


class _Claim(NamedTuple):
    """An activity of a rank from *t0* to *t1*. Of concurrent ones, the one with the lowest *level*, then the earliest, is blamed."""

    level: int
    t0: float
    t1: float
    cause: Cause
    resource: str
    group: str = ""
    """Name of the collective or message that the rank waits for."""


@dataclass(frozen=True)
class RankStep:
    """One rank's step."""

    stalls: Mapping[Cause, float]
    """Time (s) by cause; sums to the step time."""
    exposed: Mapping[str, float]
    """Exposed time (s) of each kind of collective or message of a communicator, including waits for its members."""
    waits: tuple[WaitSpan, ...]
    """What the rank does and waits for, in chronological order."""


def rank_steps(played: PlayedGraphs) -> tuple[RankStep, ...]:
    """Return the step of each rank of *played*."""
    claims: list[list[_Claim]] = [[] for _ in played.ends]
    for work in played.log.work:
        if work.stream in _RANKED:
            claims[work.rank].append(_of_work(work))
    for done in played.done:
        ready = done.begin if done.node.kind == "send" else max(done.arrivals)
        for rank, came in zip(done.ranks, done.arrivals, strict=True):
            claims[rank] += _of_operation(done, came, ready)
    return tuple(_rank_step(rank, own, played.time) for rank, own in enumerate(claims))


def _of_work(work: WorkSpan) -> _Claim:
    return _Claim(_RANKED[work.stream], work.t0, work.t1, work.cause, work.resource)


def _of_operation(done: CompletedOperation, came: float, ready: float) -> Iterator[_Claim]:
    """Yield the claims of *done* for a member that arrived at *came*: waiting for others until *ready*, queueing, and the transfer."""
    group, message = operation_name(done.node), done.node.kind == "send"
    if ready > came:
        last = done.ranks[0 if message else done.arrivals.index(ready)]
        cause, whom = (Cause.PIPELINE, "to send") if message else (Cause.STRAGGLER, f"the last to arrive at {group}")
        yield _Claim(_MEETS, came, ready, cause, f"rank {last}, {whom}", group)
    if done.begin > ready and done.pieces:
        first = done.pieces[0]
        yield _Claim(_MOVES, ready, done.begin, first.cause, f"{group}: behind other collectives", group)
    for cause, resource, t0, t1 in done.pieces:
        if t1 > max(t0, came):
            yield _Claim(_MOVES, max(t0, came), t1, cause, f"{group}: {resource}", group)


def _rank_step(rank: int, claims: Sequence[_Claim], end: float) -> RankStep:
    stalls = dict.fromkeys(LAYOUT_STALLS, 0.0)
    exposed: dict[str, float] = defaultdict(float)
    waits: list[WaitSpan] = []
    for claim, t0, t1 in _timeline(claims, end):
        cause, resource, group = claim[3:] if claim else (Cause.STRAGGLER, NOTHING_LEFT, "")
        stalls[cause] += t1 - t0
        if group:
            exposed[group] += t1 - t0
        last = waits[-1] if waits else None
        if last and (last.cause, last.resource, last.t1) == (cause, resource, t0):
            waits[-1] = last._replace(t1=t1)
        else:
            waits.append(WaitSpan(rank, cause, resource, -1, t0, t1))
    return RankStep(stalls, dict(exposed), tuple(waits))


def _timeline(claims: Sequence[_Claim], end: float) -> Iterator[tuple[_Claim | None, float, float]]:
    """Yield (blamed claim, begin, end) without gaps from 0 to *end*."""
    edges = sorted({0.0, end, *(min(time, end) for claim in claims for time in (claim.t0, claim.t1))})
    begins = sorted(claims, key=lambda claim: claim.t0, reverse=True)
    active: list[_Claim] = []
    for t0, t1 in pairwise(edges):
        active = [claim for claim in active if claim.t1 > t0]
        while begins and begins[-1].t0 <= t0:
            claim = begins.pop()
            if claim.t1 > t0:
                active.append(claim)
        yield min(active, default=None, key=lambda claim: claim[:2]), t0, t1
