"""Are nodes that are only counted like nodes that are drawn one by one? Oracles: such nodes, and the share of time that one is present."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.analysis.course import draw
from sim.analysis.crew import CountedCrew, Crew, ElasticRules, crew_of
from sim.analysis.long_run import DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.transient import CrowdLives, ExponentialLives

NODES, MEAN, AWAY, TIME = 6, 100.0, 60.0, 400.0
RULES = ElasticRules(tuple((count + 1) / NODES for count in range(NODES)))


def history(lives: ExponentialLives, trials: int) -> tuple[Crew, np.ndarray, float]:
    """Return the crew after `TIME`, the node-seconds that were present in each course, and the share of revocations that lost copies."""
    random = np.random.default_rng(2)
    crew, now, present, lost, revoked = crew_of(NODES, trials, lives, RULES, AWAY, random), np.zeros(trials), np.zeros(trials), 0, 0
    active = np.arange(trials)
    while active.size:
        leave, join = crew.next_times(active)
        at = np.minimum(np.minimum(leave, join), TIME)
        present[active] += crew.node_counts(active) * (at - now[active])
        now[active] = at
        life = lives.draws(trials, random)
        goes = active[(at < TIME) & (leave <= join)]
        crew.revoke(goes, life)
        lost, revoked = lost + int(crew.lost_copies[goes].sum()), revoked + goes.size
        crew.join(active[(at < TIME) & (leave > join)], life)
        active = active[at < TIME]
    return crew, present, lost / revoked


def test_a_crowd_is_counted_as_its_nodes_are_drawn() -> None:
    trials = 4000
    (crowd, counted, lost), (crew, drawn, lost_of_nodes) = (
        history(lives, trials) for lives in (CrowdLives(MEAN / NODES), ExponentialLives(MEAN))
    )
    assert isinstance(crowd, CountedCrew) and not isinstance(crew, CountedCrew)
    for of in (np.mean, np.std):
        assert of(counted) == pytest.approx(of(drawn), rel=0.03)
        assert of(crowd.rented_nodes) == pytest.approx(of(crew.rented_nodes), rel=0.03)
        assert of(crowd.missing_counts) == pytest.approx(of(crew.missing_counts), rel=0.05)
    assert crowd.missing_counts.mean() == pytest.approx(NODES * AWAY / (MEAN + AWAY), rel=0.03)
    assert lost == pytest.approx(lost_of_nodes, abs=0.01) and 0.4 < lost < 0.8


def test_a_crowd_of_any_number_may_be_away() -> None:
    """A node is revoked each second and away for 100 s, far more than the ring holds at first."""
    random = np.random.default_rng(0)
    crowd = CountedCrew(1000, 2, CrowdLives(1.0), replace(RULES, speeds=(1.0,) * 1000), 100.0, random)
    rows, lost = np.arange(2), []
    for _ in range(60):
        lost.append(crowd.next_times(rows)[0] + 100.0)
        crowd.revoke(rows, np.ones(2))
    assert crowd.missing_counts.tolist() == [60, 60]
    for expected in lost:
        assert crowd.next_times(rows)[1] == pytest.approx(expected)
        crowd.join(rows, np.full(2, 1e9))
    assert crowd.missing_counts.tolist() == [0, 0] and np.isinf(crowd.next_times(rows)[1]).all()


@pytest.mark.parametrize("tiered", [False, True])
def test_a_job_of_a_crowd_does_what_a_job_of_its_nodes_does(tiered: bool) -> None:
    nodes, mean = 40, 40 * 3600.0
    saving = Saving(600.0, 2.0, 20.0, 60.0, *((120.0, 0.5, 3.0, 5.0, 9.0) if tiered else ()))
    causes = [
        DrawnCause("fault", 0.1, Uniform(5.0, 60.0), Uniform(0.0, 0.0), 0.5),
        DrawnCause("revocation", 0.9, Uniform(0.0, 30.0), Uniform(0.0, 0.0), 1.0, repair=Uniform(500.0, 500.0)),
    ]
    rules = ElasticRules(tuple((count + 1) / nodes for count in range(nodes)))
    rate = (nodes / mean / 0.9,) * 3
    run = LongRun(nodes, 4, saving, causes, rate, restart_in_place=40.0, restart=300.0, horizon=3 * 86400.0, elastic_rules=rules)
    crowd, crew = (draw(replace(run, lives=(lives, nodes / mean)), 800, 5) for lives in (CrowdLives(mean / nodes), ExponentialLives(mean)))
    for name in ("share", "interruptions", "node_seconds", "replaced_nodes"):
        ours, theirs = getattr(crowd, name), getattr(crew, name)
        error = np.hypot(ours.std(), theirs.std()) / np.sqrt(800)
        assert abs(ours.mean() - theirs.mean()) < 4 * error, name
    for name, lost in crowd.lost.items():
        assert abs(lost.mean() - crew.lost[name].mean()) < 4 * np.hypot(lost.std(), crew.lost[name].std()) / np.sqrt(800) + 1e-9, name
