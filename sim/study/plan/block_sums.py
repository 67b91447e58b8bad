"""What do the blocks of a layout hold, from the first to any other? From these sums follow the contents of any stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from sim.analysis.kept_activations import kept_bytes
from sim.analysis.unit_passes import unit_pass
from sim.parallel.lower.layouts import Layout
from sim.parallel.split import Unit
from sim.parallel.stages import blocks_of
from sim.spec.workload import Workload

FloatRow = NDArray[numpy.float64]


class ShareShape(NamedTuple):
    """Bytes and parameters of the units of the model on one rank of a share, summed up to each block."""

    kept_bytes: FloatRow
    """Bytes of activations of one micro-batch."""
    dense: FloatRow
    experts: FloatRow
    turned: FloatRow
    """Lower bound of the elements of sharded weights gathered when backward enters each block: those of its last wrap."""
    entered: FloatRow
    """Bytes that backward of one micro-batch allocates in each block at least while everything of forward is held: in its last unit."""


class BlockSums(NamedTuple):
    """Contents of the units, summed up to each block, for any stages."""

    units: Sequence[Unit]
    ends: NDArray[numpy.intp]
    """The last unit of each block."""
    shape: ShareShape


def sums_of(layout: Layout, workload: Workload) -> BlockSums:
    """Return the contents of the units of *layout*, summed up to each block."""
    units, numbered = layout.units, {unit.content: (number, unit) for number, unit in enumerate(layout.units)}
    ends = numpy.array([numbers[-1] for numbers in blocks_of(units)])
    kept = {content: kept_bytes(unit, workload) for content, (_, unit) in numbered.items()}
    dense, experts = (
        {content: layout.elements(number, experts=each, trained=True) for content, (number, _) in numbered.items()}
        for each in (False, True)
    )
    rows = [[of_content[unit.content] for unit in units] for of_content in (kept, dense, experts)]
    turned, entered = numpy.zeros(len(units)), numpy.zeros(len(units))
    turned[ends] = numpy.array(rows[1])[ends] + numpy.array(rows[2])[ends]
    entering = {content: _entering(layout, workload, unit) for content, (_, unit) in numbered.items()}
    entered[ends] = [entering[units[end].content] for end in ends]
    return BlockSums(units, ends, ShareShape(*summed([*rows, turned, entered], ends)))


def _entering(layout: Layout, workload: Workload, unit: Unit) -> float:
    """Return the bytes that backward of *unit* allocates at its peak, without gradients, which do not grow with a micro-batch."""
    if not unit.has_backward:
        return 0.0
    backward = unit_pass(layout, workload, unit, forward=False)
    return backward.peak - backward.made


def summed(rows: Sequence[Sequence[float] | FloatRow], ends: NDArray[numpy.intp]) -> FloatRow:
    """Return the sums of each of *rows*, values of units, up to the end of each block."""
    sums = numpy.zeros((len(rows), len(ends) + 1))
    sums[:, 1:] = numpy.cumsum(numpy.array(rows), axis=1)[:, ends]
    return sums
