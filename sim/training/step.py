"""What does one rank do, step after step? The training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass
from typing import Final

import simpy

from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.parallel.program import Instruction, Load, Pack, Start, Unpack, Update, Wait, Work
from sim.training.exchange import Exchange
from sim.training.input_pipeline import InputPipeline
from sim.training.pace import MEAN, Pace
from sim.training.step_plan import StepPlan

SimProcess = Generator[simpy.Event, object, None]

_NAMES: Final = {"F": "forward", "B": "backward"}


@dataclass
class Rank:
    """One rank, or a class of equal ranks, of a job."""

    index: int
    """Place in ``log.ranks``."""
    log: EventLog
    network: Network
    gpu: LiveGpu
    gpu_name: str
    plan: StepPlan
    input: InputPipeline
    exchange: Exchange
    finished_step: Callable[[int], None]
    """Called with this rank after each step."""
    paces: Iterator[Pace]
    """How each step differs from the mean: its lag is per second of compute since the ranks last met."""
    at: int = 0
    """The instruction of the program that it is at: part of the state that decides what happens next."""
    _pace: Pace = MEAN
    _worked: float = 0.0
    """Seconds of compute in this step since the ranks last met."""

    @property
    def made_of(self) -> Hashable:
        """Return everything that decides what it does, but for its exchange and its loader's options; of a rank whose steps are alike."""
        return self.index, self.gpu_name, self.plan, self.gpu.made_of, self.input.site.made_of, next(self.paces)

    def train(self) -> SimProcess:
        """Run optimizer steps without end."""
        while True:
            self._pace = next(self.paces)
            self._worked = 0.0
            for at, instruction in enumerate(self.plan.program):
                self.at = at
                yield from self._play(instruction)
            self.finished_step(self.index)

    def _play(self, instruction: Instruction) -> SimProcess:
        match instruction:
            case Load():
                yield from self.input.next_batch(self.index)
                yield from self.input.copy_to_gpu(self.index)
            case Work(part):
                yield from self._run(_NAMES[part], self._pace.speed)
            case Pack():
                yield from self._run("backward", self._pace.speed)
            case Start():
                self.exchange.start(self.index, instruction, self._pace.lag * self._worked)
            case Wait(tag):
                yield from self.exchange.wait(self.index, tag)
                self._worked = 0.0
            case Unpack():
                yield from self._run("gradient copies")
            case Update():
                yield from self._run("optimizer")

    def _run(self, name: str, speed: float = 1.0) -> SimProcess:
        """Run on the GPU what the present instruction takes, *speed* times as long as in the mean."""
        segment = self.plan.segments[self.at]
        if segment is None:
            return
        if segment.launch > 0:
            with self.log.waiting(self.index, Cause.LAUNCH, "host"):
                yield self.network.env.timeout(segment.launch)
        start = self.network.env.now
        if segment.compute > 0:
            with self.log.waiting(self.index, Cause.COMPUTE, self.gpu_name):
                yield self.gpu.compute(segment.compute * speed).done
            stood = self.gpu.stood
            for begun, end in self.log.interrupt(stood, Cause.GRADIENT) if stood else [(start, None)]:
                self.log.did(self.index, "gpu", name, Cause.COMPUTE, begun, self.gpu_name, segment.bucket, end=end)
        self._worked += segment.compute
