"""How much GPU memory does each stage of a layout need at its peak? The stage's program is replayed with all allocations and frees.

A rank keeps weights, gradients and optimizer states from step to step (`held_memory`). A forward pass keeps its activations
(`kept_activations`) until the backward pass of the same chunk and micro-batch, so the first stage of a pipeline holds as many micro-batches
as its schedule has in flight. A checkpointed block keeps its input and the outputs that are saved by name. FSDP gathers weights into a
buffer, copies them out of it, and reduce-scatters gradients out of another buffer. One of each is in flight along with the computing unit.
A group of one rank needs no buffer for weights, but copies gradients through the same one as other groups.

The allocator's blocks belong to a stream. Other streams cannot reuse what a side stream frees, so each stream counts with its own peak.
Limits: no fragmentation beyond a share for the allocator's rounding (`StageMemory.reserved`); NCCL's buffers are an estimate. Jobs without
a layout: `sim.analysis.memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile, zip_longest
from typing import Final, Literal, NamedTuple, get_args

from sim.analysis.held_memory import HeldMemory, held_memory
from sim.analysis.kept_activations import activation_bytes
from sim.analysis.memory import THRASHING
from sim.analysis.unit_passes import UnitPass, freed_logit_bytes, unit_pass
from sim.parallel.lower.copies import lone_gradient_bytes, unreduced_width
from sim.parallel.lower.layouts import Layout, program
from sim.parallel.lower.wrapped import Wrap, WrapSequence
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Copy, Free, Instruction, Start, Tag, Update, Wait, Work
from sim.parallel.split import Unit
from sim.spec.hardware import Gpu
from sim.spec.layer import WIDTHS
from sim.spec.lengths import at_full_length
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.workload import Workload

_AXES: Final[tuple[GroupAxis, ...]] = ("tensor", "context", "shard", "replicate", "expert", "pipeline")
FitVerdict = Literal["fits", "thrashes", "does_not_fit"]
VERDICTS: Final[tuple[FitVerdict, ...]] = get_args(FitVerdict)

RESERVED_OVER_ALLOCATED: Final = 1.03
"""Reserved over allocated bytes: estimate (blocks of 2 MiB and 20 MiB, c10/cuda/CUDACachingAllocator.cpp; expandable segments)."""
_FSDP1_SCATTERS: Final = 2
"""Number of FSDP1 reduce-scatters whose inputs are still in use. FSDP1 holds no reference to the inputs, and the all-gather of the next
block but one is queued behind them on the same communicator. Without gathers in backward (SHARD_GRAD_OP), the same number is assumed."""
COMMUNICATOR_BYTES: Final = 0.3 * 2.0**30
"""Bytes of one NCCL communicator: estimate (1 to 3 GB for a process with several, NVIDIA/Megatron-Bridge performance guide)."""


@dataclass(frozen=True)
class StageMemory:
    """Peak memory (bytes) of one rank of a stage, by use."""

    stage: int
    weights: float
    gradients: float
    """Sharded gradients, full gradients before they are reduced, and inputs of reduce-scatters."""
    optimizer_state: float
    activations: float
    gathered: float
    """Weights gathered from shards, and the output buffers of the gathers."""
    workspace: float
    cached: float
    """Blocks that the allocator keeps although they are empty at this moment: of other streams, the loss, or the optimizer's step."""
    communication_buffers: float
    context: float

    @property
    def allocated(self) -> float:
        """Return the bytes allocated by torch's allocator (``max_memory_allocated``)."""
        return self.total - self.cached - self.communication_buffers - self.context

    @property
    def reserved(self) -> float:
        """Return the bytes that torch's allocator reserves from the driver (``max_memory_reserved``)."""
        return (self.allocated + self.cached) * RESERVED_OVER_ALLOCATED

    @property
    def of_gpu(self) -> float:
        """Return the bytes that the rank takes from its GPU: what ``nvidia-smi`` shows."""
        return self.reserved + self.communication_buffers + self.context

    @property
    def total(self) -> float:
        """Return the bytes of all uses."""
        return math.fsum(value for name, value in asdict(self).items() if name != "stage")

    def verdict(self, gpu: Gpu) -> FitVerdict:
        """Return whether the rank runs on *gpu*."""
        if self.of_gpu > gpu.memory:
            return "does_not_fit"
        return "thrashes" if self.reserved > THRASHING * gpu.memory else "fits"

    def by_use(self) -> dict[str, float]:
        """Return the bytes by use, with ``allocated``, ``reserved`` and ``total``."""
        uses = {name: value for name, value in asdict(self).items() if name != "stage"}
        return {**uses, "allocated": self.allocated, "reserved": self.reserved, "total": self.total}


def worst_verdict(stages: Iterable[StageMemory], gpu: Gpu) -> FitVerdict:
    """Return whether the ranks of all *stages* run on *gpu*."""
    return max((stage.verdict(gpu) for stage in stages), key=VERDICTS.index)


def memory_by_stage(layout: Layout, workload: Workload, gpu: Gpu) -> tuple[StageMemory, ...]:
    """Return the peak memory of one rank of each stage."""
    short = _at_full_length(shorten_layout(layout), workload)
    stages = (_stage_replay(short, stage, workload, gpu) for stage in range(layout.mesh.stages))
    return tuple(at(replay.fullest()) for replay, at in stages)


def shorten_layout(layout: Layout) -> Layout:
    """Return *layout* with only as many micro-batches as are needed until the memory of a stage repeats."""
    many, stages = layout.micro_batches, layout.mesh.stages
    if layout.own_passes is not None:
        return layout
    if layout.schedule == "1f1b":
        return _with_micro_batches(layout, stages + 2)
    if layout.schedule == "interleaved_1f1b":
        rounds = max(1, many // stages)
        return _with_micro_batches(layout, min(rounds, 3) * (many // rounds)) if many % rounds == 0 else layout
    return layout


def _with_micro_batches(layout: Layout, micro_batches: int) -> Layout:
    return layout if micro_batches >= layout.micro_batches else replace(layout, micro_batches=micro_batches)


def memory_timeline(layout: Layout, workload: Workload, gpu: Gpu, stage: int) -> tuple[StageMemory, ...]:
    """Return the peak memory of one rank of *stage* during each instruction of its program, in order."""
    replay, at = _stage_replay(_at_full_length(layout, workload), stage, workload, gpu)
    return tuple(map(at, replay.course()))


def _at_full_length(layout: Layout, workload: Workload) -> Layout:
    """Return *layout* with unpadded sequences of a decoder at their full length: they occur now and then, and memory must hold them."""
    mean = workload.model.computed_share
    if mean is None:
        return layout

    def longer(unit: Unit) -> Unit:
        layers = at_full_length(tuple(piece.layer for piece in unit.pieces), mean)
        pieces = tuple(piece._replace(layer=layer) for piece, layer in zip(unit.pieces, layers, strict=True))
        return replace(unit, pieces=pieces)

    entering = tuple(nbytes / mean for nbytes in layout.input_bytes)
    return replace(layout, units=tuple(map(longer, layout.units)), input_bytes=entering)


def _stage_replay(layout: Layout, stage: int, workload: Workload, gpu: Gpu) -> tuple[_Replay, Callable[[_StepMoment], StageMemory]]:
    """Return the replay of *stage*, and a function that converts one of its moments to a `StageMemory`."""
    options = layout.options
    held = held_memory(layout, stage, workload, gpu)
    replay = _Replay(layout, stage, workload, held)
    communicators = options.communicators + sum(layout.mesh.group_size(axis) > 1 for axis in _AXES)

    def at(moment: _StepMoment) -> StageMemory:
        return StageMemory(
            stage=stage,
            weights=held.weights,
            gradients=moment.gradients,
            optimizer_state=held.states,
            activations=moment.activations,
            gathered=moment.gathered,
            workspace=moment.workspace,
            cached=replay.cached(moment) + held.stepping + options.flat_buffers,
            communication_buffers=communicators * COMMUNICATOR_BYTES,
            context=gpu.context_memory,
        )

    return replay, at


class _StepMoment(NamedTuple):
    """Bytes that are allocated and freed within a step."""

    gradients: float
    activations: float
    gathered: float
    workspace: float


class _Replay:
    """Replays the program of a stage without time: applies what each instruction allocates and frees."""

    def __init__(self, layout: Layout, stage: int, workload: Workload, held: HeldMemory) -> None:
        self.layout, self.workload = layout, workload
        self.casts = held.casts
        gradients = 0.0 if layout.shards_parameters and layout.micro_batches == 1 else held.gradients
        self.program = program(layout, stage)
        self.grows = layout.shards_parameters and not gradients
        """Whether sharded gradients are allocated when they are first reduced."""
        self.gradients = gradients
        self.activations = 0.0
        chunks = (layout.chunks[layout.chunk_of(stage, each)] for each in range(layout.mesh.parallel.chunks))
        self.wraps = {unit: wrap for units in chunks for unit, wrap in WrapSequence(layout, units).innermost.items()}
        self.weights: dict[int, float] = {}
        """Gathered weights of each unit."""
        self.gathers: dict[Tag, float] = {}
        """Output buffers of gathers."""
        self.copied: Tag | None = None
        """The forward gather whose buffer is freed after the next gather's copy, or at the end of the forward pass."""
        self.unreduced: dict[int, float] = {}
        """Gradients of each unit before they are reduce-scattered."""
        self.scatters: dict[Tag, float] = {}
        """Input buffers of reduce-scatters."""
        self.lone_buffers: list[Tag] = []
        """Those among them of groups of one rank, which the next reduction frees."""
        self.passes: dict[tuple[int, bool], UnitPass] = {}
        self.forward: Work | None = None
        """The forward pass that runs as a pair with the next backward pass: what one allocates, the other frees meanwhile."""
        self.backward: tuple[str, int] | None = None
        """The backward pass (part and micro-batch) whose gradients are kept until it ends."""
        self.waits = layout.options.gradients_wait and layout.mesh.parallel.shard not in ("gradients", "parameters")
        self.buffered = self._input_buffers()
        self.fullest_of = [0.0, 0.0, 0.0]
        """Peak bytes so far of each stream that owns blocks: compute, gathers, scatters."""
        keeps = layout.options.keeps_sent and layout.mesh.stages > 1
        self.sent = {units[-1]: nbytes for units, nbytes in zip(layout.chunks, layout.input_bytes[1:], strict=False) if units and keeps}
        """Bytes of outputs sent to another stage, by unit, if they are kept."""
        self.recorded = self._recorded(stage) if layout.options.records_streams else 0.0
        self.table_gradients = self._table_gradients(stage) if self.waits else 0.0
        self.freed = 0.0
        """Bytes of logits in freed blocks that later allocations cannot reuse."""
        self.best = _StepMoment(gradients, 0.0, 0.0, 0.0)
        """The moment with the most bytes so far."""

    def fullest(self) -> _StepMoment:
        """Return the moment of the step with the most bytes."""
        for instruction in self.program:
            self._play(instruction)
        return self.best

    def course(self) -> list[_StepMoment]:
        """Return the moment with the most bytes during each instruction of the step, in order."""
        moments = []
        for instruction in self.program:
            self.best = self._current_moment()
            self._play(instruction)
            moments.append(max(self.best, self._current_moment(), key=sum))
        return moments

    def _play(self, instruction: Instruction) -> None:
        if type(instruction) is Work:  # most instructions
            if instruction.part == "F" and instruction.beside is not None:
                self.forward = instruction
            else:
                self._pass_units(instruction)
            return
        match instruction:
            case Start(tag=(what, unit, _)) if what.startswith("gather"):
                self._gather(instruction)
            case Start(tag=(what, unit, _), op="reduce_scatter") if what.startswith("scatter"):
                self._scatter(instruction)
            case Wait(tag=tag):
                self._arrived(tag)
            case Copy(what="weights", tag=tag) if tag is not None:
                self.gathers[tag] = 0.0
                self._arrived(tag)
            case Copy(what="gradients", tag=tag) if tag is not None:
                self._reduce_alone(tag, instruction.nbytes / lone_gradient_bytes(self.layout))
            case Free(units=units):
                for unit in units:
                    self._free(unit)
            case Update():
                self._free_lone_buffers()
                self._update_peak(self.casts)

    def _pass_units(self, work: Work) -> None:
        """Pass over the units of *work*, in turns with those of the forward that runs as a pair with it."""
        numbers = range(work.first, work.last + 1)
        if self.forward is None:
            for number in numbers if work.part == "F" else reversed(numbers):
                self._work(number, work.part, work.micro_batch)
            return
        forward, self.forward = self.forward, None
        for entering, leaving in zip_longest(range(forward.first, forward.last + 1), reversed(numbers)):
            if entering is not None:
                self._work(entering, "F", forward.micro_batch, paired=True)
            if leaving is not None:
                self._work(leaving, work.part, work.micro_batch)

    def _current_moment(self, workspace: float = 0.0, made: float = 0.0) -> _StepMoment:
        """Return the current moment, with *workspace* and the gradients just *made* added to what is held."""
        gathers = sum(self.gathers.values()) if self.gathers else 0
        scatters = sum(self.scatters.values()) if self.scatters else 0
        weights = sum(self.weights.values()) if self.weights else 0
        unreduced = (sum(self.unreduced.values()) if self.unreduced else 0) + made
        shards = self.gradients if self.grows else 0.0
        computing, scattering = self.activations + self.buffered + weights + unreduced + workspace, scatters + shards
        fullest = self.fullest_of
        if computing > fullest[0]:
            fullest[0] = computing
        if gathers > fullest[1]:
            fullest[1] = gathers
        if scattering > fullest[2]:
            fullest[2] = scattering
        return _StepMoment(self.gradients + unreduced + scatters, self.activations, gathers + weights, workspace + self.buffered)

    def _update_peak(self, workspace: float = 0.0, made: float = 0.0) -> None:
        moment = self._current_moment(workspace, made)
        if sum(moment) > sum(self.best):
            self.best = moment

    def cached(self, moment: _StepMoment) -> float:
        """Return the bytes of blocks that are kept although they are empty at *moment*; call it after the whole step is replayed."""
        held = sum(moment) - (0.0 if self.grows else self.gradients)
        return max(0.0, sum(self.fullest_of) - held) + self.freed + self.recorded + self.table_gradients

    def _recorded(self, stage: int) -> float:
        """Return the bytes of outputs summed by tensor-parallel collectives, for the blocks by which the host runs ahead of the GPU."""
        layout = self.layout
        blocks = [layout.units[unit] for unit in layout.units_of(stage) if layout.units[unit].kind == "block"]
        messages = (message for unit in blocks for piece in unit.pieces for message in piece.forward if message.axis == "tensor")
        summed = sum(message.nbytes for message in messages if message.op != "all_gather") * self._activation_factor()
        if not layout.options.blocks_ahead:
            return summed / layout.mesh.parallel.chunks
        return summed / len(blocks) * min(self._blocks_before_backward(), layout.options.blocks_ahead) if blocks else 0.0

    def _table_gradients(self, stage: int) -> float:
        """Return the bytes of gradients of embedding and head that need blocks of their own because those of activations are too small."""
        units = [self.layout.units[unit] for unit in self.layout.units_of(stage)]
        blocks = max(
            (activation_bytes(piece.layer, piece.layer.write, self.workload) for unit in units for piece in unit.pieces), default=0.0
        )
        width = WIDTHS[self.layout.options.weights]
        tables = (self._trained(number) * width for number in self.layout.units_of(stage) if self.layout.units[number].kind != "block")
        return sum(table for table in tables if table > blocks)

    def _blocks_before_backward(self) -> int:
        """Return the number of blocks whose forward passes precede the first backward pass."""
        works = (instruction for instruction in self.program if isinstance(instruction, Work))
        first = (range(work.first, work.last + 1) for work in takewhile(lambda work: work.part == "F", works))
        return sum(self.layout.units[unit].kind == "block" for units in first for unit in units)

    def _activation_factor(self) -> float:
        """Return the factor from 32-bit activation bytes of one sample to the activation bytes of a micro-batch."""
        return PRECISION_TRAITS[self.workload.training.precision].activation / 4.0 * self.workload.training.batch

    def _input_buffers(self) -> float:
        """Return the bytes of the buffers into which inputs of split matrix products are gathered."""
        layout = self.layout
        if not layout.mesh.parallel.sequence_parallel:
            return 0.0
        entering = max(
            (piece.layer.read for unit in layout.units if unit.kind == "block" for piece in unit.pieces if piece.layer.share == "colwise"),
            default=0.0,
        )
        return layout.options.input_buffers * entering * self._activation_factor()

    def _work(self, number: int, part: str, micro_batch: int, paired: bool = False) -> None:
        unit = self.layout.units[number]
        key = unit.content, part == "F"
        if key not in self.passes:
            self.passes[key] = unit_pass(self.layout, self.workload, unit, part == "F")
            self.freed = max(self.freed, freed_logit_bytes(unit, self.workload))
        own = self.passes[key]
        if part != "F":
            self._end_forward()
        if self.waits and not paired and (part == "F" or (part, micro_batch) != self.backward):
            self.unreduced.clear()
            self.backward = part, micro_batch
        self._update_peak(own.peak - own.made, own.made)
        if part != "I":  # if backward is split, matrix products keep their inputs for the weight gradients
            self.activations = max(0.0, self.activations + own.net)
            sent = self.sent.get(number, 0.0)
            self.activations += sent if part == "F" else -sent
        if part in ("B", "W") and self.layout.shards_parameters:
            self.unreduced[number] = self._trained(number) * unreduced_width(self.layout)
            self._update_peak()
        elif self.waits and part in ("B", "W"):
            self.unreduced[number] = self._trained(number) * WIDTHS[self.layout.options.weights]
            self._update_peak()

    # --- weights that are gathered and freed ---------------------------------------------------------------------

    def _elements(self, number: int) -> float:
        return self.layout.elements(number, experts=False) + self.layout.elements(number, experts=True)

    def _trained(self, number: int) -> float:
        return self.layout.elements(number, experts=False, trained=True) + self.layout.elements(number, experts=True, trained=True)

    def _wrap(self, number: int) -> Wrap:
        """Return the units that are gathered together with unit *number*."""
        return self.wraps.get(number, (number,))

    def _arrived(self, tag: Tag) -> None:
        """Copy gathered weights out of their buffer, or free the buffer of a reduce-scatter or of an unneeded gather."""
        wrap, what, experts = self._wrap(tag[1]), tag[0].removesuffix(" experts"), tag[0].endswith(" experts")
        computes = what in ("gather F", "gather U") or any(self.layout.units[number].has_backward for number in wrap)
        # a wrap with experts may have two gathers; only the first allocates the weights
        first = not experts or not any(self.layout.elements(number, experts=False) for number in wrap)
        if tag in self.gathers and computes and first:
            for number in wrap:
                self.weights[number] = self._elements(number) * self.layout.gathered_width
            self._update_peak()
            if what == "gather F":  # freed after the next gather's copy
                tag, self.copied = self.copied or ("", 0, 0), tag
        self.gathers.pop(tag, None)
        self.scatters.pop(tag, None)

    def _free(self, number: int) -> None:
        self.weights.pop(number, None)

    def _end_forward(self) -> None:
        if self.copied is not None:
            self.gathers.pop(self.copied, None)
            self.copied = None

    def _gather(self, start: Start) -> None:
        """Gather from a rank's shard; a copy of the shard in the communicated data type exists meanwhile (torch ``foreach_all_gather``)."""
        narrower = start.axis == "shard" and self.layout.gathered_width < WIDTHS[self.layout.options.weights]
        self.gathers[start.tag] = start.nbytes * (1.0 + narrower / self.layout.mesh.group_size(start.axis))
        self._update_peak()
        self.gathers[start.tag] = start.nbytes

    def _scatter(self, start: Start) -> None:
        if self.layout.options.framework == "fsdp1":
            self.scatters = dict(list(self.scatters.items())[1 - _FSDP1_SCATTERS :])
        self._free_lone_buffers()
        self.scatters[start.tag] = start.nbytes
        shards = self.layout.mesh.group_size(start.axis)
        self._update_peak()
        kept = self._last_gradient(self._wrap(start.tag[1]))
        for number in self._wrap(start.tag[1]):
            self.unreduced.pop(number, None)
        if self.grows:
            self.gradients += start.nbytes / shards * WIDTHS[self.layout.options.gradients] / self.layout.reduced_width
            self._update_peak(made=kept)

    def _reduce_alone(self, tag: Tag, elements: float) -> None:
        """Copy the gradients of *elements* into a buffer and from there into the shards, through a quotient if they are divided."""
        layout = self.layout
        self._free_lone_buffers()
        self.lone_buffers.append(tag)
        buffer = self.scatters[tag] = elements * layout.reduced_width
        self._update_peak()
        for number in self._wrap(tag[1]):
            self.unreduced.pop(number, None)
        if self.grows:
            self.gradients += elements * WIDTHS[layout.options.gradients]
        self.scatters[tag] = buffer * (1 + layout.options.divides_gradients)
        self._update_peak()
        self.scatters[tag] = buffer

    def _free_lone_buffers(self) -> None:
        while self.lone_buffers:
            self.scatters.pop(self.lone_buffers.pop(), None)

    def _last_gradient(self, wrap: Wrap) -> float:
        """Return the bytes of a wrap's last gradient, which a loop variable in torch's ``foreach_reduce`` keeps alive until it returns."""
        tensors = [elements for number in wrap for piece in self.layout.units[number].pieces for elements in piece.layer.gradients]
        unreduced = sum(self.unreduced.get(number, 0.0) for number in wrap)
        return unreduced * tensors[-1] / sum(map(self._trained, wrap)) if tensors else 0.0
