"""Where do the ranks of a job stand, and over which edges do they meet? Rings, chains inside nodes, and NIC to NIC between them.

Rings are those of `channels`. A tree follows them (NVIDIA/nccl `src/graph/connect.cc`): inside a node a chain along the ring without the
hop that closes it, there and back; between nodes the chain's first GPU, by the NIC at which the ring comes in. Isolated GPUs, each
a node to NCCL, send as much along that chain, in fewer hops. Where all nodes are alike those of one stand for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations
from operator import itemgetter

from sim.cluster.fabric import NOTHING, Crossed
from sim.spec.hardware import Fabric, Transport
from sim.training.collectives.nccl.constants import NVLS_MOST_HEADS
from sim.training.collectives.price.traffic import Edge, SlotPart, nic_of
from sim.training.collectives.routes.channels import NETWORK, AlgorithmRow, Channel, Hop, ring_channels


@dataclass(frozen=True, eq=False)
class JobLayout:
    """The nodes of one job, part by part, and what lies between them; all have the same number of channels."""

    parts: tuple[SlotPart, ...]
    fabric: Fabric
    crossed: Crossed = NOTHING
    """The links between switches, as this job crosses them."""

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
        """Return the number of rings that run side by side."""
        return len(self.parts[0].channels.channels)

    @cached_property
    def most_local(self) -> int:
        """Return the ranks of the fullest node."""
        return max(len(part.gpus) for part in self.parts)

    @cached_property
    def nvls_heads(self) -> tuple[int, ...]:
        """Return the channels by whose first GPUs a reduction in NVSwitch leaves a node, each GPU once; of one node a number a GPU.

        At most 32 GPUs head one (NVIDIA/nccl src/graph/search.cc, ``NCCL_MAX_NVLS_ARITY``).
        """
        if self.nodes == 1:
            return tuple(range(min(self.most_local, NVLS_MOST_HEADS)))
        entered = [channel.gpus[0] for channel in self.parts[0].channels.channels]
        return tuple(entered.index(gpu) for gpu in dict.fromkeys(entered))[:NVLS_MOST_HEADS]

    @cached_property
    def isolated(self) -> bool:
        """Tell whether GPUs stand in containers of their own, each of them a node to NCCL."""
        return any(part.slot.graph.isolated for part in self.parts)

    @cached_property
    def carrier(self) -> str:
        """Return the transport class that the bytes wait for: the NICs' between nodes, the slowest inside; ``xgmi`` on AMD's links."""
        if self.nodes > 1 or self.isolated:
            return min(part.slot.node.nic.transport.name for part in self.parts)
        inside = {transport.name for part in self.parts for transport in part.channels.transports}
        slow = [name for kind in ("host-staged", "pcie-peer") for name in sorted(inside) if name.startswith(kind)]
        nvlink = self.parts[0].slot.node.nvlink
        if slow:
            return slow[0]
        return "xgmi" if nvlink and nvlink.link.name.startswith("xgmi") else min(inside).rstrip("0123456789")

    @cached_property
    def transports(self) -> tuple[Transport, ...]:
        """Return the transport classes of its rings, and of GPUs' NVLinks, whose thread blocks play all that they send."""
        met = {transport.name: transport for part in self.parts for transport in part.channels.transports}
        nodes = [part.slot.node for part in self.parts if part.slot.node.nvlink is not None]
        return tuple((met | {node.over_nvlink.name: node.over_nvlink for node in nodes}).values())

    @cached_property
    def tree_hops(self) -> tuple[int, int]:
        """Return the hops inside nodes and between them from a tree's root to its farthest rank; isolated GPUs are all in the tree."""
        between = depth(self.nodes)
        return (depth(self.ranks) - between if self.isolated else self.most_local - 1), between

    @cached_property
    def every_node(self) -> tuple[SlotPart, ...]:
        """Return the part of each node in turn; ranks are numbered through them."""
        return tuple(part for _, part in self.numbered)

    @cached_property
    def numbered(self) -> tuple[tuple[int, SlotPart], ...]:
        """Return the number and the part of each node, as they follow one another in the cluster."""
        parts = [(number, part) for part in self.parts for number in part.slot.numbers or (0,) * part.slot.count]
        return tuple(sorted(parts, key=itemgetter(0)))

    @cached_property
    def rings(self) -> tuple[tuple[Edge, ...], ...]:
        """Return the edges of each channel's ring, in order; where all nodes are alike those of one node."""
        nodes = self.numbered[:1] if len(self.parts) == 1 else self.numbered
        return tuple(_ring(self, nodes, channel) for channel in range(self.channels))

    @cached_property
    def neighbours(self) -> tuple[tuple[SlotPart, SlotPart], ...]:
        """Return pairs of parts whose nodes meet; equal nodes meet their like."""
        return tuple(zip(self.parts, (*self.parts[1:], self.parts[0]), strict=True)) if self.nodes > 1 else ()

    @cached_property
    def rings_inside(self) -> tuple[tuple[Edge, ...], int]:
        """Return the edges of the rings within each node alone, and how many rings all nodes have."""
        rings = [ring_channels(part.slot.graph, part.gpus) for part in self.parts]
        count = min(len(rings_of.channels) for rings_of in rings)
        of_part = zip(self.parts, rings, strict=True)
        return tuple(
            Edge(((part, hop),)) for part, rings_of in of_part for channel in rings_of.channels[:count] for hop in channel.hops
        ), count

    @cached_property
    def places(self) -> tuple[Edge, ...]:
        """Return the edges between GPUs of the same place in their nodes."""
        places = range(self.most_local)
        return tuple(self.across(*pair, pair[0].gpus[place], pair[1].gpus[place]) for pair in self.neighbours for place in places)

    def inside(self, part: SlotPart, src: int, dst: int, row: AlgorithmRow = "Ring") -> Edge:
        """Return the edge between two GPUs of one node."""
        return Edge(((part, Hop(f"gpu{src}", f"gpu{dst}", part.slot.graph.route(src, dst), row)),))

    def chain(self, part: SlotPart, channel: int) -> list[Edge]:
        """Return the hops of one node's chain below a tree, away from the NIC and back."""
        order = part.channels.channels[channel].gpus
        return [self.inside(part, *pair, "Tree") for pair in (*pairwise(order), *pairwise(order[::-1]))]

    def pairs(self, part: SlotPart) -> list[Edge]:
        """Return the edges between all GPUs of one node."""
        return [self.inside(part, src, dst) for src, dst in permutations(part.gpus, 2)]

    def between(self, part: SlotPart, onward: SlotPart, channel: int, tree: bool = False) -> Edge:
        """Return the edge between the first GPUs of two nodes' chains, for one of the two trees or for a whole channel."""
        leaving, arriving = _head(part.channels.channels[channel]), _head(onward.channels.channels[channel])
        return self.joined(part, _out(part, *leaving, tree), onward, _in(onward, *arriving, tree))

    def across(self, part: SlotPart, onward: SlotPart, src: int, dst: int) -> Edge:
        """Return the edge between GPUs of two nodes, each by the NIC next to it."""
        out, into = part.slot.graph.nearest_nic(src), onward.slot.graph.nearest_nic(dst)
        return self.joined(part, _out(part, src, out), onward, _in(onward, dst, into))

    def joined(self, part: SlotPart, leaving: Hop, onward: SlotPart, arriving: Hop, nodes: tuple[int, int] | None = None) -> Edge:
        """Return the edge from a node of *part* to one of *onward*, the first of each or the *nodes* of these numbers."""
        switches = self.crossed.between(*(nodes or (part.slot.first, onward.slot.first)), nic_of(leaving), nic_of(arriving))
        return Edge(((part, leaving), (onward, arriving)), self.fabric, switches)


def _head(channel: Channel) -> tuple[int, int]:
    """Return the GPU and the NIC at which a channel comes in."""
    return channel.gpus[0], nic_of(channel.hops[0])


_OF_A_TREE: tuple[AlgorithmRow, float] = ("Tree", 0.5)
# NVIDIA/nccl src/graph/connect.cc doubles the channels after the search: a ring of ours is two, each with sockets of its own, of
# which each tree has one


def _out(part: SlotPart, gpu: int, nic: int, tree: bool = False) -> Hop:
    return Hop(f"gpu{gpu}", NETWORK, part.slot.graph.to_nic(gpu, nic), *(_OF_A_TREE if tree else ()))


def _in(part: SlotPart, gpu: int, nic: int, tree: bool = False) -> Hop:
    return Hop(NETWORK, f"gpu{gpu}", part.slot.graph.from_nic(nic, gpu), *(_OF_A_TREE if tree else ()))


def _ring(layout: JobLayout, nodes: Sequence[tuple[int, SlotPart]], channel: int) -> tuple[Edge, ...]:
    """Return the edges of one ring through *nodes*, which are given with their numbers."""
    _, first = nodes[0]
    if first.channels.nodes == 1:
        return tuple(Edge(((first, hop),)) for hop in first.channels.channels[channel].hops)
    edges: list[Edge] = []
    for (number, part), (other, onward) in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        _, *inside, leaving = part.channels.channels[channel].hops
        arriving = onward.channels.channels[channel].hops[0]
        edges += [Edge(((part, hop),)) for hop in inside]
        edges.append(layout.joined(part, leaving, onward, arriving, (number, other)))
    return tuple(edges)


def depth(n: int) -> int:
    """Return the hops from the root of NCCL's binary tree on *n* to its farthest leaf: log2 n, rounded up."""
    return (n - 1).bit_length()
