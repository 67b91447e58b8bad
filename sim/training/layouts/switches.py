"""How do messages between stages load the links between switches, if the messages of all replicas are sent at the same time?

If nodes are numbered in the order of their leaf switches, a message crosses the uplinks of its own two nodes. Limit: in other cases (nodes
scattered over switches, dragonfly, torus), it loads links like the average message to any other node. If switches are not specified,
hashed paths are counted with the nodes (`sim.training.layouts.prices`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sim.cluster.fabric import UNLIMITED_FABRIC, JobFabric, NodeStreams, job_fabric
from sim.events import Cause
from sim.spec.hardware import Hardware
from sim.training.collectives.price.traffic import CORE_LIMIT, FABRIC

CORE_LINK = "core"


class SwitchStream(NamedTuple):
    """A number of *messages* from node *source* to node *target*; *sent* is the load of each per payload byte."""

    source: int
    target: int
    sent: NodeStreams
    messages: int = 1


@dataclass(frozen=True)
class Switches:
    """The links between the *nodes* nodes of one job."""

    hardware: Hardware
    nodes: int

    def load(self, streams: Iterable[SwitchStream]) -> dict[str, float]:
        """Return the load of *streams* on each live link, per byte of one of them."""
        load: dict[str, float] = defaultdict(float)
        for stream in streams:
            if stream.source == stream.target:
                continue
            if self.hardware.fabric.core_bandwidth:
                load[CORE_LINK] += stream.messages * stream.sent.wire_load
            for name, amount in self._uplink_loads(stream) if self._between.groups_of else self._mean_loads(stream):
                load[f"{FABRIC}.{name}"] += stream.messages * amount
        return dict(load)

    def leaf(self, node: int) -> str | None:
        """Return the name of the leaf switch above *node*, or None if nodes are not numbered in the order of switches."""
        return next(iter(self._between.groups_of.get(node, ())), None)

    @cached_property
    def links(self) -> Mapping[str, tuple[float, tuple[Cause, str]]]:
        """Return the capacity of each live link (bytes/s), and the cause to report when it limits a message."""
        between, core = self._between, self.hardware.fabric.core_bandwidth
        links = {f"{FABRIC}.{name}": (rate, (Cause.NETWORK, between.descriptions[name])) for name, rate in between.capacities.items()}
        return links | ({CORE_LINK: (core, (Cause.NETWORK, CORE_LIMIT))} if core else {})

    @cached_property
    def _between(self) -> JobFabric:
        fabric = self.hardware.fabric
        described = any((fabric.leaf_spine, fabric.dragonfly, fabric.torus))
        return job_fabric(self.hardware, [range(self.nodes)], 0, fold=False) if described else UNLIMITED_FABRIC

    @cached_property
    def _relative(self) -> Mapping[str, bool]:
        return {f"{port.name}.{way}": port.relative for port in self._between.ports for way in ("up", "down")}

    def _uplink_loads(self, stream: SwitchStream) -> Iterable[tuple[str, float]]:
        """Yield the load of one message of *stream* on each uplink that it crosses."""
        _, nic, onto, on_nic, on_wire = stream.sent
        for name in self._between.between(stream.source, stream.target, nic, nic if onto is None else onto):
            yield name, on_nic if self._relative[name] else on_wire

    def _mean_loads(self, stream: SwitchStream) -> Iterable[tuple[str, float]]:
        """Yield the share of one node in the load of all nodes, if each sends to all others."""
        for name, amount in self._between.load([stream.sent]).items():
            yield name, amount / self.nodes
