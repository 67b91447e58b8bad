"""What is the capacity of a link, and which cause is reported when it limits a collective or message?"""

from __future__ import annotations

from collections.abc import Iterable

from sim.cluster.build import Slot
from sim.events import Cause
from sim.training.collectives.price.collective_plan import CORES_COPY
from sim.training.collectives.price.traffic import CORES, TIER

LimitCause = tuple[Cause, str]


def link_of(slot: Slot, link: str) -> tuple[float, LimitCause]:
    """Return the capacity (bytes/s) of *link* of a node of *slot*, or of its cores (which copy for sockets), and the cause to report."""
    if link == CORES:
        return slot.cores, (Cause.NETWORK, CORES_COPY)
    node_link = slot.graph.links[link]
    return node_link.capacity, (TIER[node_link.tier], node_link.description)


def limited_rate(rate: float, limit: LimitCause, loaded: Iterable[tuple[float, float, LimitCause]]) -> tuple[float, LimitCause]:
    """Return the rate of an activity without contention, and its limit: *rate* and *limit*, unless a link is slower.

    *loaded* lists for each link its load per unit, its capacity and the cause to report.
    """
    for amount, capacity, meaning in loaded:
        if capacity / amount < rate * (1 - 1e-9):
            rate, limit = capacity / amount, meaning
    return rate, limit
