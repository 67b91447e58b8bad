"""How much GPU memory does each stage of a layout need at its fullest? Its program replayed: what each instruction allocates and frees.

Weights, gradients and states follow the stack's data types and the sharding (ZeRO, arXiv 1910.02054); a forward keeps its activations until
the backward of the same chunk and micro-batch, so that a pipeline's first stage holds as many as its schedule has in flight; a checkpointed
block keeps its input alone. FSDP gathers into a buffer, copies weights out of it, and scatters gradients out of another; one of each is in
flight beside the unit that computes.
Limits: no fragmentation beyond a share for the allocator's rounding; NCCL's buffers are an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Literal, NamedTuple

from sim.parallel.checkpointing import checkpointed_share, discarded, kept_outputs
from sim.parallel.lower.layouts import Layout, program
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Free, Instruction, Start, Tag, Wait, Work
from sim.parallel.split import Unit
from sim.spec.hardware import Gpu
from sim.spec.parallel import MeshOptions
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
    stages = (_stage(layout, stage, workload, gpu) for stage in range(layout.mesh.stages))
    return tuple(at(replay.fullest()) for replay, at in stages)


def memory_course(layout: Layout, workload: Workload, gpu: Gpu, stage: int) -> tuple[StageMemory, ...]:
    """Return the memory of one rank of *stage* at the fullest moment of each instruction of its program, in order."""
    replay, at = _stage(layout, stage, workload, gpu)
    return tuple(map(at, replay.course()))


def _stage(layout: Layout, stage: int, workload: Workload, gpu: Gpu) -> tuple[_Replay, Callable[[_Moment], StageMemory]]:
    """Return the replay of *stage*, and what makes the memory of one of its moments."""
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
    replay = _Replay(layout, stage, workload, 0.0 if layout.sharded_parameters and layout.micro_batches == 1 else gradients)
    communicators = sum(mesh.group_size(axis) > 1 for axis in _AXES)

    def at(moment: _Moment) -> StageMemory:
        return StageMemory(
            stage=stage,
            weights=weights,
            gradients=moment.gradients,
            optimizer_state=states,
            activations=moment.activations,
            gathered=moment.gathered,
            workspace=moment.workspace,
            communication_buffers=communicators * COMMUNICATOR,
            context=gpu.context_memory,
        )

    return replay, at


def widths(workload: Workload, options: MeshOptions) -> tuple[float, float, float]:
    """Return the bytes of an element's weight, gradient, and states (of any element at least)."""
    states = min(_state_width(workload, options, in_block) for in_block in (False, True))
    return _WIDTH[options.weights], _WIDTH[options.gradients], states


def _state_width(workload: Workload, options: MeshOptions, in_block: bool) -> float:
    """Return the bytes of states and master weights of one element, *in_block* or in embedding and head."""
    return workload.training.optimizer.state_width(_WIDTH[options.states], in_block) + (4.0 if options.master else 0.0)


class _Moment(NamedTuple):
    """Bytes that come and go within a step."""

    gradients: float
    activations: float
    gathered: float
    workspace: float


class _Pass(NamedTuple):
    """One pass over a unit, in bytes beyond those before it: what remains, and the fullest moment."""

    net: float
    peak: float


class _Replay:
    """A stage's program played without time: what each instruction allocates and frees."""

    def __init__(self, layout: Layout, stage: int, workload: Workload, gradients: float) -> None:
        self.layout, self.workload = layout, workload
        self.program = program(layout, stage)
        self.grows = layout.sharded_parameters and not gradients
        """Whether gradients of shards are allocated when they are first reduced."""
        self.gradients = gradients
        self.activations = 0.0
        self.weights: dict[int, float] = {}
        """Gathered weights of each unit."""
        self.gathers: dict[Tag, float] = {}
        """Output buffers of gathers."""
        self.copied: Tag | None = None
        """The gather of this forward that is freed behind the next one's copy, or with the end of forward."""
        self.unreduced: dict[int, float] = {}
        """Gradients of each unit before they are scattered."""
        self.scatters: dict[Tag, float] = {}
        """Input buffers of reduce-scatters."""
        self.passes: dict[tuple[int, bool], _Pass] = {}
        self.best = _Moment(gradients, 0.0, 0.0, 0.0)
        """The fullest moment so far."""

    def fullest(self) -> _Moment:
        """Return the fullest moment of the step."""
        for instruction in self.program:
            self._play(instruction)
        return self.best

    def course(self) -> list[_Moment]:
        """Return the fullest moment of each instruction of the step, in order."""
        found = []
        for instruction in self.program:
            self.best = self._now()
            self._play(instruction)
            found.append(max(self.best, self._now(), key=sum))
        return found

    def _play(self, instruction: Instruction) -> None:
        match instruction:
            case Start(tag=(what, unit, _)) if what.startswith("gather"):
                self.gathers[instruction.tag] = instruction.nbytes
                self._note()
            case Start(tag=(what, unit, _), op="reduce_scatter") if what.startswith("scatter"):
                self._scatter(instruction)
            case Wait(tag=tag):
                self._arrived(tag)
            case Free(units=units):
                for unit in units:
                    self._free(unit)
            case Work():
                numbers = range(instruction.first, instruction.last + 1)
                for number in numbers if instruction.part == "F" else reversed(numbers):
                    self._work(number, instruction.part)

    def _now(self, workspace: float = 0.0) -> _Moment:
        buffers = sum(self.gathers.values()) + sum(self.scatters.values())
        gathered = buffers + sum(self.weights.values()) + sum(self.unreduced.values())
        return _Moment(self.gradients, self.activations, gathered, workspace)

    def _note(self, workspace: float = 0.0) -> None:
        self.best = max(self.best, self._now(workspace), key=sum)

    def _work(self, number: int, part: str) -> None:
        unit = self.layout.units[number]
        key = unit.content, part == "F"
        if key not in self.passes:
            self.passes[key] = self._pass(unit, part == "F")
        own = self.passes[key]
        if part != "F":
            self._forward_ends()
        self._note(own.peak)
        if part != "I":  # where backward is split, products keep their inputs for the weights' half
            self.activations = max(0.0, self.activations + own.net)
        if part in ("B", "W") and self.layout.sharded_parameters:
            width = self.layout.gathered if self.layout.micro_batches == 1 or self.layout.synchronizes_each else self.layout.reduced
            self.unreduced[number] = self._trained(number) * width
            self._note()

    def _pass(self, unit: Unit, forward: bool) -> _Pass:
        """Return what the pieces of *unit* keep and free one after another; of blocks of which some are checkpointed, the mean of both."""
        training = self.workload.training
        mode = training.activation_checkpointing
        if unit.kind != "block" or mode not in ("blocks", "operators"):
            return self._one_pass(unit, forward, checkpointed=False)
        share = checkpointed_share(training, self.layout.units, self.layout.mesh.stages)
        found = self._one_pass(unit, forward, checkpointed=True)
        if share == 1.0:
            return found
        plain = self._one_pass(unit, forward, checkpointed=False)
        return _Pass(share * found.net + (1.0 - share) * plain.net, max(found.peak, plain.peak))

    def _one_pass(self, unit: Unit, forward: bool, checkpointed: bool) -> _Pass:
        workload = self.workload
        mode = workload.training.activation_checkpointing
        kept = [_bytes(piece.layer, piece.layer.saved, workload) for piece in unit.pieces]
        scratch = [_bytes(piece.layer, piece.layer.read + piece.layer.write, workload) for piece in unit.pieces]
        entering = _bytes(unit.pieces[0].layer, unit.boundary, workload) if checkpointed else 0.0
        entering += sum(_bytes(layer, layer.write * share, workload) for layer, share in kept_outputs(mode, unit)) if checkpointed else 0.0
        total, again = sum(kept), _again(unit, workload)
        if forward:
            done = 0.0
            peaks = []
            for own, beside in zip(kept, scratch, strict=True):
                peaks.append(done + beside)
                done += 0.0 if checkpointed else own
            return _Pass(entering if checkpointed else total - again, max(peaks, default=0.0))
        left, made = (total if checkpointed else again), 0.0
        peaks = []
        for piece, own, beside in zip(reversed(unit.pieces), reversed(kept), reversed(scratch), strict=True):
            made += sum(piece.layer.gradients) * self.layout.gathered if self.layout.sharded_parameters else 0.0
            peaks.append(left + made + beside)
            left -= own
        return _Pass(-(entering if checkpointed else total - again), max(peaks, default=0.0))

    # --- weights that are gathered and freed ---------------------------------------------------------------------

    def _elements(self, number: int) -> float:
        return self.layout.elements(number, experts=False) + self.layout.elements(number, experts=True)

    def _trained(self, number: int) -> float:
        return self.layout.elements(number, experts=False, trained=True) + self.layout.elements(number, experts=True, trained=True)

    def _wrap(self, number: int) -> list[int]:
        """Return the units that are gathered with unit *number*."""
        units = self.layout.units
        ends = self.layout.rooted and units[number].kind != "block"
        return [each for each in range(len(units)) if units[each].kind != "block"] if ends else [number]

    def _arrived(self, tag: Tag) -> None:
        """Copy gathered weights out of their buffer, or free that of a reduce-scatter."""
        if tag in self.gathers and not tag[0].endswith("experts"):
            for number in self._wrap(tag[1]):
                self.weights[number] = self._elements(number) * self.layout.gathered
            self._note()
            if tag[0] == "gather F":  # freed behind the next copy
                tag, self.copied = self.copied or ("", 0, 0), tag
        self.gathers.pop(tag, None)
        self.scatters.pop(tag, None)

    def _free(self, number: int) -> None:
        self.weights.pop(number, None)

    def _forward_ends(self) -> None:
        if self.copied is not None:
            self.gathers.pop(self.copied, None)
            self.copied = None

    def _scatter(self, start: Start) -> None:
        self.scatters[start.tag] = start.nbytes
        shards = self.layout.mesh.group_size(start.axis)
        self._note()
        for number in self._wrap(start.tag[1]):
            self.unreduced.pop(number, None)
        if self.grows:
            self.gradients += start.nbytes / shards * _WIDTH[self.layout.options.gradients] / self.layout.reduced
            self._note()


def kept_bytes(unit: Unit, workload: Workload) -> float:
    """Return the bytes that the forward of *unit* keeps for the backward of one micro-batch, of the blocks that keep least."""
    if unit.kind == "block" and workload.training.activation_checkpointing == "blocks":
        return _bytes(unit.pieces[0].layer, unit.boundary, workload)
    return sum(_bytes(piece.layer, piece.layer.saved, workload) for piece in unit.pieces) - _again(unit, workload)


def _again(unit: Unit, workload: Workload) -> float:
    """Return the bytes that a block does not keep since modules of it are recomputed."""
    modules = workload.training.recompute_modules
    if unit.kind != "block" or not modules:
        return 0.0
    return sum(_bytes(piece.layer, saved, workload) for piece, saved in zip(unit.pieces, discarded(modules, unit), strict=True))


def _bytes(layer: Layer, amount: float, workload: Workload) -> float:
    width = 4.0 if layer.op in ("softmax", "loss") else MEANING[workload.training.precision].activation
    return amount * width / 4.0 * workload.training.batch
