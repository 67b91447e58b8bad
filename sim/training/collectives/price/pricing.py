"""What does a collective cost with a given algorithm and protocol? Its streams, and their time without contention.

Every algorithm specifies which streams it sends over which hops (`traffic`) and how long its schedule takes. Rings use the recurrence in
`recurrence`. Pipelines take the latency of the path up and down, plus the time of the first piece on it, plus the rest at the pace of the
slowest hop. Sequential phases (hierarchical, halving-doubling) add up. On uniform networks, these are the closed forms of the schedules.
Loads are fluid: the streams of a collective share links fairly with all other traffic throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from sim.cluster.fabric import RING, SWITCH, TREE
from sim.cluster.topology import Route
from sim.events import Cause
from sim.spec.extensions import COLLECTIVES, names
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.price import in_turn, sends
from sim.training.collectives.price.layout import GROUPS, JobLayout, depth
from sim.training.collectives.price.own import price_own
from sim.training.collectives.price.recurrence import ROUNDS, ring_steps, ring_time
from sim.training.collectives.price.rendezvous import rendezvous
from sim.training.collectives.price.spans import EdgeSpan, Priced, heads, limited_by_switches, traffic_of
from sim.training.collectives.price.traffic import Cost, Edge, EdgePace, SlotPart, Traffic, latency_of, outward
from sim.training.collectives.routes.channels import NETWORK, Hop

_LARGEST_PIECE = 512 * 1024.0
# NVIDIA/nccl src/enqueue.cc: one step of a Simple buffer (4 MiB in 8 steps), of which broadcasts and reductions pass on one at a time
_TREE_CUTS = ((8, 128 * 1024.0), (4, 64 * 1024.0), (1, 32 * 1024.0))
# same file: a tree halves the piece down to 128 KiB until there are 8 pieces per hop, to 64 KiB for 4, to 32 KiB for 1
_LARGEST_NVLS_PIECE = 128 * 1024.0
_NVLS_CUTS = ((64, 64 * 1024.0), (8, 32 * 1024.0), (2, 16 * 1024.0))
_NVLS_TREE_CUTS = ((16, 128 * 1024.0), (4, 64 * 1024.0), (1, 32 * 1024.0))
# same file: bytes per shard of each channel, smaller if there would be fewer rounds than that; at most 64 KiB from four nodes on


def cost(layout: JobLayout, op: str, algorithm: str, protocol: str, nbytes: float, channels: int) -> Cost:
    """Return the cost of *op* on *nbytes* with *channels* channels. Raise SpecError if *algorithm* is unknown or cannot run on *layout*."""
    if algorithm in PRICES:
        priced = PRICES[algorithm](layout, op, protocol, nbytes)
    elif algorithm in names(COLLECTIVES):
        priced = price_own(layout, algorithm, protocol, nbytes)
    else:
        raise SpecError(f"'{algorithm}' is not an algorithm; write one of {', '.join(PRICES)}")
    if algorithm == "Ring":
        priced = _by_thread_blocks(priced, layout, op, protocol, nbytes, channels)
    if asking := rendezvous(layout, op, algorithm, protocol, nbytes, channels):
        priced = priced._replace(time=priced.time + asking)
    return cost_of(layout, priced, algorithm, protocol, channels)


def cost_of(layout: JobLayout, priced: Priced, algorithm: str, protocol: str, channels: int) -> Cost:
    """Return the cost of a *priced* collective as one fluid activity."""
    launch = max(part.channels.launch for part in layout.parts)
    load = priced.traffic.load(priced.chunk, protocol)
    cap = priced.volume / priced.time
    latency_share = max(0.0, 1.0 - priced.volume / priced.slowest.rate / priced.time)
    blamed = (priced.slowest.cause, priced.slowest.limit, priced.latency_of)
    return Cost(algorithm, protocol, channels, launch, priced.volume, priced.chunk, cap, latency_share, load, *blamed)


def ring_piece(volume: float, protocol: str = "Simple") -> float:
    """Return the piece size (bytes) of a pipeline along a ring, which does not depend on its number of hops.

    LL and LL128 carry their flags with the data, so a rank passes on data as soon as its threads have read them.
    """
    if protocol != "Simple":
        return min(volume, float(nccl.THREADS[protocol] * nccl.BYTES_PER_THREAD[protocol]))
    return min(volume, _LARGEST_PIECE)


def tree_piece(volume: float, hops: int, protocol: str = "Simple") -> float:
    """Return the piece size (bytes) of a tree with *hops* hops from root to leaf, small enough that its pipeline fills."""
    if protocol != "Simple":
        return ring_piece(volume, protocol)
    piece = _LARGEST_PIECE
    for per_hop, smallest in _TREE_CUTS:
        while piece > smallest and volume / piece < per_hop * hops:
            piece /= 2
    return min(piece, volume)


def nvls_channels(layout: JobLayout) -> int:
    """Return the number of channels of an NVSwitch reduction, which is independent of other channels."""
    return nccl.NVLS_CHANNELS[100 if _is_blackwell(layout) else 90][layout.nodes > 1]


def _is_blackwell(layout: JobLayout) -> bool:
    return float(layout.parts[0].slot.node.gpu.compute_capability) >= 10


def nvls_shards(layout: JobLayout) -> int:
    """Return the number of shards of an NVSwitch reduction: one for each of its channels and head GPUs."""
    return nvls_channels(layout) * len(layout.nvls_heads)


def nvls_piece(nbytes: float, shards: int, nodes: int) -> float:
    """Return the bytes, over all *shards*, that an NVSwitch reduction passes on at once."""
    chunk = nvls_largest(nodes)
    for rounds, smaller in _NVLS_CUTS if nodes == 1 else _NVLS_TREE_CUTS:
        if nbytes < rounds * shards * chunk:
            chunk = min(chunk, smaller)
    return min(nbytes, shards * chunk)


def nvls_largest(nodes: int) -> float:
    """Return the maximum bytes of one shard that an NVSwitch reduction passes on at once."""
    return _LARGEST_NVLS_PIECE if nodes < 4 else _NVLS_TREE_CUTS[1][1]


# --- ring ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=GROUPS)
def _ring_traffic(layout: JobLayout) -> Traffic:
    streams = [(part, hop, 1.0) for part in layout.parts for channel in part.channels.channels for hop in channel.hops]
    if layout.nodes == 1:
        return Traffic(tuple(streams), 0.0, layout.fabric)
    leaving = [
        outward(edge, RING, 1.0)._replace(node=node)
        for ring in layout.rings
        for node, edge in enumerate(edge for edge in ring if edge.fabric)
    ]
    return Traffic(tuple(streams), float(layout.nodes * layout.channels), layout.fabric, tuple(leaving), layout.job_fabric)


def _ring(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    if op not in ROUNDS:
        return _ring_pipeline(layout, protocol, nbytes)
    traffic, chunk = _ring_traffic(layout), nbytes / layout.channels / layout.ranks
    steps = ring_steps(op, layout.ranks)
    rings = [traffic.edge_rates(ring, chunk, protocol) for ring in _distinct_rings(layout)]
    busy = [tuple(chunk / rate for rate in ring.rates) for ring in rings]
    hops = list(zip(busy, _ring_latencies(layout, protocol), strict=True))
    slowest = [ring.slowest for ring in rings]
    if (across := traffic.switch_pace(chunk, protocol)) is not None:
        hops = [
            _slowed_by_switches(layout, ring, *hops_of_ring, chunk / across.rate)
            for ring, hops_of_ring in zip(_distinct_rings(layout), hops, strict=True)
        ]
        slowest.append(across)
    times = [ring_time(*ring, steps) for ring in set(hops)]  # many rings are equal
    return Priced(steps * chunk, max(times).total, chunk, min(slowest), traffic, latency_of(layout.rings[0]))


def _by_thread_blocks(priced: Priced, layout: JobLayout, op: str, protocol: str, nbytes: float, channels: int) -> Priced:
    """Return *priced*, the price of a ring, limited by the thread blocks of *channels* channels.

    Under Simple, blocks start late, and send nothing while they receive the last chunk. LL and LL128 pass on so little at once that the
    hop latency includes both effects. Under LL, blocks may be slower than the links.
    """
    blocks = _blocks(layout)
    if op not in ROUNDS:
        return priced._replace(time=priced.time + blocks.start) if protocol == "Simple" else priced
    chunk, steps = nbytes / layout.ranks / channels, ring_steps(op, layout.ranks)
    if blocks.cap is not None:
        # NVIDIA/nccl src/device/all_reduce.h: a block sends the first chunk, receives and sends the others at once, and receives the last
        time = (steps + 1) * chunk / blocks.cap.rate
        if time > priced.time:
            priced = priced._replace(time=time, slowest=blocks.cap._replace(rate=priced.volume / time))
    if protocol == "Simple":
        return priced._replace(time=priced.time + blocks.start + _last_chunk(layout, nbytes, channels))
    if protocol == "LL" and blocks.ll:
        quickest = min(min(ring) for ring in _ring_latencies(layout, protocol))
        return priced._replace(time=max(priced.time, steps * (chunk / blocks.ll + quickest)))
    return priced


def _last_chunk(layout: JobLayout, nbytes: float, channels: int) -> float:
    """Return the time (s) in which the blocks of a ring receive their last chunks and send nothing.

    With one GPU per node, a block receives from the network what it sends on, so that sockets wait while it reads from host memory. With
    several, buffers keep the network busy meanwhile. Not counted over other networks without GPUDirect, of which no table has one GPU per
    node.
    """
    of_rank = nbytes / layout.ranks
    if layout.nodes == layout.ranks:
        return of_rank / layout.channels * _read_time(layout)
    copy = _blocks(layout).copy
    return of_rank / channels / copy if copy else 0.0


@lru_cache(maxsize=GROUPS)
def _read_time(layout: JobLayout) -> float:
    """Return the time (s) in which a block reads a byte of one channel that sockets have put into host memory."""
    traffic, slowest = _ring_traffic(layout), 0.0
    for part, hop, _ in traffic.streams:
        if hop.src == NETWORK and hop.staged and hop.transport.flow_cap:
            links, crossings = part.slot.graph.links, traffic.crossings[part.slot.name]
            slowest = max(slowest, *(crossings[link] / links[link].capacity for link in hop.route.stages[-1]))
    return slowest


class _Blocks(NamedTuple):
    """Rate limits (bytes/s) of the thread blocks of a ring's channels; None means no limit other than links."""

    start: float
    """Startup time (s) under Simple."""
    copy: float | None
    ll: float | None
    cap: EdgePace | None


@lru_cache(maxsize=GROUPS)
def _blocks(layout: JobLayout) -> _Blocks:
    """Return the limits of thread blocks, as the minimum over the transport classes on the rings of *layout*."""
    transports = {transport.name: transport for part in layout.parts for transport in part.channels.transports}.values()

    def slowest(name: str) -> float | None:
        return min((rate for transport in transports if (rate := getattr(transport, name)) is not None), default=None)

    caps = [(transport.channel_cap, transport.name) for transport in transports if transport.channel_cap is not None]
    cap = min(caps, default=None)
    pace = cap and EdgePace(cap[0], Cause.INTERCONNECT, f"the thread block of each channel ({cap[1]})")
    return _Blocks(max(transport.simple_start for transport in transports), slowest("block_copy"), slowest("ll_cap"), pace)


_LONGEST = 1024
"""Maximum number of individual hops of a ring; the run time of `ring_time` grows with its square."""


def _slowed_by_switches(
    layout: JobLayout, ring: Sequence[Edge], busy: tuple[float, ...], late: tuple[float, ...], slow: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the occupancy and latency of the hops of *ring*, given that hops between switches take *slow* seconds per chunk.

    If all nodes are equal, *ring* has the hops of one node. They are expanded over the nodes of a leaf if the result is short; otherwise
    all hops between nodes count as slow. The latter matters only for a leaf with more than 128 nodes of eight GPUs and an oversubscription
    of its uplinks greater than its number of nodes; 1 GiB over 320 nodes then took 5% longer.
    """
    between = [edge.fabric is not None for edge in ring]
    if all(slow <= alone for alone, far in zip(busy, between, strict=True) if far):
        return busy, late
    crossing, turns = [bool(edge.switches) for edge in ring], layout.job_fabric.changes_leaf
    of_one = len(layout.parts) == 1 and len(turns) > 0
    if of_one and len(ring) * len(turns) <= _LONGEST:
        crossing = [(leaves and far) or crosses for leaves in turns for far, crosses in zip(between, crossing, strict=True)]
        busy, late = busy * len(turns), late * len(turns)
    elif of_one or not any(crossing):
        crossing = between
    return tuple(max(slow, alone) if crosses else alone for alone, crosses in zip(busy, crossing, strict=True)), late


@lru_cache(maxsize=GROUPS)
def _distinct_rings(layout: JobLayout) -> list[tuple[Edge, ...]]:
    """Return one ring for each set of rings with equal costs."""
    by_hops = {tuple((part.slot.name, hop.links) for edge in ring for part, hop in edge.hops): ring for ring in layout.rings}
    return list(by_hops.values())


@lru_cache(maxsize=GROUPS)
def _ring_latencies(layout: JobLayout, protocol: str) -> list[tuple[float, ...]]:
    """Return the latency of every edge of each different ring."""
    return [tuple(_latency(edge, protocol, layout.nodes) for edge in ring) for ring in _distinct_rings(layout)]


def _latency(edge: Edge, protocol: str, nodes: int) -> float:
    """Return the latency of *edge*. With several nodes, LL hops inside a node are slower by the factor in NCCL 2.10's tuner.

    NCCL 2.30's tuner no longer has the factor (src/graph/tuning.cc), but 2 x 8 A100 and 2 x 8 H20, measured on newer versions, show it.
    """
    slower = nccl.NCCL_2_10.ll_slowdown if protocol == "LL" and nodes > 1 and edge.fabric is None else 1.0
    return slower * edge.latency(protocol)


def _ring_pipeline(layout: JobLayout, protocol: str, nbytes: float) -> Priced:
    """Return the price of a broadcast or reduce: a pipeline of pieces along the ring, except for one unused hop at the root."""
    traffic, volume = _ring_traffic(layout), nbytes / layout.channels
    piece = ring_piece(volume, protocol)
    first, slowest = 0.0, []
    for ring, latencies in zip(_distinct_rings(layout), _ring_latencies(layout, protocol), strict=True):
        paces = traffic.edge_rates(ring, piece, protocol)
        hops = [piece / rate + latency for rate, latency in zip(paces.rates, latencies, strict=True)]
        first = max(first, sum(hops) * layout.ranks / len(ring) - hops[-1])
        slowest.append(paces.slowest)
    pace = limited_by_switches(min(slowest), traffic, piece, protocol)
    return Priced(volume, first + (volume - piece) / pace.rate, piece, pace, traffic, latency_of(layout.rings[0]))


# --- trees and reductions in the network -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _PipelinePath:
    """The path of a pipeline to the root and back: its spans and their traffic. It is independent of the message size."""

    spans: tuple[EdgeSpan, ...]
    traffic: Traffic
    rising: tuple[EdgeSpan, ...]
    """The spans that lead to the root. The first piece shares links only with rising traffic, the last piece only with falling traffic."""
    first: Traffic
    """The traffic of the rising spans."""
    nodes: int


@lru_cache(maxsize=GROUPS)
def _rising_latencies(path: _PipelinePath, protocol: str) -> list[list[float]]:
    """Return the latency of every edge of each rising span."""
    return [[_latency(edge, protocol, path.nodes) for edge in span.edges] for span in path.rising]


@lru_cache(maxsize=GROUPS)
def _path_latency_of(path: _PipelinePath) -> tuple[Cause, str]:
    return latency_of([edge for span in path.spans for edge in list(span.edges[:1]) * span.hops])


def _up_and_down(protocol: str, volume: float, path: _PipelinePath) -> Priced:
    """Return the price of a pipeline along *path* to the root and back, with *volume* bytes per stream and rates for the piece size."""
    piece = tree_piece(volume, sum(span.hops for span in path.spans), protocol)
    first = 0.0
    for span, latencies in zip(path.rising, _rising_latencies(path, protocol), strict=True):
        rates = path.first.edge_rates(span.edges, piece, protocol, span.count).rates
        first += span.hops * max(piece / rate + latency for rate, latency in zip(rates, latencies, strict=True))
    slow = [path.traffic.edge_rates(span.edges, piece, protocol, span.count).slowest for span in path.spans]
    slowest = limited_by_switches(min(slow), path.traffic, piece, protocol)
    time = 2 * first + max(0.0, volume - piece) / slowest.rate
    return Priced(volume, time, piece, slowest, path.traffic, _path_latency_of(path))


def _pipeline_path(
    layout: JobLayout, inside: EdgeSpan | None, rising: EdgeSpan | None, between: float, across: EdgeSpan | None = None, up: float = 1.0
) -> _PipelinePath:
    """Return the path over *inside*, with the part *rising* leading up, and *across* between nodes, with the share *up* leading up."""
    spans = [span for span in (inside, across) if span]
    first = [span for span in (rising, replace(across, count=across.count * up) if across else None) if span]
    rising_traffic = traffic_of(layout, first, between * up)
    return _PipelinePath(tuple(spans), traffic_of(layout, spans, between), tuple(first), rising_traffic, layout.nodes)


def _tree(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of a double binary tree: each of the two trees carries half of each channel, up and down."""
    return _up_and_down(protocol, nbytes / layout.channels / 2, _tree_path(layout))


@lru_cache(maxsize=GROUPS)
def _tree_path(layout: JobLayout) -> _PipelinePath:
    within, between = layout.tree_hops
    nodes = layout.nodes
    across = EdgeSpan(heads(layout, tree=True), float(min(nodes, 4)), between, TREE) if nodes > 1 else None
    return _pipeline_path(layout, *_chains(layout, 2.0, within), 4.0 * (nodes - 1) * layout.channels, across, 0.5)


def _chains(layout: JobLayout, count: float, hops: int) -> tuple[EdgeSpan | None, EdgeSpan | None]:
    """Return the chains below the NICs of all nodes, in both directions and toward the NIC only; None for single GPUs."""
    chains = [layout.chain(part, channel) for part in layout.parts for channel in range(layout.channels)]
    if not any(chains):
        return None, None
    towards = [edge for chain in chains for edge in chain[len(chain) // 2 :]]
    return EdgeSpan([edge for chain in chains for edge in chain], count, hops), EdgeSpan(towards, count, hops)


def _collnet(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of a chain in each node, with the first GPU sending to switches that reduce."""
    return _up_and_down(protocol, nbytes / layout.channels, _collnet_path(layout))


@lru_cache(maxsize=GROUPS)
def _collnet_path(layout: JobLayout) -> _PipelinePath:
    across = EdgeSpan(heads(layout), 1.0, 1, SWITCH)
    return _pipeline_path(layout, *_chains(layout, 1.0, layout.most_local - 1), float(layout.nodes * layout.channels), across)


def _collnet_direct(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of shards that are gathered at every GPU of a node, reduced by the network, and distributed again."""
    return _up_and_down(protocol, nbytes / layout.channels, _collnet_direct_path(layout))


@lru_cache(maxsize=GROUPS)
def _collnet_direct_path(layout: JobLayout) -> _PipelinePath:
    pairs, share = [edge for part in layout.parts for edge in layout.pairs(part)], layout.channels / layout.most_local
    inside, rising = (EdgeSpan(pairs, 2.0 * share, 1), EdgeSpan(pairs, share, 1)) if pairs else (None, None)
    return _pipeline_path(layout, inside, rising, float(layout.nodes * layout.channels), EdgeSpan(heads(layout), 1.0, 1, SWITCH))


# --- reduction in NVSwitch -------------------------------------------------------------------------------------------


def switch_edge(part: SlotPart, src: str, dst: str) -> Edge:
    """Return the edge between a GPU (``gpu0``) and the NVSwitches (``nvswitch``) of a node, with half the latency of a hop between GPUs."""
    both_ways = part.slot.node.over_nvlink
    transport = both_ways.model_copy(update={"hop_latency": both_ways.hop_latency / 2})
    return Edge(((part, Hop(src, dst, Route(((f"{src}>{dst}",),), "NVS", transport))),))


def _switch_edges(part: SlotPart) -> list[Edge]:
    both = [(f"gpu{gpu}", "nvswitch") for gpu in part.gpus] + [("nvswitch", f"gpu{gpu}") for gpu in part.gpus]
    return [switch_edge(part, src, dst) for src, dst in both]


def _nvls(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of a reduction in the NVSwitches of each node, and between nodes in the network; `_nvls_tree` uses trees there."""
    return _in_nvswitch(layout, op, protocol, nbytes, 1.0, 1)


def _nvls_tree(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    return _in_nvswitch(layout, op, protocol, nbytes, min(layout.nodes, 4) / 2, depth(layout.nodes), 0.5)


def _in_nvswitch(layout: JobLayout, op: str, protocol: str, nbytes: float, sent: float, hops: int, met: float = 1.0) -> Priced:
    """Return the price of an NVSwitch reduction.

    *sent* is the number of payloads that leave each node, *hops* the number of hops between nodes in each direction, and *met* the share of
    one direction in the traffic. Blocks copy a piece to where the switch reads it, the switch adds words as they arrive, and blocks copy
    the sum back (NVIDIA/nccl src/device/all_reduce.h). On one node, words are stored as they are loaded; between nodes, a piece is loaded,
    sent and stored. The next piece follows one latency later, when all GPUs have seen it stored. NCCL's share of the bandwidth applies to
    the largest pieces.
    At every hop between nodes, the first piece waits for the pieces of all channels, because the model is fluid. For 16 MiB on 8 nodes of
    H100, this gives 332 us. NCCL's tuner expects 241 us (and 243 us for Tree), so the modeled bandwidth dips at the size from which NCCL
    chooses this algorithm. No measurement shows which is closer.
    """
    heads_of, shards = len(layout.nvls_heads), nvls_shards(layout)
    crossing = (heads_of + 1) / heads_of if op == "all_reduce" else 1.0
    volume = crossing * nbytes
    edges = [edge for part in layout.parts for edge in _switch_edges(part)]
    spans = [EdgeSpan(edges, 1.0, 1)]
    if layout.nodes > 1:
        leaving = heads(layout, channels=layout.nvls_heads)
        spans.append(EdgeSpan(leaving, sent / heads_of / crossing, hops, SWITCH if hops == 1 and sent == 1.0 else TREE))
    piece, largest = crossing * nvls_piece(nbytes, shards, layout.nodes), crossing * shards * nvls_largest(layout.nodes)
    late = edges[0].latency(protocol)
    traffic = traffic_of(layout, spans, layout.nodes * sent / crossing)
    paces = [min(traffic.pace(edge, volume, protocol, span.count) for edge in span.edges) for span in spans]
    slowest, within = limited_by_switches(min(paces), traffic, volume, protocol), paces[0].rate
    between = 2 * hops * spans[1].edges[0].latency(protocol) if layout.nodes > 1 else 0.0
    ways = 1 if layout.nodes == 1 else 2
    first = sum(
        way * span.hops * piece / pace.rate * share for way, span, pace, share in zip((ways, 2), spans, paces, (1.0, met), strict=False)
    )
    if (blocks := _nvls_blocks(layout, crossing)) is not None:
        first += 2 * piece / blocks.rate
        slowest, within = min(slowest, blocks), min(within, blocks.rate)
    each = max(piece / slowest.rate, piece / within + late * (1 - piece / largest))
    time = 4 * late + between + first + max(0.0, volume / piece - 1) * each
    return Priced(volume, time, volume, slowest, traffic, latency_of(edges[:1]))


def _nvls_blocks(layout: JobLayout, crossing: float) -> EdgePace | None:
    """Return the limit of the thread blocks of an NVSwitch reduction, or None; the switch moves *crossing* times the bytes they copy."""
    transport = min((part.slot.node.over_nvlink for part in layout.parts), key=lambda each: each.nvls_cap or math.inf)
    if transport.nvls_cap is None:
        return None
    share = nccl.NVLS_BETWEEN_NODES["blackwell" if _is_blackwell(layout) else "hopper"] if layout.nodes > 1 else 1.0
    rate = nvls_channels(layout) * transport.nvls_cap * share * crossing
    return EdgePace(rate, Cause.INTERCONNECT, f"the thread block of each channel ({transport.name})")


PRICES: Mapping[str, Callable[[JobLayout, str, str, float], Priced]] = {
    "Ring": _ring,
    "Tree": _tree,
    "CollNet": _collnet,
    "CollNetChain": _collnet,
    "CollNetDirect": _collnet_direct,
    "NVLS": _nvls,
    "NVLSTree": _nvls_tree,
    "PAT": in_turn.pat,
    "Hierarchical": in_turn.hierarchical,
    "RackHierarchical": in_turn.rack_hierarchical,
    "HalvingDoubling": in_turn.halving_doubling,
    "Pairwise": sends.pairwise,
    "SendRecv": sends.send_recv,
    "Gather": sends.gather,
    "Scatter": sends.scatter,
}
"""The pricing function of each algorithm: NCCL's by its names, then those of other libraries and of sends."""
