"""What does one rank do, step after step? The training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from sim.cluster.gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.training.exchange import Exchange
from sim.training.input_pipeline import InputPipeline
from sim.training.step_plan import Segment, StepPlan

SimProcess = Generator[simpy.Event, object, None]


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
    lag: float = 0.0
    """How much later than the mean rank the slowest one is, per second of compute since the ranks last met."""
    position: int = 0
    """Segments begun in this step: part of the state that decides what happens next."""

    def train(self) -> SimProcess:
        """Run optimizer steps without end."""
        while True:
            self.position = 0
            worked = 0.0
            for micro_batch in range(self.plan.micro_batches):
                yield from self.input.next_batch(self.index)
                yield from self.input.copy_to_gpu(self.index)
                worked += yield from self._run(self.plan.forward, "forward")
                if micro_batch < self.plan.micro_batches - 1:
                    worked += yield from self._run(self.plan.accumulate, "backward")
            if self.exchange.blocks:
                yield from self.exchange.blocking(self.index, self.lag * worked)
                worked = 0.0
            for segment in self.plan.backward:
                worked += yield from self._run(segment, "backward")
                if segment.bucket >= 0:
                    self.exchange.gradient_ready(self.index, segment.bucket, self.lag * worked)
            yield from self.exchange.finished(self.index)
            yield from self._run(self.plan.optimizer, "optimizer")
            self.finished_step(self.index)

    def _run(self, segment: Segment, name: str) -> Generator[simpy.Event, object, float]:
        """Run one segment on the GPU; return its seconds of compute."""
        self.position += 1
        if segment.launch > 0:
            with self.log.waiting(self.index, Cause.LAUNCH, "host"):
                yield self.network.env.timeout(segment.launch)
        start = self.network.env.now
        with self.log.waiting(self.index, Cause.COMPUTE, self.gpu_name):
            yield self.gpu.compute(segment.compute).done
        self.log.did(self.index, "gpu", name, Cause.COMPUTE, start, self.gpu_name, segment.bucket)
        return segment.compute
