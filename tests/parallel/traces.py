"""Chakra traces written by hand: a node in a line, a file a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.parallel.chakra import graphs_of
from sim.parallel.graph import Graph
from sim.spec.foreign.chakra_files import read_trace
from sim.spec.foreign.chakra_wire import COLLECTIVES, NODE_TYPES, TraceNode, metadata_bytes, node_bytes

MICRO = 1e-6


def compute(number: int, seconds: float, *after: int, host: bool = False, **attributes: Any) -> TraceNode:
    """A node that takes *seconds*, exactly."""
    said = {"is_cpu_op": host, "duration_s": seconds, **attributes}
    return TraceNode(number, f"kernel {number}", NODE_TYPES.index("COMP_NODE"), (), after, 0, round(seconds / MICRO), "", said)


def collective(number: int, op: str, nbytes: int, *after: int, **attributes: Any) -> TraceNode:
    """A collective as ASTRA-sim's generators of microbenchmarks write it."""
    said = {"is_cpu_op": False, "comm_type": COLLECTIVES.index(op), "comm_size": nbytes, **attributes}
    return TraceNode(number, op, NODE_TYPES.index("COMM_COLL_NODE"), (), after, 0, 0, "", said)


def send(number: int, target: int, nbytes: int, *after: int, **attributes: Any) -> TraceNode:
    said = {"comm_dst": target, "comm_size": nbytes, "comm_tag": 0, **attributes}
    return TraceNode(number, "", NODE_TYPES.index("COMM_SEND_NODE"), (), after, 0, 0, "", said)


def receive(number: int, source: int, nbytes: int, *after: int, **attributes: Any) -> TraceNode:
    said = {"comm_src": source, "comm_size": nbytes, "comm_tag": 0, **attributes}
    return TraceNode(number, "", NODE_TYPES.index("COMM_RECV_NODE"), (), after, 0, 0, "", said)


def as_file(nodes: Sequence[TraceNode]) -> bytes:
    return metadata_bytes() + b"".join(map(node_bytes, nodes))


def write(folder: Path, *ranks: Sequence[TraceNode], name: str = "toy", groups: str = "") -> Path:
    """Write *ranks* into *folder*; return what names the trace."""
    folder.mkdir(exist_ok=True, parents=True)
    for rank, nodes in enumerate(ranks):
        (folder / f"{name}.{rank}.et").write_bytes(as_file(nodes))
    if groups:
        (folder / "comm_group.json").write_text(groups)
    return folder / f"{name}.et"


def graphs(folder: Path, *ranks: Sequence[TraceNode], groups: str = "", gpus_per_node: Sequence[int] = ()) -> tuple[Graph, ...]:
    """Return the graphs of *ranks*, through files."""
    trace = read_trace(str(write(folder, *ranks, groups=groups)))
    return graphs_of(trace, gpus_per_node or [len(ranks)])
