"""How long does a job take in weeks, failures and all, and what is lost where? From a run and reliability data to drawn courses.

A step is simulated once; its time, its bytes and its traffic are all that is taken of it. Checkpoints are simulated over
the links of a node and a store (`sim.cluster.checkpoint`), failures and recoveries are drawn (`sim.analysis.course`), and the closed form
(`sim.analysis.renewal`) stands beside them: it finds the interval, and says what a faster store or rarer failures are worth.

Limits: those of `sim.analysis.course`; one group of equal nodes; the step is the same all along, but for slow episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sim.analysis.course import draw
from sim.analysis.energy import GridIntensity, NodePower, grid_of, named_grid, node_power, power_model, shares_of
from sim.analysis.failure_law import EXPONENTIAL, Own, failure_law
from sim.analysis.long_run import Courses, LongRun, Saving
from sim.analysis.renewal import Uniform, best_interval, daly_interval, effective_share, laplace_of_sum, meta_ettr
from sim.analysis.saved_state import saved_state
from sim.analysis.transient import young_interval
from sim.cluster.checkpoint import Checkpoint, Parts, checkpoint
from sim.spec.catalogue import catalogue
from sim.spec.hardware import Node
from sim.spec.reliability import Reliability
from sim.spec.stores import Store
from sim.spec.yaml import SpecError
from sim.study.weeks import (
    MODES,
    Slowed,
    Steps,
    Weeks,
    long_run,
    quantity,
    reliability_of,
    revocations,
    spares_of,
    store_of,
)
from sim.training.layer_times import mix_of
from sim.units import counted, show

KEPT = 2
"""Checkpoints that a store holds at once: the last complete one and the one that is written."""
_HOPELESS = 1e-6
"""Effective share below which no course is drawn: faults come faster than recoveries."""
_TRIALS_OF_CHANGES = 400
_COURSES, _CHANGES = 100, 10
"""Parts of the work, as progress counts them: the courses, and what other set-ups would do."""
_FAULTS_OF_CHANGES = 80
"""Courses and interruptions of each behind the worth of a change: a part of the job, with the same faults for all changes."""


class Intervals(NamedTuple):
    """Work between checkpoints (s): the one that is used, and what the formulas say."""

    used: float
    exact: float
    young: float
    daly: float


class Change(NamedTuple):
    """What one change of the set-up makes of the effective share; *expected* in closed form."""

    name: str
    share: float
    expected: float


@dataclass(frozen=True)
class Goodput:
    """The answer: many drawn courses, and what they were drawn from."""

    steps: Steps
    weeks: Weeks
    reliability: Reliability
    run: LongRun
    checkpoint: Checkpoint
    slowed: float
    """Seconds that steps lose while one checkpoint is written beside them."""
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
    """Of a node, by what the job does: working, saving, restarting."""
    pue: float
    grid: GridIntensity
    notes: Sequence[str]


def weeks_of(
    steps: Steps, weeks: Weeks, changes: bool = True, progress: Callable[[int, int], None] = lambda done, of: None,
    slowed: Slowed = lambda store: 0.0,
) -> Goodput:  # fmt: skip
    """Return what *weeks* of *steps* come to; *changes* also draws what other set-ups would do; *slowed* tells what writing costs steps."""
    reliability = reliability_of(weeks.level)
    saved = saved_state(steps.workload, steps.gpus)
    store = store_of(weeks.store)
    parts = Parts(saved.nbytes / saved.writers, saved.writers, steps.nodes, math.ceil(steps.gpus / steps.nodes), steps.traffic)
    _fits(saved.nbytes, parts, steps.node, store, weeks)
    try:
        times = checkpoint(steps.node, parts, store)
    except ValueError as error:
        raise SpecError(f"--store {weeks.store}: {error}; name a store, one of {', '.join(catalogue('hardware/parts/stores'))}") from None
    run = long_run(steps, weeks, reliability)
    lost = slowed(store)
    intervals, saving = _saving(weeks, times, run, lost)
    run = replace(run, saving=saving)
    if closed_form(run) < _HOPELESS:
        raise SpecError(_endless(run))
    _has_spares(run, weeks)
    courses = draw(run, weeks.trials, weeks.seed, lambda share: progress(int(_COURSES * share), _COURSES + _CHANGES))
    if not np.isfinite(courses.elapsed[~np.isfinite(courses.died)]).all():
        raise SpecError(_endless(run))
    return Goodput(
        steps, weeks, reliability, run, times, lost if weeks.mode != "sync" else 0.0, saved.nbytes, saved.writers, courses, intervals,
        closed_form(run),
        meta_ettr(run.rate[1], _mean_overhead(run), saving.interval, saving.blocking),
        _changes(run, weeks, steps, parts, (store, lost, slowed), progress) if changes else (),
        _powers(steps), power_model().pue,
        named_grid(weeks.region) if weeks.region else grid_of(steps.region, steps.provider),
        _notes(steps, weeks, reliability, run),
    )  # fmt: skip


def expected_share(steps: Steps, level: str = "middle") -> float:
    """Return the share of time that failures and checkpoints leave to *steps*, in closed form, at the best interval.

    Checkpoints are written beside training, to the object store; spares are there at once.
    """
    weeks = Weeks(days=1.0, level=level)
    saved = saved_state(steps.workload, steps.gpus)
    parts = Parts(saved.nbytes / saved.writers, saved.writers, steps.nodes, math.ceil(steps.gpus / steps.nodes), steps.traffic)
    run = long_run(steps, weeks, reliability_of(level))
    return closed_form(replace(run, saving=_saving(weeks, checkpoint(steps.node, parts, store_of(weeks.store)), run)[1]))


# --- checkpoints and spares that make sense ----------------------------------------------------------------------------


def _saving(weeks: Weeks, times: Checkpoint, run: LongRun, slowed: float = 0.0) -> tuple[Intervals, Saving]:
    """Return the intervals and the saving of *weeks*, where writing costs *slowed* (s) of the steps beside it.

    Raise SpecError for an interval that is shorter than a checkpoint.
    """
    blocking = times.copied + (times.written if weeks.mode == "sync" else slowed)
    persist = times.copied + times.written
    mean = 1 / max(run.rate[1], 1e-12)
    exact = best_interval(mean, blocking, persist)
    used = exact if weeks.interval == "auto" else quantity(weeks.interval, "time", "--checkpoint-interval")
    if used + blocking < persist * (1 - 1e-9):
        raise SpecError(
            f"--checkpoint-interval {weeks.interval}: a checkpoint takes {show(persist, 'time')} until it is complete, and the next would "
            f"begin before; write {show(persist, 'time')} or more, or a faster --store"
        )
    saving = Saving(used, blocking, persist, times.loaded)
    if weeks.mode == "tiered":
        often = min(best_interval(mean, times.copied), used)
        kept = max(1, round(used / often))
        each = times.copied + slowed / kept  # one of *kept* goes to the store as well
        saving = replace(saving, memory_interval=used / kept, memory_blocking=each, memory_load=times.copied_back)
    return Intervals(used, exact, young_interval(blocking, mean), daly_interval(blocking, mean)), saving


def _fits(nbytes: float, parts: Parts, node: Node, store: Store | None, weeks: Weeks) -> None:
    """Raise SpecError where a checkpoint does not fit into its store, or its copy into host memory."""
    room = store.size if store else node.storage.volume.size * node.storage.volume.count * parts.writing_nodes if node.storage else 0.0
    if room and KEPT * nbytes > room:
        raise SpecError(
            f"--store {weeks.store}: a checkpoint has {show(nbytes, 'size')}, and {KEPT} at once do not fit into {show(room, 'size')}; "
            "name a larger store"
        )
    on_node = parts.nbytes * parts.per_node
    if weeks.mode != "sync" and on_node > node.host.memory:
        raise SpecError(
            f"--checkpoint {weeks.mode}: the copy of {show(on_node, 'size')} does not fit into the host's "
            f"{show(node.host.memory, 'size')}; "
            "write --checkpoint sync"
        )


def _has_spares(run: LongRun, weeks: Weeks) -> None:
    """Raise SpecError, saying when the job dies, where nodes do not come back and half of the courses run out of spares."""
    if run.repairs:
        return
    rehearsed = draw(run, 200, weeks.seed)
    if sum(died < math.inf for died in rehearsed.died.tolist()) < 0.5 * rehearsed.died.size:
        return
    died = sorted(rehearsed.died.tolist())[rehearsed.died.size // 2]
    raise SpecError(
        f"--spares {run.spares} --no-repair: nodes that fail do not come back, and half of the jobs die within {died / 86400:.3g} d "
        "for want of spares; write more --spares, or leave --no-repair out"
    )


def _endless(run: LongRun) -> str:
    """Return why *run* never ends, and what would help."""
    return (
        f"the job never ends: it is interrupted every {show(1 / run.rate[1], 'time', 2)} on average, and hardly any work is saved before; "
        "write fewer --nodes, --in-place, or a lower --failure-rate"
    )


# --- the closed form, and what changes bring ---------------------------------------------------------------------------


def recoveries(run: LongRun) -> list[tuple[float, list[Uniform]]]:
    """Return how likely each kind of recovery is, and the spans it is the sum of; spares are there at once."""
    kinds = []
    for cause in run.causes:
        for leaves, share in ((True, cause.share * cause.replaces), (False, cause.share * (1 - cause.replaces))):
            fixed = (run.restart if leaves else run.restart_in_place) + run.saving.load
            spans = [cause.detection, cause.localisation, run.communicators, Uniform(fixed, fixed), *([run.spare] if leaves else [])]
            kinds.append((share, spans))
    total = sum(share for share, _ in kinds)
    return [(share / total, spans) for share, spans in kinds]


def _mean_overhead(run: LongRun) -> float:
    return sum(share * sum(span.mean for span in spans) for share, spans in recoveries(run))


def closed_form(run: LongRun) -> float:
    """Return the effective share of *run* at its middle rate: a renewal process without repeats, slow nodes or waits for spares."""
    rate = run.rate[1]
    if rate <= 0:
        return run.saving.interval / (run.saving.interval + run.saving.blocking)
    recovery = sum(share * laplace_of_sum(spans, rate) for share, spans in recoveries(run))
    saving = run.saving
    if saving.memory_interval is not None:
        return effective_share(1 / rate, saving.memory_interval, saving.memory_blocking, saving.memory_blocking, recovery)
    return effective_share(1 / rate, saving.interval, saving.blocking, saving.persist, recovery)


def _changes(
    run: LongRun, weeks: Weeks, steps: Steps, parts: Parts, to: tuple[Store | None, float, Slowed], progress: Callable[[int, int], None]
) -> list[Change]:
    """Return the effective share with one thing changed at a time, on the same drawn faults; the interval is chosen anew."""
    store, lost, slowed = to
    lasts = min(run.horizon, run.work, _FAULTS_OF_CHANGES / max(run.rate[1], 1e-12))
    run = replace(run, horizon=lasts, work=math.inf)
    tried = [("as it is", run)]
    again = replace(weeks, interval="auto")
    now = checkpoint(steps.node, parts, store)
    if store is not None:
        quick = store.model_copy(
            update={"bandwidth": 2 * store.bandwidth, "per_writer": 2 * store.per_writer if store.per_writer else None}
        )  # fmt: skip
        paces = ((now, lost), (checkpoint(steps.node, parts, quick), slowed(quick)))
        runs = [replace(run, saving=_saving(again, times, run, each)[1]) for times, each in paces]
        tried.append(("a store twice as fast", max(runs, key=closed_form)))  # it can be written to as slowly as the other
    half = replace(run, rate=(run.rate[0] / 2, run.rate[1] / 2, run.rate[2] / 2))
    tried.append(("half the failures", replace(half, saving=_saving(again, now, half, lost)[1])))
    for mode in MODES:
        if mode != weeks.mode:
            other = replace(again, mode=mode)
            tried.append((f"checkpoints {mode}", replace(run, saving=_saving(other, now, run, lost)[1])))
    tried.append(("one spare more", replace(run, spares=run.spares + 1)))
    if run.spares:
        tried.append(("half the spares", replace(run, spares=run.spares // 2)))
    noticed = [replace(cause, detection=Uniform(0.0, 10.0), localisation=Uniform(0.0, 10.0)) for cause in run.causes]
    tried.append(("faults noticed within 10 s", replace(run, causes=noticed)))
    tried.append(("restart in place", replace(run, restart=run.restart_in_place)))
    trials = min(weeks.trials, _TRIALS_OF_CHANGES)
    found = []
    for name, one in tried:
        found.append(Change(name, float(draw(one, trials, weeks.seed).share.mean()), closed_form(one)))
        progress(_COURSES + _CHANGES * len(found) // len(tried), _COURSES + _CHANGES)
    return found


# --- energy, notes -----------------------------------------------------------------------------------------------------


def _powers(steps: Steps) -> dict[str, NodePower | None]:
    """Return the power of a node while the job works, while it saves or waits for a failed peer, and while it restarts."""
    model, several, mix = power_model(), steps.nodes > 1, mix_of(steps.workload, steps.node.gpu)
    return {
        "working": node_power(steps.node, model, shares_of(steps.stalls), several, mix=mix),
        "waiting": node_power(steps.node, model, (0.0, 1.0, 0.0), several),
        "idle": node_power(steps.node, model, (0.0, 0.0, 1.0), several, working=False),
    }


def _notes(steps: Steps, weeks: Weeks, reliability: Reliability, run: LongRun) -> list[str]:
    rate = reliability.rate
    notes = [
        f"failure rate '{reliability.name}': {1000 * 86400 * rate.value:.2f} interruptions per day on 1,000 nodes of "
        f"{reliability.gpus_per_node} GPUs; 95% of fleets have {1000 * 86400 * rate.low:.1f} to {1000 * 86400 * rate.high:.1f}"
        if weeks.rate is None
        else f"failure rate as given, {weeks.rate} for each node",
        f"checkpoints {weeks.mode} to {weeks.store}",
    ]
    if weeks.law != EXPONENTIAL.name:
        own = isinstance(failure_law(weeks.law), Own)
        notes.append(
            f"times between failures scatter by the law {weeks.law}{', your own, which is not validated' if own else ''}; the closed form, "
            "the formulas and the best interval are those of failures at random"
        )
    if weeks.spares is None:
        notes.append(f"{counted(spares_of(weeks, steps.nodes), 'spare node')}, 5% of the nodes (--spares)")
    if revoked := revocations(weeks, steps):
        after = show(steps.nodes / revoked, "time")
        lives = "at the ages that were measured" if run.lives else "at random"
        notes.append(f"spot machines are revoked {lives}, after {after} on average: one more cause of failures")
    return notes
