"""How many bytes does a rank of a layout need at least? Computed for many layouts at once with numpy.

Weights, gradients, states and the activations that the schedule must hold on the fullest stage, together with gathered weights and with
what backward allocates when it begins: recomputed blocks may need more than all inputs that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import numpy
from numpy.typing import NDArray

from sim.analysis.held_memory import widths
from sim.analysis.layout_memory import COMMUNICATOR_BYTES, RESERVED_OVER_ALLOCATED
from sim.parallel.stack_options import mesh_options
from sim.spec.fields import Precision
from sim.spec.hardware import Gpu
from sim.spec.layer import WIDTHS
from sim.spec.parallel import SHARDS
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.workload import Workload
from sim.study.plan.block_sums import FloatRow, ShareShape
from sim.study.plan.geometry import Geometry, chunked_sums, staged_sums, unlike_rows
from sim.study.plan.space import LayoutCandidate

Marks = NDArray[numpy.bool_]


def least_memory(workload: Workload, gpu: Gpu, geometry: Geometry, own: Sequence[LayoutCandidate], held: Sequence[ShareShape]) -> FloatRow:
    """Return the least bytes that a rank of each of the layouts *own* of *workload* needs, whose chunks are those of *geometry*.

    *held* are their shares of the model, for one sample: activations are proportional to a micro-batch.
    """
    options = mesh_options(workload)
    weights, gradients, states = widths(workload, options)
    late = numpy.array([each.shard == "parameters" and each.micro_batches == 1 for each in own])  # gradients appear as activations go
    unlike, which = unlike_rows(held)
    batch = numpy.array([each.batch for each in own], dtype=float)[:, None]
    kept, dense, experts = (
        chunked_sums(geometry, rows)[which] for rows in zip(*((each.kept_bytes, each.dense, each.experts) for each in unlike), strict=True)
    )
    kept *= batch
    entered = batch * _entered(geometry, [each.entered for each in unlike])[which]
    pairs = numpy.array([each.expert > 1 and each.schedule in options.paired_schedules for each in own])
    entered[pairs] = 0.0  # a forward pass takes what backward has freed
    level = numpy.array([SHARDS.index(each.shard) for each in own])
    shards = numpy.array([each.data * each.context // each.replicate for each in own], dtype=float)
    holders = [each.data * each.context * (each.tensor if each.expert > 1 else 1) / each.expert for each in own]
    fixed = numpy.zeros((len(own), geometry.pipeline))
    for elements, ranks in ((dense, shards), (experts, numpy.array(holders))):
        width = weights / numpy.where(level >= 3, ranks, 1.0) + states / numpy.where(level >= 1, ranks, 1.0)
        width += numpy.where(late, 0.0, gradients / numpy.where(level >= 2, ranks, 1.0))
        fixed += staged_sums(geometry, elements) * width[:, None]
    counts, of_count = numpy.unique([each.micro_batches for each in own], return_inverse=True)
    flying = numpy.array([_in_flight(geometry.schedule, geometry.pipeline, own[0].chunks, int(count)) for count in counts])[of_count]
    activations = numpy.zeros_like(fixed)
    if geometry.even:
        flying = numpy.ones_like(flying)
    activations[:, : geometry.pipeline] = flying * (kept if kept.shape[1] == geometry.pipeline else kept.min(axis=1, keepdims=True))
    activations[:, : geometry.pipeline] += entered
    if geometry.pipeline == 1:
        activations[:, 0] = numpy.maximum(activations[:, 0], _up_to(held, batch).max(axis=1))
    sharded = (level == 3) & (shards > 1)
    if sharded.any():
        _gather(geometry, workload, own, held, sharded, flying, activations)
    many = [options.communicators + sum(size > 1 for size in _group_sizes(each)) for each in own]
    other = numpy.array(many) * COMMUNICATOR_BYTES + gpu.context_memory
    least: FloatRow = (fixed + activations).max(axis=1) * RESERVED_OVER_ALLOCATED + other
    return least


def _group_sizes(layout: LayoutCandidate) -> tuple[int, ...]:
    """Return the ranks of each group of *layout* that has a communicator of its own."""
    pool = layout.data * layout.context
    return layout.tensor, layout.context, pool // layout.replicate, layout.replicate, layout.expert, layout.pipeline


def _entered(geometry: Geometry, rows: Sequence[FloatRow]) -> FloatRow:
    """Return the bytes that backward of one sample allocates when it begins on each stage: on the last unit of one of its chunks."""
    table = numpy.diff(numpy.stack(rows), axis=1)
    least = numpy.full((len(table), geometry.pipeline), 0.0 if geometry.even else numpy.inf)
    for low, high, stage in zip(geometry.low, geometry.high, geometry.stage, strict=True):
        if not geometry.even:
            least[:, stage] = numpy.minimum(least[:, stage], table[:, high - 1] if high > low else 0.0)
    return least


def _up_to(held: Sequence[ShareShape], batch: FloatRow) -> FloatRow:
    """Return the bytes of activations when backward enters each unit of the model: of all units up to it, and what it allocates itself."""
    return batch * (numpy.stack([each.kept_bytes[1:] for each in held]) + numpy.diff(numpy.stack([each.entered for each in held]), axis=1))


def _gather(
    geometry: Geometry,
    workload: Workload,
    own: Sequence[LayoutCandidate],
    held: Sequence[ShareShape],
    sharded: Marks,
    flying: FloatRow,
    bytes_: FloatRow,
) -> None:
    """Add to the activations *bytes_* the weights that are gathered in addition if layouts are *sharded* (FSDP, ZeRO-3).

    A pipeline keeps the weights of all its units. Without one, backward starts each unit with its weights and the activations of all units
    up to it. Gradients that are not reduced yet count if there are more micro-batches than in flight: in a pipeline if backward has passed
    all chunks by then, and without one if only the last micro-batch reduces.
    """
    options = mesh_options(workload)
    element = numpy.array([min(PRECISION_TRAITS[cast(Precision, each.precision)].activation, WIDTHS[options.weights]) for each in own])[
        :, None
    ]
    elements = numpy.stack([each.dense + each.experts for each in held])
    stays = sharded & numpy.array([each.reshard is False or (each.reshard is None and geometry.pipeline > 1) for each in own])
    of_stage = staged_sums(geometry, chunked_sums(geometry, list(elements)))
    bytes_ += numpy.where(stays[:, None], of_stage * element, 0.0)
    passed, chunks = (
        numpy.array([_passes_before_all(geometry.schedule, geometry.pipeline, each.chunks, each.micro_batches) for each in own]),
        own[0].chunks,
    )
    again = sharded[:, None] & (chunks * numpy.array([each.micro_batches for each in own])[:, None] > flying + passed[:, None])
    waits = not geometry.even if geometry.pipeline > 1 else not workload.training.stack.synchronizes_each("parameters")
    unreduced = numpy.where(again & waits, of_stage * numpy.minimum(element, WIDTHS[options.reduction]), 0.0)
    if geometry.pipeline == 1:
        batch = numpy.array([each.batch for each in own], dtype=float)[:, None]
        up_to = _up_to(held, batch) + numpy.diff(numpy.stack([each.turned for each in held]), axis=1) * element
        bytes_[:, 0] = numpy.where(sharded & ~stays, numpy.maximum(bytes_[:, 0], up_to.max(axis=1)), bytes_[:, 0])
    bytes_ += unreduced


@lru_cache(maxsize=65536)
def _in_flight(schedule: str, pipeline: int, chunks: int, micro_batches: int) -> tuple[float, ...]:
    """Return the minimum number of chunks whose activations each stage holds at once (Narayanan et al. 2021)."""
    if schedule == "gpipe":
        return (float(micro_batches),) * pipeline
    if schedule == "1f1b":
        return tuple(float(min(pipeline - stage, micro_batches)) for stage in range(pipeline))
    if schedule == "interleaved_1f1b":
        group = micro_batches // max(1, micro_batches // pipeline)
        return tuple(float(min((chunks - 1) * group + 2 * (pipeline - 1 - stage) + 1, chunks * micro_batches)) for stage in range(pipeline))
    return (1.0,) * pipeline


@lru_cache(maxsize=65536)
def _passes_before_all(schedule: str, pipeline: int, chunks: int, micro_batches: int) -> float:
    """Return after how many backward passes, at least one more, every chunk of a stage had one and none its last; infinite if unknown."""
    if schedule == "1f1b":
        return 0.0
    rounds = max(1, micro_batches // pipeline)
    if schedule == "interleaved_1f1b" and rounds > 1:
        return float((chunks - 1) * (micro_batches // rounds))
    return math.inf
