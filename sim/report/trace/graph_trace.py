"""How is a simulated Chakra trace shown in a profiler's viewer? As a Chrome trace with one process per rank.

Kernels, host and memory have separate tracks. Collectives have one track for each operation of a communicator, and waits have another,
with cause and resource. A folder gets one file per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sim.events import Cause
from sim.report.trace.chrome_trace import TraceEvent, kineto_document, span, write_traces
from sim.report.trace.layout_trace import COMPUTE, WAITS
from sim.study.graph import GraphRun
from sim.training.graphs.run import CompletedOperation, operation_name
from sim.units import pluralized

_TRACKS: Final = {"gpu": (COMPUTE, "stream 7: compute", "kernel"), "host": (1, "host", "cpu_op"), "memory": (14, "memory", "gpu_memcpy")}
_COMM: Final = 20


def write_graph_trace(run: GraphRun, path: Path) -> str:
    """Write the step to *path* (``.json``, ``.json.gz``, or a folder for one file per rank); return a text on what was written.

    Raise SpecError if writing fails.
    """
    ranks = range(len(run.ranks))
    parts = ((f"rank{rank}.json", _document(run, [rank])) for rank in ranks)
    files = write_traces(path, lambda: _document(run, ranks), parts, "a rank")
    return f"{path}/: {files[0]} to {files[-1]}" if files else f"{path}: one step of {pluralized(len(ranks), 'rank')}"


def _document(run: GraphRun, ranks: Sequence[int]) -> dict[str, Any]:
    shown = set(ranks)
    events: list[TraceEvent] = [event for rank in ranks for event in _names(rank)]
    for work in run.played.log.work:
        if work.stream in _TRACKS and work.rank in shown:
            track, _, category = _TRACKS[work.stream]
            events.append(span(category, work.name, work.rank, track, work.t0, work.t1, {"stream": track, "resource": work.resource}))
    tracks: dict[str, int] = {}
    for done in run.played.done:
        track = tracks.setdefault(operation_name(done.node), _COMM + len(tracks))
        events += [_operation(done, rank, track) for rank in done.ranks if rank in shown and done.end > done.begin]
    for rank in ranks:
        for wait in run.ranks[rank].waits:
            if wait.cause != Cause.COMPUTE:
                events.append(span("wait", wait.cause.value, rank, WAITS, wait.t0, wait.t1, {"resource": wait.resource}))
    return kineto_document(ranks[0], len(run.ranks), {"hardware": run.hardware.name, "chakra": run.name}, events)


def _names(rank: int) -> list[TraceEvent]:
    tracks = {WAITS: "waits", **{track: name for track, name, _ in _TRACKS.values()}}
    own: list[TraceEvent] = [{"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}]
    return own + [{"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}} for track, name in tracks.items()]


def _operation(done: CompletedOperation, rank: int, track: int) -> TraceEvent:
    details = {"stream": track, "operation": operation_name(done.node), "bytes": round(done.node.nbytes), "ranks": list(done.ranks)}
    resource = done.pieces[-1].resource if done.pieces else ""
    return span("kernel", done.node.name or operation_name(done.node), rank, track, done.begin, done.end, details | {"resource": resource})
