"""Which units does each chunk of a pipeline hold, and what do rows of sums over blocks give for chunks and stages?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy
from numpy.typing import NDArray

from sim.parallel.schedule import holder
from sim.parallel.stages import stages
from sim.parallel.units import UnitKind
from sim.spec.parallel import Parallel
from sim.study.plan.block_sums import FloatRow

Item = TypeVar("Item")


class Geometry(NamedTuple):
    """Chunks of a pipeline: for each, its first unit, the one after its last, and its stage."""

    low: NDArray[numpy.intp]
    high: NDArray[numpy.intp]
    stage: NDArray[numpy.intp]
    pipeline: int
    schedule: str
    even: bool = False
    """Chunks begin inside blocks: the fullest has at least an even share, which is assumed for all."""


BlockSpread = tuple[int, int, tuple[float, float] | None]
"""How blocks are spread over stages (`sim.parallel.stages.distribution_of`)."""


@lru_cache(maxsize=1024)
def geometry_of(
    kinds: tuple[UnitKind, ...], pipeline: int, chunks: int, schedule: str, block_spread: BlockSpread, counts: tuple[int, ...]
) -> Geometry:
    """Return where the chunks of a pipeline over units of these *kinds* begin; *counts* are layers per stage, if they are specified."""
    parallel = Parallel(pipeline=pipeline, virtual_stages=chunks, schedule=schedule if pipeline > 1 else None, layers_per_stage=counts)
    cut = stages(kinds, parallel, *block_spread)
    ends = numpy.cumsum([len(units) for units in cut])
    own = [holder(schedule, pipeline, chunks, chunk)[0] for chunk in range(pipeline * chunks)]
    return Geometry(ends - numpy.array([len(units) for units in cut]), ends, numpy.array(own), pipeline, schedule)


def chunked_sums(geometry: Geometry, rows: Sequence[FloatRow]) -> FloatRow:
    """Return sums over the units of each chunk, for each of *rows* of cumulative sums."""
    table = numpy.stack(rows)
    if geometry.even:
        return numpy.repeat(table[:, -1:] / len(geometry.stage), len(geometry.stage), axis=1)
    return table[:, geometry.high] - table[:, geometry.low]


def staged_sums(geometry: Geometry, chunked: FloatRow) -> FloatRow:
    """Return sums over the chunks of each stage."""
    table = numpy.zeros((len(chunked), geometry.pipeline))
    for chunk, stage in enumerate(geometry.stage):
        table[:, stage] += chunked[:, chunk]
    return table


def unlike_rows(items: Sequence[Item]) -> tuple[list[Item], NDArray[numpy.intp]]:
    """Return each object among *items* once, and for each of *items* its place among these."""
    places: dict[int, int] = {}
    which = numpy.array([places.setdefault(id(each), len(places)) for each in items])
    _, first = numpy.unique(which, return_index=True)
    return [items[place] for place in first], which
