"""What does one data-parallel rank do in each step? It loads a batch, computes, exchanges gradients and updates, as its plan specifies.

The host runs ahead while the GPU computes or waits for NCCL or slower ranks. The host itself waits at the end of a step, for a batch and
its copy, and at each ``Wait`` with ``host`` set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

import simpy

from sim.cluster.clock import SimProcess
from sim.cluster.live_gpu import LiveGpu
from sim.events import Cause
from sim.parallel.program import Load, Pack, Start, Unpack, Update, Wait, Work
from sim.training.exchange import GradientExchange
from sim.training.input_pipeline import InputPipeline
from sim.training.pace import MEAN, Pace
from sim.training.rank import Play, Rank
from sim.training.step_plan import Segment, StepPlan

_NAMES: Final = {"F": "forward", "B": "backward"}


class Replica(Rank):
    """One rank, or a class of equal ranks, that holds the whole model; its *loader* knows its index in ``log.ranks``.

    *finished_step* is called with this index after each step. *paces* yields how each step differs from the mean; its lag is relative to
    the compute since the ranks last met.
    """

    def __init__(
        self,
        gpu: LiveGpu,
        gpu_name: str,
        plan: StepPlan,
        loader: InputPipeline,
        exchange: GradientExchange,
        finished_step: Callable[[int], None],
        paces: Iterator[Pace],
    ) -> None:
        plays: dict[type, Play] = {
            Load: self._load, Work: self._work, Pack: self._pack, Unpack: self._unpack, Update: self._update,
            Start: self._start, Wait: self._wait,
        }  # fmt: skip
        super().__init__(loader.site.network.env, plan.program, plays)
        self.index = loader.site.rank
        self.log = loader.site.log
        self.gpu = gpu
        self.gpu_name = gpu_name
        self.plan = plan
        self.input = loader
        self.exchange = exchange
        self.finished_step = finished_step
        self.paces = paces
        self._pace = MEAN
        self.worked = 0.0
        """Compute time (s) in this step since the ranks last met."""
        self.micro_batch = 0
        """Number of the current micro-batch of the step."""
        self._simulated = 0
        self.leave_out: Callable[[Replica, int], int] = lambda rank, number: 0
        """Called with this rank and the number of its next micro-batch; returns how many micro-batches it leaves out."""
        begins = [at for at, each in enumerate(plan.program) if isinstance(each, Load)]
        self._begins = [*begins, len(plan.program)]
        """Index of the first instruction of each micro-batch, and after the last."""
        self.host = 0.0
        """Time (s) at which the host has launched all work so far."""

    @property
    def cache_key(self) -> Hashable:
        """Return a cache key with everything that affects this rank, except its exchange and its loader's options.

        This consumes a pace, so it is valid only if all steps have the same pace.
        """
        return self.index, self.gpu_name, self.plan, self.gpu.cache_key, self.input.site.cache_key, next(self.paces)

    def train(self) -> SimProcess:
        """Run optimizer steps forever."""
        while True:
            self._pace = next(self.paces)
            self.worked = 0.0
            yield from self.run()
            self.host = self.env.now
            self.log.micro_batches.setdefault(self.index, []).append(self._simulated)
            self.finished_step(self.index)

    def run(self) -> SimProcess:
        """Run one step, without the micro-batches that are left out."""
        self.clock, self.micro_batch, self._simulated = [], 0, 0
        while self.micro_batch < self.micro_batches:
            self.micro_batch += self.leave_out(self, self.micro_batch)
            yield from self.play(*self._begins[self.micro_batch : self.micro_batch + 2])
            self.micro_batch += 1
            self._simulated += 1

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of a step."""
        return len(self._begins) - 1

    @property
    def place(self) -> int:
        """Return the place of the current instruction in its micro-batch."""
        return self.at - self._begins[self.micro_batch]

    def _load(self, _: Load, __: int) -> SimProcess:
        yield from self.input.next_batch(self.index)
        yield from self.input.copy_to_gpu(self.index)
        self.host = self.env.now

    def _start(self, start: Start, _: int) -> tuple[()]:
        self.exchange.start(self.index, start, self._pace.lag * self.worked)
        return ()

    def _wait(self, wait: Wait, _: int) -> Iterable[simpy.Event]:
        self.worked = 0.0
        ended = self.exchange.wait(self.index, wait.tag)
        return self._with_host(ended) if wait.host else ended

    def _with_host(self, ended: Iterable[simpy.Event]) -> SimProcess:
        """Make the host wait as well."""
        yield from ended
        self.host = self.env.now

    def _work(self, work: Work, at: int) -> Iterable[simpy.Event]:
        return self._play_segment(at, _NAMES[work.part], self._pace.speed)

    def _pack(self, _: Pack, at: int) -> Iterable[simpy.Event]:
        return self._play_segment(at, "backward", self._pace.speed)

    def _unpack(self, _: Unpack, at: int) -> Iterable[simpy.Event]:
        return self._play_segment(at, "gradient copies")

    def _update(self, _: Update, at: int) -> Iterable[simpy.Event]:
        return self._play_segment(at, "optimizer")

    def _play_segment(self, at: int, name: str, speed: float = 1.0) -> Iterable[simpy.Event]:
        """Play the segment of the instruction at index *at*, in *speed* times its mean time."""
        segment = self.plan.segments[at]
        return self._compute(segment, name, speed) if segment is not None else ()

    def _compute(self, segment: Segment, name: str, speed: float) -> SimProcess:
        start = self.env.now
        wait = segment.wait(self.host, start)
        self.host = segment.launch_end(self.host, start)
        if wait > 0:
            with self.log.waiting(self.index, Cause.LAUNCH, "host"):
                yield self.env.timeout(wait)
            start = self.env.now
        if segment.compute > 0:
            with self.log.waiting(self.index, Cause.COMPUTE, self.gpu_name):
                yield self.gpu.compute(segment.compute * speed).done
            standstills = self.gpu.stalled_spans
            for begun, end in self.log.interrupt(standstills, Cause.GRADIENT) if standstills else [(start, None)]:
                self.log.add_work(self.index, "gpu", name, Cause.COMPUTE, begun, self.gpu_name, segment.bucket, end=end)
        self.worked += segment.compute
