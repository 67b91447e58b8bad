"""Over which rings does a job reduce its gradients, and what does one all-reduce on them cost?

A ring all-reduce of *S* bytes over *n* ranks and *C* channels moves ``2(n-1)/n * S/C`` bytes over every hop of every channel, in
``2(n-1)`` chunks. What an efficiency below 1 loses weighs on a link like bytes. One all-reduce takes its launch and what the
schedule's own recurrence (`sim.training.collectives.recurrence`) gives for its slowest channel. Nothing here happens in time; the
executors play it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sim.cluster.build import Slot
from sim.events import Cause
from sim.spec.hardware import Fabric
from sim.training.collectives.channels import Channels, Hop, ring_channels
from sim.training.collectives.recurrence import ring_time
from sim.training.collectives.uncontended import hop_rate
from sim.training.operations import Op

_CORE_LIMIT = "the core of the fabric"
CORES_COPY = "CPU cores that copy for the network"
"""What a collective waits for where a transport takes the host's cores."""
_TIER = {"interconnect": Cause.INTERCONNECT, "network": Cause.NETWORK}

CORES = "cores"
"""The resource of a node that a transport's work on the host takes, beside the physical links."""
CORE = ("fabric", "core")
"""The resource that all traffic between nodes shares, where the fabric has a bandwidth of its own."""

Load = Mapping[tuple[str, str], float]
"""Load per payload byte on each resource, by slot and physical link."""
Live = Mapping[str, Mapping[str, str]]
"""The network's name of each physical link, by slot."""


class Part(NamedTuple):
    """The channels that the nodes of one slot contribute."""

    slot: Slot
    gpus: tuple[int, ...]
    channels: Channels


class Edge(NamedTuple):
    """One step around a ring, from a GPU to the next: one hop, or two (pipelined) between nodes, each with the part it belongs to."""

    hops: tuple[tuple[Part, Hop], ...]
    fabric: Fabric | None = None
    """What it crosses between nodes."""

    @property
    def latency(self) -> float:
        """Return the seconds that a chunk takes beyond its bytes."""
        return self._slowest.transport.hop_latency + (self.fabric.latency if self.fabric else 0.0)

    @property
    def latency_of(self) -> tuple[Cause, str]:
        """Return whom to blame for the latency: tier and transport class."""
        return _TIER[self._slowest.tier], f"{self._slowest.transport.name} latency"

    @property
    def _slowest(self) -> Hop:
        return max((hop for _, hop in self.hops), key=lambda hop: hop.transport.hop_latency)

    def cap(self, chunk: float) -> float:
        """Return the most bytes/s that chunks of *chunk* bytes reach with the links to themselves."""
        return min(min(part.slot.graph.alone(hop.route) * hop.efficiency(chunk), hop.flow_cap(chunk)) for part, hop in self.hops)

    def load(self, chunk: float) -> dict[tuple[str, str], float]:
        """Return the load of one channel's chunks of *chunk* bytes, per byte."""
        return _load(self.hops, chunk) | ({CORE: 1.0} if self.fabric and self.fabric.core_bandwidth else {})


class Pace(NamedTuple):
    """Payload bytes/s of an edge beside the other channels, and what limits it."""

    rate: float
    cause: Cause
    limit: str


class Cost(NamedTuple):
    """One all-reduce of a given size."""

    launch: float
    """Seconds before anything moves."""
    volume: float
    """Bytes over each hop of each channel."""
    cap: float
    """Bytes/s of one hop when nothing else runs, mean over the whole collective."""
    latency_share: float
    """Of the time at that rate, the share that is latency, not bytes of the slowest hop."""
    load: Load
    cause: Cause
    bottleneck: str
    """Tier and description of what limits the slowest hop."""

    @property
    def alone(self) -> float:
        """Return the seconds it takes when nothing else runs."""
        return self.launch + self.volume / self.cap


@dataclass(frozen=True)
class RingPlan:
    """The rings of one job over its slots; the slot with the fewest channels sets their number."""

    parts: tuple[Part, ...]
    fabric: Fabric
    _costs: dict[tuple[float, int], Cost] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def ranks(self) -> int:
        """Return the number of ranks in the ring."""
        return sum(len(part.gpus) * part.slot.count for part in self.parts)

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return sum(part.slot.count for part in self.parts)

    @property
    def channels(self) -> int:
        """Return the number of rings that run side by side."""
        return len(self.parts[0].channels.channels)

    @property
    def decision(self) -> dict[str, object]:
        """Return what the log's header says of the exchange."""
        return {"algorithm": "ring", "channels": self.channels}

    @property
    def launch(self) -> float:
        """Return the fixed cost of one collective, seconds."""
        return max(part.channels.launch for part in self.parts)

    @cached_property
    def rings(self) -> tuple[tuple[Edge, ...], ...]:
        """Return the edges of each channel's ring, in order; where all nodes are alike those of one node stand for all."""
        nodes = self.parts if len(self.parts) == 1 else [part for part in self.parts for _ in range(part.slot.count)]
        return tuple(_ring(nodes, channel, self.fabric) for channel in range(self.channels))

    @property
    def shared(self) -> dict[str, float]:
        """Return the resources that belong to no node, by live name, with their capacities (bytes/s)."""
        return {".".join(CORE): self.fabric.core_bandwidth} if self.fabric.core_bandwidth and self.nodes > 1 else {}

    def crossings(self, slot: str) -> dict[str, tuple[tuple[str, int], ...]]:
        """Return how many hops of each transport class cross each physical link of one node of *slot*; nothing where it lends none."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for part in self.parts:
            for channel in part.channels.channels if part.slot.name == slot else ():
                for hop in channel.hops:
                    for link in hop.links:
                        counts[link][hop.transport.name] += 1
        return {link: tuple(sorted(found.items())) for link, found in counts.items()}

    def cost(self, nbytes: float, rounds: int = 2) -> Cost:
        """Return what a collective on *nbytes* costs that goes around the ring *rounds* times: 2 reduces all, 1 gathers or scatters."""
        if (nbytes, rounds) not in self._costs:
            self._costs[nbytes, rounds] = self._cost(nbytes, rounds)
        return self._costs[nbytes, rounds]

    def cost_of(self, op: Op, nbytes: float) -> Cost:
        """Return what *op* costs that leaves *nbytes* on every rank; a broadcast goes around once, each byte over every hop but one."""
        if op == "broadcast":
            return self.cost(nbytes * self.ranks / (self.ranks - 1), 1)
        return self.cost(nbytes, 2 if op == "all_reduce" else 1)

    def latency_of(self) -> tuple[Cause, str]:
        """Return whom to blame for latency: the transport class whose hops add most of it around the ring, and its tier."""
        found: dict[tuple[Cause, str], float] = defaultdict(float)
        for edge in self.rings[0]:
            found[edge.latency_of] += edge.latency
        return max(found, key=lambda blamed: found[blamed])

    def causes(self, live: Live) -> dict[str, tuple[Cause, str]]:
        """Return what it means that a resource, by its live name, holds a collective back: cause and description."""
        found = dict.fromkeys(self.shared, (Cause.NETWORK, _CORE_LIMIT))
        for part in self.parts:
            for link, name in live[part.slot.name].items():
                known = part.slot.graph.links[link]
                found.setdefault(name, (_TIER[known.tier], known.description))
            crossed = {hop.tier for channel in part.channels.channels for hop in channel.hops if hop.transport.cpu_time_per_byte}
            for tier in sorted(crossed):
                found[live_name(live, part.slot.name, CORES)] = (_TIER[tier], CORES_COPY)
        return found

    def pace(self, edge: Edge, chunk: float) -> Pace:
        """Return how fast chunks of *chunk* bytes cross *edge* beside the other channels, and what limits them."""
        rates = [(hop_rate(part.slot.graph, self._crossings[part.slot.name], hop, chunk), part, hop) for part, hop in edge.hops]
        (rate, link), part, hop = min(rates, key=lambda found: found[0])
        limit = part.slot.graph.links[link].description
        if hop.flow_cap(chunk) <= rate:
            limit = f"the flow limit of {hop.transport.name}"
        elif hop.staged and hop.tier == "interconnect":
            limit = f"copies through host memory {hop.src.upper()}-{hop.dst.upper()} ({limit})"
        if edge.fabric and edge.fabric.core_bandwidth and (share := edge.fabric.core_bandwidth / (self.nodes * self.channels)) < rate:
            return Pace(share, Cause.NETWORK, _CORE_LIMIT)
        tier = hop.tier if hop.flow_cap(chunk) <= rate else part.slot.graph.links[link].tier
        return Pace(rate, _TIER[tier], limit)

    # --- cost ----------------------------------------------------------------------------------------------------

    @cached_property
    def _different(self) -> list[tuple[Edge, ...]]:
        """Return one ring of each kind that costs the same."""
        known = {tuple((part.slot.name, hop.links) for edge in ring for part, hop in edge.hops): ring for ring in self.rings}
        return list(known.values())

    @cached_property
    def _crossings(self) -> dict[str, dict[str, int]]:
        return {part.slot.name: part.channels.crossings for part in self.parts}

    def _cost(self, nbytes: float, rounds: int) -> Cost:
        chunk = nbytes / self.channels / self.ranks
        steps = rounds * (self.ranks - 1)
        paces = [[self.pace(edge, chunk) for edge in ring] for ring in self._different]
        times = [
            ring_time([chunk / pace.rate for pace in along], [edge.latency for edge in ring], steps)
            for ring, along in zip(self._different, paces, strict=True)
        ]
        slowest = min(pace for along in paces for pace in along)
        volume, total = steps * chunk, max(times).total
        hops = [(part, hop) for part in self.parts for channel in part.channels.channels for hop in channel.hops]
        load = _load(hops, chunk)
        if self.shared:
            load[CORE] = float(self.nodes * self.channels)
        latency_share = max(0.0, 1.0 - volume / slowest.rate / total)
        return Cost(self.launch, volume, volume / total, latency_share, load, slowest.cause, slowest.limit)


def _load(hops: Sequence[tuple[Part, Hop]], chunk: float) -> dict[tuple[str, str], float]:
    """Return what one node's *hops* weigh on its resources; what a transport cannot use weighs like bytes."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for part, hop in hops:
        weight = 1.0 / min(1.0, hop.efficiency(chunk))
        for link in hop.links:
            found[part.slot.name, link] += weight
        if hop.transport.cpu_time_per_byte:
            found[part.slot.name, CORES] += hop.transport.cpu_time_per_byte
    return found


def _ring(nodes: Sequence[Part], channel: int, fabric: Fabric) -> tuple[Edge, ...]:
    """Return the edges of one ring through *nodes*."""
    if nodes[0].channels.nodes == 1:
        return tuple(Edge(((nodes[0], hop),)) for hop in nodes[0].channels.channels[channel].hops)
    edges: list[Edge] = []
    for part, onward in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        _, *inside, leaving = part.channels.channels[channel].hops
        arriving = onward.channels.channels[channel].hops[0]
        edges += [Edge(((part, hop),)) for hop in inside]
        edges.append(Edge(((part, leaving), (onward, arriving)), fabric))
    return tuple(edges)


def live_name(live: Live, slot: str, link: str) -> str:
    """Return the network's name of *link* of *slot*."""
    return live.get(slot, {}).get(link, f"{slot}.{link}")


def live_load(load: Load, live: Live) -> dict[str, float]:
    """Return *load* on the network's resources; physical links that share one carry the same."""
    found: dict[str, float] = {}
    for (slot, link), amount in load.items():
        name = live_name(live, slot, link)
        found[name] = max(amount, found.get(name, 0.0))
    return found


def plan_rings(used: Sequence[tuple[Slot, tuple[int, ...]]], fabric: Fabric | None = None, channels: int | None = None) -> RingPlan:
    """Return the rings of one job, at most *channels* of them; *used* gives each slot with the GPUs the job has on each of its nodes."""
    nodes = sum(slot.count for slot, _ in used)
    parts = [Part(slot, gpus, ring_channels(slot.graph, gpus, nodes)) for slot, gpus in used]
    fewest = min([len(part.channels.channels) for part in parts] + ([channels] if channels else []))
    return RingPlan(tuple(part._replace(channels=part.channels.first(fewest)) for part in parts), fabric or Fabric())
