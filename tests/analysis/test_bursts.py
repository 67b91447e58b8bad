"""Bursts of revocations, compared with lives whose bursts are known in closed form."""

from __future__ import annotations

import math

import pytest

from sim.analysis.bursts import burst_rates
from sim.analysis.transient import ExponentialLives, Survival

HOUR = 3600.0


def test_machines_of_one_age_are_revoked_in_one_burst() -> None:
    """Oracle: all live 24 h, and the next ones begin 2 min later; three bursts in 80 h, of however many machines."""
    limit = Survival((), (), 24 * HOUR)
    for nodes in (1, 7, 300):
        bursts = burst_rates(limit, nodes, 80 * HOUR, 120.0, 300.0)
        assert bursts == pytest.approx((3 / (80 * HOUR), 3 / (80 * HOUR) if nodes > 1 else 0.0))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_bursts_of_random_revocations(share: float) -> None:
    """Oracle: of events at the rate r, exp(-r g) come more than g after the one before, and so does the first."""
    nodes, mean, time, gap = 40, 100 * HOUR, 50 * HOUR, 600.0
    rate = share * nodes / mean
    apart = (rate * (time - gap) * math.exp(-rate * gap) + 1 - math.exp(-rate * gap)) / time
    assert burst_rates(ExponentialLives(mean), nodes, time, 0.0, gap, share).rate == pytest.approx(apart, rel=0.02)


def test_a_job_shorter_than_any_life_meets_none() -> None:
    assert burst_rates(Survival((5 * HOUR,), (0.5,), 24 * HOUR), 10, HOUR, 60.0, 60.0) == (0.0, 0.0)


def test_copies_are_lost_if_neighbors_are_away_together() -> None:
    """Oracle: of six in a ring, each is revoked at 4 h by a chance of 0.1; the others live longer than the job."""
    none_apart = 0.9**6 * (1 + 6 / 9 + 9 / 9**2 + 2 / 9**3)  # none, one, or two or three without a neighbor among them
    bursts = burst_rates(Survival((4 * HOUR,), (0.9,), 48 * HOUR), 6, 6 * HOUR, 75.0, 300.0)
    assert bursts.without_copies * 6 * HOUR == pytest.approx(1 - none_apart, rel=0.03)
    assert bursts.rate * 6 * HOUR == pytest.approx(1 - 0.9**6, rel=0.01)
