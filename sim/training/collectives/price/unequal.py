"""What does an all-to-all with unequal shares cost, as with routed tokens? The bytes of every pair load every link they cross.

Rank p sends w(p, q) times the mean block of S/n bytes to rank q. All sends flow in parallel, as in `sends.pairwise`, which is the case of
equal shares. The most loaded link bounds the time, and so does the path of the largest send without contention. On ports of B bytes/s,
with hop latency l and k partners at once:

    T = S/(nB) max(maximum that a rank sends, maximum that a rank receives) + ceil(partners / k) l

Limits: protocol, channels and efficiency are those of the mean block; traffic between nodes is spread evenly over leaf switches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sim.cluster.fabric import ALL
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.point_to_point import partners_at_once
from sim.training.collectives.price.sends import by_thread_blocks
from sim.training.collectives.price.spans import Priced, limited_by_switches
from sim.training.collectives.price.traffic import Edge, SlotPart, Traffic, latency_of, outward

NodeGpu = tuple[int, int]
"""The index of a part of the layout, and a GPU of one of its nodes."""
Weight = Callable[[NodeGpu, NodeGpu], float]
"""Returns the bytes from one rank to another, divided by the mean over all pairs; equal for every node of a part."""


class _Flows(NamedTuple):
    """Traffic in units of the mean block: inside one node of each part, and between each of its GPUs and other nodes (*out*, *into*)."""

    inside: Mapping[tuple[int, int, int], float]
    out: Mapping[NodeGpu, float]
    into: Mapping[NodeGpu, float]
    largest: float
    """The largest traffic of one pair between nodes."""
    partners: int
    """Maximum number of partners to which a rank sends, or from which it receives."""
    handled: float
    """Maximum that a rank sends or receives, including its block for itself."""


def price_unequal(layout: JobLayout, protocol: str, nbytes: float, weight: Weight) -> Priced:
    """Return the price of an all-to-all in which each rank sends *nbytes* on average, distributed over pairs according to *weight*."""
    block, flows = nbytes / layout.ranks, _flows(layout, weight)
    inside = [(layout.local_edge(layout.parts[part], src, dst), share) for (part, src, dst), share in flows.inside.items()]
    between: list[tuple[Edge, float]] = []
    leaving = []
    for place in sorted({*flows.out, *flows.into}):
        edge, out, into = _both_ways(layout, *place), flows.out.get(place, 0.0), flows.into.get(place, 0.0)
        leaving.append(outward(edge, ALL, max(out, into)))
        between += [(Edge((hop,), edge.fabric), share) for hop, share in zip(edge.hops, (out, into), strict=True) if share]
    crossings = tuple((*hop, share) for edge, share in [*inside, *between] for hop in edge.hops)
    total = sum(layout.parts[part].slot.count * share for (part, _), share in flows.out.items())
    traffic = Traffic(crossings, total, layout.fabric, tuple(leaving), layout.job_fabric)
    carried = [*inside, *((edge, flows.largest) for edge, _ in between)]  # the largest send on each, without contention
    edges = [edge for edge, _ in carried]
    alone = limited_by_switches(min(traffic.pace(edge, block, protocol, share) for edge, share in carried), traffic, block, protocol)
    slowest = min([alone, *(alone._replace(rate=edge.cap(block, protocol) / share) for edge, share in carried)], key=lambda pace: pace.rate)
    most = max(share for _, share in carried)
    slowest = by_thread_blocks(slowest, layout, protocol, block, flows.handled, most)
    latency = math.ceil(flows.partners / partners_at_once(layout)) * max(edge.latency(protocol) for edge in edges)
    return Priced(block, latency + block / slowest.rate, block, slowest, traffic, latency_of(edges))


def of_matrix(layout: JobLayout, shares: Sequence[Sequence[float]]) -> Weight:
    """Return the weights of a matrix of *shares*, in which row p belongs to rank p; every node of *layout* must be a separate part."""
    number = {(part, gpu): place for place, (part, gpu) in enumerate(_in_order(layout))}
    mean = sum(map(sum, shares)) / len(shares) ** 2
    return lambda source, target: shares[number[source]][number[target]] / mean


def one_receives_most(layout: JobLayout, place: NodeGpu, load: float) -> Weight:
    """Return the weights if the rank at *place* receives *load* times the mean, and all others receive equal shares of the rest."""
    rest = (layout.ranks - load) / (layout.ranks - 1)
    return lambda source, target: load if target == place else rest


def _in_order(layout: JobLayout) -> Iterator[NodeGpu]:
    """Yield the part and GPU of every rank in order: node by node."""
    numbers = {id(part): number for number, part in enumerate(layout.parts)}
    yield from ((numbers[id(part)], gpu) for part in layout.every_node for gpu in part.gpus)


def _flows(layout: JobLayout, weight: Weight) -> _Flows:
    inside: dict[tuple[int, int, int], float] = {}
    out: dict[NodeGpu, float] = defaultdict(float)
    into: dict[NodeGpu, float] = defaultdict(float)
    sent, received = defaultdict[NodeGpu, float](float), defaultdict[NodeGpu, float](float)
    sends, receives, largest = defaultdict[NodeGpu, int](int), defaultdict[NodeGpu, int](int), 0.0
    places = [(number, gpu) for number, part in enumerate(layout.parts) for gpu in part.gpus]
    for source in places:
        for target in places:
            share = weight(source, target)
            if share <= 0:
                continue
            same = source[0] == target[0]
            sent[source] += share * layout.parts[target[0]].slot.count
            received[target] += share * layout.parts[source[0]].slot.count
            if same and source != target:
                inside[source[0], source[1], target[1]] = share
            there = layout.parts[target[0]].slot.count - same
            here = layout.parts[source[0]].slot.count - same
            sends[source] += there + (same and source != target)
            receives[target] += here + (same and source != target)
            if there and here:
                out[source] += there * share
                into[target] += here * share
                largest = max(largest, share)
    return _Flows(
        inside, out, into, largest, max((*sends.values(), *receives.values()), default=0), max(*sent.values(), *received.values())
    )


def _both_ways(layout: JobLayout, number: int, gpu: int) -> Edge:
    """Return an edge from the hop out of one GPU to other nodes and the hop from them into it."""
    part = layout.parts[number]
    other = _peer_part(layout, number)
    leaving, arriving = layout.nic_edge(part, other, gpu, other.gpus[0]), layout.nic_edge(other, part, other.gpus[0], gpu)
    return Edge((leaving.hops[0], arriving.hops[1]), leaving.fabric, leaving.switches)


def _peer_part(layout: JobLayout, number: int) -> SlotPart:
    """Return the part of another node to which a node of part *number* sends."""
    return layout.parts[number] if layout.parts[number].slot.count > 1 else layout.parts[number - 1]
