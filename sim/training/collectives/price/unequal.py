"""What does an all-to-all cost where ranks have unequal shares, as routed tokens do? Every pair's bytes, on every link they cross.

Rank p sends rank q w(p, q) times the mean block of S/n bytes. All sends flow side by side, as in `sends.pairwise`, which is the case of
equal shares; the link that carries most bounds them, and so does the way of the largest send by itself. On ports of B bytes/s, with hop
latency l and k partners at once:

    T = S/(nB) max(most that one rank sends, most that one receives) + ceil(partners / k) l

Limits: protocol, channels and efficiency are those of the mean block; what leaves a node is spread over leaf switches as if evenly.
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
from sim.training.collectives.price.spans import Priced, held
from sim.training.collectives.price.traffic import Edge, SlotPart, Traffic, latency_of, outward

NodeGpu = tuple[int, int]
"""A part of the layout, by number, and a GPU of one of its nodes."""
Weight = Callable[[NodeGpu, NodeGpu], float]
"""Bytes from one rank to another over the mean of all pairs; the same for every node of a part."""


class _Flows(NamedTuple):
    """Mean blocks that travel: inside one node of each part, and out of and into each of its GPUs from other nodes."""

    inside: Mapping[tuple[int, int, int], float]
    out: Mapping[NodeGpu, float]
    into: Mapping[NodeGpu, float]
    largest: float
    """From node to node, of one pair."""
    partners: int
    """Most that one rank sends to, or receives from."""
    handled: float
    """Most that one rank sends, or receives, its own included."""


def unequal(layout: JobLayout, protocol: str, nbytes: float, weight: Weight) -> Priced:
    """Return an exchange in which each rank hands out *nbytes* on average, those of each pair as *weight* says."""
    block, flows = nbytes / layout.ranks, _flows(layout, weight)
    inside = [(layout.inside(layout.parts[part], src, dst), share) for (part, src, dst), share in flows.inside.items()]
    between: list[tuple[Edge, float]] = []
    leaving = []
    for place in sorted({*flows.out, *flows.into}):
        edge, out, into = _both_ways(layout, *place), flows.out.get(place, 0.0), flows.into.get(place, 0.0)
        leaving.append(outward(edge, ALL, max(out, into)))
        between += [(Edge((hop,), edge.fabric), share) for hop, share in zip(edge.hops, (out, into), strict=True) if share]
    crossings = tuple((*hop, share) for edge, share in [*inside, *between] for hop in edge.hops)
    in_all = sum(layout.parts[part].slot.count * share for (part, _), share in flows.out.items())
    traffic = Traffic(crossings, in_all, layout.fabric, tuple(leaving), layout.crossed)
    carried = [*inside, *((edge, flows.largest) for edge, _ in between)]  # and the largest send of each, by itself
    edges = [edge for edge, _ in carried]
    alone = held(min(traffic.pace(edge, block, protocol, share) for edge, share in carried), traffic, block, protocol)
    slowest = min([alone, *(alone._replace(rate=edge.cap(block, protocol) / share) for edge, share in carried)], key=lambda pace: pace.rate)
    most = max(share for _, share in carried)
    slowest = by_thread_blocks(slowest, layout, protocol, block, flows.handled, most)
    latency = math.ceil(flows.partners / partners_at_once(layout)) * max(edge.latency(protocol) for edge in edges)
    return Priced(block, latency + block / slowest.rate, block, slowest, traffic, latency_of(edges))


def of_matrix(layout: JobLayout, shares: Sequence[Sequence[float]]) -> Weight:
    """Return the weights of a matrix of *shares*, row p those of rank p; every node of *layout* is a part by itself."""
    number = {(part, gpu): place for place, (part, gpu) in enumerate(_in_order(layout))}
    mean = sum(map(sum, shares)) / len(shares) ** 2
    return lambda source, target: shares[number[source]][number[target]] / mean


def one_receives_most(layout: JobLayout, place: NodeGpu, load: float) -> Weight:
    """Return the weights where the rank at *place* receives *load* times the mean, and all others equally much."""
    rest = (layout.ranks - load) / (layout.ranks - 1)
    return lambda source, target: load if target == place else rest


def _in_order(layout: JobLayout) -> Iterator[NodeGpu]:
    """Yield the places of all ranks as they are numbered: node by node."""
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
    """Return the way from one GPU's node to others with the way back in to it."""
    part = layout.parts[number]
    other = _other(layout, number)
    leaving, arriving = layout.across(part, other, gpu, other.gpus[0]), layout.across(other, part, other.gpus[0], gpu)
    return Edge((leaving.hops[0], arriving.hops[1]), leaving.fabric, leaving.switches)


def _other(layout: JobLayout, number: int) -> SlotPart:
    """Return the part of a node that one of part *number* sends to."""
    return layout.parts[number] if layout.parts[number].slot.count > 1 else layout.parts[number - 1]
