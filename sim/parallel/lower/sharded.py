"""When are weights gathered and gradients reduced if weights are sharded? FSDP gathers before use and reduce-scatters after backward.

torch ``fsdp/_fully_shard/_fsdp_param_group.py``, torchtitan ``distributed/fsdp.py``: a unit is gathered before it computes, and the next
unit is gathered meanwhile. After backward, its gradients are reduce-scattered, with one reduce-scatter in flight. Without a pipeline,
weights are freed after forward and gathered again. With a pipeline, they stay, and gradients are reduced after the last backward
(``pipelining/stage.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Literal

from sim.parallel.lower.copies import (
    gradient_copy_bytes,
    gradient_division_bytes,
    lone_gradient_bytes,
    lone_weight_bytes,
    shard_copy_bytes,
    weight_copy_bytes,
)
from sim.parallel.lower.lowering import Layout, Lowering
from sim.parallel.lower.wrapped import Wrap, WrapSequence
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Copy, Free, Instruction, Message, PassPart, Start, Tag, Wait, Work
from sim.parallel.schedule import Action, gatherings


class Sharded(Lowering):
    """FSDP: weights are gathered wrap by wrap (`sim.parallel.lower.wrapped`)."""

    def __init__(self, layout: Layout, stage: int) -> None:
        super().__init__(layout, stage)
        self.held: set[Wrap] = set()
        """Wraps whose weights are gathered."""
        self.scatters: list[Tag] = []
        """Reduce-scatters that the next one waits for: one is in flight at a time."""
        self.pending: list[Tag] = []
        """Operations that the end of this backward waits for."""
        self.courses: dict[tuple[int, ...], WrapSequence] = {}
        self.gatherings = gatherings(self.actions) if layout.gathers_chunks else []
        """Which whole chunks are freed and gathered before each action."""
        self.coming: dict[tuple[int, ...], _Gathers] = {}
        """Gathers of whole chunks for which nothing has waited yet."""

    def ahead_of(self, at: int) -> Iterator[Instruction]:
        """Free and gather whole chunks before the action at place *at*, as torch's runtime does, then wait for the chunk of the action."""
        if not self.gatherings:
            return
        freed, gathered = self.gatherings[at]
        for wrap in chain.from_iterable(self._course(self._units(chunk)).wraps for chunk in freed):
            if wrap in self.held:
                self.held.discard(wrap)
                yield Free(wrap)
        for chunk in gathered:
            wraps, gathers = self._course(self._units(chunk)).wraps, _Gathers(self, Action("F", chunk, at), "U")
            for wrap in wraps:
                yield from gathers.started(wrap)
            self.coming[self._units(chunk)] = gathers
            self.held |= set(wraps)
        units = self._units(self.actions[at].chunk) if at < len(self.actions) else ()
        if units in self.coming:
            gathers = self.coming.pop(units)
            for wrap in self._course(units).wraps:
                yield from gathers.needed(wrap)
                yield from gathers.copied(wrap)

    def _units(self, chunk: int) -> tuple[int, ...]:
        return self.layout.chunks[self.layout.chunk_of(self.stage, chunk)]

    @property
    def pipelined(self) -> bool:
        """Whether weights stay gathered after backward and gradients are reduced at the end (torch pipelining, ``perform_reduce_grad``)."""
        return self.layout.mesh.stages > 1

    def _course(self, units: Sequence[int]) -> WrapSequence:
        key = tuple(units)
        if key not in self.courses:
            self.courses[key] = WrapSequence(self.layout, key)
        return self.courses[key]

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        """Yield one forward; each wrap is gathered after the launch of the work that follows the previous gather."""
        course, gathers = self._course(units), _Gathers(self, action, "F")
        for place, unit in enumerate(units):
            for wrap, inside in zip_longest(course.entered[place], course.entered[place][1:]):
                yield from gathers.needed(wrap)
                yield from self._ahead(course.entered_after(place), gathers) if inside is None else gathers.started(inside)
                yield from gathers.copied(wrap)  # overlaps with the next gather
            yield Work("F", unit, unit, action.micro_batch)
            for wrap in course.left[place]:
                if self.layout.frees_weights and not course.keeps_gathered(wrap):
                    gathers.held.discard(wrap)
                    yield Free(wrap)
        self.held |= set(course.wraps)
        if self.layout.frees_weights:
            self.held -= {wrap for wrap in course.wraps if not course.keeps_gathered(wrap)}

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        """Yield one backward; while one wrap computes, the wrap that forward left before it is gathered."""
        course, gathers = self._course(units), _Gathers(self, action, action.kind)
        reduces = final or self.layout.reduces_each
        left = list(course.wraps)
        """Wraps whose gradients are not reduced yet; autograd signals the end of a module only if gradients pass through its input."""
        lowest = next((place for place, unit in enumerate(units) if self.layout.units[unit].has_backward), 0)
        complete = self._complete(course, units, lowest)
        when = (
            "none" if self._accumulates_late and self.layout.options.backward_prefetch == "post" else self.layout.options.backward_prefetch
        )
        for place, unit in reversed(list(enumerate(units))):
            if place < lowest:
                break  # frozen from here on, but its weights were gathered nevertheless
            if action.kind != "W":  # gradients of weights need no weights
                for wrap, following in course.backward_entries(place):
                    yield from gathers.needed(wrap)
                    yield from gathers.copied(wrap)
                    if following is not None and when != "none":  # post: after the host has launched this unit
                        yield from gathers.started(following, when == "post", when == "post" and self._limited)
            yield Work(action.kind, unit, unit, action.micro_batch)
            for wrap in complete.get(place, ()) if not self.pipelined else ():
                left.remove(wrap)
                yield from self._free_and_reduce(wrap, action.micro_batch, reduces)
        if self.pipelined and not final:
            self.pending += gathers.unused(course.wraps)
            self.held |= set(course.wraps)
            return
        self.held -= set(course.wraps)
        for wrap in left:
            unused = gathers.unused([wrap])
            if reduces:  # unneeded gathers are waited for wrap by wrap, before the gradients of later wraps (``finalize_backward``)
                yield from map(Wait, unused)
            else:
                self.pending += unused
            yield from self._free_and_reduce(wrap, action.micro_batch, reduces)
        if reduces:
            yield from map(Wait, (*self.scatters, *self.pending))
            self.scatters, self.pending = [], []

    @property
    def _accumulates_late(self) -> bool:
        """Whether autograd accumulates a wrap's gradients only after the backward of the wrap before it.

        FSDP1 with ``forward_prefetch`` creates views of a wrap's weights before the forward of the previous wrap, and autograd processes
        the newest nodes first.
        """
        return self._is_fsdp1 and self.layout.options.forward_prefetch

    @property
    def _limited(self) -> bool:
        return self._is_fsdp1 and self.layout.options.limit_all_gathers

    def _ahead(self, following: Sequence[Wrap], gathers: _Gathers) -> Iterator[Start]:
        """Start the gathers that forward issues ahead for the wraps *following*; with FSDP2 at most the next one.

        FSDP1's host gathers a wrap before its use, or one wrap earlier with ``forward_prefetch``, and runs ahead of the device by any
        number of wraps, or with ``limit_all_gathers`` until two wraps wait to be freed (torch/distributed/fsdp/_limiter_utils.py).
        """
        options = self.layout.options
        if not self._is_fsdp1:
            depth, behind = int(options.forward_prefetch), True
        else:
            limited = 2 if options.forward_prefetch else 1
            depth, behind = limited if options.limit_all_gathers else len(following), not options.forward_prefetch
        for wrap in following[:depth]:
            yield from gathers.started(wrap, prefetch=behind, limited=behind and self._limited)

    def _complete(self, course: WrapSequence, units: Sequence[int], lowest: int) -> dict[int, list[Wrap]]:
        """Return the wraps whose backward ends at each place: with FSDP1 when their gradients exist, else when backward leaves the module.

        No gradient passes through the input of wraps that are entered up to the place *lowest*, so they end with the whole backward.
        """
        done: dict[int, list[Wrap]] = {}
        before = len(units)
        seen = set() if self._is_fsdp1 else {wrap for wraps in course.entered[: lowest + 1] for wrap in wraps}
        for place, entered in enumerate(course.entered):
            for wrap in entered:
                if wrap not in seen:  # reduced once, however often it is called
                    seen.add(wrap)
                    trained = (own for own in wrap if self.layout.units[own].trained + self.layout.units[own].trained_experts)
                    at = units.index(next(trained, units[place])) if self._is_fsdp1 else place
                    done.setdefault(min(at, before) if self._accumulates_late else at, []).insert(0, wrap)
                    before = place
        return {place: wraps for place, wraps in done.items() if place >= lowest}

    @property
    def _is_fsdp1(self) -> bool:
        """Whether this is torch's first FSDP, ``FullyShardedDataParallel``."""
        return self.layout.options.framework == "fsdp1"

    def _free_and_reduce(self, wrap: Wrap, micro_batch: int, reduces: bool) -> Iterator[Instruction]:
        """Free *wrap* after its backward and, if it *reduces*, reduce its gradients."""
        yield Free(wrap)
        dense, experts = (sum(self.layout.elements(unit, experts=each, trained=True) for unit in wrap) for each in (False, True))
        copy = Copy("gradients", (dense + experts) * gradient_copy_bytes(self.layout, reduces), micro_batch)
        if not reduces:
            yield from (copy,) if copy.nbytes else ()
            return
        if not self._is_fsdp1:
            yield from map(Wait, self.scatters)
            self.scatters = []
        yield from self._sum_partial(wrap, micro_batch)
        yield from (copy,) if copy.nbytes else ()
        for tag, alone in _lone_parts(self.layout, ("scatter", wrap[0], micro_batch), dense, experts):
            yield Copy("gradients", alone * lone_gradient_bytes(self.layout), micro_batch, tag)
        for start in self.reductions(("scatter", wrap[0], micro_batch), dense, experts, "reduce_scatter"):
            scatters = start.op == "reduce_scatter"
            (self.scatters if scatters else self.pending).append(start.tag)
            yield (
                start._replace(copied_bytes=start.nbytes / self.layout.reduced_width * gradient_division_bytes(self.layout))
                if scatters
                else start
            )

    def _sum_partial(self, wrap: Wrap, micro_batch: int) -> Iterator[Instruction]:
        """Sum gradients that are partial on tensor ranks, tensor by tensor (torch _fsdp_param.py, ``_get_grad_inner_tensor``)."""
        layout = self.layout
        parallel = layout.mesh.parallel
        tensors = [size for unit in wrap for size in layout.units[unit].summed(parallel.sequence_parallel)]
        if parallel.tensor > 1 and tensors:
            first, *more = (Message("all_reduce", size * layout.gathered_width) for size in tensors)
            yield Start(("partial", wrap[0], micro_batch), first.op, "tensor", first.nbytes, "tensor", more_messages=tuple(more))
            yield Wait(("partial", wrap[0], micro_batch))


class _Gathers:
    """The gathers of one pass over a chunk: each wrap that is not held is gathered once."""

    def __init__(self, lowering: Sharded, action: Action, part: PassPart | Literal["U"]) -> None:
        self.layout = lowering.layout
        self.held = lowering.held.copy()
        self.direction, self.micro_batch = f"gather {part}", action.micro_batch
        regathered = part not in ("F", "U") and self.layout.mesh.group_size("reshard") > 1
        self.axis: GroupAxis = "reshard" if regathered else "shard"
        self.open: dict[Wrap, list[Start]] = {}

    def started(self, wrap: Wrap, prefetch: bool = False, limited: bool = False) -> Iterator[Start]:
        """Gather *wrap* unless it is gathered already."""
        if wrap in self.held:
            return
        self.held.add(wrap)
        self.open[wrap] = [start._replace(prefetch=prefetch, is_limited=limited) for start in self._starts(wrap)]
        yield from self.open[wrap]

    def needed(self, wrap: Wrap) -> Iterator[Instruction]:
        """Wait for *wrap* to be gathered."""
        yield from self.started(wrap)
        yield from (Wait(start.tag) for start in self.open.get(wrap, ()))

    def copied(self, wrap: Wrap) -> Iterator[Copy]:
        """Copy the parameters of *wrap* out of the gathered buffer, or those of a group of one rank out of its shards."""
        if wrap not in self.open:
            return
        layout = self.layout
        if nbytes := sum(start.nbytes for start in self.open.pop(wrap)) / layout.gathered_width * weight_copy_bytes(layout):
            yield Copy("weights", nbytes, self.micro_batch)
        dense, experts = (sum(layout.elements(unit, experts=each) for unit in wrap) for each in (False, True))
        for tag, alone in _lone_parts(layout, (self.direction, wrap[0], self.micro_batch), dense, experts):
            yield Copy("weights", alone * lone_weight_bytes(layout), self.micro_batch, tag)

    def unused(self, wraps: Sequence[Wrap]) -> list[Tag]:
        """Return the gathers of *wraps* for which nothing has waited; the caller must wait for them."""
        return [start.tag for wrap in wraps for start in self.open.pop(wrap, ())]

    def _starts(self, wrap: Wrap) -> Iterator[Start]:
        layout, mesh = self.layout, self.layout.mesh
        dense, experts = (sum(layout.elements(unit, experts=each) for unit in wrap) for each in (False, True))
        if dense and mesh.group_size(self.axis) > 1:
            copied = dense * shard_copy_bytes(layout, mesh.group_size(self.axis), self.axis == "reshard")
            tag = (self.direction, wrap[0], self.micro_batch)
            yield Start(tag, "all_gather", self.axis, dense * layout.gathered_width, self.axis, copied_bytes=copied)
        if experts and mesh.group_size("expert_data") > 1:
            copied = experts * shard_copy_bytes(layout, mesh.group_size("expert_data"), False)
            tag = (f"{self.direction} experts", wrap[0], self.micro_batch)
            yield Start(tag, "all_gather", "expert_data", experts * layout.gathered_width, "expert_data", copied_bytes=copied)


def _lone_parts(layout: Layout, tag: Tag, dense: float, experts: float) -> Iterator[tuple[Tag, float]]:
    """Yield the parts of a wrap that belong to groups of one rank, which copies them: the tag of the operation, and the elements."""
    if not layout.copies_alone:
        return
    what, unit, micro_batch = tag
    if dense and layout.mesh.group_size("shard") == 1:
        yield tag, dense
    if experts and layout.mesh.group_size("expert_data") == 1:
        yield (f"{what} experts", unit, micro_batch), experts
