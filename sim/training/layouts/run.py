"""How does one step of a layout proceed in time? Simulates each stage's program: compute, communicators, messages between stages.

The ranks of one stage are equal and simulated once (for other cases, see `unfolded`). A rank has a compute stream that runs its program, a
host that launches ahead of it (`stage_compute`), groups with operations that NCCL's communicators play in order (`groups`, `meetings`), and
messages to other stages (`messages`). Steps repeat, so the last of a few represents all, unless each step is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, pairwise
from typing import Final

import simpy

from sim.cluster.checkpoint import CheckpointWrites
from sim.cluster.clock import Clock, SimProcess
from sim.cluster.network import Network
from sim.events import Cause, EventLog, LoggedRank
from sim.parallel.mesh import Mesh
from sim.parallel.program import Copy, Free, Load, Receive, Send, Start, Update, Wait, Work
from sim.training.layouts.account import Account
from sim.training.layouts.groups import Groups
from sim.training.layouts.loader import RankLoader
from sim.training.layouts.meetings import Meetings
from sim.training.layouts.messages import Messages
from sim.training.layouts.scene import LayoutScene, PlayedLayout, PlayedOperation, StageStep, describe_tag
from sim.training.layouts.stage_compute import StageKernels
from sim.training.rank import Play, Rank

DRAWN_STEPS: Final = 100
"""Number of steps that are averaged if each is drawn, the same as in data parallelism."""


class Stage(Rank):
    """The ranks of one stage, or its rank *number*: a program, and the components that play it."""

    def __init__(self, simulation: Simulation, stage: int, number: int) -> None:
        scene = simulation.scene
        self.averaged_steps = simulation.averaged_steps
        self.meetings = simulation.meetings
        self.account = Account(simulation.log, _added_to_log(simulation.log, scene.layout.mesh, stage))
        self.kernels = StageKernels(scene, simulation.network, self.account, stage, number)
        self.groups = simulation.groups(self.kernels, number)
        self.messages = simulation.messages(self.account, number)
        self.loader = RankLoader(scene.feed, simulation.starved) if scene.feed is not None else None
        self.copy_time = scene.copy_time
        plays: dict[type, Play] = {
            Load: self._load, Work: self._work, Update: self._update, Start: self.groups.start, Wait: self.groups.wait,
            Send: self.messages.send, Receive: self.messages.receive, Free: _nothing,
            Copy: self.kernels.copy,
        }  # fmt: skip
        super().__init__(simulation.env, scene.programs[number], plays)

    def train(self, steps: int) -> SimProcess:
        """Run the stage's program *steps* times."""
        for _ in range(steps):
            self.account.begin_step()
            self.kernels.worked_in_step = 0.0
            yield from self.run()
            self.kernels.host = max(self.kernels.host, self.env.now)  # results of the step are read back
            self.account.end_step()
            self.meetings.end_step(self.account.step)

    def last_step(self) -> StageStep:
        """Return the last step by cause and resource."""
        return self.account.last_step(self.clock, self.averaged_steps)

    def step_times(self) -> list[float]:
        """Return the time (s) of each step."""
        return [end - begin for begin, end in pairwise(self.account.ends)]

    def _load(self, _: Load, __: int) -> SimProcess:
        """Wait for the next micro-batch and its copy to the GPU."""
        yield from self.messages.wait_for_sends()
        if self.loader is not None:
            yield from self._next_batch(self.loader)
        if self.copy_time:
            start = self.env.now
            yield self.env.timeout(self.copy_time)
            self.account.add_wait(Cause.COPY, "host to device", start, self.env.now)

    def _next_batch(self, loader: RankLoader) -> SimProcess:
        start = self.env.now
        ready, limits = loader.next(start)
        if ready > start:
            yield self.env.timeout(ready - start)
            for cause, resource, until in limits:
                end = min(max(until, start), ready)
                self.account.add_wait(cause, resource, start, end)
                start = max(start, end)

    def _work(self, work: Work, _: int) -> SimProcess:
        yield from self.messages.wait_for_sends()
        yield from self.kernels.work(work)

    def _update(self, _: Update, __: int) -> SimProcess:
        self.messages.hold()
        yield from self.messages.wait_for_sends()
        yield from self.kernels.update()


MakeStage = Callable[["Simulation", int, int], Stage]
"""Returns the stage, or rank of a stage, of a simulation, given the numbers of both."""


class Simulation:
    """The simulation of all stages."""

    def __init__(self, scene: LayoutScene, steps: int, keep_rates: bool, starved: bool = False, make_stage: MakeStage = Stage) -> None:
        self.scene = scene
        self.make_stage = make_stage
        self.starved = starved
        """Whether loaders are slower than steps, and therefore begin with nothing built ahead."""
        self.steps = steps
        self.env = env = Clock()
        self.log = EventLog(lambda: env.now, keep_rates=keep_rates)
        self.network = Network(env, self.log)
        self.meetings = Meetings(scene, self.network, self.log)
        self.stages = self.create_stages()
        """The stages, in the order of the scene's programs."""
        self.meetings.kernels = [stage.kernels for stage in self.stages]

    def create_stages(self) -> list[Stage]:
        """Return the stages, and start the checkpoint writes of their nodes."""
        numbers = range(len(self.scene.programs))
        stages = [self.make_stage(self, number, number) for number in numbers]
        self.start_checkpoint_writes(dict.fromkeys(map(self.scene.prices.nodes_of, numbers)))
        return stages

    def groups(self, kernels: StageKernels, number: int) -> Groups:
        """Return the groups of stage *number*."""
        return Groups(self.meetings, kernels, self.scene.programs[number], number)

    def messages(self, account: Account, number: int) -> Messages:
        """Return the messages of stage *number* to others."""
        return Messages(self.meetings, account, number)

    def start_checkpoint_writes(self, nodes: Iterable[str]) -> None:
        """Start the scene's checkpoint writes on each of *nodes*; they run throughout the simulation."""
        prices, flows = self.scene.prices, self.scene.outflows
        for name in nodes:
            for link in dict.fromkeys(link for flow in flows for link in flow.links):
                if (live := prices.on_node(name, link)) not in self.network.capacity:
                    self.network.add_link(live, prices.capacity[live])
            CheckpointWrites(self.network, flows, partial(prices.on_node, name))

    def run(self) -> PlayedLayout:
        """Simulate all steps and return the last."""
        self.train(self.stages)
        stages = tuple(stage.last_step() for stage in self.stages)
        begin = min(stage.begin for stage in stages)
        return PlayedLayout(stages, self.released_log(), tuple(self._operations(begin)), drawn_times=self.drawn_times)

    def close(self) -> None:
        """Break the circles of references in the simulation, so that it is freed without a garbage collection."""
        self.env.close()
        self.network.close()
        self.meetings.close()
        for stage in self.stages:
            stage.close()
        self.stages = []
        del self.make_stage

    def released_log(self) -> EventLog:
        """Return the log of the simulation, which is over, with a clock that does not keep the rest of it alive."""
        end = self.env.now
        self.log.clock = lambda: end
        return self.log

    def _operations(self, since: float) -> Iterator[PlayedOperation]:
        """Yield the operations that began at *since* or later."""
        for meeting in chain.from_iterable(self.meetings.played):
            if meeting.begin >= since:
                among = tuple(kernels.stage for kernels in meeting.kernels)
                yield PlayedOperation(meeting.tag, meeting.begin, among, f"{describe_tag(meeting.tag)}: {meeting.price.limit}")

    @property
    def averaged_steps(self) -> int:
        """Return the number of last steps that are averaged."""
        return min(DRAWN_STEPS, self.steps - 1) if self.scene.noise.draws else 1

    @property
    def drawn_times(self) -> tuple[float, ...]:
        """Return the time (s) of each of these steps if steps are drawn."""
        if not self.scene.noise.draws:
            return ()
        return max((tuple(stage.step_times()[-self.averaged_steps :]) for stage in self.stages), key=sum)

    def train(self, stages: Iterable[Stage]) -> None:
        """Run all steps of *stages*."""
        processes = [self.env.process(stage.train(self.steps)) for stage in stages]
        self.env.run_to(simpy.AllOf(self.env, processes))


def _added_to_log(log: EventLog, mesh: Mesh, stage: int) -> int:
    """Add a rank of *stage* to *log* and return its index."""
    node, _ = mesh.place(mesh.rank(pipeline=stage))
    gpus = tuple(mesh.place(rank)[1] for rank in mesh.on_node(node) if mesh.stage_of(rank) == stage)
    log.ranks.append(LoggedRank(0, len(log.ranks), mesh.gpus // mesh.stages, f"stage {stage}", gpus))
    return len(log.ranks) - 1


def _nothing(_: Free, __: int) -> tuple[()]:
    """Do nothing, because freeing weights takes no time."""
    return ()
