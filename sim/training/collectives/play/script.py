"""Which transfers does a collective consist of, and over which edge of the link graph does each go? Input of the ``transfer`` executor.

Ranks are numbered node by node; the path from one rank to another is an edge of `price.layout`. User-defined algorithms are played by
their own steps. Built-in algorithms have prices only; ``tests/oracle/collectives`` has their schedules, transfer by transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sim.spec.extensions import COLLECTIVES, names
from sim.spec.yaml import SpecError
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.own import Transfer, own_steps, transfers
from sim.training.collectives.price.traffic import Edge


class Script(NamedTuple):
    """The transfers of one channel, each with its edge."""

    transfers: Sequence[Transfer]
    edges: Sequence[Edge]


Writer = Callable[[JobLayout, str, float], list[Script]]
"""Returns the script of each channel for an operation on a number of bytes."""

WRITERS: dict[str, Writer] = {}
"""Script writers of built-in algorithms by name. It is empty; code that has their schedules, such as tests, adds to it."""


def scripts(layout: JobLayout, op: str, algorithm: str, nbytes: float) -> list[Script]:
    """Return the script of each channel. Raise SpecError if the algorithm has no schedule of individual transfers."""
    if algorithm in names(COLLECTIVES):
        return straight_script(layout, transfers(own_steps(algorithm, layout.ranks, layout.most_local), nbytes))
    if algorithm not in WRITERS:
        choices = ", ".join([*WRITERS, "algorithms of your own (docs/develop/own-collective.md)"])
        raise SpecError(f"{algorithm} can only be simulated as one activity; the transfer executor supports {choices}")
    return WRITERS[algorithm](layout, op, nbytes)


def straight_script(layout: JobLayout, transfers: Sequence[Transfer]) -> list[Script]:
    """Return a single script of *transfers*, with ranks numbered node by node."""
    gpus = [gpu for part in layout.every_node for gpu in part.gpus]
    return [Script(transfers, [numbered_edge(layout, gpus, transfer.src, transfer.dst) for transfer in transfers])]


def numbered_edge(layout: JobLayout, gpus: Sequence[int], src: int, dst: int) -> Edge:
    """Return the edge between the ranks *src* and *dst*; *gpus* lists the GPU of each rank on its node."""
    local, nodes = layout.most_local, layout.every_node
    part, onward = nodes[src // local], nodes[dst // local]
    if src // local == dst // local:
        return layout.local_edge(part, gpus[src], gpus[dst])
    return layout.nic_edge(part, onward, gpus[src], gpus[dst])
