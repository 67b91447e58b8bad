"""How is a run with a layout shown in a profiler's viewer? As a Chrome trace with one process per stage, like PyTorch's profiler's.

Kernels are on the compute stream, collectives are on separate streams under NCCL's names with their groups and sizes, and waits are on
another track with cause and resource. A folder gets one file per rank, named ``rankN.json``, which HolisticTraceAnalysis reads; ranks of
a stage differ only in their groups. Beyond `MOST_FILES` ranks, the folder gets one file per stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.events import Cause, WorkSpan
from sim.mesh import LayoutRun
from sim.parallel.program import Tag
from sim.report.trace.chrome_trace import TraceEvent, kineto_document, span, write_traces
from sim.report.trace.layout_groups import arguments, groups, sent_by
from sim.study.not_validated import not_validated
from sim.training.layouts.scene import describe_tag
from sim.units import pluralized

COMPUTE, WAITS = 7, 2
MOST_FILES = 64
"""Maximum number of ranks that get a file each."""
_NCCL = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_{type}_RING_LL",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_{type}_RING_LL",
    "send_recv": "ncclDevKernel_SendRecv",
}
_TYPES = {"BFloat16": "bf16", "Half": "f16", "Float": "f32", "Float8_e4m3fn": "f8e4m3"}
"""NCCL's names of types by torch's names."""


def write_layout_trace(run: LayoutRun, path: Path) -> str:
    """Write the trace of the last simulated step to *path* (``.json``, ``.json.gz``, or a folder); return a text on what was written.

    Raise SpecError if writing fails.
    """
    run = run.completed()
    mesh = run.mesh
    all_ranks = mesh.gpus <= MOST_FILES
    ranks = range(mesh.gpus) if all_ranks else [mesh.rank(pipeline=stage) for stage in range(mesh.stages)]
    firsts = [mesh.rank(pipeline=stage) for stage in range(mesh.stages)]
    parts = ((f"rank{rank}.json", _document(run, [rank])) for rank in ranks)
    files = write_traces(path, lambda: _document(run, firsts), parts, "a rank" if all_ranks else "a stage")
    if files:
        return f"{path}/: rank0.json to {files[-1]}" if all_ranks and mesh.gpus > mesh.stages else f"{path}/: {', '.join(files)}"
    return f"{path}: one step of {pluralized(mesh.stages, 'stage')}"


def _document(run: LayoutRun, ranks: Sequence[int]) -> dict[str, Any]:
    events: list[TraceEvent] = []
    for rank in ranks:
        events += _rank(run, rank)
    shows = {"hardware": run.hardware.name, "workload": run.workload.name, "not_validated": not_validated(run)}
    return kineto_document(ranks[0], run.gpus, shows, events, groups(run, ranks[0]))


def _rank(run: LayoutRun, rank: int) -> list[TraceEvent]:
    """Return the events of *rank*, which are those of its stage."""
    stage = run.mesh.stage_of(rank)
    step = run.played.stages[stage]
    events: list[TraceEvent] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"stage {stage}: rank {rank}"}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": WAITS, "args": {"name": "waits"}},
        span("user_annotation", "ProfilerStep#1", rank, 1, step.begin, step.end, {}),
    ]
    streams: dict[str, int] = {}
    played = _operations(run, stage)
    sent_of = sent_by(run, stage)
    for work in run.played.log.work:
        if work.t1 <= step.begin or work.t0 >= step.end:
            continue
        if work.stream != "comm":
            if work.rank == stage:
                events.append(span("kernel", work.name, rank, COMPUTE, work.t0, work.t1, _details(work, COMPUTE)))
            continue
        tags = played.get((work.name, work.t0, work.resource))
        if work.rank != stage and not tags:
            continue  # only of other stages
        stream = streams.setdefault(work.name, 20 + len(streams))
        sent = sent_of.get(tag := tags.pop(0)) if tags else None
        details = arguments(run, rank, tag, sent) if sent is not None else {}
        # if the ranks of a stage are simulated separately, the run lists no operations: find the kind of operation by its name
        similar = sent or next((each for tag, each in sent_of.items() if describe_tag(tag) == work.name), None)
        name = _NCCL.get(similar.op if similar else "", "ncclDevKernel_Generic").format(type=_TYPES[details.get("dtype", "Float")])
        events.append(span("kernel", name, rank, stream, work.t0, work.t1, _details(work, stream) | details))
    for wait in run.played.log.waits:
        if wait.rank == stage and wait.cause != Cause.COMPUTE and wait.t0 >= step.begin and wait.t1 <= step.end:
            events.append(span("wait", wait.cause.value, rank, WAITS, wait.t0, wait.t1, {"resource": wait.resource}))
    return events


def _details(work: WorkSpan, stream: int) -> dict[str, Any]:
    return {"stream": stream, "device": 0, "what": work.name, "resource": work.resource, "bytes": work.nbytes}


def _operations(run: LayoutRun, stage: int) -> dict[tuple[str, float, str], list[Tag]]:
    """Return the operations in which the ranks of *stage* took part in the last step, by name, begin and resource in the log."""
    tags_of: dict[tuple[str, float, str], list[Tag]] = defaultdict(list)
    for each in run.played.operations:
        if stage in each.stages:
            tags_of[describe_tag(each.tag), each.begin, each.resource].append(each.tag)
    return tags_of
