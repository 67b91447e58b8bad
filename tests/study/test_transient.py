"""Oracles: Daly's and Young's closed forms, conservation of work, a job written out by hand, and the runs of Transient-DL and CM-DARE.

Transient-DL (arXiv 1903.00045) trained ResNet-32 on CIFAR-10 for 64 000 steps on 1, 2, 4 and 8 workers with a K80. In: the lifetimes of its
64 idle K80 machines, the speed of one worker as CM-DARE measured it, and what a machine costs, taken from other runs (`PRICES`).
Out: mean durations and costs of its clusters, none of which went in.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.analysis.transient import ExponentialLives, Survival, survival, young_interval
from sim.spec.library import load_part
from sim.spec.lifetimes import Lifetimes
from sim.spec.yaml import SpecError
from sim.study.transient import DrawnCourse, SpotJob, SpotPolicy, best_interval, draw_courses, spread, undisturbed_time
from tests.examples import examples
from tests.oracle.daly import daly_time
from tests.study import heap_course

STEPS = 64_000.0
SPEED = 4.5892
"""Steps/s of one K80 worker: mean of 13 samples of cake-lab/CM-DARE."""
HOUR = 3600.0
PRICES = {"spot": 0.2557 / HOUR, "server": 0.1428 / HOUR, "on_demand": 0.7230 / HOUR}
"""Dollars over seconds: spot workers and servers from the clusters of 2 and 8 workers with two servers (1.4649 USD in 6616.6 s, 1.1113 in
1716.5), an on-demand worker from the cluster of 2 with one server (3.1656 in 7172.4)."""


STRETCH = 210.9
"""Seconds of 4 000 undisturbed steps: mean of the last four stretches of each of CM-DARE's nine runs with two workers, 36 in all."""
DISTURBED = {1500.0: 307.8, 2000.0: 368.0, 2500.0: 427.9, 3000.0: 488.5, 3500.0: 519.1}
"""Seconds of the stretch in which the chief was away, by the same steps as in CHIEF; mean of two runs at 2 500 and at 3 500."""
CHIEF = {1500.0: 18.98, 2000.0: 87.72, 2500.0: 146.81, 3000.0: 197.01, 3500.0: 253.66}
"""Overheads (s) of a replaced chief that CM-DARE measured, by steps since the last checkpoint when it is back."""


def immortal() -> Survival:
    return Survival((), (), math.inf)


def tdl(workers: int, lives: Survival | None = None) -> SpotJob:
    """The job of Transient-DL; its durations hold neither start-up nor checkpoints."""
    speeds = tuple(SPEED * (count + 1) for count in range(workers))
    spot = survival(load_part(Lifetimes, "k80"))
    prices = (PRICES["spot"], PRICES["server"]) if lives is None else (PRICES["on_demand"], PRICES["server"])
    return SpotJob(STEPS, speeds, lives or spot, "shrink", price=prices[0], fixed_price=prices[1], replacement=70.33)


@pytest.mark.parametrize(("workers", "duration", "cost"), [(2, 7764.5, 1.4108), (4, 3764.9, 1.1567), (8, 1840.5, 1.1145)])
def test_spot_clusters_of_transient_dl(workers: int, duration: float, cost: float) -> None:
    """Aim: 15%. Reached: durations 0, -1 and -2%, costs -8, -2 and -5%. (Its table charges 2 workers until the end, revoked or not.)"""
    courses = draw_courses(tdl(workers), math.inf, 2000, seed=1)
    assert spread(courses, lambda outcome: outcome.time).mean == pytest.approx(duration, rel=0.04)
    assert spread(courses, lambda outcome: outcome.cost).mean == pytest.approx(cost, rel=0.10)


@pytest.mark.parametrize(("workers", "deviation"), [(2, 1768.5), (4, 590.3), (8, 50.9)])
def test_revocations_hurt_small_clusters_most(workers: int, deviation: float) -> None:
    """Measured standard deviations of 31 runs each; a few revocations make them, so a factor of 2.5 is all that can be asked."""
    times = [outcome.time for outcome in draw_courses(tdl(workers), math.inf, 2000, seed=1)]
    assert deviation / 2.5 < np.std(times) < deviation * 2.5


@pytest.mark.parametrize(("workers", "duration", "cost"), [(4, 3581.2, 3.0191), (8, 1829.9, 3.0126)])
def test_on_demand_clusters_of_transient_dl(workers: int, duration: float, cost: float) -> None:
    course = draw_courses(tdl(workers, immortal()), math.inf, 1)[0]
    assert course.time == pytest.approx(duration, rel=0.06)
    assert course.cost == pytest.approx(cost, rel=0.06)


def test_eight_spot_workers_save_what_transient_dl_says() -> None:
    """Measured: 1.1145 against 3.0126 USD, 63% less (its README: up to 62.9%)."""
    spot = spread(draw_courses(tdl(8), math.inf, 2000), lambda outcome: outcome.cost).mean
    on_demand = draw_courses(tdl(8, immortal()), math.inf, 1)[0].cost
    assert 1 - spot / on_demand == pytest.approx(0.63, abs=0.02)


def test_a_chief_that_comes_back_late_costs_what_cm_dare_measured() -> None:
    """Oracle: CM-DARE's overheads of a replaced chief, by steps since the last checkpoint when it is back (24 000 steps, 1 359 s).

    Its runs (data/processed_data/chief_rejoining of cake-lab/CM-DARE) checkpoint each 4 000 steps. What fits them: two workers, of which
    the chief goes 1 500 steps after a checkpoint; the other goes on at half the speed, until all start from the checkpoint again. Each
    step that it is away longer is then done by one and again by two: 113 s for each 1 000, 2% below the measured line (115.7). Overheads
    lie 57 s above the published ones, alike at all five points, because these are taken from two runs without a revocation that are not
    undisturbed: their own stretch of the same steps took 307 and 367 s, other stretches 211 s (see the next test).
    """
    overhead = chief_overheads(24_000.0 / 1359.29)
    slope, line = (np.polyfit(list(by_steps), list(by_steps.values()), 1)[0] for by_steps in (overhead, CHIEF))
    assert slope == pytest.approx(line, rel=0.03)
    beside = [overhead[since] - CHIEF[since] for since in CHIEF]
    assert np.mean(beside) == pytest.approx(57.0, abs=3.0)
    assert max(beside) - min(beside) < 16.0


def test_a_late_chief_makes_its_stretch_as_long_as_cm_dare_s() -> None:
    """Oracle: the stretches of 4 000 steps of its runs (base*.csv and exp-*.csv there), known to the minute in which an evaluation looks.

    Speed and overhead are both against stretches without a revocation. Reached: 18, 16, 15, 15 and 6% below, 18 to 40 s.
    """
    measured = {since: time - STRETCH for since, time in DISTURBED.items()}
    overhead = chief_overheads(4000.0 / STRETCH)
    assert overhead == pytest.approx(measured, abs=60.0) and overhead == pytest.approx(measured, rel=0.20)


@pytest.mark.xfail(strict=True, reason="aim: 15%; reached: 348, 61, 35, 29 and 23% above the published overheads, 51 to 66 s each")
def test_overheads_of_a_late_chief_within_fifteen_per_cent() -> None:
    """Aim: 15% of each overhead that CM-DARE published, whose two runs without a revocation are not undisturbed."""
    assert chief_overheads(24_000.0 / 1359.29) == pytest.approx(CHIEF, rel=0.15)


def chief_overheads(speed: float) -> dict[float, float]:
    """Return the simulated overheads (s) of the runs of CHIEF, by the same steps, on two workers of *speed* (steps/s) together."""
    overhead = {}
    for since in CHIEF:
        away = (since - 1500.0) / (speed / 2)
        job = SpotJob(24_000.0, (speed / 2, speed), ExponentialLives(1.0), "replace", replacement=away)
        course = scripted(job, [5500.0 / speed, math.inf, math.inf], 4000.0)
        assert (course.revocations, course.lost) == (1, pytest.approx(since))
        overhead[since] = course.time - undisturbed_time(job, 4000.0)
    return overhead


def test_waiting_with_one_worker_is_what_daly_says() -> None:
    between = 3 * HOUR
    for interval in (600.0, 1500.0, 4000.0):
        job = SpotJob(20_000.0, (1.0,), ExponentialLives(between), "wait", replacement=70.0, checkpoint=30.0, restore=0.0)
        times = spread(draw_courses(job, interval, 1500), lambda outcome: outcome.time)
        exact = daly_time(20_000.0, interval, 30.0, 70.0, between)  # not restartable, but short beside the mean
        assert times.mean == pytest.approx(exact, abs=4 * times.error + 0.004 * exact)


def test_the_best_interval_is_close_to_youngs() -> None:
    """The optimum is flat: half or double the interval costs 1% here, so a third is all that a search of 150 courses can find."""
    between = 4 * HOUR
    job = SpotJob(60_000.0, (2.0, 4.0), ExponentialLives(2 * between), "wait", replacement=70.0, checkpoint=60.0, restore=10.0)
    assert best_interval(job, 150) / 4.0 == pytest.approx(young_interval(60.0, between), rel=0.35)


@pytest.mark.parametrize("policy", ["wait", "replace"])
@pytest.mark.parametrize("checkpoint", [0.0, 60.0])
def test_intervals_that_take_longer_than_the_best_need_not_be_drawn_to_their_ends(
    policy: SpotPolicy, checkpoint: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: all drawn to their ends."""
    job = SpotJob(30_000.0, (2.0, 4.0), ExponentialLives(2 * HOUR), policy, replacement=70.0, checkpoint=checkpoint, restore=10.0)
    best = best_interval(job, 30)
    monkeypatch.setattr("sim.study.transient.draw_courses", lambda *arguments: draw_courses(*arguments[:4]))
    assert best == best_interval(job, 30)


def test_a_mean_beyond_interest_is_infinite_and_any_other_is_as_it_was() -> None:
    job = SpotJob(20_000.0, (1.0,), ExponentialLives(HOUR), "wait", 20.0, replacement=70.0, checkpoint=30.0)
    courses = draw_courses(job, 1500.0, 40)
    mean = float(np.mean([outcome.time for outcome in courses]))
    assert draw_courses(job, 1500.0, 40, longest_mean=1.001 * mean) == courses
    assert all(math.isinf(outcome.time) for outcome in draw_courses(job, 1500.0, 40, longest_mean=0.999 * mean))


def test_nothing_is_lost_while_servers_hold_the_state() -> None:
    job = tdl(4)
    for outcome in draw_courses(job, math.inf, 50):
        assert outcome.lost == 0
        assert outcome.time >= undisturbed_time(job) * (1 - 1e-12)


@examples(
    25,
    None,
    policy=st.sampled_from(["shrink", "replace", "wait"]),
    workers=st.integers(1, 6),
    interval=st.floats(5, 500),
    mean=st.floats(500, 5000),
    seed=st.integers(0, 99),
)
def test_a_job_is_never_faster_nor_cheaper_than_undisturbed(
    policy: SpotPolicy, workers: int, interval: float, mean: float, seed: int
) -> None:
    speeds = tuple(float(count + 1) for count in range(workers))
    job = SpotJob(1000.0, speeds, ExponentialLives(mean), policy, 20.0, 15.0, 2.0, 1.0, price=1.0, fixed_price=0.5)
    (course,) = draw_courses(job, interval, 1, seed)
    assert [course] == draw_courses(job, interval, 1, seed)
    if not course.revocations:
        assert course.time == pytest.approx(undisturbed_time(job, interval))
        assert course.cost == pytest.approx(course.time * (workers + 0.5))
    assert course.time >= undisturbed_time(job, interval) - 1e-6
    # each worker that computes is paid for: linear speeds make that the work itself
    assert course.cost >= 1000.0 + 0.5 * course.time


def test_work_by_hand() -> None:
    """100 samples at 1/s, a checkpoint of 5 s each 40; revoked at 60 s of life, back after 10 s with 2 s of reading.

    0-40 work, 40-45 saved, 45-60 work lost; 60-70 gone; 72-112, 112-117 saved; 20 more and 5: 142.
    """
    job = SpotJob(100.0, (1.0,), ExponentialLives(1.0), "wait", replacement=10.0, checkpoint=5.0, restore=2.0, price=1.0)
    course = scripted(job, [60.0, math.inf], 40.0)
    assert course.time == pytest.approx(142.0)
    assert course.lost == pytest.approx(15.0)
    assert course.revocations == 1
    assert course.cost == pytest.approx(142.0)


@pytest.mark.parametrize(
    ("policy", "time", "lost"),
    [
        # by both: 40 samples to 20 s, saved at 25, 30 more to 40 s; 2 s of reading; alone: 60 samples, checkpoints at 80 and 100
        ("shrink", 40 + 2 + 60 / 1 + 2 * 5, 30.0),
        # alone: 8 more from 42 s to 50, when the replacement joins; 2 s of reading, then 60 samples by both
        ("replace", 50 + 2 + 60 / 2 + 2 * 5, 30.0 + 8.0),
        # as replace, with nothing computed meanwhile
        ("wait", 50 + 2 + 60 / 2 + 2 * 5, 30.0),
    ],
)
def test_workers_in_step_restart_where_one_goes_or_joins(policy: SpotPolicy, time: float, lost: float) -> None:
    """100 samples at 1/s alone and 2/s together, a checkpoint of 5 s each 40 samples; one of two is revoked at 40 s, by hand."""
    job = SpotJob(100.0, (1.0, 2.0), ExponentialLives(1.0), policy, replacement=10.0, checkpoint=5.0, restore=2.0, in_step=True)
    course = scripted(job, [40.0, math.inf, math.inf], 40.0)
    assert (course.time, course.lost, course.revocations) == (pytest.approx(time), pytest.approx(lost), 1)


def test_a_job_that_would_never_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.study.transient.SEARCHED", 2)  # each interval takes as many revocations as are ever drawn
    job = SpotJob(1e4, (1.0,), ExponentialLives(1.0), "wait", replacement=1.0, checkpoint=60.0)
    with pytest.raises(SpecError, match="revoked every 1 s on average, but a checkpoint takes 1 min, so the job never ends"):
        best_interval(job, 1)


@given(
    policy=st.sampled_from(["shrink", "replace", "wait"]),
    in_step=st.booleans(),
    lives=st.lists(st.floats(1, 900), min_size=4, max_size=60),
    workers=st.integers(1, 4),
    interval=st.floats(20, 1500),
    replacement=st.sampled_from([0.0, 15.0, 70.0]),
    checkpoint=st.sampled_from([0.0, 3.0]),
)
def test_drawn_in_arrays_is_simulated_with_a_heap(
    policy: SpotPolicy, in_step: bool, lives: list[float], workers: int, interval: float, replacement: float, checkpoint: float
) -> None:
    """Oracle: a simulation of one course, event by event, with the same lives: all that is told of it, to rounding."""
    speeds = tuple(1.7 * (count + 1) ** 0.9 for count in range(workers))
    job = SpotJob(
        1000.0, speeds, ExponentialLives(1.0), policy, 20.0, replacement, checkpoint, 4.0, price=1.0, fixed_price=0.5, in_step=in_step
    )  # fmt: skip
    expected = heap_course.course(job, interval, lambda number: ([*lives, *[math.inf] * 500])[workers + number])
    course = scripted(job, lives, interval)
    assert course.revocations == expected.revocations
    for name in ("time", "cost", "lost"):
        assert getattr(course, name) == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-4), name


def scripted(job: SpotJob, lives: list[float], interval: float) -> DrawnCourse:
    """Return the course of *job* with *lives*: those of the start, then one for each event, whether it is used or not; then for ever."""
    (course,) = draw_courses(replace(job, lives=_Scripted(lives)), interval, 1)
    return course


class _Scripted(ExponentialLives):
    """Lives in the order of a list."""

    def __init__(self, lives: list[float]) -> None:
        super().__init__(1.0)
        object.__setattr__(self, "left", list(lives))

    def draws(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        left: list[float] = self.__dict__["left"]
        taken, left[:count] = left[:count], []
        return np.array([*taken, *[math.inf] * (count - len(taken))])
