"""What do sends between pairs of ranks cost? Exchanges of all with all, of each with the next, and of all with one root.

All blocks of one operation flow side by side and share the links they cross. A rank pays the latency of one hop for every round of as
many partners as NCCL serves at once (`point_to_point`). What a root sends or receives crosses its own links and its own NIC; the
load counts it on every node like the root's, so that other traffic there is slowed rather too much than too little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.cluster.fabric import ALL, ONE, RING
from sim.events import Cause
from sim.spec.transport import Transport
from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.point_to_point import partners_at_once, send_channels, send_pool
from sim.training.collectives.price.spans import EdgeSpan, Priced, held, traffic_of
from sim.training.collectives.price.traffic import Edge, EdgePace, Traffic, latency_of, outward


def pairwise(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return an exchange of *nbytes* per rank: a block to everyone, all ranks at once."""
    block, local = nbytes / layout.ranks, layout.most_local
    spans, partners = [], layout.ranks - local
    inside = [edge for part in layout.parts for edge in layout.pairs(part)]
    if inside:
        spans.append(EdgeSpan(inside, 1.0, 1))
    if partners:
        across = [layout.across(*pair, gpu, pair[1].gpus[0]) for pair in layout.neighbours for gpu in pair[0].gpus]
        arriving = [layout.across(*pair, pair[0].gpus[0], gpu) for pair in layout.neighbours for gpu in pair[1].gpus]
        spans.append(EdgeSpan([_halves(out, into) for out, into in zip(across, arriving, strict=False)], float(partners), 1, ALL))
    traffic = traffic_of(layout, spans, float(partners * layout.ranks))
    edges = [edge for span in spans for edge in span.edges]
    return _priced(layout, protocol, block, edges, traffic, layout.ranks - 1, layout.ranks)  # a rank's block for itself is copied as well


def send_recv(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return sends of *nbytes* from each rank to the next, as nccl-tests numbers them: through the GPUs of a node, then the nodes."""
    inside = [layout.inside(part, *pair) for part in layout.parts for pair in zip(part.gpus, part.gpus[1:], strict=False)]
    if layout.nodes == 1:
        (part,) = layout.parts
        inside.append(layout.inside(part, part.gpus[-1], part.gpus[0]))
    across = [layout.across(part, onward, part.gpus[-1], onward.gpus[0]) for part, onward in layout.neighbours]
    spans = [span for span in (EdgeSpan(inside, 1.0, 1), EdgeSpan(across, 1.0, 1, RING)) if span.edges]
    traffic = traffic_of(layout, spans, float(layout.nodes) if across else 0.0)
    return _priced(layout, protocol, nbytes, [*inside, *across], traffic, 1)


def gather(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return sends of a block of *nbytes* / n from every rank to the first."""
    return _with_root(layout, protocol, nbytes / layout.ranks, to_root=True)


def scatter(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return sends of a block of *nbytes* / n from the first rank to every other."""
    return _with_root(layout, protocol, nbytes / layout.ranks, to_root=False)


def _with_root(layout: JobLayout, protocol: str, block: float, to_root: bool) -> Priced:
    home = layout.every_node[0]
    root = home.gpus[0]
    ways = [(gpu, root) if to_root else (root, gpu) for gpu in home.gpus[1:]]
    inside = [layout.inside(home, *way) for way in ways]
    away = layout.ranks - len(home.gpus)
    others = [part for part in layout.parts if part is not home or part.slot.count > 1]
    between = [(part, gpu) for part in others for gpu in part.gpus]
    across = [layout.across(part, home, gpu, root) if to_root else layout.across(home, part, root, gpu) for part, gpu in between]
    streams = [(part, hop, 1.0) for edge in inside for part, hop in edge.hops]
    for edge in across:
        far, near = edge.hops if to_root else edge.hops[::-1]
        streams += [(*far, 1.0), (*near, away / len(across))]
    leaving = [outward(edge, ONE, 1.0 if to_root else 1.0 / len(others)) for edge in across]  # as many as a node sends or takes
    traffic = Traffic(tuple(streams), float(away), layout.fabric, tuple(leaving), layout.crossed)
    return _priced(layout, protocol, block, [*inside, *across], traffic, layout.ranks - 1)


def _priced(
    layout: JobLayout, protocol: str, nbytes: float, edges: Sequence[Edge], traffic: Traffic, partners: int, messages: int = 0
) -> Priced:
    """Return sends of *nbytes* along each of *edges* to so many *partners* of each rank, which handles *messages* (by default, as many)."""
    rounds = math.ceil(partners / partners_at_once(layout))
    links = held(min(traffic.pace(edge, nbytes, protocol) for edge in edges), traffic, nbytes, protocol)
    slowest = by_thread_blocks(links, layout, protocol, nbytes, messages or partners)
    latency = rounds * max(edge.latency(protocol) for edge in edges)
    return Priced(nbytes, latency + nbytes / slowest.rate, nbytes, slowest, traffic, latency_of(edges))


def by_thread_blocks(links: EdgePace, layout: JobLayout, protocol: str, nbytes: float, messages: float, most: float = 1.0) -> EdgePace:
    """Return the pace of one of a rank's *messages* of *nbytes*, of which *links* carry so much, with what thread blocks move.

    Of messages of unequal size *nbytes* is the mean, *most* the largest over it, and *messages* what a rank handles in all over it.
    """
    channels, paces = send_channels(layout, nbytes), [links]
    for transport in layout.transports:
        limit = f"the thread block of each channel ({transport.name})"
        caps = [transport.channel_cap, transport.ll_cap if protocol == "LL" else None]
        paces += [EdgePace(cap * channels / most, Cause.INTERCONNECT, limit) for cap in caps if cap is not None]
        if (cap := _of_a_block(transport, layout.nodes)) is not None:
            blocks = cap * min(channels / most, send_pool(layout) / messages)
            together = _uneven(links.rate, blocks) if _apart(layout, channels, messages) else min(links.rate, blocks)
            paces.append(EdgePace(together, *((Cause.INTERCONNECT, limit) if blocks < links.rate else links[1:])))
    return min(paces)


def _of_a_block(transport: Transport, nodes: int) -> float | None:
    """Return what a thread block moves of a message; between nodes it copies inside its GPU, which is no slower than to another.

    So do the warps of a reduction in NVSwitch that copy sums back; where no class tells of them, those of a ring stand for both.
    """
    if nodes == 1 or transport.send_cap is None:
        return transport.send_cap
    if transport.nvls_cap is not None:
        return max(transport.send_cap, transport.nvls_cap * nccl.P2P_THREADS / 2 / nccl.NVLS_GATHER_THREADS)
    if transport.block_copy is not None:
        return max(transport.send_cap, transport.block_copy * nccl.P2P_THREADS / 2 / nccl.THREADS["Simple"])
    return transport.send_cap


def _apart(layout: JobLayout, channels: int, messages: float) -> bool:
    """Tell whether a rank's messages have channels of their own; otherwise every block moves a part of each."""
    return 1 < messages <= send_pool(layout) / channels


def _uneven(rate: float, other: float) -> float:
    """Return what two limits leave together where blocks are unlike: less than either, by the mean that two to eight GPUs show."""
    return 1.0 / math.hypot(1.0 / rate, 1.0 / other)


def _halves(out: Edge, into: Edge) -> Edge:
    """Return the way out of one GPU's node with the way into another's."""
    return Edge((out.hops[0], into.hops[1]), out.fabric, out.switches)
