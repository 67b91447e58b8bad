"""How does a whole array of boards share a network? Halved again and again: a way to share is chosen for each pair of groups, top down.

The first split is between unlike boards. A group counts with the sum of its boards' rates: what a group fetches is spread over them, so
that data parallelism costs what an all-reduce by recursive halving does. The step time takes every board's part of every node: at each
level the slower side decides, node by node and edge by edge. Nothing overlaps, and the products run at the peak, as in AccPar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from calibration.studies.accpar.cost import CostRow, Side, SplitState, edge_bytes, node_bytes, part
from calibration.studies.accpar.network import LayerNetwork


class Board(NamedTuple):
    """One kind of board: FLOP/s and bytes/s to other boards."""

    name: str
    speed: float
    bandwidth: float


class Boards(NamedTuple):
    """*number* equal boards."""

    board: Board
    number: int


@dataclass(frozen=True)
class BoardArray:
    """Groups of equal boards, in the order of the first splits."""

    groups: tuple[Boards, ...]

    @property
    def side(self) -> Side:
        """Return the rates of all boards together."""
        return Side(
            sum(each.board.speed * each.number for each in self.groups), sum(each.board.bandwidth * each.number for each in self.groups)
        )

    @property
    def count(self) -> int:
        """Return the number of boards."""
        return sum(each.number for each in self.groups)

    @property
    def unlike(self) -> bool:
        """Tell whether the boards differ."""
        return len(self.groups) > 1

    def halves(self) -> tuple[BoardArray, BoardArray]:
        """Return both sides of the next split: the first group and the rest, or half of equal boards each."""
        if self.unlike:
            return BoardArray(self.groups[:1]), BoardArray(self.groups[1:])
        board, number = self.groups[0]
        return BoardArray((Boards(board, number - number // 2),)), BoardArray((Boards(board, number // 2),))


StateChoice = Callable[[LayerNetwork, tuple[BoardArray, BoardArray]], list[SplitState]]
"""Chooses the state of each node of a network for two sides."""


class Spent(NamedTuple):
    """Seconds of each node, and of each edge in the order of `Network.edges`."""

    nodes: CostRow
    edges: CostRow
    levels: tuple[tuple[SplitState, ...], ...]
    """States of the nodes at each level, of the first group there."""

    @property
    def total(self) -> float:
        """Return the seconds of a step."""
        return float(numpy.sum(self.nodes) + numpy.sum(self.edges))


def spent(network: LayerNetwork, array: BoardArray, choose: StateChoice) -> Spent:
    """Return what a step takes when *choose* shares *network* at every level of *array*."""
    if array.count == 1:
        flop = numpy.array([node.flop for node in network.nodes])
        return Spent(flop / array.side.speed, numpy.zeros(len(network.edges())), ())
    halves = array.halves()
    states = choose(network, halves)
    alike = halves[0] == halves[1] and all(state.ratio == 0.5 for state in states)
    inner = [spent(_share(network, states, side), half, choose) for side, half in enumerate(halves[: 1 if alike else 2])]
    fetched = [_fetched(network, states, side, half.side.bandwidth) for side, half in enumerate(halves)]
    nodes = numpy.max([own[0] + deep.nodes for own, deep in zip(fetched, inner * (2 if alike else 1), strict=True)], axis=0)
    edges = numpy.max([own[1] + deep.edges for own, deep in zip(fetched, inner * (2 if alike else 1), strict=True)], axis=0)
    return Spent(nodes, edges, (tuple(states), *inner[0].levels))


def _share(network: LayerNetwork, states: Sequence[SplitState], side: int) -> LayerNetwork:
    return network._replace(nodes=tuple(part(node, state, side) for node, state in zip(network.nodes, states, strict=True)))


def _fetched(network: LayerNetwork, states: Sequence[SplitState], side: int, bandwidth: float) -> tuple[CostRow, CostRow]:
    """Return the seconds in which *side* fetches, by node and by edge."""
    nodes = numpy.array([node_bytes(node, [state])[0] for node, state in zip(network.nodes, states, strict=True)])
    edges = [
        edge_bytes(network.nodes[source], network.nodes[end], [states[source]], [states[end]], side)[0, 0]
        for source, end in network.edges()
    ]
    return nodes / bandwidth, numpy.array(edges, dtype=float) / bandwidth
