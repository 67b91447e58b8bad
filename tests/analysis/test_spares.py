"""Who takes the place of nodes that leave? Oracles: speeds and waits worked out by hand, and common faults of runs that differ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sim.analysis.course import draw
from sim.analysis.crew import ElasticRules
from sim.analysis.long_run import ZERO_TIME, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.spares import Spares
from sim.analysis.transient import ExponentialLives, Survival

HOUR, DAY = 3600.0, 86400.0
ONE = np.array([0])
RUN = LongRun(64, 0, Saving(600.0, 0.0, 0.0, 0.0), [DrawnCause("gpu", 1.0, ZERO_TIME, ZERO_TIME, 1.0)], (1 / DAY,) * 3, horizon=30 * DAY)


def waited(spares: Spares, moment: float, repair: float, several: bool = False) -> float:
    waits = spares.wait(ONE, np.array([several]), np.array([not several]), np.array([moment]), np.array([repair]), np.array([repair]))
    return float(waits[0])


def test_a_spare_is_taken_and_its_place_is_taken_by_the_repaired_node() -> None:
    spares = Spares(replace(RUN, spares=1), 1)
    assert waited(spares, 10.0, 100.0) == 0.0
    assert waited(spares, 30.0, 500.0) == pytest.approx(80.0)  # the first node is back at 110
    assert waited(spares, 200.0, 20.0) == pytest.approx(20.0)  # its own node is back before the second's, at 530


def test_a_fault_during_a_wait_does_not_end_it() -> None:
    """The first node is back at 100, so the job is not complete before, whenever the second returns."""
    spares = Spares(RUN, 1)
    assert waited(spares, 0.0, 100.0) == 100.0
    assert waited(spares, 20.0, 10.0) == 80.0
    assert waited(spares, 150.0, 10.0) == 10.0


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_a_job_runs_while_no_more_nodes_are_away_than_it_has_spares(spares: int) -> None:
    """Oracle: nodes away are Poisson (M/G/infinity), whatever the distribution of repairs: here 2 on average."""
    run = replace(RUN, spares=spares, repair=[(0.0, 0.0), (1.0, 4 * DAY)], horizon=400 * DAY, saving=Saving(0.001, 0.0, 0.0, 0.0))
    courses = draw(run, 300)
    expected = math.exp(-2.0) * sum(2.0**away / math.factorial(away) for away in range(spares + 1))
    assert courses.share.mean() == pytest.approx(expected, rel=0.03)


def test_several_nodes_need_as_many_spares() -> None:
    run = replace(RUN, spares=3, correlated=(0.0, 2, ZERO_TIME))
    spares = Spares(run, 1)
    assert waited(spares, 0.0, 100.0, several=True) == 0.0
    assert waited(spares, 10.0, 70.0, several=True) == pytest.approx(70.0)  # one spare is left
    assert waited(Spares(replace(run, repairs=False, spares=1), 1), 0.0, 70.0, several=True) == np.inf


def test_an_elastic_job_runs_at_the_speed_of_whole_replicas() -> None:
    spares = Spares(replace(RUN, elastic=(0.75, 0.75, 0.5)), 1)
    for repair in (100.0, 40.0, 20.0):
        assert waited(spares, 0.0, repair) == 0.0
    speeds = spares.speed(ONE, np.array([0.0]), np.array([200.0]))
    assert speeds[0] == pytest.approx((20 * 0.5 + 80 * 0.75 + 100) / 200)
    assert waited(spares, 10.0, 50.0) == pytest.approx(50.0)  # no replica would be whole
    assert spares.speed(ONE, np.array([150.0]), np.array([50.0]))[0] == 1.0


def test_an_elastic_job_without_repairs_goes_on_until_no_replica_is_whole() -> None:
    """Oracle: the third fault is the last; Poisson has it within 6 mean times in 93.8% of courses."""
    courses = draw(replace(RUN, repairs=False, elastic=(0.75, 0.5), horizon=6 * DAY), 400, 1)
    dead = np.isfinite(courses.death_times)
    assert dead.mean() == pytest.approx(0.938, abs=0.036) and (dead == (courses.interruptions == 3)).all()
    assert (courses.elapsed[dead] == courses.death_times[dead]).all() and courses.lost["spare_wait"].sum() == 0.0


def test_faults_that_do_not_strike_are_those_of_the_others() -> None:
    """Oracle: a thinned Poisson process; each course has no more faults than with all, and no less work where nothing is phased."""
    run = replace(RUN, rate=(4 / DAY,) * 3, repeats=(0.2, DAY), spares=64, restart=HOUR, saving=Saving(0.001, 0.0, 0.0, 0.0))
    everything, half, none = (draw(replace(run, strike_share=share), 600, 3) for share in (1.0, 0.5, 0.0))
    assert (half.interruptions <= everything.interruptions).all() and none.interruptions.sum() == 0
    total = everything.interruptions.sum()
    assert half.interruptions.sum() == pytest.approx(total / 2, abs=4 * np.sqrt(total * 0.5 * (1 + 0.2)))
    assert (half.work >= everything.work - 1.0).all() and (none.work > half.work).all()


@pytest.mark.parametrize("members", [None, ElasticRules((0.5, 1.0)), ElasticRules((0.5, 1.0), replaces_nodes=False, restarts=False)])
def test_revocations_that_do_not_strike_leave_a_part_of_them(members: ElasticRules | None) -> None:
    """Oracle: thinned revocations come half as often, on the same moments where the job waits; each course has no more than with all."""
    revoked, again = 2 / DAY, Uniform(HOUR, HOUR)
    cause = DrawnCause("revocation", 1.0, ZERO_TIME, ZERO_TIME, 1.0, repair=again)
    run = replace(
        RUN, nodes=2, spares=8, rate=(revoked,) * 3, causes=[RUN.causes[0], cause], lives=(ExponentialLives(2 / revoked), revoked),
        elastic_rules=members, saving=Saving(1.0, 0.0, 0.0, 0.0),
    )  # fmt: skip
    everything, half, none = (draw(replace(run, strike_share=share), 400, 3) for share in (1.0, 0.5, 0.0))
    total = everything.interruptions.sum()
    assert none.interruptions.sum() == 0 and total > 10_000
    if members is None or members.replaces_nodes:
        assert half.interruptions.sum() == pytest.approx(total / 2, abs=4 * np.sqrt(total / 2))
    assert half.work.mean() > everything.work.mean()
    if members is None:
        assert (half.interruptions <= everything.interruptions).all() and (half.work >= everything.work - 1.0).all()


def test_checkpoints_on_disks_leave_with_their_nodes() -> None:
    """Oracle: where every node has a part, work is that since the last fault; where one of two has, half of the faults lose it."""
    fixed = replace(RUN, spares=64, saving=Saving(1.0, 0.0, 0.0, 0.0, on_nodes=1.0))
    all_lose = draw(fixed, 2000, 5)
    assert float(all_lose.work.mean()) == pytest.approx(DAY, abs=4 * DAY / np.sqrt(2000))
    tiered = replace(fixed.saving, memory_interval=1.0)
    assert (draw(replace(fixed, saving=tiered), 50, 5).share > 0.999).all()
    several = replace(fixed, rate=(1 / DAY,) * 3, correlated=(1 / DAY, 2, ZERO_TIME), saving=replace(fixed.saving, on_nodes=0.5))
    survives = draw(several, 2000, 5)  # a quarter of the events take no part along
    assert float(survives.work.mean()) == pytest.approx(DAY / 0.75, abs=4 * 2 * DAY / np.sqrt(2000))


def test_peers_are_read_over_the_network_where_a_node_is_new() -> None:
    saving = Saving(600.0, 0.0, 0.0, 500.0, memory_interval=1.0, memory_load=2.0, peer_load=30.0)
    for replaces, load in ((1.0, 30.0), (0.0, 2.0)):
        run = replace(RUN, spares=64, causes=[DrawnCause("gpu", 1.0, ZERO_TIME, ZERO_TIME, replaces)], saving=saving)
        courses = draw(run, 50, 2)
        assert courses.lost["restart"] == pytest.approx(load * courses.interruptions, abs=31.0)
        assert courses.lost["restart"].sum() == pytest.approx(load * courses.interruptions.sum(), rel=0.01)
    alone = draw(replace(run, nodes=1, causes=[DrawnCause("gpu", 1.0, ZERO_TIME, ZERO_TIME, 1.0)], repair=((0.0, 1.0), (1.0, 1.0))), 50, 2)
    assert alone.lost["restart"].sum() == pytest.approx(500.0 * alone.interruptions.sum(), rel=0.02)


@pytest.mark.parametrize("rules", [None, ElasticRules((0.0,) * 5 + (1.0,))])
def test_copies_in_memory_are_lost_if_their_peers_leave_together(rules: ElasticRules | None) -> None:
    """Oracle: all six nodes leave at 24 h, so work restarts from the store, which last saved at 20 h; copies are ten minutes apart."""
    causes = [DrawnCause("revocation", 1.0, ZERO_TIME, ZERO_TIME, 1.0, repair=Uniform(75.0, 75.0))]
    saving = Saving(5 * HOUR, 0.0, 0.0, 0.0, 600.0)
    lives = Survival((), (), 24 * HOUR)
    run = LongRun(6, 6, saving, causes, (1e-6,) * 3, horizon=26 * HOUR, lives=(lives, 1e-6), elastic_rules=rules)
    assert draw(run, 3).lost["rework"].tolist() == pytest.approx([4 * HOUR] * 3, abs=60.0)
    some = draw(replace(run, horizon=6 * HOUR, lives=(Survival((4 * HOUR,), (0.9,), 48 * HOUR), 1e-6)), 4000)
    apart = 0.9**6 * (1 + 6 / 9 + 9 / 9**2 + 2 / 9**3)  # of six in a ring, none, one, or two or three without a neighbor among them
    assert (some.lost["rework"] > HOUR).mean() == pytest.approx(1 - apart, abs=0.015)  # four standard errors
