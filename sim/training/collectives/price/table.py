"""How fast is a collective without other traffic, by size? The values that nccl-tests prints.

``algbw`` is bytes divided by time. ``busbw`` is algbw times the bytes that the busiest rank must send or receive per byte: 2(n-1)/n for
all-reduce, (n-1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter, 1 for broadcast, reduce and send/recv (nccl-tests
doc/PERFORMANCE.md and its sources). It is thus comparable to the bandwidth of a link. Bytes are those of the whole vector; in all-to-all,
those that one rank sends in total; in send/recv, those that each rank sends to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.events import Cause
from sim.spec.hardware import Hardware
from sim.training.collectives.price.collective_plan import DEFAULT, CollectivePlan, Op, Tuning
from sim.training.collectives.price.unequal import of_matrix


def bus_factor(op: Op, ranks: int) -> float:
    """Return the bytes that the busiest of *ranks* ranks must send or receive per byte of *op*."""
    if op == "broadcast" or op == "reduce" or op == "send_recv":
        return 1.0
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


class CollectiveRow(NamedTuple):
    """The row of one size: bytes, time (s), bandwidths (bytes/s), and the choice of algorithm, protocol and channels."""

    nbytes: int
    time: float
    algbw: float
    busbw: float
    algorithm: str
    protocol: str
    channels: int
    bottleneck: str
    by_itself: float | None = None
    """Time (s) without the other groups; None if there are none."""


class LinkUse(NamedTuple):
    """The use of the links of one kind, of a node or of the whole machine, while groups of a mesh communicate."""

    busiest: str
    tier: Cause
    links: int
    groups: int | None
    """Number of groups that use the busiest link; None for a link of the whole machine, which groups of all nodes cross."""
    busy: float
    """Share of its capacity that is used."""


class MeshGroup(NamedTuple):
    """The group of ranks of a mesh for which a table is computed; equal groups communicate at the same time."""

    name: str
    axes: Mapping[str, int]
    """Number of ranks along each axis of the mesh, neighbors first."""
    stage: int
    ranks: tuple[int, ...]
    """Ranks of the first group."""
    places: tuple[tuple[int, int], ...]
    """Node and GPU of each of these ranks."""
    groups: int
    """Number of groups in the stage."""
    on_node: int
    """Number of groups with ranks on the stage's first node."""
    links: tuple[LinkUse, ...]
    """Links that the largest size uses on that node and between nodes, the busiest first."""


class Table(NamedTuple):
    """All sizes of one operation on one machine."""

    hardware: str
    op: Op
    nodes: int
    ranks: int
    rows: tuple[CollectiveRow, ...]
    bisection: float = 0.0
    """Bandwidth (bytes/s) between two halves of the cluster, in each direction; 0 for one node."""
    machine: Hardware | None = None
    """The description with the name *hardware*."""
    tuning: Tuning = DEFAULT
    inputs: Mapping[str, str] = {}
    """SHA-256 hashes of the descriptions."""
    carrier: str = ""
    """The transport class that carries the bytes."""
    per_process: int = 1
    """Number of GPUs on which one process launches."""
    shares: str = ""
    """How ranks divide their bytes in an all-to-all; empty means evenly."""
    group: MeshGroup | None = None
    """The group of the collective; None means all ranks."""


LAUNCH = 5.9e-6
"""Time (s) in which a process launches a collective on one of several GPUs, as fitted by `calibration.collectives`."""


def time_in_loop(uncontended_time: float, per_process: int, launch: float = LAUNCH) -> float:
    """Return the time (s) per collective in a long loop, if each takes *uncontended_time* and a process launches on its GPUs in order.

    Launches overlap with earlier collectives: nccl-tests waits for its loop to end, not for each collective (src/common.cu, BenchTime).
    """
    return max(uncontended_time, per_process * launch) if per_process > 1 else uncontended_time


def rows(
    plan: CollectivePlan, op: Op, sizes: Sequence[int], per_process: int = 1, shares: Sequence[Sequence[float]] = ()
) -> tuple[CollectiveRow, ...]:
    """Return the row of *op* for each of *sizes* (bytes), with the choices of *plan*; a process launches on *per_process* GPUs.

    *shares* specifies the shares of an all-to-all if they are unequal.
    """
    return tuple(_row(plan, op, size, per_process, shares) for size in sizes)


def limit_of(slowest: str, latency: str, latency_share: float) -> str:
    """Return what takes most of a collective's time: the *slowest* link or thread block, or the *latency* of hops."""
    return latency if latency_share > 0.5 else slowest


def _row(plan: CollectivePlan, op: Op, size: int, per_process: int, shares: Sequence[Sequence[float]]) -> CollectiveRow:
    cost = plan.exchange(float(size), of_matrix(plan.layout, shares)) if shares else plan.cost(float(size), op)
    time = time_in_loop(cost.uncontended_time, per_process)
    algbw = size / time
    moved = bus_factor(op, plan.ranks)
    bottleneck = (
        "launches of each process on its GPUs"
        if time > cost.uncontended_time
        else limit_of(cost.bottleneck, cost.latency_of[1], cost.latency_share)
    )
    return CollectiveRow(size, time, algbw, algbw * moved, cost.algorithm, cost.protocol, cost.channels, bottleneck)
