"""How does a run with a layout look to a profiler's viewer? A Chrome trace with one process per stage, as PyTorch's profiler writes it.

Kernels stand on the compute stream, collectives under NCCL's names on streams of their own, waits with cause and resource on a further
track. A folder gets one file a stage, named ``rankN.json``, which HolisticTraceAnalysis reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.events import Cause
from sim.mesh import LayoutRun
from sim.report.chrome_trace import Event, headed, span, write_traces
from sim.units import counted

COMPUTE, WAITS = 7, 2
_NCCL = {
    "weight gathers": "ncclDevKernel_AllGather_RING_LL",
    "gradient reduction": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "activations between stages": "ncclDevKernel_SendRecv",
    "gradients between stages": "ncclDevKernel_SendRecv",
}


def write_layout_trace(run: LayoutRun, path: Path) -> str:
    """Write the trace of the last simulated step to *path* (``.json``, ``.json.gz``, or a folder); return what was written.

    Raise SpecError where that fails.
    """
    mesh = run.mesh
    parts = ((f"rank{mesh.rank(pipeline=stage)}.json", _document(run, range(stage, stage + 1))) for stage in range(mesh.stages))
    files = write_traces(path, lambda: _document(run, range(mesh.stages)), parts, "a stage")
    return f"{path}/: {', '.join(files)}" if files else f"{path}: one step of {counted(mesh.stages, 'stage')}"


def _document(run: LayoutRun, stages: range) -> dict[str, Any]:
    events: list[Event] = []
    for stage in stages:
        events += _stage(run, stage)
    shows = {"hardware": run.hardware.name, "workload": run.workload.name}
    return headed(run.mesh.rank(pipeline=stages[0]), run.gpus, shows, events)


def _stage(run: LayoutRun, stage: int) -> list[Event]:
    """Return the events of the ranks of *stage*, as those of its first rank."""
    step, rank = run.played.stages[stage], run.mesh.rank(pipeline=stage)
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"stage {stage}: rank {rank}"}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": WAITS, "args": {"name": "waits"}},
        span("user_annotation", "ProfilerStep#1", rank, 1, step.begin, step.end, {}),
    ]
    streams: dict[str, int] = {}
    for work in run.played.log.work:
        if work.rank != stage or work.t1 <= step.begin or work.t0 >= step.end:
            continue
        communicates = work.stream == "comm"
        stream = streams.setdefault(work.name, 20 + len(streams)) if communicates else COMPUTE
        name = _NCCL.get(work.name, "ncclDevKernel_AllReduce_Sum_f32_RING_LL") if communicates else work.name
        details = {"stream": stream, "device": 0, "what": work.name, "resource": work.resource, "bytes": work.nbytes}
        events.append(span("kernel", name, rank, stream, work.t0, work.t1, details))
    for wait in run.played.log.waits:
        if wait.rank == stage and wait.cause != Cause.COMPUTE and wait.t0 >= step.begin and wait.t1 <= step.end:
            events.append(span("wait", wait.cause.value, rank, WAITS, wait.t0, wait.t1, {"resource": wait.resource}))
    return events
