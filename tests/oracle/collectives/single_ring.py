"""How long does a ring all-reduce take on an idle machine? Launch time plus the recurrence over hops at the rates of their lanes.

It is computed on the link graph, without a network that is simulated or ranks that are folded: the limit of the executors without other
traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sim.cluster.topology import NodeGraph
from sim.training.collectives.price.recurrence import RingTime, ring_steps, ring_time
from sim.training.collectives.price.uncontended import lane
from sim.training.collectives.routes.channels import Channel, Channels, Hop


class RingEstimate(NamedTuple):
    """The time (s) of one all-reduce, its part for launch and latency, and the link that bounds the rest."""

    time: float
    latency: float
    bottleneck: str


def all_reduce_time(graph: NodeGraph, rings: Channels, nbytes: float) -> RingEstimate:
    """Return the time of an all-reduce of *nbytes* on *rings* without contention; all nodes equal that of *graph*."""
    ranks = len(rings.channels[0].gpus) * rings.nodes
    if ranks == 1:
        return RingEstimate(0.0, 0.0, "")
    chunk = nbytes / ranks / len(rings.channels)
    distinct = {tuple(hop.links for hop in channel.hops): channel for channel in rings.channels}
    alone = [_channel_time(graph, rings.crossings, channel, chunk, ring_steps("all_reduce", ranks)) for channel in distinct.values()]
    slowest, bottleneck = max(alone, key=lambda estimate: estimate[0].total)
    return RingEstimate(rings.launch + slowest.total, rings.launch + slowest.latency, bottleneck)


def hop_rate(graph: NodeGraph, crossings: Mapping[str, float], hop: Hop, chunk: float) -> tuple[float, str]:
    """Return the rate (bytes/s) of one stream on *hop* next to the others, and the link that bounds it."""
    its_lane = lane(graph, crossings, hop)
    return its_lane.rate(hop.efficiency(chunk), hop.flow_cap(chunk)), its_lane.link


def _channel_time(graph: NodeGraph, crossings: Mapping[str, int], channel: Channel, chunk: float, steps: int) -> tuple[RingTime, str]:
    rates = [min(hop_rate(graph, crossings, hop, chunk) for hop in edge) for edge in channel.edges]
    latency = [max(hop.transport.hop_latency for hop in edge) for edge in channel.edges]
    return ring_time([chunk / rate for rate, _ in rates], latency, steps), min(rates)[1]
