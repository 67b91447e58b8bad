"""How does a layout become programs? Schedules, sharding and gradient exchange turned into each stage's list of instructions.

FSDP (torch ``_fsdp_param_group.py``, torchtitan ``distributed/fsdp.py``): a unit is gathered before it computes, the next one meanwhile;
after backward its gradients are reduce-scattered, one reduce-scatter in flight; without a pipeline weights are freed after forward and
gathered again, with one they stay and gradients are reduced after the last backward. Distributed optimizer and data parallelism
(Megatron-LM ``distributed_data_parallel.py``): gradients travel in buckets as the last micro-batch's backward makes them; a sharded
optimizer's weights are gathered before their next use, the next bucket while one is used.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from sim.parallel.mesh import GroupAxis, Mesh
from sim.parallel.program import Free, Instruction, Op, Part, Program, Receive, Send, Start, Tag, Update, Wait, Work, fused
from sim.parallel.schedule import Action, actions, holder, position
from sim.parallel.split import Unit
from sim.spec.parallel import MeshOptions, Schedule

Wrap = tuple[int, ...]
"""Units that one call of ``fully_shard`` covers."""
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
    def rooted(self) -> bool:
        """Whether the ends of the model belong to FSDP's root: the stack wraps no more than blocks, or both ends use one table."""
        return self.options.root or bool(self.tied and self.mesh.stages == 1)

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
            yield Start(("tied", 0, 0), "all_reduce", "ends", self.layout.tied, "ends")
            yield Wait(("tied", 0, 0))

    def reductions(self, tag: Tag, dense: float, experts: float, op: Op) -> Iterator[Start]:
        """Reduce the gradients of so many elements: among shards, then among replicas; experts among the ranks that hold the same."""
        mesh, width = self.layout.mesh, self.layout.reduced
        what, unit, micro_batch = tag
        first = None
        if dense and mesh.group_size("shard") > 1:
            queue = "reduce" if self.layout.options.separate_reduce_scatter else "shard"
            first = tag
            yield Start(tag, op, "shard", dense * width, queue)
        if dense and mesh.group_size("replicate") > 1:
            share = mesh.group_size("shard") if op == "reduce_scatter" else 1
            among = (f"{what} replicas", unit, micro_batch)
            yield Start(among, "all_reduce", "replicate", dense * width / share, "replicate", after=first)
        if experts and mesh.group_size("expert_data") > 1:
            yield Start((f"{what} experts", unit, micro_batch), op, "expert_data", experts * width, "expert_data")


class _Sharded(_Lowering):
    """FSDP: weights are gathered wrap by wrap. A wrap is what one call of ``fully_shard`` covers: a unit, or the root with both ends."""

    def __init__(self, layout: Layout, stage: int) -> None:
        super().__init__(layout, stage)
        self.held: set[Wrap] = set()
        """Wraps whose weights are gathered."""
        self.scatters: list[Tag] = []
        """Reduce-scatters that the next one waits for: one is in flight at a time."""
        self.ends_with: list[Tag] = []
        """Operations that end with this backward."""

    @property
    def pipelined(self) -> bool:
        """Whether weights stay after backward and gradients are reduced at the end (``perform_reduce_grad`` of torch's pipelining)."""
        return self.layout.mesh.stages > 1

    def _wraps(self, units: Sequence[int]) -> dict[int, Wrap]:
        """Return the wrap of each unit of a chunk, the root first."""
        ends = tuple(unit for unit in units if self._of_root(unit))
        return dict.fromkeys(ends, ends) | {unit: (unit,) for unit in units if unit not in ends}

    def _of_root(self, unit: int) -> bool:
        return self.layout.rooted and self.layout.units[unit].kind != "block"

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        wraps, gathers = self._wraps(units), _Gathers(self, action, "F")
        for wrap in dict.fromkeys(wraps.values()):
            if self._of_root(wrap[0]):  # before anything computes
                yield from gathers.needed(wrap)
        for unit, following in zip_longest(units, units[1:]):
            yield from gathers.needed(wraps[unit])
            if following is not None and self.layout.options.forward_prefetch:
                yield from gathers.started(wraps[following], prefetch=True)
            yield Work("F", unit, unit, action.micro_batch)
            if self.layout.frees and not self._stays(wraps[unit]) and unit == wraps[unit][-1]:
                yield Free(wraps[unit])
        self.held |= set(wraps.values())
        if self.layout.frees:
            self.held -= {wrap for wrap in wraps.values() if not self._stays(wrap)}

    def _stays(self, wrap: Wrap) -> bool:
        """Tell whether forward leaves *wrap* gathered, since backward begins with it; not where all are to be freed."""
        last = self._of_root(wrap[0]) or self.layout.units[wrap[-1]].kind == "last"
        return last and self.layout.mesh.parallel.reshard_after_forward is not True

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        wraps, gathers = self._wraps(units), _Gathers(self, action, action.kind)
        reduces = final or (self.layout.synchronizes_each and not self.pipelined)
        left = list(dict.fromkeys(wraps.values()))
        """Wraps whose gradients are not reduced yet: autograd tells of the end of a unit only where gradients pass through its input."""
        lowest = next((unit for unit in units if self.layout.units[unit].has_backward), None)
        late = {unit for unit in units if self._of_root(unit) or unit == lowest}
        for wrap in dict.fromkeys(wraps.values()):
            if self._of_root(wrap[0]) and action.kind != "W":  # gradients of weights need no weights
                yield from gathers.needed(wrap)
        for unit, following in zip_longest(units[::-1], units[-2::-1]):
            if not self.layout.units[unit].has_backward:
                break  # frozen from here on; its weights were gathered all the same
            if action.kind != "W":
                yield from gathers.needed(wraps[unit])
                if following is not None:
                    yield from gathers.started(wraps[following])
            yield Work(action.kind, unit, unit, action.micro_batch)
            if not self.pipelined and unit not in late:
                left.remove(wraps[unit])
                yield from self._freed(wraps[unit], action.micro_batch, reduces)
        self.ends_with += gathers.unused()
        if self.pipelined and not final:
            self.held |= set(wraps.values())
            return
        self.held -= set(wraps.values())
        for wrap in left:
            yield from self._freed(wrap, action.micro_batch, reduces)
        if reduces:
            yield from map(Wait, (*self.scatters, *self.ends_with))
            self.scatters, self.ends_with = [], []

    def _freed(self, wrap: Wrap, micro_batch: int, reduces: bool) -> Iterator[Instruction]:
        """Free *wrap* behind its backward, and reduce its gradients."""
        yield Free(wrap)
        if not reduces:
            return
        yield from map(Wait, self.scatters)
        self.scatters = []
        dense, experts = (sum(self.layout.elements(unit, experts=each, trained=True) for unit in wrap) for each in (False, True))
        for start in self.reductions(("scatter", wrap[0], micro_batch), dense, experts, "reduce_scatter"):
            (self.scatters if start.op == "reduce_scatter" else self.ends_with).append(start.tag)
            yield start


class _Gathers:
    """The gathers of one pass over a chunk: each wrap that is not held is gathered once."""

    def __init__(self, lowering: _Sharded, action: Action, part: Part) -> None:
        self.layout = lowering.layout
        self.held = lowering.held.copy()
        self.direction, self.micro_batch = f"gather {part}", action.micro_batch
        regathered = part != "F" and self.layout.mesh.group_size("reshard") > 1
        self.axis: GroupAxis = "reshard" if regathered else "shard"
        self.open: dict[Wrap, list[Tag]] = {}

    def started(self, wrap: Wrap, prefetch: bool = False) -> Iterator[Start]:
        """Gather *wrap* unless it is gathered already."""
        if wrap in self.held:
            return
        self.held.add(wrap)
        starts = list(self._starts(wrap, prefetch))
        self.open[wrap] = [start.tag for start in starts]
        yield from starts

    def needed(self, wrap: Wrap) -> Iterator[Instruction]:
        """Wait for *wrap* to be gathered."""
        yield from self.started(wrap)
        yield from map(Wait, self.open.pop(wrap, ()))

    def unused(self) -> list[Tag]:
        """Return the gathers that nothing has waited for."""
        return list(chain.from_iterable(self.open.values()))

    def _starts(self, wrap: Wrap, prefetch: bool) -> Iterator[Start]:
        layout, mesh = self.layout, self.layout.mesh
        dense, experts = (sum(layout.elements(unit, experts=each) for unit in wrap) for each in (False, True))
        if dense:
            tag = (self.direction, wrap[0], self.micro_batch)
            yield Start(tag, "all_gather", self.axis, dense * layout.gathered, self.axis, prefetch=prefetch)
        if experts and mesh.group_size("expert_data") > 1:
            tag = (f"{self.direction} experts", wrap[0], self.micro_batch)
            yield Start(tag, "all_gather", "expert_data", experts * layout.gathered, "expert_data", prefetch=prefetch)


class _Bucketed(_Lowering):
    """Data parallelism and sharded optimizers: whole weights, gradients in buckets."""

    def __init__(self, layout: Layout, stage: int) -> None:
        super().__init__(layout, stage)
        self.sharded = layout.mesh.parallel.shard in ("optimizer", "gradients", "parameters")
        locals_ = range(layout.mesh.parallel.chunks)
        chunks = sorted(layout.chunk_of(stage, each) for each in locals_)
        self.buckets = {chunk: list(self._cut(layout.chunks[chunk])) for chunk in chunks}
        """Units of each bucket of a chunk, in the order in which backward fills them."""
        self.gathers = deque(self._gathers()) if self.sharded and layout.options.overlap_parameters else deque()
        """Buckets of weights that are still to be gathered, in the order in which forward wants them."""
        self.under_way: dict[int, list[Tag]] = {}
        self.late: list[Start] = []

    @property
    def bucket(self) -> float:
        """Return the elements at which a bucket closes. Megatron-LM sends all at once on stages after the first, and without overlap."""
        options = self.layout.options
        if options.framework == "megatron" and (self.stage > 0 or not options.overlap_gradients):
            return math.inf
        return options.bucket_elements or max(MEGATRON_BUCKET, 1e6 * self.layout.mesh.pool)

    def _cut(self, units: Sequence[int]) -> Iterator[list[int]]:
        bucket: list[int] = []
        size = 0.0
        for unit in reversed(units):
            bucket.append(unit)
            size += self.layout.elements(unit, experts=False, trained=True) + self.layout.elements(unit, experts=True, trained=True)
            if size >= self.bucket:
                yield bucket
                bucket, size = [], 0.0
        if bucket:
            yield bucket

    def _elements(self, units: Sequence[int]) -> tuple[float, float]:
        dense, experts = (sum(self.layout.elements(unit, experts=each, trained=True) for unit in units) for each in (False, True))
        return dense, experts

    def before(self) -> Iterator[Instruction]:
        """Gather the first bucket of what the last step's optimizers updated; each one's use starts the next (``overlap_param_gather``)."""
        yield from self._gather_next()

    def _gather_next(self) -> Iterator[Start]:
        if self.gathers:
            units, starts = self.gathers.popleft()
            tags = [start.tag for start in starts]
            self.under_way |= {unit: tags for unit in units}
            yield from starts

    def after(self) -> Iterator[Instruction]:
        if self.sharded and not self.layout.options.overlap_parameters:
            starts = [start for _, group in self._gathers() for start in group]
            yield from starts
            yield from (Wait(start.tag) for start in starts)

    def _gathers(self) -> Iterator[tuple[list[int], list[Start]]]:
        """Yield the units of each bucket of weights with the operations that gather them, in the order of forward."""
        layout = self.layout
        for units in chain.from_iterable(reversed(buckets) for buckets in self.buckets.values()):
            dense, experts = self._elements(units)
            starts = []
            if dense and layout.mesh.group_size("shard") > 1:
                starts.append(Start(("weights", units[0], 0), "all_gather", "shard", dense * layout.gathered, "shard"))
            if experts and layout.mesh.group_size("expert_data") > 1:
                tag = ("weights experts", units[0], 0)
                starts.append(Start(tag, "all_gather", "expert_data", experts * layout.gathered, "expert_data"))
            yield units, starts

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        if units and not self.gathers and not self.under_way:
            yield from _runs("F", units, action)
            return
        for unit in units:
            while any(unit in group for group, _ in self.gathers):  # a chunk whose turn comes before that of its bucket
                yield from self._gather_next()
            if tags := self.under_way.pop(unit, None):
                self.under_way = {other: each for other, each in self.under_way.items() if each is not tags}
                yield from map(Wait, tags)
                yield from self._gather_next()
            yield Work("F", unit, unit, action.micro_batch)

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        layout = self.layout
        each = layout.synchronizes_each or layout.mesh.parallel.shard == "gradients"
        if action.kind == "I" or not (final or each):
            yield from _runs(action.kind, units, action)
            return
        for bucket in self.buckets[layout.chunk_of(self.stage, action.chunk)]:
            yield from (Work(action.kind, unit, unit, action.micro_batch) for unit in bucket)
            op: Op = "reduce_scatter" if self.sharded else "all_reduce"
            starts = list(self.reductions(("reduce", bucket[0], action.micro_batch), *self._elements(bucket), op))
            if layout.options.overlap_gradients:
                self.open += [start.tag for start in starts]
                yield from starts
            else:
                self.late += starts

    def finish(self) -> Iterator[Instruction]:
        yield from self.late
        self.open += [start.tag for start in self.late]


def _runs(part: Part, units: Sequence[int], action: Action) -> Iterator[Work]:
    """Yield the work of one pass over *units*, which are in the order of the model: neighbours together."""
    first = 0
    runs = []
    for index in range(1, len(units) + 1):
        if index == len(units) or units[index] != units[index - 1] + 1:
            runs.append(Work(part, units[first], units[index - 1], action.micro_batch))
            first = index
    yield from runs if part == "F" else reversed(runs)
