"""How much load does a job put on the links between switches? A number of streams for every stream that one node sends.

Groups of nodes (leaves, pods, routers, dragonfly groups) have ports to the rest of the fabric. Groups in which every job has the same
number of nodes carry equal load, so one represents all of them. docs/model/links.md lists the streams that each kind of traffic puts on
a port. Rails: NIC k of a node connects to leaf k of its group; traffic to a NIC of another number goes through the spine. Dragonfly:
Kim et al., ISCA 2008. Torus: a job occupies a block of whole rows, ordered along a snake, so that its ring crosses each link once.

Limits: the busiest group of a tree represents all groups of its size; links of a torus carry the mean load of a tree; jobs with
overlapping blocks of a torus load all links of these blocks equally; switches add no latency beyond that of the fabric; hash collisions
take the same share of every link between switches (``path_efficiency``), however many flows there are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

from sim.spec.fabric import Dragonfly, LeafSpine, Torus
from sim.spec.hardware import Fabric, Hardware, Nic
from sim.spec.yaml import SpecError


class Pattern(NamedTuple):
    """Which nodes of a job communicate; *distance* is the distance of pairs, or the nodes per rack. In ``one``, all send to one node."""

    kind: Literal["inside", "ring", "tree", "all", "one", "pairs", "racks", "switch"]
    distance: int = 1


RING, TREE, ALL, ONE = Pattern("ring"), Pattern("tree"), Pattern("all"), Pattern("one")
SWITCH, INSIDE = Pattern("switch"), Pattern("inside")


class NodeStreams(NamedTuple):
    """Streams that leave one node: the NIC they leave from, the NIC they arrive at (None: any), and their load on a NIC and on a wire."""

    pattern: Pattern
    nic: int
    arrival_nic: int | None
    nic_load: float
    wire_load: float


class TierGroup(NamedTuple):
    """A job's place in one tier: the number of its nodes in this group (*members*), and in all its groups in order (*sizes*)."""

    members: int
    sizes: tuple[int, ...]
    in_order: bool

    @property
    def nodes(self) -> int:
        """Return the number of the job's nodes."""
        return sum(self.sizes)

    @property
    def spread(self) -> float:
        """Return the streams that leave the group if every node sends equally to all others."""
        return self.members * (self.nodes - self.members) / (self.nodes - 1)

    def leaving(self, pattern: Pattern) -> float:
        """Return the streams that leave the group for every stream that one node sends."""
        kind, distance = pattern
        if self.members == self.nodes or kind == "inside":
            return 0.0
        if kind == "switch":
            return 1.0
        if kind == "one":
            return float(self.nodes - self.members)
        if kind == "racks":
            return float(min(self.members, distance))
        if kind == "all" or not self.in_order:
            return self.spread
        if kind == "pairs":
            return 0.0 if self.members % (2 * distance) == 0 else float(min(self.members, distance))
        return 1.0 if kind == "ring" else _tree_edges(self.sizes)[self.members] / min(self.nodes, 4)


@lru_cache(maxsize=256)
def _tree_edges(sizes: tuple[int, ...]) -> Mapping[int, int]:
    """Return, by group size, the largest number of edges of a double binary tree between a group of that size and other groups."""
    nodes = sum(sizes)
    of_node = [number for number, size in enumerate(sizes) for _ in range(size)]
    edges: Counter[int] = Counter()
    for place in range(1, nodes):  # as NCCL does: the second tree is the mirror, or a shift by one
        bit = place & -place
        up = (place ^ bit) | bit << 1
        up = up if up < nodes else place ^ bit
        other = [(place + 1) % nodes, (up + 1) % nodes] if nodes % 2 else [nodes - 1 - place, nodes - 1 - up]
        for one, another in ((place, up), other):
            if of_node[one] != of_node[another]:
                edges.update((of_node[one], of_node[another]))
    return {size: max(edges[number] for number, size_of in enumerate(sizes) if size_of == size) for size in set(sizes)}


@dataclass(frozen=True)
class Port:
    """One live resource of a fabric, which represents all with equal load; *capacity* is in bytes/s, in each direction."""

    name: str
    capacity: float
    description: str
    group: TierGroup
    relative: bool = False
    """Whether the capacity is specified as a ratio of the NICs' bandwidth, so that streams load the port as they load a NIC."""
    of_pair: float = 1.0
    """Load of a stream to a single other group: such a stream can use only one of *of_pair* parts of the links."""
    rail: int | None = None
    """The NIC whose traffic uses the port; None for all NICs."""
    each_way: bool = True
    nodes: range = range(0)
    """Numbers of the nodes below a leaf or pod."""

    def streams(self, sent: NodeStreams, rails: int) -> float:
        """Return the streams that cross the port for every stream of *sent* that one node sends."""
        if self.rail is not None and sent.nic != self.rail:
            return 0.0
        leaving = self.leaving(sent.pattern)
        if self.rail is None or sent.arrival_nic == sent.nic:
            return leaving
        away = 1.0 if sent.arrival_nic is not None else 1.0 - 1.0 / rails
        return away * self.group.members + (1.0 - away) * leaving

    def leaving(self, pattern: Pattern) -> float:
        """Return the streams of *pattern* that leave by this port, weighted by their load."""
        spread = pattern.kind in ("all", "one") or not self.group.in_order
        return self.group.leaving(pattern) * (1.0 if spread else self.of_pair)


@dataclass(frozen=True)
class LocalPort(Port):
    """The links of one dragonfly router to its group, which also carry traffic from and to other groups."""

    job_group: TierGroup | None = None
    """The job's place in the tier of dragonfly groups."""
    routers: int = 1

    def leaving(self, pattern: Pattern) -> float:
        """Return the streams of *pattern* on local links; streams between groups use local links in both groups."""
        if self.job_group is None or pattern.kind == "one" or (pattern.kind != "all" and self.group.in_order):
            return super().leaving(pattern)
        others = self.group.nodes - self.job_group.members
        beyond = self.group.members * others / (self.group.nodes - 1)
        return self.group.leaving(pattern) - beyond + 2 * beyond * (self.routers - 1) / self.routers


@dataclass(frozen=True)
class TorusPort(Port):
    """A directed link in one dimension of a torus; the job has *length* of its *full* positions, neighbors are *stride* nodes apart."""

    length: int = 1
    full: int = 1
    stride: int = 1

    def leaving(self, pattern: Pattern) -> float:
        """Return the streams of *pattern* on a link for every stream that one node sends."""
        nodes, (kind, distance) = self.group.nodes, pattern
        if kind == "one":
            return nodes / self.length * (self.length // 2)  # in the dimension that is routed last, the busiest one
        if kind == "all" or not self.group.in_order:
            return self._pairs * nodes / self.length / (nodes - 1)
        if kind == "tree":
            steps = [1 << level for level in range((nodes - 1).bit_length())]
            return sum(self._hops(step) / step for step in steps) / min(nodes, 4)
        return float(self._hops(distance)) if kind == "pairs" else 1.0

    @property
    def _pairs(self) -> float:
        """Return the pairs of positions in one row whose route crosses a given link; the busiest link if the row does not wrap around."""
        if self.length == self.full:
            return self.length**2 // 4 / 2
        return self.length // 2 * math.ceil(self.length / 2)

    def _hops(self, distance: int) -> int:
        """Return the number of links in this dimension between nodes *distance* apart."""
        apart = distance // self.stride % self.full
        return min(apart, self.full - apart) if self.length > apart else 0


@dataclass(frozen=True)
class JobFabric:
    """The fabric as the traffic of one job crosses it."""

    ports: tuple[Port, ...] = ()
    rails: int = 1
    leaves: tuple[int, ...] = ()
    """Number of the job's nodes below each of its leaf switches, in order; empty if ranks are not ordered by switch."""
    groups_of: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """Leaf and pod of each of the job's nodes, by node number, for `between`; empty if ranks are not ordered by switch."""

    @property
    def per_leaf(self) -> int:
        """Return the number of nodes below each leaf if it is the same for several leaves; else 0."""
        return self.leaves[0] if len(self.leaves) > 1 and len(set(self.leaves)) == 1 else 0

    @cached_property
    def changes_leaf(self) -> tuple[bool, ...]:
        """Return, for each node in the order of leaves, whether the next node is below another leaf; equal leaves are listed once."""
        leaves = self.leaves[:1] if self.per_leaf else self.leaves
        return tuple(place == count - 1 for count in leaves for place in range(count)) if len(self.leaves) > 1 else ()

    @cached_property
    def capacities(self) -> dict[str, float]:
        """Return the capacity of every live resource (bytes/s)."""
        return {name: port.capacity for port in self.ports for name in _directions(port)}

    @cached_property
    def descriptions(self) -> dict[str, str]:
        """Return a description of every live resource."""
        return {name: port.description for port in self.ports for name in _directions(port)}

    def load(self, sent: Iterable[NodeStreams]) -> dict[str, float]:
        """Return the load on each live resource if every node of the job sends *sent*."""
        sent = list(sent)
        load: dict[str, float] = {}
        for port in self.ports:
            amount = sum(port.streams(each, self.rails) * (each.nic_load if port.relative else each.wire_load) for each in sent)
            load |= dict.fromkeys(_directions(port), amount) if amount else {}
        return load

    def between(self, src: int, dst: int, nic: int, onto: int) -> tuple[str, ...]:
        """Return the ports that one transfer crosses from NIC *nic* of node *src* to NIC *onto* of node *dst*.

        They are live resources only if nodes are not folded.
        """
        links: list[str] = []
        for tier, (one, other) in enumerate(zip(self.groups_of.get(src, ()), self.groups_of.get(dst, ()), strict=True)):
            of_rail = self.rails > 1 and tier == 0
            if one != other or (of_rail and nic != onto):
                links += [f"{one}.rail{nic}.up", f"{other}.rail{onto}.down"] if of_rail else [f"{one}.up", f"{other}.down"]
        return tuple(links)


UNLIMITED_FABRIC = JobFabric()
"""A fabric that limits no traffic."""


_NUMBERED = re.compile(r"\b(leaf|pod)( ?)(\d+)")
"""What the names and descriptions of links below a leaf or a pod begin with."""


def period(fabric: Fabric) -> int:
    """Return by what multiples of nodes a job may be moved so that only the numbers of its leaves and pods change; 0: none are known."""
    spec = fabric.switches
    return 0 if spec is None else spec.nodes_per_leaf * (spec.pods.leaves if spec.pods else 1)


def moved(text: str, fabric: Fabric, nodes: int) -> str:
    """Return the name or description *text* of a link, of a job moved by *nodes* nodes, a multiple of the `period` of *fabric*."""
    spec = fabric.switches
    if spec is None or not nodes:
        return text
    leaves = nodes // spec.nodes_per_leaf
    by = {"leaf": leaves, "pod": leaves // spec.pods.leaves if spec.pods else 0}
    return _NUMBERED.sub(lambda number: f"{number[1]}{number[2]}{int(number[3]) + by[number[1]]}", text)


def _directions(port: Port) -> tuple[str, ...]:
    return (f"{port.name}.up", f"{port.name}.down") if port.each_way else (port.name,)


def job_fabric(hardware: Hardware, placements: Sequence[Sequence[int]], job: int, fold: bool = True) -> JobFabric:
    """Return the fabric of *hardware* as job number *job* crosses it; *placements* are the node numbers of every job."""
    fabric, nodes = hardware.fabric, placements[job]
    if len(nodes) < 2:
        return UNLIMITED_FABRIC
    nic = hardware.first_workers.node.nic
    if fabric.switches is not None:
        return _leaf_spine(fabric, fabric.switches, nic, placements, job, fold)
    if fabric.dragonfly is not None:
        return _dragonfly(fabric, fabric.dragonfly, placements, job, fold)
    return _torus(fabric, fabric.torus, placements, job) if fabric.torus is not None else UNLIMITED_FABRIC


def uplinks(spec: LeafSpine, nic: Nic) -> float:
    """Return the bytes/s of all uplinks of one leaf (with rails, of the leaf of one rail) in each direction, without hash collisions."""
    if spec.uplink_bandwidth is not None:
        return spec.uplink_bandwidth
    below = spec.nodes_per_leaf * (1 if spec.rails else nic.count) * nic.bandwidth * nic.transport.total_efficiency
    return below / (spec.oversubscription or 1.0)


class _GroupTier(NamedTuple):
    """One tier of a job's groups: *kinds* maps the node counts of all jobs in a group to its first such group and their number."""

    kinds: Mapping[tuple[int, ...], tuple[int, int]]
    sizes: tuple[int, ...]
    name_of: Mapping[int, int]
    """The first group equal to each group that the job is in."""


def _tier(placements: Sequence[Sequence[int]], job: int, size: int, fold: bool, above: int = 1) -> _GroupTier:
    """Return the tier of groups of *size* nodes; equal groups must also be in equal groups of the next tier, *above* times as large."""
    counted = [Counter(node // size for node in nodes) for nodes in placements]
    outer = [Counter(node // (size * above) for node in nodes) for nodes in placements]
    kinds: dict[tuple[int, ...], list[int]] = {}
    name_of = {}
    for group in sorted(counted[job]):
        vector = tuple(counts[group] for counts in counted) + tuple(counts[group // above] for counts in outer if above > 1)
        equal_groups = kinds.setdefault(vector if fold else (*vector, group), [])
        equal_groups.append(group)
        name_of[group] = equal_groups[0]
    sizes = tuple(counted[job][group] for group in sorted(counted[job]))
    return _GroupTier({vector: (equal_groups[0], len(equal_groups)) for vector, equal_groups in kinds.items()}, sizes, name_of)


def _groups(tier: _GroupTier, job: int, fabric: Fabric) -> Iterable[tuple[int, int, TierGroup]]:
    """Yield, for each kind of group, the number of the first one, the number of equal ones, and the job's place in it."""
    for vector, (first, count) in tier.kinds.items():
        yield first, count, TierGroup(vector[job], tier.sizes, fabric.rank_order == "by_switch")


def _leaf_spine(fabric: Fabric, spec: LeafSpine, nic: Nic, placements: Sequence[Sequence[int]], job: int, fold: bool) -> JobFabric:
    leaves = _tier(placements, job, spec.nodes_per_leaf, fold)
    ratio = f", {spec.oversubscription:g} to 1" if spec.oversubscription and spec.oversubscription != 1 else ""
    relative, filled = spec.uplink_bandwidth is None, fabric.path_efficiency
    ratio += f", filled to {filled:.0%} by hashed paths" if filled < 1 else ""
    rails: tuple[int | None, ...] = tuple(range(nic.count)) if spec.rails else (None,)
    ports = []
    for first, count, group in _groups(leaves, job, fabric):
        description = f"uplinks of leaf {first}" if count == 1 else f"uplinks of {count} leaves like leaf {first}"
        description = description if fabric.leaf_spine else "links between nodes"
        for rail in rails:
            name, of_rail = (f"leaf{first}", "") if rail is None else (f"leaf{first}.rail{rail}", f", rail {rail}")
            below = range(first * spec.nodes_per_leaf, (first + 1) * spec.nodes_per_leaf)
            ports.append(Port(name, filled * uplinks(spec, nic), description + of_rail + ratio, group, relative, rail=rail, nodes=below))
    if spec.pods is not None:
        size = spec.nodes_per_leaf * spec.pods.leaves
        pods = _tier(placements, job, size, fold)
        capacity = filled * spec.pods.leaves * len(rails) * uplinks(spec, nic) / spec.pods.oversubscription
        for first, count, group in _groups(pods, job, fabric):
            description = f"uplinks of pod {first}" if count == 1 else f"uplinks of {count} pods like pod {first}"
            ports.append(Port(f"pod{first}", capacity, description, group, relative, nodes=range(first * size, (first + 1) * size)))
    order = fabric.rank_order == "by_switch"
    tiers = [("leaf", spec.nodes_per_leaf), *([("pod", spec.nodes_per_leaf * spec.pods.leaves)] if spec.pods else [])]
    groups_of = {node: tuple(f"{name}{node // size}" for name, size in tiers) for node in placements[job]} if order else {}
    return JobFabric(tuple(ports), len(rails), leaves.sizes if order and fabric.leaf_spine else (), groups_of)


def _dragonfly(fabric: Fabric, spec: Dragonfly, placements: Sequence[Sequence[int]], job: int, fold: bool) -> JobFabric:
    routers, groups = spec.routers_per_group, spec.groups
    detour = float("inf") if spec.routing == "minimal" else 2.0  # Valiant: every byte crosses two links of its kind
    small = _tier(placements, job, spec.nodes_per_router, fold, routers)
    large = _tier(placements, job, spec.nodes_per_router * routers, fold)
    groups_of = {first: group for first, _, group in _groups(large, job, fabric)}
    ports: list[Port] = []
    for first, _, group in _groups(small, job, fabric) if routers > 1 else ():
        above = groups_of[large.name_of[first // routers]]
        capacity, weight = fabric.path_efficiency * (routers - 1) * spec.local_bandwidth, min(routers - 1.0, detour)
        description = f"local links of router {first} and similar ones"
        ports.append(LocalPort(f"router{first}", capacity, description, group, of_pair=weight, job_group=above, routers=routers))
    for first, group in groups_of.items() if groups > 1 else ():
        capacity = fabric.path_efficiency * routers * spec.global_links * spec.global_bandwidth
        description = f"global links of group {first} and similar ones"
        ports.append(Port(f"group{first}", capacity, description, group, of_pair=min(groups - 1.0, detour)))
    return JobFabric(tuple(ports))


def _torus(fabric: Fabric, spec: Torus, placements: Sequence[Sequence[int]], job: int) -> JobFabric:
    nodes = placements[job]
    if len(placements) > 1 or max(nodes) >= len(nodes):  # one job from the first node on: the last plane may lack rows
        _check_block(spec, nodes)
    ports, strides = [], list(accumulate(spec.dimensions, lambda size, length: size * length, initial=1))
    everyone = TierGroup(0, (len(nodes),), fabric.rank_order == "by_switch")
    for axis, (full, stride) in enumerate(zip(spec.dimensions, strides, strict=False)):
        length = min(full, -(-len(nodes) // stride))
        if length > 1:
            description = f"links of dimension {axis} of the torus"
            name = f"job{_overlapping(placements, job)}.dimension{axis}"
            ports.append(
                TorusPort(
                    name,
                    fabric.path_efficiency * spec.link_bandwidth,
                    description,
                    everyone,
                    each_way=False,
                    length=length,
                    full=full,
                    stride=stride,
                )
            )
    return JobFabric(tuple(ports))


def _check_block(spec: Torus, nodes: Sequence[int]) -> None:
    """Raise SpecError unless *nodes* are a block of a torus: consecutive, in whole rows (planes, ...), from the start of one."""
    first, count, block = min(nodes), len(nodes), 1
    for length in spec.dimensions:  # part of one row, or whole rows in one plane, and so on
        if count <= block * length:
            break
        block *= length
    within = block * length
    if max(nodes) - first + 1 != count or first % block or count % block or first // within != max(nodes) // within:
        raise SpecError(
            f"{count} nodes, {first} to {max(nodes)}, are not a block of a torus of {' x '.join(map(str, spec.dimensions))}; "
            f"a job needs consecutive nodes: whole rows of {spec.dimensions[0]}, or part of one"
        )


def _overlapping(placements: Sequence[Sequence[int]], job: int) -> int:
    """Return the first of the jobs whose nodes overlap those of *job*, directly or through other jobs."""
    jobs, reached = {job}, set(placements[job])
    while more := {other for other, nodes in enumerate(placements) if other not in jobs and reached & set(nodes) and len(nodes) > 1}:
        jobs |= more
        reached.update(*(placements[other] for other in more))
    return min(jobs)
