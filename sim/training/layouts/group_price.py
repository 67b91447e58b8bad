"""What is an operation of a group priced at, and what does it load on which links?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sim.events import Cause
from sim.training.communicator import Fluid


class GroupPrice(NamedTuple):
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
    blocks: int = 0
    """Thread blocks that it keeps on each GPU."""
    memory_rate: float = 0.0
    """Bytes/s through the memory of each GPU, with nothing beside it."""
    notice: float = 0.0
    """Seconds until a sender knows that its receiver asks for a message."""

    @property
    def fluid(self) -> Fluid:
        """Return it without what only layouts ask of it."""
        return Fluid(self.launch, self.volume, self.cap, self.load, self.cause, self.limit)


class LinkShare(NamedTuple):
    """What something puts on a link, whose name does not tell which nodes it belongs to."""

    name: str
    capacity: float
    meaning: tuple[Cause, str]
    amount: float


class Outline(NamedTuple):
    """A price whose links are named without the nodes they belong to: the same for all stages and layouts whose groups lie alike."""

    price: GroupPrice
    links: tuple[LinkShare, ...]
    """With the load per unit."""
