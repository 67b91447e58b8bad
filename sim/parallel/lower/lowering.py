"""What determines a stage's program, and what do all programs have in common? A layout, and its schedule with messages between stages.

`sim.parallel.lower.sharded` and `sim.parallel.lower.bucketed` add the communication of weights and gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from sim.parallel.mesh import Mesh
from sim.parallel.own_schedule import OwnPasses
from sim.parallel.program import Instruction, Op, Receive, Send, Start, Tag, Update, Wait, paired
from sim.parallel.schedule import RENDEZVOUS_SCHEDULES, Action, actions, holder, paired_forwards, position, waits_for_send
from sim.parallel.split import Unit
from sim.spec.parallel import MeshOptions


@dataclass(frozen=True)
class Layout:
    """Everything that determines the programs of one step."""

    mesh: Mesh
    options: MeshOptions
    units: tuple[Unit, ...]
    chunks: tuple[tuple[int, ...], ...]
    """Units of each chunk, in the order of the model."""
    schedule: str
    micro_batches: int
    gathered_width: float
    """Bytes per element of weights when they are gathered."""
    reduced_width: float
    """Bytes per element of gradients when they are reduced."""
    input_bytes: tuple[float, ...]
    """Bytes of activations that a rank receives for each chunk and one micro-batch; it sends as many bytes of their gradients back."""
    clips_gradients: bool
    """Whether the optimizer waits for the norm of all gradients."""
    tied_bytes: float
    """Bytes of a gradient that the first and the last stage share; 0 for none."""
    synchronizes_each: bool
    """Whether the stack lets every micro-batch reduce its gradients, not just the last one (`Stack.synchronizes_each`)."""
    own_passes: OwnPasses | None = None
    """The passes of the schedule if it is supplied by the user."""
    programs: dict[int, tuple[Instruction, ...]] = field(init=False, default_factory=dict, repr=False, compare=False)
    """Programs lowered so far, by stage (`sim.parallel.lower.layouts.program`)."""

    @property
    def has_rendezvous(self) -> bool:
        """Whether a message between stages begins when its receiver requests it, and the sender's compute waits until it is sent."""
        return self.own_passes.waits_for_sends if self.own_passes else self.schedule in RENDEZVOUS_SCHEDULES

    @property
    def shards_parameters(self) -> bool:
        """Whether weights are sharded (FSDP, ZeRO-3), or wrapped by FSDP2 on a single rank, which then casts and copies them as well."""
        return self.mesh.parallel.shard == "parameters" and (self.mesh.group_size("shard") > 1 or self.copies_alone)

    @property
    def copies_alone(self) -> bool:
        """Whether a group of one rank copies weights and gradients where a larger group would gather and reduce them (FSDP2)."""
        return self.options.framework == "fsdp2" and self.options.copies

    @property
    def reduces_each(self) -> bool:
        """Whether every micro-batch reduces its gradients: stages of sharded parameters wait for the last one (torch's pipelining)."""
        return self.synchronizes_each and not (self.mesh.parallel.shard == "parameters" and self.mesh.stages > 1)

    @property
    def adds_shards(self) -> bool:
        """Whether gradients are reduced to shards before they are accumulated over micro-batches."""
        sharded = self.mesh.parallel.shard in ("gradients", "parameters") and self.mesh.group_size("shard") > 1
        return sharded and self.reduces_each

    @property
    def has_root(self) -> bool:
        """Whether the ends of the model belong to FSDP's root: the stack wraps only blocks, or both ends use one table."""
        return self.options.root or bool(self.tied_bytes and self.mesh.stages == 1)

    @property
    def frees_weights(self) -> bool:
        """Whether gathered weights are freed after forward."""
        wanted = self.mesh.parallel.reshard_after_forward
        return self.mesh.stages == 1 if wanted is None else bool(wanted)

    @property
    def gathers_chunks(self) -> bool:
        """Whether torch's pipelining gathers and frees whole chunks of FSDP2 between passes: not with GPipe and 1F1B."""
        return self.mesh.stages > 1 and self.options.framework == "fsdp2" and not self.has_rendezvous

    @property
    def loses_gradients(self) -> bool:
        """Whether torch's runtime makes no gradients for some weights: FSDP2 frees them after forward, and backward is split into halves.

        This affects all stages except the first: the first half of backward looks for the weights before FSDP has gathered them (torch 2.13
        pipelining/_backward.py, ``stage_backward_input``).
        """
        if not (self.shards_parameters and self.frees_weights and self.mesh.stages > 1 and self.options.framework == "fsdp2"):
            return False
        return any(action.kind == "I" for stage in range(self.mesh.stages) for action in self.stage_actions(stage))

    @property
    def runs_pairs(self) -> bool:
        """Whether a forward and the backward after it run as a pair, to hide the messages of experts (`MeshOptions.paired_schedules`).

        With 1F1B, Megatron-LM runs them only without a pipeline: stages of one chunk would wait for each other.
        """
        if self.own_passes is not None or self.schedule not in self.options.paired_schedules or self.mesh.group_size("expert") == 1:
            return False
        return self.mesh.stages == 1 or self.schedule != "1f1b"

    def stage_actions(self, stage: int) -> tuple[Action, ...]:
        """Return the schedule's actions on one rank of *stage*."""
        if self.own_passes is not None:
            return self.own_passes.programs[stage]
        ahead = 1 if self.runs_pairs else 0  # Megatron-LM core/pipeline_parallel/schedules.py, get_pp_rank_microbatches
        return actions(self.schedule, self.mesh.stages, self.mesh.parallel.chunks, self.micro_batches, stage, ahead)

    def paired_forwards(self, stage: int) -> frozenset[int]:
        """Return the places in `stage_actions` of the forwards that run as a pair with the backward after them."""
        if not self.runs_pairs:
            return frozenset()
        return paired_forwards(self.schedule, self.mesh.stages, self.mesh.parallel.chunks, self.micro_batches, stage)

    def chunk_of(self, stage: int, local: int) -> int:
        """Return the number in the model of the local chunk *local* of *stage*."""
        return position(self.schedule, self.mesh.stages, stage, local)

    def units_of(self, stage: int) -> tuple[int, ...]:
        """Return the units that a stage holds, in the order of the model."""
        local = range(self.mesh.parallel.chunks)
        return tuple(unit for chunk in sorted(self.chunk_of(stage, each) for each in local) for unit in self.chunks[chunk])

    def elements(self, unit: int, *, experts: bool, trained: bool = False) -> float:
        """Return the number of parameters of one rank's part of *unit*: its experts, or the rest.

        Without expert ranks, experts count as part of the rest.
        """
        own = self.units[unit]
        dense, of_experts = (own.trained, own.trained_experts) if trained else (own.elements, own.expert_elements)
        if self.mesh.parallel.expert == 1:
            dense, of_experts = dense + of_experts, 0.0
        return of_experts if experts else dense


class Lowering:
    """The instructions of one stage, action by action; subclasses add the communication of weights and gradients."""

    def __init__(self, layout: Layout, stage: int) -> None:
        self.layout = layout
        self.stage = stage
        self.actions = layout.stage_actions(stage)
        self.last = {action.chunk: action for action in self.actions if action.kind in ("B", "W")}
        """The action after which a chunk has all its gradients."""
        self.many = layout.mesh.stages * layout.mesh.parallel.chunks
        self.open: list[Tag] = []
        """Reductions that the optimizer waits for."""
        self._exchanges: dict[tuple[int, int], tuple[int, float] | None] = {}

    def step(self) -> Iterator[Instruction]:
        """Yield the instructions of one step."""
        yield from self.before()
        runs_ahead = self.layout.options.sends_ahead
        late: tuple[Instruction, ...] = ()
        pairs = self.layout.paired_forwards(self.stage)
        chunk_of = [self.layout.chunk_of(self.stage, local) for local in range(self.layout.mesh.parallel.chunks)]
        for at, (action, following) in enumerate(zip_longest(self.actions, self.actions[1:])):
            if at in pairs:
                yield from self._pair(at, runs_ahead)
            if at in pairs or at - 1 in pairs:
                continue
            yield from self.ahead_of(at)
            chunk = chunk_of[action.chunk]
            yield from self._received(action, chunk)
            yield from late
            yield from self._pass(action, chunk)
            sends, late = self._sent(action, chunk, waits_for_send(action, following, runs_ahead)), ()
            if sends and self._receives_first(action, following):
                sends, late = (), sends
            yield from sends
        yield from self.ahead_of(len(self.actions))
        yield from self.finish()
        yield from (Wait(tag) for tag in self.open)
        yield from self._tied()
        if self.layout.clips_gradients and self.layout.mesh.divides:
            yield Start(("norm", 0, 0), "all_reduce", "everyone", 4.0, "everyone")
            yield Wait(("norm", 0, 0))
        yield Update()
        yield from self.after()

    def _pass(self, action: Action, chunk: int) -> Iterator[Instruction]:
        units = self.layout.chunks[chunk]
        if action.kind == "F":
            return self.forward(units, action)
        return self.backward(units, action, self.last.get(action.chunk) is action)

    def _pair(self, at: int, runs_ahead: bool) -> Iterator[Instruction]:
        """Yield the actions at *at* and after it as a pair: both receive before, and send after (torchtitan's ``overlap_callback``)."""
        own = [(action, self.layout.chunk_of(self.stage, action.chunk)) for action in self.actions[at : at + 2]]
        for place, each in enumerate(own, at):
            yield from self.ahead_of(place)
            yield from self._received(*each)
        yield from paired(*(self._pass(*each) for each in own))
        for place, each in enumerate(own, at):
            following = self.actions[place + 1] if place + 1 < len(self.actions) else None
            yield from self._sent(*each, waits_for_send(each[0], following, runs_ahead))

    def _receives_first(self, action: Action, following: Action | None) -> bool:
        """Return whether the send of *action* comes after the receive of *following*, as in the steady state of 1F1B.

        Before the steady state, the next stage may need this message to compute the gradients that *following* would wait for.
        """
        if not self.layout.options.receives_first or self.layout.schedule != "1f1b" or following is None:
            return False
        ahead = self.layout.mesh.stages - 1 - self.stage
        return (action.kind, following.kind) == ("F", "B") and action.micro_batch - following.micro_batch == ahead

    def before(self) -> Iterator[Instruction]:
        """Yield the instructions before the first action."""
        yield from ()

    def ahead_of(self, at: int) -> Iterator[Instruction]:
        """Yield the instructions before the action at place *at*, or after the last action."""
        yield from ()

    def after(self) -> Iterator[Instruction]:
        """Yield the instructions after the optimizer."""
        yield from ()

    def finish(self) -> Iterator[Instruction]:
        """Yield the instructions after the last action."""
        yield from ()

    def forward(self, units: Sequence[int], action: Action) -> Iterator[Instruction]:
        """Yield one forward over *units*."""
        raise NotImplementedError

    def backward(self, units: Sequence[int], action: Action, final: bool) -> Iterator[Instruction]:
        """Yield one backward, or half of one, over *units*; *final*: whether the gradients of the chunk are complete after it."""
        raise NotImplementedError

    def _received(self, action: Action, chunk: int) -> tuple[Receive, ...]:
        if action.kind == "F" and chunk > 0:
            return self._receive("activations", chunk, action, chunk - 1)
        if action.kind in ("B", "I") and chunk < self.many - 1:
            return self._receive("gradients", chunk, action, chunk + 1)
        return ()

    def _receive(self, what: str, chunk: int, action: Action, source: int) -> tuple[Receive, ...]:
        exchange = self._exchange(chunk, source)
        return () if exchange is None else (Receive((what, chunk, action.micro_batch), *exchange),)

    def _sent(self, action: Action, chunk: int, held: bool) -> tuple[Send, ...]:
        if action.kind == "F" and chunk < self.many - 1:
            return self._send("activations", chunk, chunk + 1, action, held)
        if action.kind in ("B", "I") and chunk > 0:
            return self._send("gradients", chunk, chunk - 1, action, held)
        return ()

    def _send(self, what: str, chunk: int, to: int, action: Action, held: bool) -> tuple[Send, ...]:
        exchange = self._exchange(chunk, to)
        return () if exchange is None else (Send((what, to, action.micro_batch), *exchange, held),)

    def _exchange(self, chunk: int, other: int) -> tuple[int, float] | None:
        """Return the stage of *other*, the chunk before or after *chunk*, and the bytes between them; None if this stage has both."""
        key = chunk, other
        if key not in self._exchanges:
            stage, _ = holder(self.layout.schedule, self.layout.mesh.stages, self.layout.mesh.parallel.chunks, other)
            self._exchanges[key] = (stage, self.layout.input_bytes[max(key)]) if stage != self.stage else None
        return self._exchanges[key]

    def _tied(self) -> Iterator[Instruction]:
        """Sum the gradient of a table that the first and the last stage both hold."""
        ends = {0, holder(self.layout.schedule, self.layout.mesh.stages, self.layout.mesh.parallel.chunks, self.many - 1)[0]}
        if self.layout.tied_bytes and len(ends) > 1 and self.stage in ends:
            yield Start(("tied", 0, 0), "all_reduce", "ends", self.layout.tied_bytes, "ends")
            yield Wait(("tied", 0, 0))

    @property
    def _sums_whole(self) -> bool:
        """Whether gradients are summed over all data ranks in one operation, over shards and replicas together."""
        mesh, when = self.layout.mesh, self.layout.options.whole_gradients
        chosen = when == "always" or (when == "with_replicas" and mesh.group_size("replicate") > 1)
        return chosen and mesh.parallel.shard == "optimizer"

    def reductions(self, tag: Tag, dense: float, experts: float, op: Op) -> Iterator[Start]:
        """Reduce the gradients of *dense* elements over shards, then over replicas, and of *experts* over ranks with the same experts."""
        mesh, width = self.layout.mesh, self.layout.reduced_width
        what, unit, micro_batch = tag
        first = None
        if dense and self._sums_whole and mesh.group_size("pool") > 1:
            yield Start(tag, "all_reduce", "pool", dense * width, "pool")
            dense = 0.0
        if dense and mesh.group_size("shard") > 1:
            queue = "reduce" if self.layout.options.separate_reduce_scatter else "shard"
            first = tag
            yield Start(tag, op, "shard", dense * width, queue)
        if dense and mesh.group_size("replicate") > 1:
            share = mesh.group_size("shard") if op == "reduce_scatter" else 1
            among = (f"{what} replicas", unit, micro_batch)
            yield Start(among, "all_reduce", "replicate", dense * width / share, "replicate", predecessor=first)
        if experts and mesh.group_size("expert_data") > 1:
            yield Start((f"{what} experts", unit, micro_batch), op, "expert_data", experts * width, "expert_data")
