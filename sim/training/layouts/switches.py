"""What do messages between stages put on the links between switches, where those of all replicas go at one time?

Below leaf switches whose nodes are numbered in order a message crosses the uplinks of its own two nodes. Limit: elsewhere (nodes scattered
below switches, dragonfly, torus) it loads links as a message to any other node would, on average. What hashed paths cost where nothing is
said of switches is counted with the nodes (`sim.training.layouts.prices`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sim.cluster.fabric import NOTHING, Crossed, Sent, crossed
from sim.events import Cause
from sim.spec.hardware import Hardware
from sim.training.collectives.price.traffic import CORE_LIMIT, FABRIC

CORE_LINK = "core"


class SwitchStream(NamedTuple):
    """So many *messages* from node *source* to node *target*, each of which a byte of the payload weighs as *sent*."""

    source: int
    target: int
    sent: Sent
    messages: int = 1


@dataclass(frozen=True)
class Switches:
    """Links between the *nodes* of one job."""

    hardware: Hardware
    nodes: int

    def load(self, streams: Iterable[SwitchStream]) -> dict[str, float]:
        """Return what *streams* put on each live link, per byte of one of them."""
        load: dict[str, float] = defaultdict(float)
        for stream in streams:
            if stream.source == stream.target:
                continue
            if self.hardware.fabric.core_bandwidth:
                load[CORE_LINK] += stream.messages * stream.sent.on_wire
            for name, amount in self._own(stream) if self._between.groups_of else self._mean(stream):
                load[f"{FABRIC}.{name}"] += stream.messages * amount
        return dict(load)

    def leaf(self, node: int) -> str | None:
        """Return the name of the leaf switch that *node* is below; None where nodes are numbered as it happens."""
        return next(iter(self._between.groups_of.get(node, ())), None)

    @cached_property
    def links(self) -> Mapping[str, tuple[float, tuple[Cause, str]]]:
        """Return the capacity of each live link (bytes/s), and what it means that it holds a message back."""
        between, core = self._between, self.hardware.fabric.core_bandwidth
        links = {f"{FABRIC}.{name}": (rate, (Cause.NETWORK, between.descriptions[name])) for name, rate in between.capacities.items()}
        return links | ({CORE_LINK: (core, (Cause.NETWORK, CORE_LIMIT))} if core else {})

    @cached_property
    def _between(self) -> Crossed:
        fabric = self.hardware.fabric
        described = any((fabric.leaf_spine, fabric.dragonfly, fabric.torus))
        return crossed(self.hardware, [range(self.nodes)], 0, fold=False) if described else NOTHING

    @cached_property
    def _relative(self) -> Mapping[str, bool]:
        return {f"{port.name}.{way}": port.relative for port in self._between.ports for way in ("up", "down")}

    def _own(self, stream: SwitchStream) -> Iterable[tuple[str, float]]:
        """Yield what one message of *stream* weighs on each uplink that it crosses."""
        _, nic, onto, on_nic, on_wire = stream.sent
        for name in self._between.between(stream.source, stream.target, nic, nic if onto is None else onto):
            yield name, on_nic if self._relative[name] else on_wire

    def _mean(self, stream: SwitchStream) -> Iterable[tuple[str, float]]:
        """Yield the share of one node in what all load that send to any other."""
        for name, amount in self._between.load([stream.sent]).items():
            yield name, amount / self.nodes
