"""What must each rank do for the nodes of a Chakra trace? This module converts the decoded files to graphs.

The conventions are those of Chakra's converters and of ASTRA-sim's feeder. ``comm_size`` is the input of a rank: its own part for an
all-gather or a gather, its whole vector for a reduce-scatter or an all-to-all. A collective runs among the ranks of ``pg_name`` (a
communicator in ``comm_group.json`` or in the trace's own ``process_group`` metadata), of ``involved_dim`` (the first dimension is the GPUs
of a node, the second the nodes), or among all ranks. A node without ``is_cpu_op`` runs on the GPU. A message is sent without waiting for
its receiver. Two attributes are specific to this simulator: ``duration_s`` (s), in addition to ``duration_micros`` (whole
microseconds), and ``rendezvous`` for a send that waits for its receiver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sim.parallel.graph import CollectiveOp, Graph, GraphNode
from sim.spec.foreign.chakra_files import TraceFiles
from sim.spec.foreign.chakra_wire import COLLECTIVES, NODE_TYPES, TraceNode
from sim.spec.yaml import SpecError

SECONDS_KEY: Final = "duration_s"
RENDEZVOUS_KEY: Final = "rendezvous"
BARRIER_BYTES: Final = 4.0
"""Bytes that a barrier reduces: one element (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
_OPS: Final[Mapping[str, CollectiveOp]] = {
    "ALL_REDUCE": "all_reduce", "REDUCE": "reduce", "ALL_GATHER": "all_gather", "GATHER": "gather", "SCATTER": "scatter",
    "BROADCAST": "broadcast", "ALL_TO_ALL": "all_to_all", "REDUCE_SCATTER": "reduce_scatter", "REDUCE_SCATTER_BLOCK": "reduce_scatter",
    "BARRIER": "all_reduce",
}  # fmt: skip
PART_SIZED: Final = ("all_gather", "gather")
"""Collectives whose ``comm_size`` is one rank's part of the vector."""
_WORLD: Final = ("", "0")
"""Names of the communicator of all ranks, unless a file defines other members for them."""


def graphs_of(trace: TraceFiles, gpus_per_node: Sequence[int]) -> tuple[Graph, ...]:
    """Return the graph of each rank of *trace*; ranks are placed on nodes with *gpus_per_node* GPUs each.

    Raise SpecError with file and node if a trace is inconsistent.
    """
    world = tuple(range(len(trace.ranks)))
    nodes: list[tuple[int, ...]] = []
    for count in gpus_per_node:
        start = sum(map(len, nodes))
        nodes.append(world[start : start + count])
    return tuple(
        _NodeReader(str(path), rank, world, nodes, {**_process_groups(own, str(path), len(world)), **trace.groups}).graph(own)
        for rank, (path, own) in enumerate(zip(trace.paths, trace.ranks, strict=True))
    )


def _process_groups(nodes: Sequence[TraceNode], where: str, ranks: int) -> dict[str, tuple[int, ...]]:
    """Return the process groups in the metadata nodes of PyTorch's traces."""
    groups = {}
    for node in nodes:
        begin = node.inputs.find("[{")
        if _type(node) != "METADATA_NODE" or begin < 0:
            continue
        try:
            described, _ = json.JSONDecoder().raw_decode(node.inputs.replace('\\"', '"')[begin:])
            for group in described:
                groups[str(group["pg_name"])] = tuple(int(rank) for rank in group["ranks"]) or tuple(range(ranks))
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(f"{where}: node {node.id}: its process groups cannot be read: {error}") from None
        wrong = next((name for name, members in groups.items() if not set(members) <= set(range(ranks))), None)
        if wrong is not None:
            raise SpecError(f"{where}: node {node.id}: process group {wrong} has a rank beyond the trace's {ranks} ranks")
    return groups


def _type(node: TraceNode) -> str:
    return NODE_TYPES[node.type] if 0 <= node.type < len(NODE_TYPES) else ""


@dataclass
class _NodeReader:
    """Reads the nodes of one rank."""

    where: str
    rank: int
    world: tuple[int, ...]
    nodes: Sequence[tuple[int, ...]]
    """Ranks of each node of the machine."""
    groups: Mapping[str, tuple[int, ...]]
    places: dict[int, int] = field(default_factory=dict)

    def graph(self, nodes: Sequence[TraceNode]) -> Graph:
        if not nodes:
            raise SpecError(f"{self.where}: has no nodes; a trace needs at least one")
        for place, node in enumerate(nodes):
            if node.id in self.places:
                raise SpecError(f"{self.where}: node {node.id} appears twice; each id must be unique")
            self.places[node.id] = place
        return Graph(self.where, tuple(self._node(node) for node in nodes))

    def _node(self, node: TraceNode) -> GraphNode:
        kind = _type(node)
        base = GraphNode(node.id, node.name, "nothing", self._dependencies(node))
        if kind == "COMP_NODE":
            on_host = node.attributes.get("is_cpu_op", False)
            seconds, flop = self._seconds(node), self._amount(node, "num_ops")
            return base._replace(
                kind="host" if on_host else "compute", seconds=seconds, flop=flop, nbytes=self._amount(node, "tensor_size")
            )
        if kind in ("MEM_LOAD_NODE", "MEM_STORE_NODE"):
            return base._replace(kind="memory", seconds=self._seconds(node), nbytes=self._amount(node, "tensor_size"))
        if kind == "COMM_COLL_NODE":
            return self._collective(node, base)
        if kind in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
            return self._message(node, base, kind == "COMM_SEND_NODE")
        if kind in ("INVALID_NODE", "METADATA_NODE"):
            return base
        played = ", ".join(NODE_TYPES[1:])
        raise self._error(node, f"has type {node.type}, which is not supported; supported are {played}")

    def _dependencies(self, node: TraceNode) -> tuple[int, ...]:
        places = []
        for dependency in dict.fromkeys((*node.data_deps, *node.ctrl_deps)):
            if dependency not in self.places:
                raise self._error(node, f"waits for node {dependency}, which is not in the file")
            places.append(self.places[dependency])
        return tuple(places)

    def _seconds(self, node: TraceNode) -> float | None:
        """Return the recorded duration (s), or None if there is none."""
        exact = node.attributes.get(SECONDS_KEY)
        if exact is not None:
            return self._amount(node, SECONDS_KEY)
        if node.duration_micros < 0:
            raise self._error(node, f"duration_micros is {node.duration_micros}; expected 0 or more")
        return node.duration_micros * 1e-6 if node.duration_micros else None

    def _collective(self, node: TraceNode, base: GraphNode) -> GraphNode:
        number = self._number(node, "comm_type")
        if not 0 <= number < len(COLLECTIVES):
            names = ", ".join(f"{place} {name}" for place, name in enumerate(COLLECTIVES))
            raise self._error(node, f"comm_type {number} is unknown; expected one of {names}")
        op = _OPS[COLLECTIVES[number]]
        name, ranks = self._members(node)
        nbytes = BARRIER_BYTES if COLLECTIVES[number] == "BARRIER" else self._amount(node, "comm_size", needed=True)
        total = nbytes * len(ranks) if op in PART_SIZED else nbytes
        return base._replace(kind="collective", op=op, nbytes=total, communicator=name, ranks=ranks)

    def _members(self, node: TraceNode) -> tuple[str, tuple[int, ...]]:
        """Return the name and the ranks of the communicator of *node*."""
        name = str(node.attributes.get("pg_name", ""))
        if name in self.groups:
            ranks = self.groups[name]
        elif name in _WORLD:
            name, ranks = self._along(node)
        else:
            listed = ", ".join(sorted(self.groups)) or "none"
            raise self._error(node, f"communicator {name} is unknown (known: {listed}); name its ranks in comm_group.json")
        if self.rank not in ranks:
            raise self._error(node, f"communicator {name} has ranks {', '.join(map(str, ranks))}, but this is rank {self.rank}")
        return name, ranks

    def _along(self, node: TraceNode) -> tuple[str, tuple[int, ...]]:
        """Return the communicator along the machine dimensions that *node* names, or all ranks if it names none."""
        dims = node.attributes.get("involved_dim")
        if not isinstance(dims, list) or all(dims):
            return "", self.world
        if len(dims) < 2 or any(dims[2:]) or not any(dims):
            text = "[" + ", ".join(str(bool(each)).lower() for each in dims) + "]"
            dimensions = "the first dimension is the GPUs of a node, the second the nodes"
            raise self._error(node, f"involved_dim {text}: {dimensions}; name ranks by pg_name instead")
        own = next(ranks for ranks in self.nodes if self.rank in ranks)
        if dims[0]:
            return "inside nodes", own
        place = own.index(self.rank)
        return "across nodes", tuple(ranks[place] for ranks in self.nodes if place < len(ranks))

    def _message(self, node: TraceNode, base: GraphNode, sends: bool) -> GraphNode:
        own, other = ("comm_src", "comm_dst") if sends else ("comm_dst", "comm_src")
        here = self._number(node, own, self.rank)
        if here != self.rank:
            raise self._error(node, f"{own} is {here}, but this is rank {self.rank}")
        peer = self._number(node, other)
        if peer not in self.world or peer == self.rank:
            raise self._error(node, f"{other} is {peer}; expected another of the ranks 0 to {len(self.world) - 1}")
        nbytes = self._amount(node, "comm_size", needed=True)
        meets = node.attributes.get(RENDEZVOUS_KEY) is True
        tag = self._number(node, "comm_tag", 0)
        return base._replace(kind="send" if sends else "receive", nbytes=nbytes, peer=peer, tag=tag, has_rendezvous=meets)

    def _number(self, node: TraceNode, name: str, default: int | None = None) -> int:
        value: Any = node.attributes.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(node, f"{name} is {'missing' if value is None else repr(value)}; expected a whole number")
        return value

    def _amount(self, node: TraceNode, name: str, needed: bool = False) -> float:
        value: Any = node.attributes.get(name, None if needed else 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(node, f"{name} is {'missing' if value is None else repr(value)}; expected a number")
        if not 0 <= value < float("inf"):
            raise self._error(node, f"{name} is {value}; expected 0 or more")
        return float(value)

    def _error(self, node: TraceNode, what: str) -> SpecError:
        return SpecError(f"{self.where}: node {node.id}{f' ({node.name})' if node.name else ''}: {what}")
