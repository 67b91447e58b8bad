"""How does a collective load each link? By streams between ranks along fixed hops; rates and loads follow from counting streams.

A *stream* is the data that one rank sends to another during a collective. All streams of a collective have equal volume and advance
together, so the load on a link is the number of streams that cross it. This number may be fractional, because some streams carry only a
part. The loss of an efficiency below 1 and the overhead of a protocol count as extra bytes on a link. Equal nodes of a slot carry equal
loads, so only the streams of one node are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sim.cluster.build import Slot
from sim.cluster.fabric import ALL, UNLIMITED_FABRIC, JobFabric, NodeStreams, Pattern
from sim.events import Cause
from sim.spec.hardware import Fabric
from sim.spec.identity import IdentityCache
from sim.training.collectives.nccl.protocols import WIRE_BYTES, hop_latency, kind_of, wire_bytes
from sim.training.collectives.price.uncontended import Lane, is_reached, lane, staged_bandwidth
from sim.training.collectives.routes.channels import Channels, Hop, nic_of

TIER = {"interconnect": Cause.INTERCONNECT, "network": Cause.NETWORK}

CORES = "cores"
"""The resource of a node that represents its cores, for transports that use them; other resources of a node are physical links."""
FABRIC = "fabric"
"""Used in place of a slot's name for resources outside nodes."""
CORE = (FABRIC, "core")
"""The resource that all traffic between nodes shares, if the fabric specifies a core bandwidth."""
CORE_LIMIT = "the core of the fabric"

LinkLoad = Mapping[tuple[str, str], float]
"""Load per payload byte on each resource, by slot and physical link."""


class SlotPart(NamedTuple):
    """The GPUs that a job uses on each node of one slot, and its channels there."""

    slot: Slot
    gpus: tuple[int, ...]
    channels: Channels


class Edge(NamedTuple):
    """The path from one rank to another: one hop, or two pipelined hops between nodes, each with the part it belongs to."""

    hops: tuple[tuple[SlotPart, Hop], ...]
    fabric: Fabric | None = None
    """The fabric that it crosses between nodes."""
    switches: tuple[str, ...] = ()
    """The links between switches that this particular edge crosses; they are live resources if every node is simulated individually."""

    def latency(self, protocol: str) -> float:
        """Return the latency (s) of a chunk, without the time of its bytes."""
        return max(_latency(hop, protocol) for _, hop in self.hops) + (self.fabric.latency if self.fabric else 0.0)

    @property
    def latency_of(self) -> tuple[Cause, str]:
        """Return the cause to report for the latency: tier and transport class."""
        slowest = max((hop for _, hop in self.hops), key=lambda hop: hop.transport.hop_latency)
        return TIER[slowest.tier], f"{slowest.transport.name} latency"

    def cap(self, chunk: float, protocol: str) -> float:
        """Return the maximum payload rate (bytes/s) of chunks of *chunk* bytes, without contention."""
        alone = (min(staged_bandwidth(part.slot.graph, hop, hop.efficiency(chunk)), hop.flow_cap(chunk)) for part, hop in self.hops)
        return min(rate / _wire(hop, protocol) for rate, (_, hop) in zip(alone, self.hops, strict=True))

    def load(self, chunk: float, protocol: str) -> dict[tuple[str, str], float]:
        """Return the load of one stream with chunks of *chunk* bytes, per payload byte."""
        core = {CORE: WIRE_BYTES[protocol]} if self.fabric and self.fabric.core_bandwidth else {}
        between = {(FABRIC, name): _weight(self.hops[0][1], chunk, protocol) for name in self.switches}
        return _loads_of([(part, hop, 1.0) for part, hop in self.hops]).total(chunk, protocol) | core | between

    def node_streams(self, chunk: float, protocol: str) -> NodeStreams:
        """Return a stream of chunks of *chunk* bytes to any other node, as used to load links between switches."""
        (_, leaving), (_, arriving) = self.hops
        return NodeStreams(ALL, nic_of(leaving), nic_of(arriving), _weight(leaving, chunk, protocol), WIRE_BYTES[protocol])


def _wire(hop: Hop, protocol: str) -> float:
    """Return the bytes on the wire of *hop* per byte of payload."""
    return wire_bytes(kind_of(hop.route, hop.tier == "network"), protocol, hop.row)


def _latency(hop: Hop, protocol: str) -> float:
    return hop_latency(hop.route, hop.tier == "network", protocol, hop.row)


class EdgePace(NamedTuple):
    """Payload rate (bytes/s) of an edge next to the other streams, and what limits it."""

    rate: float
    cause: Cause
    limit: str


class Cost(NamedTuple):
    """One collective of a given size, as one fluid activity."""

    algorithm: str
    protocol: str
    channels: int
    launch: float
    """Seconds before any data moves."""
    volume: float
    """Bytes of each stream."""
    chunk: float
    """Bytes that determine the efficiency of a hop, which it keeps in flight: one step of a ring, or an entire pipelined stream."""
    cap: float
    """Rate (bytes/s) of one stream without contention, averaged over the whole collective."""
    latency_share: float
    """Share of the time at that rate that is due to latency rather than to the bytes on the slowest hop."""
    load: LinkLoad
    cause: Cause
    bottleneck: str
    """Description of what limits the slowest hop; its tier is *cause*."""
    latency_of: tuple[Cause, str]
    """Cause to report for latency: the tier and transport class that add most of it."""

    @property
    def uncontended_time(self) -> float:
        """Return the time (s) without contention."""
        return self.launch + self.volume / self.cap


class Outward(NamedTuple):
    """*streams* that leave a node of *part* along *hop* in a *pattern*; *arrival_nic* is the NIC at which they arrive (None: any)."""

    pattern: Pattern
    part: SlotPart
    hop: Hop
    arrival_nic: int | None
    streams: float
    node: int = 0
    """Which of the part's nodes sends them, if nodes differ in their receivers."""


def outward(edge: Edge, pattern: Pattern, streams: float) -> Outward:
    """Return *streams* streams along *edge*, which leads to another node."""
    (part, leaving), (_, arriving) = edge.hops
    return Outward(pattern, part, leaving, None if pattern.kind == "all" else nic_of(arriving), streams)


@dataclass(frozen=True, eq=False)
class Traffic:
    """All streams of one algorithm: how many use each hop of one node of each part, and how many cross *network_streams* nodes in total."""

    streams: tuple[tuple[SlotPart, Hop, float], ...]
    network_streams: float
    fabric: Fabric
    outward: tuple[Outward, ...] = ()
    """The streams that leave one node of each part."""
    job_fabric: JobFabric = UNLIMITED_FABRIC
    _kinds: IdentityCache[tuple[list[_Kind], list[int]]] = field(default_factory=IdentityCache, repr=False)

    @cached_property
    def crossings(self) -> Mapping[str, Mapping[str, float]]:
        """Return the number of streams on each physical link of a node, by slot."""
        counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for part, hop, count in self.streams:
            for link in hop.links:
                counts[part.slot.name][link] += count
        return counts

    @cached_property
    def _loads(self) -> _StreamLoads:
        return _loads_of(self.streams)

    def load(self, chunk: float, protocol: str) -> LinkLoad:
        """Return the load of all streams with chunks of *chunk* bytes, per payload byte of one stream."""
        load = self._loads.total(chunk, protocol)
        if self.fabric.core_bandwidth and self.network_streams:
            load[CORE] = self.network_streams * WIRE_BYTES[protocol]
        return load | {(FABRIC, name): amount for name, amount in self._on_switches(chunk, protocol).items()}

    def _on_switches(self, chunk: float, protocol: str) -> dict[str, float]:
        """Return the load on links between switches, per byte of one stream. If nodes differ, it is the maximum over nodes."""
        loads: dict[str, float] = {}
        by_node: dict[tuple[str, int], list[NodeStreams]] = defaultdict(list)
        for out in self.outward if self.job_fabric.ports else ():
            by_node[out.part.slot.name, out.node].append(_sent(out, chunk, protocol))
        for sent in dict.fromkeys(map(tuple, by_node.values())):  # nodes with equal streams have equal loads
            for name, amount in self.job_fabric.load(sent).items():
                loads[name] = max(amount, loads.get(name, 0.0))
        return loads

    def switch_pace(self, chunk: float, protocol: str) -> EdgePace | None:
        """Return the payload rate (bytes/s) of one stream on links between switches, and the slowest link; None if there are none."""
        loads = self._on_switches(chunk, protocol)
        if not loads:
            return None
        rate, name = min((self.job_fabric.capacities[name] / amount, name) for name, amount in loads.items())
        return EdgePace(rate, Cause.NETWORK, self.job_fabric.descriptions[name])

    def pace(self, edge: Edge, chunk: float, protocol: str, count: float = 1.0) -> EdgePace:
        """Return the rate of one stream with chunks of *chunk* bytes on *edge*, next to the other streams, and what limits it.

        A *count* below 1 is the share of a stream that *edge* carries.
        """
        ((kind,), _) = self._grouped([edge])
        return self._kind_pace(kind, _ReachCache(chunk), protocol, min(1.0, count))

    def edge_rates(self, edges: Sequence[Edge], chunk: float, protocol: str, count: float = 1.0) -> EdgeRates:
        """Return the pace of each of *edges*, as in `pace`. Groups of equal edges are cached for calls with other sizes."""
        kinds, of_edge = self._kinds.get_or_make(edges, self._grouped)
        reached, part_of = _ReachCache(chunk), min(1.0, count)
        paces = [self._kind_pace(kind, reached, protocol, part_of) for kind in kinds]
        return EdgeRates(tuple(paces[number].rate for number in of_edge), min(paces))

    def _grouped(self, edges: Sequence[Edge]) -> tuple[list[_Kind], list[int]]:
        """Return *edges* grouped into kinds with equal bandwidth on their hops, and the number of each edge's kind."""
        kinds: dict[Hashable, _Kind] = {}
        of_edge = []
        crossings = self.crossings
        for edge in edges:
            lanes = [lane(part.slot.graph, crossings[part.slot.name], hop) for part, hop in edge.hops]
            bandwidths = tuple((each_lane.fair, each_lane.stages, _reach_key(each_lane.hop)) for each_lane in lanes)
            kind = kinds.setdefault((bandwidths, id(edge.fabric)), _Kind(len(kinds), edge.fabric, []))
            kind.members.append([(part, each_lane) for (part, _), each_lane in zip(edge.hops, lanes, strict=True)])
            of_edge.append(kind.number)
        return list(kinds.values()), of_edge

    def _kind_pace(self, kind: _Kind, reached: _ReachCache, protocol: str, part_of: float) -> EdgePace:
        """Return the pace of the edges of *kind*, or their share of the fabric's core if that is slower."""
        hops = [each_lane.hop for _, each_lane in kind.members[0]]
        wire = [_wire(hop, protocol) for hop in hops]
        rates = [
            each_lane.rate(*reached[each_lane.hop], part_of) / bytes_of
            for (_, each_lane), bytes_of in zip(kind.members[0], wire, strict=True)
        ]
        rate = min(rates)
        if (
            kind.fabric
            and kind.fabric.core_bandwidth
            and (share := kind.fabric.core_bandwidth / self.network_streams / WIRE_BYTES[protocol]) < rate
        ):
            return EdgePace(share, Cause.NETWORK, CORE_LIMIT)
        limiting = tuple(
            (place, reached[hops[place]].flow_cap <= rate * wire[place]) for place, each_rate in enumerate(rates) if each_rate == rate
        )
        if limiting not in kind.limits:
            kind.limits[limiting] = min(_limit(member, limiting) for member in kind.members)
        return EdgePace(rate, *kind.limits[limiting])


class EdgeRates(NamedTuple):
    """The payload rate (bytes/s) of each of several edges, and the pace of the slowest."""

    rates: tuple[float, ...]
    slowest: EdgePace


@dataclass
class _Kind:
    """Edges with equal bandwidth on their hops: their lanes by hop, and their limit for each set of slowest hops."""

    number: int
    fabric: Fabric | None
    members: list[list[tuple[SlotPart, Lane]]]
    limits: dict[tuple[tuple[int, bool], ...], tuple[Cause, str]] = field(default_factory=dict)


def _limit(lanes: Sequence[tuple[SlotPart, Lane]], limiting: Sequence[tuple[int, bool]]) -> tuple[Cause, str]:
    """Return what limits an edge, given its slowest hops *limiting*: pairs of a hop's index and whether its flow limit binds."""
    _, place, by_flow = min((lanes[place][1].link, place, by_flow) for place, by_flow in limiting)
    part, slowest = lanes[place]
    hop, link = slowest.hop, part.slot.graph.links[slowest.link]
    if by_flow:
        return TIER[hop.tier], f"the flow limit of {hop.transport.name}"
    if hop.staged and (hop.tier == "interconnect" or (slowest.link in hop.wires and slowest.uncontended_rate < link.capacity)):
        return TIER[link.tier], f"copies through host memory {hop.src.upper()}-{hop.dst.upper()} ({link.description})"
    return TIER[link.tier], link.description


class _Reach(NamedTuple):
    """A transport's efficiency and flow limit (bytes/s) for chunks of one size."""

    efficiency: float
    flow_cap: float


class _ReachCache:
    """Cache of each transport's efficiency and flow limit for chunks of *chunk* bytes."""

    def __init__(self, chunk: float) -> None:
        self._chunk = chunk
        self._cache: dict[tuple[int, float, bool], _Reach] = {}

    def __getitem__(self, hop: Hop) -> _Reach:
        key = _reach_key(hop)
        if key not in self._cache:
            self._cache[key] = _Reach(hop.efficiency(self._chunk), hop.flow_cap(self._chunk))
        return self._cache[key]


def _reach_key(hop: Hop) -> tuple[int, float, bool]:
    """Return a cache key with everything that affects the efficiency and flow limit of *hop*."""
    return id(hop.transport), hop.connections, hop.route.relayed


def _weight(hop: Hop, chunk: float, protocol: str) -> float:
    """Return the load of a payload byte on the links of *hop*; bandwidth that the transport cannot use counts as bytes."""
    return _wire(hop, protocol) / min(1.0, hop.efficiency(chunk))


def _sent(out: Outward, chunk: float, protocol: str) -> NodeStreams:
    on_nic = out.streams * _weight(out.hop, chunk, protocol)
    return NodeStreams(out.pattern, nic_of(out.hop), out.arrival_nic, on_nic, out.streams * WIRE_BYTES[protocol])


class _StreamLoads(NamedTuple):
    """The loads of streams on resources: *kinds* of streams with equal weight, and the *terms* to add up, in the order of the streams.

    A term (resource, kind, weighs, factor) is *factor* times the bytes of one stream of this kind per payload byte. These are the bytes
    on the wire or, if it *weighs*, these plus the bandwidth that the transport cannot use. Kind -1 counts as one byte.
    """

    kinds: Sequence[tuple[Hop, float]]
    """A hop of one stream, and the number of streams."""
    terms: Sequence[tuple[tuple[str, str], int, bool, float]]

    def total(self, chunk: float, protocol: str) -> dict[tuple[str, str], float]:
        """Return the load on each resource with chunks of *chunk* bytes, per payload byte."""
        plain = [*(count * _wire(hop, protocol) for hop, count in self.kinds), 1.0]
        weights = [nbytes / min(1.0, hop.efficiency(chunk)) for (hop, _), nbytes in zip(self.kinds, plain, strict=False)]
        load: dict[tuple[str, str], float] = {}
        for resource, kind, weighs, factor in self.terms:
            load[resource] = load.get(resource, 0.0) + (weights if weighs else plain)[kind] * factor
        return load


def _loads_of(streams: Iterable[tuple[SlotPart, Hop, float]]) -> _StreamLoads:
    """Return the loads of *streams* of one node on its resources; a transport with cores loads them, too."""
    kinds: dict[Hashable, int] = {}
    hops: list[tuple[Hop, float]] = []
    terms: list[tuple[tuple[str, str], int, bool, float]] = []
    for part, hop, count in streams:
        kind = kinds.setdefault((_reach_key(hop), kind_of(hop.route, hop.tier == "network"), hop.row, count), len(hops))
        if kind == len(hops):
            hops.append((hop, count))
        name, links = part.slot.name, part.slot.graph.links
        terms += [((name, link), kind, is_reached(hop, link), 1.0) for link in hop.links]
        if hop.route.copies:
            alone = staged_bandwidth(part.slot.graph, hop)
            terms += [((name, wire), kind, True, max(0.0, links[wire].capacity / alone - 1.0)) for wire in hop.wires]
        if hop.transport.cpu_time_per_byte:
            terms.append(((name, CORES), -1, False, count * hop.transport.cpu_time_per_byte))
    return _StreamLoads(hops, terms)


def latency_of(edges: Sequence[Edge]) -> tuple[Cause, str]:
    """Return the cause to report for the latency of *edges*: the tier and transport class that add most of it."""
    seconds_of: dict[tuple[Cause, str], float] = defaultdict(float)
    for edge in edges:
        seconds_of[edge.latency_of] += edge.latency("Simple")
    return max(seconds_of, key=lambda blamed: seconds_of[blamed])
