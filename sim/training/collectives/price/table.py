"""How fast is a collective by itself, size by size? What nccl-tests prints.

``algbw`` is bytes over time; ``busbw`` is algbw times what the busiest rank must send or receive per byte: 2(n-1)/n for all-reduce,
(n-1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter, 1 for broadcast, reduce and send/recv (nccl-tests
doc/PERFORMANCE.md and its sources), so that it compares with a link. Bytes are those of the whole vector, in all-to-all of what one
rank hands out, in send/recv of what each rank sends to the next. Nothing else runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.events import Cause
from sim.spec.hardware import Hardware
from sim.training.collectives.price.plan import DEFAULT, CollectivePlan, Op, Tuning
from sim.training.collectives.price.unequal import of_matrix


def bus_factor(op: Op, ranks: int) -> float:
    """Return what the busiest rank must send or receive per byte of *op* among *ranks*."""
    if op == "broadcast" or op == "reduce" or op == "send_recv":
        return 1.0
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


class CollectiveRow(NamedTuple):
    """One size: bytes, seconds, bytes/s, and what was chosen."""

    nbytes: int
    time: float
    algbw: float
    busbw: float
    algorithm: str
    protocol: str
    channels: int
    bottleneck: str
    by_itself: float | None = None
    """Seconds with no other group beside it; None where there is none."""


class LinkUse(NamedTuple):
    """The links of one kind while bytes of groups of a mesh move: those of a node, or of the whole machine."""

    busiest: str
    tier: Cause
    links: int
    groups: int | None
    """Groups whose bytes the busiest carries; None for a link of the whole machine, which those of all nodes cross."""
    busy: float
    """Share of its capacity."""


class MeshGroup(NamedTuple):
    """Whose collective a table is of: a group of ranks of a mesh, with those like it that exchange at the same time."""

    name: str
    axes: Mapping[str, int]
    """Ranks along each axis of the mesh, neighbors first."""
    stage: int
    ranks: tuple[int, ...]
    """Of the first one."""
    places: tuple[tuple[int, int], ...]
    """Node and GPU of each of these."""
    groups: int
    """In its stage."""
    on_node: int
    """Those of them with ranks on its first node."""
    links: tuple[LinkUse, ...]
    """That the largest size takes on that node and between nodes, the busiest first."""


class Table(NamedTuple):
    """All sizes of one operation on one machine."""

    hardware: str
    op: Op
    nodes: int
    ranks: int
    rows: tuple[CollectiveRow, ...]
    bisection: float = 0.0
    """Bytes/s between two halves of the cluster, each way; 0 for one node."""
    machine: Hardware | None = None
    """What *hardware* names."""
    tuning: Tuning = DEFAULT
    inputs: Mapping[str, str] = {}
    """SHA-256 of the description."""
    carrier: str = ""
    """The transport class that the bytes wait for."""
    per_process: int = 1
    """GPUs that one process launches on."""
    shares: str = ""
    """How ranks divide what they hand out in an all-to-all; empty: evenly."""
    group: MeshGroup | None = None
    """Whose collective it is; None: that of all ranks."""


LAUNCH = 5.9e-6
"""Seconds that a process takes to launch a collective on one of several GPUs: what `calibration.collectives` finds."""


def in_a_loop(alone: float, per_process: int, launch: float = LAUNCH) -> float:
    """Return the seconds of a collective that takes *alone* in a loop of many, launched GPU by GPU by a process while others run.

    nccl-tests waits for its loop to end, not for each collective (src/common.cu, BenchTime).
    """
    return max(alone, per_process * launch) if per_process > 1 else alone


def rows(
    plan: CollectivePlan, op: Op, sizes: Sequence[int], per_process: int = 1, shares: Sequence[Sequence[float]] = ()
) -> tuple[CollectiveRow, ...]:
    """Return how long *op* takes for each of *sizes* (bytes) as *plan* chooses; a process launches on *per_process* GPUs.

    *shares* are those of an all-to-all, where they are unequal.
    """
    return tuple(_row(plan, op, size, per_process, shares) for size in sizes)


def _row(plan: CollectivePlan, op: Op, size: int, per_process: int, shares: Sequence[Sequence[float]]) -> CollectiveRow:
    cost = plan.exchange(float(size), of_matrix(plan.layout, shares)) if shares else plan.cost(float(size), op)
    time = in_a_loop(cost.alone, per_process)
    algbw = size / time
    moved = bus_factor(op, plan.ranks)
    bottleneck = cost.bottleneck if time == cost.alone else "launches of each process on its GPUs"
    return CollectiveRow(size, time, algbw, algbw * moved, cost.algorithm, cost.protocol, cost.channels, bottleneck)
