"""Which edges does an algorithm use, and what does it put on them? Spans of edges that carry alike, and the traffic they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.cluster.fabric import INSIDE, Pattern
from sim.events import Cause
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.traffic import Edge, EdgePace, Traffic, outward


class Priced(NamedTuple):
    """What an algorithm found: bytes of each stream, seconds alone, and the rest as in `Cost`."""

    volume: float
    time: float
    chunk: float
    slowest: EdgePace
    traffic: Traffic
    latency_of: tuple[Cause, str]


@dataclass(frozen=True)
class EdgeSpan:
    """Edges of one kind, the streams on each, and how many of them follow one another on the longest way up."""

    edges: Sequence[Edge]
    count: float
    hops: int
    pattern: Pattern = INSIDE
    """Whom its edges join, where they lead to other nodes."""


def heads(layout: JobLayout, tree: bool = False, channels: Sequence[int] | None = None) -> list[Edge]:
    """Return the edges between the first GPUs of neighbouring nodes, of all *channels*; *tree* as in `Layout.between`."""
    numbers = range(layout.channels) if channels is None else channels
    return [layout.between(*pair, channel, tree) for pair in layout.neighbours for channel in numbers]


def traffic_of(layout: JobLayout, spans: Sequence[EdgeSpan], between: float) -> Traffic:
    """Return what *spans* put on links; *between* streams in all lead from node to node."""
    streams = [(part, hop, span.count) for span in spans for edge in span.edges for part, hop in edge.hops]
    leaving = [outward(edge, span.pattern, span.count) for span in spans for edge in span.edges if edge.fabric]
    return Traffic(tuple(streams), between, layout.fabric, tuple(leaving), layout.crossed)


def held(pace: EdgePace, traffic: Traffic, chunk: float, protocol: str) -> EdgePace:
    """Return *pace*, or that between switches where it is slower."""
    across = traffic.across(chunk, protocol)
    return pace if across is None else min(pace, across)
