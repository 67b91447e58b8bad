"""How far apart are the checkpoints of weeks of training? At the interval that is asked for, or the best one, in whole steps.

The best interval is that of the closed form (`sim.analysis.renewal`), with the cost that checkpoints have on the simulated links. ``auto``
does not save to a store more often than published runs do, and spreads the few saves of a short job over its length.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from sim.analysis.expected_share import closed_form, first_start
from sim.analysis.long_run import LongRun, Saving
from sim.analysis.renewal import best_interval, daly_interval, effective_share
from sim.analysis.transient import young_interval
from sim.cluster.checkpoint import CheckpointTimes
from sim.spec.yaml import SpecError
from sim.study.arguments import checkpoint_interval_of
from sim.study.options import Weeks
from sim.units import show, show_least

SHORTEST_INTERVAL = 300.0
"""Shortest work (s) between checkpoints in the store that ``auto`` uses. With checkpoints that cost milliseconds, the best interval is less
than a minute, which no published run uses: DeepSeek LLM saves every 5 min (arXiv 2401.02954, section 2.4, from general knowledge), the
shortest; the median of 40 large runs is 40 min (a survey of VAST Data), BLOOM's 3 h. Copies to the memory of peers may be as frequent as
each step (ByteRobust, arXiv 2509.16293)."""
FEW_SAVES = 100
"""Number of saves below which a job is short: where its last save falls then matters, and so may one save more or less, or none at all."""
MOST_INTERRUPTED = 54 * 86400.0 / 466
"""Mean time (s) between interruptions of the published run that has most of them: Llama 3 405B, 466 in 54 days (arXiv 2407.21783). In jobs
that are interrupted more often, the shortest interval is shorter in proportion."""


class SaveSlowdown(NamedTuple):
    """Seconds that steps lose while one checkpoint is written during them, to the store and to the memory of peers."""

    store: float = 0.0
    peers: float = 0.0


AS_FAST = SaveSlowdown()


class Intervals(NamedTuple):
    """Work between checkpoints (s): the interval that is used, and those of the formulas."""

    used: float
    """A whole number of steps."""
    exact: float
    young: float
    daly: float
    shortest: float | None = None
    """The shortest interval that ``auto`` uses, if the best one is shorter."""


def saving_of(weeks: Weeks, times: CheckpointTimes, run: LongRun, step: float, slower: SaveSlowdown = AS_FAST) -> tuple[Intervals, Saving]:
    """Return the intervals and the saving of *weeks* of steps of *step* (s), which lose *slower* while a checkpoint is written.

    Raise SpecError for an interval that is shorter than a checkpoint, or than a step.
    """
    if weeks.interval == "auto" and not run.separate_rate:
        slower = AS_FAST  # the only checkpoint is at the end, with no step beside it
    blocking = times.copy_time + (times.write_time if weeks.mode == "sync" else slower.store)
    persist = times.copy_time + (max(times.write_time, times.to_peer_time) if weeks.mode == "tiered" else times.write_time)
    intervals = _intervals(run, blocking, persist)
    shortest = _shortest_interval(run)
    limited = shortest if run.separate_rate and intervals.exact < shortest else None
    intervals = intervals._replace(shortest=limited)
    if weeks.interval != "auto":
        intervals = intervals._replace(used=_specified_interval(weeks, step, blocking, persist))
    elif run.separate_rate:
        intervals = intervals._replace(used=_whole_steps(intervals.exact, step, run, blocking, persist, limited or 0.0))
    saving = Saving(intervals.used, blocking, persist, times.load_time)
    if weeks.mode != "tiered":
        if weeks.interval == "auto" and run.separate_rate:
            saving = _spread_over_job(saving, run, step, limited or 0.0)
        return intervals._replace(used=saving.interval), saving
    best = _with_copies(saving, times, run, step, slower, auto=True)
    saving = best if weeks.interval == "auto" else _with_copies(saving, times, run, step, slower, auto=False)
    if not run.separate_rate:
        return intervals, saving
    copies_per_save = round(best.interval / (best.memory_interval or best.interval))
    _, exact, young, daly, _ = _intervals(run, best.memory_blocking, best.memory_persist)
    exact, young, daly = (copies_per_save * apart for apart in (exact, young, daly))
    return Intervals(saving.interval, exact, young, daly, shortest if _of_store(run, slower) < shortest else None), saving


def _shortest_interval(run: LongRun) -> float:
    """Return the shortest work (s) between checkpoints in the store that ``auto`` uses for *run*."""
    often = min(1.0, 1 / (run.separate_rate * MOST_INTERRUPTED)) if run.separate_rate else 1.0
    return min(SHORTEST_INTERVAL * often, run.work, run.horizon)


def _specified_interval(weeks: Weeks, step: float, blocking: float, persist: float) -> float:
    """Return the interval that the user specified, in whole steps."""
    requested = checkpoint_interval_of(weeks.interval)
    if requested + blocking < persist * (1 - 1e-9):
        raise SpecError(
            f"--checkpoint-interval {weeks.interval}: a checkpoint takes {show(persist, 'time')} to complete, and the next would begin "
            f"before that; write {show_least(max(persist, step), 'time')} or more, or a faster --store"
        )
    if requested < step * (1 - 1e-9):
        raise SpecError(
            f"--checkpoint-interval {weeks.interval}: a step takes {show(step, 'time')}, and checkpoints are taken between steps; "
            f"write {show_least(step, 'time')} or more"
        )
    return max(round(requested / step), math.ceil((persist - blocking) / step)) * step


def _whole_steps(best: float, step: float, run: LongRun, blocking: float, persist: float, shortest: float = 0.0) -> float:
    """Return the better of the two intervals (s) of whole steps around *best*, but at least one in which a checkpoint completes.

    It is *shortest* or longer.
    """
    least = max(1, math.ceil((persist - blocking) / step), math.ceil(shortest / step - 1e-9))
    around = sorted({max(least, math.floor(best / step)), max(least, math.ceil(best / step))})
    return step * max(around, key=lambda count: effective_share(1 / run.separate_rate, count * step, blocking, persist, 1.0))


def _spread_over_job(saving: Saving, run: LongRun, step: float, shortest: float) -> Saving:
    """Return *saving* with the interval, of *shortest* (s) or more, that keeps most of a short job: of even pieces of its length."""
    time = min(run.work, run.horizon - first_start(run))
    saves = math.floor(max(time, 0.0) / (saving.interval + saving.blocking))
    if saves >= FEW_SAVES:
        return saving
    least, paused = max(step, shortest, saving.persist - saving.blocking), saving.blocking if math.isfinite(run.horizon) else 0.0
    counts = sorted({0, max(0, saves - 1), saves, saves + 1})
    pieces = [math.ceil((time - count * paused) / (count + 1) / step - 1e-9) * step for count in counts]
    tried = [saving, *(replace(saving, interval=piece) for piece in pieces if piece >= least)]
    return max(tried, key=lambda one: closed_form(replace(run, saving=one)))


def _intervals(run: LongRun, blocking: float, persist: float) -> Intervals:
    """Return the best interval, exactly and by the formulas; without failures all give one checkpoint, at the end of the job."""
    if not run.separate_rate:
        return Intervals(*[max(min(run.work, run.horizon), persist - blocking)] * 4)
    mean = 1 / run.separate_rate
    exact = best_interval(mean, blocking, persist)
    return Intervals(exact, exact, young_interval(blocking, mean), daly_interval(blocking, mean))


def _with_copies(saving: Saving, times: CheckpointTimes, run: LongRun, step: float, slower: SaveSlowdown, auto: bool) -> Saving:
    """Return *saving* with copies to the memory of peers at the best interval; every n-th copy also goes to the store.

    With *auto*, the interval of the store is the best one for the cost of the store alone and the faults that only the store survives.
    """
    copy_blocking, persist = times.copy_time + slower.peers, times.copy_time + times.to_peer_time

    def best(blocking: float) -> float:
        return _whole_steps(_intervals(run, blocking, persist).exact, step, run, blocking, persist)

    copy_interval, copies_per_save = saving.interval, 1
    if run.separate_rate and not auto:
        copies_per_save = max(1, math.floor(saving.interval / best(copy_blocking)))
        copy_interval = math.ceil(saving.interval / (copies_per_save * step) - 1e-9) * step
    elif run.separate_rate:
        store, shortest = _of_store(run, slower), _shortest_interval(run)

        def number(apart: float) -> int:
            return max(1, round(store / apart), math.ceil((saving.persist - saving.blocking) / apart), math.ceil(shortest / apart - 1e-9))

        copies_per_save = number(best(copy_blocking))  # copies share the store's cost, so they are farther apart, and fewer share it
        copies_per_save = number(best(copy_blocking + slower.store / copies_per_save))
        copy_interval = best(copy_blocking + slower.store / copies_per_save)
    return replace(
        saving, interval=copies_per_save * copy_interval, memory_interval=copy_interval,
        memory_blocking=copy_blocking + slower.store / copies_per_save, memory_persist=persist,
        memory_load=times.copy_back_time, peer_load=times.from_peer_time,
    )  # fmt: skip


def _of_store(run: LongRun, slower: SaveSlowdown) -> float:
    """Return the best interval (s) of the store, if copies in memory survive the other faults of *run*."""
    lost = lost_with_copies(run)
    return min(best_interval(1 / lost, slower.store) if lost else math.inf, run.work, run.horizon)


def lost_with_copies(run: LongRun) -> float:
    """Return the rate (1/s) of faults of *run* that no copy in memory survives: of several nodes, silent errors, of the only node.

    Bursts of revocations are faults of several nodes.
    """
    alone = sum(cause.share * (1.0 if cause.silent_for else cause.replaces * (run.nodes == 1)) for cause in run.causes)
    several = run.correlated[0] + (run.bursts.without_copies if run.bursts else 0.0)
    return several + (run.rate[1] - run.correlated[0]) * alone / sum(cause.share for cause in run.causes)
