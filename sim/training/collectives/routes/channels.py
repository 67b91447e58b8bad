"""Along which rings does NCCL send? A simplified form of its channel search: the part of each ring inside one node of a job.

The order of preference follows NVIDIA/nccl (`src/graph/search.cc`): NVSwitch; edge-disjoint rings over NVLink pairs only; one ring over the
best PCIe paths, staged through host memory if GPUs may not address each other. Across nodes, a channel enters from a NIC at a nearby GPU,
visits every local GPU, and leaves through a NIC. Channel k of one node is connected to channel k of the next. The number of channels per
NIC is the number of NVLinks that match its bandwidth. NCCL doubles channels after the search; this is left out, because it does not change
the load of any link. The search does not combine NVLink rings with PCIe rings, and does not try NVLink relays between GPUs. From NCCL 2.12
on, GPUs behind NVSwitches send to a NIC far from them through a GPU near it (PXN).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Literal, NamedTuple

from sim.cluster.node_links import Tier
from sim.cluster.topology import INTEL_RELAY, PATH_CLASSES, NodeGraph, Route
from sim.spec.fields import curve_value
from sim.spec.hardware import Transport
from sim.training.collectives.routes.packing import Ends, pack_cycles, pack_paths
from sim.training.collectives.routes.tours import shortest_tour, tree_order

ChannelKind = Literal["single", "nvswitch", "nvlink", "pcie"]

AlgorithmRow = Literal["Ring", "Tree"]

NETWORK = "net"
FASTER = 1.01
"""How many times as fast other rings must be to be faster, and not equal but for rounding: estimate."""


@dataclass(frozen=True)
class Hop:
    """One hop of a channel along a fixed route: between two GPUs (``gpu0``, ..), or from or to the network (``net``)."""

    src: str
    dst: str
    route: Route
    row: AlgorithmRow = "Ring"
    """Row of NCCL's latency table. Between nodes, rings with one GPU per node also use the row of trees (`tuning.cc`)."""
    connections: float = 1.0
    """Share of a channel's connections to a peer that one stream uses."""

    @property
    def links(self) -> tuple[str, ...]:
        """Return every link crossed, in order; a link named twice is crossed twice by every byte."""
        return self.route.links

    @property
    def transport(self) -> Transport:
        """Return the constants of the transport class."""
        return self.route.transport

    @property
    def staged(self) -> bool:
        """Return whether the bytes are staged in host memory on the way."""
        return self.route.staged

    @cached_property
    def tier(self) -> Tier:
        """Return ``network`` for a hop from or to the network, else ``interconnect``."""
        return "network" if NETWORK in (self.src, self.dst) else "interconnect"

    def efficiency(self, chunk: float) -> float:
        """Return the share of the links' bandwidth that the hop reaches with chunks of *chunk* bytes (payload / ranks / channels)."""
        reached = 1.0 if self.transport.flow_cap else curve_value(self.transport.efficiency, chunk)
        return reached / INTEL_RELAY if self.route.relayed else reached

    @cached_property
    def wires(self) -> tuple[str, ...]:
        """Return the network links of NICs on the way: one on a hop from or to the network, two on a loopback through a NIC."""
        return tuple(link for link in self.links if NETWORK in link.split(">"))

    @property
    def overlap(self) -> float:
        """Return the speedup from overlapping the stages of a hop to or from the network with large chunks; 1 means sequential stages."""
        return self.route.copies.efficiency[-1][1] if self.route.copies else 1.0

    def flow_cap(self, chunk: float) -> float:
        """Return the rate limit (bytes/s) of the flows of one stream, reduced by the loss on small chunks (instead of `efficiency`)."""
        cap, flows = self.transport.flow_cap, max(1.0, self.transport.flows * self.connections)
        return cap * flows * curve_value(self.transport.efficiency, chunk) if cap else math.inf


class Channel(NamedTuple):
    """The part of a ring in one node: the order of its GPUs, and its hops. Across nodes, hops begin with ``net`` and end with it."""

    gpus: tuple[int, ...]
    hops: tuple[Hop, ...]

    @property
    def edges(self) -> tuple[tuple[Hop, ...], ...]:
        """Return the hops by edge of the ring, one edge per GPU.

        The edge to the next node is the last hop of this node and the first hop of the next, equal node: (to net, from net).
        """
        if self.hops and self.hops[0].src == NETWORK:
            return (*((hop,) for hop in self.hops[1:-1]), (self.hops[-1], self.hops[0]))
        return tuple((hop,) for hop in self.hops)


@dataclass(frozen=True, eq=False)
class Channels:
    """The parts in one node of the rings of a job on *nodes* nodes; all channels carry equal shares."""

    channels: tuple[Channel, ...]
    kind: ChannelKind
    nodes: int
    relays: bool = False
    """Whether GPUs pass on what others send through a NIC near them (NCCL's PXN)."""

    @cached_property
    def crossings(self) -> Mapping[str, int]:
        """Return how often all channels together cross each link of the node."""
        counts: dict[str, int] = {}
        for channel in self.channels:
            for hop in channel.hops:
                for link in hop.links:
                    counts[link] = counts.get(link, 0) + 1
        return counts

    @cached_property
    def transports(self) -> tuple[Transport, ...]:
        """Return the distinct transport classes of the hops."""
        return _distinct(hop.transport for channel in self.channels for hop in channel.hops)

    @property
    def copies(self) -> tuple[Transport, ...]:
        """Return the distinct transport classes of the copies that feed NICs."""
        return _distinct(hop.route.copies for channel in self.channels for hop in channel.hops if hop.route.copies)

    @cached_property
    def launch(self) -> float:
        """Return the launch time (s) of one collective, which is that of the slowest transport."""
        return max((transport.launch for transport in self.transports), default=0.0)

    def first(self, count: int) -> Channels:
        """Return only the first *count* channels, as needed to connect to a node with fewer channels."""
        return replace(self, channels=self.channels[:count])


def nic_of(hop: Hop) -> int:
    """Return the NIC through which *hop* leaves or enters a node."""
    link = next(link for link in hop.links if link.startswith(f"{NETWORK}>") or link.endswith(f">{NETWORK}"))
    return int(link.replace(">", "").replace(NETWORK, "").removeprefix("nic"))


def _distinct(transports: Iterable[Transport]) -> tuple[Transport, ...]:
    distinct: list[Transport] = []
    for transport in transports:
        if transport not in distinct:
            distinct.append(transport)
    return tuple(distinct)


@lru_cache(maxsize=512)
def ring_channels(graph: NodeGraph, gpus: tuple[int, ...], nodes: int = 1, relays: bool = False) -> Channels:
    """Return the rings on *gpus* of one node, in a job that uses the same GPUs on each of *nodes* nodes; if *relays*, with NCCL's PXN."""
    _check(graph, gpus, nodes)
    if graph.node.topology.isolated == "nic" and (nodes > 1 or len(gpus) > 1):
        return Channels(tuple(_isolated_channel(graph, gpus, nodes, turn) for turn in range(_turns(graph, gpus))), "pcie", nodes)
    if nodes == 1:
        kind, orders = _local_orders(graph, gpus)
        return Channels(tuple(Channel(order, _local_hops(graph, order)) for order in orders), kind, nodes)
    passing = gpus if relays else ()
    kind, routed = _network_orders(graph, gpus, passing)
    return Channels(tuple(_network_channel(graph, *order, relays=passing) for order in routed), kind, nodes, relays)


def _turns(graph: NodeGraph, gpus: Sequence[int]) -> int:
    """Return the number of channels of GPUs in separate containers: one for each nearby NIC."""
    return min(len(graph.near_nics(gpu)) for gpu in gpus)


def _isolated_channel(graph: NodeGraph, gpus: tuple[int, ...], nodes: int, turn: int) -> Channel:
    """Return a ring of GPUs that NCCL treats as separate nodes: each uses a nearby NIC, a different one in every channel."""
    loops = [Hop(f"gpu{src}", f"gpu{dst}", graph.loopback(src, dst, turn)) for src, dst in pairwise(gpus)]
    if nodes == 1:
        return Channel(gpus, (*loops, Hop(f"gpu{gpus[-1]}", f"gpu{gpus[0]}", graph.loopback(gpus[-1], gpus[0], turn))))
    return _network_channel(graph, gpus, graph.nearest_nic(gpus[0], turn), graph.nearest_nic(gpus[-1], turn), loops)


def _check(graph: NodeGraph, gpus: tuple[int, ...], nodes: int) -> None:
    if not gpus or len(set(gpus)) != len(gpus) or not all(0 <= gpu < graph.node.gpu_count for gpu in gpus):
        raise ValueError(f"GPUs {gpus} are not a choice of the node's {graph.node.gpu_count}")
    if nodes < 1:
        raise ValueError(f"a job runs on at least one node, not on {nodes}")


def _local_hops(graph: NodeGraph, order: tuple[int, ...]) -> tuple[Hop, ...]:
    if len(order) < 2:
        return ()
    return tuple(_hop(graph, src, dst) for src, dst in zip(order, (*order[1:], order[0]), strict=True))


def _hop(graph: NodeGraph, src: int, dst: int) -> Hop:
    return Hop(f"gpu{src}", f"gpu{dst}", graph.route(src, dst))


# --- one node --------------------------------------------------------------------------------------------------------


def _local_orders(graph: NodeGraph, gpus: tuple[int, ...]) -> tuple[ChannelKind, Sequence[tuple[int, ...]]]:
    if len(gpus) == 1:
        return "single", [gpus]
    if graph.switch_links:
        return "nvswitch", [gpus] * graph.switch_links
    slots = _slots(graph, gpus, 1)
    linked = {gpu for pair in slots for gpu in pair}
    rings = pack_cycles(slots) if linked == set(gpus) else ()
    return ("nvlink", rings) if rings else ("pcie", _both_ways(graph, _best_tour(graph, gpus, None)))


def _both_ways(graph: NodeGraph, order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return *order*, and also the reverse order if both together are faster: next to NVLink pairs, one direction of PCIe is unused."""
    both = [order, order[::-1]]
    return both if len(order) > 2 and _fluid_rate(graph, both) > FASTER * _fluid_rate(graph, [order]) else [order]


def _fluid_rate(graph: NodeGraph, orders: Sequence[tuple[int, ...]]) -> float:
    """Return the total bytes/s of rings along *orders*, with links shared fairly."""
    return _total_rate(graph, [Channel(order, _local_hops(graph, order)) for order in orders])


def _total_rate(graph: NodeGraph, channels: Sequence[Channel]) -> float:
    """Return the total bytes/s of *channels*, with links shared fairly."""
    crossings = Channels(tuple(channels), "pcie", 1).crossings
    return len(channels) * min(graph.links[link].capacity / count for link, count in crossings.items())


def _slots(graph: NodeGraph, gpus: Sequence[int], per_link: int) -> dict[tuple[int, int], int]:
    """Return how many channels each directed pair of *gpus* can carry on NVLink, *per_link* on each link."""
    counts = {(src, dst): graph.nvlinks(src, dst) * per_link for src in gpus for dst in gpus if src != dst}
    return {pair: count for pair, count in counts.items() if count}


def _best_tour(graph: NodeGraph, gpus: tuple[int, ...], nic: int | None) -> tuple[int, ...]:
    """Return the order with the fewest hops of the worst class, then of the next; with PCIe only, a walk of the PCIe tree."""
    if not _slots(graph, gpus, 1):
        return tree_order(graph, gpus, nic)
    return shortest_tour(graph, gpus, nic)


# --- several nodes ---------------------------------------------------------------------------------------------------

_Ordered = tuple[tuple[int, ...], int, int]  # order of GPUs, NIC in, NIC out


def _network_orders(graph: NodeGraph, gpus: tuple[int, ...], relays: tuple[int, ...]) -> tuple[ChannelKind, Sequence[_Ordered]]:
    nics = _near_nics(graph, gpus)
    if len(gpus) == 1:
        return "single", [(gpus, nic, nic) for nic in nics]
    if graph.switch_links:
        near = {nic: _nearest(graph, gpus, nic) for nic in nics}
        return "nvswitch", [_switched_order(graph, gpus, near, place, relays) for place in range(len(nics))]
    paths = _nvlink_paths(graph, gpus, nics)
    if paths:
        return "nvlink", paths
    return "pcie", [(_best_tour(graph, gpus, nic), nic, nic) for nic in nics]


def _distance(graph: NodeGraph, gpu: int, nic: int) -> int:
    return PATH_CLASSES.index(graph.pcie_class(f"gpu{gpu}", f"nic{nic}"))


def _leaving_distance(graph: NodeGraph, gpu: int, nic: int, relays: tuple[int, ...]) -> int:
    relayed = graph.relay_to(gpu, nic, relays) is not None
    return PATH_CLASSES.index("PXN") if relayed else _distance(graph, gpu, nic)


def _near_nics(graph: NodeGraph, gpus: Sequence[int]) -> list[int]:
    """Return the NICs with the smallest distance to any of *gpus*."""
    nearest = {nic: min(_distance(graph, gpu, nic) for gpu in gpus) for nic in range(graph.node.nic.count)}
    return [nic for nic, distance in nearest.items() if distance == min(nearest.values())]


def _switched_order(
    graph: NodeGraph, gpus: tuple[int, ...], nearest: Mapping[int, list[int]], place: int, relays: tuple[int, ...]
) -> _Ordered:
    """Return the order for the NIC at index *place* of *nearest*, which maps each NIC to its nearest GPUs.

    NICs that share their nearest GPUs begin at different ones. If the last GPU is nearer to other NICs, the ring leaves through one of
    them, a different one for each ring, like NCCL's cross-NIC rings.
    """
    nics = list(nearest)
    nic, near = nics[place], nearest[nics[place]]
    turn = sum(nearest[other] == near for other in nics[:place])
    first = near[turn % len(near)]
    near = [first, *(gpu for gpu in near if gpu != first)]
    at = gpus.index(first)
    order = (first, *(gpu for gpu in gpus[at:] + gpus[:at] if gpu not in near), *near[1:])
    distances = {other: _leaving_distance(graph, order[-1], other, relays) for other in nics}
    leaving = [other for other, distance in distances.items() if distance == min(distances.values())]
    return order, nic, nic if nic in leaving else leaving[turn % len(leaving)]


def _nearest(graph: NodeGraph, gpus: Sequence[int], nic: int) -> list[int]:
    best = min(_distance(graph, gpu, nic) for gpu in gpus)
    return [gpu for gpu in gpus if _distance(graph, gpu, nic) == best]


def _nvlink_paths(graph: NodeGraph, gpus: tuple[int, ...], nics: Sequence[int]) -> list[_Ordered]:
    """Return an NVLink-only path for each channel, with its ends as near to its NIC as possible; empty if there are none.

    A NIC faster than an NVLink is given several channels, but not if unequal shares of NICs or their PCIe ports then carry less in total:
    NCCL compares the number of channels times their bandwidth (search.cc, ncclTopoCompareGraphs).
    """
    nvlink = graph.node.nvlink
    if nvlink is None or len({gpu for pair in _slots(graph, gpus, 1) for gpu in pair}) < len(gpus):
        return []
    share = math.ceil(graph.node.nic.bandwidth / nvlink.link.bandwidth)
    per_link = max(1, math.floor(nvlink.link.nccl_bandwidth / (graph.node.nic.bandwidth / share)))
    slots = _slots(graph, gpus, per_link)
    wanted = [nic for _ in range(share) for nic in nics]
    best: list[_Ordered] = []
    most = 0.0
    for count in range(len(wanted), 0, -1):
        if best and count < len(nics):
            break  # every channel has a NIC to itself, so fewer channels carry less
        for spread in (False, True):
            routed = _nearest_paths(graph, gpus, slots, wanted[:count], spread)
            rate = _total_rate(graph, [_network_channel(graph, *order) for order in routed]) if routed else 0.0
            if rate > FASTER * most:
                best, most = routed, rate
    return best


def _nearest_paths(
    graph: NodeGraph, gpus: tuple[int, ...], slots: Mapping[tuple[int, int], int], wanted: Sequence[int], spread: bool = False
) -> list[_Ordered]:
    """Return a path for each NIC of *wanted* over *slots*, with its ends as near to NICs as possible; empty if there are none.

    If *spread*, paths begin at different GPUs in turn, and end at different ones, as far as there are any: NICs below one processor are
    equally near to all GPUs, and NCCL finds no room for a second ring on a GPU's port (search.cc, ncclTopoFollowPath).

    A path leaves through the NIC by which it enters. If none is near both of its ends, as where each GPU has a NIC to itself, it leaves
    through that of another path rather than through the processor, as NCCL's rings across NICs do: paths through the processor carry less,
    and NCCL tries other NICs before a lower bandwidth (search.cc, ncclTopoCompute).
    """
    same, others = [wanted], [[*wanted[turn:], *wanted[:turn]] for turn in range(1, len(wanted))]
    direct = range(PATH_CLASSES.index("PIX"), PATH_CLASSES.index("PXB") + 1)
    far = range(direct.stop, len(PATH_CLASSES))
    both_within = [(distance, distance) for distance in direct]
    farther = [(arrival, distance) for distance in far for arrival in range(direct.start, distance + 1)]
    for turns, distances in ((same, both_within), (others, both_within), (same, farther)):
        for (arrival, farthest), leaving in product(distances, turns):
            ends = [_ends_within(graph, *nics, arrival, farthest) for nics in zip(wanted, leaving, strict=True)]
            paths = pack_paths(slots, gpus, _spread(gpus, ends) if spread else ends)
            if paths:
                return [(path, *nics) for path, nics in zip(paths, zip(wanted, leaving, strict=True), strict=True)]
    return []


def _spread(gpus: Sequence[int], ends: Sequence[Ends]) -> list[Ends]:
    """Return *ends* of which the k-th path keeps those that begin at the k-th of *gpus* and end at the one before it, if it has them."""
    turns = ((gpus[place % len(gpus)], gpus[(place - 1) % len(gpus)]) for place in range(len(ends)))
    return [frozenset({turn}) if turn in allowed else allowed for turn, allowed in zip(turns, ends, strict=True)]


def _ends_within(graph: NodeGraph, arriving: int, leaving: int, arrival: int, farthest: int) -> Ends:
    """Return the pairs of a GPU within *arrival* of the NIC *arriving* and one within *farthest* of the NIC *leaving*."""

    def near(nic: int, limit: int) -> set[int]:
        return {gpu for gpu in range(graph.node.gpu_count) if _distance(graph, gpu, nic) <= limit}

    return frozenset(product(near(arriving, arrival), near(leaving, farthest)))


def _network_channel(
    graph: NodeGraph, order: tuple[int, ...], arriving: int, leaving: int, inside: Sequence[Hop] | None = None, relays: tuple[int, ...] = ()
) -> Channel:
    """Return the channel that enters at NIC *arriving* and leaves at NIC *leaving*, where *relays* may pass its bytes on.

    *inside* overrides its hops between GPUs.
    """
    row: AlgorithmRow = "Tree" if len(order) == 1 or graph.isolated else "Ring"
    first = Hop(NETWORK, f"gpu{order[0]}", graph.from_nic(arriving, order[0]), row)
    last = Hop(f"gpu{order[-1]}", NETWORK, graph.to_nic(order[-1], leaving, relays), row)
    hops = [_hop(graph, src, dst) for src, dst in pairwise(order)] if inside is None else inside
    return Channel(order, (first, *hops, last))
