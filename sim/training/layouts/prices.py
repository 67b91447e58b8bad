"""What does a group of a mesh pay for a message? NCCL's choice and cost for one group, with the load of all equal groups.

Groups of one axis of one stage run the same operation at the same time, so each live link carries the sum of their loads. For example,
eight data-parallel groups with one GPU per node each have their own NIC if there are eight, and share NICs if there are four. Nodes that
hold the same stages are simulated once. Links between switches and the core belong to the whole machine and carry all stages' traffic.
A group that is placed as another one, some leaves (or pods) farther on, has its price, and its loads on the links of its own leaves.
Limits: if switches carry unequal shares of a stage's groups, all its groups are as slow as the slowest; over Gloo, copies between GPU and
host memory are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from sim.cluster.build import Slot
from sim.cluster.fabric import UNLIMITED_FABRIC, NodeStreams, job_fabric, moved, period, uplinks
from sim.cluster.gpu import KernelWork
from sim.cluster.shared_gpu import traffic_of
from sim.events import Cause
from sim.parallel.mesh import GroupAxis, Mesh, Place
from sim.parallel.program import Op
from sim.parallel.split import LayerPiece
from sim.spec.hardware import Hardware, Transport
from sim.spec.layer import Layer
from sim.training.collectives.play.gloo import plan_gloo
from sim.training.collectives.price.collective_plan import CollectivePlan, Tuning, plan_collectives
from sim.training.collectives.price.links import limited_rate, link_of
from sim.training.collectives.price.message import OUT
from sim.training.collectives.price.traffic import CORE, CORE_LIMIT, FABRIC, Cost
from sim.training.collectives.price.unequal import one_receives_most
from sim.training.collectives.routes.channels import NETWORK
from sim.training.layouts.group_price import GroupPrice, LinkShare, Outline
from sim.training.layouts.sends import Sends
from sim.training.layouts.switches import CORE_LINK, Switches, SwitchStream
from sim.training.layouts.unit_time import UnitTime

SHARED: Final = ("everyone", "ends")
"""Groups with members in several stages."""
_OF_STAGES: Final = (*SHARED, "pipeline")
"""Groups that are placed differently in each stage, or not in stages at all."""


class _Elsewhere(NamedTuple):
    """Groups with equal loads on links between switches: their key, the plan of one that lies *nodes* nodes before, and their number."""

    key: tuple[object, ...]
    plan: CollectivePlan
    nodes: int
    groups: int


class _GroupPlacement(NamedTuple):
    """The placement of the groups of one axis of one stage; *key* is equal for equal placements."""

    key: tuple[object, ...]
    groups: list[tuple[int, ...]]
    """The ranks of each group that has ranks on *node*."""
    node: int
    others: Sequence[_Elsewhere]
    """Groups on other nodes that also load links between switches."""


class PlannedGroup(NamedTuple):
    """The ranks of a group, the plan of its collectives, and the name of the slot to which the stage's first node belongs (*slot_name*)."""

    ranks: tuple[int, ...]
    plan: CollectivePlan
    slot_name: str


KernelTimes = dict[tuple[int, bool], tuple[KernelWork, Layer]]
"""Kernels of a forward or a backward pass by the identity of its layer; the value keeps the layer alive."""
PieceTimes = dict[tuple[int, bool, float], tuple[UnitTime, LayerPiece]]
"""Times of a share of a forward or a backward pass by the identity of its piece of a layer; the value keeps the piece alive."""


@dataclass(eq=False)
class KernelBook:
    """A cache that layouts on any number of equal nodes share; only `sim.training.layouts.times` uses it."""

    passes: dict[tuple[object, ...], KernelTimes] = field(default_factory=dict)
    """Kernels of layers, by everything else that affects them."""
    layers: dict[tuple[object, ...], PieceTimes] = field(default_factory=dict)
    """Times of layers without messages, or without the time of their messages."""
    times: dict[tuple[object, ...], dict[object, UnitTime]] = field(default_factory=dict)
    """Times of units without the time of their messages."""


@dataclass(eq=False)
class PriceBook:
    """A cache that layouts on one cluster with one tuning share: plans of groups and prices of operations, by the groups' placement."""

    plans: dict[tuple[object, ...], CollectivePlan] = field(default_factory=dict)
    outlines: dict[tuple[object, ...], Outline] = field(default_factory=dict)
    sent: dict[tuple[Hashable, int, int, float], Mapping[str, float]] = field(default_factory=dict)
    """Loads of messages between stages on links between switches, by what determines the groups of a mesh, both stages and bytes."""
    placements: dict[Hashable, dict[tuple[int, GroupAxis], _GroupPlacement]] = field(default_factory=dict)
    """Placements of the groups of each stage, by what determines the groups of a mesh."""
    times: dict[tuple[object, ...], dict[object, UnitTime]] = field(default_factory=dict)
    """Cache of `sim.training.layouts.times`: times of units by their content, for each way to split layers."""
    layers: dict[tuple[object, ...], PieceTimes] = field(default_factory=dict)
    """Cache of the same module: times of layers with their messages, for each way to split them and place their groups."""
    kernels: KernelBook = field(default_factory=KernelBook)
    """What does not depend on the cluster."""


@dataclass(eq=False)
class LayoutPrices:
    """The prices of every group of *mesh* on *hardware*, cached."""

    hardware: Hardware
    mesh: Mesh
    tuning: Tuning
    sockets: Transport | None = None
    """The transport of sockets if messages go over Gloo; None for NCCL."""
    capacity: dict[str, float] = field(default_factory=dict)
    """Capacity of each live link (bytes/s)."""
    descriptions: dict[str, tuple[Cause, str]] = field(default_factory=dict)
    """The cause and description to report when a live link limits an operation."""
    book: PriceBook = field(default_factory=PriceBook)
    folds: bool = True
    """Whether the hashed paths of one node represent those of all nodes that hold the same stages."""
    one_group: bool = False
    """Whether only the first group of each kind on a node sends messages, which is never slower; for a separate *book*."""
    _prices: dict[tuple[object, ...], GroupPrice] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    @cached_property
    def slot(self) -> Slot:
        """Return the node type of all ranks, as a slot of one node."""
        group = self.hardware.first_workers
        return Slot("node", group.node, 1, ())

    @cached_property
    def _structured(self) -> bool:
        return self.hardware.fabric.has_structure

    @cached_property
    def _described(self) -> bool:
        """Whether switches are described. Their links belong to the whole machine, whereas hashed paths belong to a node."""
        return bool(self._switches.links.keys() - {CORE_LINK})

    @cached_property
    def even_below_switches(self) -> bool:
        """Return whether a stage's nodes are evenly distributed over the switches above them; True if the switches are not specified."""
        for ranks in self._ranks_of if self._described else ():
            nodes = {self.mesh.place(rank)[0] for rank in ranks}
            below = Counter(self._switches.leaf(node) for node in nodes)
            if len(set(below.values())) > 1:
                return False
        return True

    def of_machine(self, link: str) -> bool:
        """Return whether *link* belongs to the whole machine rather than to nodes."""
        return link == CORE_LINK or (self._described and link.startswith(f"{FABRIC}."))

    def nodes_of(self, stage: int) -> str:
        """Return the name of the nodes that hold *stage*: the same for stages that share nodes."""
        if stage not in self._names:
            node, _ = self.mesh.place(self.mesh.rank(pipeline=stage))
            stages = sorted({self.mesh.stage_of(rank) for rank in self.mesh.on_node(node)})
            self._names[stage] = f"stage{stages[0]}" if len(stages) == 1 else f"stages{stages[0]}-{stages[-1]}"
        return self._names[stage]

    def price(self, stage: int, axis: GroupAxis, op: Op, nbytes: float) -> GroupPrice:
        """Return the price of *op* on *nbytes* for the groups of *axis* in *stage*."""
        key = (stage, axis, op, nbytes)
        if key not in self._prices:
            ends = self._stages_of(axis) if axis in SHARED else (stage,)
            self._prices[key] = self._live_price({self.nodes_of(each): self.outline(each, axis, op, nbytes) for each in ends})
        return self._prices[key]

    def _stages_of(self, axis: GroupAxis) -> Iterable[int]:
        """Return one stage for each kind of node with members of the groups of *axis*, which span stages."""
        stages = range(self.mesh.stages) if axis == "everyone" else (0, self.mesh.stages - 1)
        return {self.nodes_of(stage): stage for stage in reversed(stages)}.values()

    def price_without_links(self, stage: int, axis: GroupAxis, op: Op, nbytes: float, skew: float = 1.0) -> GroupPrice:
        """Return the price of *op* on *nbytes* without its links, with contention only among equal groups.

        In an all-to-all, the first rank of each group on the node receives *skew* times the mean.
        """
        return self.outline(stage, axis, op, nbytes, skew).price

    def outline(self, stage: int, axis: GroupAxis, op: Op, nbytes: float, skew: float = 1.0) -> Outline:
        """Return the price of *op* on *nbytes*, and its loads on a node of *stage* and between nodes."""
        like, nodes = (stage, 0) if axis in _OF_STAGES else self.mesh.first_like(stage, self._period)
        placement = self._placement(like, axis)
        key = (placement.key, nodes, op, nbytes, skew)
        if key not in self.book.outlines:
            self.book.outlines[key] = (
                self.outline(like, axis, op, nbytes, skew).moved(self.hardware.fabric, nodes)
                if nodes
                else self._group_price(placement, op, nbytes, skew)
            )
        return self.book.outlines[key]

    def live_loads(self, number: int, load: Iterable[LinkShare]) -> dict[str, float]:
        """Return *load*, of messages inside a unit of stage *number*, by live link, and register the links."""
        return {self._noted(self.nodes_of(number), each): each.amount for each in load}

    def least_time(self, stage: int, axis: GroupAxis, op: Op, nbytes: float) -> float:
        """Return a lower bound (s) on the time of *op* on *nbytes* for the first rank of *stage*."""
        if self.mesh.is_even:
            return self.outline(stage, axis, op, nbytes).price.uncontended_time
        placement = self._placement(stage, axis)
        plan, _ = self._plan(placement.groups[0], placement.node)  # other groups may run at other times
        return plan.cost(nbytes, op).uncontended_time

    def least_send_time(self, source: int, target: int, nbytes: float) -> float:
        """Return a lower bound (s) on the time of a message from the first rank of stage *source* to the first of *target*."""
        if self.mesh.is_even:
            return self.send(source, target, nbytes).uncontended_time
        return self.one_send(self.send_pairs(source, target)[0], nbytes).price.uncontended_time

    def plans(self, stage: int, axis: GroupAxis) -> list[PlannedGroup]:
        """Return the plans of the groups of *axis* in *stage* that have ranks on the stage's first node."""
        placement = self._placement(stage, axis)
        return [PlannedGroup(group, *self._plan(group, placement.node)) for group in placement.groups]

    def plan_of(self, ranks: tuple[int, ...]) -> CollectivePlan:
        """Return the plan of the collectives of *ranks*."""
        return self._plan(ranks, self.mesh.place(ranks[0])[0])[0]

    def send_pairs(self, source: int, target: int) -> list[tuple[int, int]]:
        """Return the ranks of stage *source* on its first node, each with its peer in stage *target*."""
        mesh = self.mesh
        first = mesh.rank(pipeline=source)
        step = mesh.rank(pipeline=target) - first
        return [(rank, rank + step) for rank in mesh.on_node(mesh.place(first)[0]) if mesh.stage_of(rank) == source]

    def one_send(self, ends: tuple[int, int], nbytes: float) -> Outline:
        """Return the price of one message between the ranks *ends* without contention; link names begin with the end they belong to."""
        return self._sends.outline([self._placed(ends)], nbytes)

    def placement_key(self, stage: int, axis: GroupAxis) -> tuple[object, ...]:
        """Return a key that is equal for equally placed groups of any mesh on this cluster."""
        return self._placement(stage, axis).key

    def send(self, source: int, target: int, nbytes: float) -> GroupPrice:
        """Return the price of sends of *nbytes* from each rank of stage *source* to its peer in stage *target*."""
        key = ("send", source, target, nbytes)
        if key not in self._prices:
            self._prices[key] = self._send_price(source, target, nbytes)
        return self._prices[key]

    # --- groups ---------------------------------------------------------------------------------------------------

    def _live_price(self, outlines: Mapping[str, Outline]) -> GroupPrice:
        """Return the price with live link names for the nodes of each of *outlines*, and register the links."""
        load = {}
        for nodes, outline in outlines.items():
            for each in outline.links:
                load[self._noted(nodes, each)] = each.amount
        return next(iter(outlines.values())).price._replace(load=load)

    def _noted(self, nodes: str, loaded: LinkShare) -> str:
        """Return the live name of a link of *nodes* or of the machine, and register the link."""
        live = loaded.name if self.of_machine(loaded.name) else f"{nodes}.{loaded.name}"
        self.capacity.setdefault(live, loaded.capacity)
        self.descriptions.setdefault(live, loaded.meaning)
        return live

    def _placement(self, stage: int, axis: GroupAxis) -> _GroupPlacement:
        """Return the placement of the groups of *axis* in *stage*."""
        placements = self._placements
        if (stage, axis) not in placements:
            first = self.mesh.rank(pipeline=stage)
            node, _ = self.mesh.place(first)
            here = [rank for rank in self.mesh.on_node(node) if self.mesh.stage_of(rank) == stage] if axis != "everyone" else [first]
            groups = list(dict.fromkeys(self.mesh.group(rank, axis) for rank in (here[:1] if self.one_group else here)))
            has_others = self._switches.links and axis != "everyone" and not self.one_group
            others = self._elsewhere(stage, axis, groups) if has_others else ()
            elsewhere = tuple((each.key, each.groups) for each in others)
            key = (*(self._placement_key(group, node) for group in groups), *elsewhere)
            placements[stage, axis] = _GroupPlacement(key, groups, node, others)
        return placements[stage, axis]

    @cached_property
    def _placements(self) -> dict[tuple[int, GroupAxis], _GroupPlacement]:
        """Return the placements so far in any mesh with the same groups."""
        return self.book.placements.setdefault(self.mesh.grouping, {})

    def _elsewhere(self, stage: int, axis: GroupAxis, here: Sequence[tuple[int, ...]]) -> list[_Elsewhere]:
        """Return the groups of *axis* in *stage* that span nodes, except those *here*."""
        seen = {rank for group in here for rank in group}
        by_key: dict[tuple[object, ...], list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        for rank in self._ranks_of[stage]:
            if rank not in seen:
                group = self.mesh.group(rank, axis)
                seen.update(group)
                nodes = {self.mesh.place(member)[0] for member in group}
                if len(nodes) > 1:
                    by_key[self._placement_key(group, min(nodes))].append((group, min(nodes)))
        return [_Elsewhere(key, *self._plan_before(*groups[0]), len(groups)) for key, groups in by_key.items()]

    def _plan_before(self, ranks: tuple[int, ...], node: int) -> tuple[CollectivePlan, int]:
        """Return the plan of the first group placed as *ranks*, and by how many nodes these are farther on; *node* is their first."""
        nodes = node // self._period * self._period if self._period else 0
        plan, _ = self._plan(tuple([rank - nodes * self.mesh.gpus_per_node for rank in ranks]), node - nodes)
        return plan, nodes

    @cached_property
    def _ranks_of(self) -> Sequence[Sequence[int]]:
        """Return the ranks of each stage."""
        ranks_of: list[list[int]] = [[] for _ in range(self.mesh.stages)]
        for rank in range(self.mesh.gpus):
            ranks_of[self.mesh.stage_of(rank)].append(rank)
        return ranks_of

    @cached_property
    def _period(self) -> int:
        """Return by how many nodes groups may be moved so that only the numbers of their switches change; 0: none are known."""
        return period(self.hardware.fabric)

    def _group_price(self, placement: _GroupPlacement, op: Op, nbytes: float, skew: float) -> Outline:
        skewed, groups = skew > 1.0 and self.sockets is None, placement.groups
        plans = [self._plan(group, placement.node, apart=skewed) for group in groups]
        costs = [_skewed_cost(plan, own, nbytes, skew) if skewed else plan.cost(skew * nbytes, op) for plan, own in plans]
        volume = costs[0].volume
        load: dict[str, float] = defaultdict(float)
        meant: dict[str, tuple[float, tuple[Cause, str]]] = {}
        loading = [(plan, own, cost, 1, 0) for (plan, own), cost in zip(plans, costs, strict=True)]
        loading += [(each.plan, FABRIC, each.plan.cost(skew * nbytes, op), each.groups, each.nodes) for each in placement.others]
        for plan, own, cost, count, nodes in loading:
            for (slot, link), amount in cost.load.items():
                if slot in (own, FABRIC):
                    name, capacity, meaning = self._live(slot, link, plan, nodes)
                    if own == FABRIC and not self.of_machine(name):
                        continue
                    meant[name] = (capacity, meaning)
                    load[name] += count * amount * cost.volume / volume
        cap = min(cost.cap * volume / cost.volume for cost in costs)
        cost = costs[0]
        rate, limit = limited_rate(cap, (cost.cause, cost.bottleneck), ((amount, *meant[link]) for link, amount in load.items()))
        share = min(1.0, cost.latency_share * rate / cap)
        alone = cost.launch + volume / rate
        blocks = 0 if self.sockets else cost.channels
        moved = traffic_of(op, len(groups[0]), nbytes) / alone if alone and blocks else 0.0
        price = GroupPrice(cost.launch, volume, cap, {}, alone, share, *limit, cost.algorithm, blocks, moved)
        return Outline(price, tuple(LinkShare(link, *meant[link], amount) for link, amount in load.items()))

    def _placement_key(self, ranks: tuple[int, ...], node: int) -> tuple[object, ...]:
        """Return a key for the placement of *ranks* and their GPUs on *node*."""
        by_gpus, by_node = self._alike(ranks)
        where = tuple(sorted(by_node)) if self._structured else ()
        return (tuple((gpus, len(numbers)) for gpus, numbers in by_gpus.items()), where, tuple(sorted(by_node[node])))

    def _alike(self, ranks: tuple[int, ...]) -> tuple[dict[tuple[int, ...], list[int]], dict[int, list[int]]]:
        """Return the nodes of *ranks* by the GPUs used on them, and those GPUs by node."""
        by_node: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            number, gpu = self.mesh.place(rank)
            by_node[number].append(gpu)
        by_gpus: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, gpus in by_node.items():
            by_gpus[tuple(sorted(gpus))].append(number)
        return by_gpus, by_node

    def _plan(self, ranks: tuple[int, ...], node: int, apart: bool = False) -> tuple[CollectivePlan, str]:
        """Return the plan of the collectives of *ranks*, and the name of the slot of *node*, which is a separate slot if *apart*."""
        by_gpus, by_node = self._alike(ranks)
        own = tuple(sorted(by_node[node]))
        names = {gpus: f"g{index}" for index, gpus in enumerate(by_gpus)}
        numbers = {(names[gpus], gpus): of for gpus, of in by_gpus.items()}
        if apart and len(by_gpus[own]) > 1:
            numbers[names[own], own] = [number for number in by_gpus[own] if number != node]
            names[own] = "apart"
            numbers["apart", own] = [node]
        key = (*self._placement_key(ranks, node)[:2], own if apart else None)
        if key not in self.book.plans:
            used = [(Slot(name, self.slot.node, len(of), ((0, gpus),), (), tuple(of)), gpus) for (name, gpus), of in numbers.items()]
            between = (
                job_fabric(self.hardware, [sorted(by_node)], 0, self.folds and not self._described)
                if self._structured
                else UNLIMITED_FABRIC
            )
            self.book.plans[key] = (
                plan_gloo(used, self.hardware.fabric, self.sockets, between)
                if self.sockets
                else plan_collectives(used, self.hardware.fabric, self.tuning, between)
            )
        return self.book.plans[key], names[own]

    def _live(self, slot: str, link: str, plan: CollectivePlan, nodes: int = 0) -> tuple[str, float, tuple[Cause, str]]:
        """Return the name of a resource without its nodes, its capacity, and the cause to report, for a group *nodes* nodes farther on."""
        if (slot, link) == CORE:
            return CORE_LINK, plan.fabric.core_bandwidth or 0.0, (Cause.NETWORK, CORE_LIMIT)
        if slot == FABRIC:
            between, fabric = plan.layout.job_fabric, self.hardware.fabric
            name, text = f"{FABRIC}.{link}", between.descriptions[link]
            return moved(name, fabric, nodes), between.capacities[link], (Cause.NETWORK, moved(text, fabric, nodes))
        return link, *link_of(self.slot, link)

    def on_node(self, nodes: str, link: str) -> str:
        """Return the live name of *link* of *nodes*, and register its capacity."""
        name = f"{nodes}.{link}"
        if name not in self.capacity:
            self.capacity[name], self.descriptions[name] = link_of(self.slot, link)
        return name

    def _on_node(self, nodes: str, node: int, link: str, folded: bool = True) -> list[str]:
        """Return the live names of *link* of *nodes* and of the hashed paths behind it, and register them; *node* is one of *nodes*."""
        name = self.on_node(nodes, link)
        if NETWORK not in link.split(">") or not self._hashed:
            return [name]
        paths = f"{f'{nodes}.' if folded else ''}{FABRIC}.leaf{node}.{'up' if link.endswith(NETWORK) else 'down'}"
        self.capacity.setdefault(paths, self._hashed)
        self.descriptions.setdefault(paths, (Cause.NETWORK, "hashed paths between nodes"))
        return [name, paths]

    @cached_property
    def _hashed(self) -> float:
        """Return the bytes/s of one node over hashed paths if nothing else is specified about switches, otherwise 0."""
        fabric = self.hardware.fabric
        alone = fabric.switches is not None and fabric.leaf_spine is None
        return fabric.path_efficiency * uplinks(fabric.switches, self.slot.node.nic) if alone and fabric.switches else 0.0

    # --- sends between stages -------------------------------------------------------------------------------------

    def _send_price(self, source: int, target: int, nbytes: float) -> GroupPrice:
        mesh = self.mesh
        node, _ = mesh.place(mesh.rank(pipeline=source))
        ends = self.send_pairs(source, target)
        places = tuple((mesh.place(rank)[1], mesh.place(other)[1], mesh.place(other)[0] == node) for rank, other in ends)
        where = (node, *(mesh.place(other)[0] for _, other in ends)) if self._structured else ()
        key = ("send", places, where, nbytes)
        if key not in self.book.outlines:
            self.book.outlines[key] = self._sends.outline([self._placed(each) for each in ends], nbytes)
        outline = self.book.outlines[key]
        load: dict[str, float] = defaultdict(float)
        for link, _, _, amount in outline.links:
            end, name = link.split(" ", 1)
            stage = source if end == OUT else target
            for live in self._on_node(self.nodes_of(stage), mesh.place(mesh.rank(pipeline=stage))[0], name):
                load[live] += amount
        load |= self._sent_on_switches(source, target, nbytes)
        price = outline.price
        loaded = ((amount, self.capacity[name], self.descriptions[name]) for name, amount in load.items())
        rate, limit = limited_rate(price.cap, (price.cause, price.limit), loaded)
        return price._replace(load=dict(load), uncontended_time=price.launch + price.volume / rate, cause=limit[0], limit=limit[1])

    @cached_property
    def _sends(self) -> Sends:
        return Sends(self.slot, self.hardware.fabric, self.sockets)

    def _placed(self, ends: tuple[int, int]) -> tuple[Place, Place]:
        return self.mesh.place(ends[0]), self.mesh.place(ends[1])

    @cached_property
    def _switches(self) -> Switches:
        return Switches(self.hardware, -(-self.mesh.gpus // self.mesh.gpus_per_node))

    def _sent_on_switches(self, source: int, target: int, nbytes: float) -> Mapping[str, float]:
        """Return the load of sends from all ranks of *source* to their peers in *target* on links between switches, and register these."""
        if not self._switches.links:
            return {}
        low, step = min(source, target), self.mesh.rank(pipeline=target) - self.mesh.rank(pipeline=source)
        like, nodes = self.mesh.first_like(low, self._period)
        key = self.mesh.grouping, like + source - low, like + target - low, nbytes
        if key not in self.book.sent:
            self.book.sent[key] = self._on_switches([(rank, rank + step) for rank in self._ranks_of[like + source - low]], nbytes)
        load = {moved(name, self.hardware.fabric, nodes): amount for name, amount in self.book.sent[key].items()}
        self._note_switches(load)
        return load

    def _note_switches(self, links: Iterable[str]) -> None:
        for name in links:
            self.capacity[name], self.descriptions[name] = self._switches.links[name]

    def _on_switches(self, ends: Iterable[tuple[int, int]], nbytes: float) -> dict[str, float]:
        """Return the load of simultaneous sends between all *ends* (ranks) on links between switches, and register the links."""
        if not self._switches.links:
            return {}
        places = Counter((*self.mesh.place(source), *self.mesh.place(target)) for source, target in ends)
        sent: dict[tuple[int, int], NodeStreams] = {}  # one for each pair of GPUs, because all nodes are equal
        streams = []
        for (node, gpu, other, onto), count in places.items():
            if node == other:
                continue
            if (gpu, onto) not in sent:
                sent[gpu, onto] = self._sends.node_streams((node, gpu), (other, onto), nbytes)
            streams.append(SwitchStream(node, other, sent[gpu, onto], count))
        load = self._switches.load(streams)
        self._note_switches(load)
        return load


def _skewed_cost(plan: CollectivePlan, slot: str, nbytes: float, skew: float) -> Cost:
    """Return the cost of an all-to-all in which the first rank on the node *slot* receives *skew* times the mean."""
    number = next(number for number, part in enumerate(plan.parts) if part.slot.name == slot)
    return plan.exchange(nbytes, one_receives_most(plan.layout, (number, plan.parts[number].gpus[0]), skew))
