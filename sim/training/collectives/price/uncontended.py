"""How long does a ring all-reduce take when nothing else runs? Launch + the recurrence over hops at their fair shares.

Chunks have S/(nC) bytes. A hop carries them at the least of

    min(1, efficiency(chunk)) * capacity / crossings of each of its links, crossings counted over all C channels,
    efficiency(chunk) / sum over its stages of 1 / narrowest link (device to host and host to device follow one another),
    where a NIC reads and writes host memory only, that with the copies' own overlap, as if it were the capacity of the NIC,
    flows * flow_cap * efficiency(chunk) instead of the efficiencies above, where the transport has a flow cap,

and the time is launch + T(b, l) of `sim.training.collectives.price.recurrence` with b = chunk / rate. The executors play the same hops
beside other traffic; this is their limit when there is none, and what measured tables of single collectives are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    fair: float
    """What it gives: its capacity over the streams that cross it (bytes/s)."""
    alone: float
    """What the route carries with its links to itself (bytes/s)."""

    def rate(self, efficiency: float, flow_cap: float, share: float = 1.0) -> float:
        """Return the rate (bytes/s) of one stream, given what its transport reaches with chunks of its size; *share* as in `hop_rate`."""
        return min(self.fair * min(1.0, efficiency), self.alone * efficiency / share, flow_cap / share)


def lane(graph: NodeGraph, crossings: Mapping[str, float], hop: Hop) -> Lane:
    """Return what *hop* gives one stream where links are crossed by so many (*crossings*)."""
    carried = staged(graph, hop)
    room = dict.fromkeys(hop.wires, carried) if hop.route.copies else {}
    fair, link = min((min(graph.links[link].capacity, room.get(link, math.inf)) / crossings[link], link) for link in hop.links)
    return Lane(hop, link, fair, carried)


def staged(graph: NodeGraph, hop: Hop) -> float:
    """Return what *hop* carries with its links to itself (bytes/s); a NIC that is fed by copies carries no more in all."""
    return graph.alone(hop.route) * hop.overlap


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
