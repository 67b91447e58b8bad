"""Which links and cores does an exchange through parameter servers load? A plan for each bucket, in sequential stages; no simulation.

Every worker pushes a shard of the bucket to each server (`sim.training.sharding`), the server's processor applies it, and the worker
pulls the new values: three stages, or one if the servers pipeline. A leg of a stage is all traffic between the workers and one server
(or several equal servers); its load on a link is the number of flows that cross it. A server spreads its traffic over all its NICs.
Traffic that leaves a leaf or pod loads its uplinks (`sim.cluster.server_traffic`). Traffic of a colocated server with its own host
crosses PCIe but no network link. With racks (PHub, arXiv:1805.07891, section 3.4), servers first sum within their own rack and then
exchange the sums in a ring; only this ring crosses the core of the fabric.
Not modeled: pushing one bucket while the previous one is pulled (unless pipelined), and sums inside a node before the push.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sim.cluster.build import Serving, Slot
from sim.cluster.server_traffic import UNLIMITED, ServerFabric
from sim.events import Cause
from sim.spec.fields import curve_value
from sim.spec.hardware import Fabric
from sim.spec.servers import Servers
from sim.spec.stack import AsyncParameterServer, ServerExchange
from sim.spec.workload import Workload
from sim.training.collectives.price.collective_plan import CORE, CORES, LinkLoad, Live, live_name
from sim.training.collectives.price.traffic import FABRIC
from sim.training.sharding import ServerShard, shards


class Sender(NamedTuple):
    """Workers that push together: those on *gpus* of each of *nodes* nodes of *slot*."""

    slot: Slot
    gpus: tuple[int, ...]
    nodes: int


class Site(NamedTuple):
    """The hosts of a parameter server: server *number*, or equal servers on all hosts of *slot* (-1)."""

    slot: Slot
    number: int


class Leg(NamedTuple):
    """All traffic with one site: *volume* (bytes between one worker and one server, or core-seconds), load per unit, and rate limit."""

    name: str
    volume: float
    load: LinkLoad
    cap: float = float("inf")


class ServerStage(NamedTuple):
    """Legs that run in parallel, followed by a latency (s)."""

    legs: tuple[Leg, ...]
    latency: float = 0.0


@dataclass(frozen=True)
class ServerPlan:
    """The parameter servers of one job; *parts* lists its workers by slot, *shards* what one worker sends, by bucket and server."""

    parts: tuple[tuple[Slot, tuple[int, ...]], ...]
    sites: tuple[Site, ...]
    servers: Servers
    shards: tuple[tuple[ServerShard, ...], ...]
    fabric: Fabric
    asynchronous: bool
    server_fabric: ServerFabric = UNLIMITED
    """The network between its hosts, if the structure of the fabric is specified."""

    @property
    def ranks(self) -> int:
        """Return the number of workers."""
        return sum(slot.count * len(gpus) for slot, gpus in self.parts)

    @property
    def channels(self) -> None:
        """Return None, because there are no NCCL channels."""

    @property
    def decision(self) -> dict[str, object]:
        """Return the description of the exchange for the log's header."""
        return {"algorithm": "parameter server", "servers": self.servers.count, "sharding": self.servers.sharding}

    @property
    def shared_capacities(self) -> dict[str, float]:
        """Return the capacities (bytes/s) of the resources outside nodes, by live name."""
        core = {".".join(CORE): self.fabric.core_bandwidth} if self.fabric.core_bandwidth else {}
        return core | {f"{FABRIC}.{name}": capacity for name, capacity in self.server_fabric.capacities.items()}

    @property
    def everyone(self) -> tuple[Sender, ...]:
        """Return all workers."""
        return tuple(Sender(slot, gpus, slot.count) for slot, gpus in self.parts)

    def crossings(self, slot: str) -> dict[str, Hashable]:
        """Return, for each physical link of one node of *slot*, a key that distinguishes links by the loads of one exchange on them."""
        loads_of: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for leg in self._legs():
            for (owner, link), load in leg.load.items():
                if owner == slot:
                    loads_of[link].append((leg.name, round(load * leg.volume)))
        return {link: tuple(loads) for link, loads in loads_of.items()}

    def stages(self, bucket: int, senders: Sequence[Sender]) -> list[ServerStage]:
        """Return the stages of the exchange of *bucket* among *senders* and all servers."""
        legs = [_SenderLegs(self, site, self.shards[bucket][max(site.number, 0)], senders) for site in self.sites]
        legs = [leg for leg in legs if leg.shard.nbytes > 0]
        latency = max(sender.slot.node.nic.transport.hop_latency for sender in senders) + self.fabric.latency
        between = (
            [ServerStage(tuple(leg.between_racks() for leg in legs), latency * (self.servers.racks - 1))] if self.servers.racks > 1 else []
        )
        if self.servers.pipelined:
            return [ServerStage(tuple(leg.push_and_pull() for leg in legs), 2 * latency), *between]
        push = ServerStage(tuple(leg.push() for leg in legs), latency)
        apply = ServerStage(tuple(leg.apply() for leg in legs))
        pull = ServerStage(tuple(leg.pull() for leg in legs), latency)
        return [push, apply, *between, pull]

    def _legs(self) -> Iterator[Leg]:
        """Yield all legs of one exchange of all buckets between all workers and servers."""
        for bucket in range(len(self.shards)):
            for stage in self.stages(bucket, self.everyone):
                yield from stage.legs

    @cached_property
    def _slots(self) -> dict[str, Slot]:
        """Return the slots of workers and servers by name."""
        return {slot.name: slot for slot in (*(slot for slot, _ in self.parts), *(site.slot for site in self.sites))}

    @cached_property
    def host_bytes(self) -> dict[str, float]:
        """Return the bytes that one node of each slot sends and receives in one exchange of all buckets."""
        bytes_of = dict.fromkeys(self._slots, 0.0)
        for leg in self._legs():
            for (slot, link), load in leg.load.items():
                if link.startswith("net>") or link.endswith(">net"):
                    bytes_of[slot] += load * leg.volume
        return bytes_of

    def uncontended_time(self) -> tuple[float, str]:
        """Return the time (s) of one exchange of all buckets without contention, and what bounds most of it.

        The exchange is that of all workers, or of a single worker if they are asynchronous.
        """
        senders = (Sender(self.parts[0][0], self.parts[0][1][:1], 1),) if self.asynchronous else self.everyone
        causes, total, seconds_of_limit = self.causes({}), 0.0, dict[str, float]()
        for bucket in range(len(self.shards)):
            for stage in self.stages(bucket, senders):
                slowest = max((self._leg_alone(leg) for leg in stage.legs), default=(0.0, ""))
                total += slowest[0] + stage.latency
                seconds_of_limit[slowest[1]] = seconds_of_limit.get(slowest[1], 0.0) + slowest[0]
        worst = max(seconds_of_limit, key=lambda name: seconds_of_limit[name])
        return total, causes[worst][1] if worst in causes else "the flow limit of the transport"

    def _leg_alone(self, leg: Leg) -> tuple[float, str]:
        times = [(leg.volume / leg.cap, "")]
        for (slot, link), load in leg.load.items():
            shared = self.shared_capacities.get(f"{slot}.{link}")
            capacity = shared if slot == FABRIC else self._slots[slot].cores if link == CORES else None
            times.append((leg.volume * load / (capacity or self._slots[slot].graph.links[link].capacity), f"{slot}.{link}"))
        return max(times)

    def causes(self, live: Live) -> dict[str, tuple[Cause, str]]:
        """Return, by the live name of a resource, the cause and description to report when it limits the exchange."""
        causes = dict.fromkeys(self.shared_capacities, (Cause.NETWORK, "the core of the fabric"))
        causes |= {f"{FABRIC}.{name}": (Cause.NETWORK, what) for name, what in self.server_fabric.descriptions.items()}
        alone = {slot.name for slot, _ in self.parts} == {site.slot.name for site in self.sites} and self.parts[0][0].count == 1
        tier = Cause.INTERCONNECT if alone and len(self.parts) == 1 else Cause.NETWORK
        for site in self.sites:
            who = "parameter server" if site.number < 0 else f"parameter server {site.number}"
            causes[live_name(live, site.slot.name, CORES)] = (tier, f"CPU of {who}")
            for link, described in site.slot.graph.links.items():
                causes.setdefault(live_name(live, site.slot.name, link), (Cause(described.tier), f"{who}: {described.description}"))
        for slot, _ in self.parts:
            for link, described in slot.graph.links.items():
                causes.setdefault(live_name(live, slot.name, link), (Cause(described.tier), described.description))
            causes.setdefault(live_name(live, slot.name, CORES), (Cause.NETWORK, "CPU cores that copy for the network"))
        return causes


class _SenderLegs(NamedTuple):
    """The legs between *senders* and one site, for one shard."""

    plan: ServerPlan
    site: Site
    shard: ServerShard
    senders: Sequence[Sender]

    @property
    def _hosts(self) -> float:
        """Number of servers of the site with which one worker communicates."""
        return (self.site.slot.count if self.site.number < 0 else 1) / self.plan.servers.racks

    @property
    def _workers(self) -> float:
        """Number of workers that communicate with one server of the site."""
        return sum(sender.nodes * len(sender.gpus) for sender in self.senders) / self.plan.servers.racks

    @property
    def _core_time(self) -> float:
        """Core-seconds of one server for one worker's shard."""
        spec = self.plan.servers
        return (self.shard.updates * spec.update_cpu + 2 * self.shard.nbytes * spec.byte_cpu) / self.site.slot.node.host.cpu.speed

    @property
    def _cap(self) -> float:
        """Rate limit (bytes/s) of one connection, if any worker reaches the server over the network."""
        caps = [sender.slot.node.nic.transport.flow_cap for sender in self.senders if self._hosts > 1 or sender.slot is not self.site.slot]
        return min((cap for cap in caps if cap is not None), default=float("inf"))

    def push(self) -> Leg:
        return Leg("push", self.shard.nbytes, self._wires(outward=True), self._cap)

    def pull(self) -> Leg:
        return Leg("pull", self.shard.nbytes, self._wires(outward=False), self._cap)

    def apply(self) -> Leg:
        return Leg("apply", self._workers * self._core_time, {(self.site.slot.name, CORES): 1.0})

    def push_and_pull(self) -> Leg:
        """Return push, update and pull as one leg, because chunks pipeline them."""
        load: dict[tuple[str, str], float] = defaultdict(float)
        for part in (self._wires(outward=True), self._wires(outward=False)):
            for key, amount in part.items():
                load[key] += amount
        load[self.site.slot.name, CORES] += self._workers * self._core_time / self.shard.nbytes
        return Leg("push and pull", self.shard.nbytes, load, self._cap)

    def between_racks(self) -> Leg:
        """Return the ring between the servers of this site and those of the other racks."""
        racks, slot = self.plan.servers.racks, self.site.slot
        load: dict[tuple[str, str], float] = defaultdict(float)
        for nic in range(slot.node.nic.count):
            for link in (*slot.graph.memory_to_network(nic), *slot.graph.memory_from_network(nic)):
                load[slot.name, link] += 1 / slot.node.nic.count
        load[slot.name, CORES] += 2 * self.plan.servers.byte_cpu / slot.node.host.cpu.speed
        if self.plan.fabric.core_bandwidth:
            load[CORE] = float(slot.count)
        return Leg("between racks", 2 * (racks - 1) / racks * self.shard.nbytes, load)

    def _wires(self, outward: bool) -> dict[tuple[str, str], float]:
        """Return the load of every link per byte exchanged between one worker and one server, from (*outward*) or to the workers."""
        slot, load = self.site.slot, defaultdict[tuple[str, str], float](float)
        arriving = self._workers
        for sender in self.senders:
            local = 1.0 if sender.slot is slot else 0.0
            arriving -= local * len(sender.gpus) if sender.nodes == sender.slot.count else local
            self._worker_side(load, sender, self._hosts - local, local, outward)
        weight = self._weight(slot) * arriving / slot.node.nic.count
        for nic in range(slot.node.nic.count):
            links = slot.graph.memory_from_network(nic) if outward else slot.graph.memory_to_network(nic)
            for link in links if weight > 0 else ():
                load[slot.name, link] += weight
        most = max(self._weight(sender.slot) for sender in self.senders)
        equal_servers = slot.count if self.site.number < 0 else 0
        load |= {
            (FABRIC, name): amount for name, amount in self.plan.server_fabric.load(self.site.number, outward, most, equal_servers).items()
        }
        return load

    def _worker_side(self, load: dict[tuple[str, str], float], sender: Sender, remote: float, local: float, outward: bool) -> None:
        graph, name = sender.slot.graph, sender.slot.name
        for gpu in sender.gpus:
            nic = graph.nearest_nic(gpu)
            for link in (graph.to_nic(gpu, nic) if outward else graph.from_nic(nic, gpu)).links if remote > 0 else ():
                load[name, link] += remote * self._weight(sender.slot)
            for link in (graph.device_to_host(gpu) if outward else graph.host_to_device(gpu)).links if local else ():
                load[name, link] += local
        if remote > 0 and sender.slot.node.nic.transport.cpu_time_per_byte:
            load[name, CORES] += remote * len(sender.gpus) * sender.slot.node.nic.transport.cpu_time_per_byte
        if remote > 0 and self.plan.fabric.core_bandwidth and self.plan.servers.racks == 1:
            load[CORE] += remote * len(sender.gpus) * sender.nodes

    def _weight(self, slot: Slot) -> float:
        """Return the load of one byte on a link: an efficiency below 1 counts as extra bytes."""
        return 1.0 / min(1.0, curve_value(slot.node.nic.transport.efficiency, max(self.shard.nbytes, 1.0)))


def serving(workload: Workload) -> Serving | None:
    """Return the number and placement of the parameter servers of *workload*, or None if its stack has none."""
    exchange = workload.training.stack.exchange
    if not isinstance(exchange, ServerExchange):
        return None
    servers = exchange.servers
    return Serving(servers.count, servers.placement == "colocated", servers.sharding == "chunks")


def plan_servers(
    number: int, workload: Workload, cluster: Sequence[Slot], fabric: Fabric, server_fabric: ServerFabric = UNLIMITED
) -> ServerPlan:
    """Return the plan of job *number*, which trains *workload* on *cluster*; *server_fabric* is the network between its hosts."""
    exchange = workload.training.stack.exchange
    if not isinstance(exchange, ServerExchange):
        raise ValueError(f"{workload.training.stack.name} has no parameter servers")
    parts = tuple((slot, gpus) for slot in cluster for job, gpus in slot.lent_gpus if job == number)
    sites = tuple(Site(slot, server) for slot in cluster for job, server in slot.server_numbers if job == number)
    buckets = tuple(tuple(bucket) for bucket in shards(workload, exchange.servers))
    asynchronous = isinstance(exchange, AsyncParameterServer)
    return ServerPlan(parts, sites, exchange.servers, buckets, fabric, asynchronous, server_fabric)
