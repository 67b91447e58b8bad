"""Which algorithm, protocol and channels does a job's collective use, and what does it cost? One interface for all collectives.

NCCL's tuner (`tuner`) chooses for each message by the rules of its version, unless NCCL_ALGO and NCCL_PROTO force the choice. Algorithms of
other libraries are selected by name. `pricing` returns the cost of the choice, as one fluid activity with a load on every link it crosses.
Nothing here is simulated in time; the executors do that.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple, get_args

from sim.cluster.build import Slot
from sim.cluster.fabric import UNLIMITED_FABRIC, JobFabric
from sim.events import Cause
from sim.parallel.program import Op
from sim.spec.algorithms import other_algorithm
from sim.spec.hardware import Fabric
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl import threshold
from sim.training.collectives.nccl.constants import NCCL_2_30, constants_of, relays_to_nics
from sim.training.collectives.nccl.cost import TunerMachine
from sim.training.collectives.nccl.tuner import choose
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.machine import machine_of
from sim.training.collectives.price.point_to_point import SENDS, send_channels, send_protocol
from sim.training.collectives.price.pricing import cost, cost_of
from sim.training.collectives.price.traffic import CORE, CORE_LIMIT, CORES, FABRIC, TIER, Cost, Edge, LinkLoad, SlotPart
from sim.training.collectives.price.unequal import Weight, price_unequal
from sim.training.collectives.routes.channels import ring_channels

__all__ = [
    "CORE",
    "CORES",
    "CollectivePlan",
    "Cost",
    "Edge",
    "LinkLoad",
    "Live",
    "Op",
    "SlotPart",
    "Tuning",
    "live_load",
    "live_name",
    "plan_collectives",
]

OPS: tuple[Op, ...] = get_args(Op)

CORES_COPY = "CPU cores that copy for the network"
"""The limit to report if a transport is bound by the host's cores."""
OF_BROADCAST = " of broadcasting buffers"
"""Suffix for the name of a latency in a broadcast of buffers, because its remedy differs from that for gradients."""

Live = Mapping[str, Mapping[str, str]]
"""The live name of each physical link by slot: the name of the resource that represents it in the simulated network."""


class Tuning(NamedTuple):
    """How the algorithm is chosen: NCCL's version, and the values of NCCL_ALGO, NCCL_PROTO and NCCL_MAX_NCHANNELS."""

    version: str = "2.30"
    algorithms: str | None = None
    protocols: str | None = None
    channels: int | None = None


DEFAULT = Tuning()
"""The newest rules, with nothing forced."""


class AlgorithmChoice(NamedTuple):
    """The choice for one message."""

    algorithm: str
    protocol: str
    channels: int


@dataclass(frozen=True)
class CollectivePlan:
    """The collectives of one job over its slots; the slot with the fewest channels sets their number."""

    layout: JobLayout
    tuning: Tuning
    _costs: dict[tuple[Op, float], Cost] = field(default_factory=dict, repr=False, compare=False)

    @property
    def parts(self) -> tuple[SlotPart, ...]:
        """Return the job's GPUs and channels by slot."""
        return self.layout.parts

    @property
    def fabric(self) -> Fabric:
        """Return the fabric between nodes."""
        return self.layout.fabric

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.layout.ranks

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return self.layout.nodes

    @property
    def channels(self) -> int:
        """Return the number of rings that fit on the job's link graph."""
        return self.layout.channels

    @property
    def streams(self) -> int:
        """Return the maximum number of concurrent collectives: torch gives NCCL one stream."""
        return 1

    @property
    def decision(self) -> dict[str, object]:
        """Return the description of the exchange for the log's header."""
        return {"algorithm": ", ".join(sorted({name for op, name in self._in_use if op == "all_reduce"})), "channels": self.channels}

    @property
    def shared_capacities(self) -> dict[str, float]:
        """Return the capacities (bytes/s) of the resources outside nodes, by live name."""
        if self.nodes == 1:
            return {}
        core = {".".join(CORE): self.fabric.core_bandwidth} if self.fabric.core_bandwidth else {}
        return core | {f"{FABRIC}.{name}": capacity for name, capacity in self.layout.job_fabric.capacities.items()}

    def crossings(self, slot: str) -> dict[str, Hashable]:
        """Return, for each physical link of one node of *slot*, a key that distinguishes links by the loads of each algorithm in use."""
        weights_of: dict[str, list[Hashable]] = {}
        for algorithm, size, load in self._loads:
            for (name, link), weight in load.items():
                if name == slot:
                    weights_of.setdefault(link, []).append((algorithm, size, round(weight, 9)))
        return {link: tuple(weights) for link, weights in weights_of.items()}

    def choice(self, nbytes: float, op: Op = "all_reduce") -> AlgorithmChoice:
        """Return NCCL's choice for *op* on *nbytes*, or the algorithm of another library if one is forced."""
        if op == "all_to_all" or op == "send_recv" or op == "gather" or op == "scatter":
            each = nbytes if op == "send_recv" else nbytes / self.ranks
            return AlgorithmChoice(SENDS[op], send_protocol(self.layout, self.tuning.version, each), send_channels(self.layout, each))
        if self.forced_algorithm and op == "all_reduce":
            return AlgorithmChoice(self.forced_algorithm, "Simple", self.channels)
        algorithms = None if self.forced_algorithm else self._asked.algorithms
        choice = choose(op, max(1.0, nbytes), self._machine, self.tuning.version, algorithms, self._asked.protocols)
        return AlgorithmChoice(choice.algorithm, choice.protocol, min(choice.channels, self.tuning.channels or choice.channels))

    def cost(self, nbytes: float, op: Op = "all_reduce") -> Cost:
        """Return the cost of *op* on *nbytes*; ``Cost.uncontended_time`` is its time without contention."""
        if (op, nbytes) not in self._costs:
            priced = self.cost_of(nbytes, *self.choice(nbytes, op), op=op)
            if op == "broadcast":
                cause, latency = priced.latency_of
                priced = priced._replace(latency_of=(cause, latency + OF_BROADCAST))
            self._costs[op, nbytes] = priced
        return self._costs[op, nbytes]

    def considered_costs(self, nbytes: float) -> dict[str, Cost]:
        """Return the cost of an all-reduce of *nbytes* by each algorithm that NCCL considers, with its protocol for that algorithm."""
        version, protocols = self.tuning.version, self._asked.protocols
        weighed = choose("all_reduce", max(1.0, nbytes), self._machine, version, self._asked.algorithms, protocols).table
        costs = {}
        for algorithm in dict.fromkeys(row.algorithm for row in weighed):
            choice = choose("all_reduce", max(1.0, nbytes), self._machine, version, algorithm, protocols)
            channels = min(choice.channels, self.tuning.channels or choice.channels)
            costs[algorithm] = self.cost_of(nbytes, algorithm, choice.protocol, channels)
        return costs

    def cost_of(self, nbytes: float, algorithm: str, protocol: str, channels: int, op: Op = "all_reduce") -> Cost:
        """Return the cost of *op* with this algorithm, protocol and number of channels."""
        return cost(self.layout, op, algorithm, protocol, nbytes, channels)

    def exchange(self, nbytes: float, weight: Weight) -> Cost:
        """Return the cost of an all-to-all with unequal shares according to *weight*; each rank sends *nbytes* on average."""
        _, protocol, channels = self.choice(nbytes, "all_to_all")
        return cost_of(self.layout, price_unequal(self.layout, protocol, nbytes, weight), "Pairwise", protocol, channels)

    def causes(self, live: Live) -> dict[str, tuple[Cause, str]]:
        """Return, by the live name of a resource, the cause and description to report when it limits a collective."""
        causes = dict.fromkeys(self.shared_capacities, (Cause.NETWORK, CORE_LIMIT))
        causes |= {f"{FABRIC}.{name}": (Cause.NETWORK, what) for name, what in self.layout.job_fabric.descriptions.items()}
        for part in self.parts:
            for link, name in live[part.slot.name].items():
                described = part.slot.graph.links[link]
                causes.setdefault(name, (TIER[described.tier], described.description))
            crossed = {hop.tier for channel in part.channels.channels for hop in channel.hops if hop.transport.cpu_time_per_byte}
            for tier in sorted(crossed):
                causes[live_name(live, part.slot.name, CORES)] = (TIER[tier], CORES_COPY)
        return causes

    @cached_property
    def _asked(self) -> Tuning:
        """Return the tuning, with what the network's plug-in sets where nothing else does; releases without a tuner lack its algorithms."""
        nics = [part.slot.node.nic for part in self.parts] if self.nodes > 1 else []
        tuned = constants_of(self.tuning.version).name not in threshold.VERSIONS
        algorithms = next((",".join(nic.nccl_algorithms) for nic in nics if nic.nccl_algorithms and tuned), None)
        protocols = next((",".join(nic.nccl_protocols) for nic in nics if nic.nccl_protocols), None)
        return self.tuning._replace(algorithms=self.tuning.algorithms or algorithms, protocols=self.tuning.protocols or protocols)

    @cached_property
    def _machine(self) -> TunerMachine:
        return machine_of(self.layout, self.tuning.version)

    @cached_property
    def forced_algorithm(self) -> str | None:
        """Return the algorithm of another library that is requested by name, or None."""
        return other_algorithm(self.tuning.algorithms)

    @cached_property
    def _loads(self) -> list[tuple[str, float, LinkLoad]]:
        """Return the loads of each algorithm in use, for a small and a large message; all operations of an algorithm use the same hops."""
        ops = {algorithm: op for op, algorithm in self._in_use}
        return [(name, size, cost(self.layout, op, name, "Simple", size, 1).load) for (name, op), size in product(ops.items(), (1e4, 1e8))]

    @cached_property
    def _in_use(self) -> list[tuple[Op, str]]:
        """Return the operations and algorithms in use for any message size; a forced choice may leave none for an operation."""
        in_use: set[tuple[Op, str]] = set()
        others: tuple[Op, ...] = ("all_gather", "broadcast")
        for size in (4.0**power for power in range(1, 18)):
            in_use.add(("all_reduce", self.choice(size).algorithm))
            for op in others:
                with suppress(SpecError):
                    in_use.add((op, self.choice(size, op).algorithm))
        return sorted(in_use)


def live_name(live: Live, slot: str, link: str) -> str:
    """Return the live name of *link* of *slot*."""
    return live.get(slot, {}).get(link, f"{slot}.{link}")


def live_load(load: LinkLoad, live: Live) -> dict[str, float]:
    """Return *load* by the live names of resources; physical links with the same live name carry equal loads."""
    live_loads: dict[str, float] = {}
    for (slot, link), amount in load.items():
        name = live_name(live, slot, link)
        live_loads[name] = max(amount, live_loads.get(name, 0.0))
    return live_loads


def plan_collectives(
    slot_gpus: Sequence[tuple[Slot, tuple[int, ...]]],
    fabric: Fabric | None = None,
    tuning: Tuning = DEFAULT,
    job_fabric: JobFabric = UNLIMITED_FABRIC,
) -> CollectivePlan:
    """Return the plan of one job's collectives; *slot_gpus* lists each slot with the GPUs that the job uses on each of its nodes.

    *job_fabric* specifies the links of the *fabric* that the job crosses.
    """
    constants_of(tuning.version)
    if tuning.channels is not None and tuning.channels > NCCL_2_30.max_channels:
        raise SpecError(f"{tuning.channels} channels: NCCL has 1 to {NCCL_2_30.max_channels}; write one of those")
    nodes = sum(slot.count for slot, _ in slot_gpus)
    parts = [SlotPart(slot, gpus, ring_channels(slot.graph, gpus, nodes, relays_to_nics(tuning.version))) for slot, gpus in slot_gpus]
    fewest = min([len(part.channels.channels) for part in parts] + [tuning.channels or NCCL_2_30.max_channels])
    cut = tuple(part._replace(channels=part.channels.first(fewest)) for part in parts)
    return CollectivePlan(JobLayout(cut, fabric or Fabric(), job_fabric), tuning)
