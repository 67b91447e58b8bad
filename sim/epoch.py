"""How does one epoch go? Simulated step by step until it repeats itself, then by arithmetic, up to the next change of regime.

Fast state (queues, outstanding work) decides the period; slow state (burst credits of a disk) is advanced with it and ends the shortcut
where it changes a rate: the epoch then goes on step by step and finds its new period.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from sim.analysis.stalls import Blame, Window, resource_table, stall_table
from sim.analysis.steady_state import Period, PeriodDetector, State
from sim.cluster.build import Slot, build
from sim.cluster.network import Network
from sim.cluster.storage import Credits, ios_per_sample, read_rate
from sim.events import Cause, EventLog, Work
from sim.training.collectives.phase import RingPlan
from sim.training.job import Job, start_job
from sim.training.step import Rank

MOST_LIVE_STEPS = 400
"""Steps simulated one by one in a regime before the mean of the later ones stands for an epoch that shows no exact period."""


@dataclass(frozen=True)
class Epoch:
    """One epoch of one job: its windows stand for all its steps."""

    steps: int
    time: float
    """Seconds, loader start-up included."""
    step_time: float
    """Mean seconds of a step in the steady windows."""
    stalls: Mapping[Cause, float]
    """Seconds per step by cause; sums to ``step_time``."""
    resources: Sequence[Blame]
    """The same by cause and resource, largest first."""
    windows: Sequence[Window]
    exact: bool
    """Whether the windows are exact periods or every step, not a mean."""
    log: EventLog = field(repr=False)


@dataclass(frozen=True)
class Scene:
    """Everything the simulation of an epoch is made of; *credits* (by slot) live on from epoch to epoch."""

    jobs: Sequence[Job]
    cluster: Sequence[Slot]
    rings: Sequence[RingPlan | None]
    credits: Mapping[str, Credits]
    steps: Sequence[int]
    """Steps of an epoch, by job."""
    exact: bool
    fold: bool
    keep_rates: bool


class EpochRun:
    """One epoch of all jobs while it is simulated; *hits* are page-cache hit ratios by job and slot."""

    def __init__(self, scene: Scene, hits: Sequence[Mapping[str, float]]) -> None:
        self.scene = scene
        self.env = simpy.Environment()
        self.log = EventLog(lambda: self.env.now, scene.keep_rates)
        self.network = Network(self.env, self.log)
        self.boundaries: list[list[float]] = [[0.0] for _ in scene.jobs]
        self.windows: list[Window] = []
        self.exact = True
        self._detector = PeriodDetector()
        self._period: Period | None = None
        self._pause = self.env.event()
        self._skipped_steps = 0
        self._skipped_time = 0.0
        self._regime_start = 0
        self._work_read = 0
        self.ranks = self._start(hits)
        self._pacemaker = [next(index for index, rank in enumerate(self.log.ranks) if rank.job == job) for job in range(len(scene.jobs))]

    def run(self) -> list[Epoch]:
        """Simulate until the epoch's outcome is known; return it by job."""
        while self._left() > 0:
            self._pause = self.env.event()
            self.env.run(until=self._pause)
            if self._period is not None:
                self._skip(self._period)
            elif self._left() > 0:
                self._settle()
        return [self._epoch(job) for job in range(len(self.scene.jobs))]

    def _start(self, hits: Sequence[Mapping[str, float]]) -> list[list[Rank]]:
        built = build(self.network, self.scene.cluster, self._crossings(), self.scene.fold)
        burst = {slot: credits.left for slot, credits in self.scene.credits.items()}
        ranks = []
        for number, (job, plan) in enumerate(zip(self.scene.jobs, self.scene.rings, strict=True)):
            if plan is not None:
                plan.live = built.live
                self.log.decisions[f"job {number}"] = {"algorithm": "ring", "channels": plan.channels}
            steps = self.scene.steps[number]
            ranks.append(start_job(number, job, self.network, self.log, built, plan, hits[number], burst, steps, self._finished_step))
        return ranks

    def _crossings(self) -> dict[str, dict[str, Hashable]]:
        """Return, by slot and physical link, who crosses it how often: the colour that keeps unlike links apart."""
        found: dict[str, dict[str, Hashable]] = {slot.name: {} for slot in self.scene.cluster}
        for number, plan in enumerate(self.scene.rings):
            for part in plan.parts if plan else ():
                links = found[part.slot.name]
                for link, counts in plan.crossings(part).items() if plan else ():
                    links[link] = (links.get(link), number, counts)
        return found

    # --- step boundaries -----------------------------------------------------------------------------------------

    def _left(self) -> int:
        """Return the steps of the first job's epoch that are neither simulated nor skipped."""
        return self.scene.steps[0] - self._skipped_steps - (len(self.boundaries[0]) - 1)

    def _finished_step(self, rank: int, step: int) -> None:
        job = self.log.ranks[rank].job
        if rank != self._pacemaker[job]:
            return
        self.boundaries[job].append(self.env.now)
        if job != 0 or self._pause.triggered:
            return
        self._spend_credits()
        if self._left() <= 0:
            self._period = None
            self._pause.succeed()
        elif not (self.scene.exact and self.windows):
            self._look_for_period(len(self.boundaries[0]) - 1)

    def _look_for_period(self, done: int) -> None:
        period = self._detector.observe(done, self.env.now, self._state())
        if period and self.scene.exact:
            self.windows.append(Window(period.start, period.end, period.steps))
        elif period or (not self.scene.exact and done - self._regime_start >= MOST_LIVE_STEPS):
            self._period = period
            self._pause.succeed()

    def _state(self) -> State:
        now, scale = self.env.now, max(self.env.now - self.boundaries[0][-2], 1e-9)
        waits = sorted(self.log.waiting_since.items())
        progress = self.network.state()
        queues = (
            tuple((rank, cause) for rank, (cause, _) in waits),
            tuple(name for name, _ in progress),
            tuple(rank.input.state() for ranks in self.ranks for rank in ranks),
        )
        return State(queues, (*(now - since for _, (_, since) in waits), *(left for _, left in progress)), scale)

    def _spend_credits(self) -> None:
        """Charge the reads since the last boundary; a disk whose credits are gone falls to its baseline."""
        passed = self.boundaries[0][-1] - self.boundaries[0][-2]
        ios = self._ios(self.log.work[self._work_read :])
        self._work_read = len(self.log.work)
        for slot, credits in self.scene.credits.items():
            had = credits.left
            credits.advance(passed, ios.get(slot, 0.0) / passed)
            if had and not credits.left:
                self._new_regime(slot)

    def _ios(self, work: Sequence[Work]) -> dict[str, float]:
        """Return the I/Os on one node of each slot that *work* did."""
        found: dict[str, float] = {}
        nodes = {slot.name: slot.node for slot in self.scene.cluster}
        for span in work:
            if span.nbytes > 0 and span.stream.startswith(("worker", "pipeline")) and span.stream != "pipeline gpu":
                rank = self.log.ranks[span.rank]
                storage, dataset = nodes[rank.node].storage, self.scene.jobs[rank.job].workload.dataset
                if storage is not None:
                    each = ios_per_sample(storage.volume, dataset) / dataset.sample
                    found[rank.node] = found.get(rank.node, 0.0) + span.nbytes * each * len(rank.gpus)
        return found

    def _new_regime(self, slot: str) -> None:
        node = next(known.node for known in self.scene.cluster if known.name == slot)
        disk = f"{slot}.disk"
        if node.storage is not None and disk in self.network.capacity:
            self.network.set_capacity(disk, read_rate(node.storage, self.scene.jobs[0].workload.dataset, burst=False))
        self._detector.forget()
        self._regime_start = len(self.boundaries[0]) - 1

    # --- arithmetic instead of simulation ------------------------------------------------------------------------

    def _skip(self, period: Period) -> None:
        """Let *period* stand for as much of the epoch as it can."""
        whole, rest = divmod(self._left(), period.steps)
        spent = self._ios([w for w in self.log.work if period.start < w.t1 <= period.end])
        lasting = [
            credits.time_to_empty(spent.get(slot, 0.0) / period.duration) for slot, credits in self.scene.credits.items() if credits.left
        ]
        periods = min([float(whole), *(lasts // period.duration for lasts in lasting)])
        to_the_end = periods >= whole
        times = self.boundaries[0]
        steps = int(periods) * period.steps + (rest if to_the_end else 0)
        duration = periods * period.duration + (times[period.first + rest] - period.start if to_the_end else 0.0)
        self.windows.append(Window(period.start, period.end, period.steps, 1.0 + steps / period.steps))
        self._skipped_steps += steps
        self._skipped_time += duration
        for slot, credits in self.scene.credits.items():
            credits.advance(duration, spent.get(slot, 0.0) / period.duration)
        self._detector.forget()
        self._regime_start = len(times) - 1
        self._period = None

    def _settle(self) -> None:
        """Let the mean of the later live steps of this regime stand for the rest of the epoch."""
        self.exact = False
        stretch, left = self._detector.nearest(), self._left()
        self.windows.append(Window(stretch.start, stretch.end, stretch.steps, 1.0 + left / stretch.steps))
        self._skipped_steps += left
        self._skipped_time += left * stretch.duration / stretch.steps

    def _epoch(self, job: int) -> Epoch:
        times = self.boundaries[job]
        windows = self.windows or [Window(times[0], times[-1], len(times) - 1)]
        if job:
            windows = [window._replace(steps=sum(window.start < time <= window.end for time in times)) for window in windows]
        steps = sum(window.steps * window.repeats for window in windows)
        step_time = sum((window.end - window.start) * window.repeats for window in windows) / steps
        rest = (self.scene.steps[job] - (len(times) - 1)) * step_time
        return Epoch(
            steps=self.scene.steps[job],
            time=times[-1] + (self._skipped_time if job == 0 else rest),
            step_time=step_time,
            stalls=stall_table(self.log, windows, job),
            resources=resource_table(self.log, windows, job),
            windows=windows,
            exact=self.exact,
            log=self.log,
        )
