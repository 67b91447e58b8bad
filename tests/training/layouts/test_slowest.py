"""How far is the slowest rank behind? Oracle: clocks of both, written down moment by moment."""

from __future__ import annotations

import pytest
import simpy

from sim.training.layouts.slowest import SlowestRank


def rank() -> tuple[simpy.Environment, SlowestRank]:
    env = simpy.Environment()
    return env, SlowestRank(env)


def computes(env: simpy.Environment, slowest: SlowestRank, seconds: float, behind: float) -> None:
    slowest.set_computing(computing=True)
    env.run(until=env.now + seconds)
    slowest.set_computing(computing=False)
    slowest.add_lag(behind)


def test_it_falls_behind_until_the_others_have_waited_for_it() -> None:
    env, slowest = rank()
    computes(env, slowest, 10.0, 0.5)
    computes(env, slowest, 10.0, 0.5)
    assert slowest.lag() == pytest.approx(1.0)
    env.run(until=env.now + 0.75)  # the others wait for it, and it for 0.25 s less
    slowest.set_lag(0.25)
    assert slowest.lag() == pytest.approx(0.25)


def spared() -> tuple[simpy.Environment, SlowestRank]:
    """Return a rank after 10 s of compute, of which the others lose a fifth, with 3 s more of its own."""
    env, slowest = rank()
    slowest.spare(0.2)
    computes(env, slowest, 10.0, 3.0)
    return env, slowest


def test_what_waits_for_it_slows_the_others_alone() -> None:
    """Of 10 s the others lose a fifth to blocks that wait: it needed 8 s and its own 3 s more, and is 1 s behind."""
    _, slowest = spared()
    assert slowest.lag() == pytest.approx(1.0)


def test_others_that_rest_make_up_for_what_they_lost_and_for_no_more() -> None:
    env, slowest = spared()
    env.run(until=env.now + 0.5)
    assert slowest.lag() == pytest.approx(1.5)
    env.run(until=env.now + 5.0)
    assert slowest.lag() == pytest.approx(3.0)


def test_exchange_inside_of_work_is_no_rest() -> None:
    env, slowest = spared()
    env.run(until=env.now + 0.5)
    slowest.mark_busy()
    assert slowest.lag() == pytest.approx(1.0)


def test_it_is_never_early() -> None:
    env, slowest = rank()
    slowest.spare(0.5)
    computes(env, slowest, 10.0, 1.0)
    assert slowest.lag() == 0.0
