"""What helps never lowers the effective share, whatever the job: spares, rarer failures, faster storage, quicker recoveries, going on.

Oracle: common random numbers; the mean difference of paired courses is not below zero by more than its standard error allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.course import draw
from sim.analysis.crew import ElasticRules
from sim.analysis.long_run import ZERO_TIME, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform, best_interval
from sim.analysis.transient import ExponentialLives, Lives, Survival

HOUR, DAY = 3600.0, 86400.0
COURSES = 150
CAUSES = [
    DrawnCause("gpu", 0.6, Uniform(1.0, 300.0), Uniform(0.0, 120.0), 1.0),
    DrawnCause("software", 0.3, Uniform(10.0, 300.0), ZERO_TIME, 0.0),
    DrawnCause("silent", 0.1, Uniform(0.5 * HOUR, 2 * HOUR), ZERO_TIME, 1.0, silent_for=2 * HOUR),
]


def _powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda power: 10.0**power)


def _best(mean: float, blocking: float, persist: float, copies: float | None) -> Saving:
    """Return a checkpoint at its best interval; *copies*: the cost of a copy to the memory of a peer, at its own."""
    interval, load = best_interval(mean, blocking, persist), 10 * persist
    if copies is None:
        return Saving(interval, blocking, persist, load)
    often = best_interval(mean, copies, 2 * copies)
    count = max(1, round(interval / often), math.ceil((persist - blocking) / often))
    return Saving(count * often, blocking, persist, load, often, copies, 2 * copies, 5.0, 20.0)


@st.composite
def jobs(draws: st.DrawFn) -> LongRun:
    """Return any job: of few or many nodes, with everything that may happen to it, elastic or not, on spot machines or not."""
    nodes, rate, blocking = draws(st.sampled_from([2, 8, 32, 128])), draws(_powers(5e-7, 1e-4)), draws(_powers(0.1, 200.0))
    elastic = tuple((nodes - gone) / nodes for gone in range(1, min(nodes, 65))) if draws(st.booleans()) else ()
    causes, lives, revoked = list(CAUSES), None, 0.0
    if draws(st.booleans()):
        life: Lives = draws(st.sampled_from([Survival((2 * HOUR, 5 * HOUR), (0.9, 0.8), DAY), ExponentialLives(nodes * DAY)]))
        revoked = nodes / life.mean
        lives = life, revoked
        causes.append(DrawnCause("revocation", revoked / rate, Uniform(0.0, 30.0), ZERO_TIME, 1.0, repair=Uniform(75.0, 75.0)))
    copies = blocking / 10 if draws(st.booleans()) else None
    return LongRun(
        nodes, draws(st.integers(0, 5)), _best(1 / rate, blocking, blocking * draws(st.sampled_from([1.0, 3.0, 30.0])), copies), causes,
        (0.5 * rate + revoked, rate + revoked, 3 * rate + revoked), [(0.0, 60.0), (0.5, draws(_powers(HOUR, DAY))), (1.0, 20 * DAY)],
        Uniform(20.0, 40.0), 600.0, 50.0, Uniform(5.0, 30.0), Uniform(0.0, 60.0), horizon=10 * DAY,
        shape=draws(st.sampled_from([math.inf, 1.07])), repeats=(draws(st.sampled_from([0.0, 0.2])), DAY),
        correlated=(0.05 * rate, 2, Uniform(0.5 * HOUR, 6 * HOUR)), slow=(0.1 * rate, 1.34, 1.2 * HOUR), planned=(0.2 * rate, 0.0),
        elastic=elastic, lives=lives, elastic_rules=ElasticRules(tuple((count + 1) / nodes for count in range(nodes)))
        if lives and elastic else None,
    )  # fmt: skip


def _better(run: LongRun) -> Iterator[tuple[str, LongRun]]:
    """Yield *run* with one thing better at a time."""
    saving = run.saving
    faster = replace(saving, blocking=saving.blocking / 2, persist=saving.persist / 2, load=saving.load / 2)
    yield "one spare more", replace(run, spares=run.spares + 1)
    yield "twice the spares", replace(run, spares=2 * run.spares + 2)
    yield "half the failures", replace(run, strike_share=0.5)
    yield "a faster store", replace(run, saving=faster)
    yield "restart in place", replace(run, restart=run.restart_in_place)
    yield "quicker repairs", replace(run, repair=[(share, time / 2) for share, time in run.repair])
    yield "quicker detection", replace(run, causes=[replace(cause, detection=ZERO_TIME, localization=ZERO_TIME) for cause in run.causes])
    if not run.elastic:
        yield "elastic", replace(run, elastic=tuple((run.nodes - gone) / run.nodes for gone in range(1, min(run.nodes, 65))))


@settings(max_examples=3)
@given(run=jobs(), seed=st.integers(0, 1000))
def test_what_helps_never_lowers_the_share(run: LongRun, seed: int) -> None:
    before = draw(run, COURSES, seed).share
    for name, better in _better(run):
        gain = draw(better, COURSES, seed).share - before
        assert gain.mean() >= -4 * gain.std() / math.sqrt(COURSES) - 1e-4, name


@pytest.mark.nightly
@settings(max_examples=20)
@given(run=jobs(), seed=st.integers(0, 1000))
def test_what_helps_never_lowers_the_share_of_many_jobs(run: LongRun, seed: int) -> None:
    test_what_helps_never_lowers_the_share.hypothesis.inner_test(run, seed)  # type: ignore[attr-defined]
