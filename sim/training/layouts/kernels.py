"""How do the GPUs of one stage compute? Units in bursts, no faster than the host launches them, beside what communicates on the GPU.

The slowest rank of a tensor group is late by the expected maximum of their spread (`sim.training.spread`) at every message inside a unit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import simpy

from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import Cause
from sim.parallel.program import Part, Program, Start, Work, before_use
from sim.training.layouts.account import Account
from sim.training.layouts.prices import Price
from sim.training.layouts.scene import PASSES, Scene
from sim.training.layouts.times import Burst

SimProcess = Generator[simpy.Event, object, None]
_PARTIAL: Final = {"tensor": "tensor-parallel messages", "context": "context-parallel messages", "expert": "expert dispatch and combine"}


class Kernels:
    """The GPUs and hosts of one stage, or of the rank *number* of it."""

    def __init__(self, scene: Scene, network: Network, account: Account, stage: int, number: int) -> None:
        self.scene = scene
        self.env = network.env
        self.account = account
        self.stage = stage
        self.gpu = LiveGpu(network, f"stage {stage}", scene.overlap_slowdown, None, shares=scene.beside is not None)
        self.gpu_name = f"{scene.node.gpu.name} compute"
        self.times = scene.times[number]
        self.optimizer = scene.updates[number]
        self.host = 0.0
        """When the host will have launched everything so far."""
        self.floor = 0.0
        """When the host goes on behind what it launches now, where it waits for memory to be freed."""
        self.worked = 0.0
        """Seconds of compute since the ranks of the stage last met."""
        self.worked_in_step = 0.0
        self.playing = 0
        """Operations beside the compute."""
        self.blocks, self.memory_rate = 0, 0.0
        """Of operations on the GPU."""
        self.at_work: tuple[int, int, Part] | None = None
        """Units that compute now."""

    # --- beside communication --------------------------------------------------------------------------------------

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
        beside = self.scene.beside
        if beside is None:
            return
        factor = 1.0
        if self.at_work is not None and self.blocks:
            alone = self.times.span(*self.at_work).compute
            left = beside(self.stage, self.blocks, float(f"{max(0.0, self.memory_rate):.3g}")).span(*self.at_work).compute
            factor = max(1.0, left / alone) if alone else 1.0
        self.gpu.beside(factor)

    # --- compute ---------------------------------------------------------------------------------------------------

    def work(self, work: Work) -> SimProcess:
        """Compute *work*, and wait for what its messages inside units leave exposed."""
        time = self.times.span(work.first, work.last, work.part)
        self.at_work = work.first, work.last, work.part
        self._shares()
        yield from self.compute(time.bursts, PASSES[work.part], work.micro_batch)
        self.host = max(self.host, self.floor)
        self.at_work = None
        self._shares()
        late = self.scene.spread.tensor * time.compute
        pieces = [(Cause.STRAGGLER, "slowest rank of the tensor group", late)] if late else []
        for each in time.exposed:
            if each.seconds > 0:
                pieces.append((each.cause, f"{_PARTIAL[each.axis]}: {each.limit}", each.seconds))
                self.account.exposes(each.axis, each.seconds)
        if pieces:
            start = self.env.now
            yield self.env.timeout(sum(seconds for *_, seconds in pieces))
            for cause, resource, seconds in pieces:
                self.account.waited(cause, resource, start, start + seconds)
                start += seconds

    def update(self) -> SimProcess:
        """Run the optimizer."""
        yield from self.compute([Burst(*self.optimizer)], "optimizer", -1)

    def compute(self, bursts: Sequence[Burst], name: str, ident: int) -> SimProcess:
        """Compute *bursts*, no faster than the host launches their kernels."""
        start, launch = self.env.now, self.scene.launch_cpu
        for burst in bursts:
            if burst.drained:
                self.host = max(self.host, self.env.now)
            yield from self._launched(self.host + min(1.0, burst.launches) * launch)
            self.host += burst.launching(launch)
            begun = self.env.now
            if burst.compute > 0:
                yield self.gpu.compute(burst.compute).done
                self.account.waited(Cause.COMPUTE, self.gpu_name, begun, self.env.now)
            yield from self._launched(self.host)
        self.account.log.did(self.account.index, "gpu", name, Cause.COMPUTE, start, self.gpu_name, ident)
        seconds = sum(burst.compute for burst in bursts)
        self.worked += seconds
        self.worked_in_step += seconds

    def _launched(self, time: float) -> SimProcess:
        """Wait until *time*, when the host has launched what comes next."""
        if time > self.env.now:
            begun = self.env.now
            yield self.env.timeout(time - begun)
            self.account.waited(Cause.LAUNCH, "host", begun, self.env.now)

    def issues(self, program: Program, at: int) -> float:
        """Return when the host has launched the works before the use of what starts at place *at* of *program*."""
        start = program[at]
        if isinstance(start, Start) and start.limited:
            self.floor = self.env.now
        spans = (self.times.span(work.first, work.last, work.part) for work in before_use(program, at))
        return self.host + sum(span.launching(self.scene.launch_cpu) for span in spans)
