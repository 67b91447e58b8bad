"""What do sends between pairs of ranks cost? All-to-all, sends from each rank to the next, and gather and scatter with a root.

All blocks of one operation flow in parallel and share the links they cross. A rank pays the latency of one hop per round; NCCL serves a
fixed number of partners in each round (`point_to_point`). What a root sends or receives crosses its own links and its own NIC. The load
counts this traffic on every node equal to the root's node, which overestimates rather than underestimates the slowdown of other traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from sim.cluster.fabric import ALL, ONE, RING
from sim.events import Cause
from sim.spec.transport import Transport
from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.price.layout import GROUPS, JobLayout
from sim.training.collectives.price.point_to_point import partners_at_once, send_channels, send_pool
from sim.training.collectives.price.spans import EdgeSpan, Priced, limited_by_switches, traffic_of
from sim.training.collectives.price.traffic import Edge, EdgePace, Traffic, latency_of, outward


@dataclass(frozen=True, eq=False)
class _Paths:
    """The edges along which ranks send, and their traffic: the same for messages of any size."""

    edges: tuple[Edge, ...]
    traffic: Traffic
    _latencies: dict[str, float] = field(default_factory=dict, repr=False)

    def latency(self, protocol: str) -> float:
        """Return the latency (s) of the slowest edge."""
        if protocol not in self._latencies:
            self._latencies[protocol] = max(edge.latency(protocol) for edge in self.edges)
        return self._latencies[protocol]

    @cached_property
    def latency_of(self) -> tuple[Cause, str]:
        """Return the cause to report for latency."""
        return latency_of(self.edges)


def pairwise(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of an all-to-all with *nbytes* per rank: every rank sends a block to every rank, all at once."""
    block, messages = nbytes / layout.ranks, layout.ranks  # a rank also copies its block for itself
    return _priced(layout, protocol, block, _all_pairs(layout), layout.ranks - 1, messages)


@lru_cache(maxsize=GROUPS)
def _all_pairs(layout: JobLayout) -> _Paths:
    """Return the edges between all ranks, of one node of each part, and their traffic."""
    spans, partners = [], layout.ranks - layout.most_local
    inside = [edge for part in layout.parts for edge in layout.pairs(part)]
    if inside:
        spans.append(EdgeSpan(inside, 1.0, 1))
    if partners:
        across = [layout.nic_edge(*pair, gpu, pair[1].gpus[0]) for pair in layout.neighbors for gpu in pair[0].gpus]
        arriving = [layout.nic_edge(*pair, pair[0].gpus[0], gpu) for pair in layout.neighbors for gpu in pair[1].gpus]
        spans.append(EdgeSpan([_out_and_in(out, into) for out, into in zip(across, arriving, strict=False)], float(partners), 1, ALL))
    traffic = traffic_of(layout, spans, float(partners * layout.ranks))
    return _Paths(tuple([edge for span in spans for edge in span.edges]), traffic)


def send_recv(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of sends of *nbytes* from each rank to the next, numbered as in nccl-tests: by GPU within a node, then by node."""
    inside = [layout.local_edge(part, *pair) for part in layout.parts for pair in zip(part.gpus, part.gpus[1:], strict=False)]
    if layout.nodes == 1:
        (part,) = layout.parts
        inside.append(layout.local_edge(part, part.gpus[-1], part.gpus[0]))
    across = [layout.nic_edge(part, onward, part.gpus[-1], onward.gpus[0]) for part, onward in layout.neighbors]
    spans = [span for span in (EdgeSpan(inside, 1.0, 1), EdgeSpan(across, 1.0, 1, RING)) if span.edges]
    traffic = traffic_of(layout, spans, float(layout.nodes) if across else 0.0)
    return _priced(layout, protocol, nbytes, _Paths((*inside, *across), traffic), 1)


def gather(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of a gather: every other rank sends a block of *nbytes* / n to the first."""
    return _with_root(layout, protocol, nbytes / layout.ranks, to_root=True)


def scatter(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of a scatter: the first rank sends a block of *nbytes* / n to every other."""
    return _with_root(layout, protocol, nbytes / layout.ranks, to_root=False)


def _with_root(layout: JobLayout, protocol: str, block: float, to_root: bool) -> Priced:
    home = layout.every_node[0]
    root = home.gpus[0]
    ways = [(gpu, root) if to_root else (root, gpu) for gpu in home.gpus[1:]]
    inside = [layout.local_edge(home, *way) for way in ways]
    away = layout.ranks - len(home.gpus)
    others = [part for part in layout.parts if part is not home or part.slot.count > 1]
    between = [(part, gpu) for part in others for gpu in part.gpus]
    across = [layout.nic_edge(part, home, gpu, root) if to_root else layout.nic_edge(home, part, root, gpu) for part, gpu in between]
    streams = [(part, hop, 1.0) for edge in inside for part, hop in edge.hops]
    for edge in across:
        far, near = edge.hops if to_root else edge.hops[::-1]
        streams += [(*far, 1.0), (*near, away / len(across))]
    leaving = [outward(edge, ONE, 1.0 if to_root else 1.0 / len(others)) for edge in across]  # the number that a node sends or receives
    traffic = Traffic(tuple(streams), float(away), layout.fabric, tuple(leaving), layout.job_fabric)
    return _priced(layout, protocol, block, _Paths((*inside, *across), traffic), layout.ranks - 1)


def _priced(layout: JobLayout, protocol: str, nbytes: float, paths: _Paths, partners: int, messages: int = 0) -> Priced:
    """Return the price of sends of *nbytes* along *paths*. A rank has *partners* and handles *messages* (default: *partners*)."""
    rounds = math.ceil(partners / partners_at_once(layout))
    edges, traffic = paths.edges, paths.traffic
    links = limited_by_switches(traffic.edge_rates(edges, nbytes, protocol).slowest, traffic, nbytes, protocol)
    slowest = by_thread_blocks(links, layout, protocol, nbytes, messages or partners)
    latency = rounds * paths.latency(protocol)
    return Priced(nbytes, latency + nbytes / slowest.rate, nbytes, slowest, traffic, paths.latency_of)


def by_thread_blocks(links: EdgePace, layout: JobLayout, protocol: str, nbytes: float, messages: float, most: float = 1.0) -> EdgePace:
    """Return the pace of one of a rank's *messages* of *nbytes*: the pace of the *links*, limited by the throughput of thread blocks.

    For messages of unequal size, *nbytes* is the mean, *most* is the largest divided by the mean, and *messages* is the total of a rank
    divided by the mean.
    """
    channels, paces = send_channels(layout, nbytes), [links]
    for transport in layout.transports:
        limit = f"the thread block of each channel ({transport.name})"
        caps = [transport.channel_cap, transport.ll_cap if protocol == "LL" else None]
        paces += [EdgePace(cap * channels / most, Cause.INTERCONNECT, limit) for cap in caps if cap is not None]
        if (cap := _block_rate(transport, layout.nodes)) is not None:
            blocks = cap * min(channels / most, send_pool(layout) / messages)
            together = _combined_rate(links.rate, blocks) if _have_own_channels(layout, channels, messages) else min(links.rate, blocks)
            paces.append(EdgePace(together, *((Cause.INTERCONNECT, limit) if blocks < links.rate else links[1:])))
    return min(paces)


def _block_rate(transport: Transport, nodes: int) -> float | None:
    """Return the rate (bytes/s) at which a thread block moves a message, or None if the transport specifies none.

    Between nodes, the block copies inside its GPU, which is at least as fast as copying to another GPU. The rate is derived from that of
    the warps that copy sums back in an NVSwitch reduction, or else from that of a ring's block.
    """
    if nodes == 1 or transport.send_cap is None:
        return transport.send_cap
    if transport.nvls_cap is not None:
        return max(transport.send_cap, transport.nvls_cap * nccl.P2P_THREADS / 2 / nccl.NVLS_GATHER_THREADS)
    if transport.block_copy is not None:
        return max(transport.send_cap, transport.block_copy * nccl.P2P_THREADS / 2 / nccl.THREADS["Simple"])
    return transport.send_cap


def _have_own_channels(layout: JobLayout, channels: int, messages: float) -> bool:
    """Return whether a rank's messages have separate channels; otherwise, every block moves a part of each message."""
    return 1 < messages <= send_pool(layout) / channels


def _combined_rate(rate: float, other: float) -> float:
    """Return the combined rate of two limits when blocks differ: below either, by an empirical mean from two to eight GPUs."""
    return 1.0 / math.hypot(1.0 / rate, 1.0 / other)


def _out_and_in(out: Edge, into: Edge) -> Edge:
    """Return an edge from the outgoing hop of *out* and the incoming hop of *into*."""
    return Edge((out.hops[0], into.hops[1]), out.fabric, out.switches)
