"""How do the GPUs of one stage compute? Units run in bursts, no faster than the host launches them, next to communication on the GPU.

The slowest of the ranks that exchange inside units is late by their spread (`noise`) at every message there. The slowest stage is late once
a step, unless all stages meet in an operation.
Messages inside a unit share links with those of other groups. They are simulated after the compute of the unit, although in reality they
occur between its layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sim.cluster.clock import SimProcess
from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import Cause
from sim.parallel.program import Copy, PassPart, Program, Start, Work, works_before_use
from sim.spec.identity import IdentityCache
from sim.training.layouts.account import Account
from sim.training.layouts.group_price import GroupPrice
from sim.training.layouts.noise import StageSpread
from sim.training.layouts.scene import BESIDE, COPIES, PASSES, LayoutScene
from sim.training.layouts.slowest import SlowestRank
from sim.training.layouts.times import UnitTimes, copy_time
from sim.training.layouts.unit_time import Burst, ExposedWait

_PARTIAL: Final = {"tensor": "tensor-parallel messages", "context": "context-parallel messages", "expert": "expert dispatch and combine"}

_NOTHING: Final = 1e-9
"""Share of a burst below which additional time is rounding."""


class StageKernels:
    """The GPUs and hosts of one stage, or of its rank *number*."""

    def __init__(self, scene: LayoutScene, network: Network, account: Account, stage: int, number: int) -> None:
        self.scene = scene
        self.env = network.env
        self.network = network
        self.account = account
        self.stage = stage
        self.number = number
        self.gpu = LiveGpu(network, f"stage {stage}", scene.overlap_slowdown, None, shares=scene.times_beside is not None)
        self.gpu_name = f"{scene.node.gpu.name} compute"
        self.times = scene.times[number]
        self.optimizer = scene.updates[number]
        self._loads = IdentityCache[Mapping[str, float]]()
        self.host = 0.0
        """Time (s) at which the host has launched all work so far."""
        self.floor = 0.0
        """Earliest time (s) at which the host continues after the current work, because it waits for memory to be freed."""
        self.slowest = SlowestRank(self.env)
        self.worked_in_step = 0.0
        self.playing = 0
        """Number of operations that overlap with compute."""
        self.most_blocks = 0
        """The largest number of thread blocks of operations during the current burst."""
        self.blocks, self.waiting, self.memory_rate = 0, 0, 0.0
        """Thread blocks of operations on the GPU, those among them that wait for slower ranks, and bytes/s of operations through memory."""
        self.at_work: tuple[int, int, PassPart] | Copy | None = None
        """The units that are being computed, or the copy that is running."""
        self._slowdowns: dict[tuple[object, int, float], float] = {}
        """Slowdown factors by the current compute, the thread blocks beside it, and their bytes/s through memory: steps repeat."""

    # --- overlap with communication --------------------------------------------------------------------------------

    def count_operation(self, change: int, price: GroupPrice) -> None:
        """Register that an operation that overlaps with compute begins (*change* 1) or ends (-1)."""
        before, self.playing = self.playing, self.playing + change
        if self.gpu.slows and bool(before) != bool(self.playing):
            self.gpu.set_communicating(bool(self.playing))
        self.memory_rate += change * price.memory_rate
        self.blocks += change * price.blocks
        self.most_blocks = max(self.most_blocks, self.blocks)
        self._update_slowdown()

    def count_waiting(self, change: int, price: GroupPrice) -> None:
        """Register that the thread blocks of an operation begin (*change* 1) or end (-1) to wait on the GPU for slower ranks."""
        self.blocks += change * price.blocks
        self.waiting += change * price.blocks
        self._update_slowdown()

    def _update_slowdown(self) -> None:
        """Set the slowdown of the current compute according to all operations on the GPU."""
        if self.scene.times_beside is None:
            return
        factor = self._slowdown(self.blocks)
        self.slowest.spare(1.0 - self._slowdown(self.blocks - self.waiting) / factor if self.waiting else 0.0)
        self.gpu.set_slowdown(factor)

    def _slowdown(self, blocks: int) -> float:
        """Return the slowdown factor of the current compute next to *blocks* thread blocks."""
        beside, current = self.scene.times_beside, self.at_work
        if current is None or not blocks or beside is None:
            return 1.0
        key = current.nbytes if isinstance(current, Copy) else current, blocks, self.memory_rate
        if key not in self._slowdowns:
            shared = self._gpu_time(beside(self.stage, blocks, float(f"{max(0.0, self.memory_rate):.3g}")))
            alone = self._gpu_time(self.times)
            self._slowdowns[key] = max(1.0, shared / alone) if alone else 1.0
        return self._slowdowns[key]

    def _gpu_time(self, times: UnitTimes) -> float:
        """Return the GPU time (s) of the current work according to *times*."""
        current = self.at_work
        if current is None:
            return 0.0
        return (copy_time(current, times.gpu) if isinstance(current, Copy) else times.span(*current)).compute

    # --- compute ---------------------------------------------------------------------------------------------------

    def work(self, work: Work) -> SimProcess:
        """Compute *work*, and wait for the exposed part of the messages inside its units."""
        time = self.times.of(work)
        self.at_work = work.first, work.last, work.part
        self._update_slowdown()
        yield from self.compute(time.bursts, PASSES[work.part], work.micro_batch, self.spread.speed)
        self.host = max(self.host, self.floor)
        self.at_work = None
        self._update_slowdown()
        yield from self._wait_for_slowest(self.spread.inside * time.compute, "slowest of the ranks that exchange inside layers")
        for each in time.exposed_waits:
            if each.seconds > 0:
                yield from self._wait_for_messages(each)
        self.slowest.mark_busy()

    def copy(self, copy: Copy, _: int) -> SimProcess:
        """Copy weights or gradients."""
        self.at_work = copy
        self._update_slowdown()
        yield from self.compute(copy_time(copy, self.times.gpu).bursts, COPIES[copy.what], copy.micro_batch)
        self.at_work = None
        self._update_slowdown()

    @property
    def spread(self) -> StageSpread:
        """Return how much later the slowest ranks are in the current step."""
        return self.scene.noise.at(self.account.step, self.stage)

    def _wait_for_slowest(self, seconds: float, what: str) -> SimProcess:
        """Wait *seconds* for the slowest ranks."""
        if seconds:
            start = self.env.now
            yield self.env.timeout(seconds)
            self.account.add_wait(Cause.STRAGGLER, what, start, self.env.now)

    def _wait_for_messages(self, messages: ExposedWait) -> SimProcess:
        """Wait for *messages* inside a unit, which other traffic may slow."""
        start = self.env.now
        load = self._loads.get_or_make(messages, self._load)
        yield self.network.start(messages.axis, messages.volume, load, cap=messages.volume / messages.seconds).done
        self.account.add_wait(messages.cause, f"{_PARTIAL[messages.axis]}: {messages.limit}", start, self.env.now)
        self.account.add_exposed(messages.axis, self.env.now - start)

    def _load(self, messages: ExposedWait) -> Mapping[str, float]:
        """Return the load of *messages* on each link per unit of their volume, and add missing links to the network."""
        load = self.scene.prices.live_loads(self.number, messages.load)
        for link in load:
            if link not in self.network.capacity:
                self.network.add_link(link, self.scene.prices.capacity[link])
        return {link: amount / messages.volume for link, amount in load.items() if amount}

    def update(self) -> SimProcess:
        """Run the optimizer. Unless all stages meet in an operation, wait for the slowest stage first."""
        if not self.scene.stages_meet:
            yield from self._wait_for_slowest(self.spread.all * self.worked_in_step, "slowest stage")
        yield from self.compute([Burst(*self.optimizer)], "optimizer", -1)

    def compute(self, bursts: Sequence[Burst], name: str, ident: int, speed: float = 1.0) -> SimProcess:
        """Compute *bursts* in *speed* times their mean time, no faster than the host launches their kernels."""
        start, launch, blocking = self.env.now, self.scene.launch_cpu, self.scene.launch_blocking
        for burst in bursts:
            drained = burst.waits_for_gpu or blocking
            if drained:
                self.host = max(self.host, self.env.now)
            first = burst.launch_time(launch) if blocking else min(1.0, burst.launches) * launch
            yield from self._wait_for_launch(self.host + first, drained)
            self.host += burst.launch_time(launch)
            begun = self.env.now
            if burst.compute > 0:
                self.slowest.set_computing(computing=True)
                self.most_blocks = self.blocks
                yield self.gpu.compute(burst.compute * speed).done
                self.slowest.set_computing(computing=False)
                self._count_compute(begun, burst.compute * speed)
            yield from self._wait_for_launch(self.host, drained)
        self.account.log.add_work(self.account.index, "gpu", name, Cause.COMPUTE, start, self.gpu_name, ident)
        seconds = sum(burst.compute for burst in bursts)
        self.slowest.add_lag(self.spread.data * seconds)
        self.worked_in_step += seconds

    def _count_compute(self, begun: float, alone: float) -> None:
        """Record compute since *begun* that takes *alone* seconds on the whole GPU; more of them, at its end, if collectives slowed it."""
        end = self.env.now
        if end - begun <= alone * (1 + _NOTHING):
            self.account.add_wait(Cause.COMPUTE, self.gpu_name, begun, end)
            return
        kernels = self.scene.node.gpu.kernels
        of = f" on {min(self.most_blocks, kernels.sm_count)} of {kernels.sm_count} multiprocessors" if kernels and self.most_blocks else ""
        self.account.add_wait(Cause.COMPUTE, self.gpu_name, begun, begun + alone)
        self.account.add_wait(Cause.COMPUTE, f"{BESIDE}{of}", begun + alone, end)

    def _wait_for_launch(self, time: float, drained: bool) -> SimProcess:
        """Wait until *time*, when the host has launched the next kernels. *drained*: the host waited for the GPU before launching them."""
        if time > self.env.now:
            begun = self.env.now
            yield self.env.timeout(time - begun)
            self.account.add_wait(Cause.LAUNCH, "host", begun, self.env.now)
        if not drained:
            self.slowest.resume(time)

    def issue_time(self, program: Program, at: int) -> float:
        """Return when the host has launched all work between the start at index *at* of *program* and the first wait for it."""
        start = program[at]
        if isinstance(start, Start) and start.is_limited:
            self.floor = self.env.now
        spans = (self.times.span(work.first, work.last, work.part) for work in works_before_use(program, at))
        return self.host + sum(span.launch_time(self.scene.launch_cpu) for span in spans)
