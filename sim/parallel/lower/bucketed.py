"""When are gradients exchanged if each rank has whole weights? Data parallelism and sharded optimizers use buckets in the last backward.

Megatron-LM ``distributed_data_parallel.py``: gradients are reduced in buckets as the backward pass of the last micro-batch makes them. The
weights of a sharded optimizer are gathered before their next use; the next bucket is gathered while one is used. After these reductions,
the gradients of norms are summed over tensor ranks (``finalize_model_grads.py``). Jobs without a layout: `sim.parallel.lower.buckets`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

from sim.parallel.lower.lowering import Layout, Lowering
from sim.parallel.program import Copy, Instruction, Op, PassPart, Start, Tag, Wait, Work
from sim.parallel.schedule import Action

MEGATRON_BUCKET = 40e6
"""Minimum elements of a gradient bucket in Megatron-LM, or a million per data rank if that is more (param_and_grad_buffer.py)."""
LAUNCH_QUEUE = 1024
"""Launches that a GPU's queue holds; the host waits to launch more (forums.developer.nvidia.com/t/68937: about 1000)."""
GATHER_COPIES = 3
"""Copies of all weights that nanotron's gather makes: into the list of outputs and out of it, and torch's own out of its flat output."""


class Bucketed(Lowering):
    """Data parallelism and sharded optimizers: whole weights, gradients in buckets."""

    def __init__(self, layout: Layout, stage: int) -> None:
        super().__init__(layout, stage)
        self.sharded = layout.mesh.parallel.shard in ("optimizer", "gradients", "parameters")
        chunks = sorted(layout.chunk_of(stage, own) for own in range(layout.mesh.parallel.chunks))
        self.buckets = {chunk: list(self._cut(layout.chunks[chunk])) for chunk in chunks}
        """Units of each bucket of a chunk, in the order in which backward fills the buckets."""
        self.gathers = deque(self._gathers()) if self.sharded and layout.options.overlap_parameters else deque()
        """Buckets of weights that are still to be gathered, in the order in which forward uses them."""
        self.under_way: dict[int, list[Tag]] = {}
        self.late: list[Start] = []

    @property
    def bucket(self) -> float:
        """Return the number of elements at which a bucket closes; Megatron-LM and apex use one bucket without overlap or after stage 0."""
        options = self.layout.options
        if options.framework in ("megatron", "apex") and (self.stage > 0 or not options.overlap_gradients):
            return math.inf
        if self._is_coalesced:
            return math.inf
        if options.bucket_elements:
            return options.bucket_elements
        return max(MEGATRON_BUCKET, 1e6 * self.layout.mesh.pool)

    @property
    def _has_ddp(self) -> bool:
        """Whether torch's DDP reduces gradients, in buckets of whole tensors. In nanotron, ZeRO-1 replaces it (trainer.py, _init_model)."""
        return self.layout.options.framework == "nanotron" and not self.sharded

    @property
    def _is_coalesced(self) -> bool:
        """Whether one operation reduces all gradients after the last backward, and one gathers all weights after the optimizer's step.

        nanotron's ZeRO-1: ``sync_gradients_across_dp`` all-reduces one buffer (trainer.py, training_step), and ``all_gather_coalesced``
        flattens all slices of weights (optim/zero.py, distributed.py).
        """
        return self.layout.options.framework == "nanotron" and self.sharded

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
        """Gather the first bucket of updated weights; the use of each bucket starts the gather of the next (``overlap_param_gather``)."""
        yield from self._gather_next()

    def _gather_next(self) -> Iterator[Start]:
        if self.gathers:
            units, starts = self.gathers.popleft()
            tags = [start.tag for start in starts]
            self.under_way |= {unit: tags for unit in units}
            yield from starts

    def after(self) -> Iterator[Instruction]:
        """Gather updated weights immediately if the next forward does not gather them."""
        if self.sharded and not self.layout.options.overlap_parameters:
            starts = [start for _, group in self._gathers() for start in group]
            yield from starts
            yield from (Wait(start.tag) for start in starts)
            moved = 2 * sum(start.nbytes for start in starts)  # a copy reads and writes
            if starts and self._is_coalesced:
                yield Copy("weights", GATHER_COPIES * moved, 0, host=self._host_of_slices)
            if self.layout.options.flattens:
                yield Copy("weights", moved, 0)

    @property
    def _host_of_slices(self) -> float:
        """Return the host time (s) to copy gathered slices, one for each tensor of the stage and each rank."""
        units = map(self.layout.units.__getitem__, self.layout.units_of(self.stage))
        tensors = sum(len(piece.layer.gradients) for unit in units for piece in unit.pieces)
        return slices_host_time(tensors, self.layout.mesh.group_size("shard"), self.layout.options.slice_host)

    def _gathers(self) -> Iterator[tuple[list[int], list[Start]]]:
        """Yield the units of each bucket of weights and the operations that gather them, in the order of forward."""
        layout = self.layout
        for units in chain.from_iterable(reversed(buckets) for buckets in self.buckets.values()):
            dense, experts = self._elements(units)
            starts = []
            if dense and layout.mesh.group_size("shard") > 1:
                starts.append(Start(("weights", units[0], 0), "all_gather", "shard", dense * layout.gathered_width, "shard"))
            if experts and layout.mesh.group_size("expert_data") > 1:
                tag = ("weights experts", units[0], 0)
                starts.append(Start(tag, "all_gather", "expert_data", experts * layout.gathered_width, "expert_data"))
            yield units, starts

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        """Yield one forward; the first use of a bucket of weights waits for its gather."""
        if units and not self.gathers and not self.under_way:
            yield from _runs("F", units, action)
            return
        for unit in units:
            while any(unit in group for group, _ in self.gathers):  # a chunk may run before the turn of its bucket
                yield from self._gather_next()
            if tags := self.under_way.pop(unit, None):
                self.under_way = {other: each for other, each in self.under_way.items() if each is not tags}
                yield from map(Wait, tags)
                yield from self._gather_next()
            yield Work("F", unit, unit, action.micro_batch)

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        """Yield one backward, which reduces each bucket as soon as its gradients are ready."""
        layout = self.layout
        if action.kind == "I" or not (final or layout.reduces_each):
            yield from _runs(action.kind, units, action)
            return
        for bucket in self.buckets[layout.chunk_of(self.stage, action.chunk)]:
            yield from (Work(action.kind, unit, unit, action.micro_batch) for unit in bucket)
            op: Op = "reduce_scatter" if self.sharded else "all_reduce"
            dense, experts = self._elements(bucket)
            parts = max(1, round((dense + experts) / self.bucket)) if self._has_ddp else 1  # its buckets close inside blocks, too
            tags = [("reduce" if part == 0 else f"reduce {part}", bucket[0], action.micro_batch) for part in range(parts)]
            starts = [start for tag in tags for start in self.reductions(tag, dense / parts, experts / parts, op)]
            if layout.options.overlap_gradients and not self._is_coalesced:
                self.open += [start.tag for start in starts]
                yield from starts
            else:
                self.late += starts

    def finish(self) -> Iterator[Instruction]:
        """Yield the reductions without overlap, then the sum over tensor ranks that Megatron-LM does in one buffer."""
        if self.layout.options.flattens:
            gradients = (
                sum(sum(self._elements(bucket)) for buckets in self.buckets.values() for bucket in buckets) * self.layout.reduced_width
            )
            yield Copy("gradients", 2 * gradients, self.layout.micro_batches - 1)
        yield from self.late
        self.open += [start.tag for start in self.late]
        parallel = self.layout.mesh.parallel
        if self.layout.options.framework == "megatron" and parallel.tensor > 1:
            elements = sum(self.layout.units[unit].flattened(parallel.sequence_parallel) for unit in self.layout.units_of(self.stage))
            if elements:
                yield from map(Wait, self.open)
                self.open = [("reduce norms", 0, 0)]
                yield Start(self.open[0], "all_reduce", "tensor", elements * self.layout.reduced_width, "tensor")


def slices_host_time(tensors: float, ranks: int, slice_host: float) -> float:
    """Return the host time (s) of those copies of gathered slices that it cannot launch before the gather ends.

    Each of *tensors* has a slice of each of *ranks*, and the host takes *slice_host* seconds to launch a copy. The first `LAUNCH_QUEUE`
    copies wait in the GPU's queue; the host launches the others as earlier ones run.
    """
    return max(0.0, tensors * ranks - LAUNCH_QUEUE) * slice_host


def _runs(part: PassPart, units: Sequence[int], action: Action) -> list[Work]:
    """Return the work of one pass over *units*, which are in the order of the model; consecutive units form one work."""
    runs = _consecutive(tuple(units))
    return [Work(part, first, last, action.micro_batch) for first, last in (runs if part == "F" else reversed(runs))]


@lru_cache(maxsize=1024)
def _consecutive(units: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the first and the last of each run of consecutive *units*, which every micro-batch passes."""
    starts = [number for index, number in enumerate(units) if index == 0 or units[index - 1] != number - 1]
    ends = [number for index, number in enumerate(units) if index == len(units) - 1 or units[index + 1] != number + 1]
    return tuple(zip(starts, ends, strict=True))
