"""What does a collective cost over Gloo? Copies to host memory, one ring of all ranks over sockets, and copies back.

All-reduce: a ring in rank order, reduce-scatter then all-gather (facebookincubator/gloo, docs/algorithms.md), each a pass of segments
(`gloo_ring`): ``launch + 2 segments_time(segments, segment / rate, latency / 2)``. The rate is the lowest of one socket, the NIC, and the
copying and adding of a rank's two threads. A reduce-scatter is an all-reduce of which each rank keeps its part (ProcessGroupGloo.cpp). A
gather goes around once, with each rank's part in two segments. A broadcast is a binomial tree. Each byte takes ``cpu_time_per_byte`` on the
cores that loaders share. GPU tensors are copied to pinned memory and back (ProcessGroupGloo.cpp). Two torch threads take collectives from
one queue (torch/csrc/distributed/c10d/init.cpp), so two collectives overlap and share the sockets.
Limits: only the first NIC is used; the DRAM traffic of sockets inside a node and of additions is not counted; the order of the segments
of two concurrent collectives is not modeled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from sim.cluster.build import Slot
from sim.cluster.clock import SimProcess
from sim.cluster.fabric import RING, UNLIMITED_FABRIC, JobFabric, NodeStreams
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.spec.hardware import Fabric, Transport
from sim.training.collectives.play.phase import PhaseExecutor
from sim.training.collectives.price.collective_plan import (
    CORES_COPY,
    AlgorithmChoice,
    CollectivePlan,
    Live,
    Op,
    Tuning,
    live_load,
    live_name,
)
from sim.training.collectives.price.gloo_ring import cut_segments, gather_time, segments_time
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.traffic import CORE, CORE_LIMIT, CORES, FABRIC, Cost, LinkLoad, SlotPart
from sim.training.collectives.routes.channels import ring_channels

NIC_LINKS = ("nic0>net", "net>nic0")
_THREADS = 2.0
_STAGING = "copies to and from host memory"
_SOCKET = ("gloo", "socket")
"""The resource that all collectives of one job share: the connection between two neighbors of the ring."""
_REDUCING = ("all_reduce", "reduce_scatter")
STREAMS = 2
"""Number of torch threads that run collectives."""


@dataclass(frozen=True)
class GlooPlan(CollectivePlan):
    """The collectives of one job over Gloo."""

    transport: Transport = field(kw_only=True)
    """The transport of a socket connection."""

    @property
    def channels(self) -> int:
        """Return 1, because there is one ring."""
        return 1

    @property
    def streams(self) -> int:
        """Return 2, the number of torch's threads."""
        return STREAMS

    @property
    def socket(self) -> float | None:
        """Return the bytes/s of the connection between two neighbors, or None if only the links limit it."""
        cap = self.transport.flow_cap
        return cap * self.transport.flows if cap else None

    def choice(self, nbytes: float, op: Op = "all_reduce") -> AlgorithmChoice:
        """Return Gloo's only choice for *op*."""
        return AlgorithmChoice("Gloo ring" if op != "broadcast" else "Gloo tree", "TCP", 1)

    def cost_of(self, nbytes: float, algorithm: str, protocol: str, channels: int, op: Op = "all_reduce") -> Cost:
        """Return the cost of *op* on the ring, without the copies to host memory and back."""
        ranks, load = self.ranks, self._ring_load
        steps, volume = _steps(op, ranks, nbytes)
        rate, cause, limit = self._rate(load)
        launch, latency = self.transport.launch, self._latency(op, nbytes, rate)
        volume -= min(self._burst, max(0.0, volume - 1.0))
        total = latency + volume / rate
        tier = Cause.NETWORK if self.nodes > 1 else Cause.INTERCONNECT
        named = (cause, limit, (tier, f"{self.transport.name} latency"))
        return Cost(algorithm, protocol, channels, launch, volume, volume / steps, volume / total, latency / total, load, *named)

    @property
    def _burst(self) -> float:
        """Return the bytes that the NIC lets through without delay after an idle period."""
        return min(part.slot.node.nic.burst for part in self.parts) if self.nodes > 1 else 0.0

    def _latency(self, op: Op, nbytes: float, rate: float) -> float:
        """Return the time (s) of *op* in excess of its bytes at *rate*."""
        one_way = self.transport.hop_latency / 2 + (self.fabric.latency if self.nodes > 1 else 0.0)
        if op == "broadcast":
            return math.ceil(math.log2(self.ranks)) * 2 * one_way
        if op == "all_gather":
            return gather_time(nbytes, self.ranks, rate, one_way, self._burst) - (self.ranks - 1) / self.ranks * nbytes / rate
        count, segment = cut_segments(nbytes, self.ranks)
        wire = segment / rate
        return (2 if op in _REDUCING else 1) * (segments_time(count, wire, one_way, self.ranks == 2) - count * wire)

    def crossings(self, slot: str) -> dict[str, Hashable]:
        """Return, for each physical link of one node of *slot*, a key that distinguishes links by their loads."""
        loads_of: dict[str, list[Hashable]] = defaultdict(list)
        for down in (True, False):
            for (name, link), load in self.staging_load(down).items():
                if name == slot:
                    loads_of[link].append((down, load))
        for (name, link), load in self._ring_load.items():
            if name == slot:
                loads_of[link].append(load)
        return {link: tuple(loads) for link, loads in loads_of.items()}

    def causes(self, live: Live) -> dict[str, tuple[Cause, str]]:
        """Return, by the live name of a resource, the cause and description to report when it limits a collective."""
        causes = super().causes(live)
        tier = Cause.NETWORK if self.nodes > 1 else Cause.INTERCONNECT
        causes |= {live_name(live, part.slot.name, CORES): (tier, CORES_COPY) for part in self.parts}
        return causes | {live_name(live, *_SOCKET): (tier, f"the flow limit of {self.transport.name}")}

    def staging_load(self, down: bool) -> LinkLoad:
        """Return the load per byte when all GPUs of the job copy *down* to host memory, or up again."""
        load: dict[tuple[str, str], float] = defaultdict(float)
        for part in self.parts:
            for gpu in part.gpus:
                route = part.slot.graph.device_to_host(gpu) if down else part.slot.graph.host_to_device(gpu)
                for link in route.links:
                    load[part.slot.name, link] += 1.0
        return load

    def staging_cap(self) -> float:
        """Return the bytes/s at which one GPU copies without contention on its path."""
        return min(part.slot.graph.isolated_rate(part.slot.graph.device_to_host(gpu)) for part in self.parts for gpu in part.gpus)

    @property
    def _ring_load(self) -> dict[tuple[str, str], float]:
        ring_load: dict[tuple[str, str], float] = {}
        for part in self.parts:
            name, nic = part.slot.name, part.slot.node.nic
            ring_load[name, CORES] = 2.0 * len(part.gpus) * self.transport.cpu_time_per_byte
            if self.nodes > 1:
                weight = max(1.0, nic.transport.total_efficiency / self.transport.total_efficiency)
                ring_load |= {(name, link): weight for link in NIC_LINKS}
                sent = [NodeStreams(RING, 0, 0, weight, 1.0)]
                ring_load |= {(FABRIC, link): load for link, load in self.layout.job_fabric.load(sent).items()}
        if self.fabric.core_bandwidth and self.nodes > 1:
            ring_load[CORE] = float(self.nodes)
        if self.socket:
            ring_load[_SOCKET] = 1.0
        return {resource: load for resource, load in ring_load.items() if load}

    def _rate(self, load: Mapping[tuple[str, str], float]) -> tuple[float, Cause, str]:
        """Return the bytes/s of the ring without contention, and what limits it."""
        tier = Cause.NETWORK if self.nodes > 1 else Cause.INTERCONNECT
        copying = 2.0 * self.transport.cpu_time_per_byte
        limits = [(self.socket, tier, f"the flow limit of {self.transport.name}")] if self.socket else []
        if copying:
            limits.append((_THREADS / copying, tier, CORES_COPY))
        for part in self.parts:
            links = part.slot.graph.links
            if copying:
                limits.append((part.slot.cores / load[part.slot.name, CORES], tier, CORES_COPY))
            if self.nodes > 1:
                limits.append(
                    (links[NIC_LINKS[0]].capacity / load[part.slot.name, NIC_LINKS[0]], Cause.NETWORK, links[NIC_LINKS[0]].description)
                )
        shared = {(FABRIC, name.removeprefix(f"{FABRIC}.")): capacity for name, capacity in self.shared_capacities.items()}
        shared_rates = [(capacity / load[key], key[1]) for key, capacity in shared.items() if key in load]
        limits += [(rate, Cause.NETWORK, self.layout.job_fabric.descriptions.get(name, CORE_LIMIT)) for rate, name in shared_rates]
        limits.append((self.staging_cap(), Cause.INTERCONNECT, _STAGING))
        return min(limits)


def _steps(op: Op, ranks: int, nbytes: float) -> tuple[int, float]:
    """Return the number of sequential hops, and the bytes over each link of the ring."""
    if op == "broadcast":
        rounds = math.ceil(math.log2(ranks))
        return rounds, rounds * nbytes
    steps = (2 if op in _REDUCING else 1) * (ranks - 1)
    return steps, steps * nbytes / ranks


def plan_gloo(
    slot_gpus: Sequence[tuple[Slot, tuple[int, ...]]], fabric: Fabric, transport: Transport, job_fabric: JobFabric = UNLIMITED_FABRIC
) -> GlooPlan:
    """Return the plan of one job's collectives over Gloo; *slot_gpus* lists each slot with the job's GPUs on each of its nodes."""
    nodes = sum(slot.count for slot, _ in slot_gpus)
    parts = tuple(SlotPart(slot, gpus, ring_channels(slot.graph, gpus, nodes).first(1)) for slot, gpus in slot_gpus)
    return GlooPlan(JobLayout(parts, fabric, job_fabric), Tuning(), transport=transport)


class GlooExecutor:
    """Plays collectives of one job over Gloo: copies of every GPU to host memory, the ring, copies back."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: GlooPlan, live: Live) -> None:
        self._network = network
        self._log = log
        self._rank = rank
        slot, link = _SOCKET
        own = f"{slot} {link} of job {log.ranks[rank].job}"
        if plan.socket:
            network.add_link(own, plan.socket)
        self._ring = PhaseExecutor(network, log, rank, plan, {**live, slot: {link: own}})
        self._cap = plan.staging_cap()
        self._ranks = plan.ranks
        self._usage = {down: live_load(plan.staging_load(down), live) for down in (True, False)}

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play one *op* that leaves *nbytes* on every rank."""
        yield from self._copy(name, ident, nbytes / self._ranks if op == "all_gather" else nbytes, down=True)
        yield from self._ring(name, ident, nbytes, op)
        yield from self._copy(name, ident, nbytes, down=False)

    def _copy(self, name: str, ident: int, nbytes: float, down: bool) -> SimProcess:
        start = self._network.env.now
        yield self._network.start(f"{name} {'down' if down else 'up'}", nbytes, self._usage[down], cap=self._cap).done
        self._log.add_work(self._rank, "comm", f"{name} staging", Cause.INTERCONNECT, start, _STAGING, ident, nbytes)
