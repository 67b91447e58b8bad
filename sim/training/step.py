"""What does one rank do, step after step? The training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass

import simpy

from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.training.exchange import Exchange
from sim.training.input_pipeline import InputPipeline
from sim.training.pace import MEAN, Pace
from sim.training.step_plan import Segment, StepPlan

SimProcess = Generator[simpy.Event, object, None]

_DIFFERS = frozenset({"forward", "backward"})
"""Work that differs from step to step."""


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
    position: int = 0
    """Segments begun in this step: part of the state that decides what happens next."""
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
            self.position = 0
            self._pace = next(self.paces)
            self._worked = 0.0
            for micro_batch in self.plan.micro_batches:
                yield from self.input.next_batch(self.index)
                yield from self.input.copy_to_gpu(self.index)
                for segment in micro_batch.forward:
                    yield from self._run(segment, "forward")
                for segment in micro_batch.backward:
                    yield from self._run(segment, "backward")
                yield from self.exchange.finished(self.index)
                self._worked *= not micro_batch.exchanges
                yield from self._run(micro_batch.after, "gradient copies")
            yield from self._run(self.plan.optimizer, "optimizer")
            self.finished_step(self.index)

    def _run(self, segment: Segment, name: str) -> SimProcess:
        """Run one segment on the GPU, and do what is due at its end."""
        self.position += 1
        if segment.launch > 0:
            with self.log.waiting(self.index, Cause.LAUNCH, "host"):
                yield self.network.env.timeout(segment.launch)
        start = self.network.env.now
        if segment.compute > 0:
            with self.log.waiting(self.index, Cause.COMPUTE, self.gpu_name):
                yield self.gpu.compute(segment.compute * (self._pace.speed if name in _DIFFERS else 1.0)).done
            stood = self.gpu.stood
            for begun, end in self.log.interrupt(stood, Cause.GRADIENT) if stood else [(start, None)]:
                self.log.did(self.index, "gpu", name, Cause.COMPUTE, begun, self.gpu_name, segment.bucket, end=end)
        self._worked += segment.compute
        if segment.bucket >= 0:
            self.exchange.gradient_ready(self.index, segment.bucket, self._pace.lag * self._worked)
        elif segment.meets:
            worked, self._worked = self._worked, 0.0
            yield from self.exchange.blocking(self.index, self._pace.lag * worked)
