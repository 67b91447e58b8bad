"""Which layout is best, and is that proven? Every layout bounded; those that may be best bounded again, then simulated, best bound first.

A layout rises through three values, each at least the one before: the bound for all at once (`floor`), the recurrence of its program
(`sim.training.layouts.bound`), the simulation. The search always refines the layout whose value is least, so that nothing is refined that a
simulated layout already beats, and what is left when the best is known is excluded by its bound. Memory excludes a layout only where even
its least need does not fit; a layout that thrashes counts `THRASH` times its time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from sim.analysis.energy import node_power, power_model, shares_of
from sim.analysis.layout_memory import StageMemory, memory_by_stage
from sim.mesh import LayoutRun, prepare, scene_of, worker_node
from sim.parallel.lower import Layout
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.plan.floor import Setting, floors
from sim.study.plan.kept import Kept, NotKept
from sim.study.plan.space import Candidate
from sim.training.layer_times import mix_of
from sim.training.layouts.bound import least_time, least_work
from sim.training.layouts.play import play
from sim.training.layouts.scene import Played

Objective = Literal["time", "cost", "energy"]
THRASH: Final = 3.0
"""Times that a step takes longer where the allocator frees and retries: 3 to 7 (nanotron on 80 GB, `sim.analysis.layout_memory`)."""
SHOWN: Final = 10
"""Layouts of the table, which are simulated even where the best is proven before."""
ROOMY: Final = 0.5
"""Share of the memory that the first layout needs at most, by its bound: estimate (needs are up to twice their bound)."""
FLOOR, LEAST = 0, 1


class Way(NamedTuple):
    """A layout and the cluster it is placed on."""

    setting: Setting
    candidate: Candidate


@dataclass(frozen=True)
class Outcome:
    """A simulated layout."""

    way: Way
    run: LayoutRun
    bound: float
    """Seconds of a step by the recurrence."""
    value: float
    """What is minimized, per step: seconds, USD (node-seconds without a price), or joules of the site."""

    @property
    def time(self) -> float:
        """Return the seconds of a step, with the penalty of one that thrashes."""
        return self.run.step_time * (THRASH if self.run.memory_verdict == "thrashes" else 1.0)


@dataclass
class Tally:
    """How far a search has come; outcomes best first."""

    candidates: int = 0
    infeasible: int = 0
    bounded: int = 0
    """Layouts whose program was evaluated without contention."""
    outcomes: list[Outcome] = field(default_factory=list)
    excluded: int = 0
    """Layouts that may fit, but cannot be better than what was simulated."""
    open_bound: float = math.inf
    """The least value that a layout may have that was not simulated."""
    interrupted: bool = False
    needs: list[float] = field(default_factory=list)
    """Least bytes of each layout that may fit."""
    tightest: tuple[float, Way] | None = None
    """Least bytes that any layout needs beyond the memory, and that layout; where something fits, None."""

    @property
    def best(self) -> Outcome | None:
        """Return the best simulated layout."""
        return self.outcomes[0] if self.outcomes else None

    @property
    def complete(self) -> bool:
        """Tell whether no layout that was not simulated can be better than the best."""
        return self.best is not None and self.best.value <= self.open_bound * (1 + 1e-9)

    @property
    def gap(self) -> float:
        """Return by what part of its value the best may be improved at most; 0 where the search is complete."""
        return 0.0 if self.best is None or self.complete else 1.0 - self.open_bound / self.best.value


@dataclass(frozen=True)
class Limits:
    """What a search may use."""

    simulations: int = 200
    memory: float | None = None
    """Bytes of each GPU that a layout may need; None: all."""
    objective: Objective = "time"
    shown: int = SHOWN


def search(
    ways: Sequence[tuple[Setting, Sequence[Candidate]]],
    limits: Limits,
    progress: Callable[[Tally], None] | None = None,
    kept: Kept | None = None,
) -> Tally:
    """Return the simulated layouts of all *ways*, best first, and what is proven. Ctrl-C ends it with what there is so far.

    Steps that are *kept* are not simulated again. Raise NotKept where they cannot be.
    """
    tally = Tally(candidates=sum(len(candidates) for _, candidates in ways))
    queue: list[tuple[float, int, int]] = []
    every: list[Way] = []
    try:
        for setting, candidates in ways:
            _bounded(setting, candidates, limits, tally, queue, every)
        for _ in _refined(tally, queue, every, limits, kept):
            if progress is not None:
                progress(tally)
    except KeyboardInterrupt:
        tally.interrupted = True
    tally.excluded = len(queue)
    tally.open_bound = queue[0][0] if queue else math.inf
    if tally.interrupted and tally.best is None:  # nothing was found yet, which does not mean that nothing fits
        raise KeyboardInterrupt
    return tally


def scale(setting: Setting, objective: Objective) -> float:
    """Return what a second of a step on the cluster of *setting* counts at least; only of energy it may count more."""
    if objective == "time":
        return 1.0
    if objective == "energy":
        return min(site_power(setting, shares) for shares in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    return float(setting.nodes) if setting.rate is None else setting.rate


def site_power(setting: Setting, shares: tuple[float, float, float], workload: Workload | None = None) -> float:
    """Return the W of all nodes and what cools them while GPUs spend *shares* of a step of *workload* computing, waiting and idle.

    Raise SpecError where the power of the GPU is not given.
    """
    node, model = worker_node(setting.hardware), power_model()
    mix = mix_of(workload, node.gpu) if workload is not None else None
    power = node_power(node, model, shares, setting.nodes > 1, setting.gpus_per_node, mix=mix)
    if power is None:
        raise SpecError(f"--objective energy: {node.gpu.name} has no power; write it, for example --set node.gpu.power='700 W'")
    return setting.nodes * power.total * model.pue


def joules_of_step(setting: Setting, run: LayoutRun) -> float:
    """Return the J of one step of *run* at the power of its GPUs' mean step."""
    return site_power(setting, shares_of({cause.value: seconds for cause, seconds in run.stalls.items()}), run.workload) * run.step_time


def _bounded(
    setting: Setting, candidates: Sequence[Candidate], limits: Limits, tally: Tally, queue: list[tuple[float, int, int]], every: list[Way]
) -> None:
    """Put every layout that may fit into *queue*, with its bound."""
    if not candidates:
        return
    memory = _memory(setting, limits)
    each = floors(setting, candidates)
    weight = scale(setting, limits.objective)
    for candidate, least, needed in zip(candidates, each.time, each.memory, strict=True):
        if needed > memory:
            tally.infeasible += 1
            _note_tightest(tally, float(needed) - memory, Way(setting, candidate))
        else:
            tally.needs.append(float(needed))
            heapq.heappush(queue, (weight * float(least), len(every), FLOOR))
            every.append(Way(setting, candidate))


def _memory(setting: Setting, limits: Limits) -> float:
    own = worker_node(setting.hardware).gpu.memory
    return own if limits.memory is None else min(own, limits.memory)


def _note_tightest(tally: Tally, excess: float, way: Way) -> None:
    if tally.tightest is None or excess < tally.tightest[0]:
        tally.tightest = (excess, way)


def _refined(tally: Tally, queue: list[tuple[float, int, int]], every: Sequence[Way], limits: Limits, kept: Kept | None) -> Iterator[None]:
    """Refine the layout of the least value until the table is proven, or as many are simulated as may be."""
    bounds: dict[int, float] = {}
    yield from _first(tally, queue, every, limits, kept)
    while queue and not _proven(tally, queue[0][0], limits):
        value, number, level = queue[0]
        way = every[number]
        try:
            if level == FLOOR:
                bounds[number], least = _least(way, limits.objective)
                tally.bounded += 1
                heapq.heapreplace(queue, (max(value, least), number, LEAST))
                continue
            needed, outcome = _simulated(way, bounds[number], limits, kept)
        except NotKept:
            raise
        except SpecError:  # a combination that the engine refuses
            heapq.heappop(queue)
            tally.infeasible += 1
            continue
        heapq.heappop(queue)
        if outcome is None:
            tally.infeasible += 1
            _note_tightest(tally, needed - _memory(way.setting, limits), way)
        else:
            tally.outcomes.append(outcome)
            tally.outcomes.sort(key=lambda each: each.value)
        yield


def _first(tally: Tally, queue: list[tuple[float, int, int]], every: Sequence[Way], limits: Limits, kept: Kept | None) -> Iterator[None]:
    """Simulate one layout that surely fits, so that there is an answer at once."""
    roomy = [entry for entry in queue if tally.needs[entry[1]] <= ROOMY * _memory(every[entry[1]].setting, limits)]
    if not roomy or limits.simulations < 2:
        return
    entry = min(roomy)
    way = every[entry[1]]
    try:
        _, outcome = _simulated(way, _least(way, limits.objective)[0], limits, kept)
    except NotKept:
        raise
    except SpecError:
        return
    if outcome is not None:
        queue.remove(entry)
        heapq.heapify(queue)
        tally.bounded += 1
        tally.outcomes.append(outcome)
        yield


def _proven(tally: Tally, bound: float, limits: Limits) -> bool:
    """Tell whether the table cannot change any more, or no simulation is left."""
    if len(tally.outcomes) >= limits.simulations:
        return True
    return len(tally.outcomes) >= limits.shown and tally.outcomes[limits.shown - 1].value <= bound


def _least(way: Way, objective: Objective) -> tuple[float, float]:
    """Return the seconds of a step of *way*, and what is minimized, at least."""
    workload, layout = _layout(way)
    setting = way.setting
    scene = scene_of(setting.hardware, workload, layout, setting.book)
    seconds = least_time(scene)
    if objective != "energy":
        return seconds, scale(setting, objective) * seconds
    share = min(1.0, least_work(scene) / seconds)  # computing takes the most power: less of it, in a shorter step, takes less energy
    power = min(site_power(setting, shares, workload) for shares in ((share, 1.0 - share, 0.0), (share, 0.0, 1.0 - share)))
    return seconds, power * seconds


def _layout(way: Way) -> tuple[Workload, Layout]:
    workload = way.setting.laid(way.candidate)
    return workload, prepare(way.setting.hardware, workload, way.setting.gpus_per_node, ends=False)


def _simulated(way: Way, bound: float, limits: Limits, kept: Kept | None) -> tuple[float, Outcome | None]:
    """Return the bytes that a layout needs, and its simulation where they are there."""
    setting = way.setting
    workload, layout = _layout(way)
    memory = memory_by_stage(layout, workload, worker_node(setting.hardware).gpu)
    needed = max(needed_bytes(stage) for stage in memory)
    if needed > _memory(setting, limits):
        return needed, None

    def simulated() -> Played:
        return play(scene_of(setting.hardware, workload, layout, setting.book))

    played = simulated() if kept is None else kept.played(setting, way.candidate, simulated)
    run = LayoutRun(setting.hardware, workload, layout, played, memory)
    penalty = THRASH if run.memory_verdict == "thrashes" else 1.0
    each = joules_of_step(setting, run) if limits.objective == "energy" else scale(setting, limits.objective) * run.step_time
    return needed, Outcome(way, run, bound, each * penalty)


def needed_bytes(stage: StageMemory) -> float:
    """Return the bytes that a rank of *stage* takes from its GPU."""
    return stage.reserved + stage.communication_buffers + stage.context
