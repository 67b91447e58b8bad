"""What does a link carry, and what does it mean that it holds a collective or message back?"""

from __future__ import annotations

from collections.abc import Iterable

from sim.cluster.build import Slot
from sim.events import Cause
from sim.training.collectives.price.plan import CORES_COPY
from sim.training.collectives.price.traffic import CORES, TIER

LimitMeaning = tuple[Cause, str]


def link_of(slot: Slot, link: str) -> tuple[float, LimitMeaning]:
    """Return capacity (bytes/s) and meaning of *link* of a node of *slot*, or of its cores, which copy for sockets."""
    if link == CORES:
        return slot.cores, (Cause.NETWORK, CORES_COPY)
    own = slot.graph.links[link]
    return own.capacity, (TIER[own.tier], own.description)


def held_back(rate: float, limit: LimitMeaning, loaded: Iterable[tuple[float, float, LimitMeaning]]) -> tuple[float, LimitMeaning]:
    """Return at which rate something goes with links to itself, and what limits it: *rate* by *limit* unless a link carries less.

    *loaded* has for each link its load per unit, its capacity and its meaning.
    """
    for amount, capacity, meaning in loaded:
        if capacity / amount < rate * (1 - 1e-9):
            rate, limit = capacity / amount, meaning
    return rate, limit
