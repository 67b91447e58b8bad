"""How does a layout become programs? Schedules, sharding and gradient exchange turned into each stage's list of instructions.

FSDP (torch ``_fsdp_param_group.py``, torchtitan ``distributed/fsdp.py``): a unit is gathered before it computes, the next one meanwhile;
after backward its gradients are reduce-scattered, one reduce-scatter in flight; without a pipeline weights are freed after forward and
gathered again. Distributed optimizer and data parallelism (Megatron-LM ``distributed_data_parallel.py``): gradients travel in buckets as
the last micro-batch's backward makes them; a sharded optimizer's weights are gathered before their next use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sim.parallel.mesh import GroupAxis, Mesh
from sim.parallel.program import Instruction, Op, Part, Program, Receive, Send, Start, Tag, Update, Wait, Work, fused
from sim.parallel.schedule import Action, actions, holder, position
from sim.parallel.split import Unit
from sim.spec.parallel import MeshOptions, Schedule

MEGATRON_BUCKET = 40e6
"""Least elements of a gradient bucket in Megatron-LM; a million for each data rank where that is more (param_and_grad_buffer.py)."""


@dataclass(frozen=True)
class Layout:
    """Everything that decides the programs of one step."""

    mesh: Mesh
    options: MeshOptions
    units: tuple[Unit, ...]
    chunks: tuple[tuple[int, ...], ...]
    """Units of each chunk, in the order of the model."""
    schedule: Schedule
    micro_batches: int
    gathered: float
    """Bytes of an element of weights as it travels."""
    reduced: float
    """Bytes of an element of gradients as it travels."""
    boundary: float
    """Bytes that one stage hands to the next for one micro-batch."""
    clips: bool
    """Whether the optimizer waits for the norm of all gradients."""
    tied: float
    """Bytes of a gradient that the first and the last stage share; 0 for none."""
    synchronizes_each: bool
    """Whether every micro-batch reduces its gradients, not just the last one."""

    @property
    def sharded_parameters(self) -> bool:
        """Whether weights are sharded (FSDP, ZeRO-3)."""
        return self.mesh.parallel.shard == "parameters" and self.mesh.group_size("shard") > 1

    @property
    def frees(self) -> bool:
        """Whether gathered weights are freed after forward."""
        wanted = self.mesh.parallel.reshard_after_forward
        return self.mesh.stages == 1 if wanted is None else bool(wanted)

    def stage_actions(self, stage: int) -> tuple[Action, ...]:
        """Return the schedule's actions on one rank of *stage*."""
        return actions(self.schedule, self.mesh.stages, self.mesh.parallel.chunks, self.micro_batches, stage)

    def chunk_of(self, stage: int, local: int) -> int:
        """Return the number in the model of a stage's chunk *local*."""
        return position(self.schedule, self.mesh.stages, stage, local)

    def units_of(self, stage: int) -> tuple[int, ...]:
        """Return the units that a stage holds, in the order of the model."""
        local = range(self.mesh.parallel.chunks)
        return tuple(unit for chunk in sorted(self.chunk_of(stage, each) for each in local) for unit in self.chunks[chunk])

    def elements(self, unit: int, *, experts: bool, trained: bool = False) -> float:
        """Return the parameters of one rank's part of *unit*: experts, or all else; experts without expert ranks are like all else."""
        own = self.units[unit]
        dense, of_experts = (own.trained, own.trained_experts) if trained else (own.elements, own.expert_elements)
        if self.mesh.parallel.expert == 1:
            dense, of_experts = dense + of_experts, 0.0
        return of_experts if experts else dense


def program(layout: Layout, stage: int) -> Program:
    """Return what each rank of *stage* does in one step."""
    lowering = _Sharded(layout, stage) if layout.sharded_parameters else _Bucketed(layout, stage)
    return fused(lowering.step())


class _Lowering:
    """One stage's instructions, action by action; subclasses say when weights and gradients travel."""

    def __init__(self, layout: Layout, stage: int) -> None:
        self.layout = layout
        self.stage = stage
        self.actions = layout.stage_actions(stage)
        self.last = {action.chunk: action for action in self.actions if action.kind in ("B", "W")}
        """The action after which a chunk has all its gradients."""
        self.many = layout.mesh.stages * layout.mesh.parallel.chunks
        self.open: list[Tag] = []
        """Reductions that the optimizer waits for."""

    def step(self) -> Iterator[Instruction]:
        yield from self.before()
        for action in self.actions:
            chunk = self.layout.chunk_of(self.stage, action.chunk)
            yield from self._received(action, chunk)
            final = self.last.get(action.chunk) is action
            units = self.layout.chunks[chunk]
            yield from self.forward(units, action) if action.kind == "F" else self.backward(units, action, final)
            yield from self._sent(action, chunk)
        yield from self.finish()
        yield from (Wait(tag) for tag in self.open)
        yield from self._tied()
        if self.layout.clips:
            yield Start(("norm", 0, 0), "all_reduce", "everyone", 4.0, "everyone")
            yield Wait(("norm", 0, 0))
        yield Update()
        yield from self.after()

    def before(self) -> Iterator[Instruction]:
        yield from ()

    def after(self) -> Iterator[Instruction]:
        yield from ()

    def finish(self) -> Iterator[Instruction]:
        yield from ()

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        raise NotImplementedError

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        raise NotImplementedError

    def _received(self, action: Action, chunk: int) -> Iterator[Instruction]:
        if action.kind == "F" and chunk > 0:
            yield from self._receive("activations", chunk, action, chunk - 1)
        elif action.kind in ("B", "I") and chunk < self.many - 1:
            yield from self._receive("gradients", chunk, action, chunk + 1)

    def _receive(self, what: str, chunk: int, action: Action, source: int) -> Iterator[Instruction]:
        stage, _ = holder(self.layout.schedule, self.layout.mesh.stages, self.layout.mesh.parallel.chunks, source)
        if stage != self.stage:
            yield Receive((what, chunk, action.micro_batch), stage)

    def _sent(self, action: Action, chunk: int) -> Iterator[Instruction]:
        if action.kind == "F" and chunk < self.many - 1:
            yield from self._send("activations", chunk + 1, action)
        elif action.kind in ("B", "I") and chunk > 0:
            yield from self._send("gradients", chunk - 1, action)

    def _send(self, what: str, to: int, action: Action) -> Iterator[Instruction]:
        stage, _ = holder(self.layout.schedule, self.layout.mesh.stages, self.layout.mesh.parallel.chunks, to)
        if stage != self.stage:
            yield Send((what, to, action.micro_batch), stage, self.layout.boundary)

    def _tied(self) -> Iterator[Instruction]:
        """Add up the gradient of a table that the first and the last stage both hold."""
        ends = {0, holder(self.layout.schedule, self.layout.mesh.stages, self.layout.mesh.parallel.chunks, self.many - 1)[0]}
        if self.layout.tied and len(ends) > 1 and self.stage in ends:
            yield Start(("tied", 0, 0), "all_reduce", "pipeline", self.layout.tied, "embedding")
            yield Wait(("tied", 0, 0))

    def reductions(self, tag: Tag, dense: float, experts: float, op: Op) -> Iterator[Start]:
        """Reduce the gradients of so many elements: among shards, then among replicas; experts among the ranks that hold the same."""
        mesh, width = self.layout.mesh, self.layout.reduced
        what, unit, micro_batch = tag
        if dense and mesh.group_size("shard") > 1:
            queue = "reduce" if self.layout.options.separate_reduce_scatter else "shard"
            yield Start(tag, op, "shard", dense * width, queue)
        if dense and mesh.group_size("replicate") > 1:
            share = mesh.group_size("shard") if op == "reduce_scatter" else 1
            yield Start((f"{what} replicas", unit, micro_batch), "all_reduce", "replicate", dense * width / share, "replicate")
        if experts and mesh.group_size("expert_data") > 1:
            yield Start((f"{what} experts", unit, micro_batch), op, "expert_data", experts * width, "expert_data")


class _Sharded(_Lowering):
    """FSDP: weights are gathered unit by unit."""

    def __init__(self, layout: Layout, stage: int) -> None:
        super().__init__(layout, stage)
        self.held: set[int] = set()
        """Units whose weights are gathered."""
        self.queued: list[Tag] = []
        self.in_flight: list[Tag] = []

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        yield from self._pass(units, action, "F")
        if self.layout.frees:
            keeps = {units[-1]} if self.layout.units[units[-1]].kind == "last" else set()
            self.held -= set(units) - keeps

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        reduces = action.kind != "I" and (final or self.layout.synchronizes_each)
        yield from self._pass(units[::-1], action, action.kind, reduces)
        if final or (self.layout.frees and action.kind != "I"):
            self.held -= set(units)

    def _pass(self, units: Sequence[int], action: Action, part: Part, reduces: bool = False) -> Iterator[Instruction]:
        regathered = part != "F" and type(self.layout.mesh.parallel.reshard_after_forward) is int
        axis: GroupAxis = "reshard" if regathered and self.layout.mesh.group_size("reshard") > 1 else "shard"
        tags: dict[int, list[Tag]] = {}
        missing = [unit for unit in units if unit not in self.held]
        for index, unit in enumerate(units):
            ahead = units[index : index + 2] if self.layout.options.forward_prefetch or part != "F" else [unit]
            for wanted in ahead:
                if wanted in missing and wanted not in tags:
                    tags[wanted] = []
                    for start in self._gather(wanted, action, part, axis):
                        tags[wanted].append(start.tag)
                        yield start
            yield from (Wait(tag) for tag in tags.get(unit, ()))
            self.held.add(unit)
            yield Work(part, unit, unit, action.micro_batch)
            if reduces:
                yield from (Wait(tag) for tag in self.in_flight)
                self.in_flight = []
                yield from self._reduce(unit, action.micro_batch)

    def _gather(self, unit: int, action: Action, part: Part, axis: GroupAxis) -> Iterator[Start]:
        layout, direction = self.layout, f"gather {part}"
        if dense := layout.elements(unit, experts=False):
            yield Start((direction, unit, action.micro_batch), "all_gather", axis, dense * layout.gathered, "shard")
        if (experts := layout.elements(unit, experts=True)) and layout.mesh.group_size("expert_data") > 1:
            tag = (f"{direction} experts", unit, action.micro_batch)
            yield Start(tag, "all_gather", "expert_data", experts * layout.gathered, "expert_data")

    def _reduce(self, unit: int, micro_batch: int) -> Iterator[Instruction]:
        dense, experts = (self.layout.elements(unit, experts=each, trained=True) for each in (False, True))
        for start in self.reductions(("scatter", unit, micro_batch), dense, experts, "reduce_scatter"):
            self.in_flight.append(start.tag)
            yield start

    def finish(self) -> Iterator[Instruction]:
        yield from (Wait(tag) for tag in self.in_flight)


class _Bucketed(_Lowering):
    """Data parallelism and sharded optimizers: whole weights, gradients in buckets."""

    def __init__(self, layout: Layout, stage: int) -> None:
        super().__init__(layout, stage)
        self.sharded = layout.mesh.parallel.shard in ("optimizer", "gradients", "parameters")
        self.gather_of: dict[int, list[Tag]] = {}
        self.late: list[Start] = []

    @property
    def bucket(self) -> float:
        """Return the elements at which a bucket closes: on stages after the first Megatron-LM sends all at once."""
        options = self.layout.options
        if options.framework == "megatron" and self.stage > 0:
            return float("inf")
        return options.bucket_elements or max(MEGATRON_BUCKET, 1e6 * self.layout.mesh.pool)

    def before(self) -> Iterator[Instruction]:
        """Gather what the optimizers of the last step updated, in the order in which forward wants it."""
        if self.sharded and self.layout.options.overlap_parameters:
            for tags, starts in self._gathers():
                for unit in tags:
                    self.gather_of[unit] = [start.tag for start in starts]
                yield from starts

    def after(self) -> Iterator[Instruction]:
        if self.sharded and not self.layout.options.overlap_parameters:
            starts = [start for _, group in self._gathers() for start in group]
            yield from starts
            yield from (Wait(start.tag) for start in starts)

    def _gathers(self) -> Iterator[tuple[list[int], list[Start]]]:
        """Yield the units of each bucket of weights with the operations that gather them."""
        layout = self.layout
        for units in self._buckets(layout.units_of(self.stage)):
            dense, experts = (sum(layout.elements(unit, experts=each, trained=True) for unit in units) for each in (False, True))
            starts = []
            if dense and layout.mesh.group_size("shard") > 1:
                starts.append(Start(("weights", units[0], 0), "all_gather", "shard", dense * layout.gathered, "shard"))
            if experts and layout.mesh.group_size("expert_data") > 1:
                tag = ("weights experts", units[0], 0)
                starts.append(Start(tag, "all_gather", "expert_data", experts * layout.gathered, "expert_data"))
            yield units, starts

    def _buckets(self, units: Sequence[int]) -> Iterator[list[int]]:
        bucket: list[int] = []
        size = 0.0
        for unit in units:
            bucket.append(unit)
            size += self.layout.elements(unit, experts=False, trained=True) + self.layout.elements(unit, experts=True, trained=True)
            if size >= self.bucket:
                yield bucket
                bucket, size = [], 0.0
        if bucket:
            yield bucket

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        for unit in units:
            for tag in self.gather_of.pop(unit, ()):
                self.gather_of = {other: [each for each in tags if each != tag] for other, tags in self.gather_of.items()}
                yield Wait(tag)
            yield Work("F", unit, unit, action.micro_batch)

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        layout = self.layout
        each = layout.synchronizes_each or layout.mesh.parallel.shard == "gradients"
        if action.kind == "I" or not (final or each):
            yield from (Work(action.kind, unit, unit, action.micro_batch) for unit in reversed(units))
            return
        for bucket in self._buckets(units[::-1]):
            yield from (Work(action.kind, unit, unit, action.micro_batch) for unit in bucket)
            dense, experts = (sum(layout.elements(unit, experts=kind, trained=True) for unit in bucket) for kind in (False, True))
            op: Op = "reduce_scatter" if self.sharded else "all_reduce"
            starts = list(self.reductions(("reduce", bucket[0], action.micro_batch), dense, experts, op))
            if layout.options.overlap_gradients:
                self.open += [start.tag for start in starts]
                yield from starts
            else:
                self.late += starts

    def finish(self) -> Iterator[Instruction]:
        yield from self.late
        self.open += [start.tag for start in self.late]
