"""Are drawn weeks right? Oracles: the renewal closed form, a SimPy simulation of nodes, spares and saves, conservation of time, counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import simpy

from sim.analysis import course
from sim.analysis.course import draw
from sim.analysis.crew import ElasticRules
from sim.analysis.fleet_law import FleetInterval
from sim.analysis.long_run import LOST_CATEGORIES, OTHERS, ZERO_TIME, Courses, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform, best_interval, effective_share, laplace_of_sum
from sim.analysis.transient import ExponentialLives

DAY, HOUR = 86400.0, 3600.0
Events = Generator[simpy.Event, object, None]
RATE = 1 / (2 * HOUR)
CAUSES = [
    DrawnCause("gpu", 0.7, Uniform(2.0, 300.0), Uniform(0.0, 120.0), 1.0),
    DrawnCause("software", 0.3, Uniform(10.0, 300.0), Uniform(0.0, 120.0), 0.0),
]
PLAIN = LongRun(
    100, 100, Saving(600.0, 30.0, 30.0, 20.0), CAUSES, (RATE, RATE, RATE), restart=300.0, restart_in_place=60.0,
    communicators=Uniform(5.0, 30.0), horizon=20 * DAY,
)  # fmt: skip
"""Failures at random, spares at once."""
FULL = replace(
    PLAIN, rate=(RATE / 3, RATE, 3 * RATE), spares=6, repair=((0.0, 60.0), (0.5, 0.5 * DAY), (0.9, 3 * DAY), (1.0, 9 * DAY)),
    spare=Uniform(20.0, 40.0), shape=1.07, repeats=(0.2, DAY), correlated=(RATE / 50, 3, Uniform(0.5 * HOUR, 6 * HOUR)),
    slow=(RATE / 5, 1.34, 1.2 * HOUR), planned=(0.5 / DAY, 60.0), saving=Saving(600.0, 3.0, 60.0, 20.0),
)  # fmt: skip
"""All that there is."""

LINEAR = tuple((count + 1) / 100 for count in range(100))
REVOKED = 1 / HOUR
"""Of the job's nodes together."""
SPOT = {
    "causes": [*CAUSES, DrawnCause("revocation", 0.0, Uniform(0.0, 30.0), Uniform(0.0, 0.0), 1.0, repair=Uniform(2 * HOUR, 2 * HOUR))],
    "lives": (ExponentialLives(100 / REVOKED), REVOKED),
    "rate": (RATE / 3 + REVOKED, RATE + REVOKED, 3 * RATE + REVOKED),
}


def expected(run: LongRun) -> float:
    """The effective share of `PLAIN` and its like in closed form."""
    recovery = sum(
        cause.share
        * laplace_of_sum([cause.detection, cause.localization, run.communicators, run.compilation], RATE)
        * math.exp(-RATE * ((run.restart if cause.replaces else run.restart_in_place) + run.saving.load))
        for cause in run.causes
    )
    return effective_share(1 / RATE, run.saving.interval, run.saving.blocking, run.saving.persist, recovery)


def test_fleets_differ_in_their_other_rates() -> None:
    """Oracles: the mean and the variance of counts at a log-normal rate; without failures nothing else is seen."""
    spread, often, trials = math.log(3) / 1.96, 0.5, 4000
    quiet = replace(
        PLAIN, rate=(0.0, 0.0, 0.0), planned=(often / DAY, 60.0), horizon=200 * DAY, spreads={"planned": FleetInterval(1 / 3, 3.0)}
    )
    stops = draw(quiet, trials).stops
    mean = 200 * often * math.exp(spread**2 / 2)
    variance = mean + mean**2 * math.expm1(spread**2)
    assert stops.mean() == pytest.approx(mean, abs=4 * math.sqrt(variance / trials))
    assert stops.var() == pytest.approx(variance, rel=0.25)


@pytest.mark.parametrize("name", [OTHERS[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in [*OTHERS[1:], "cause gpu"])])
def test_wider_intervals_of_a_rate_never_narrow_the_answer(name: str) -> None:
    """The interval of the share, or of what the rate counts, with nothing else that differs; quantiles of 400 are known to 5%."""
    rate = 1 / (12 * HOUR)
    run = replace(
        FULL, rate=(rate,) * 3, new_fleet=(15.0, 10 * DAY), planned=(8 / DAY, 600.0), slow=(rate, 2.0, 2 * HOUR),
        spares=4 if name == "repair" else 30,
        shape=math.inf, correlated=(rate / 3, 3, Uniform(0.5 * HOUR, 6 * HOUR)), horizon=20 * DAY,
    )  # fmt: skip
    seen = {"repeats": "interruptions", "new_fleet": "interruptions", "correlated": "replaced_nodes", "cause gpu": "replaced_nodes"}.get(
        name, "share"
    )
    widths = []
    for ends in ((1.0, 1.0), (0.5, 2.0), (0.2, 5.0)):
        courses = draw(replace(run, spreads={name: FleetInterval(*ends)}), 400)
        assert conserved(courses) < 1e-6
        widths.append(float(np.ptp(np.quantile(getattr(courses, seen), [0.025, 0.975]))))
    assert widths[1] > 0.95 * widths[0] and widths[2] > widths[0], widths


def conserved(courses: Courses) -> float:
    """How far work and losses are from the elapsed time at most (s)."""
    return float(np.abs(courses.work + sum(courses.lost[name] for name in LOST_CATEGORIES) - courses.elapsed).max())


def test_drawn_is_the_closed_form_within_its_interval() -> None:
    for saving, compilation in (
        (PLAIN.saving, ZERO_TIME), (Saving(600.0, 2.0, 60.0, 20.0), ZERO_TIME), (Saving(300.0, 0.1, 250.0, 100.0), Uniform(60.0, 600.0))
    ):  # fmt: skip
        run = replace(PLAIN, saving=saving, compilation=compilation)
        for length in ({"horizon": 20 * DAY}, {"horizon": math.inf, "work": 15 * DAY}):
            courses = draw(replace(run, **length), 400, seed=3)  # type: ignore[arg-type]
            shares = courses.share
            assert abs(shares.mean() - expected(run)) < 4 * shares.std() / 20 + 5e-4  # the end of a course is half a cycle


def test_time_is_conserved_whatever_happens() -> None:
    for change in (
        {}, {"horizon": math.inf, "work": 4 * DAY, "spares": 64}, {"spares": 0}, {"spares": 1, "elastic": (0.9, 0.8, 0.7)},
        {"repairs": False},
        {"new_fleet": (60.0, 10 * DAY)},
        {"saving": Saving(1200.0, 0.5, 60.0, 60.0, 30.0, 0.05, 2.0, 5.0, 9.0)},
        {"saving": replace(FULL.saving, on_nodes=0.3)}, {"repairs": False, "elastic": (0.9, 0.8, 0.7)}, {"strike_share": 0.5},
        {**SPOT, "elastic_rules": ElasticRules(LINEAR)},
        {**SPOT, "elastic_rules": ElasticRules(LINEAR, replaces_nodes=False), "elastic": LINEAR[-2::-1]},
        {**SPOT, "elastic_rules": ElasticRules(LINEAR, restarts=False, restarts_with_chief=True), "saving": PLAIN.saving},
        {**SPOT, "elastic_rules": ElasticRules((0.0,) * 99 + (1.0,)), "horizon": math.inf, "work": DAY, "spares": 64},
    ):  # fmt: skip
        courses = draw(replace(replace(FULL, horizon=6 * DAY), **change), 8, seed=1)
        assert conserved(courses) < 1e-5
        assert all((courses.lost[name] >= 0).all() for name in LOST_CATEGORIES)
        assert (courses.share <= 1).all()


class Simulated:
    """One course of *run* in SimPy: processes for faults, saves, repairs and recoveries; one cause, stages of fixed length."""

    def __init__(self, run: LongRun, random: np.random.Generator) -> None:
        self.run, self.random, self.env = run, random, simpy.Environment()
        self.pool = simpy.Store(self.env)
        for spare in range(run.spares):
            self.pool.put(spare)
        self.kept = self.progress = 0.0
        self.missing = 0
        self.job = self.env.process(self.training())
        self.env.process(self.faults())
        self.env.run(run.horizon)

    def repair(self) -> Events:
        shares, times = zip(*self.run.repair, strict=True)
        yield self.env.timeout(self.run.causes[0].detection.low + float(np.interp(self.random.random(), shares, times)))
        yield self.pool.put(0)

    def persisted(self, work: float) -> Events:
        with suppress(simpy.Interrupt):
            yield self.env.timeout(self.run.saving.persist)
            self.kept = max(self.kept, work)

    def training(self) -> Events:
        writes: list[simpy.Process] = []
        try:
            while True:
                start = self.env.now
                try:
                    yield self.env.timeout(self.run.saving.interval)
                finally:
                    self.progress += self.env.now - start
                writes = [*(write for write in writes if write.is_alive), self.env.process(self.persisted(self.progress))]
                yield self.env.timeout(self.run.saving.blocking)
        except simpy.Interrupt:
            for write in writes:
                if write.is_alive:
                    write.interrupt()

    def recovering(self) -> Events:
        with suppress(simpy.Interrupt):
            yield self.env.timeout(self.run.causes[0].detection.low)
            while self.missing:
                yield from self.one_spare()
            yield self.env.timeout(self.run.restart + self.run.saving.load)
            self.job = self.env.process(self.training())

    def one_spare(self) -> Events:
        request = self.pool.get()
        try:
            yield request
        finally:
            self.missing -= request.triggered
            request.cancel()

    def faults(self) -> Events:
        while True:
            yield self.env.timeout(self.random.exponential(1 / self.run.rate[1]))
            if self.job.is_alive:
                self.job.interrupt()
            yield self.env.timeout(0.0)
            self.progress = self.kept
            self.missing += 1
            self.env.process(self.repair())
            self.job = self.env.process(self.recovering())
            yield self.env.timeout(0.0)


@pytest.mark.parametrize("trials", [301, pytest.param(2 * course.BATCH_SIZE, marks=pytest.mark.nightly)])
def test_the_course_whose_events_are_shown_has_the_median_failure_rate(trials: int) -> None:
    """Oracle: the counts of all courses, at rates of fleets that are far apart; the events are those of a course."""
    rate = 20 / (5 * DAY)
    courses = draw(replace(PLAIN, rate=(rate / 30, rate, 30 * rate), shape=math.inf, horizon=5 * DAY), trials)
    low, high = np.quantile(courses.interruptions, [0.35, 0.65])
    assert low <= len(courses.events) <= high
    assert all(early[0] < late[0] for early, late in itertools.pairwise(courses.events))
    assert {name for _, name, _ in courses.events} <= {cause.name for cause in CAUSES}


def test_numpy_draws_what_simpy_simulates() -> None:
    """Failures at random, repairs that take long, a pool of spares that runs dry."""
    cause = [DrawnCause("gpu", 1.0, Uniform(60.0, 60.0), Uniform(0.0, 0.0), 1.0)]
    for spares, tolerance in ((40, 0.004), (8, 0.004)):
        run = replace(
            PLAIN, causes=cause, spares=spares, communicators=Uniform(0.0, 0.0), restart_in_place=0.0, horizon=15 * DAY,
            saving=Saving(600.0, 5.0, 40.0, 20.0), repair=((0.0, HOUR), (0.8, 12 * HOUR), (1.0, 30 * HOUR)),
        )  # fmt: skip
        simulated = [Simulated(run, np.random.default_rng([7, number])).progress / run.horizon for number in range(50)]
        drawn = draw(run, 800, seed=5)
        error = np.std(simulated) / math.sqrt(50) + drawn.share.std() / math.sqrt(800)
        assert abs(np.mean(simulated) - drawn.share.mean()) < 3 * error + tolerance, (spares, np.mean(simulated), drawn.share.mean())


def test_without_failures_only_saves_take_time() -> None:
    run = replace(PLAIN, rate=(0.0, 0.0, 0.0), horizon=math.inf, work=DAY, communicators=Uniform(0.0, 0.0), restart_in_place=0.0)
    courses = draw(run, 5)
    assert courses.interruptions.sum() == 0
    assert courses.elapsed == pytest.approx(DAY + 30.0 * math.ceil(DAY / 600.0))


def test_counts_of_interruptions() -> None:
    """Oracles: the rate times the time, plus repeats and events of several nodes; the extra early faults; a log-normal of fleets."""
    sure = replace(FULL, rate=(RATE, RATE, RATE), planned=(0.0, 1.0), horizon=30 * DAY)
    interruptions = draw(sure, 300, seed=2).interruptions
    assert interruptions.mean() == pytest.approx(30 * DAY * RATE, rel=0.02)
    assert interruptions.var() > 1.2 * interruptions.mean()  # repeats: more than Poisson's
    early = draw(replace(sure, new_fleet=(200.0, 5 * DAY)), 200, seed=2).interruptions.mean()
    assert early - interruptions.mean() == pytest.approx(200.0 * -math.expm1(-6.0), rel=0.1)
    fleets = draw(replace(FULL, horizon=5 * DAY), 2000, seed=2).interruptions
    low, middle, high = np.quantile(fleets, [0.025, 0.5, 0.975])
    assert middle == pytest.approx(5 * DAY * RATE, rel=0.06)
    assert high / middle == pytest.approx(3.0, rel=0.2) and middle / low == pytest.approx(3.0, rel=0.25)


@pytest.mark.nightly
def test_more_spares_rarer_failures_and_faster_storage_never_lower_the_share() -> None:
    """On common random numbers, each at its best interval: in the mean over courses."""

    def share(factor: float = 1.0, spares: int = 4, speed: float = 1.0) -> float:
        mean = 1 / (RATE * factor)
        saving = Saving(best_interval(mean, 30.0 / speed, 90.0 / speed), 30.0 / speed, 90.0 / speed, 120.0 / speed)
        low, middle, high = FULL.rate
        run = replace(
            FULL, saving=saving, spares=spares, rate=(factor * low, factor * middle, factor * high), horizon=8 * DAY,
            correlated=(factor * FULL.correlated[0], *FULL.correlated[1:]), slow=(factor * FULL.slow[0], *FULL.slow[1:]),
        )  # fmt: skip
        return float(draw(run, 250, seed=11).share.mean())

    for values in (
        [share(spares=count) for count in (1, 2, 4, 8, 16)],
        [share(factor=factor) for factor in (2.0, 1.0, 0.5, 0.25)],
        [share(speed=speed) for speed in (0.5, 1.0, 2.0, 8.0)],
    ):
        assert values == sorted(values), values


def test_what_else_helps_and_hurts() -> None:
    full = replace(FULL, horizon=8 * DAY)
    base = draw(full, 75, seed=4)
    cases = {
        "memory": draw(replace(full, saving=Saving(600.0, 3.0, 60.0, 20.0, 30.0, 0.1, 5.0)), 75, seed=4),
        "elastic": draw(replace(full, spares=2, elastic=LINEAR[-2::-1]), 75, seed=4),
        "waiting": draw(replace(full, spares=2), 75, seed=4),
        "silent": draw(replace(full, causes=[replace(cause, silent_for=2 * HOUR) for cause in CAUSES]), 75, seed=4),
    }
    assert cases["memory"].lost["rework"].mean() < 0.3 * base.lost["rework"].mean()
    assert cases["elastic"].share.mean() > cases["waiting"].share.mean()
    assert cases["elastic"].lost["degraded"].mean() > base.lost["degraded"].mean()
    assert cases["waiting"].lost["spare_wait"].mean() > base.lost["spare_wait"].mean()
    assert cases["silent"].lost["rework"].mean() > 2 * base.lost["rework"].mean()
    slow = 1 - base.lost["degraded"].mean() / (base.work + base.lost["rework"] + base.lost["degraded"]).mean()
    assert slow == pytest.approx(1 - (RATE / 5 * 1.2 * HOUR) * (1 - 1 / 1.34), abs=0.01)


def test_going_on_with_fewer_nodes_is_better_than_waiting_for_them() -> None:
    """Oracles: revocations at the rate of the lives; node-seconds of those that are there; on the same lives going on keeps more work."""
    only = {**SPOT, "rate": (REVOKED,) * 3, "horizon": 20 * DAY, "restart": 0.0}
    courses_by_rule = {
        name: draw(replace(PLAIN, **only, elastic_rules=members), 100, seed=6)  # type: ignore[arg-type]
        for name, members in {"elastic": ElasticRules(LINEAR), "waiting": ElasticRules((0.0,) * 99 + (1.0,))}.items()
    }
    for courses in courses_by_rule.values():
        away = courses.interruptions * 2 * HOUR
        assert courses.node_seconds.mean() == pytest.approx((100 * 20 * DAY - away).mean(), rel=2e-3)
        lived = courses.node_seconds.sum() / (100 / REVOKED)
        assert courses.interruptions.sum() == pytest.approx(lived, abs=4 * math.sqrt(lived))
        assert (courses.rented_nodes == courses.interruptions).all()
    assert courses_by_rule["elastic"].share.mean() > courses_by_rule["waiting"].share.mean() + 0.1
    assert courses_by_rule["elastic"].lost["spare_wait"].sum() == 0.0 < courses_by_rule["waiting"].lost["spare_wait"].min()
    assert courses_by_rule["elastic"].lost["degraded"].mean() > 0.0 == courses_by_rule["waiting"].lost["degraded"].max()


def test_a_job_that_loses_all_between_checkpoints_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "FRUITLESS", 100)  # interruptions; 1,000 take ten times as long
    run = replace(PLAIN, rate=(1.0, 1.0, 1.0), horizon=math.inf, work=DAY)
    assert np.isinf(draw(run, 3).elapsed).all()
    assert np.isfinite(draw(replace(run, rate=(0.0, 0.0, 0.0)), 3).elapsed).all()
    some = replace(run, rate=(1e-6, 1e-4, 1.0))
    mixed = draw(some, 100)
    endless = np.isinf(mixed.elapsed)
    assert 0 < endless.mean() < 0.5 and mixed.interruptions[endless].min() > 100
    assert mixed.work[~endless] == pytest.approx(DAY) and (mixed.share[endless] == 0.0).all()
    stopped = draw(some, 100, all_or_none=True)  # stops at the first course that never ends
    assert np.isinf(stopped.elapsed).all() and stopped.interruptions.min() < stopped.interruptions.max() == 101


def test_without_repairs_a_job_dies_with_its_last_spare() -> None:
    courses = draw(replace(PLAIN, repairs=False, spares=10), 300, seed=1)
    assert np.isfinite(courses.death_times).all()
    assert courses.death_times.mean() == pytest.approx(11 / (0.7 * RATE), rel=0.08)  # the eleventh node that leaves
    assert np.isinf(draw(replace(PLAIN, repairs=True, spares=10), 20).death_times).all()


def test_what_makes_no_sense_is_refused() -> None:
    problems = {
        "shorter than a checkpoint": replace(PLAIN, saving=Saving(10.0, 1.0, 60.0, 1.0)),
        "an amount of work or a time": replace(PLAIN, horizon=math.inf),
        "between copies in memory": replace(PLAIN, saving=Saving(600.0, 1.0, 60.0, 1.0, 0.0)),
    }
    for message, run in problems.items():
        with pytest.raises(ValueError, match=message):
            draw(run, 2)


def test_the_same_seed_draws_the_same() -> None:
    one, same, other = (draw(FULL, 20, seed) for seed in (1, 1, 2))
    assert (one.elapsed == same.elapsed).all() and (one.work == same.work).all() and one.events == same.events
    assert not (one.work == other.work).all()


def test_progress_tells_which_share_is_drawn() -> None:
    """20 days at a fault each 2 hours are 240 faults; word comes each 100, of shares that only rise."""
    drawn_shares: list[float] = []
    with_word = draw(PLAIN, 50, 3, drawn_shares.append)
    assert len(drawn_shares) >= 2 and drawn_shares == sorted(drawn_shares) and drawn_shares[0] > 0 and drawn_shares[-1] <= 1
    assert abs(drawn_shares[0] - 100 / 240) < 0.1
    assert (with_word.share == draw(PLAIN, 50, 3).share).all()
