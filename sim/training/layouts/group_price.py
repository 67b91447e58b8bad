"""What is the price of a group operation, and how does it load each link?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sim.cluster.fabric import moved
from sim.events import Cause
from sim.spec.hardware import Fabric
from sim.training.collectives.price.traffic import FABRIC
from sim.training.communicator import FluidCost


class GroupPrice(NamedTuple):
    """One operation of all equal groups, as one fluid activity."""

    launch: float
    """Seconds before any data moves."""
    volume: float
    cap: float
    """Rate (units/s) without contention."""
    load: Mapping[str, float]
    """Load per unit, by live link."""
    uncontended_time: float
    """Time (s) with contention only among the equal groups."""
    latency_share: float
    cause: Cause
    limit: str
    algorithm: str
    blocks: int = 0
    """Number of thread blocks that it occupies on each GPU."""
    memory_rate: float = 0.0
    """Bytes/s through the memory of each GPU, without other traffic."""
    notice: float = 0.0
    """Time (s) until the receiver's request for a message reaches its sender."""

    @property
    def fluid(self) -> FluidCost:
        """Return the price as a fluid activity, without the fields that only layouts use."""
        return FluidCost(self.launch, self.volume, self.cap, self.load, self.cause, self.limit)


class LinkShare(NamedTuple):
    """The load on one link; *name* does not include the nodes to which the link belongs."""

    name: str
    capacity: float
    meaning: tuple[Cause, str]
    amount: float


@dataclass(frozen=True, eq=False)
class MessageLoad:
    """The total load of messages on links: the sum of *parts*, each times its factor.

    It is added up when it is first read, because a search prices many layouts that it never simulates.
    """

    parts: Sequence[tuple[tuple[LinkShare, ...] | MessageLoad, float]] = ()

    @cached_property
    def outlines(self) -> tuple[tuple[tuple[LinkShare, ...], float], ...]:
        """Return the links of each kind of message, each kind once, and the factor of their loads."""
        factors: dict[int, tuple[tuple[LinkShare, ...], float]] = {}
        for part, factor in self.parts:
            for links, own in part.outlines if isinstance(part, MessageLoad) else ((part, 1.0),):
                _, before = factors.get(id(links), (links, 0.0))
                factors[id(links)] = links, before + own * factor
        return tuple(factors.values())

    @cached_property
    def links(self) -> tuple[LinkShare, ...]:
        """Return each link with its load."""
        last: dict[str, LinkShare] = {}
        amounts: dict[str, float] = {}
        for part, factor in self.parts:
            for link in part.links if isinstance(part, MessageLoad) else part:
                last[link.name] = link
                amounts[link.name] = amounts.get(link.name, 0.0) + link.amount * factor
        return tuple([link._replace(amount=amounts[name]) for name, link in last.items()])


class Outline(NamedTuple):
    """A price with link names that do not include nodes: the same for all stages and layouts with equally placed groups."""

    price: GroupPrice
    links: tuple[LinkShare, ...]
    """Links, with the load per unit."""

    def moved(self, fabric: Fabric, nodes: int) -> Outline:
        """Return the outline of a group that is placed as this one on *fabric*, but *nodes* nodes farther on."""
        of_switches = {each.meaning[1] for each in self.links if each.name.startswith(f"{FABRIC}.")}

        def text(told: str) -> str:
            return moved(told, fabric, nodes) if told in of_switches else told

        links = [
            each._replace(name=moved(each.name, fabric, nodes), meaning=(each.meaning[0], text(each.meaning[1])))
            if each.name.startswith(f"{FABRIC}.")
            else each
            for each in self.links
        ]
        return Outline(self.price._replace(limit=text(self.price.limit)), tuple(links))
