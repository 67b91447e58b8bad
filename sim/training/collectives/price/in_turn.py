"""What do collectives with sequential phases cost? The times of the phases add up, and their loads are weighted by bytes.

Hierarchical (optionally with racks as another level), halving-doubling, and PAT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.fabric import ALL, INSIDE, RING, Pattern
from sim.spec.yaml import SpecError
from sim.training.collectives.price.layout import JobLayout, depth
from sim.training.collectives.price.spans import EdgeSpan, Priced, heads, limited_by_switches, traffic_of
from sim.training.collectives.price.traffic import Edge, latency_of


@dataclass(frozen=True)
class _Phase:
    """Edges that each carry *count* streams of *nbytes* in each of *steps* steps."""

    edges: Sequence[Edge]
    count: float
    nbytes: float
    steps: int
    pattern: Pattern = INSIDE


def _sequential(layout: JobLayout, protocol: str, phases: Sequence[_Phase]) -> Priced:
    """Return the price of sequential *phases* as one fluid, with as many bytes per stream as the phase with the most."""
    phases = [phase for phase in phases if phase.edges and phase.steps]
    time, slowest, weighed = 0.0, [], []
    for phase in phases:
        between = phase.count * layout.nodes * len(phase.edges) if phase.edges[0].fabric else 0.0
        traffic = traffic_of(layout, [EdgeSpan(phase.edges, phase.count, 1, phase.pattern)], between)
        alone = traffic.edge_rates(phase.edges, phase.nbytes, protocol, phase.count).slowest
        pace = limited_by_switches(alone, traffic, phase.nbytes, protocol)
        latency = max(edge.latency(protocol) for edge in phase.edges)
        time += phase.steps * (phase.nbytes / pace.rate + latency)
        slowest.append((phase.steps * phase.nbytes / pace.rate, pace))
        weighed.append((phase, between))
    volume = max(phase.steps * phase.nbytes for phase in phases)
    spans = [EdgeSpan(phase.edges, phase.count * phase.steps * phase.nbytes / volume, 1, phase.pattern) for phase in phases]
    between = sum(streams * phase.steps * phase.nbytes / volume for phase, streams in weighed)
    bytes_time = sum(seconds for seconds, _ in slowest)
    pace = max(slowest)[1]._replace(rate=volume / bytes_time)
    chunk = max(phase.nbytes for phase in phases)
    edges = [edge for phase in phases for edge in list(phase.edges[:1]) * phase.steps]
    return Priced(volume, time, chunk, pace, traffic_of(layout, spans, between), latency_of(edges))


def hierarchical(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of reducing shards on rings within nodes, then each shard between GPUs of equal index, then gathering."""
    _require_even_nodes(layout, "Hierarchical")
    local, nodes = layout.most_local, layout.nodes
    between = _Phase(layout.places, 1.0, nbytes / local / nodes, 2 * (nodes - 1), RING)
    return _sequential(layout, protocol, [_phase_within_nodes(layout, nbytes), between])


def rack_hierarchical(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price with another level: shards are reduced within nodes, their parts within racks, and parts of these between racks."""
    _require_even_nodes(layout, "RackHierarchical")
    rack, local = layout.job_fabric.per_leaf, layout.most_local
    if not rack:
        raise SpecError(
            "RackHierarchical needs a fabric.leaf_spine, and the same number of nodes below each of at least two leaves; use Ring or Tree"
        )
    racks, places = layout.nodes // rack, layout.places
    inside = _Phase(places, 1.0, nbytes / local / rack, 2 * (rack - 1))
    between = _Phase(places, 1.0, nbytes / local / layout.nodes, 2 * (racks - 1), Pattern("racks", rack))
    return _sequential(layout, protocol, [_phase_within_nodes(layout, nbytes), inside, between])


def _phase_within_nodes(layout: JobLayout, nbytes: float) -> _Phase:
    """Return the phase of the rings within nodes that reduce to shards and gather them."""
    local, (inside, count) = layout.most_local, layout.rings_inside
    return _Phase(inside, 1.0, nbytes / local / count, 2 * (local - 1))


def halving_doubling(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of exchanges with partners at distances 1, 2, 4, .., of a half, a quarter, .. of the payload, and back."""
    try:
        rounds = rounds_of(layout.ranks)
    except ValueError as error:
        raise SpecError(str(error)) from None
    _require_even_nodes(layout, "HalvingDoubling")
    part, phases = layout.parts[0], []
    for bit in range(rounds):
        apart, size = 1 << bit, nbytes / (2 << bit)
        if apart < layout.most_local:
            partners = [(part.gpus[place], part.gpus[place ^ apart]) for place in range(layout.most_local)]
            edges = [layout.local_edge(part, *pair) for part in layout.parts for pair in partners]
        else:
            edges = [layout.nic_edge(*pair, gpu, gpu) for pair in layout.neighbors for gpu in part.gpus]
        phases.append(_Phase(edges, 1.0, size, 2, Pattern("pairs", max(1, apart // layout.most_local))))
    return _sequential(layout, protocol, phases)


def rounds_of(n: int) -> int:
    """Return log2 of *n*. Raise ValueError if *n* is not a power of two; its message names the nearest valid numbers of ranks."""
    if n < 1 or n & n - 1:
        below = 1 << max(n, 1).bit_length() - 1
        raise ValueError(f"halving-doubling needs a power of two of ranks, not {n}; use {below} or {2 * below} ranks, or ring or tree")
    return n.bit_length() - 1


def pat(layout: JobLayout, op: str, protocol: str, nbytes: float) -> Priced:
    """Return the price of an all-gather or reduce-scatter with one rank per node, in log2 N steps.

    The bytes double at each step; the price uses their mean. Isolated GPUs are nodes to NCCL: the first steps join those of one machine.
    """
    nodes, count = layout.ranks if layout.isolated else layout.nodes, layout.channels
    steps = depth(nodes)
    each = (nodes - 1) / nodes * nbytes / count / steps
    if not layout.isolated or layout.most_local == 1:
        return _sequential(layout, protocol, [_Phase(heads(layout), 1.0, each, steps, ALL)])  # partners of all distances
    inside = [
        layout.local_edge(part, *pair)
        for part in layout.parts
        if len(part.gpus) > 1
        for pair in zip(part.gpus, (*part.gpus[1:], part.gpus[0]), strict=True)
    ]
    between = [
        layout.nic_edge(part, onward, gpu, onward.gpus[place % len(onward.gpus)])
        for part, onward in layout.neighbors
        for place, gpu in enumerate(part.gpus)
    ]
    near = depth(min(len(part.gpus) for part in layout.parts))
    return _sequential(layout, protocol, [_Phase(inside, count, each, near), _Phase(between, count, each, steps - near, ALL)])


def _require_even_nodes(layout: JobLayout, algorithm: str) -> None:
    counts = {len(part.gpus) for part in layout.parts}
    if len(counts) > 1:
        numbers = " and ".join(str(count) for count in sorted(counts))
        raise SpecError(f"{algorithm} needs the same number of ranks on every node, not {numbers}; use Ring or Tree, or an even placement")
