"""How is a simulated layout written as a Chakra trace? The program of each stage as a graph, with the durations of the simulated step.

Kernels last as long as in the simulation, slowed by concurrent collectives and by a late host. Collectives have bytes and ranks, so that
the program that replays the trace determines their time. Messages inside a unit follow their layer, and overlap with the compute that
hides them. The delay of the slowest rank is host time. Limits: all ranks begin the step together, which is not so in a pipeline whose
ranks do not all synchronize; a gather that the host issues late (prefetch) begins with its instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sim.cluster.gpu import memory_time
from sim.events import WorkSpan as Worked
from sim.mesh import LayoutRun, layout_scene
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Copy, Receive, Send, Start, Tag, Update, Wait, Work
from sim.report.trace.chakra import Communicators, Recording, as_bytes, write_ranks
from sim.spec.foreign.chakra_wire import TraceNode, node_bytes
from sim.training.layouts.scene import COPIES, PASSES, LayoutScene, describe_tag
from sim.training.layouts.times import copy_time
from sim.training.layouts.unit_time import ExposedWait, UnitTime


class _Among(NamedTuple):
    """The communicator of a collective: its name, and the axis; each group along it has a communicator."""

    axis: GroupAxis
    name: str


def write_layout(run: LayoutRun, folder: Path) -> str:
    """Write one step of *run* into *folder*, one file per rank; return a text on what was written. Raise SpecError if writing fails."""
    run = run.completed()
    scene = layout_scene(run.hardware, run.workload, run.layout)
    tags: dict[Tag, int] = {}
    stages = [_StageGraph(run, scene, stage, tags) for stage in range(run.mesh.stages)]
    for stage in stages:
        stage.record()
    communicators = Communicators()
    ranks = (stages[run.mesh.stage_of(rank)].of_rank(rank, communicators) for rank in range(run.gpus))
    description = f"{run.workload.name} on {run.hardware.name}, {run.workload.training.stack.name}"
    return write_ranks(folder, run.workload.name, list(ranks), description, communicators)


class _StageGraph:
    """The graph of one stage; `of_rank` fills in what differs between its ranks."""

    def __init__(self, run: LayoutRun, scene: LayoutScene, stage: int, tags: dict[Tag, int]) -> None:
        self.run = run
        self.scene = scene
        self.stage = stage
        self.tags = tags
        self.made = Recording()
        self.among: dict[int, _Among] = {}
        """The communicator of each collective, by its number."""
        self.stream: list[int] = []
        """The nodes that the next kernel waits for."""
        self.ended: dict[Tag, list[int]] = {}
        self.around: dict[int, tuple[GroupAxis, int, int]] = {}
        """The axis of each end of a message around a group, by its number, and where sender and receiver are relative to the rank."""
        self.open: tuple[list[int], float] | None = None
        """A message inside a unit that is in flight, and the seconds of further compute that hide it."""
        self.sending: list[int] = []
        self.worked = self.worked_in_step = 0.0
        step = run.played.stages[stage]
        self.kernels = [
            work for work in run.played.log.work if work.rank == stage and work.stream == "gpu" and step.begin <= work.t0 < step.end
        ][::-1]
        """Kernels of the step in reverse order, the next one last."""

    def record(self) -> None:
        """Record the program."""
        for instruction in self.scene.programs[self.stage]:  # the step before this one ran the same program
            self._count(instruction)
        self.worked_in_step = 0.0
        for instruction in self.scene.programs[self.stage]:
            match instruction:
                case Work():
                    self._work(instruction)
                case Copy():
                    self._copy(instruction)
                case Update():
                    self._sent()
                    seconds = self._lasted("optimizer", -1)
                    self.stream = [self.made.compute("optimizer", seconds, self.stream)]
                case Start():
                    self._start(instruction)
                case Wait():
                    self.stream = [*self.stream, *self.ended.get(instruction.tag, ())]
                case Send():
                    self._send(instruction)
                case Receive():
                    self._receive(instruction)
            self._count(instruction)

    def _count(self, instruction: object) -> None:
        """Add up the compute since ranks last synchronized."""
        if isinstance(instruction, Work | Copy | Update):
            seconds = self.scene.updates[self.stage][0] if isinstance(instruction, Update) else self._time(instruction).compute
            self.worked += seconds
            self.worked_in_step += seconds
        elif isinstance(instruction, Start) and instruction.axis != "everyone":
            self.worked = 0.0

    # --- compute --------------------------------------------------------------------------------------------------

    def _time(self, work: Work | Copy) -> UnitTime:
        if isinstance(work, Copy):
            return copy_time(work, self.scene.node.gpu)
        return self.scene.times[self.stage].of(work)

    def _lasted(self, name: str, ident: int) -> float:
        """Return the duration of the next kernel in the step, if it is *name* of micro-batch *ident*."""
        if self.kernels and _is(self.kernels[-1], name, ident):
            kernel = self.kernels.pop()
            return kernel.t1 - kernel.t0
        return 0.0  # the log has no kernels that take no time

    def _work(self, work: Work) -> None:
        self._sent()
        time, name = self._time(work), f"{PASSES[work.part]} {work.micro_batch}"
        lasted = self._lasted(PASSES[work.part], work.micro_batch) if time.compute or time.launch_time(1.0) else 0.0
        scale = lasted / time.compute if time.compute else 0.0
        rest = lasted if not time.compute else 0.0
        for layer in self._layers(work):
            rest += layer.compute * scale
            rest = self._inside(name, rest, layer.exposed_waits)
        self._compute(name, rest)
        late = self.scene.noise.mean.inside * time.compute
        if late:
            self.stream = [self.made.add_lateness(late, self.stream)]

    def _copy(self, copy: Copy) -> None:
        name = COPIES[copy.what]
        self._run(f"{name} {copy.micro_batch}", self._lasted(name, copy.micro_batch))

    def _layers(self, work: Work) -> Iterator[UnitTime]:
        times = self.scene.times[self.stage]
        units, exposed = range(work.first, work.last + 1), times.exposed_of_pair(work)
        for number in units if work.part == "F" else reversed(units):
            for layer in times.in_turn(times.units[number], work.part):
                waits = (each._replace(seconds=each.seconds * (exposed if each.axis == "expert" else 1.0)) for each in layer.exposed_waits)
                yield layer._replace(exposed_waits=tuple(waits)) if work.beside else layer

    def _inside(self, name: str, compute: float, messages: Sequence[ExposedWait]) -> float:
        """Record *compute* seconds, and *messages* that overlap with their end and with later compute; return what is not recorded."""
        sent = [message for message in messages if message.op is not None and self.run.mesh.group_size(message.axis) > 1]
        if not sent:
            return compute
        beside = []
        for message in sent:
            beside.append(min(compute, message.uncontended_time - message.seconds))
            compute -= beside[-1]
        self._compute(name, compute)
        for message, own in zip(sent, beside, strict=True):
            self._compute(name, 0.0)
            numbers = self._exchange(message)
            self._run(name, own)
            self.open = (numbers, message.uncontended_time - message.seconds - own)
        return 0.0

    def _exchange(self, message: ExposedWait) -> list[int]:
        """Record *message* inside a unit; return its nodes: a collective, or the two ends of a rank that sends on around its group."""
        size, op = self.run.mesh.group_size(message.axis), message.op or "all_reduce"
        name = f"{message.axis} {op}"
        if op != "send_recv":
            number = self.made.collective(name, op, message.nbytes, message.axis, size, self.stream)
            self.among[number] = _Among(message.axis, message.axis)
            return [number]
        tag, ends = self._tag((name, len(self.made.nodes), self.stage)), (self.stage, self.stage)
        numbers = [self.made.message(name, message.nbytes, ends, sends, tag, self.stream) for sends in (True, False)]
        self.around |= dict(zip(numbers, ((message.axis, 0, 1), (message.axis, -1, 0)), strict=True))
        return numbers

    def _compute(self, name: str, seconds: float) -> None:
        """Record *seconds* of the GPU; a message in flight overlaps with as much of them as hides it."""
        if self.open is not None:
            sent, hidden = self.open
            self._run(name, min(hidden, seconds))
            self.stream, self.open = [*self.stream, *sent], None
            seconds -= min(hidden, seconds)
        self._run(name, seconds)

    def _run(self, name: str, seconds: float) -> None:
        if seconds > 0:
            self.stream = [self.made.compute(name, seconds, self.stream)]

    # --- groups and stages ----------------------------------------------------------------------------------------

    def _start(self, start: Start) -> None:
        spread, size = self.scene.noise.mean, self.run.mesh.group_size(start.axis)
        late = spread.all * self.worked_in_step if start.axis == "everyone" else spread.data * self.worked
        after = [*self.stream, *(self.ended[start.predecessor] if start.predecessor is not None else ())]
        if size == 1:
            self.ended[start.tag] = after
            return
        if late:
            after = [self.made.add_lateness(late, self.stream), *after]
        if start.copied_bytes:  # on a separate stream, so it is recorded as host work
            after = [self.made.compute("copies during compute", memory_time(start.copied_bytes, self.scene.node.gpu), after, host=True)]
        sent = self.made.collective(describe_tag(start.tag), start.op, start.nbytes, start.communicator, size, after)
        self.among[sent] = _Among(start.axis, start.communicator)
        self.ended[start.tag] = [sent]

    def _sent(self) -> None:
        self.stream, self.sending = [*self.stream, *self.sending], []

    def _send(self, send: Send) -> None:
        meets = self.scene.layout.has_rendezvous
        sent = self.made.message(
            describe_tag(send.tag), send.nbytes, (self.stage, send.stage), True, self._tag(send.tag), self.stream, meets
        )
        if meets or not self.scene.layout.options.pipeline_overlap:
            self.sending.append(sent)

    def _receive(self, receive: Receive) -> None:
        ends, meets = (receive.stage, self.stage), self.scene.layout.has_rendezvous
        after = self.stream if meets else []  # otherwise the receive was posted earlier
        got = self.made.message(describe_tag(receive.tag), receive.nbytes, ends, False, self._tag(receive.tag), after, meets)
        self.stream = [*self.stream, got]

    def _tag(self, tag: Tag) -> int:
        return self.tags.setdefault(tag, len(self.tags))

    # --- ranks ----------------------------------------------------------------------------------------------------

    @cached_property
    def _shared_bytes(self) -> list[bytes]:
        return as_bytes(self.made.nodes)

    def of_rank(self, rank: int, communicators: Communicators) -> list[bytes]:
        """Return the nodes of *rank*, with its own communicators and neighbors."""
        mesh = self.run.mesh
        first = mesh.rank(pipeline=self.stage)
        nodes = list(self._shared_bytes)
        for node in self.made.nodes:
            own: Mapping[str, int | str] = {}
            if node.id in self.among:
                axis, name = self.among[node.id]
                own = {"pg_name": communicators.number(name, mesh.group(rank, axis))}
            elif node.id in self.around:
                axis, *ends = self.around[node.id]
                group = mesh.group(rank, axis)
                places = [(group.index(rank) + end) % len(group) for end in ends]
                own = {end: group[place] for end, place in zip(("comm_src", "comm_dst"), places, strict=True)}
            elif "comm_src" in node.attributes:
                own = {end: rank + mesh.rank(pipeline=_stage_at(node, end)) - first for end in ("comm_src", "comm_dst")}
            if own:
                nodes[node.id] = node_bytes(node._replace(attributes={**node.attributes, **own}))
        return nodes


def _stage_at(node: TraceNode, end: str) -> int:
    value = node.attributes[end]
    assert isinstance(value, int)
    return value


def _is(kernel: Worked, name: str, ident: int) -> bool:
    return (kernel.name, kernel.ident) == (name, ident)
