"""What does it cost two sides to share a layer, and to pass a tensor between layers that are split in different dimensions?

Each layer is split by batch (type I of AccPar), input channel (II) or output channel (III), with its own ratio. One of its three products
then gives partial sums, which each side fetches from the other: the gradient of the weights (I), the output (II) or the error of the input
(III). Between layers each side fetches the part of a tensor that it needs and does not hold. If both layers have the same ratio, a to
1 - a, these costs are AccPar's table of inter-layer costs (HPCA 2020, section 4; checked against linghaosong/AccPar @8f28c36, which always
splits in halves).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy
from numpy.typing import NDArray

from calibration.studies.accpar.network import LayerNode

CostRow = NDArray[numpy.float64]
SplitDimension = Literal["batch", "input", "output", "channel", "complete"]
"""Dimension in which a node is split: batch, input or output channel of layers; batch or channel of sums of residual blocks, which can also
be complete on both sides."""
ELEMENT_BYTES: Final = 2.0
"""Bytes of an element: bfloat16."""
LAYER_DIMENSIONS: Final[tuple[SplitDimension, ...]] = ("batch", "input", "output")
JOIN_DIMENSIONS: Final[tuple[SplitDimension, ...]] = ("batch", "channel", "complete")

SplitPlace = Literal["rows", "columns", "all"]
"""The part of a tensor that a side holds: its share of the samples, its share of the channels, or everything."""


class Layouts(NamedTuple):
    """The parts that each side reads and writes: of the feature map F in forward, and of the error E in backward."""

    reads: SplitPlace
    writes: SplitPlace
    error_reads: SplitPlace
    error_writes: SplitPlace


LAYOUTS: Final[dict[SplitDimension, Layouts]] = {
    "batch": Layouts("rows", "rows", "rows", "rows"),
    "input": Layouts("columns", "all", "all", "columns"),
    "output": Layouts("all", "columns", "columns", "all"),
    "channel": Layouts("columns", "columns", "columns", "columns"),
    "complete": Layouts("all", "all", "all", "all"),
}


class SplitState(NamedTuple):
    """One way to share a node: the dimension in which it is split, and the share of the first side."""

    dimension: SplitDimension
    ratio: float


class Side(NamedTuple):
    """One of two groups of boards, with the total FLOP/s and bytes/s of its boards."""

    speed: float
    bandwidth: float


def states_of(node: LayerNode, dimensions: Sequence[SplitDimension], ratios: Sequence[float]) -> list[SplitState]:
    """Return the states of *node* in which each side has at least one sample or channel; *dimensions* do not apply to a join."""
    allowed = JOIN_DIMENSIONS if node.kind == "join" else dimensions
    candidates = [state for dimension in allowed for state in _with_ratios(dimension, ratios)]
    return [state for state in candidates if _divisible_size(node, state.dimension) * min(state.ratio, 1.0 - state.ratio) >= 1.0 - 1e-9]


def _with_ratios(dimension: SplitDimension, ratios: Sequence[float]) -> list[SplitState]:
    return [SplitState(dimension, ratio) for ratio in (ratios if dimension != "complete" else ratios[:1])]


def _divisible_size(node: LayerNode, dimension: SplitDimension) -> float:
    return {"batch": node.rows, "input": node.inputs, "output": node.outputs, "channel": node.outputs, "complete": numpy.inf}[dimension]


def missing_share(have: SplitPlace, held: CostRow, need: SplitPlace, wanted: CostRow) -> CostRow:
    """Return the share of a tensor that a side needs and does not hold.

    The side holds the share *held* in the layout *have* and needs the share *wanted* in the layout *need*.
    """
    if have == "all":
        return 0.0 * held * wanted
    if need == "all":
        return 1.0 - held + 0.0 * wanted
    return numpy.maximum(0.0, wanted - held) if have == need else wanted * (1.0 - held)


def shares(states: Sequence[SplitState], side: int) -> CostRow:
    """Return the share of *side* (0 or 1) in each of *states*."""
    ratios = numpy.array([state.ratio for state in states], dtype=float)
    return ratios if side == 0 else 1.0 - ratios


def partial_sums(node: LayerNode, dimension: SplitDimension) -> float:
    """Return the bytes of partial sums that each side fetches from the other if *node* is split in *dimension*."""
    if node.kind == "join":
        return 0.0
    of_input = 0.0 if node.first else node.input
    return ELEMENT_BYTES * {"batch": node.weights, "input": node.output, "output": of_input}[dimension]


def node_bytes(node: LayerNode, states: Sequence[SplitState]) -> CostRow:
    """Return the bytes that each side fetches inside *node*, by state."""
    return numpy.array([partial_sums(node, state.dimension) for state in states], dtype=float)


def edge_bytes(source: LayerNode, node: LayerNode, before: Sequence[SplitState], after: Sequence[SplitState], side: int) -> CostRow:
    """Return the bytes of feature map and error that *side* fetches between *source* and *node*, by pair of states."""
    held, wanted = shares(before, side)[:, None], shares(after, side)[None, :]
    nbytes = numpy.zeros((len(before), len(after)))
    for one in dict.fromkeys(state.dimension for state in before):
        for other in dict.fromkeys(state.dimension for state in after):
            rows = numpy.array([state.dimension == one for state in before])[:, None]
            columns = numpy.array([state.dimension == other for state in after])[None, :]
            forward = node.input * missing_share(LAYOUTS[one].writes, held, LAYOUTS[other].reads, wanted)
            backward = source.output * node.shrink * missing_share(LAYOUTS[other].error_writes, wanted, LAYOUTS[one].error_reads, held)
            nbytes = numpy.where(rows & columns, ELEMENT_BYTES * (forward + backward), nbytes)
    return nbytes


def node_part(node: LayerNode, state: SplitState, side: int) -> LayerNode:
    """Return the part of *node* that *side* has in *state*."""
    share = state.ratio if side == 0 else 1.0 - state.ratio
    flop, rows, inputs, outputs = node.flop * share, node.rows * share, node.inputs * share, node.outputs * share
    read, weights, written = node.input * share, node.weights * share, node.output * share
    if state.dimension == "batch":
        return node._replace(flop=flop, rows=rows, input=read, output=written)
    if state.dimension == "input":
        return node._replace(flop=flop, inputs=inputs, input=read, weights=weights)
    if state.dimension == "output":
        return node._replace(flop=flop, outputs=outputs, output=written, weights=weights)
    if state.dimension == "channel":
        return node._replace(inputs=inputs, outputs=outputs, input=read, output=written)
    return node
