"""Which transfers make up a collective, and over which edge of the link graph does each go? What the ``transfer`` executor plays.

Ranks are numbered through the nodes; the way from one rank to another is an edge of `price.layout`. Algorithms of users are played by
their own steps. Built-in ones are priced only; what proves their prices, transfer by transfer, is in ``tests/oracle/collectives``.
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
    """One channel's transfers, each with its edge."""

    transfers: Sequence[Transfer]
    edges: Sequence[Edge]


Writer = Callable[[JobLayout, str, float], list[Script]]
"""Writes what each channel plays of an operation on so many bytes."""

WRITERS: dict[str, Writer] = {}
"""Of built-in algorithms, by name: whoever has their schedules adds them, as tests do."""


def scripts(layout: JobLayout, op: str, algorithm: str, nbytes: float) -> list[Script]:
    """Return what each channel plays; SpecError where the algorithm has no schedule of single transfers."""
    if algorithm in names(COLLECTIVES):
        return straight(layout, transfers(own_steps(algorithm, layout.ranks, layout.most_local), nbytes))
    if algorithm not in WRITERS:
        choices = ", ".join([*WRITERS, "algorithms of your own (docs/develop/own-collective.md)"])
        raise SpecError(f"{algorithm} is played as one activity only; the transfer executor knows {choices}")
    return WRITERS[algorithm](layout, op, nbytes)


def straight(layout: JobLayout, transfers: Sequence[Transfer]) -> list[Script]:
    """Return one script whose ranks are numbered through the nodes."""
    gpus = [gpu for part in layout.every_node for gpu in part.gpus]
    return [Script(transfers, [numbered(layout, gpus, transfer.src, transfer.dst) for transfer in transfers])]


def numbered(layout: JobLayout, gpus: Sequence[int], src: int, dst: int) -> Edge:
    """Return the edge between the ranks *src* and *dst*, which are on the given *gpus* of their nodes."""
    local, nodes = layout.most_local, layout.every_node
    part, onward = nodes[src // local], nodes[dst // local]
    if src // local == dst // local:
        return layout.inside(part, gpus[src], gpus[dst])
    return layout.across(part, onward, gpus[src], gpus[dst])
