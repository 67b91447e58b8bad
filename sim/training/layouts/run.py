"""How does one step of a layout go? Each stage's program played against the clock: compute, communicators, messages between stages.

Ranks of one stage are equal and simulated once (elsewhere: `unfolded`). A rank has a compute stream that runs its program, a host that
launches ahead of it, and one queue for each NCCL communicator, which plays operations one after another and begins each when its members
have come. Steps repeat, so the last of a few stands for all. The slowest of n ranks is late by the expected maximum of their spread
(`sim.training.spread`): a tensor group waits for its own at every message, data-parallel ranks for theirs where they reduce gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Final

import simpy

from sim.cluster.checkpoint import Beside
from sim.cluster.clock import Clock
from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import LAYOUT_STALLS, Cause, EventLog
from sim.events import Rank as LoggedRank
from sim.events import Wait as Waited
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Part, Program, Receive, Send, Start, Tag, Update, Wait, Work
from sim.training.communicator import Communicator, Operation, carried
from sim.training.layouts.loader import Loader
from sim.training.layouts.prices import Price
from sim.training.layouts.scene import GROUPS, PASSES, Played, Scene, StageStep, words
from sim.training.layouts.times import Burst

SimProcess = Generator[simpy.Event, object, None]
SHARED: Final = ("everyone", "ends")
"""Groups with members in several stages."""
_PARTIAL: Final = {"tensor": "tensor-parallel messages", "context": "context-parallel messages", "expert": "expert dispatch and combine"}


class Meeting(Operation):
    """One operation of a group class, or a message between stages."""

    def __init__(self, env: simpy.Environment, tag: Tag, price: Price, members: int, stages: Sequence[Stage] = ()) -> None:
        super().__init__(env, members)
        self.tag = tag
        self.price = price
        self.stages = stages
        """Those beside whose compute it happens."""
        self.asked = math.nan
        """When the receiver of a message asked for it (s)."""
        self.notice_behind: list[Meeting] = []
        """Messages that go before the receiver's notice."""
        self.target = -1
        """The stage that a message goes to."""
        self.late = (Cause.STRAGGLER, "slowest data-parallel rank")
        """What comes between the last member and its slowest rank."""
        self.launched = False
        """Whether its kernel is on the GPU from then on that its turn comes, also while it waits for slower ranks."""


class Simulation:
    """All stages while they train."""

    def __init__(self, scene: Scene, steps: int, keep_rates: bool, starved: bool = False) -> None:
        self.scene = scene
        self.starved = starved
        """Whether loaders are slower than steps, so that they begin with nothing built ahead."""
        self.steps = steps
        self.env = env = Clock()
        self.log = EventLog(lambda: env.now, keep_rates=keep_rates)
        self.network = Network(env, self.log)
        self.operations: dict[tuple[object, ...], Meeting] = {}
        self.communicators: dict[tuple[object, ...], Communicator[Meeting]] = {}
        self.linked: set[int] = set()
        self.expected: dict[Tag, int] = defaultdict(int)
        for program in scene.programs:
            for instruction in program:
                if isinstance(instruction, Start) and instruction.axis in SHARED:
                    self.expected[instruction.tag] += 1
        self.meets = scene.layout.meets
        """Whether a message begins when its receiver asks for it; else it has asked before."""
        self.overlaps = scene.layout.options.pipeline_overlap and not self.meets
        """Whether stages compute on while they send."""
        self.stages = [Stage(self, number) for number in range(len(scene.programs))]
        self.save_beside(dict.fromkeys(map(scene.prices.nodes_of, range(len(scene.programs)))))

    def save_beside(self, nodes: Iterable[str]) -> None:
        """Let each of *nodes* write the parts of checkpoints that the scene has, all along."""
        prices, flows = self.scene.prices, self.scene.outflows
        for name in nodes:
            for link in dict.fromkeys(link for flow in flows for link in flow.links):
                if (live := prices.on_node(name, link)) not in self.network.capacity:
                    self.network.add_link(live, prices.capacity[live])
            Beside(self.network, flows, partial(prices.on_node, name))

    def run(self) -> Played:
        """Simulate all steps and return the last."""
        self.train(self.stages)
        return Played(tuple(stage.last_step() for stage in self.stages), self.log)

    def train(self, stages: Iterable[Stage]) -> None:
        """Let *stages* run all steps."""
        processes = [self.env.process(stage.train()) for stage in stages]
        self.env.run_to(simpy.AllOf(self.env, processes))

    def link(self, price: Price) -> None:
        """Make sure that the network has every link that *price* loads."""
        if id(price) in self.linked:
            return
        self.linked.add(id(price))  # prices live as long as the scene
        for name in price.load:
            if name not in self.network.capacity:
                self.network.add_link(name, self.scene.prices.capacity[name])

    def operation(self, key: tuple[object, ...], tag: Tag, price: Price, members: int, stages: Sequence[Stage]) -> Meeting:
        """Return the operation called *key*, new where nobody has named it yet."""
        if key not in self.operations:
            self.link(price)
            self.operations[key] = Meeting(self.env, tag, price, members, stages)
        return self.operations[key]

    def communicator(self, key: tuple[object, ...]) -> Communicator[Meeting]:
        """Return the communicator called *key*."""
        if key not in self.communicators:
            self.communicators[key] = Communicator(self.env, self._turn)
        return self.communicators[key]

    def _turn(self, operation: Meeting, _: int) -> SimProcess:
        """Play *operation*, whose turn has come, once it may begin."""
        early = operation.launched and not operation.come.processed  # its blocks wait on the GPU for slower ranks
        for stage in operation.stages if early else ():
            stage.occupies(1, operation.price)
        if not operation.come.processed:
            yield operation.come
        for stage in operation.stages if early else ():
            stage.occupies(-1, operation.price)
        yield from self.play(operation)

    def play(self, operation: Meeting) -> SimProcess:
        """Let *operation* happen on the network, beside the compute of its stages."""
        price, what = operation.price, words(operation.tag)
        for stage in operation.stages:
            stage.communicates(1, price)
        yield from carried(self.network, operation, price, operation.tag[0], self.scene.prices.descriptions)
        for stage in operation.stages:
            stage.communicates(-1, price)
        text = f"{what}: {price.limit}"
        self.log.did(operation.stages[0].index, "comm", what, price.cause, operation.begin, text, -1, price.volume)


class Stage:
    """The ranks of one stage: a program, a host, a GPU, and a queue for each communicator."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation = simulation
        self.number = number
        self.env = simulation.env
        scene = simulation.scene
        mesh = scene.layout.mesh
        place = mesh.place(mesh.rank(pipeline=number))
        self.index = len(simulation.log.ranks)
        gpus = tuple(mesh.place(rank)[1] for rank in mesh.on_node(place[0]) if mesh.stage_of(rank) == number)
        simulation.log.ranks.append(LoggedRank(0, self.index, mesh.gpus // mesh.stages, f"stage {number}", gpus))
        self.gpu = LiveGpu(simulation.network, f"stage {number}", scene.overlap_slowdown, None, shares=scene.beside is not None)
        self.gpu_name = f"{scene.node.gpu.name} compute"
        self.loader = Loader(scene.feed, simulation.starved) if scene.feed is not None else None
        self.times = scene.times[number]
        self.step = 0
        self.host = 0.0
        """When the host will have launched everything so far."""
        self.worked = 0.0
        """Seconds of compute since the ranks of the stage last met."""
        self.worked_in_step = 0.0
        self.playing = 0
        self.stage = number
        self.blocks, self.memory_rate = 0, 0.0
        """Of operations on the GPU."""
        self.at_work: tuple[int, int, Part] | None = None
        """Units that compute now."""
        self.sending: list[Meeting] = []
        """Messages to other stages that compute waits for before it goes on."""
        self.handed: list[Meeting] = []
        """Messages that the host has handed to a socket and does not wait for."""
        self.sent_ahead: list[Meeting] = []
        """Messages that it waits for with the next of those, or before the optimizer."""
        self.ends: list[float] = [0.0]
        self.exposed: list[dict[str, float]] = []
        self.clock: list[float] = []
        """When each instruction of this step was over."""

    def communicates(self, change: int, price: Price) -> None:
        """Note that one operation more or less runs beside the compute."""
        before, self.playing = self.playing, self.playing + change
        if self.gpu.slows and bool(before) != bool(self.playing):
            self.gpu.communicating(bool(self.playing))
        self.memory_rate += change * price.memory_rate
        self.occupies(change, price)

    def occupies(self, change: int, price: Price) -> None:
        """Note that the thread blocks of one operation more or less are on the GPU."""
        self.blocks += change * price.blocks
        self._shares()

    def _shares(self) -> None:
        """Let what is computed now take as long as beside all operations on the GPU."""
        beside = self.simulation.scene.beside
        if beside is None:
            return
        factor = 1.0
        if self.at_work is not None and self.blocks:
            alone = self.times.span(*self.at_work).compute
            left = beside(self.stage, self.blocks, float(f"{max(0.0, self.memory_rate):.3g}")).span(*self.at_work).compute
            factor = max(1.0, left / alone) if alone else 1.0
        self.gpu.beside(factor)

    def train(self) -> SimProcess:
        """Run the stage's program once a step."""
        program = self.simulation.scene.programs[self.number]
        for step in range(self.simulation.steps):
            self.step = step
            self.exposed.append(dict.fromkeys(GROUPS, 0.0))
            self.worked_in_step = 0.0
            self.clock = []
            for at, instruction in enumerate(program):
                match instruction:
                    case Work():
                        yield from self._sent()
                        yield from self._fed(instruction)
                        yield from self._work(instruction)
                    case Start():
                        self._start(instruction, self._issued(program, at) if instruction.prefetch else 0.0)
                    case Wait():
                        yield from self._wait(instruction.tag)
                    case Send():
                        self._send(instruction)
                    case Receive():
                        yield from self._receive(instruction)
                    case Update():
                        self._hold()
                        yield from self._sent()
                        yield from self._update()
                self.clock.append(self.env.now)
            self.host = max(self.host, self.env.now)  # results of the step are read back
            self.ends.append(self.env.now)

    # --- input ----------------------------------------------------------------------------------------------------

    def _fed(self, work: Work) -> SimProcess:
        """Wait for the samples of *work*, if it begins the model."""
        if self.loader is None or work.part != "F" or work.first != 0:
            return
        start = self.env.now
        there, held = self.loader.next(start)
        if there <= start:
            return
        yield self.env.timeout(there - start)
        for cause, resource, until in held:
            end = min(max(until, start), there)
            self._waited(cause, resource, start, end)
            start = max(start, end)

    # --- compute --------------------------------------------------------------------------------------------------

    def _work(self, work: Work) -> SimProcess:
        time = self.times.span(work.first, work.last, work.part)
        self.at_work = work.first, work.last, work.part
        self._shares()
        yield from self._compute(time.bursts, PASSES[work.part], work.micro_batch)
        self.at_work = None
        self._shares()
        late = self.simulation.scene.spread.tensor * time.compute
        pieces = [(Cause.STRAGGLER, "slowest rank of the tensor group", late)] if late else []
        for each in time.exposed:
            if each.seconds > 0:
                pieces.append((each.cause, f"{_PARTIAL[each.axis]}: {each.limit}", each.seconds))
                self.exposed[-1][each.axis] += each.seconds
        if pieces:
            start = self.env.now
            yield self.env.timeout(sum(seconds for *_, seconds in pieces))
            for cause, resource, seconds in pieces:
                self._waited(cause, resource, start, start + seconds)
                start += seconds

    def _compute(self, bursts: Sequence[Burst], name: str, ident: int) -> SimProcess:
        """Compute *bursts*, no faster than the host launches their kernels."""
        start, launch = self.env.now, self.simulation.scene.launch_cpu
        for burst in bursts:
            if burst.drained:
                self.host = max(self.host, self.env.now)
            yield from self._launched(self.host + min(1.0, burst.launches) * launch)
            self.host += burst.launching(launch)
            begun = self.env.now
            if burst.compute > 0:
                yield self.gpu.compute(burst.compute).done
                self._waited(Cause.COMPUTE, self.gpu_name, begun, self.env.now)
            yield from self._launched(self.host)
        self.simulation.log.did(self.index, "gpu", name, Cause.COMPUTE, start, self.gpu_name, ident)
        seconds = sum(burst.compute for burst in bursts)
        self.worked += seconds
        self.worked_in_step += seconds

    def _launched(self, time: float) -> SimProcess:
        """Wait until *time*, when the host has launched what comes next."""
        if time > self.env.now:
            begun = self.env.now
            yield self.env.timeout(time - begun)
            self._waited(Cause.LAUNCH, "host", begun, self.env.now)

    def _update(self) -> SimProcess:
        seconds, launches = self.simulation.scene.updates[self.number]
        yield from self._compute([Burst(seconds, launches)], "optimizer", -1)

    # --- groups ---------------------------------------------------------------------------------------------------

    def _issued(self, program: Program, at: int) -> float:
        """Return when the host has launched the next work after place *at* of *program*."""
        work = next((each for each in program[at:] if isinstance(each, Work)), None)
        launching = (
            self.times.span(work.first, work.last, work.part).launching(self.simulation.scene.launch_cpu) if work is not None else 0.0
        )
        return self.host + launching

    def _start(self, start: Start, issued: float) -> None:
        """Enter an operation into its communicator's queue; it begins when the slowest rank has come and those before it are over."""
        simulation = self.simulation
        operation, communicator = self._meeting(start)
        delay = self._late(start.axis)
        check = simulation.scene.check(start.axis)
        if check:  # the host compares it with the other ranks', and launches it then
            self.host += check
            issued = max(issued, self.host)
        if issued - self.env.now > delay:
            delay, operation.late = issued - self.env.now, (Cause.LAUNCH, "host")
        before = simulation.operations[self.step, self.number, start.after] if start.after is not None else None
        operation.launched = before is None and operation.late[0] is Cause.STRAGGLER
        if operation.arrive(delay):
            if before is None:
                operation.may_begin()
            else:
                self.env.process(self._after(before, operation))
            simulation.communicator(communicator).enter(operation)

    def _meeting(self, start: Start) -> tuple[Meeting, tuple[object, ...]]:
        """Return the operation that *start* enters, and the communicator that plays it."""
        simulation, shared = self.simulation, start.axis in SHARED
        price = simulation.scene.prices.price(0 if shared else self.number, start.axis, start.op, start.nbytes)
        key = (self.step, start.tag) if shared else (self.step, self.number, start.tag)
        members, stages = (simulation.expected[start.tag], simulation.stages) if shared else (1, [self])
        operation = simulation.operation(key, start.tag, price, members, stages)
        return operation, ("everyone" if shared else self.number, start.communicator)

    def _after(self, before: Meeting, operation: Meeting) -> SimProcess:
        """Let *operation* begin when its slowest rank has come and the one *before* has ended."""
        yield self.env.timeout(operation.ready - self.env.now)
        yield from before.until_over()
        operation.come.succeed()

    def _late(self, axis: GroupAxis) -> float:
        """Return how much later than the mean the slowest rank of a meeting comes."""
        spread = self.simulation.scene.spread
        if axis == "everyone":
            return spread.all * self.worked_in_step
        worked, self.worked = self.worked, 0.0
        return spread.data * worked

    def _wait(self, tag: Tag) -> SimProcess:
        operations = self.simulation.operations
        operation = operations.get((self.step, self.number, tag)) or operations[self.step, tag]
        if operation.over:
            return
        start = self.env.now
        yield from operation.until_over()
        self._blame(operation, start)
        came = min(max(start, operation.arrived), self.env.now)
        group = "data" if tag[0].startswith("reduce") or "replicas" in tag[0] or tag[0] in ("norm", "tied") else "shard"
        self.exposed[-1]["pipeline"] += came - start  # another stage was still at work
        self.exposed[-1][group] += self.env.now - came

    def _blame(self, operation: Meeting, start: float) -> None:
        """Write down why compute waited for *operation* from *start* until now."""
        came = min(max(start, operation.arrived), self.env.now)
        if came > start:  # another stage was still at work
            self._waited(Cause.PIPELINE, "other stages", start, came)
        ready = min(max(came, operation.ready), self.env.now)
        if ready > came:
            self._waited(*operation.late, came, ready)
        begin = min(max(ready, operation.begin), self.env.now)
        if begin > ready:  # behind others in its queue
            self._waited(operation.price.cause, f"{words(operation.tag)}: behind other operations", ready, begin)
        for cause, resource, t0, t1 in operation.pieces:
            if min(t1, self.env.now) > max(t0, begin):
                self._waited(cause, f"{words(operation.tag)}: {resource}", max(t0, begin), min(t1, self.env.now))

    # --- stages ---------------------------------------------------------------------------------------------------

    def _message(self, tag: Tag, source: int, target: int, nbytes: float) -> Meeting:
        simulation = self.simulation
        price = simulation.scene.prices.send(source, target, nbytes)
        return self._between((self.step, "message", tag), tag, price, source, target)

    def _between(self, key: tuple[object, ...], tag: Tag, price: Price, source: int, target: int) -> Meeting:
        """Return the message called *key* from *source* to *target*; one that nobody asks for begins with its sender."""
        simulation = self.simulation
        ends = [simulation.stages[source], simulation.stages[target]]
        message = simulation.operation(key, tag, price, 2 if simulation.meets else 1, ends)
        message.target = target
        return message

    def _meet(self, message: Meeting, source: int) -> None:
        if self.number == message.target:
            message.asked = self.env.now
            message.notice_behind = self._on_the_wire(source)
        if message.arrive():
            self.env.process(self._told(message))

    def _told(self, message: Meeting) -> SimProcess:
        """Let a message begin when its sender knows that its receiver asks for it."""
        for other in message.notice_behind:
            if not other.over:
                yield from other.until_over()
                message.asked = self.env.now
        notice = message.asked + message.price.notice - self.env.now
        if notice > 0:  # nan where no receiver asks
            yield self.env.timeout(notice)
        message.ready = self.env.now
        message.come.succeed()
        yield from self.simulation.play(message)
        message.end()

    def _on_the_wire(self, stage: int) -> list[Meeting]:
        """Return the messages to *stage* that a notice to it stands behind: over Gloo one connection takes both in turn."""
        if self.simulation.scene.prices.sockets is None:
            return []
        own = (*self.handed, *self.sending, *self.sent_ahead)
        return [message for message in own if message.target == stage and message.missing == 0 and not message.over]

    def _send(self, send: Send) -> None:
        message = self._message(send.tag, self.number, send.stage, send.nbytes)
        self._meet(message, self.number)
        if not self.simulation.overlaps:
            self.sent_ahead.append(message)
            if send.holds:
                self._hold()

    def _hold(self) -> None:
        """Let compute wait for all that was sent so far."""
        self.sending += self.sent_ahead
        self.sent_ahead = []

    def _sent(self) -> SimProcess:
        """Hold compute until what this stage sends has gone: a send and the receive after it are one call, which compute waits for.

        A socket takes a message as soon as the receiver's notice has come, and keeps it until the line has taken it.
        """
        sockets = self.simulation.scene.prices.sockets is not None
        for message in self.sending:
            if message.come.triggered if sockets else message.over:
                continue
            start = self.env.now
            if sockets:
                yield message.come
            else:
                yield from message.until_over()
            self._blame(message, start)
            self.exposed[-1]["pipeline"] += self.env.now - start
        self.handed = [message for message in (*self.handed, *self.sending) if not message.over]
        self.sending = []

    def _receive(self, receive: Receive) -> SimProcess:
        nbytes = self.simulation.scene.layout.boundary
        operation = self._message(receive.tag, receive.stage, self.number, nbytes)
        if self.simulation.meets:
            self._meet(operation, receive.stage)
        if operation.over:
            return
        start = self.env.now
        yield from operation.until_over()
        self._blame(operation, start)
        self.exposed[-1]["pipeline"] += self.env.now - start

    # --- outcome --------------------------------------------------------------------------------------------------

    def _waited(self, cause: Cause, resource: str, start: float, end: float) -> None:
        if end > start:
            self.simulation.log.waits.append(Waited(self.index, cause, resource, -1, start, end))

    def last_step(self) -> StageStep:
        """Return the last step by cause and resource."""
        begin, end = self.ends[-2:]
        resources: dict[tuple[Cause, str], float] = defaultdict(float)
        for wait in self.simulation.log.waits:
            if wait.rank == self.index and wait.t0 >= begin:
                resources[wait.cause, wait.resource] += wait.t1 - wait.t0
        stalls = dict.fromkeys(LAYOUT_STALLS, 0.0)
        for (cause, _), seconds in resources.items():
            stalls[cause] += seconds
        return StageStep(end - begin, stalls, dict(resources), self.exposed[-1], begin, end, tuple(self.clock))
