"""Which rate does one stream get on a hop next to the other streams of its ring?

For chunks of S/(nC) bytes it is the minimum of

    min(1, efficiency(chunk)) * capacity / crossings of each of its links, with crossings counted over all C channels; on hops between
        nodes the efficiency applies to the wire only, because PCIe does not carry a network's headers,
    efficiency(chunk) / sum over its stages of 1 / narrowest link (device-to-host and host-to-device copies are sequential),
    the same with the copies' own overlap, as if it were the capacity of the NIC, if a NIC reads and writes host memory only,
    flows * flow_cap * efficiency(chunk) instead of the efficiencies above, if the transport has a flow cap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.cluster.topology import NodeGraph
from sim.training.collectives.routes.channels import Hop


class Lane(NamedTuple):
    """The bandwidth that one stream gets on *hop* next to the other streams, independent of the size of its chunks."""

    hop: Hop
    link: str
    """The bottleneck link."""
    fair: Room
    """Fair shares of the hop's links."""
    stages: tuple[Room, ...]
    """Bandwidths of the links of each stage without contention."""

    @property
    def uncontended_rate(self) -> float:
        """Return the bandwidth (bytes/s) of the route without contention."""
        return _in_series(self.hop, self.stages, 1.0)

    def rate(self, efficiency: float, flow_cap: float, share: float = 1.0) -> float:
        """Return the rate (bytes/s) of one stream, given its transport's *efficiency* and *flow_cap*.

        *share* is the share of the stream's bytes that this hop carries.
        """
        return min(self.fair.least(min(1.0, efficiency)), _in_series(self.hop, self.stages, efficiency) / share, flow_cap / share)


class Room(NamedTuple):
    """The lowest bandwidth (bytes/s) among the links to which the transport's efficiency applies (`is_reached`), and among the others."""

    reached: float
    others: float

    def least(self, efficiency: float) -> float:
        """Return the lowest bandwidth (bytes/s) at this *efficiency* of the transport."""
        return min(self.reached * efficiency, self.others)


def lane(graph: NodeGraph, crossings: Mapping[str, float], hop: Hop) -> Lane:
    """Return the bandwidth that one stream gets on *hop*, given the number of streams on each link (*crossings*)."""
    stages, links = _stages(graph, hop), graph.links
    room = dict.fromkeys(hop.wires, _in_series(hop, stages, 1.0)) if hop.route.copies else {}
    fair = {link: min(links[link].capacity, room.get(link, math.inf)) / crossings[link] for link in hop.links}
    most = min(1.0, hop.efficiency(math.inf))
    _, narrowest = min([(rate * most if is_reached(hop, link) else rate, link) for link, rate in fair.items()])
    return Lane(hop, narrowest, _room(hop, fair), stages)


def is_reached(hop: Hop, link: str) -> bool:
    """Return whether the transport's efficiency applies to *link*: between nodes, only to the wire, because PCIe carries no headers."""
    return not hop.wires or link in hop.wires


def staged_bandwidth(graph: NodeGraph, hop: Hop, efficiency: float = 1.0) -> float:
    """Return the bandwidth (bytes/s) of *hop* without contention, which is also the limit of a NIC that is fed by copies."""
    return _in_series(hop, _stages(graph, hop), efficiency)


def _stages(graph: NodeGraph, hop: Hop) -> tuple[Room, ...]:
    links = graph.links
    return tuple([_room(hop, {link: links[link].capacity for link in stage}) for stage in hop.route.stages])


def _room(hop: Hop, rates: Mapping[str, float]) -> Room:
    if not hop.wires:
        return Room(min(rates.values(), default=math.inf), math.inf)
    reached = [rate for link, rate in rates.items() if is_reached(hop, link)]
    others = [rate for link, rate in rates.items() if not is_reached(hop, link)]
    return Room(min(reached, default=math.inf), min(others, default=math.inf))


def _in_series(hop: Hop, stages: Sequence[Room], efficiency: float) -> float:
    """Return the bandwidth (bytes/s) of sequential copies, with the overlap that the transport specifies."""
    return hop.overlap / sum(1 / stage.least(efficiency) for stage in stages)
