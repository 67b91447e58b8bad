"""Which strategies does AccPar compare? Each is a choice of states, ratios and objective for the same dynamic program.

Data parallelism splits every layer by batch. "One weird trick" (Krizhevsky, arXiv 1404.5997) splits matrix products by input channel and
convolutions by batch. HyPar (Song et al., HPCA 2019) searches these two dimensions for the fewest bytes sent. All three were designed for
equal accelerators and split in halves. AccPar searches all three dimensions and the ratio of every layer for the least time. The dimension
in which the trick and HyPar split weights follows linghaosong/AccPar @8f28c36 src/main.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibration.studies.accpar.array import BoardArray, StateChoice
from calibration.studies.accpar.cost import LAYER_DIMENSIONS, Side, SplitDimension, SplitState, states_of
from calibration.studies.accpar.network import LayerNetwork, LayerNode
from calibration.studies.accpar.partition import PartitionObjective, best_partition
from sim.spec.yaml import SpecError

HALF: Final = (0.5,)
RATIO_STEPS: Final = 32
"""Resolution of AccPar's ratio between different sides, in parts of a layer; the ratio of the speeds is tried as well."""


def speed_ratio(halves: tuple[BoardArray, BoardArray]) -> Sequence[float]:
    """Return the ratio of the sides' speeds."""
    own, other = (half.side.speed for half in halves)
    return (own / (own + other),)


def all_ratios(halves: tuple[BoardArray, BoardArray]) -> Sequence[float]:
    """Return all ratios to try between these sides: only halves if they are equal."""
    if halves[0] == halves[1]:
        return HALF
    return tuple(sorted({*speed_ratio(halves), *(number / RATIO_STEPS for number in range(1, RATIO_STEPS))}))


def data_parallel(network: LayerNetwork, halves: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return states that split every layer by batch in halves."""
    return _search(network, halves, ("batch",), HALF, "time")


def data_parallel_by_speed(network: LayerNetwork, halves: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return states that split every layer by batch in the ratio of the sides' speeds."""
    return _search(network, halves, ("batch",), speed_ratio(halves), "time")


def one_weird_trick(network: LayerNetwork, halves: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return states that split convolutions by batch and matrix products by input channel, in halves."""
    dimensions: dict[str, tuple[SplitDimension, ...]] = {"conv": ("batch",), "gemm": ("input",), "join": ("batch",)}
    return _search(network, halves, dimensions, HALF, "time")


def hypar(network: LayerNetwork, halves: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return the states that send the fewest bytes with splits by batch or input channel, in halves."""
    return _search(network, halves, ("batch", "input"), HALF, "bytes")


def accpar(network: LayerNetwork, halves: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return the states that take the least time with all three dimensions and all ratios."""
    return _search(network, halves, LAYER_DIMENSIONS, all_ratios(halves), "time")


STRATEGIES: Final[Mapping[str, StateChoice]] = {
    "data parallel": data_parallel,
    "by speed": data_parallel_by_speed,
    "one weird trick": one_weird_trick,
    "HyPar": hypar,
    "AccPar": accpar,
}
COMPARED: Final = tuple(name for name in STRATEGIES if name != "data parallel")
"""Strategies whose speedup over data parallelism in halves is shown."""


def _search(
    network: LayerNetwork,
    halves: tuple[BoardArray, BoardArray],
    dimensions: Mapping[str, tuple[SplitDimension, ...]] | tuple[SplitDimension, ...],
    ratios: Sequence[float],
    objective: PartitionObjective,
) -> list[SplitState]:
    states = [_states(node, dimensions if isinstance(dimensions, tuple) else dimensions[node.kind], ratios) for node in network.nodes]
    sides: tuple[Side, Side] = (halves[0].side, halves[1].side)
    return best_partition(network, states, sides, objective)[1]


def _states(node: LayerNode, dimensions: tuple[SplitDimension, ...], ratios: Sequence[float]) -> list[SplitState]:
    states = states_of(node, dimensions, ratios)
    if not states:
        named = " or ".join(dimensions)
        raise SpecError(f"{node.name}: cannot be split by {named} any further; use a larger --global-batch or fewer boards")
    return states
