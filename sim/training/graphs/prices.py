"""What do the collectives and messages of a graph cost, rank by rank? NCCL's choice for any set of ranks, with its load on every link.

Every node is simulated individually, so ranks with different work contend for the links that they share. Limits: individual messages do not
load links between switches; groups on a torus do not share links with each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sim.cluster.build import Placement, Slot, slots
from sim.cluster.fabric import UNLIMITED_FABRIC, job_fabric
from sim.events import Cause
from sim.parallel.graph import CollectiveOp
from sim.spec.hardware import Hardware, Node
from sim.training.collectives.price.collective_plan import CollectivePlan, Tuning, plan_collectives
from sim.training.collectives.price.links import limited_rate, link_of
from sim.training.collectives.price.message import OUT, SIMPLE, edge_between, message_price
from sim.training.collectives.price.traffic import CORE, CORE_LIMIT, FABRIC
from sim.training.communicator import FluidCost
from sim.training.job import job_slots


@dataclass(eq=False)
class GraphPrices:
    """Cached prices on *hardware*; *placement* lists the GPUs of the ranks, in rank order."""

    hardware: Hardware
    placement: Sequence[Placement]
    tuning: Tuning
    capacity: dict[str, float] = field(default_factory=dict)
    """Capacity of each live link (bytes/s)."""
    descriptions: dict[str, tuple[Cause, str]] = field(default_factory=dict)
    """The cause and description to report when a live link limits an operation."""
    _plans: dict[object, CollectivePlan] = field(default_factory=dict)
    _prices: dict[object, FluidCost] = field(default_factory=dict)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return node and GPU of each rank."""
        return tuple((part.node, gpu) for part in self.placement for gpu in part.gpus)

    @cached_property
    def slots(self) -> dict[int, Slot]:
        """Return the slot of each node in use; equal nodes share one."""
        return {number: slot for slot in slots(self.hardware, [tuple(self.placement)]) for number in slot.numbers}

    def node(self, rank: int) -> Node:
        """Return the node that *rank* is on."""
        return self.slots[self.places[rank][0]].node

    def collective(self, ranks: tuple[int, ...], op: CollectiveOp, nbytes: float) -> FluidCost:
        """Return the price of *op* on *nbytes* among *ranks*, which are two or more."""
        key = (ranks, op, nbytes)
        if key not in self._prices:
            self._prices[key] = self._collective(ranks, op, nbytes)
        return self._prices[key]

    def message(self, source: int, target: int, nbytes: float) -> FluidCost:
        """Return the price of a message of *nbytes* from rank *source* to rank *target*."""
        key = (source, target, nbytes)
        if key not in self._prices:
            self._prices[key] = self._message(source, target, nbytes)
        return self._prices[key]

    def _collective(self, ranks: tuple[int, ...], op: CollectiveOp, nbytes: float) -> FluidCost:
        by_node: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            node, gpu = self.places[rank]
            by_node[node].append(gpu)
        placement = tuple(Placement(node, tuple(sorted(gpus))) for node, gpus in sorted(by_node.items()))
        plan = self._plan(placement)
        cost = plan.cost(nbytes, op)
        numbers: dict[str, list[int]] = defaultdict(list)
        for part in placement:
            planned = next(
                each_part for each_part in plan.parts if each_part.slot.node is self.slots[part.node].node and each_part.gpus == part.gpus
            )
            numbers[planned.slot.name].append(part.node)
        load: dict[str, float] = {}
        for (slot, link), amount in cost.load.items():
            names = [self._fabric(link, plan, placement)] if slot == FABRIC else [self._live(node, link) for node in numbers[slot]]
            load |= dict.fromkeys(names, amount)
        return FluidCost(cost.launch, cost.volume, cost.cap, load, cost.cause, cost.bottleneck)

    def _plan(self, placement: tuple[Placement, ...]) -> CollectivePlan:
        """Return the plan of collectives on *placement*; on a fabric without structure, equal placements share a plan."""
        fabric = self.hardware.fabric
        structured = fabric.has_structure
        key = placement if structured else tuple((id(self.slots[part.node].node), part.gpus) for part in placement)
        if key not in self._plans:
            used = job_slots(0, slots(self.hardware, [placement]))
            between = job_fabric(self.hardware, [[part.node for part in placement]], 0, fold=False) if structured else UNLIMITED_FABRIC
            self._plans[key] = plan_collectives(used, fabric, self.tuning, between)
        return self._plans[key]

    def _message(self, source: int, target: int, nbytes: float) -> FluidCost:
        (node, gpu), (other, onto) = self.places[source], self.places[target]
        edge = edge_between((self.slots[node], node, gpu), (self.slots[other], other, onto), self.hardware.fabric)
        alone = message_price(edge, nbytes)
        load: dict[str, float] = defaultdict(float)
        for (slot, link), amount in edge.load(nbytes, SIMPLE).items():
            if slot != FABRIC:
                load[self._live(node if slot == OUT else other, link)] += amount
            elif (slot, link) == CORE:
                load[self._core()] += amount
        loaded = ((amount, self.capacity[name], self.descriptions[name]) for name, amount in load.items())
        rate, limit = limited_rate(alone.rate, (alone.cause, alone.limit), loaded)
        return FluidCost(alone.launch, nbytes, rate, dict(load), *limit)

    # --- links ----------------------------------------------------------------------------------------------------

    def _live(self, node: int, link: str) -> str:
        """Return the live name of *link* of *node*, and register the link."""
        name = f"node{node}.{link}"
        if name not in self.capacity:
            self.capacity[name], self.descriptions[name] = link_of(self.slots[node], link)
        return name

    def _core(self) -> str:
        name = ".".join(CORE)
        self.capacity.setdefault(name, self.hardware.fabric.core_bandwidth or 0.0)
        self.descriptions.setdefault(name, (Cause.NETWORK, CORE_LIMIT))
        return name

    def _fabric(self, link: str, plan: CollectivePlan, placement: Sequence[Placement]) -> str:
        """Return the live name of a link between switches, and register the link."""
        if (FABRIC, link) == CORE:
            return self._core()
        whose = f"{placement[0].node}." if self.hardware.fabric.torus is not None else ""
        name, between = f"{FABRIC}.{whose}{link}", plan.layout.job_fabric
        self.capacity.setdefault(name, between.capacities[link])
        self.descriptions.setdefault(name, (Cause.NETWORK, between.descriptions[link]))
        return name
