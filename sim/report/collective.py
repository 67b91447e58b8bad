"""How is a table of collectives presented? As text like that of nccl-tests, as JSON, as CSV, and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from sim import __version__
from sim.check import domain_warnings
from sim.report.collective_error import collective_error, error_lines, unmeasured
from sim.report.fabric_plot import fabric_plot
from sim.report.nccl_choice import NOTEWORTHY
from sim.report.picture import Picture, figure, picture
from sim.training.collectives.price.point_to_point import SENDS
from sim.training.collectives.price.table import CollectiveRow, MeshGroup, Table
from sim.units import pluralized, show


def collective_document(table: Table) -> dict[str, Any]:
    """Return the JSON document of *table*."""
    rows = [
        {
            "bytes": row.nbytes,
            "time_s": row.time,
            "algbw_bytes_per_s": row.algbw,
            "busbw_bytes_per_s": row.busbw,
            "algorithm": row.algorithm,
            "protocol": row.protocol,
            "channels": row.channels,
            "bottleneck": row.bottleneck,
        }
        | ({} if row.by_itself is None else {"by_itself_s": row.by_itself})
        for row in table.rows
    ]
    head = {"schema": 1, "hardware": table.hardware, "op": table.op, "nodes": table.nodes, "gpus": table.ranks}
    rests_on = {
        "assumptions": assumptions(table),
        "warnings": collective_warnings(table),
        "version": __version__,
        "inputs_sha256": dict(table.inputs),
    }
    head |= {} if table.group is None else {"group": group_document(table.group)}
    return head | {"bisection_bytes_per_s": table.bisection or None, "rows": rows, "expected_error": collective_error(table), **rests_on}


def group_document(group: MeshGroup) -> dict[str, Any]:
    """Return the JSON entry of a group of a mesh."""
    return {
        "name": group.name,
        "axes": dict(group.axes),
        "stage": group.stage,
        "ranks": list(group.ranks),
        "nodes_and_gpus": [list(place) for place in group.places],
        "groups": group.groups,
        "groups_on_node": group.on_node,
        "links": [use._asdict() | {"tier": use.tier.value} for use in group.links],
    }


def axes_text(axes: Mapping[str, int]) -> str:
    """Return the *axes* of a mesh that have several ranks as text, the axis of neighboring ranks first."""
    return " x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1)


def group_lines(group: MeshGroup, nbytes: float) -> list[str]:
    """Return lines that tell where *group* is placed, which groups communicate at the same time, and which links they share at *nbytes*."""
    shown = [f"{rank} (node {node}, GPU {gpu})" for rank, (node, gpu) in zip(group.ranks, group.places, strict=True)]
    ranks = ", ".join(shown if len(shown) <= _SHOWN else [*shown[: _SHOWN - 1], "...", shown[-1]])
    what = "messages" if group.name in ("pp", "pipeline") else "groups"
    shared = [
        f"  {use.busiest}{f' and {use.links - 1} similar' if use.links > 1 else ''}: "
        f"{'shared by the whole machine' if use.groups is None else pluralized(use.groups, what[:-1])}, {100 * use.busy:.0f}% busy"
        for use in group.links
    ]
    return [
        f"ranks {ranks}",
        f"at the same time: {pluralized(group.groups, what[:-1])} of stage {group.stage}, {group.on_node} with ranks on its first node",
        f"links there, with {show(nbytes, 'binary size')}:",
        *shared,
    ]


_SHOWN = 4
"""Maximum number of ranks of a group that the text lists."""


def assumptions(table: Table) -> list[str]:
    """Return the assumptions behind the times of *table*."""
    version, algorithms, protocols, channels = table.tuning
    settings = {"NCCL_ALGO": algorithms, "NCCL_PROTO": protocols, "NCCL_MAX_NCHANNELS": channels}
    forced = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    in_turn = f"each process launches on its {table.per_process} GPUs in turn, and launches the next collective while this one runs"
    return [
        f"NCCL {version}'s rules choose the algorithm, protocol and channels for each size{f', with {forced}' if forced else ''}",
        "all ranks start together with their data in GPU memory and open connections; nothing else runs",
        *([] if table.group is None else ["all groups of this kind in its stage exchange at the same time and share links evenly"]),
        *([in_turn] if table.per_process > 1 else []),
        *([f"ranks divide the data they send as {table.shares}; bytes are the mean of a rank"] if table.shares else []),
    ]


def collective_warnings(table: Table) -> list[str]:
    """Return warnings about racks that do not exist, what was never measured, and sizes that take longer than the next larger one."""
    return [*(domain_warnings(table.machine) if table.machine else []), *unmeasured(table), *_falls(table)]


def _falls(table: Table) -> list[str]:
    """Return a warning if a larger size takes less time: NCCL, whose tuner has a model of its own, chose worse for the smaller."""
    falls = [(one.time / other.time - 1, one, other) for one, other in pairwise(table.rows) if one.time > (1 + NOTEWORTHY) * other.time]
    if not falls:
        return []
    _, one, other = max(falls, key=lambda fall: fall[0])
    more = f"; {pluralized(len(falls) - 1, 'other size')} likewise" if len(falls) > 1 else ""
    rules = "'s tuner chooses by its own estimate of the times (--algo and --proto force a choice)"
    if table.op in SENDS:
        rules = " opens channels by the size of a message alone"
    return [f"{_taken(one)} is more than {_taken(other)}: NCCL {table.tuning.version}{rules}{more}"]


def _taken(row: CollectiveRow) -> str:
    channels = pluralized(row.channels, "channel")
    return f"{show(row.time, 'time')} for {show(row.nbytes, 'binary size')} by {row.algorithm} with {row.protocol} on {channels}"


def collective_text(table: Table) -> str:
    """Return *table* in aligned columns."""
    chosen = f"{'algorithm':15} {'protocol':8} {'channels':>8}"
    halves = (
        [f"bandwidth between halves of the cluster: {show(table.bisection, 'bandwidth')} each way"]
        if table.bisection and table.group is None
        else []
    )
    group = [] if table.group is None else ["", *group_lines(table.group, max(row.nbytes for row in table.rows))]
    alone = "" if table.group is None else f" {'isolated':>10}"
    lines = [_title(table), *halves, *group, "", f"{'size':>10} {'time':>10}{alone} {'algbw':>11} {'busbw':>11}  {chosen}  bottleneck"]
    for row in table.rows:
        size, time = show(row.nbytes, "binary size"), show(row.time, "time")
        alone = "" if row.by_itself is None else f" {show(row.by_itself, 'time'):>10}"
        rates = f"{show(row.algbw, 'bandwidth'):>11} {show(row.busbw, 'bandwidth'):>11}"
        lines.append(f"{size:>10} {time:>10}{alone} {rates}  {row.algorithm:15} {row.protocol:8} {row.channels:>8}  {row.bottleneck}")
    error = collective_error(table)
    notes = [*(error_lines(error) if error else []), *(f"warning: {line}" for line in collective_warnings(table))]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def fabric_files(table: Table) -> dict[str, bytes]:
    """Return pictures of the fabric of *table*'s machine by file name; empty if the fabric has no structure to show."""
    drawn = fabric_plot(table.machine) if table.machine else None
    return drawn.files("fabric") if drawn else {}


def collective_plot(table: Table) -> Picture:
    """Return a plot of bus bandwidth over size."""
    drawn, (axes,) = figure(1, (8, 4.5))
    axes.plot([row.nbytes for row in table.rows], [row.busbw / 1e9 for row in table.rows], marker="o", markersize=4, color="#4477aa")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: show(size, "binary size"))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size")
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.set_title(_title(table), fontsize=11, loc="left")
    axes.grid(alpha=0.3)
    return picture(drawn)


def _title(table: Table) -> str:
    nodes = pluralized(table.nodes, "node")
    if table.group is None:
        return f"{table.op} on {table.hardware}: {pluralized(table.ranks, 'GPU')} on {nodes}"
    axes = axes_text(table.group.axes)
    return f"{table.op} in groups '{table.group.name}' of {axes} on {table.hardware}: {pluralized(table.ranks, 'GPU')} on {nodes}"
