"""Which edges does an algorithm use, and how does it load them? Spans of equally loaded edges, and the resulting traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.cluster.fabric import INSIDE, Pattern
from sim.events import Cause
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.traffic import Edge, EdgePace, Traffic, outward


class Priced(NamedTuple):
    """The price of a collective: bytes of each stream, time (s) without contention, and the other values that `Cost` is built from."""

    volume: float
    time: float
    chunk: float
    slowest: EdgePace
    traffic: Traffic
    latency_of: tuple[Cause, str]


@dataclass(frozen=True)
class EdgeSpan:
    """Edges of one kind, the number of streams on each (*count*), and how many of them are in sequence on the longest path up (*hops*)."""

    edges: Sequence[Edge]
    count: float
    hops: int
    pattern: Pattern = INSIDE
    """Which nodes its edges connect, if they lead to other nodes."""


def heads(layout: JobLayout, tree: bool = False, channels: Sequence[int] | None = None) -> list[Edge]:
    """Return the edges between the first GPUs of neighboring nodes for *channels* (default: all); *tree* as in `JobLayout.chain_edge`."""
    numbers = range(layout.channels) if channels is None else channels
    return [layout.chain_edge(*pair, channel, tree) for pair in layout.neighbors for channel in numbers]


def traffic_of(layout: JobLayout, spans: Sequence[EdgeSpan], network_streams: float) -> Traffic:
    """Return the traffic of *spans*, with a total of *network_streams* streams between nodes."""
    streams = [(part, hop, span.count) for span in spans for edge in span.edges for part, hop in edge.hops]
    leaving = [outward(edge, span.pattern, span.count) for span in spans for edge in span.edges if edge.fabric]
    return Traffic(tuple(streams), network_streams, layout.fabric, tuple(leaving), layout.job_fabric)


def limited_by_switches(pace: EdgePace, traffic: Traffic, chunk: float, protocol: str) -> EdgePace:
    """Return *pace*, or the pace of links between switches if that is slower."""
    across = traffic.switch_pace(chunk, protocol)
    return pace if across is None else min(pace, across)
