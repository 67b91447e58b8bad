"""How is a simulated trace reported? Its step by cause, communication by communicator and collective, and ranks, as text and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from sim import __version__
from sim.causes import GRAPH_MEANINGS
from sim.events import LAYOUT_STALLS, Cause
from sim.report.layouts.layout import NOTEWORTHY
from sim.report.table import basis_lines, stall_lines
from sim.study.graph import GraphRun
from sim.training.graphs.run import CompletedOperation, operation_name
from sim.units import pluralized, show

SCHEMA: Final = 1
MOST_RANKS: Final = 8
"""Maximum number of ranks with a line of their own."""


def graph_document(run: GraphRun) -> dict[str, Any]:
    """Return the document of one simulated trace."""
    ranks = len(run.ranks)
    stalls = {cause.value: sum(rank.stalls[cause] for rank in run.ranks) / ranks for cause in LAYOUT_STALLS}
    return {
        "schema": SCHEMA,
        "hardware": run.hardware.name,
        "trace": run.name,
        "nodes": run.nodes,
        "gpus": ranks,
        "step_time_s": run.step_time,
        "stalls_s": stalls,
        "communication": _communication(run),
        "by_communicator": _communicators(run),
        "by_rank": [
            {"rank": number, "operations": len(graph.nodes), "end_s": end, "stalls_s": _stalls(own.stalls)}
            for number, (graph, own, end) in enumerate(zip(run.graphs, run.ranks, run.played.ends, strict=True))
        ],
        "verdict": _verdict(run, stalls),
        "assumptions": _assumptions(run),
        "warnings": _warnings(run),
        "version": __version__,
        "inputs_sha256": dict(run.inputs),
    }  # fmt: skip


def _stalls(seconds: Mapping[Cause, float]) -> dict[str, float]:
    return {cause.value: seconds[cause] for cause in LAYOUT_STALLS}


def _communication(run: GraphRun) -> list[dict[str, Any]]:
    """Return a row per collective and size of communicator, and one for messages, by decreasing time that compute waits for it."""
    rows: dict[str, dict[str, Any]] = {}
    members: dict[str, set[object]] = defaultdict(set)
    kind_of: dict[str, str] = {}
    for done in run.played.done:
        own = operation_name(done.node)
        kind = kind_of[own] = own if not done.node.communicator else f"{done.node.op} of communicators of {len(done.ranks)} ranks"
        new = {"name": kind, "ranks": len(done.ranks), "communicators": 0, "operations": 0, "bytes": 0.0, "time_s": 0.0, "exposed_s": 0.0}
        _add(rows.setdefault(kind, new), done)
        members[kind].add((done.node.communicator, done.ranks))
    for kind, row in rows.items():
        row["communicators"] = len(members[kind])
        row["time_s"] /= len(members[kind])
    for step in run.ranks:
        for own, seconds in step.exposed.items():
            rows[kind_of[own]]["exposed_s"] += seconds / len(run.ranks)
    return sorted(rows.values(), key=lambda row: (-row["exposed_s"], row["name"]))


def _communicators(run: GraphRun) -> list[dict[str, Any]]:
    """Return a row for each collective of each communicator, and for the messages between two ranks."""
    rows: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    for done in run.played.done:
        own = operation_name(done.node)
        new = {"name": own, "ranks": list(done.ranks), "operations": 0, "bytes": 0.0, "time_s": 0.0}
        _add(rows.setdefault((own, done.ranks), new), done)
    return list(rows.values())


def _add(row: dict[str, Any], done: CompletedOperation) -> None:
    row["operations"] += 1
    row["bytes"] += done.node.nbytes
    row["time_s"] += done.end - done.begin


def _verdict(run: GraphRun, stalls: Mapping[str, float]) -> str:
    step = run.step_time
    if not step:
        return "Nothing in the trace takes time."
    busy = f"GPUs are busy {100 * stalls['compute'] / step:.0f}% of the step"
    waits: dict[str, float] = defaultdict(float)
    for own in run.ranks:
        for wait in own.waits:
            if wait.cause != Cause.COMPUTE:
                waits[wait.resource] += (wait.t1 - wait.t0) / len(run.ranks)
    longest = max(waits, key=lambda resource: waits[resource], default=None)
    if longest is None or waits[longest] < NOTEWORTHY * step:
        return f"Compute-bound: {busy}."
    return f"{busy}; the longest wait is {100 * waits[longest] / step:.0f}%, for {longest}."


def _assumptions(run: GraphRun) -> list[str]:
    nodes = [node for graph in run.graphs for node in graph.nodes if node.kind == "compute"]
    recorded = sum(node.seconds is not None for node in nodes)
    guessed = sum(node.seconds is None and node.flop + node.nbytes > 0 for node in nodes)
    sentences = [f"durations of compute are from the trace ({recorded:,} of {len(nodes):,} operations)"] if recorded else []
    if guessed:
        units = f"{run.peak} units" if run.peak else "16-bit units where the GPU has them"
        sentences.append(
            f"compute without a duration is timed from its num_ops and tensor_size on the GPU ({guessed:,} operations, {units})"
        )
    empty = len(nodes) - recorded - guessed
    if empty:
        sentences.append(f"compute without a duration, num_ops or tensor_size takes no time ({pluralized(empty, 'operation')})")
    if any(node.kind == "memory" and node.seconds is None for graph in run.graphs for node in graph.nodes):
        sentences.append("loads and stores without a duration take place at the bandwidth of GPU memory")
    version, *_ = run.prices.tuning
    return [
        *sentences,
        f"NCCL {version}'s rules choose the algorithm, protocol and channels of collectives; their recorded durations are not used",
    ]


def _warnings(run: GraphRun) -> list[str]:
    return [] if run.played.done or len(run.ranks) == 1 else ["the ranks of the trace never communicate"]


def graph_text(run: GraphRun, document: Mapping[str, Any]) -> str:
    """Return *document* of *run* as text for a terminal."""
    gpu = run.prices.node(0).gpu.name
    counts = sum(row["operations"] for row in document["by_rank"])
    lines = [
        f"{document['trace']} on {document['hardware']}: {document['gpus']} x {gpu}, {pluralized(document['nodes'], 'node')}; "
        f"{pluralized(counts, 'operation')} of {pluralized(document['gpus'], 'rank')}",
        "",
        f"  step {show(document['step_time_s'], 'time')}",
        "",
    ]
    lines += [*stall_lines(document, GRAPH_MEANINGS), "", f"  {document['verdict']}"]
    if document["communication"]:
        lines += ["", f"  {'exposed':>10} {'time':>10} {'calls':>9} {'size':>10}  communication"]
        lines += [
            f"  {show(row['exposed_s'], 'time'):>10} {show(row['time_s'], 'time'):>10} {row['operations']:>9,} "
            f"{show(row['bytes'], 'binary size'):>10}  {row['name']}{_count_text(row)}"
            for row in document["communication"]
        ]
    lines += ["", *_rank_lines(document), "", *basis_lines(document)]
    return "\n".join(lines)


def _count_text(row: Mapping[str, Any]) -> str:
    return f" ({row['communicators']} of them)" if row["communicators"] > 1 else ""


def _rank_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each rank, or for the first ones if there are many."""
    ranks = document["by_rank"]
    lines = [f"  {'rank':>6} {'compute':>10} {'waits':>10} {'ends at':>10}"]
    for row in ranks[:MOST_RANKS]:
        compute = row["stalls_s"]["compute"]
        waits = sum(row["stalls_s"].values()) - compute
        lines.append(f"  {row['rank']:>6} {show(compute, 'time'):>10} {show(waits, 'time'):>10} {show(row['end_s'], 'time'):>10}")
    return [*lines, f"    ... {len(ranks) - MOST_RANKS} more (--json lists them)"] if len(ranks) > MOST_RANKS else lines


def rank_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a flat row for each rank of *document*."""
    return [
        {key: row[key] for key in ("rank", "operations", "end_s")} | {f"{name}_s": value for name, value in row["stalls_s"].items()}
        for row in document["by_rank"]
    ]  # fmt: skip
