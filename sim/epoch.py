"""How long does one epoch take? It is simulated step by step until it repeats, and then extrapolated up to the next change of regime.

Fast state (queues, outstanding work) decides the period. Slow state (burst credits of a disk, a job that starts later) is advanced
along with it, and ends the extrapolation when it changes a rate: the epoch is then simulated step by step again until it finds its new
period. After an initial warm-up, *windows* tile the whole epoch: ``time = warm-up + step_time * steps after it``. Every job trains
indefinitely; the epoch is that of the first job, and what another job does in this time represents its own epoch.

Limits: loaders continue into the next epoch, as if it followed immediately; burst credits change the disk's rate only at the end of a step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

from sim.analysis.stalls import Blame, Window, align_to_steps, resource_table, stall_table
from sim.analysis.steady_state import Period, PeriodDetector, State, steady_mean, warm_up
from sim.cluster.build import LiveCluster, Slot, build
from sim.cluster.checkpoint import CheckpointWrites, Outflow
from sim.cluster.clock import Clock, SimProcess
from sim.cluster.network import Network
from sim.cluster.storage import Credits, most_iops
from sim.events import Cause, EventLog
from sim.live_job import DRIFT_LIMIT, LEAST_LIVE_STEPS, LiveJob
from sim.micro_batches import LEAST, MicroBatches
from sim.spec import memo
from sim.spec.identity import content
from sim.training.job import Job, JobStage, RankWiring, add_disks, iops_link, make_ranks
from sim.training.own_loader import blame_loaders

MOST_LIVE_STEPS = 400
"""Steps simulated one by one in a regime without an exact period before the mean of the later ones represents the rest of the epoch."""
MOST_DRAWN_STEPS = 500
"""Maximum of steps drawn in a regime: their mean then represents the rest, however wide its interval."""
ENOUGH_PRECISION = 0.005
"""Half-width of the 95% interval, as a share of the step, below which no more steps are drawn."""
LEAST_DRAWN_STEPS = 100
"""Minimum of steps drawn: the interval needs several in each of its twenty batches."""
_LOOK_EVERY = 20


@dataclass(frozen=True)
class Epoch:
    """One epoch of one job; its windows represent all of its steps after the warm-up."""

    steps: int
    time: float
    """Seconds, loader start-up included."""
    step_time: float
    """Mean seconds of a step in the windows."""
    stalls: Mapping[Cause, float]
    """Seconds per step by cause; sums to ``step_time``."""
    resources: Sequence[Blame]
    """The same by cause and resource, largest first."""
    windows: Sequence[Window]
    exact: bool
    """Whether the windows are exact periods or every step, not a mean."""
    log: EventLog = field(repr=False)
    interval: float | None = None
    """Half-width (s) of the 95% interval of ``step_time`` if that is a mean over enough steps, drawn or without a period."""
    drawn_steps: int = 0
    """Steps that were drawn one by one; the others are extrapolated."""


@dataclass(frozen=True)
class EpochScene:
    """Everything that defines the simulation of an epoch; *credits* (by slot) carry over from epoch to epoch."""

    jobs: Sequence[Job]
    cluster: Sequence[Slot]
    rings: Sequence[RankWiring | None]
    credits: Mapping[str, Credits]
    steps: Sequence[int]
    """Steps of an epoch, by job."""
    exact: bool = False
    complete: bool = False
    """Whether all micro-batches of a step are simulated."""
    fold: bool = True
    keep_rates: bool = False
    executor: str = "phase"
    seed: int = 0
    lags: Sequence[float] = ()
    """Seconds that a finished batch waits before it is passed on, by job, which shifts the loader's work within the step; empty: none."""
    checkpoint_writes: Sequence[tuple[str, Sequence[Outflow]]] = ()
    """Parts of checkpoints that the nodes of each slot write continuously during the epoch."""
    keep_log: bool = True
    """Whether waits and work stay in the log after stalls are computed: they are nine tenths of the memory of an epoch."""

    @property
    def draws(self) -> bool:
        """Return whether any job draws its steps at random."""
        return any(job.workload.training.noise.draw for job in self.jobs)

    @cached_property
    def live_cluster(self) -> LiveCluster:
        """Return the rank classes and live links, the same in every epoch."""
        slot_keys = tuple((slot.name, slot.lent_gpus, slot.graph, slot.cores) for slot in self.cluster)
        key = (build, slot_keys, *map(id, self.rings), self.fold)
        cached = memo.get_or_make(key, lambda: build(self.cluster, self._crossings() if self.fold else {}, self.fold), self.rings)
        slots = {slot.name: slot for slot in self.cluster}  # the cached result may come from slots that differ in what is not live
        return cached._replace(classes=[rank_class._replace(slot=slots[rank_class.slot.name]) for rank_class in cached.classes])

    def _crossings(self) -> dict[str, dict[str, Hashable]]:
        """Return, by slot and physical link, which jobs cross it how often: the color that keeps unequal links apart."""
        crossings: dict[str, dict[str, Hashable]] = {slot.name: {} for slot in self.cluster}
        for number, plan in enumerate(self.rings):
            for slot, links in crossings.items():
                for link, counts in plan.crossings(slot).items() if plan else ():
                    links[link] = (links.get(link), number, counts)
        return crossings


class EpochRun:
    """One epoch of all jobs while it is simulated.

    *hits* are page-cache hit ratios by job and slot, *starts* the times (s) at which jobs start.
    """

    def __init__(self, scene: EpochScene, hits: Sequence[Mapping[str, float]], starts: Sequence[float]) -> None:
        self.scene = scene
        self.env = env = Clock()
        self.log = EventLog(lambda: env.now, scene.keep_rates)
        self.network = Network(self.env, self.log)
        self.windows: list[Window] = []
        self.exact = True
        self._detector = PeriodDetector()
        self._period: Period | None = None
        self._pause = self.env.event()
        self._skipped_steps = 0
        self._skipped_time = 0.0
        self._skipped = self.env.event()
        self._covered: int | None = None
        """Step of the first job up to which windows cover the epoch; None in the warm-up."""
        self._over = False
        self._log_end = 0.0
        """Time up to which the log is complete."""
        self._interval: float | None = None
        self._max_steps = MOST_DRAWN_STEPS if scene.draws else MOST_LIVE_STEPS
        self._burst = {slot: credits.can_burst for slot, credits in scene.credits.items()}
        self._storage = {slot.name: slot.node.storage for slot in scene.cluster if slot.node.storage is not None}
        self._ios: list[dict[str, float]] = []
        """I/Os on one node of each slot, by step of the first job."""
        for link, capacity in scene.live_cluster.capacity.items():
            self.network.add_link(link, capacity)
        self.log.links = scene.live_cluster.live_links
        add_disks(self.network, scene.cluster, self._burst)
        for link, capacity in {link: capacity for plan in scene.rings if plan for link, capacity in plan.shared_capacities.items()}.items():
            self.network.add_link(link, capacity)
        for slot, flows in scene.checkpoint_writes:
            CheckpointWrites(self.network, flows, scene.live_cluster.live_links[slot].__getitem__)
        self._stage = JobStage(self.network, self.log, scene.live_cluster, self._burst, scene.executor, scene.seed, scene.lags)
        self._live = [LiveJob([], [start], job.asynchronous) for job, start in zip(scene.jobs, starts, strict=True)]
        for number, start in enumerate(starts):
            if start > 0:
                self.env.process(self._launch_later(number, hits[number]))
            else:
                self._launch(number, hits[number])

    def run(self) -> Sequence[Epoch]:
        """Simulate until the epoch's outcome is determined; return it by job. Raise SpecError if a user-defined loader fails.

        While results are cached, an epoch with the same inputs as an earlier one is not simulated again.
        """
        try:
            return self._simulated_or_cached()
        finally:
            self._close()

    def _simulated_or_cached(self) -> Sequence[Epoch]:
        made_of = self.cache_key() if memo.is_open() else None
        if made_of is None:
            return self._simulated()[0]
        epochs, levels, changed = memo.get_or_make((EpochRun, made_of), self._simulated)
        for slot, level in levels.items():
            self.scene.credits[slot].level = level
        log = replace(epochs[0].log, capacity=self.log.capacity | changed)
        return [replace(epoch, log=log) for epoch in epochs]

    def _simulated(self) -> tuple[Sequence[Epoch], Mapping[str, float], dict[str, float]]:
        """Return the epoch by job, the burst credits left by slot, and the links whose capacity has changed."""
        before = dict(self.log.capacity)
        with blame_loaders(self._own_loaders):
            self._run()
        levels = {slot: credits.level for slot, credits in self.scene.credits.items()}
        changed = {link: capacity for link, capacity in self.log.capacity.items() if capacity != before[link]}
        epochs = [self._epoch(job) for job in range(len(self.scene.jobs))]
        self._release_log()
        return epochs, levels, changed

    def _release_log(self) -> None:
        """Keep in the log only what is needed after the epoch, and freeze its clock so that it does not keep the simulation alive."""
        end = self.env.now
        self.log.clock = lambda: end
        if not self.scene.keep_log:
            for lines in (self.log.waits, self.log.work, self.log.rates):
                lines.clear()

    def _close(self) -> None:
        """Break the circles of references in the simulation, so that it is freed without a garbage collection.

        In a sweep, which simulates hundreds of epochs between two collections, these would take a tenth of the time.
        """
        self.env.close()
        self.network.close()
        for live in self._live:
            for exchange in dict.fromkeys(rank.exchange for rank in live.ranks):
                exchange.close()
            for rank in live.ranks:
                rank.close()
            live.ranks = []

    @property
    def _own_loaders(self) -> list[str]:
        return [name for job in self.scene.jobs if (name := job.workload.input.own_loader) is not None]

    def cache_key(self) -> Hashable:
        """Return a cache key: everything that decides this epoch, which has not begun; None if it cannot be cached.

        Drawn steps, jobs that start later, user-defined loaders, and exchanges that learn from step to step cannot be cached.
        """
        scene, ranks = self.scene, [rank for live in self._live for rank in live.ranks]
        exchanges = tuple([rank.exchange.cache_key() for rank in ranks])
        if scene.draws or self._own_loaders or None in exchanges or not all(live.ranks for live in self._live):
            return None
        jobs = tuple((content(job.workload.input), job.asynchronous) for job in scene.jobs)
        links = tuple((slot, *names.items()) for slot, names in self.log.links.items())
        disks = tuple((name, most_iops(storage, burst=False)) for name, storage in self._storage.items())
        credits = tuple((slot, bucket.baseline, bucket.capacity, bucket.level) for slot, bucket in scene.credits.items())
        beside = tuple((slot, *flows) for slot, flows in scene.checkpoint_writes)
        options = tuple(scene.steps), scene.exact, scene.complete, scene.keep_rates, scene.keep_log, repr(self.log.decisions), beside
        return options, jobs, tuple(self.log.ranks), tuple([rank.cache_key for rank in ranks]), exchanges, links, disks, credits

    def _run(self) -> None:
        while self._steps_left() > 0:
            self._pause = self.env.event()
            self.env.run_to(self._pause)
            if self._steps_left() > 0:
                self._update_interval()
                self.exact = self.exact and self._period is not None and not self.scene.draws
                self._skip(self._stretch())
        last = len(self._live[0].boundaries) - 1
        if self._covered is None:
            self._covered = self._stretch().first % last
        self._cover(last)
        self._drain()

    def _stretch(self) -> Period:
        """Return the steps that represent the others: an exact period, or the best approximation of one."""
        if self._period:
            return self._period
        if not self.scene.draws:
            return self._detector.nearest()
        times = self._live[0].boundaries
        first = self._live[0].regime_start + warm_up(self._live[0].durations)
        return Period(first, len(times) - 1, times[first], times[-1])

    def _update_interval(self) -> None:
        """Record the interval of the mean of steps without a period: from batch means, as for drawn steps."""
        if self._period is None and not self.scene.draws and (mean := steady_mean(self._live[0].durations)):
            self._interval = max(mean.half_width, self._interval or 0.0)

    def _launch_later(self, number: int, hits: Mapping[str, float]) -> SimProcess:
        """Start a job at its start time, or when the first job's epoch is over."""
        live = self._live[number]
        while not self._over and (wait := live.boundaries[0] - self.env.now - self._skipped_time) > 0:
            yield self.env.any_of([self.env.timeout(wait), self._skipped])
        self._launch(number, hits)

    def _launch(self, number: int, hits: Mapping[str, float]) -> None:
        """Start a job now."""
        live, plan = self._live[number], self.scene.rings[number]
        live.boundaries[0] = self.env.now
        live.ranks = make_ranks(self._stage, number, self.scene.jobs[number], plan, hits, self._finished_step)
        if plan is not None:
            self.log.decisions[f"job {number}"] = plan.decision
        self._new_regime()
        if self._leaves_out_micro_batches:
            micro_batches = MicroBatches(live.ranks, lambda scale: self._state([live], scale))
            live.left_out = micro_batches.left_out
        for rank in live.ranks:
            self.env.process(rank.train())

    @property
    def _leaves_out_micro_batches(self) -> bool:
        """Return whether equal micro-batches of a step are simulated only until they repeat; their log would lack the others."""
        (job, *others), scene = self.scene.jobs, self.scene
        alone = not others and not job.asynchronous and not scene.exact and not scene.complete
        return alone and job.workload.training.gradient_accumulation_steps >= LEAST

    # --- step boundaries -----------------------------------------------------------------------------------------

    def _steps_left(self) -> int:
        """Return the number of steps of the first job's epoch that are neither simulated nor skipped.

        An epoch of one step with a loader counts as two: the first waits for the loader to start, the second is the steady state.
        """
        minimum = 1 if self.scene.jobs[0].workload.input.loader == "synthetic" else 2
        return max(minimum, self.scene.steps[0]) - self._skipped_steps - (len(self._live[0].boundaries) - 1)

    def _finished_step(self, rank: int) -> None:
        self.log.steps.setdefault(rank, []).append(self.env.now)
        job = self.log.ranks[rank].job
        live = self._live[job]
        if not live.counts(rank, self.log.ranks[rank].size) or (job == 0 and self._over):
            return
        live.boundaries.append(self.env.now)
        if len(self._live) > 1 and not self.scene.draws:
            live.detector.observe(len(live.boundaries) - 1, self.env.now, self._state([live]))
        if job == 0:
            self._spend_credits()
            self._observe(len(live.boundaries) - 1)

    def _observe(self, done: int) -> None:
        """Look for a period after *done* steps; pause if the epoch ends, or need not be simulated further."""
        if self.scene.draws:
            self._check_precision(done)
        elif not (self.scene.exact and self._period):
            self._period = self._detector.observe(done, self.env.now, self._state(self._live))
        if self._steps_left() == 0:
            self._over = True
            self._pause.succeed()
        elif not self.scene.exact and (self._period or self._has_enough_steps(done - self._live[0].regime_start)):
            self._pause.succeed()

    def _has_enough_steps(self, lived: int) -> bool:
        """Return whether the *lived* steps of this regime are enough to represent the others, though no state has recurred."""
        if lived >= self._max_steps:
            return True
        looks = not self.scene.draws and lived >= LEAST_LIVE_STEPS and lived % _LOOK_EVERY == 0
        return looks and (self._detector.mismatch() <= DRIFT_LIMIT or self._jobs_are_steady())

    def _jobs_are_steady(self) -> bool:
        """Return whether several jobs run, each of them steady by itself: their periods differ, so that the state of all never recurs."""
        running = [live for live in self._live if live.ranks]
        return len(running) > 1 and all(live.is_steady() for live in running)

    def _check_precision(self, done: int) -> None:
        """Check every few steps whether the mean of drawn steps is precise enough."""
        if (done - self._live[0].regime_start) % _LOOK_EVERY == 0 or self._steps_left() == 0:
            mean = steady_mean(self._live[0].durations)
            self._interval = mean.half_width if mean else self._interval
            enough = done - self._live[0].regime_start >= LEAST_DRAWN_STEPS and not self.scene.exact
            if mean and enough and mean.half_width <= ENOUGH_PRECISION * mean.mean:
                self._period = self._stretch()

    def _state(self, jobs: Sequence[LiveJob], micro_batch: float = 0.0) -> State:
        """Return the state of *jobs* at the end of a step of the first of them; what is left of activities is part of that of all jobs.

        With the time (s) of a *micro_batch*, return that between two of the first rank's, with places relative to it.
        """
        now, times, ranks = self.env.now, jobs[0].boundaries, [rank for live in jobs for rank in live.ranks]
        first = ranks[0].micro_batch
        places = [(rank.micro_batch - first, rank.place) if micro_batch else rank.at for rank in ranks]
        own = {rank.index for rank in ranks}
        waits = [wait for wait in sorted(self.log.waiting_since.items()) if wait[0] in own]
        # sorted, so that the order in which equal activities were started does not matter
        activities = self.network.state() if len(jobs) == len(self._live) else ()
        progress = sorted(each for each in activities if each[0] != CheckpointWrites.NAME)
        meetings = dict.fromkeys(rank.exchange for rank in ranks)
        exchanges = [played for exchange in meetings for played in sorted(exchange.collectives_in_progress.values()) or [("", now)]]
        learned = tuple(f"{value:.9e}" for exchange in meetings for value in exchange.backend_state())
        queues = (
            tuple((rank, cause) for rank, (cause, _) in waits),
            tuple(name for name, _ in progress),
            tuple((place, rank.input.state()) for place, rank in zip(places, ranks, strict=True)),
            (*(name for name, _ in exchanges), *learned),
        )
        started = (start for rank in ranks for start in (*rank.input.since(), rank.host))
        since = (*(start for _, (_, start) in waits), *(start for _, start in exchanges), *started)
        return State(
            queues, (*(now - start for start in since), *(left for _, left in progress)), micro_batch or max(now - times[-2], 1e-9)
        )

    def _new_regime(self) -> None:
        self._detector.forget()
        self._period = None if not self.scene.exact else self._period
        for live in self._live:
            live.detector.forget()
            live.regime_start = len(live.boundaries) - 1

    # --- burst credits -------------------------------------------------------------------------------------------

    def _spend_credits(self) -> None:
        """Charge the reads of the last step; a disk without credits falls to its baseline for the rest of the epoch."""
        ended = len(self._live[0].boundaries) - 1
        seconds = self._live[0].seconds(ended - 1, ended)
        reads = [rank.input.site.take_reads() for live in self._live for rank in live.ranks]
        self._ios.append({slot: sum(ios.get(iops_link(slot), 0.0) for ios in reads) for slot in self.scene.credits})
        for slot, credits in self.scene.credits.items():
            credits.advance(seconds, self._ios[-1][slot] / seconds)
            if self._burst[slot] and not credits.can_burst:
                self._burst[slot] = False
                self.network.set_capacity(iops_link(slot), most_iops(self._storage[slot], burst=False))
                self._new_regime()

    def _periods_until_baseline(self, slot: str, period: Period) -> float:
        """Return how many times *period* can recur before the credits of *slot* run out in one of its steps."""
        credits, live = self.scene.credits[slot], self._live[0]
        if not self._burst[slot]:
            return math.inf
        steps = range(period.first, period.last)
        spent = list(accumulate(self._ios[step][slot] - credits.baseline * live.seconds(step, step + 1) for step in steps))
        if spent[-1] <= 0:
            return math.inf
        return max(0.0, math.ceil((credits.level - max(spent)) / spent[-1]))

    # --- arithmetic instead of simulation ------------------------------------------------------------------------

    def _skip(self, period: Period) -> None:
        """Use *period* for as much of the rest of the epoch as possible."""
        repeats, rest = divmod(self._steps_left(), period.steps)
        elapsed = self.env.now + self._skipped_time
        waits = [live.boundaries[0] - elapsed for live in self._live if not live.ranks]
        limits = [wait // self._live[0].seconds(period.first, period.last) for wait in waits] + [
            self._periods_until_baseline(slot, period) for slot in self.scene.credits
        ]
        allowed = min(limits, default=math.inf)
        to_the_end = allowed >= repeats + (rest > 0)
        periods = repeats if to_the_end else int(min(repeats, allowed))
        live = self._live[0]
        self._cover(period.first)
        self.windows += live.windows(period.first, period.last, 1.0 + periods)
        if to_the_end and rest:
            self.windows += live.windows(period.first, period.first + rest)
        self._covered = len(live.boundaries) - 1
        self._advance(period, periods, rest if to_the_end else 0)

    def _advance(self, period: Period, periods: int, rest: int) -> None:
        """Advance time and credits by *periods* recurrences of *period* and *rest* more steps."""
        live = self._live[0]
        period_time, part = live.seconds(period.first, period.last), live.seconds(period.first, period.first + rest)
        self._skipped_steps += periods * period.steps + rest
        self._skipped_time += periods * period_time + part
        for slot, credits in self.scene.credits.items():
            ios = [self._ios[step][slot] for step in range(period.first, period.last)]
            for repeats, seconds, spent in ((periods, period_time, sum(ios)), (1, part, sum(ios[:rest]))):
                if seconds > 0:
                    credits.advance(repeats * seconds, spent / seconds)
        self._new_regime()
        self._over = self._steps_left() == 0
        self._skipped.succeed()
        self._skipped = self.env.event()

    def _cover(self, until: int) -> None:
        """Add a window with the simulated steps from the end of the last window up to step *until*, without repeats."""
        if self._covered is not None and until > self._covered:
            self.windows += self._live[0].windows(self._covered, until)
        self._covered = until

    # --- outcome -------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Continue until the log holds one whole step of each job, and every wait that began before that is complete."""
        self._skipped.succeed()
        while any(len(live.boundaries) < 2 for live in self._live):
            self.env.step()
        self._log_end = self.env.now  # other ranks may not have ended the same step yet
        while any(start < self._log_end for _, start in self.log.waiting_since.values()):
            self.env.step()

    def _own_interval(self, job: int) -> float | None:
        """Return the half-width (s) of the interval of a later job's mean step; None if steps are exact or too few."""
        mean = None if self.exact else steady_mean([end - start for start, end in pairwise(self._live[job].boundaries)])
        return mean.half_width if mean else None

    def _epoch(self, job: int) -> Epoch:
        times, epoch_steps = self._live[job].boundaries, self.scene.steps[job]
        windows = align_to_steps(self.windows, times, self._log_end) if job else self.windows
        steps = sum(window.steps * window.repeats for window in windows)
        step_time = sum((window.end - window.start) * window.repeats for window in windows) / steps
        done = min(epoch_steps, len(times) - 1)
        rest = self._skipped_time if job == 0 else (epoch_steps - done) * step_time
        resources = resource_table(self.log, windows, job)
        return Epoch(
            steps=epoch_steps,
            time=self._live[job].seconds(0, done) + rest,
            step_time=step_time,
            stalls=stall_table(resources),
            resources=resources,
            windows=windows,
            exact=self.exact,
            log=self.log,
            interval=self._interval if job == 0 else self._own_interval(job),
            drawn_steps=len(times) - 1 if self.scene.draws else 0,
        )
