"""Which strategies does AccPar compare? Each is a choice of states, ratios and objective for the same dynamic program.

Data parallelism splits every layer by batch. "One weird trick" (Krizhevsky, arXiv 1404.5997) splits matrix products by input channel and
convolutions by batch. HyPar (Song et al., HPCA 2019) searches these two ways for the fewest bytes sent. All three were designed for equal
accelerators and split in halves. AccPar searches all three ways and the ratio of every layer for the least time. The dimension in which
the trick and HyPar split weights follows linghaosong/AccPar @8f28c36 src/main.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibration.studies.accpar.array import BoardArray, StateChoice
from calibration.studies.accpar.cost import OF_LAYERS, How, Side, SplitState, states_of
from calibration.studies.accpar.network import LayerNetwork, LayerNode
from calibration.studies.accpar.partition import PartitionObjective, best
from sim.spec.yaml import SpecError

HALF: Final = (0.5,)
STEPS: Final = 32
"""Resolution of AccPar's ratio between different sides, in parts of a layer; the ratio of the speeds is tried as well."""


def by_speed(halved: tuple[BoardArray, BoardArray]) -> Sequence[float]:
    """Return the ratio of the sides' speeds."""
    own, other = (half.side.speed for half in halved)
    return (own / (own + other),)


def any_ratio(halved: tuple[BoardArray, BoardArray]) -> Sequence[float]:
    """Return all ratios to try between these sides: only halves if they are equal."""
    if halved[0] == halved[1]:
        return HALF
    return tuple(sorted({*by_speed(halved), *(number / STEPS for number in range(1, STEPS))}))


def data_parallel(network: LayerNetwork, halved: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return states that split every layer by batch in halves."""
    return _search(network, halved, ("batch",), HALF, "time")


def data_parallel_by_speed(network: LayerNetwork, halved: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return states that split every layer by batch in the ratio of the sides' speeds."""
    return _search(network, halved, ("batch",), by_speed(halved), "time")


def one_weird_trick(network: LayerNetwork, halved: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return states that split convolutions by batch and matrix products by input channel, in halves."""
    ways: dict[str, tuple[How, ...]] = {"conv": ("batch",), "gemm": ("input",), "join": ("batch",)}
    return _search(network, halved, ways, HALF, "time")


def hypar(network: LayerNetwork, halved: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return the states that send the fewest bytes with splits by batch or input channel, in halves."""
    return _search(network, halved, ("batch", "input"), HALF, "bytes")


def accpar(network: LayerNetwork, halved: tuple[BoardArray, BoardArray]) -> list[SplitState]:
    """Return the states that take the least time with all three ways and all ratios."""
    return _search(network, halved, OF_LAYERS, any_ratio(halved), "time")


STRATEGIES: Final[Mapping[str, StateChoice]] = {
    "data parallel": data_parallel,
    "by speed": data_parallel_by_speed,
    "one weird trick": one_weird_trick,
    "HyPar": hypar,
    "AccPar": accpar,
}


def _search(
    network: LayerNetwork,
    halved: tuple[BoardArray, BoardArray],
    ways: Mapping[str, tuple[How, ...]] | tuple[How, ...],
    ratios: Sequence[float],
    objective: PartitionObjective,
) -> list[SplitState]:
    states = [_states(node, ways if isinstance(ways, tuple) else ways[node.kind], ratios) for node in network.nodes]
    sides: tuple[Side, Side] = (halved[0].side, halved[1].side)
    return best(network, states, sides, objective)[1]


def _states(node: LayerNode, ways: tuple[How, ...], ratios: Sequence[float]) -> list[SplitState]:
    states = states_of(node, ways, ratios)
    if not states:
        named = " or ".join(ways)
        raise SpecError(f"{node.name}: cannot be split by {named} any further; use a larger --global-batch or fewer boards")
    return states
