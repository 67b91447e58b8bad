"""How does a whole array of boards share a network? It is halved recursively, and each split between two groups is chosen top down.

The first split separates groups of different boards. A group has the sum of its boards' rates: the bytes that a group fetches are spread
over its boards, so data parallelism costs the same as an all-reduce by recursive halving. The step time includes every board's part of
every node; at each level the slower side determines the time of each node and edge. Nothing overlaps and products run at the peak rate, as
in AccPar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from calibration.studies.accpar.cost import CostRow, Side, SplitState, edge_bytes, node_bytes, node_part
from calibration.studies.accpar.network import LayerNetwork


class Board(NamedTuple):
    """One kind of board, with its FLOP/s and its bytes/s to other boards."""

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
        """Return the total rates of all boards."""
        return Side(
            sum(each.board.speed * each.number for each in self.groups), sum(each.board.bandwidth * each.number for each in self.groups)
        )

    @property
    def count(self) -> int:
        """Return the number of boards."""
        return sum(each.number for each in self.groups)

    @property
    def is_mixed(self) -> bool:
        """Return whether the boards differ."""
        return len(self.groups) > 1

    def halves(self) -> tuple[BoardArray, BoardArray]:
        """Return both sides of the next split: the first group and the rest if boards differ, else two halves of the boards."""
        if self.is_mixed:
            return BoardArray(self.groups[:1]), BoardArray(self.groups[1:])
        board, number = self.groups[0]
        return BoardArray((Boards(board, number - number // 2),)), BoardArray((Boards(board, number // 2),))


StateChoice = Callable[[LayerNetwork, tuple[BoardArray, BoardArray]], list[SplitState]]
"""Chooses the state of each node of a network for a split between two sides."""


class ArrayTimes(NamedTuple):
    """The time (s) of each node, and of each edge in the order of `LayerNetwork.edges`."""

    nodes: CostRow
    edges: CostRow
    levels: tuple[tuple[SplitState, ...], ...]
    """States of the nodes at each level, for the first group of that level."""

    @property
    def total(self) -> float:
        """Return the step time (s)."""
        return float(numpy.sum(self.nodes) + numpy.sum(self.edges))


def array_times(network: LayerNetwork, array: BoardArray, choose: StateChoice) -> ArrayTimes:
    """Return the times of a step if *choose* splits *network* at every level of *array*."""
    if array.count == 1:
        flop = numpy.array([node.flop for node in network.nodes])
        return ArrayTimes(flop / array.side.speed, numpy.zeros(len(network.edges())), ())
    halves = array.halves()
    states = choose(network, halves)
    equal = halves[0] == halves[1] and all(state.ratio == 0.5 for state in states)
    inner = [array_times(_share(network, states, side), half, choose) for side, half in enumerate(halves[: 1 if equal else 2])]
    transfers = [_transfer_times(network, states, side, half.side.bandwidth) for side, half in enumerate(halves)]
    nodes = numpy.max([own[0] + below.nodes for own, below in zip(transfers, inner * (2 if equal else 1), strict=True)], axis=0)
    edges = numpy.max([own[1] + below.edges for own, below in zip(transfers, inner * (2 if equal else 1), strict=True)], axis=0)
    return ArrayTimes(nodes, edges, (tuple(states), *inner[0].levels))


def _share(network: LayerNetwork, states: Sequence[SplitState], side: int) -> LayerNetwork:
    return network._replace(nodes=tuple(node_part(node, state, side) for node, state in zip(network.nodes, states, strict=True)))


def _transfer_times(network: LayerNetwork, states: Sequence[SplitState], side: int, bandwidth: float) -> tuple[CostRow, CostRow]:
    """Return the times (s) of the transfers of *side*, by node and by edge."""
    nodes = numpy.array([node_bytes(node, [state])[0] for node, state in zip(network.nodes, states, strict=True)])
    edges = [
        edge_bytes(network.nodes[source], network.nodes[end], [states[source]], [states[end]], side)[0, 0]
        for source, end in network.edges()
    ]
    return nodes / bandwidth, numpy.array(edges, dtype=float) / bandwidth
