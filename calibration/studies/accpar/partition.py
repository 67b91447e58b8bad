"""What is the best way to split each layer between two sides? A dynamic program over the segments of the network, exact over its states.

The cost is a sum over nodes and edges, with the slower side's cost for each. So the least cost of a state at the end of a segment depends
only on the least costs of the states at its start. Paths between start and end are chains with additive costs. A test compares the result
with all combinations. The objective ``time`` is AccPar's. The objective ``bytes`` is HyPar's: the bytes that both sides send, regardless
of their speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy

from calibration.studies.accpar.cost import CostRow, Side, SplitState, edge_bytes, node_bytes, shares
from calibration.studies.accpar.network import LayerNetwork
from sim.spec.yaml import SpecError

PartitionObjective = Literal["time", "bytes"]
Sides = tuple[Side, Side]


class Costs(NamedTuple):
    """Costs for two sides that share a network: of each node by state, and of each edge by pair of states."""

    nodes: Sequence[CostRow]
    edges: dict[tuple[int, int], CostRow]


class _CheapestStates(NamedTuple):
    """Least cost from each state of a start to each state of an end, and the states of the nodes in between that attain it."""

    cost: CostRow
    through: list[CostRow]


def costs(network: LayerNetwork, states: Sequence[Sequence[SplitState]], sides: Sides, objective: PartitionObjective) -> Costs:
    """Return the cost of each node and edge in each state."""
    nodes = []
    for node, own in zip(network.nodes, states, strict=True):
        fetched = node_bytes(node, own)
        if objective == "bytes":
            nodes.append(2.0 * fetched)
            continue
        each = [node.flop * shares(own, number) / side.speed + fetched / side.bandwidth for number, side in enumerate(sides)]
        if node.kind == "join":
            each = [0.0 * fetched]
        nodes.append(numpy.max(each, axis=0))
    edges = {}
    for source, end in network.edges():
        one, two = (edge_bytes(network.nodes[source], network.nodes[end], states[source], states[end], side) for side in (0, 1))
        if objective == "bytes":
            edges[source, end] = one + two
        else:
            edges[source, end] = numpy.maximum(one / sides[0].bandwidth, two / sides[1].bandwidth)
    return Costs(nodes, edges)


def best_partition(
    network: LayerNetwork, states: Sequence[Sequence[SplitState]], sides: Sides, objective: PartitionObjective
) -> tuple[float, list[SplitState]]:
    """Return the least cost of sharing *network* between *sides*, and the state of each node. Raise SpecError if a node has no state."""
    if stateless := next((node.name for node, own in zip(network.nodes, states, strict=True) if not own), None):
        raise SpecError(f"{stateless}: too few samples and channels for this many boards; use a larger batch")
    cost = costs(network, states, sides, objective)
    reached = cost.nodes[network.segments[0].end]
    steps: list[tuple[list[_CheapestStates], CostRow]] = []
    before = network.segments[0].end
    for paths, end in network.segments[1:]:
        chains = [_chain(cost, (before, *path, end)) for path in paths]
        total = reached[:, None] + numpy.sum([chain.cost for chain in chains], axis=0) + cost.nodes[end][None, :]
        origin = numpy.argmin(total, axis=0)
        reached = numpy.min(total, axis=0)
        steps.append((chains, origin))
        before = end
    return float(numpy.min(reached)), _backtrack(network, states, steps, int(numpy.argmin(reached)))


def _chain(cost: Costs, nodes: Sequence[int]) -> _CheapestStates:
    """Return the least cost along *nodes*, without the costs of both end nodes."""
    total = cost.edges[nodes[0], nodes[1]]
    through = []
    for node, following in pairwise(nodes[1:]):
        way = (total + cost.nodes[node][None, :])[:, :, None] + cost.edges[node, following][None, :, :]
        through.append(numpy.argmin(way, axis=1))
        total = numpy.min(way, axis=1)
    return _CheapestStates(total, through)


def _backtrack(
    network: LayerNetwork, states: Sequence[Sequence[SplitState]], steps: Sequence[tuple[list[_CheapestStates], CostRow]], last: int
) -> list[SplitState]:
    """Return the states of all nodes on the best path that ends in state *last*."""
    chosen: dict[int, int] = {network.segments[-1].end: last}
    for number in range(len(network.segments) - 1, 0, -1):
        paths, end = network.segments[number]
        chains, origin = steps[number - 1]
        start = int(origin[chosen[end]])
        for path, chain in zip(paths, chains, strict=True):
            place = chosen[end]
            for node, through in zip(reversed(path), reversed(chain.through), strict=True):
                place = int(through[start, place])
                chosen[node] = place
        chosen[network.segments[number - 1].end] = start
    return [states[number][chosen[number]] for number in range(len(network.nodes))]
