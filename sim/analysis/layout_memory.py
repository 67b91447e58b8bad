"""How much GPU memory does each stage of a layout need at its fullest? The program's actions replayed, with what each allocates and frees.

Weights, gradients and states follow the stack's data types and the sharding (ZeRO, arXiv 1910.02054); a forward keeps its activations until
the backward of the same chunk and micro-batch, so that a pipeline's first stage holds as many as its schedule has in flight; a checkpointed
block keeps its input alone. FSDP holds two gathered units and one unit's unreduced gradients.
Limits: no fragmentation beyond a share for the allocator's rounding; NCCL's buffers are an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, Literal

from sim.parallel.lower import Layout
from sim.parallel.mesh import GroupAxis
from sim.parallel.schedule import actions
from sim.parallel.split import Unit
from sim.spec.hardware import Gpu
from sim.spec.parallel import MeshOptions, Schedule
from sim.spec.precision import MEANING
from sim.spec.workload import Layer, Workload

_AXES: Final[tuple[GroupAxis, ...]] = ("tensor", "context", "shard", "replicate", "expert", "pipeline")
Verdict = Literal["fits", "thrashes", "does_not_fit"]

_WIDTH: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0}
ROUNDING: Final = 1.03
"""Reserved over allocated bytes: estimate (blocks of 2 MiB and 20 MiB, c10/cuda/CUDACachingAllocator.cpp; expandable segments)."""
THRASHING: Final = 0.875
"""Share of the memory from which on the allocator frees and retries: nanotron on 80 GB slows down 3 to 7 times from 70 GB on."""
COMMUNICATOR: Final = 0.3 * 2.0**30
"""Bytes of one NCCL communicator: estimate (1 to 3 GB for a process with several, NVIDIA/Megatron-Bridge performance guide)."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one rank of a stage at its fullest moment, by use."""

    stage: int
    weights: float
    gradients: float
    optimizer_state: float
    activations: float
    gathered: float
    """Weights gathered from shards, and gradients on their way to them."""
    workspace: float
    communication_buffers: float
    context: float

    @property
    def allocated(self) -> float:
        """Return what torch's allocator holds (``max_memory_allocated``)."""
        return self.total - self.communication_buffers - self.context

    @property
    def reserved(self) -> float:
        """Return what torch's allocator keeps from the driver (``max_memory_reserved``)."""
        return self.allocated * ROUNDING

    @property
    def total(self) -> float:
        """Return all bytes."""
        return math.fsum(value for name, value in asdict(self).items() if name != "stage")

    def verdict(self, gpu: Gpu) -> Verdict:
        """Return whether the rank runs on *gpu*."""
        if self.reserved + self.communication_buffers + self.context > gpu.memory:
            return "does_not_fit"
        return "thrashes" if self.allocated > THRASHING * gpu.memory else "fits"

    def by_use(self) -> dict[str, float]:
        """Return the bytes by use and in all."""
        uses = {name: value for name, value in asdict(self).items() if name != "stage"}
        return {**uses, "allocated": self.allocated, "reserved": self.reserved, "total": self.total}


def memory_by_stage(layout: Layout, workload: Workload, gpu: Gpu) -> tuple[StageMemory, ...]:
    """Return the memory of one rank of each stage."""
    return tuple(_stage(layout, stage, workload, gpu) for stage in range(layout.mesh.stages))


def _stage(layout: Layout, stage: int, workload: Workload, gpu: Gpu) -> StageMemory:
    mesh, options, parallel = layout.mesh, layout.options, layout.mesh.parallel
    held = layout.units_of(stage)
    level = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[parallel.shard]
    weights = gradients = states = 0.0
    for experts in (False, True):
        shards = mesh.group_size("expert_data" if experts else "shard")
        total = sum(layout.elements(unit, experts=experts) for unit in held)
        trained = sum(layout.elements(unit, experts=experts, trained=True) for unit in held)
        weights += total * _WIDTH[options.weights] / (shards if level == 3 else 1)
        gradients += trained * _WIDTH[options.gradients] / (shards if level >= 2 else 1)
        states += sum(
            layout.elements(unit, experts=experts, trained=True) * _state_width(workload, options, layout.units[unit].kind == "block")
            for unit in held
        ) / (shards if level >= 1 else 1)
    activations, workspace = _replayed(layout, stage, workload)
    communicators = sum(mesh.group_size(axis) > 1 for axis in _AXES)
    return StageMemory(
        stage, weights, gradients, states, activations, _gathered(layout, held), workspace, communicators * COMMUNICATOR, gpu.context_memory
    )


def widths(workload: Workload, options: MeshOptions) -> tuple[float, float, float]:
    """Return the bytes of an element's weight, gradient, and states (of any element at least)."""
    states = min(_state_width(workload, options, in_block) for in_block in (False, True))
    return _WIDTH[options.weights], _WIDTH[options.gradients], states


def _state_width(workload: Workload, options: MeshOptions, in_block: bool) -> float:
    """Return the bytes of states and master weights of one element, *in_block* or in embedding and head."""
    return workload.training.optimizer.state_width(_WIDTH[options.states], in_block) + (4.0 if options.master else 0.0)


def _gathered(layout: Layout, held: Sequence[int]) -> float:
    """Return the bytes of gathered weights and unreduced gradients: of FSDP's units, none elsewhere."""
    if not layout.sharded_parameters:
        return 0.0
    elements = [layout.elements(unit, experts=False) + layout.elements(unit, experts=True) for unit in held]
    largest = max(elements)
    kept = sum(elements) if not layout.frees else largest + max([*sorted(elements)[-2:-1], largest])
    return kept * layout.gathered + largest * (layout.reduced + layout.gathered)


def _replayed(layout: Layout, stage: int, workload: Workload) -> tuple[float, float]:
    """Return the activations kept at the fullest moment of a step, and the scratch of that moment."""
    own = layout.mesh.parallel
    numbers = [layout.chunks[layout.chunk_of(stage, chunk)] for chunk in range(own.chunks)]
    alike = {layout.units[unit].content: layout.units[unit] for units in numbers for unit in units}
    of_unit = {content: (kept_bytes(unit, workload), _scratch(unit, workload)) for content, unit in alike.items()}
    contents = [[layout.units[unit].content for unit in units] for units in numbers]
    kept = [sum(of_unit[content][0] for content in each) for each in contents]
    scratch = [max((of_unit[content][1] for content in each), default=0.0) for each in contents]
    fullest = (0.0, 0.0)
    for counts, chunk in _held(layout.schedule, layout.mesh.stages, own.chunks, layout.micro_batches, stage):
        current = sum(count * size for count, size in zip(counts, kept, strict=True))
        fullest = max(fullest, (current, scratch[chunk]), key=sum)
    return fullest


@lru_cache(maxsize=4096)
def _held(schedule: Schedule, stages: int, chunks: int, micro_batches: int, stage: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the different states of a step: micro-batches of each chunk whose activations are held, and the chunk that is at work.

    Where backward is split, products keep their inputs for the weights' half.
    """
    states: dict[tuple[tuple[int, ...], int], None] = {}
    held = [0] * chunks
    for action in actions(schedule, stages, chunks, micro_batches, stage):
        if action.kind == "F":
            held[action.chunk] += 1
        states[tuple(held), action.chunk] = None
        if action.kind in ("B", "W"):
            held[action.chunk] -= 1
    return tuple(states)


def _bytes(layer: Layer, amount: float, workload: Workload) -> float:
    width = 4.0 if layer.op in ("softmax", "loss") else MEANING[workload.training.precision].activation
    return amount * width / 4.0 * workload.training.batch


def kept_bytes(unit: Unit, workload: Workload) -> float:
    """Return the bytes that the forward of *unit* keeps for the backward of one micro-batch."""
    checkpointing = workload.training.activation_checkpointing
    if unit.kind == "block" and checkpointing == "blocks":
        return _bytes(unit.pieces[0].layer, unit.boundary, workload)
    return sum(_bytes(piece.layer, piece.layer.saved, workload) for piece in unit.pieces)


def _scratch(unit: Unit, workload: Workload) -> float:
    """Return what backward needs beside: a layer's gradients, and activations that a checkpointed block makes again."""
    again = 0.0
    if unit.kind == "block" and workload.training.activation_checkpointing == "blocks":
        again = sum(_bytes(piece.layer, piece.layer.saved, workload) for piece in unit.pieces)
    return again + max((_bytes(piece.layer, piece.layer.read + piece.layer.write, workload) for piece in unit.pieces), default=0.0)
