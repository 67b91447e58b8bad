"""How long does a job of weeks take with failures, and where is time lost? From a run and reliability data to randomly drawn courses.

A step is simulated once; only its time, its bytes and its traffic are used. Checkpoints are simulated over the links of a node and a
store (`sim.cluster.checkpoint`), and failures and recoveries are drawn (`sim.analysis.course`). The closed form (`sim.analysis.renewal`)
finds the checkpoint interval, and gives a second estimate of the benefit of, for example, a faster store or rarer failures.

Limits: those of `sim.analysis.course`; if there are several kinds of nodes, all save and fail like the first kind, while power and prices
are summed over the kinds; the step time is constant except for slow episodes and parts of pre-training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sim.analysis.bursts import Bursts
from sim.analysis.course import MOST, draw
from sim.analysis.energy import GridIntensity, NodePower, NodesOfKind, grid_of, mean_power, named_grid, power_model, shares_of
from sim.analysis.expected_share import closed_form, first_start, meta_share, pace
from sim.analysis.failure_law import EXPONENTIAL, UserLaw, failure_law
from sim.analysis.fleet_law import Array
from sim.analysis.long_run import Courses, LongRun
from sim.analysis.renewal import Uniform
from sim.analysis.transient import Survival
from sim.analysis.whole_job import START_UP
from sim.cluster.checkpoint import CheckpointParts, CheckpointTimes
from sim.spec.catalog import catalog
from sim.spec.hardware import Node
from sim.spec.reliability import Reliability
from sim.spec.stores import Store
from sim.spec.yaml import SpecError
from sim.study.checkpoint_intervals import Intervals, SaveSlowdown
from sim.study.options import MODES, Weeks
from sim.study.pool import Progress
from sim.study.power_cap import LimitedSteps, limit_steps
from sim.study.saved_parts import require_room, saved_parts
from sim.study.weeks import (
    SPARES,
    Slowed,
    Steps,
    bursts_of,
    long_run,
    reliability_of,
    rents_another,
    revocations,
    store_of,
)
from sim.study.write_rates import StoreWrites, best_saving
from sim.training.layer_times import mix_of
from sim.units import any_of, pluralized, rounded, show, show_tokens

DAY = 86400.0
_HOPELESS = 1e-6
"""Effective share below which no course is drawn: failures come faster than recoveries."""
_MOST_EVENTS = 20_000
"""Maximum expected number of interruptions and planned stops in a course. This takes about six minutes, because one event of all courses
takes 1 ms, and the fleet with the most faults has about 18 times the middle rate."""
_TRIALS_OF_CHANGES = 400
_COURSES, _CHANGES = 100, 10
"""Units of progress for the courses, and for other set-ups."""
_FAULTS_OF_CHANGES = 400
"""Least number of courses that evaluate a change, and most interruptions in each; if the job has more, only its first part is drawn. With
fewer interruptions, as many more courses are drawn, up to all those of the result: a change then is compared with the result itself. All
changes are evaluated with the same faults. Spares run short only late, when repairs pile up, so the first part underestimates their
benefit."""
_MUCH_OF_COST = 0.1
"""Least share of the cost of a job from which the cost of spares by default is told."""


class Change(NamedTuple):
    """The effective share after one change of the set-up: *share* as drawn, *expected* in closed form."""

    name: str
    share: float
    expected: float
    error: float | None = None
    """Standard error of *share*; None for a single course."""
    gain_error: float | None = None
    """Standard error of the gain over the set-up as it is, in the same courses; None for a single course."""


@dataclass(frozen=True)
class Goodput:
    """The result: many drawn courses, and what they were drawn from."""

    steps: Steps
    weeks: Weeks
    reliability: Reliability
    run: LongRun
    checkpoint: CheckpointTimes
    slower: SaveSlowdown
    write_limits: tuple[float | None, float | None]
    """Bytes/s to which each writer limits itself, to the store and to peers, because faster writes would slow steps more than they help;
    None: no limit."""
    nbytes: float
    writers: int
    courses: Courses
    intervals: Intervals
    expected: float
    """Effective share in closed form, at the middle rate."""
    meta: float
    """The same by Meta's formula."""
    changes: Sequence[Change]
    power: Mapping[str, NodePower | None]
    """Power of a node by state of the job: working, waiting (saving, or for a failed peer), idle (restarting)."""
    pue: float
    grid: GridIntensity
    notes: Sequence[str]
    limit: LimitedSteps | None = None
    """Limit on the power of GPUs."""


def simulate_weeks(
    steps: Steps, weeks: Weeks, changes: bool = True, progress: Progress = lambda done, of: None,
    slowed: Slowed = lambda store: 0.0, reliability: Reliability | None = None,
) -> Goodput:  # fmt: skip
    """Simulate *weeks* of *steps*; *changes* also simulates other set-ups; *slowed* returns the seconds that writing costs steps.

    *reliability* replaces the data of the level of *weeks*.
    """
    limit = limit_steps(steps, weeks.power_cap) if weeks.power_cap is not None else None
    steps = limit.steps if limit else steps
    reliability = reliability or reliability_of(weeks.level)
    store = store_of(weeks.store)
    parts = _parts(steps)
    _require_fit(parts, steps.node, store, weeks)
    try:
        writes = StoreWrites(steps.node, parts, store, slowed)
    except ValueError as error:
        raise SpecError(f"--store {weeks.store}: {error}; name a store, one of {', '.join(catalog('hardware/parts/stores'))}") from None
    run = long_run(steps, weeks, reliability)
    chosen = best_saving(weeks, run, steps.step_time, writes)
    run = replace(run, saving=chosen.saving if store else replace(chosen.saving, on_nodes=parts.writing_nodes / steps.nodes))
    _require_finite(run, weeks)
    courses = draw(run, weeks.trials, weeks.seed, lambda share: progress(int(_COURSES * share), _COURSES + _CHANGES))
    _require_ends(run, weeks, courses)
    _require_spares(run, courses)
    return Goodput(
        steps, weeks, reliability, run, chosen.times, chosen.slower, (chosen.limit, chosen.peer_limit), parts.total, parts.writers, courses,
        chosen.intervals, closed_form(run), meta_share(run),
        _changes(run, weeks, steps, writes, progress, courses) if changes else (),
        _powers(steps, limit), power_model().pue,
        named_grid(weeks.region) if weeks.region else grid_of(steps.region, steps.provider),
        _notes(steps, weeks, reliability, run), limit,
    )  # fmt: skip


# --- checkpoints, spares and lengths that make sense -------------------------------------------------------------------


def _parts(steps: Steps) -> CheckpointParts:
    return saved_parts(steps.workload, steps.gpus, steps.nodes, steps.step_time)


def _require_fit(parts: CheckpointParts, node: Node, store: Store | None, weeks: Weeks) -> None:
    """Raise SpecError if a checkpoint does not fit into its store, or its copy into host memory."""
    require_room(parts, node, store, weeks.store)
    on_node = parts.nbytes * parts.per_node * (2 if weeks.mode == "tiered" and parts.nodes > 1 else 1)
    if weeks.mode != "sync" and on_node > node.host.memory:
        copies = "the copy and a peer's copy" if on_node > parts.nbytes * parts.per_node else "the copy"
        raise SpecError(
            f"--checkpoint {weeks.mode}: {copies} need {show(on_node, 'size')} of host memory, but a node has "
            f"{show(node.host.memory, 'size')}; write --checkpoint sync"
        )


def _require_finite(run: LongRun, weeks: Weeks) -> None:
    """Raise SpecError for a job that never ends, or that is too long to draw event by event."""
    share = pace(run)
    if share < _HOPELESS:
        raise SpecError(_endless(run, weeks))
    length, rate = min(run.horizon, run.work / share), run.rate[1] + run.planned[0]
    expected = length * rate
    if expected > _MOST_EVENTS:
        amount = f"--tokens {show_tokens(weeks.tokens)}" if weeks.tokens else f"--epochs {weeks.epochs or 0:g}"
        option = f"--days {weeks.days:g}" if weeks.days else amount
        raise SpecError(
            f"{option}: {rounded(expected)} interruptions and planned stops are expected in {rounded(length / DAY)} days, but at most "
            f"{_MOST_EVENTS:,} can be simulated; write a job of {math.floor(_MOST_EVENTS / rate / DAY):,} days or less"
            f"{', or a shorter --checkpoint-interval' if share < 0.5 and weeks.interval != 'auto' else ''}"
        )
    losing_share = sum(cause.share * cause.replaces for cause in run.causes) * run.saving.on_nodes  # share of faults that lose checkpoints
    loss_rate = losing_share * run.rate[1]
    if run.saving.memory_interval is None and run.horizon == math.inf and loss_rate * run.work > math.log(MOST * losing_share + 1):
        raise SpecError(
            f"--store disk: every {show(1 / loss_rate, 'time', 2)} on average a node is lost with its part of all checkpoints, and the "
            f"job of {show(run.work, 'time', 2)} starts over; write a --store that outlives nodes, or --checkpoint tiered"
        )


def _require_ends(run: LongRun, weeks: Weeks, courses: Courses) -> None:
    """Raise SpecError if half or more of the *courses* of *run* never end."""
    endless = float(np.isinf(courses.elapsed).mean())
    if endless >= 0.5:
        raise SpecError(_endless(run, weeks, endless))


def _require_spares(run: LongRun, courses: Courses) -> None:
    """Raise SpecError, with the time when the job dies, if half or more of the *courses* of *run* run out of spares."""
    died = courses.death_times[np.isfinite(courses.death_times)]
    if died.size < 0.5 * courses.death_times.size:
        return
    half = np.sort(courses.death_times)[courses.death_times.size // 2 - (courses.death_times.size % 2 == 0)]
    raise SpecError(
        f"--spares {run.spares} --no-repair: failed nodes do not return, and half of the jobs run out of spares within {half / DAY:.3g} "
        "d; write more --spares, or leave out --no-repair"
    )


def _endless(run: LongRun, weeks: Weeks, drawn_share: float | None = None) -> str:
    """Return why *run*, or this share of its drawn courses, never ends, and what would help."""
    between, saving = 1 / run.rate[1], run.saving
    at_once = replace(saving, interval=min(saving.interval, between), blocking=0.0, persist=0.0, load=0.0)
    slow_store = saving.persist > between and pace(replace(run, saving=at_once)) >= _HOPELESS
    advice = [
        *(["a faster --store"] if slow_store else []),
        *(["more --spares"] if drawn_share is not None and run.spares and run.repairs else []),
        *(["a shorter --checkpoint-interval"] if weeks.interval != "auto" else []),
        *(["fewer --nodes"] if run.nodes > 1 else []),
        *(["a longer --mean-lifetime"] if weeks.mean_lifetime is not None else []),
        *([] if weeks.in_place else ["--in-place"]),
        *(["a lower --failure-rate"] if weeks.mean_lifetime is None else []),
    ]
    often = f"every {show(between, 'time', 2)} on average"
    if drawn_share is not None:
        return (
            f"{100 * drawn_share:.3g}% of {weeks.trials:,} simulated runs never end: they are interrupted more often than {often}, before "
            f"they save much work; write {any_of(advice)}"
        )
    saves = (
        f", and a checkpoint takes {show(saving.persist, 'time')} to complete and {show(saving.load, 'time')} to load"
        if slow_store else ", before it saves much work"
    )  # fmt: skip
    return f"the job never ends: it is interrupted {often}{saves}; write {any_of(advice)}"


class _SetUp(NamedTuple):
    """A set-up with one thing changed: the run that is drawn, and the run for the closed form."""

    name: str
    drawn: LongRun
    expected: LongRun


def time_of_changes(run: LongRun) -> float:
    """Return the time (s) of *run* that is drawn to evaluate changes: all of it, or the mean time of its first faults."""
    return min(run.horizon, run.work, _FAULTS_OF_CHANGES / max(run.rate[1], 1e-12))


def trials_of_changes(run: LongRun, trials: int) -> int:
    """Return the number of courses that evaluate a change of *run*, whose result has *trials*."""
    faults = max(time_of_changes(run) * run.rate[1], 1.0)
    return min(trials, math.ceil(_TRIALS_OF_CHANGES * _FAULTS_OF_CHANGES / faults))


def _changes(
    run: LongRun, weeks: Weeks, steps: Steps, current: StoreWrites, progress: Progress, courses: Courses,
) -> list[Change]:  # fmt: skip
    """Return the effective share with one thing changed at a time, on the same drawn faults; a course that dies does no more work.

    If all *courses* of the result are evaluated over the whole job, the set-up as it is has exactly their share, and each other one the
    share that a simulation of it alone has.
    """
    duration, trials = time_of_changes(run), trials_of_changes(run, weeks.trials)
    evaluated = run if duration == min(run.horizon, run.work) else replace(run, horizon=duration, work=math.inf)
    unchanged, *tried = _set_ups(evaluated, weeks, steps, current, bursts_of(run, 0.5))
    is_result = evaluated is run and trials == weeks.trials
    drawn_base = courses if is_result else draw(unchanged.drawn, trials, weeks.seed)
    share, base = overall_share(drawn_base.work, drawn_base, evaluated)
    changes = [Change(unchanged.name, share, closed_form(unchanged.expected), _standard_error(base), _standard_error(0 * base))]
    for done, (name, drawn, expected) in enumerate(tried, 1):
        changed = draw(drawn, trials, weeks.seed)
        share, parts = overall_share(changed.work, changed, evaluated)
        changes.append(Change(name, share, closed_form(expected), _standard_error(parts), _standard_error(parts - base)))
        progress(_COURSES + _CHANGES * done // len(tried), _COURSES + _CHANGES)
    return changes


def overall_share(useful: Array, courses: Courses, run: LongRun) -> tuple[float, Array]:
    """Return the share of *useful* seconds in all *courses* of *run* together, and how far each course moves it from there.

    In a given time it is a mean. For a given work it is a ratio of totals of the courses that finish, times the part that does.
    """
    finished = courses.finished
    if not math.isfinite(run.work):
        shares = useful / np.where(finished, courses.elapsed, run.horizon)  # no end: a share of zero
        return float(shares.mean()), np.asarray(shares - shares.mean())
    if not finished.any():
        return 0.0, np.zeros(finished.size)
    part, elapsed, kept = float(finished.mean()), courses.elapsed[finished], useful[finished]
    ratio = float(kept.sum() / elapsed.sum())
    moved = ratio * (finished - part)
    moved[finished] += (kept - ratio * elapsed) / elapsed.mean()
    return part * ratio, np.asarray(moved)


def _standard_error(values: Array) -> float | None:
    """Return the standard error of the mean of *values*; None for a single value."""
    return float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else None


def _set_ups(run: LongRun, weeks: Weeks, steps: Steps, current: StoreWrites, half_bursts: Bursts | None) -> list[_SetUp]:
    """Return the set-ups that are compared with *run*, with the best interval where a change affects it; this alone is one of them.

    *half_bursts*: the rates of bursts of revocations of the whole job, half of which strike.
    """
    store, auto_interval = current.store, replace(weeks, interval="auto")

    def saved(one: LongRun, writes: StoreWrites = current, mode: str = weeks.mode) -> LongRun:
        saving = best_saving(replace(auto_interval, mode=mode), one, steps.step_time, writes).saving
        return replace(one, saving=replace(saving, on_nodes=run.saving.on_nodes))

    tried = [("as it is", run)]
    if store is not None:
        quick = store.model_copy(
            update={"bandwidth": 2 * store.bandwidth, "per_writer": 2 * store.per_writer if store.per_writer else None}
        )  # fmt: skip
        tried.append(("a store twice as fast", saved(run, current.to(quick))))
    tried += [(f"checkpoints {mode}", saved(run, mode=mode)) for mode in MODES if mode != weeks.mode]
    if weeks.interval != "auto":
        tried.append(("the best checkpoint interval", saved(run)))
    tried.append(("one spare more", replace(run, spares=run.spares + 1)))
    if run.spares:
        tried.append(("half the spares", replace(run, spares=run.spares // 2)))
    noticed = [replace(cause, detection=Uniform(0.0, 10.0), localization=Uniform(0.0, 10.0)) for cause in run.causes]
    tried.append(("faults noticed within 10 s", replace(run, causes=noticed)))
    tried.append(("restart in place", replace(run, restart=run.restart_in_place)))
    low, middle, high = (rate / 2 for rate in run.rate)
    lives = (run.lives[0], run.lives[1] / 2) if run.lives else None
    half = saved(replace(run, rate=(low, middle, high), lives=lives, bursts=half_bursts))
    rare = _SetUp("half the failures", replace(run, saving=half.saving, strike_share=0.5), half)
    same_in_both = [_SetUp(name, one, one) for name, one in tried]
    return [*same_in_both[: 1 + (store is not None)], rare, *same_in_both[1 + (store is not None) :]]


# --- energy, notes -----------------------------------------------------------------------------------------------------


def _powers(steps: Steps, limit: LimitedSteps | None) -> dict[str, NodePower | None]:
    """Return the power of the average node while the job works, while it saves or waits for a failed peer, and while it restarts."""
    model = power_model()
    used = steps.gpus / sum(count * node.gpu_count for node, count in steps.kinds)
    kinds = [NodesOfKind(node, count, round(used * node.gpu_count), mix_of(steps.workload, node.gpu)) for node, count in steps.kinds]
    unmixed, cap = [kind._replace(mix=None) for kind in kinds], limit.cap if limit else math.inf
    return {
        "working": limit.power if limit else mean_power(kinds, shares_of(steps.stalls), model),
        "waiting": mean_power(unmixed, (0.0, 1.0, 0.0), model, cap=cap),
        "idle": mean_power(unmixed, (0.0, 0.0, 1.0), model, working=False, cap=cap),
    }


def _notes(steps: Steps, weeks: Weeks, reliability: Reliability, run: LongRun) -> list[str]:
    rate = reliability.rate
    notes = [
        f"failure rate '{reliability.name}': {1000 * 86400 * rate.value:.2f} interruptions per day on 1,000 nodes of "
        f"{reliability.gpus_per_node} GPUs; 95% of fleets have {1000 * 86400 * rate.low:.1f} to {1000 * 86400 * rate.high:.1f}"
        if weeks.rate is None
        else f"your failure rate: {weeks.rate} per {reliability.gpus_per_node} GPUs",
        f"checkpoints {weeks.mode} to {weeks.store}",
    ]
    if steps.parts:
        notes.append(
            f"pre-training in {len(steps.parts)} parts, each with its own step; power, traffic and checkpoint overhead are those of the "
            "workload's main step"
        )
    elif steps.workload.pretraining is not None:
        notes.append("all steps are like the workload's main step; --tokens adds ramps and other parts of pre-training")
    if weeks.law != EXPONENTIAL.name:
        own = isinstance(failure_law(weeks.law), UserLaw)
        notes.append(
            f"times between failures follow {weeks.law}{', your own law, which is not validated' if own else ''}; the closed form, the "
            "formulas and the best interval assume exponential times"
        )
    own = steps.usd_per_s is not None and not steps.provider and SPARES * steps.nodes < 1
    if_rented = "; if a provider replaces failed nodes, name it: --set provider=NAME" if own and run.repairs else ""
    if rents_another(weeks, steps):
        within = show(START_UP, "time")
        notes.append(f"no spare nodes: a failed node is returned, and another is rented within {within} (--spares keeps some ready)")
    elif weeks.spares is None and run.spares:
        rounded_up = ", rounded up" if run.spares > SPARES * steps.nodes else ""
        paid = run.spares / (steps.nodes + run.spares)
        cost = f" and {100 * paid:.0f}% of the cost" if steps.usd_per_s is not None and paid >= _MUCH_OF_COST else ""
        notes.append(f"{pluralized(run.spares, 'spare node')}, {100 * SPARES:g}% of the nodes{rounded_up}{cost} (--spares{if_rented})")
    elif weeks.spares is None and any(run.rate):
        then = "waits until it is repaired" if run.repairs else "dies"
        notes.append(f"no spare node: if the node fails, the job {then} (--spares keeps another ready{if_rented})")
    if run.compilation.high:
        low, high = (show(time, "time") for time in (run.compilation.low, run.compilation.high))
        notes.append(
            f"each start compiles or captures CUDA graphs for {low} to {high} ({steps.workload.training.stack.name}: --set "
            "training.stack.compilation='[0 s, 0 s]')"
        )
    if run.elastic:
        notes.append(
            f"when no spare is ready, the job continues with fewer replicas: at {100 * run.elastic[0]:.3g}% speed with one node missing"
        )
    notes += _spot_notes(steps, weeks, run)
    due = (run.saving.memory_interval or run.saving.interval) + steps.step_time  # intervals are rounded to whole steps
    if any(run.rate) and due > min(run.work, run.horizon - first_start(run)):
        notes.append("the job ends before its first checkpoint is due, so a failure loses all work before it")
    if not any(run.rate):
        notes.append("no failures, slow nodes or planned stops: one checkpoint, at the end")
    if run.saving.on_nodes:
        rest = "from the last copy in peer memory" if run.saving.memory_interval is not None and steps.nodes > 1 else "from zero"
        part = round(run.saving.on_nodes * steps.nodes)
        notes.append(
            f"checkpoints are on the disks of {part} of {pluralized(steps.nodes, 'node')}: if one of them is lost, so is its part, "
            f"and work restarts {rest}; the closed form and the best interval ignore this"
        )
    return notes


def _spot_notes(steps: Steps, weeks: Weeks, run: LongRun) -> list[str]:
    """Return what the user should know about revocations and prices of spot machines."""
    notes = []
    if revoked := revocations(weeks, steps):
        after = show(steps.nodes / revoked, "time")
        lives = "at measured ages" if run.lives and isinstance(run.lives[0], Survival) else "at random"
        on_demand = steps.market != "spot" and steps.usd_per_s is not None
        price = "; they are paid at the price on demand (--market spot takes that of spot machines)" if on_demand else ""
        notes.append(f"spot machines are revoked {lives}, after {after} on average; revocations count as failures{price}")
        if run.bursts is not None:
            notes.append(
                "machines rented together are often revoked together: for the closed form, the formulas and the best interval, revocations "
                f"within one recovery are one interruption, every {show(1 / run.separate_rate, 'time', 2)}"
            )
    if steps.market == "spot" and steps.usd_per_s is None:
        notes.append(f"no spot price for {steps.hardware}, so cost is not shown; add one, for example --set price.spot='1.50 USD/h'")
    return notes
