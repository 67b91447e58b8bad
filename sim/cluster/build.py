"""Which live resources does a cluster have, with equal nodes and equal GPUs simulated once? From description to network links.

Nodes with equal descriptions and equal use become one *slot* with a count. Inside a slot, GPUs with interchangeable input paths
become one rank class, and equally loaded links become one link (`sim.cluster.symmetry`). The load of a class on a link is then the
number of its members that cross it. Only the lists of node numbers grow with the number of equal nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sim.cluster.symmetry import refine
from sim.cluster.topology import NodeGraph, node_graph
from sim.spec.hardware import Hardware, Node
from sim.spec.yaml import SpecError
from sim.units import any_of, pluralized


class Placement(NamedTuple):
    """A job's GPUs on one node: (node number in the cluster, GPU indices)."""

    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """*count* equal nodes, each lending the same GPUs to the same jobs."""

    name: str
    node: Node
    count: int
    lent_gpus: tuple[tuple[int, tuple[int, ...]], ...]
    """(job number, GPU indices) for each job."""
    server_numbers: tuple[tuple[int, int], ...] = ()
    """(job, server number) of the parameter servers on each of these nodes; the number is -1 if the job's servers are all equal."""
    numbers: tuple[int, ...] = ()
    """Numbers of these nodes in the cluster."""

    @property
    def first(self) -> int:
        """Return the number of the first of these nodes in the cluster."""
        return self.numbers[0] if self.numbers else 0

    @property
    def cores(self) -> float:
        """Return the combined throughput of all hardware threads of one of these nodes, in cores."""
        host = self.node.host
        return host.physical_cores * (host.cpu.smt_gain if host.vcpus > host.physical_cores else 1.0)

    @cached_property
    def graph(self) -> NodeGraph:
        """Return the link graph of one of these nodes, as the jobs on it may use it."""
        topology = self.node.topology
        if topology.peer_to_peer_of_two is None or any(len(gpus) > 2 for _, gpus in self.lent_gpus):
            return node_graph(self.node)
        peers = topology.model_copy(update={"peer_to_peer": topology.peer_to_peer_of_two})
        return node_graph(self.node.model_copy(update={"topology": peers}))


def with_nodes(hardware: Hardware, nodes: int) -> Hardware:
    """Return *hardware* with *nodes* worker nodes; raise SpecError unless it has exactly one group of workers."""
    if nodes < 1:
        raise SpecError(f"--nodes {nodes}: write 1 or more")
    workers = {index: group.count for index, group in enumerate(hardware.groups) if group.role == "worker"}
    if len(workers) != 1:
        counts = {index: max(1, round(nodes * count / sum(workers.values()))) for index, count in workers.items()}
        options = " ".join(f"--set groups.{index}.count={count}" for index, count in counts.items())
        raise SpecError(f"--nodes {nodes}: {hardware.name} has {len(workers)} groups of workers; set the nodes of each, such as {options}")
    groups = tuple(group.model_copy(update={"count": nodes}) if group.role == "worker" else group for group in hardware.groups)
    return hardware.model_copy(update={"groups": groups})


def place(hardware: Hardware, gpus: int | None = None, pattern: str | None = None) -> tuple[Placement, ...]:
    """Return where one job runs on the worker nodes of *hardware*.

    *pattern* is the number of GPUs on each node in order, as in ``1+2``; *gpus* is a total to spread evenly over all nodes. With
    neither, the job uses every GPU. Raise SpecError for no rank, and for more ranks than GPUs.
    """
    available = _worker_nodes(hardware)
    if pattern is not None:
        return _by_pattern(available, pattern)
    if gpus is None:
        return tuple(Placement(number, tuple(range(node.gpu_count))) for number, node in available)
    if gpus < 1:
        raise SpecError(f"--gpus {gpus}: write 1 or more")
    fewest = min(node.gpu_count for _, node in available)
    if gpus % len(available):
        raise SpecError(_uneven(gpus, available, fewest))
    each = gpus // len(available)
    if each > fewest:
        raise SpecError(
            f"--gpus {gpus}: needs {each} GPUs on each of {pluralized(len(available), 'node')}, but one has {fewest}; write "
            f"{len(available) * fewest} or less"
        )
    return tuple(Placement(number, tuple(range(each))) for number, _ in available)


def _uneven(gpus: int, available: Sequence[tuple[int, Node]], fewest: int) -> str:
    """Return the error message for *gpus* that do not divide evenly over the *available* nodes; the smallest node has *fewest* GPUs."""
    nodes = len(available)
    near = [nodes * each for each in (gpus // nodes, gpus // nodes + 1) if 1 <= each <= fewest] or [nodes * fewest]
    counts = [gpus // nodes + (number < gpus % nodes) for number in range(nodes)]
    by_hand = all(0 < count <= node.gpu_count for count, (_, node) in zip(counts, available, strict=True))
    pattern = "+".join(map(str, counts))
    placed = f", or place them unevenly with `run --placement {pattern}`" if by_hand and len(pattern) < 40 else ""
    return f"--gpus {gpus}: does not divide evenly over {nodes} nodes; write {any_of(near)}{placed}"


def _worker_nodes(hardware: Hardware) -> list[tuple[int, Node]]:
    nodes = [group.node for group in hardware.worker_groups for _ in range(group.count)]
    if not nodes:
        raise SpecError(f"{hardware.name}: no group has GPUs and the role 'worker'; a job needs one")
    return list(enumerate(nodes))


def _by_pattern(available: Sequence[tuple[int, Node]], pattern: str) -> tuple[Placement, ...]:
    try:
        counts = [int(part) for part in pattern.split("+")]
    except ValueError:
        raise SpecError(f"--placement {pattern or repr('')}: write the GPUs of each node joined by '+', for example 1+2") from None
    if len(counts) > len(available):
        raise SpecError(
            f"--placement {pattern}: {len(counts)} nodes, but the machine has {len(available)}; --nodes {len(counts)} adds identical ones"
        )
    placed = []
    for count, (number, node) in zip(counts, available, strict=False):
        if not 0 < count <= node.gpu_count:
            fits = "+".join(str(min(max(requested, 1), node.gpu_count)) for requested, (_, node) in zip(counts, available, strict=False))
            few = f"which has only {pluralized(node.gpu_count, 'GPU')}; --placement {fits} would fit"
            none = f"but each node listed needs one or more; write --placement {fits}"
            raise SpecError(f"--placement {pattern}: {count} ranks on node {number}, {few if count > 0 else none}")
        placed.append(Placement(number, tuple(range(count))))
    return tuple(placed)


class Serving(NamedTuple):
    """Placement of a job's parameter servers: the first *servers* hosts of role ``server``, or of the job's own nodes (*colocated*)."""

    servers: int
    colocated: bool
    equal_load: bool
    """Whether all servers carry equal load, so that equal hosts can be simulated once."""

    def on_host(self, place: int) -> tuple[int, ...]:
        """Return the number of the server on the host at index *place* (-1 if all are equal); empty beyond the last server."""
        return () if place >= self.servers else (-1,) if self.equal_load else (place,)


_Uses = tuple[tuple[int, tuple[int, ...]], ...]
_Served = tuple[tuple[int, int], ...]


def slots(
    hardware: Hardware, placements: Sequence[tuple[Placement, ...]], fold: bool = True, serving: Sequence[Serving | None] = ()
) -> list[Slot]:
    """Return the slots into which *placements* and parameter servers (*serving*), one entry per job, divide the cluster.

    Without *fold* every node is its own slot. Raise SpecError for more servers than hosts that can run them.
    """
    lent: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    served: dict[int, list[tuple[int, int]]] = {}
    for job, placement in enumerate(placements):
        job_servers = serving[job] if job < len(serving) else None
        if job_servers and job_servers.colocated and job_servers.servers > len(placement):
            raise SpecError(_too_many_servers(job_servers.servers, f"the job runs on {len(placement)} worker nodes"))
        for place, (number, gpus) in enumerate(placement):
            lent.setdefault(number, []).append((job, gpus))
            served.setdefault(number, []).extend(
                (job, server) for server in (job_servers.on_host(place) if job_servers and job_servers.colocated else ())
            )
    nodes = dict(_worker_nodes(hardware))
    hosts = [(nodes[number], tuple(uses), tuple(served[number]), number) for number, uses in sorted(lent.items())]
    return [*_merge_equal(hosts, "n", fold), *_merge_equal(_server_hosts(hardware, serving), "s", fold)]


def _server_hosts(hardware: Hardware, serving: Sequence[Serving | None]) -> list[tuple[Node, _Uses, _Served, int]]:
    """Return the hosts of role ``server`` that run a server of some job."""
    nodes = [group.node for group in hardware.groups if group.role == "server" for _ in range(group.count)]
    separate = [(job, job_servers) for job, job_servers in enumerate(serving) if job_servers and not job_servers.colocated]
    for _, job_servers in separate:
        if job_servers.servers > len(nodes):
            raise SpecError(_too_many_servers(job_servers.servers, f"{hardware.name} has {len(nodes)} hosts of role 'server'"))
    hosts: list[tuple[Node, _Uses, _Served, int]] = []
    for place, node in enumerate(nodes):
        servers_here = tuple((job, server) for job, job_servers in separate for server in job_servers.on_host(place))
        if servers_here:
            hosts.append((node, (), servers_here, place))
    return hosts


def _too_many_servers(count: int, limit: str) -> str:
    return f"training.stack.servers.count: {count} parameter servers, but {limit}, and each needs its own host; write fewer, or add hosts"


def _merge_equal(hosts: Sequence[tuple[Node, _Uses, _Served, int]], letter: str, fold: bool) -> list[Slot]:
    numbers_of: dict[tuple[int, _Uses, _Served, int], list[int]] = {}
    nodes: dict[int, Node] = {}
    for node, uses, served, number in hosts:
        if id(node) not in nodes:
            nodes[id(node)] = next((seen for seen in nodes.values() if seen == node), node)  # groups with equal descriptions count as one
        key = (id(nodes[id(node)]), uses, served, 0 if fold else number)
        numbers_of.setdefault(key, []).append(number)
    return [
        Slot(f"{letter}{index}", nodes[node], len(numbers), uses, served, tuple(numbers))
        for index, ((node, uses, served, _), numbers) in enumerate(numbers_of.items())
    ]


class RankClass(NamedTuple):
    """Equal ranks of one job: *gpus* on each of the slot's nodes, and the loads of the class on live links."""

    job: int
    slot: Slot
    gpus: tuple[int, ...]
    copy: Mapping[str, float]
    """Host-to-device route; loads count the members that share one link."""
    memory: str
    """Live link of the DRAM that feeds these GPUs."""
    memory_load: float
    cores: str
    disk: str

    @property
    def size(self) -> int:
        """Return the number of ranks in the class."""
        return len(self.gpus) * self.slot.count

    @property
    def members(self) -> int:
        """Return the number of ranks of the class on one node."""
        return len(self.gpus)


class LiveCluster(NamedTuple):
    """Rank classes of all jobs, by slot the live link that represents each physical link, and the capacity of each live resource."""

    classes: list[RankClass]
    live_links: dict[str, dict[str, str]]
    capacity: dict[str, float]


def build(cluster: Sequence[Slot], crossings: Mapping[str, Mapping[str, Hashable]], fold: bool = True) -> LiveCluster:
    """Return the rank classes and live resources of *cluster*.

    *crossings* holds, by slot name, how often collectives cross each physical link: links that differ in it are not merged. Nothing is
    merged, and it may be empty, without *fold*.
    """
    classes: list[RankClass] = []
    live: dict[str, dict[str, str]] = {}
    capacity: dict[str, float] = {}
    for slot in cluster:
        folded, names = _fold_slot(slot, crossings.get(slot.name, {}), fold)
        live[slot.name] = names
        for link, name in names.items():
            capacity.setdefault(name, slot.graph.links[link].capacity)
        capacity[f"{slot.name}.cores"] = slot.cores
        classes.extend(folded)
    return LiveCluster(classes, live, capacity)


def _fold_slot(slot: Slot, crossings: Mapping[str, Hashable], fold: bool) -> tuple[list[RankClass], dict[str, str]]:
    graph = slot.graph
    ranks = [(job, gpu) for job, gpus in slot.lent_gpus for gpu in gpus]
    routes = [Counter(graph.host_to_device(gpu).links) for _, gpu in ranks]
    demands = [((job, None if fold else gpu), route) for (job, gpu), route in zip(ranks, routes, strict=True)]
    colors = {name: (link.capacity, link.tier, crossings.get(name), None if fold else name) for name, link in graph.links.items()}
    rank_class, link_class = refine(demands, colors)
    names: dict[str, str] = {}
    first: dict[int, str] = {}
    for link, number in link_class.items():
        names[link] = f"{slot.name}.{first.setdefault(number, link)}"
    classes = []
    for number in dict.fromkeys(rank_class):
        members = [index for index, class_number in enumerate(rank_class) if class_number == number]
        classes.append(_rank_class(slot, [ranks[index] for index in members], [routes[index] for index in members], names))
    return classes, names


def _rank_class(slot: Slot, ranks: Sequence[tuple[int, int]], routes: Sequence[Counter[str]], names: Mapping[str, str]) -> RankClass:
    load = {names[link]: float(sum(route[link] for route in routes)) for link in routes[0]}
    memory = slot.graph.memory_of(ranks[0][1])
    return RankClass(
        job=ranks[0][0],
        slot=slot,
        gpus=tuple(gpu for _, gpu in ranks),
        copy=load,
        memory=names[memory],
        memory_load=float(sum(slot.graph.memory_of(gpu) == memory for _, gpu in ranks)),
        cores=f"{slot.name}.cores",
        disk=f"{slot.name}.disk",
    )
