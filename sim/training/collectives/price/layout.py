"""Where are the ranks of a job, and which edges connect them? Rings, chains inside nodes, and NIC-to-NIC edges between nodes.

Rings are those of `channels`. A tree follows them (NVIDIA/nccl `src/graph/connect.cc`). Inside a node it is a chain along the ring without
the closing hop, in both directions. Between nodes it connects the first GPUs of the chains, through the NIC at which the ring enters.
Isolated GPUs, which NCCL treats as separate nodes, send the same bytes along that chain in fewer hops. If all nodes are equal, one
represents all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations
from operator import itemgetter
from typing import Final

from sim.cluster.fabric import UNLIMITED_FABRIC, JobFabric
from sim.parallel.program import Op
from sim.spec.hardware import Fabric, Transport
from sim.training.collectives.nccl.constants import NVLS_MOST_HEADS
from sim.training.collectives.price.traffic import Edge, SlotPart
from sim.training.collectives.routes.channels import NETWORK, AlgorithmRow, Channel, Hop, nic_of, ring_channels

GPUDIRECT = " with GPUDirect"
"""Suffix for the class of NICs that GPUs reach without copies through host memory."""
GPUDIRECT_BY_PROCESSOR = " with GPUDirect through the processor"
"""The same, if the path crosses a host bridge, as NCCL_NET_GDR_LEVEL allows."""
GROUPS: Final = 64
"""Number of groups whose streams are kept. A search over one provider's machines, with racks of 72 GPUs, has 505. With all of them kept, it
took 39 MB more (of 340), and 75 s of CPU in place of 77, a difference that equal runs have, too."""
_OTHER_LINKS = ("xgmi", "ici")
"""Links between GPUs or TPUs that are described as NVLink is: AMD's and Google's."""


@dataclass(frozen=True, eq=False)
class JobLayout:
    """The nodes of one job, part by part, and the fabric between them; all parts have the same number of channels."""

    parts: tuple[SlotPart, ...]
    fabric: Fabric
    job_fabric: JobFabric = UNLIMITED_FABRIC
    """The links between switches that this job crosses."""

    @cached_property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return sum(len(part.gpus) * part.slot.count for part in self.parts)

    @cached_property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return sum(part.slot.count for part in self.parts)

    @property
    def channels(self) -> int:
        """Return the number of parallel rings."""
        return len(self.parts[0].channels.channels)

    @cached_property
    def most_local(self) -> int:
        """Return the maximum number of ranks on a node."""
        return max(len(part.gpus) for part in self.parts)

    @cached_property
    def nvls_heads(self) -> tuple[int, ...]:
        """Return the channels whose first GPUs head a reduction in NVSwitch, each GPU once. On one node, return a number for each GPU.

        There are at most 32 heads (NVIDIA/nccl src/graph/search.cc, ``NCCL_MAX_NVLS_ARITY``).
        """
        if self.nodes == 1:
            return tuple(range(min(self.most_local, NVLS_MOST_HEADS)))
        entered = [channel.gpus[0] for channel in self.parts[0].channels.channels]
        return tuple(entered.index(gpu) for gpu in dict.fromkeys(entered))[:NVLS_MOST_HEADS]

    @cached_property
    def isolated(self) -> bool:
        """Return whether GPUs are in separate containers, each of which NCCL treats as a node."""
        return any(part.slot.graph.isolated for part in self.parts)

    def carrier(self, op: Op = "all_reduce") -> str:
        """Return the transport class that carries the bytes of *op*: that of NICs between nodes, or the slowest inside.

        The name of a NIC's class says whether GPUs reach the NIC directly, and whether they do through the processor, which may relay
        less. Links of other makers that use NVLink's constants have their own names (``xgmi``, ``ici``). Sends reach every GPU of a node,
        also those that the rings reach over others.
        """
        if self.nodes > 1 or self.isolated:
            hops = [hop for part in self.parts for channel in part.channels.channels for hop in channel.hops if hop.wires]
            name = min(part.slot.node.nic.transport.name for part in self.parts)
            if any(hop.staged for hop in hops):
                return name
            return name + (GPUDIRECT_BY_PROCESSOR if any(hop.route.path_class in ("PHB", "SYS") for hop in hops) else GPUDIRECT)
        if op in ("all_to_all", "gather", "scatter"):
            inside = {edge.hops[0][1].transport.name for part in self.parts for edge in self.pairs(part)}
        else:
            inside = {transport.name for part in self.parts for transport in part.channels.transports}
        slow = [name for kind in ("host-staged", "pcie-peer") for name in sorted(inside) if name.startswith(kind)]
        if slow:
            return slow[0]
        nvlink = self.parts[0].slot.node.nvlink
        other = [maker for maker in _OTHER_LINKS if nvlink and nvlink.link.name.startswith(maker)]
        return other[0] if other else min(inside).rstrip("0123456789")

    @cached_property
    def transports(self) -> tuple[Transport, ...]:
        """Return the transport classes of the rings and of NVLink; their thread blocks handle everything that GPUs send."""
        transports = {transport.name: transport for part in self.parts for transport in part.channels.transports}
        nodes = [part.slot.node for part in self.parts if part.slot.node.nvlink is not None]
        return tuple((transports | {node.over_nvlink.name: node.over_nvlink for node in nodes}).values())

    @cached_property
    def tree_hops(self) -> tuple[int, int]:
        """Return the number of hops inside nodes and between nodes from a tree's root to its farthest rank.

        Isolated GPUs are all nodes of the tree.
        """
        between = depth(self.nodes)
        return (depth(self.ranks) - between if self.isolated else self.most_local - 1), between

    @cached_property
    def every_node(self) -> tuple[SlotPart, ...]:
        """Return the part of each node in the order in which ranks are numbered."""
        return tuple(part for _, part in self.numbered)

    @cached_property
    def numbered(self) -> tuple[tuple[int, SlotPart], ...]:
        """Return the number and the part of each node, in their order in the cluster."""
        parts = [(number, part) for part in self.parts for number in part.slot.numbers or (0,) * part.slot.count]
        return tuple(sorted(parts, key=itemgetter(0)))

    @cached_property
    def rings(self) -> tuple[tuple[Edge, ...], ...]:
        """Return the edges of each channel's ring, in order; if all nodes are equal, only the edges of one node."""
        nodes = self.numbered[:1] if len(self.parts) == 1 else self.numbered
        return tuple(_ring(self, nodes, channel) for channel in range(self.channels))

    @cached_property
    def neighbors(self) -> tuple[tuple[SlotPart, SlotPart], ...]:
        """Return pairs of parts with communicating nodes; if there is one part, it is paired with itself."""
        return tuple(zip(self.parts, (*self.parts[1:], self.parts[0]), strict=True)) if self.nodes > 1 else ()

    @cached_property
    def rings_inside(self) -> tuple[tuple[Edge, ...], int]:
        """Return the edges of separate rings within each node, and the number of rings that every node has."""
        rings = [ring_channels(part.slot.graph, part.gpus) for part in self.parts]
        count = min(len(rings_of.channels) for rings_of in rings)
        of_part = zip(self.parts, rings, strict=True)
        return tuple(
            Edge(((part, hop),)) for part, rings_of in of_part for channel in rings_of.channels[:count] for hop in channel.hops
        ), count

    @cached_property
    def places(self) -> tuple[Edge, ...]:
        """Return the edges between GPUs with the same index in their nodes."""
        places = range(self.most_local)
        return tuple(self.nic_edge(*pair, pair[0].gpus[place], pair[1].gpus[place]) for pair in self.neighbors for place in places)

    def local_edge(self, part: SlotPart, src: int, dst: int, row: AlgorithmRow = "Ring") -> Edge:
        """Return the edge between two GPUs of one node."""
        return Edge(((part, Hop(f"gpu{src}", f"gpu{dst}", part.slot.graph.route(src, dst), row)),))

    def chain(self, part: SlotPart, channel: int) -> list[Edge]:
        """Return the hops of one node's chain below a tree, away from the NIC and back."""
        order = part.channels.channels[channel].gpus
        return [self.local_edge(part, *pair, "Tree") for pair in (*pairwise(order), *pairwise(order[::-1]))]

    def pairs(self, part: SlotPart) -> list[Edge]:
        """Return the edges between all GPUs of one node."""
        return [self.local_edge(part, src, dst) for src, dst in permutations(part.gpus, 2)]

    def chain_edge(self, part: SlotPart, onward: SlotPart, channel: int, tree: bool = False) -> Edge:
        """Return the edge between the first GPUs of two nodes' chains, for one of the two trees (*tree*) or for a whole channel."""
        leaving, arriving = _entry(part.channels.channels[channel]), _entry(onward.channels.channels[channel])
        return self.joining_edge(part, _leaving_hop(part, *leaving, tree), onward, _arriving_hop(onward, *arriving, tree))

    def nic_edge(self, part: SlotPart, onward: SlotPart, src: int, dst: int) -> Edge:
        """Return the edge between GPUs of two nodes, each through its nearest NIC."""
        out, into = part.slot.graph.nearest_nic(src), onward.slot.graph.nearest_nic(dst)
        return self.joining_edge(part, _leaving_hop(part, src, out), onward, _arriving_hop(onward, dst, into))

    def joining_edge(self, part: SlotPart, leaving: Hop, onward: SlotPart, arriving: Hop, nodes: tuple[int, int] | None = None) -> Edge:
        """Return the edge from a node of *part* to a node of *onward*: the first of each, or the pair of node numbers *nodes*."""
        switches = self.job_fabric.between(*(nodes or (part.slot.first, onward.slot.first)), nic_of(leaving), nic_of(arriving))
        return Edge(((part, leaving), (onward, arriving)), self.fabric, switches)


def _entry(channel: Channel) -> tuple[int, int]:
    """Return the GPU and the NIC at which a channel enters the node."""
    return channel.gpus[0], nic_of(channel.hops[0])


_OF_A_TREE: tuple[AlgorithmRow, float] = ("Tree", 0.5)
# NVIDIA/nccl src/graph/connect.cc doubles the channels after the search: one ring here represents two, each with its own sockets, and each
# of the two trees uses one of them


def _leaving_hop(part: SlotPart, gpu: int, nic: int, tree: bool = False) -> Hop:
    relays = part.gpus if part.channels.relays else ()
    return Hop(f"gpu{gpu}", NETWORK, part.slot.graph.to_nic(gpu, nic, relays), *(_OF_A_TREE if tree else ()))


def _arriving_hop(part: SlotPart, gpu: int, nic: int, tree: bool = False) -> Hop:
    return Hop(NETWORK, f"gpu{gpu}", part.slot.graph.from_nic(nic, gpu), *(_OF_A_TREE if tree else ()))


def _ring(layout: JobLayout, nodes: Sequence[tuple[int, SlotPart]], channel: int) -> tuple[Edge, ...]:
    """Return the edges of one ring through *nodes*, pairs of a node's number and its part."""
    _, first = nodes[0]
    if first.channels.nodes == 1:
        return tuple(Edge(((first, hop),)) for hop in first.channels.channels[channel].hops)
    edges: list[Edge] = []
    for (number, part), (other, onward) in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        _, *inside, leaving = part.channels.channels[channel].hops
        arriving = onward.channels.channels[channel].hops[0]
        edges += [Edge(((part, hop),)) for hop in inside]
        edges.append(layout.joining_edge(part, leaving, onward, arriving, (number, other)))
    return tuple(edges)


def depth(n: int) -> int:
    """Return the number of hops from the root of NCCL's binary tree on *n* nodes to its farthest leaf: log2 n, rounded up."""
    return (n - 1).bit_length()
