"""How long does a ring all-reduce take when nothing else runs? Launch + the recurrence over hops at their fair shares.

Chunks have S/(nC) bytes. A hop carries them at the least of

    min(1, efficiency(chunk)) * capacity / crossings of each of its links, crossings counted over all C channels; of hops between nodes
        the efficiency is that of the wire: PCIe does not carry a network's headers,
    efficiency(chunk) / sum over its stages of 1 / narrowest link (device to host and host to device follow one another),
    where a NIC reads and writes host memory only, that with the copies' own overlap, as if it were the capacity of the NIC,
    flows * flow_cap * efficiency(chunk) instead of the efficiencies above, where the transport has a flow cap,

and the time is launch + T(b, l) of `sim.training.collectives.price.recurrence` with b = chunk / rate. The executors play the same hops
beside other traffic; this is their limit when there is none, and what measured tables of single collectives are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.cluster.topology import NodeGraph
from sim.training.collectives.price.recurrence import RingTime, ring_steps, ring_time
from sim.training.collectives.routes.channels import Channel, Channels, Hop


class RingEstimate(NamedTuple):
    """Seconds of one all-reduce, the part that is launch and latency, and the link that bounds the rest."""

    time: float
    latency: float
    bottleneck: str


def all_reduce_time(graph: NodeGraph, rings: Channels, nbytes: float) -> RingEstimate:
    """Return how long *rings* take to all-reduce *nbytes* when alone; nodes are all like *graph*'s."""
    ranks = len(rings.channels[0].gpus) * rings.nodes
    if ranks == 1:
        return RingEstimate(0.0, 0.0, "")
    crossings = rings.crossings
    chunk = nbytes / ranks / len(rings.channels)
    different = {tuple(hop.links for hop in channel.hops): channel for channel in rings.channels}
    alone = [_channel_time(graph, crossings, channel, chunk, ring_steps("all_reduce", ranks)) for channel in different.values()]
    slowest, bottleneck = max(alone, key=lambda estimate: estimate[0].total)
    return RingEstimate(rings.launch + slowest.total, rings.launch + slowest.latency, bottleneck)


class Lane(NamedTuple):
    """What *hop* gives one stream beside the others, whatever the size of its chunks."""

    hop: Hop
    link: str
    """The link with least to give."""
    fair: Room
    """What its links give beside other streams."""
    stages: tuple[Room, ...]
    """What those of each stage give with nothing beside."""

    @property
    def alone(self) -> float:
        """Return what the route carries with its links to itself (bytes/s)."""
        return _in_series(self.hop, self.stages, 1.0)

    def rate(self, efficiency: float, flow_cap: float, share: float = 1.0) -> float:
        """Return the rate (bytes/s) of one stream, given what its transport reaches with chunks of its size; *share* as in `hop_rate`."""
        return min(self.fair.least(min(1.0, efficiency)), _in_series(self.hop, self.stages, efficiency) / share, flow_cap / share)


class Room(NamedTuple):
    """The least that links give (bytes/s): those of which a transport reaches a share (`is_reached`), and the others."""

    reached: float
    others: float

    def least(self, efficiency: float) -> float:
        """Return what is left where the transport reaches *efficiency* of its own."""
        return min(self.reached * efficiency, self.others)


def lane(graph: NodeGraph, crossings: Mapping[str, float], hop: Hop) -> Lane:
    """Return what *hop* gives one stream where links are crossed by so many (*crossings*)."""
    stages = _stages(graph, hop)
    room = dict.fromkeys(hop.wires, _in_series(hop, stages, 1.0)) if hop.route.copies else {}
    fair = {link: min(graph.links[link].capacity, room.get(link, math.inf)) / crossings[link] for link in hop.links}
    most = min(1.0, hop.efficiency(math.inf))
    _, narrowest = min((rate * most if is_reached(hop, link) else rate, link) for link, rate in fair.items())
    return Lane(hop, narrowest, _room(hop, fair), stages)


def is_reached(hop: Hop, link: str) -> bool:
    """Tell whether *link* is one of which the transport of *hop* reaches a share: between nodes the wire, whose headers PCIe never sees."""
    return not hop.wires or link in hop.wires


def staged(graph: NodeGraph, hop: Hop, efficiency: float = 1.0) -> float:
    """Return what *hop* carries with its links to itself (bytes/s); a NIC that is fed by copies carries no more in all."""
    return _in_series(hop, _stages(graph, hop), efficiency)


def _stages(graph: NodeGraph, hop: Hop) -> tuple[Room, ...]:
    return tuple(_room(hop, {link: graph.links[link].capacity for link in stage}) for stage in hop.route.stages)


def _room(hop: Hop, rates: Mapping[str, float]) -> Room:
    reached = [rate for link, rate in rates.items() if is_reached(hop, link)]
    others = [rate for link, rate in rates.items() if not is_reached(hop, link)]
    return Room(min(reached, default=math.inf), min(others, default=math.inf))


def _in_series(hop: Hop, stages: Sequence[Room], efficiency: float) -> float:
    """Return what copies one after another carry, which overlap as far as the transport says."""
    return hop.overlap / sum(1 / stage.least(efficiency) for stage in stages)


def hop_rate(graph: NodeGraph, crossings: Mapping[str, float], hop: Hop, chunk: float, share: float = 1.0) -> tuple[float, str]:
    """Return the rate (bytes/s) of one stream on *hop* beside the others, and the link that bounds it.

    A *share* below 1 is a stream of which this hop carries only so many bytes.
    """
    its_lane = lane(graph, crossings, hop)
    return its_lane.rate(hop.efficiency(chunk), hop.flow_cap(chunk), share), its_lane.link


def _channel_time(graph: NodeGraph, crossings: Mapping[str, int], channel: Channel, chunk: float, steps: int) -> tuple[RingTime, str]:
    rates = [min(hop_rate(graph, crossings, hop, chunk) for hop in edge) for edge in channel.edges]
    latency = [max(hop.transport.hop_latency for hop in edge) for edge in channel.edges]
    return ring_time([chunk / rate for rate, _ in rates], latency, steps), min(rates)[1]
