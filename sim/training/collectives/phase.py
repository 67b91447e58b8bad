"""How long does a whole collective take as one activity? The ``phase`` executor.

A ring all-reduce of *S* bytes over *n* ranks and *C* channels moves ``2(n-1)/n * S/C`` bytes over every hop of every channel.
All hops progress together, so the collective is ONE fluid activity joined to every link it crosses, loaded by the number of
hops that cross it; a hop's efficiency makes each payload byte weigh more on its links. Latency comes first, then bytes:
the latency is what the schedule's own recurrence (`sim.training.collectives.recurrence`) takes beyond its bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from sim.cluster.build import Slot
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.training.collectives.channels import Channels, Hop, ring_channels
from sim.training.collectives.recurrence import all_reduce_steps, ring_time
from sim.training.collectives.uncontended import hop_rate

SimProcess = Generator[simpy.Event, object, None]

_TIER = {"interconnect": Cause.INTERCONNECT, "network": Cause.NETWORK}


class Cost(NamedTuple):
    """One all-reduce of a given size."""

    latency: float
    """Seconds before the bytes: launch, and what the recurrence takes beyond its bytes."""
    volume: float
    """Bytes over each hop of each channel."""
    cap: float
    """Bytes/s of one hop when nothing else runs."""
    usage: Mapping[str, float]
    """Load on each live link per byte of progress."""
    bottleneck: str
    """Description of what sets ``cap``."""

    @property
    def alone(self) -> float:
        """Return the seconds it takes when nothing else runs."""
        return self.latency + self.volume / self.cap


class Part(NamedTuple):
    """The channels that the nodes of one slot contribute."""

    slot: Slot
    gpus: tuple[int, ...]
    channels: Channels


class _Edge(NamedTuple):
    rate: float
    latency: float
    limit: str


@dataclass
class RingPlan:
    """The rings of one job over its slots, and what an all-reduce on them costs.

    *live* maps each slot's physical links to the network's; the slot with the fewest channels sets their number.
    """

    parts: Sequence[Part]
    live: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _costs: dict[float, Cost] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of ranks in the ring."""
        return sum(len(part.gpus) * part.slot.count for part in self.parts)

    @property
    def channels(self) -> int:
        """Return the number of rings that run side by side."""
        return len(self.parts[0].channels.channels)

    @property
    def slowest_hop(self) -> Hop:
        """Return the hop that adds most latency, network hops first."""
        hops = [hop for part in self.parts for channel in part.channels.channels for hop in channel.hops]
        return max(hops, key=lambda hop: (hop.tier == "network", hop.transport.hop_latency))

    def crossings(self, part: Part) -> dict[str, tuple[tuple[str, int], ...]]:
        """Return how many hops of each transport class cross each physical link of one of the part's nodes."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for channel in part.channels.channels:
            for hop in channel.hops:
                for link in hop.links:
                    counts[link][hop.transport.name] += 1
        return {link: tuple(sorted(found.items())) for link, found in counts.items()}

    def cost(self, nbytes: float) -> Cost:
        """Return what an all-reduce of *nbytes* costs."""
        if nbytes not in self._costs:
            self._costs[nbytes] = self._cost(nbytes)
        return self._costs[nbytes]

    def _cost(self, nbytes: float) -> Cost:
        share = nbytes / self.channels / self.ranks
        steps = all_reduce_steps(self.ranks)
        usage: dict[str, float] = {}
        edges: list[_Edge] = []
        for part in self.parts:
            load = self._load(part, share)
            for link, amount in load.items():
                name = self.live[part.slot.name][link]
                usage[name] = max(amount, usage.get(name, 0.0))
            pattern = [_edge(hops, part, share) for hops in part.channels.channels[0].edges]
            edges += pattern * (part.slot.count if len(self.parts) > 1 else 1)  # one pattern stands for all its repeats
        slowest = min(edges, key=lambda edge: edge.rate)
        timed = ring_time([share / edge.rate for edge in edges], [edge.latency for edge in edges], steps)
        volume = steps * share
        launch = max(part.channels.launch for part in self.parts)
        return Cost(launch + max(0.0, timed.total - volume / slowest.rate), volume, slowest.rate, usage, slowest.limit)

    def _load(self, part: Part, share: float) -> dict[str, float]:
        """Return the load on each physical link per payload byte; what a transport cannot use weighs like bytes."""
        load: dict[str, float] = defaultdict(float)
        for channel in part.channels.channels:
            for hop in channel.hops:
                weight = 1.0 / min(1.0, hop.efficiency(share))
                for link in hop.links:
                    load[link] += weight
        return load


def _edge(hops: Sequence[Hop], part: Part, share: float) -> _Edge:
    """Return payload bytes/s and latency of one ring edge alone; the hops of an edge are pipelined."""
    graph, crossings = part.slot.graph, part.channels.crossings
    rate, link = min(hop_rate(graph, crossings, hop, share) for hop in hops)
    limit = graph.links[link].description
    hop = next(hop for hop in hops if link in hop.links)
    if hop.flow_cap(share) <= rate:
        limit = f"the flow limit of {hop.transport.name}"
    elif hop.staged and hop.tier == "interconnect":
        limit = f"copies through host memory {hop.src.upper()}-{hop.dst.upper()} ({limit})"
    return _Edge(rate, max(hop.transport.hop_latency for hop in hops), limit)


def plan_rings(used: Sequence[tuple[Slot, tuple[int, ...]]]) -> RingPlan:
    """Return the rings of one job; *used* gives each slot with the GPUs the job has on each of its nodes."""
    nodes = sum(slot.count for slot, _ in used)
    parts = [Part(slot, gpus, ring_channels(slot.graph, gpus, nodes)) for slot, gpus in used]
    fewest = min(len(part.channels.channels) for part in parts)
    return RingPlan([part._replace(channels=part.channels.first(fewest)) for part in parts])


class PhaseExecutor:
    """Plays all-reduces of one job on the network, and logs what bounds them."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: RingPlan) -> None:
        self._network = network
        self._log = log
        self._rank = rank
        self._plan = plan
        self._described = _descriptions(plan)
        slowest = plan.slowest_hop
        self._tier = _TIER[slowest.tier]
        self._latency_of = f"{slowest.transport.name} latency"

    def __call__(self, name: str, ident: int, nbytes: float) -> SimProcess:
        """Play one all-reduce of *nbytes*."""
        cost = self._plan.cost(nbytes)
        start = self._network.env.now
        yield self._network.env.timeout(cost.latency)
        self._log.did(self._rank, "comm", name, self._tier, start, self._latency_of, ident)
        activity = self._network.start(name, cost.volume, cost.usage, cap=cost.cap)
        yield activity.done
        ends = [*(begin for begin, _ in activity.history[1:]), self._network.env.now]
        for (begin, bottleneck), end in zip(activity.history, ends, strict=True):
            cause, resource = self._described.get(bottleneck, (self._tier, cost.bottleneck))
            self._log.did(self._rank, "comm", name, cause, begin, resource, ident, nbytes, end)


def _descriptions(plan: RingPlan) -> dict[str, tuple[Cause, str]]:
    """Return the cause and description of every live link, by live name."""
    found: dict[str, tuple[Cause, str]] = {}
    for part in plan.parts:
        for link, name in plan.live[part.slot.name].items():
            known = part.slot.graph.links[link]
            found.setdefault(name, (_TIER[known.tier], known.description))
    return found
