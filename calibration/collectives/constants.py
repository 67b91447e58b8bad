"""What if a transport class had other constants? The same plan, rings and choices with some numbers replaced.

NCCL's rules do not depend on our constants. So neither the search nor the choices change, and a fit need not repeat them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.cluster.topology import NodeGraph
from sim.spec.hardware import Node, Transport
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.traffic import SlotPart
from sim.training.collectives.routes.channels import Channel, Hop

TransportFields = Mapping[str, Mapping[str, Any]]
"""Fields of `Transport` (SI) by the name of the class."""


def with_constants(layout: JobLayout, constants: TransportFields) -> JobLayout:
    """Return *layout* with the transport classes of its nodes changed to *constants*."""
    return JobLayout(tuple(_part(part, constants) for part in layout.parts), layout.fabric)


def transports_of(layout: JobLayout) -> frozenset[str]:
    """Return the names of the transport classes that the rings of *layout* cross."""
    return frozenset(transport.name for part in layout.parts for transport in part.channels.transports)


def _part(part: SlotPart, constants: TransportFields) -> SlotPart:
    node = _node(part.slot.node, constants)
    graph = NodeGraph(_node(part.slot.graph.node, constants), part.slot.graph.links, part.slot.graph.parents)
    slot = replace(part.slot, node=node)
    slot.__dict__["graph"] = graph  # a cached property: links stay as they are
    channels = tuple(_channel(channel, constants) for channel in part.channels.channels)
    return SlotPart(slot, part.gpus, replace(part.channels, channels=channels))


def _node(node: Node, constants: TransportFields) -> Node:
    changed: dict[str, object] = {place: _transport(transport, constants) for place, transport in node.transports.items()}
    changed["nic"] = node.nic.model_copy(update={"transport": _transport(node.nic.transport, constants)})
    return node.model_copy(update=changed)


def _channel(channel: Channel, constants: TransportFields) -> Channel:
    return Channel(channel.gpus, tuple(_hop(hop, constants) for hop in channel.hops))


def _hop(hop: Hop, constants: TransportFields) -> Hop:
    copies = hop.route.copies and _transport(hop.route.copies, constants)
    return replace(hop, route=replace(hop.route, transport=_transport(hop.route.transport, constants), copies=copies))


def _transport(transport: Transport, constants: TransportFields) -> Transport:
    fields = dict(constants.get(transport.name, {}))
    if not fields:
        return transport
    return transport.model_copy(update=fields)
