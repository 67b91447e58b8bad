"""What does a collective put on which links? Streams between ranks, each along fixed hops; rates and loads follow from counting them.

A *stream* is what one rank sends another during a collective; all streams of one collective have equal volume and progress
together, so a link is loaded by the number of streams that cross it (a number that need not be whole: some carry a part only). What
an efficiency below 1 loses, and what a protocol adds, weighs on a link like bytes. Equal nodes of a slot carry the same, so that the
streams of one stand for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sim.cluster.build import Slot
from sim.events import Cause
from sim.spec.hardware import Fabric
from sim.training.collectives.channels import Channels, Hop
from sim.training.collectives.protocols import WIRE_BYTES, hop_latency
from sim.training.collectives.uncontended import hop_rate

TIER = {"interconnect": Cause.INTERCONNECT, "network": Cause.NETWORK}

CORES = "cores"
"""The resource of a node that a transport's work on the host takes, beside the physical links."""
CORE = ("fabric", "core")
"""The resource that all traffic between nodes shares, where the fabric has a bandwidth of its own."""
CORE_LIMIT = "the core of the fabric"

Load = Mapping[tuple[str, str], float]
"""Load per payload byte on each resource, by slot and physical link."""


class Part(NamedTuple):
    """The channels that the nodes of one slot contribute."""

    slot: Slot
    gpus: tuple[int, ...]
    channels: Channels


class Edge(NamedTuple):
    """From one rank to another: one hop, or two (pipelined) between nodes, each with the part it belongs to."""

    hops: tuple[tuple[Part, Hop], ...]
    fabric: Fabric | None = None
    """What it crosses between nodes."""

    def latency(self, protocol: str) -> float:
        """Return the seconds that a chunk takes beyond its bytes."""
        return max(_latency(hop, protocol) for _, hop in self.hops) + (self.fabric.latency if self.fabric else 0.0)

    @property
    def latency_of(self) -> tuple[Cause, str]:
        """Return whom to blame for the latency: tier and transport class."""
        slowest = max((hop for _, hop in self.hops), key=lambda hop: hop.transport.hop_latency)
        return TIER[slowest.tier], f"{slowest.transport.name} latency"

    def cap(self, chunk: float, protocol: str) -> float:
        """Return the most payload bytes/s that chunks of *chunk* bytes reach with the links to themselves."""
        alone = (min(part.slot.graph.alone(hop.route) * hop.efficiency(chunk), hop.flow_cap(chunk)) for part, hop in self.hops)
        return min(alone) / WIRE_BYTES[protocol]

    def load(self, chunk: float, protocol: str) -> dict[tuple[str, str], float]:
        """Return the load of one stream's chunks of *chunk* bytes, per byte."""
        core = {CORE: WIRE_BYTES[protocol]} if self.fabric and self.fabric.core_bandwidth else {}
        return _load([(part, hop, 1.0) for part, hop in self.hops], chunk, protocol) | core


def _latency(hop: Hop, protocol: str) -> float:
    return hop_latency(hop.route, hop.tier == "network", protocol)


class Pace(NamedTuple):
    """Payload bytes/s of an edge beside the other streams, and what limits it."""

    rate: float
    cause: Cause
    limit: str


class Cost(NamedTuple):
    """One collective of a given size, as one fluid activity."""

    algorithm: str
    protocol: str
    channels: int
    launch: float
    """Seconds before anything moves."""
    volume: float
    """Bytes of each stream."""
    chunk: float
    """Bytes at which efficiencies are read: what a hop keeps in flight, one step of a ring or a whole pipelined stream."""
    cap: float
    """Bytes/s of one stream when nothing else runs, mean over the whole collective."""
    latency_share: float
    """Of the time at that rate, the share that is latency, not bytes of the slowest hop."""
    load: Load
    cause: Cause
    bottleneck: str
    """Tier and description of what limits the slowest hop."""
    latency_of: tuple[Cause, str]
    """Whom to blame for latency: the tier and transport class that adds most of it."""

    @property
    def alone(self) -> float:
        """Return the seconds it takes when nothing else runs."""
        return self.launch + self.volume / self.cap


@dataclass(frozen=True, eq=False)
class Traffic:
    """All streams of one algorithm: how many cross each hop of one node of each part, and how many the fabric between all nodes."""

    streams: tuple[tuple[Part, Hop, float], ...]
    between: float
    fabric: Fabric

    @cached_property
    def crossings(self) -> Mapping[str, Mapping[str, float]]:
        """Return how many streams cross each physical link of a node, by slot."""
        found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for part, hop, count in self.streams:
            for link in hop.links:
                found[part.slot.name][link] += count
        return found

    def load(self, chunk: float, protocol: str) -> Load:
        """Return the load of all streams with chunks of *chunk* bytes, per byte of one stream."""
        found = _load(self.streams, chunk, protocol)
        if self.fabric.core_bandwidth and self.between:
            found[CORE] = self.between * WIRE_BYTES[protocol]
        return found

    def pace(self, edge: Edge, chunk: float, protocol: str, count: float = 1.0) -> Pace:
        """Return how fast one stream's chunks of *chunk* bytes cross *edge* beside the others, and what limits them.

        A *count* below 1 is the share of a stream that *edge* carries.
        """
        part_of = min(1.0, count)
        rates = [(hop_rate(part.slot.graph, self.crossings[part.slot.name], hop, chunk, part_of), part, hop) for part, hop in edge.hops]
        (rate, link), part, hop = min(rates, key=lambda found: found[0])
        limit = part.slot.graph.links[link].description
        if hop.flow_cap(chunk) <= rate:
            limit = f"the flow limit of {hop.transport.name}"
        elif hop.staged and hop.tier == "interconnect":
            limit = f"copies through host memory {hop.src.upper()}-{hop.dst.upper()} ({limit})"
        if edge.fabric and edge.fabric.core_bandwidth and (share := edge.fabric.core_bandwidth / self.between) < rate:
            return Pace(share / WIRE_BYTES[protocol], Cause.NETWORK, CORE_LIMIT)
        tier = hop.tier if hop.flow_cap(chunk) <= rate else part.slot.graph.links[link].tier
        return Pace(rate / WIRE_BYTES[protocol], TIER[tier], limit)


def _load(streams: Iterable[tuple[Part, Hop, float]], chunk: float, protocol: str) -> dict[tuple[str, str], float]:
    """Return what *streams* of one node weigh on its resources; what a transport cannot use weighs like bytes."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for part, hop, count in streams:
        weight = count * WIRE_BYTES[protocol] / min(1.0, hop.efficiency(chunk))
        for link in hop.links:
            found[part.slot.name, link] += weight
        if hop.transport.cpu_time_per_byte:
            found[part.slot.name, CORES] += count * hop.transport.cpu_time_per_byte
    return found


def latency_of(edges: Sequence[Edge]) -> tuple[Cause, str]:
    """Return whom to blame for the latency of *edges*: the tier and transport class that adds most of it."""
    found: dict[tuple[Cause, str], float] = defaultdict(float)
    for edge in edges:
        found[edge.latency_of] += edge.latency("Simple")
    return max(found, key=lambda blamed: found[blamed])
