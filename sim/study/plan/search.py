"""Which layout is best, and is that proven? Every layout is bounded; those that may be best are refined, lowest bound first.

A layout passes through four values, each at least as large as the one before: a bound of its compute for all layouts at once, that with
messages (both in `floor`), the recurrence of its program (`sim.training.layouts.bound`), and the simulation. The search always refines the
layout with the least value (`pending`). So it refines no layout that a simulated one already beats, and the layouts left when the best is
found are excluded by their bounds.
Memory excludes a layout only if even the lower bound of its need does not fit; a layout that thrashes counts `THRASH` times its time.
Its memory is known with its recurrence, so it is simulated only if even that time may be among the best. Layouts that take as long as
another (`EQUAL`) are ordered by how simple they are.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy

from sim.mesh import LayoutRun, worker_node
from sim.spec.parallel import SCHEDULES, SHARDS
from sim.spec.yaml import SpecError
from sim.study.options import Objective
from sim.study.plan.floor import Floors, Setting
from sim.study.plan.objective import joules_of_step, least_added, scale
from sim.study.plan.pending import QUICK, SLOW, USUAL, Effort, Entry, Pending
from sim.study.plan.refine import (
    FLOOR,
    LEAST,
    LocalRefiner,
    PlacedLayout,
    Refine,
    RefinedStep,
    RefineTask,
    StepBound,
    bounds,
    fits,
    memory_of,
    usable_memory,
    workload_and_layout,
)
from sim.study.plan.refine import least_step as least_of
from sim.study.plan.remaining import Outlook, RemainingWork
from sim.study.plan.space import LayoutCandidate
from sim.study.power_cap import LimitedSteps, least_share, limit_run
from sim.training.layouts.play import MOST_CLASSES

THRASH: Final = 3.0
"""Factor by which a step is longer if the allocator frees and retries: 3 to 7 (nanotron on 80 GB, `sim.analysis.memory`)."""
EQUAL: Final = 0.0005
"""Share of a value within which layouts are equal: a smaller difference is printed as +0.0%."""
SHOWN: Final = 10
"""Number of layouts in the table, all of which are simulated even if the best is proven before."""
ROOMY: Final = (0.5, 0.25, 0.125)
"""Maximum shares of the memory that the first layout needs by its bound: estimates (most needs are up to twice their bound)."""
SAMPLE: Final = 512
"""Maximum number of layouts that the first is chosen from: their bounds take a second, those of all layouts may take ten."""
FEW: Final = 256
"""Maximum number of passes of the first layout, if there is such a layout: a millisecond each, while other layouts take half a minute."""
OFTEN: Final = 5.0
"""Seconds after which progress is reported although no layout has been simulated: hundreds may be bounded before one is."""
LONG: Final = 1024
"""Maximum number of passes, summed over all ranks that are simulated for a stage, of a quick layout: about a second."""

PlacedCandidates = Sequence[tuple[Setting, Sequence[LayoutCandidate]]]
"""The candidate layouts of each setting."""


@dataclass(frozen=True)
class Outcome:
    """A simulated layout."""

    placed_layout: PlacedLayout
    run: LayoutRun
    bound: float
    """Seconds of a step by the recurrence."""
    value: float
    """The objective per step: seconds, USD (node-seconds without a price), or joules of the site."""
    limit: LimitedSteps | None = None
    """Its steps with a power limit on GPUs, if there is one."""

    @property
    def step_time(self) -> float:
        """Return the seconds of a step."""
        return self.run.step_time if self.limit is None else self.limit.steps.step_time

    @property
    def penalty(self) -> float:
        """Return the factor with which its time counts: 1 if it does not thrash."""
        return THRASH if self.run.memory_verdict == "thrashes" else 1.0

    @property
    def time(self) -> float:
        """Return the seconds of a step, with the penalty of one that thrashes."""
        return self.step_time * self.penalty

    @property
    def joules(self) -> float:
        """Return the joules of a step. Raise SpecError if the power of the GPU is not specified."""
        return joules_of_step(self.placed_layout.setting, self.run) if self.limit is None else self.limit.joules * self.run.global_batch


@dataclass
class Tally:
    """The state of a search; outcomes are sorted, best first."""

    candidates: int = 0
    infeasible: int = 0
    bounded: int = 0
    """Layouts whose program was evaluated without contention."""
    outcomes: list[Outcome] = field(default_factory=list)
    excluded: int = 0
    """Layouts that may fit, but cannot be better than those that were simulated."""
    open_bound: float = math.inf
    """The least value that any layout that was not simulated may have."""
    interrupted: bool = False
    remaining_work: RemainingWork | None = None
    """The expected remaining work of the search, if progress is reported; None before all layouts are bounded."""
    tightest: tuple[float, PlacedLayout] | None = None
    """The least excess over the memory (bytes) of any layout that does not fit, and that layout; None if there is none."""
    least_thrashing: float = math.inf
    """The least bound of a step (s) of any layout that thrashes, without the penalty."""
    least_step: float | None = None
    """Lower bound of a step (s) of every layout that fits, if the search ended, without the best one, because that is `Limits.cutoff`."""

    @property
    def best(self) -> Outcome | None:
        """Return the best simulated layout."""
        return self.outcomes[0] if self.outcomes else None

    @property
    def is_cut_off(self) -> bool:
        """Return whether the search ended, without the best layout, because every layout that fits takes at least `Limits.cutoff`."""
        return self.least_step is not None

    @property
    def complete(self) -> bool:
        """Return whether no layout that was not simulated can be better than the best."""
        return bool(self.outcomes) and self.least_value <= self.open_bound * (1 + 1e-9)

    @property
    def least_value(self) -> float:
        """Return the least value of a simulated layout: the best one's, or that of one that is equal to it and less simple."""
        return min((each.value for each in self.outcomes), default=math.inf)

    @property
    def gap(self) -> float:
        """Return the share of the best value that another layout may still save at most; 0 if the search is complete."""
        return 0.0 if self.best is None or self.complete else 1.0 - self.open_bound / self.least_value


@dataclass(frozen=True)
class Limits:
    """The limits of a search."""

    simulations: int = 200
    memory: float | None = None
    """Maximum bytes of each GPU that a layout may need; None: all."""
    objective: Objective = "time"
    shown: int = SHOWN
    gap: float = 0.0
    """Share of its value by which the last layout shown may still be improved when the search ends."""
    power_cap: str | None = None
    """Power limit of each GPU, such as ``500 W``: longer steps, which the bounds ignore, at less power."""
    early: bool = True
    """Whether one layout is simulated before all are bounded, so that there is an early result to show."""
    cutoff: float = math.inf
    """Seconds of a step from which on a layout is of no interest: the search ends when no other can be below. For the objective time."""

    def share(self, placed_layout: PlacedLayout) -> float:
        """Return the factor by which the power cap may reduce the bound of *placed_layout*: only energy falls."""
        if self.power_cap is None or self.objective != "energy":
            return 1.0
        return least_share(worker_node(placed_layout.setting.hardware), placed_layout.setting.workload, self.power_cap)


def search(
    layouts: PlacedCandidates,
    limits: Limits,
    progress: Callable[[Tally], None] | None = None,
    refine: Refine | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tally:
    """Return the best of *layouts* by simulation, best first, and what is proven. Ctrl-C ends the search with the results so far.

    *refine* refines each layout, by default in this process; *progress* gets the tally, with remaining time by *clock* (s). Raise
    JournalError if the journal of *refine* fails.
    """
    tally = Tally(candidates=sum(len(candidates) for _, candidates in layouts))
    pending = Pending()
    try:
        outlook = Outlook(refine or LocalRefiner(limits.objective, limits.memory), clock)
        first = _first(tally, layouts, limits, outlook)
        if first is not None and progress is not None:
            progress(tally)
        for setting, candidates in layouts:
            _bounded(setting, candidates, limits, tally, pending, first)
        told = clock()
        for simulated in _refined(tally, pending, limits, outlook):
            if progress is not None and (simulated or clock() - told >= OFTEN):
                told = clock()
                if tally.best is not None:  # otherwise nothing is told of it
                    tally.remaining_work = outlook.remaining_work(pending.estimates(), limits.shown, limits.simulations)
                progress(tally)
        pending.settle(min(tally.least_value, limits.cutoff))  # the gap is that of bounds with messages; of no interest above the cutoff
    except KeyboardInterrupt:
        tally.interrupted = True
    tally.outcomes = in_order(tally.outcomes)
    tally.excluded = tally.candidates - tally.infeasible - len(tally.outcomes)
    tally.open_bound = pending.least if tally.excluded == len(pending) else 0.0  # not all are bounded if Ctrl-C came early
    tally.least_step = None if tally.interrupted else _cut_off_at(tally, pending, limits)
    if tally.interrupted and tally.best is None:  # nothing was found yet, which does not mean that nothing fits
        raise KeyboardInterrupt
    return tally


def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return *outcomes*, best first; those equal to the best of their group are ordered by how simple they are."""
    left = sorted(outcomes, key=lambda each: each.value)
    ordered: list[Outcome] = []
    while left:
        count = sum(each.value <= left[0].value * (1.0 + EQUAL) for each in left)
        ordered += sorted(left[:count], key=lambda each: (complexity(each.placed_layout.candidate), each.value))
        left = left[count:]
    return ordered


def complexity(layout: LayoutCandidate) -> tuple[int, ...]:
    """Return how complex *layout* is: axes in use, recomputation, what is sharded, chunks per rank, order of axes, and sizes."""
    axes = sum(size > 1 for size in (layout.tensor, layout.context, layout.pipeline, layout.expert, layout.replicate))
    recomputes, sharded = layout.checkpointing not in ("none", "model"), SHARDS.index(layout.shard)
    splitting, copies = layout.tensor * layout.context * layout.pipeline, layout.expert * layout.replicate
    return axes, recomputes, sharded, layout.chunks, layout.near, splitting, copies, layout.micro_batches


def best_by_recurrence(layouts: PlacedCandidates, limits: Limits) -> tuple[float, PlacedLayout] | None:
    """Return the least value of a step by its recurrence, and its layout; None if no layout fits. Nothing is simulated.

    A layout that thrashes counts `THRASH` times its time, as in `search`.
    """
    pending = Pending()
    for setting, candidates in layouts:
        with suppress(SpecError):
            _bounded(setting, candidates, limits, Tally(), pending)
    while pending:
        pending.settle()
        entry = value, number, level = pending.first
        placed_layout = pending.layouts[number]
        if level == LEAST:
            return value, placed_layout
        with suppress(SpecError):
            held = memory_of(placed_layout)
            if held.needed_bytes <= usable_memory(placed_layout.setting, limits.memory):
                bound = limits.share(placed_layout) * least_of(placed_layout, limits.objective).value
                pending.evaluate(entry, max(value, bound * (THRASH if held.thrashes(placed_layout) else 1.0)))
                continue
        pending.remove(entry)
    return None


def _bounded(
    setting: Setting,
    candidates: Sequence[LayoutCandidate],
    limits: Limits,
    tally: Tally,
    pending: Pending,
    first: PlacedLayout | None = None,
) -> None:
    """Add every layout that may fit to *pending*, with its bound, except *first*, which is simulated."""
    if not candidates:
        return
    memory = usable_memory(setting, limits.memory)
    each = bounds(setting, candidates, memory)
    left = numpy.ones(len(candidates), dtype=bool)
    if first is not None and first.setting is setting:
        left[:] = [candidate != first.candidate for candidate in candidates]
    too_large = numpy.flatnonzero(left & (each.memory > memory))
    tally.infeasible += len(too_large)
    if too_large.size:
        nearest = int(too_large[numpy.argmin(each.memory[too_large])])
        _note_tightest(tally, float(each.memory[nearest]) - memory, PlacedLayout(setting, candidates[nearest]))
    may_fit = numpy.flatnonzero(left & (each.memory <= memory)).tolist()
    fitting = [(place, PlacedLayout(setting, candidates[place])) for place in may_fit]
    share = limits.share(PlacedLayout(setting, candidates[0]))
    pending.add(fitting, each, share * scale(setting, limits.objective), share * least_added(setting, candidates, each, limits.objective))


def _note_tightest(tally: Tally, excess: float, placed_layout: PlacedLayout) -> None:
    if excess < (math.inf if tally.tightest is None else tally.tightest[0]):  # infinite if the engine refuses the layout
        tally.tightest = (excess, placed_layout)


def _refined(tally: Tally, pending: Pending, limits: Limits, outlook: Outlook) -> Iterator[bool]:
    """Refine layouts until the table is proven, or the limit of simulations is reached: the one with the least value.

    Yield after each layout whether it was to be simulated, not only bounded, which would have shown that it does not fit.
    Within a gap, a quick simulation comes earlier if it may end the search, because no other layout can be better by more, and slow ones
    come last.
    """
    bounds: dict[int, float] = {}
    while _goes_on(tally, pending, limits):
        entry = value, number, level = _chosen(tally, pending, limits)
        placed_layout = pending.layouts[number]
        refined = outlook.answer(RefineTask(number, level, placed_layout), lambda most: _next(tally, pending, limits, most), value)
        if isinstance(refined, StepBound):
            bounds[number] = refined.time
            tally.bounded += 1
            if refined.thrashes:
                tally.least_thrashing = min(tally.least_thrashing, refined.time)
            bound = limits.share(placed_layout) * refined.value * (THRASH if refined.thrashes else 1.0)
            pending.evaluate(entry, max(value, bound), _effort(placed_layout) if limits.gap else USUAL)
            yield False
            continue
        pending.remove(entry)
        if refined is None:  # a combination that the engine refuses
            tally.infeasible += 1
            continue
        if refined.played is None:
            tally.infeasible += 1
            _note_tightest(tally, refined.needed_bytes - usable_memory(placed_layout.setting, limits.memory), placed_layout)
        else:
            tally.outcomes.append(outcome_of(placed_layout, refined, bounds[number], limits))
            penalty = tally.outcomes[-1].penalty
            outlook.record(tally.outcomes[-1].value, value / penalty, penalty)
            tally.outcomes.sort(key=lambda each: each.value)
        pending.settle(_enough(tally, limits))
        yield level == LEAST


def _chosen(tally: Tally, pending: Pending, limits: Limits) -> Entry:
    """Return the layout of *pending* to refine next: the first, or a quick one that may end the search."""
    if _enough(tally, limits) <= pending.least_in_turn:
        return pending.first_slow
    quick = pending.first_quick
    if quick is not None:
        expected = quick[0] * median([each.step_time / each.bound for each in tally.outcomes] or [1.0])
        if expected < tally.least_value and expected * (1.0 - limits.gap) <= pending.least_in_turn:
            return quick
    return pending.first


def _next(tally: Tally, pending: Pending, limits: Limits, most: int) -> list[RefineTask]:
    """Return up to *most* tasks that the search comes to next, unless earlier results exclude them."""
    worst = tally.outcomes[limits.shown - 1].value if len(tally.outcomes) >= limits.shown else math.inf
    tasks = [RefineTask(number, level, pending.layouts[number]) for _, number, level in pending.leading(most, worst)]
    left = limits.simulations - len(tally.outcomes)
    last = {task.number for task in [task for task in tasks if task.level == LEAST][left:]}
    return [task for task in tasks if task.number not in last]


def _first(tally: Tally, layouts: PlacedCandidates, limits: Limits, outlook: Outlook) -> PlacedLayout | None:
    """Simulate one layout of a sample that surely fits, before all are bounded, so that there is an early result; return it.

    It is the one with the least bound, with less and less memory until one fits. The bound knows little of the memory of a user's own
    schedule, so a built-in schedule comes first.
    """
    if limits.simulations < 2 or not limits.early:
        return None
    every = [PlacedLayout(setting, each) for setting, candidates in layouts for each in candidates]
    built_in = [each for each in every if each.candidate.schedule in SCHEDULES] or every
    quick = [each for each in built_in if _passes(each) <= FEW]
    sampled = _sampled(quick, limits) or _sampled(built_in, limits)
    for number, share in enumerate(ROOMY, 1):
        pending = Pending()
        for own, floors in sampled:
            most = share * usable_memory(own[0].setting, limits.memory)
            roomy = [(place, each) for place, each in enumerate(own) if floors.memory[place] <= most]
            pending.add(roomy, floors, limits.share(own[0]) * scale(own[0].setting, limits.objective))
        if not pending:
            return None
        pending.settle()
        value, place, _ = pending.first
        placed_layout = pending.layouts[place]
        bound = outlook.answer(RefineTask(-number, FLOOR, placed_layout), lambda most: [], value)
        step = outlook.answer(RefineTask(-number, LEAST, placed_layout), lambda most: [], value) if isinstance(bound, StepBound) else None
        if isinstance(bound, StepBound) and isinstance(step, RefinedStep) and step.played is not None:
            tally.bounded += 1
            tally.outcomes.append(outcome_of(placed_layout, step, bound.time, limits))
            outlook.record(tally.outcomes[-1].value, max(value, limits.share(placed_layout) * bound.value), tally.outcomes[-1].penalty)
            return placed_layout
    return None


def _sampled(layouts: Sequence[PlacedLayout], limits: Limits) -> list[tuple[list[PlacedLayout], Floors]]:
    """Return an evenly spaced sample of *layouts* by setting, with their floors; empty if none fits."""
    sample: dict[int, list[PlacedLayout]] = defaultdict(list)
    for each in layouts[:: max(1, math.ceil(len(layouts) / SAMPLE))]:
        sample[id(each.setting)].append(each)
    sampled = []
    for own in sample.values():
        with suppress(SpecError):  # the engine refuses all of this sample
            most = usable_memory(own[0].setting, limits.memory)
            floors = bounds(own[0].setting, [each.candidate for each in own], most)
            if min(floors.memory) <= most:
                sampled.append((own, floors))
    return sampled


def _passes(placed_layout: PlacedLayout) -> int:
    """Return how many passes a simulation of *placed_layout* plays: of each chunk, or of each block that gathers its weights."""
    own, model = placed_layout.candidate, placed_layout.setting.workload.model
    blocks = len(model.layers) if model.transformer is None else model.transformer.block_count
    return own.micro_batches * (blocks if own.shard == "parameters" else own.parts)


def _goes_on(tally: Tally, pending: Pending, limits: Limits) -> bool:
    """Return whether the first layout of *pending* is to be refined, after layouts that may come before it are priced."""
    pending.settle(_enough(tally, limits))
    return len(pending) > 0 and not _proven(tally, pending, limits)


def _proven(tally: Tally, pending: Pending, limits: Limits) -> bool:
    """Return whether the table cannot change any more, except by slow layouts, or no simulation is left."""
    if len(tally.outcomes) >= limits.simulations or (tally.outcomes and _table(tally, limits) <= pending.least_in_turn):
        return True
    return _enough(tally, limits) <= pending.least


def _effort(placed_layout: PlacedLayout) -> Effort:
    """Return how much time the simulation of *placed_layout* takes: if nodes are unequal, up to `MOST_CLASSES` ranks are simulated."""
    mesh = workload_and_layout(placed_layout)[1].mesh
    ranks = 1.0 if mesh.is_even else min(mesh.gpus, MOST_CLASSES) / mesh.stages
    if ranks * _passes(placed_layout) <= LONG:
        return QUICK
    return USUAL if mesh.is_even else SLOW


def _table(tally: Tally, limits: Limits) -> float:
    """Return the value that no other layout may be below when the table is proven; infinite until it is full."""
    return tally.outcomes[limits.shown - 1].value * (1.0 - limits.gap) if len(tally.outcomes) >= limits.shown else math.inf


def _enough(tally: Tally, limits: Limits) -> float:
    """Return the value that no other layout may be below when the search ends; infinite as long as nothing ends it."""
    table = _table(tally, limits)
    return table if _least_if_best(tally) < limits.cutoff else min(table, limits.cutoff)  # a layout that thrashes has a greater value


def _least_if_best(tally: Tally) -> float:
    """Return the least bound of a step (s) of any layout that thrashes, infinite if another layout is better in spite of its time."""
    return tally.least_thrashing if THRASH * tally.least_thrashing <= tally.least_value * (1.0 + EQUAL) else math.inf


def _cut_off_at(tally: Tally, pending: Pending, limits: Limits) -> float | None:
    """Return a lower bound of the steps (s) of all layouts if the search ended at the cutoff, otherwise None.

    It did with no result, or with results above it of which none is proven to be the best.
    """
    least = min(tally.open_bound, _least_if_best(tally), *(outcome.step_time for outcome in tally.outcomes), math.inf)
    if tally.best is None:
        return max(limits.cutoff, least) if _any_fits(tally, pending, limits) else None
    return least if limits.cutoff <= least and tally.gap > limits.gap * (1.0 + 1e-9) else None


def _any_fits(tally: Tally, pending: Pending, limits: Limits) -> bool:
    """Return whether any layout of *pending* fits: one of the *tally* has been found to, or else those with the least memory come first."""
    return bool(pending) and (tally.bounded > 0 or any(fits(each, limits.memory) for each in pending.by_memory()))


def outcome_of(placed_layout: PlacedLayout, step: RefinedStep, bound: float, limits: Limits) -> Outcome:
    """Return the outcome of the simulated *step* of *placed_layout*."""
    assert step.played is not None
    run = LayoutRun(placed_layout.setting.hardware, *workload_and_layout(placed_layout), step.played, step.memory)
    limit = None if limits.power_cap is None else limit_run(run, limits.power_cap)
    outcome = Outcome(placed_layout, run, bound, 0.0, limit)
    each = outcome.joules if limits.objective == "energy" else scale(placed_layout.setting, limits.objective) * outcome.step_time
    return replace(outcome, value=each * outcome.penalty)
