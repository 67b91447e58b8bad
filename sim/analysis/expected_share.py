"""Which effective share do closed forms expect of a long run? Its causes and checkpoints as terms of `sim.analysis.renewal`.

A job with an amount of work has one piece of work after another, the last one shorter. A job with a given time keeps what it has done
when the time is up, saved or not. Both hold for any interval, even one longer than the job.

Limits: no repeated or slow nodes, and no waits for spares, which drawn courses include (`sim.analysis.course`).
"""

from __future__ import annotations

import math

from sim.analysis.long_run import LongRun
from sim.analysis.renewal import Uniform, effective_share, kept_until, laplace_of_sum, meta_ettr


def recoveries(run: LongRun) -> list[tuple[float, list[Uniform]]]:
    """Return the probability of each kind of recovery, and the durations that it sums; spares are assumed to be ready at once.

    If the job continues without a revoked node, all restart in place when its replacement joins: that ends the recovery, and what was done
    since the revocation is lost.
    """
    kinds, saving = [], run.saving
    for cause in run.causes:
        if run.elastic_rules is not None and cause is run.causes[-1] and cause.repair is not None:
            fixed = run.restart_in_place + (saving.load if saving.memory_interval is None else saving.peer_load)
            kinds.append((cause.share, [cause.repair, run.communicators, run.compilation, Uniform(fixed, fixed)]))
            continue
        for leaves, share in ((True, cause.share * cause.replaces), (False, cause.share * (1 - cause.replaces))):
            load = saving.load if saving.memory_interval is None else saving.peer_load if leaves else saving.memory_load
            fixed = (run.restart if leaves else run.restart_in_place) + load
            spans = [cause.detection, cause.localization, run.communicators, run.compilation, Uniform(fixed, fixed)]
            kinds.append((share, [*spans, run.spare] if leaves else spans))
    total = sum(share for share, _ in kinds)
    return [(share / total, spans) for share, spans in kinds]


def _mean_overhead(run: LongRun) -> float:
    return sum(share * sum(span.mean for span in spans) for share, spans in recoveries(run))


def closed_form(run: LongRun) -> float:
    """Return the effective share of *run* at its middle rate: its first start, then a renewal process."""
    if run.separate_rate <= 0:
        return _undisturbed_share(run)
    first = first_start(run)
    if math.isfinite(run.work):
        share = _share_of_work(run)
        return share * run.work / (share * first + run.work)
    recovery = _mean_overhead(run), _recovery(run)
    return kept_until(max(run.horizon - first, 0.0), 1 / run.separate_rate, *_checkpoints(run), *recovery) / run.horizon


def first_start(run: LongRun) -> float:
    """Return the mean time (s) until *run* first works."""
    started = run.restart_in_place + run.communicators.mean if run.start_up is None else run.start_up
    return started + run.compilation.mean


def pace(run: LongRun) -> float:
    """Return how fast *run* ends, relative to a run without failures: its share of kept work or, of a given time, of recovered failures."""
    if run.separate_rate <= 0:
        return 1.0
    return _share_of_work(run) if math.isfinite(run.work) else _recovery(run)


def _share_of_work(run: LongRun) -> float:
    """Return the effective share of the work of *run* after its first start: of pieces of one interval, and of the rest before the end.

    The job ends with its last save, so that nothing is lost while that becomes complete.
    """
    mean, recovery = 1 / run.separate_rate, _recovery(run)
    interval, blocking, persist = _checkpoints(run)
    pieces = math.ceil(run.work / interval - 1e-9) - 1
    rest = run.work - pieces * interval
    shares = [(rest, effective_share(mean, rest, blocking, blocking, recovery))]
    if pieces > 0:
        shares.append((pieces * interval, effective_share(mean, interval, blocking, persist, recovery)))
    return run.work / sum(work / share if share else math.inf for work, share in shares)


def _recovery(run: LongRun) -> float:
    """Return ``E[exp(-R/M)]``, the share of failures of *run* from which it recovers before the next."""
    return sum(share * laplace_of_sum(spans, run.separate_rate) for share, spans in recoveries(run))


def _checkpoints(run: LongRun) -> tuple[float, float, float]:
    """Return the interval, the cost and the time to completion of the checkpoints that most failures go back to."""
    saving = run.saving
    if saving.memory_interval is not None:
        return saving.memory_interval, saving.memory_blocking, saving.memory_persist
    return saving.interval, saving.blocking, saving.persist


def _undisturbed_share(run: LongRun) -> float:
    """Return the effective share of *run* without failures: all but its start and its saves, the last one at the end of its work."""
    first = first_start(run)
    interval, blocking = run.saving.interval, run.saving.blocking
    if math.isfinite(run.work):
        return run.work / (first + run.work + blocking * math.ceil(run.work / interval - 1e-9))
    cycles, rest = divmod(max(run.horizon - first, 0.0), interval + blocking)
    return (cycles * interval + min(rest, interval)) / run.horizon


def meta_share(run: LongRun) -> float:
    """Return the effective share by Meta's formula: without the first start, with the kind of checkpoint that a failure goes back to."""
    apart, blocking, _ = _checkpoints(run)
    return meta_ettr(run.separate_rate, _mean_overhead(run), apart, blocking)
