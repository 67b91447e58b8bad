"""How fast is a collective by itself, size by size? What nccl-tests prints.

``algbw`` is bytes over time; ``busbw`` is algbw times what every rank must send per byte, 2(n-1)/n for all-reduce and (n-1)/n for
all-gather and reduce-scatter (nccl-tests doc/PERFORMANCE.md), so that it compares with a link. Nothing else runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.training.collectives.plan import RingPlan

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often each operation goes around the ring."""


class Row(NamedTuple):
    """One size: bytes, seconds, bytes/s, and what was chosen."""

    nbytes: int
    time: float
    algbw: float
    busbw: float
    algorithm: str
    channels: int
    bottleneck: str


class Table(NamedTuple):
    """All sizes of one operation on one machine."""

    hardware: str
    op: str
    nodes: int
    ranks: int
    rows: tuple[Row, ...]


def rows(plan: RingPlan, op: str, sizes: Sequence[int]) -> tuple[Row, ...]:
    """Return how long *op* takes on the rings of *plan* for each of *sizes* (bytes)."""
    return tuple(_row(plan, op, size) for size in sizes)


def _row(plan: RingPlan, op: str, size: int) -> Row:
    cost = plan.cost(float(size), ROUNDS[op])
    algbw = size / cost.alone
    moved = ROUNDS[op] * (plan.ranks - 1) / plan.ranks
    return Row(size, cost.alone, algbw, algbw * moved, "ring", plan.channels, cost.bottleneck)
