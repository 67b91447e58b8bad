"""Which effective share do closed forms expect of a long run? Its causes and checkpoints as terms of `sim.analysis.renewal`.

Limits: no repeated or slow nodes, and no waits for spares, which drawn courses include (`sim.analysis.course`).
"""

from __future__ import annotations

import math

from sim.analysis.long_run import LongRun
from sim.analysis.renewal import Uniform, effective_share, laplace_of_sum, meta_ettr


def recoveries(run: LongRun) -> list[tuple[float, list[Uniform]]]:
    """Return the probability of each kind of recovery, and the durations that it sums; spares are assumed to be ready at once."""
    kinds, saving = [], run.saving
    for cause in run.causes:
        for leaves, share in ((True, cause.share * cause.replaces), (False, cause.share * (1 - cause.replaces))):
            load = saving.load if saving.memory_interval is None else saving.peer_load if leaves else saving.memory_load
            fixed = (run.restart if leaves else run.restart_in_place) + load
            spans = [cause.detection, cause.localisation, run.communicators, run.compilation, Uniform(fixed, fixed)]
            kinds.append((share, [*spans, run.spare] if leaves else spans))
    total = sum(share for share, _ in kinds)
    return [(share / total, spans) for share, spans in kinds]


def _mean_overhead(run: LongRun) -> float:
    return sum(share * sum(span.mean for span in spans) for share, spans in recoveries(run))


def closed_form(run: LongRun) -> float:
    """Return the effective share of *run* at its middle rate: its first start, then a renewal process (`stationary_share`)."""
    if run.separate_rate <= 0:
        return _undisturbed_share(run)
    share, first = stationary_share(run), first_start(run)
    if math.isfinite(run.work):
        return share * run.work / (share * first + run.work)
    return share * max(1 - first / run.horizon, 0.0)


def first_start(run: LongRun) -> float:
    """Return the mean time (s) until *run* first works."""
    started = run.restart_in_place + run.communicators.mean if run.start_up is None else run.start_up
    return started + run.compilation.mean


def stationary_share(run: LongRun) -> float:
    """Return the effective share of *run* in the long term: a renewal process without repeats, slow nodes or waits for spares."""
    rate = run.separate_rate
    if rate <= 0:
        return run.saving.interval / (run.saving.interval + run.saving.blocking)
    recovery = sum(share * laplace_of_sum(spans, rate) for share, spans in recoveries(run))
    saving = run.saving
    if saving.memory_interval is not None:
        return effective_share(1 / rate, saving.memory_interval, saving.memory_blocking, saving.memory_persist, recovery)
    return effective_share(1 / rate, saving.interval, saving.blocking, saving.persist, recovery)


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
    saving = run.saving
    apart, blocking = saving.interval, saving.blocking
    if saving.memory_interval is not None:
        apart, blocking = saving.memory_interval, saving.memory_blocking
    return meta_ettr(run.separate_rate, _mean_overhead(run), apart, blocking)
