"""How is a data-parallel run written as a Chakra trace? One warm step of each rank: its work in order, with concurrent collectives.

The waits of a rank cover its step without gaps, so they become a chain. Computing is an operation of the GPU; waiting for a batch, a copy
or a launch is one of the host; both keep their durations. Waiting for gradients is a dependency on the collectives that ended in that
time, and the program that replays the trace determines their time. Limits: if the steps of a job differ, the step is the last one of
its period; contention between collectives and copies of the host is not recorded; parameter servers have no collectives to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from sim.events import Cause, WaitSpan, WorkSpan
from sim.report.nccl_kernels import operation_of
from sim.report.trace.chakra import Recording, as_bytes, write_ranks
from sim.report.trace.excerpt import RankExcerpt, excerpt
from sim.simulate import Run
from sim.spec.yaml import SpecError
from sim.training.server_plan import ServerPlan

_INSTANT: Final = 1e-12


def write_run(run: Run, folder: Path) -> str:
    """Write one warm step of *run* into *folder*, one file per rank; return a text on what was written. Raise SpecError if impossible."""
    if len(run.jobs) > 1:
        raise SpecError(f"--chakra: a trace holds one job, but the workload has {len(run.jobs)}; use a workload of one job")
    job, plan = run.jobs[0].job, run.rings[0]
    if isinstance(plan, ServerPlan):
        raise SpecError("--chakra: parameter servers use no collectives, so a Chakra trace cannot represent them; choose another --stack")
    chosen = {rank_excerpt.index: _nodes(run, rank_excerpt) for rank_excerpt in excerpt(run, 1).ranks}
    slots = {number: slot.name for slot in run.cluster for number in slot.numbers}
    classes = {(rank.node, gpu): rank.number for rank in run.log.ranks for gpu in rank.gpus}
    ranks = [chosen[classes[slots[part.node], gpu]] for part in job.placement for gpu in part.gpus]
    description = f"{job.workload.name} on {run.hardware.name}, {job.workload.training.stack.name}"
    return write_ranks(folder, job.workload.name, ranks, description)


class _RankArrival(NamedTuple):
    """A collective of the step, when this rank arrived at it (s), and the delay of its slowest rank beyond earlier delays."""

    work: WorkSpan
    came: float
    late: float


def _nodes(run: Run, rank: RankExcerpt) -> list[bytes]:
    """Return the nodes of one rank, as bytes."""
    start, end = rank.boundaries[-2], rank.boundaries[-1]
    recording = Recording()
    due = list(_exchanges(rank, start, end))
    stream: list[int] = []
    sent: list[tuple[float, int]] = []
    """When each collective ended, and its node."""
    for wait in _cut([wait for wait in rank.waits if start <= wait.t0 < end - _INSTANT], [each.came for each in due]):
        until = wait.t1 if wait.cause is Cause.GRADIENT else wait.t0
        while due and due[0].came <= until + _INSTANT:
            sent.append((due[0].work.t1, _collective(run, recording, due.pop(0), stream)))
        seconds = wait.t1 - wait.t0
        if wait.cause is Cause.GRADIENT:
            ended = [(over, node) for over, node in sent if over <= wait.t1 + _INSTANT]
            stream = [*stream, *(node for _, node in ended)]
            seconds = wait.t1 - max([wait.t0, *(over for over, _ in ended)])
        if seconds > _INSTANT:
            stream = [recording.compute(_name(rank, wait), seconds, stream, host=wait.cause is not Cause.COMPUTE)]
    return as_bytes(recording.nodes)


def _exchanges(rank: RankExcerpt, start: float, end: float) -> Iterator[_RankArrival]:
    """Yield the collectives at which *rank* arrives from *start* to *end*, in order."""
    free = late = start
    for work in rank.collectives:
        if not start - _INSTANT <= work.t0 < end - _INSTANT or not work.nbytes:
            continue
        ready = [own.t1 for own in rank.compute if own.ident == work.ident >= 0 and start < own.t1 <= work.t0 + _INSTANT]
        came = max(ready, default=work.t0)
        pieces = (bound for bound in rank.bounds if bound.ident == work.ident and bound.t0 < work.t1)
        moves = min((bound.t0 for bound in pieces if bound.t1 > work.t0 + _INSTANT), default=work.t0)
        waits = moves > max(came, free) + _INSTANT
        yield _RankArrival(work, came, max(0.0, moves - max(came, late)) if waits else 0.0)
        free, late = work.t1, moves if waits else late


def _cut(waits: Sequence[WaitSpan], at: Sequence[float]) -> Iterator[WaitSpan]:
    """Yield *waits*, split where a collective begins inside one; waits for gradients stay whole."""
    for wait in waits:
        begin = wait.t0
        for time in sorted(time for time in at if wait.t0 + _INSTANT < time < wait.t1 - _INSTANT and wait.cause is not Cause.GRADIENT):
            yield wait._replace(t0=begin, t1=time)
            begin = time
        yield wait._replace(t0=begin)


def _collective(run: Run, recording: Recording, exchange: _RankArrival, after: Sequence[int]) -> int:
    """Record a collective after the nodes *after*, and after the delay of its slowest rank."""
    job, plan, work = run.jobs[0].job, run.rings[0], exchange.work
    ranks = plan.ranks if plan is not None else 1
    if exchange.late > _INSTANT:
        after = [recording.add_lateness(exchange.late, after)]
    return recording.collective(work.name, operation_of(work.name, work.nbytes, job.workload, ranks), work.nbytes, "", ranks, after)


def _name(rank: RankExcerpt, wait: WaitSpan) -> str:
    """Return what the rank computed during *wait*, or what it waited for."""
    if wait.cause is not Cause.COMPUTE:
        return wait.cause.value
    middle = (wait.t0 + wait.t1) / 2
    return next((work.name for work in rank.compute if work.t0 <= middle <= work.t1), "compute")
