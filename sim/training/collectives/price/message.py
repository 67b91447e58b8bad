"""What does a message from one GPU to another cost? The edge that it takes, and its rate without contention."""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.cluster.build import Slot
from sim.events import Cause
from sim.spec.hardware import Fabric
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.traffic import Edge, SlotPart
from sim.training.collectives.routes.channels import ring_channels

SIMPLE: Final = "Simple"
OUT: Final = "out"
"""Name of the sending node's slot in loads of an edge; the receiving node, if another, is ``in``."""
IN: Final = "in"


class MessagePrice(NamedTuple):
    """A message as one fluid activity: time (s) before any data moves, rate (bytes/s) without contention, and what limits the rate."""

    launch: float
    rate: float
    cause: Cause
    limit: str


def edge_between(source: tuple[Slot, int, int], target: tuple[Slot, int, int], fabric: Fabric) -> Edge:
    """Return the edge from one GPU to another; each end consists of a slot of equal nodes, a node's number, and a GPU on it."""
    (out, node, gpu), (into, other, onto) = source, target
    if node == other:
        slot = Slot(OUT, out.node, 1, (), (), (node,))
        gpus = tuple(sorted({gpu, onto}))
        part = SlotPart(slot, gpus, ring_channels(out.graph, gpus))
        return JobLayout((part,), fabric).local_edge(part, gpu, onto)
    leaving, arriving = Slot(OUT, out.node, 1, (), (), (node,)), Slot(IN, into.node, 1, (), (), (other,))
    one, two = (
        SlotPart(leaving, (gpu,), ring_channels(out.graph, (gpu,), 2)),
        SlotPart(arriving, (onto,), ring_channels(into.graph, (onto,), 2)),
    )
    return JobLayout((one, two), fabric).nic_edge(one, two, gpu, onto)


def message_price(edge: Edge, nbytes: float) -> MessagePrice:
    """Return the cost of a message of *nbytes* along *edge* without contention."""
    rate, latency = edge.cap(nbytes, SIMPLE), edge.latency(SIMPLE)
    cause, limit = edge.latency_of
    if latency < nbytes / rate:
        limit = _narrowest(edge)
    return MessagePrice(max(hop.transport.launch for _, hop in edge.hops), nbytes / (latency + nbytes / rate), cause, limit)


def _narrowest(edge: Edge) -> str:
    """Return the description of the narrowest link of *edge*."""
    links = (part.slot.graph.links[link] for part, hop in edge.hops for link in hop.links)
    return min(links, key=lambda link: link.capacity).description
