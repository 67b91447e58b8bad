"""What does a group of a mesh pay for a message? NCCL's choice and cost for one group, with the load of all groups like it.

Groups of one axis that share nodes run the same operation at the same time, so that each live link carries the sum of their loads: eight
data-parallel groups of one GPU a node each take their own NIC where there are eight, and share four. Nodes that hold the same stages are
simulated once. Limit: links between switches are counted for the nodes of each stage by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sim.cluster.build import Slot
from sim.cluster.fabric import NOTHING, crossed
from sim.events import Cause
from sim.parallel.mesh import GroupAxis, Mesh
from sim.parallel.program import Op
from sim.spec.hardware import Hardware
from sim.training.collectives.channels import ring_channels
from sim.training.collectives.layout import Layout
from sim.training.collectives.plan import CORES, CORES_COPY, CollectivePlan, Tuning, plan_collectives
from sim.training.collectives.traffic import CORE, CORE_LIMIT, FABRIC, TIER, Edge, Part

SIMPLE = "Simple"


class Price(NamedTuple):
    """One operation of all groups like it, as one fluid activity."""

    launch: float
    """Seconds before anything moves."""
    volume: float
    cap: float
    """Units per second when nothing else runs."""
    load: Mapping[str, float]
    """Per unit, by live link."""
    alone: float
    """Seconds with nothing beside it but the groups like it."""
    latency_share: float
    cause: Cause
    limit: str
    algorithm: str


@dataclass(eq=False)
class Prices:
    """Prices of every group of *mesh* on *hardware*, worked out once each."""

    hardware: Hardware
    mesh: Mesh
    tuning: Tuning
    capacity: dict[str, float] = field(default_factory=dict)
    """Of each live link, bytes/s."""
    descriptions: dict[str, tuple[Cause, str]] = field(default_factory=dict)
    """Of each live link: what it means that it holds an operation back."""
    _known: dict[tuple[object, ...], Price] = field(default_factory=dict)
    _plans: dict[tuple[object, ...], CollectivePlan] = field(default_factory=dict)

    @cached_property
    def _slot(self) -> Slot:
        group = next(group for group in self.hardware.groups if group.role == "worker" and group.node.gpu_count)
        return Slot("node", group.node, 1, ())

    @cached_property
    def _structured(self) -> bool:
        fabric = self.hardware.fabric
        return fabric.leaf_spine is not None or fabric.dragonfly is not None or fabric.torus is not None

    def nodes_of(self, stage: int) -> str:
        """Return the name of the nodes that hold *stage*: the same for stages that share nodes."""
        node, _ = self.mesh.place(self.mesh.rank(pipeline=stage))
        stages = sorted({self.mesh.stage_of(rank) for rank in self.mesh.on_node(node)})
        return f"stage{stages[0]}" if len(stages) == 1 else f"stages{stages[0]}-{stages[-1]}"

    def price(self, stage: int, axis: GroupAxis, op: Op, nbytes: float) -> Price:
        """Return what *op* on *nbytes* costs the groups of *axis* in *stage*."""
        key = (self.nodes_of(stage), stage if self._structured else 0, axis, op, nbytes)
        if key not in self._known:
            self._known[key] = self._group_price(stage, axis, op, nbytes)
        return self._known[key]

    def send(self, source: int, target: int, nbytes: float) -> Price:
        """Return what handing *nbytes* from each rank of stage *source* to its like in stage *target* costs."""
        key = ("send", source, target, nbytes)
        if key not in self._known:
            self._known[key] = self._send_price(source, target, nbytes)
        return self._known[key]

    # --- groups ---------------------------------------------------------------------------------------------------

    def _group_price(self, stage: int, axis: GroupAxis, op: Op, nbytes: float) -> Price:
        first = self.mesh.rank(pipeline=stage)
        node, _ = self.mesh.place(first)
        here = [rank for rank in self.mesh.on_node(node) if self.mesh.stage_of(rank) == stage] if axis != "everyone" else [first]
        groups = list(dict.fromkeys(self.mesh.group(rank, axis) for rank in here))
        plans = [self._plan(group, node) for group in groups]
        costs = [plan.cost(nbytes, op) for plan, _ in plans]
        volume, name = costs[0].volume, self.nodes_of(stage)
        load: dict[str, float] = defaultdict(float)
        for (plan, own), cost in zip(plans, costs, strict=True):
            for (slot, link), amount in cost.load.items():
                if slot in (own, FABRIC):
                    load[self._live(name, slot, link, plan)] += amount * cost.volume / volume
        cap = min(cost.cap * volume / cost.volume for cost in costs)
        cost = costs[0]
        rate, limit = cap, (cost.cause, cost.bottleneck)
        for link, amount in load.items():
            if self.capacity[link] / amount < rate * (1 - 1e-9):
                rate, limit = self.capacity[link] / amount, self.descriptions[link]
        share = min(1.0, cost.latency_share * rate / cap)
        alone = cost.launch + volume / rate
        return Price(cost.launch, volume, cap, dict(load), alone, share, *limit, cost.algorithm)

    def _plan(self, ranks: tuple[int, ...], node: int) -> tuple[CollectivePlan, str]:
        """Return how the collectives of *ranks* travel, and the name of the slot that *node* is in."""
        by_node: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            number, gpu = self.mesh.place(rank)
            by_node[number].append(gpu)
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, gpus in by_node.items():
            alike[tuple(sorted(gpus))].append(number)
        names = {gpus: f"g{index}" for index, gpus in enumerate(alike)}
        where = tuple(sorted(by_node)) if self._structured else ()
        key = (tuple((gpus, len(numbers)) for gpus, numbers in alike.items()), where)
        if key not in self._plans:
            slots = {gpus: Slot(names[gpus], self._slot.node, len(of), ((0, gpus),), (), tuple(of)) for gpus, of in alike.items()}
            used = [(slot, gpus) for gpus, slot in slots.items()]
            between = crossed(self.hardware, [sorted(by_node)], 0) if self._structured else NOTHING
            self._plans[key] = plan_collectives(used, self.hardware.fabric, self.tuning, between)
        return self._plans[key], names[tuple(sorted(by_node[node]))]

    def _live(self, nodes: str, slot: str, link: str, plan: CollectivePlan) -> str:
        """Return the live name of a resource, which is noted with its capacity and meaning."""
        if (slot, link) == CORE:
            name = f"{nodes}.core"
            self.capacity.setdefault(name, plan.fabric.core_bandwidth or 0.0)
            self.descriptions.setdefault(name, (Cause.NETWORK, CORE_LIMIT))
        elif slot == FABRIC:
            name = f"{nodes}.{FABRIC}.{link}"
            self.capacity.setdefault(name, plan.layout.crossed.capacities[link])
            self.descriptions.setdefault(name, (Cause.NETWORK, plan.layout.crossed.descriptions[link]))
        else:
            name = self._on_node(nodes, link)
        return name

    def _on_node(self, nodes: str, link: str) -> str:
        name, graph = f"{nodes}.{link}", self._slot.graph
        if name not in self.capacity:
            if link == CORES:
                self.capacity[name] = self._slot.cores
                self.descriptions[name] = (Cause.NETWORK, CORES_COPY)
            else:
                self.capacity[name] = graph.links[link].capacity
                self.descriptions[name] = (TIER[graph.links[link].tier], graph.links[link].description)
        return name

    # --- from stage to stage --------------------------------------------------------------------------------------

    def _send_price(self, source: int, target: int, nbytes: float) -> Price:
        mesh = self.mesh
        node, _ = mesh.place(mesh.rank(pipeline=source))
        step = mesh.rank(pipeline=target) - mesh.rank(pipeline=source)
        senders = [rank for rank in mesh.on_node(node) if mesh.stage_of(rank) == source]
        load: dict[str, float] = defaultdict(float)
        edges = [self._edge(rank, rank + step) for rank in senders]
        for edge in edges:
            for (slot, link), amount in edge.load(nbytes, SIMPLE).items():
                if slot != FABRIC:
                    load[self._on_node(self.nodes_of(source if slot == "out" else target), link)] += amount
        edge = edges[0]
        own = edge.cap(nbytes, SIMPLE)
        seconds = edge.latency(SIMPLE) + nbytes / own
        rate, limit = nbytes / seconds, edge.latency_of
        if edge.latency(SIMPLE) < nbytes / own:
            limit = (edge.latency_of[0], self._widest(edge))
        launch = max(hop.transport.launch for _, hop in edge.hops)
        cap = rate
        for link, amount in load.items():
            if self.capacity[link] / amount < rate * (1 - 1e-9):
                rate, limit = self.capacity[link] / amount, self.descriptions[link]
        return Price(launch, nbytes, cap, dict(load), launch + nbytes / rate, 0.0, *limit, "Send")

    def _widest(self, edge: Edge) -> str:
        """Return the description of the narrowest link of *edge*."""
        links = self._slot.graph.links
        return min((links[link] for _, hop in edge.hops for link in hop.links), key=lambda link: link.capacity).description

    def _edge(self, source: int, target: int) -> Edge:
        (node, gpu), (other, onto) = self.mesh.place(source), self.mesh.place(target)
        graph = self._slot.graph
        if node == other:
            slot = Slot("out", self._slot.node, 1, (), (), (node,))
            part = Part(slot, tuple(sorted({gpu, onto})), ring_channels(graph, tuple(sorted({gpu, onto}))))
            return Layout((part,), self.hardware.fabric).inside(part, gpu, onto)
        leaving, arriving = (Slot(name, self._slot.node, 1, (), (), (number,)) for name, number in (("out", node), ("in", other)))
        one, two = Part(leaving, (gpu,), ring_channels(graph, (gpu,), 2)), Part(arriving, (onto,), ring_channels(graph, (onto,), 2))
        return Layout((one, two), self.hardware.fabric).across(one, two, gpu, onto)
