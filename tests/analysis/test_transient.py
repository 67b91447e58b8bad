"""Oracles: Kaplan-Meier by hand, an exact integral, and what CM-DARE and Transient-DL measured (arXiv 2004.03072, 1903.00045)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.transient import (
    cloud_checkpoint_time,
    kaplan_meier,
    lifetimes_of,
    restore_time,
    survival,
    young_interval,
)
from sim.spec.hardware import Gpu
from sim.spec.library import load_part
from sim.spec.lifetimes import Lifetimes
from tests.oracle.daly import daly_time

HOUR = 3600.0


def lifetimes(name: str) -> Lifetimes:
    return load_part(Lifetimes, name)


def test_kaplan_meier_by_hand() -> None:
    """Six machines: revoked at 1, 3 and 3; watched until 2, 4 and 5. S = 5/6 after 1, then 5/6 * 2/4 after 3."""
    curve = kaplan_meier([3.0, 1.0, 3.0], [2.0, 4.0, 5.0], cap=10.0)
    assert [curve.at(age) for age in (0.5, 1.0, 2.9, 3.0, 9.9, 10.0)] == pytest.approx([1, 5 / 6, 5 / 6, 5 / 12, 5 / 12, 0])
    assert curve.mean == pytest.approx(1 + 2 * 5 / 6 + 7 * 5 / 12)
    with pytest.raises(ValueError, match="no machine"):
        kaplan_meier([], [])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.integers(0, 10))
def test_without_early_censoring_it_is_the_share_that_lives_longer(revoked: list[float], survived: int) -> None:
    curve = kaplan_meier(revoked, [20.0] * survived, cap=20.0)
    for age in (0.0, 3.0, *revoked):
        alive = sum(life > age for life in revoked) + survived
        assert curve.at(age) == pytest.approx(alive / (len(revoked) + survived), abs=1e-12)


def test_drawn_lives_have_the_distribution_they_are_drawn_from() -> None:
    curve = survival(lifetimes("k80"))
    random = np.random.default_rng(7)
    drawn = np.array([curve.draw(random) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(curve.mean, rel=0.02)
    for hours in (0.5, 2.0, 8.0, 23.9):
        assert (drawn > hours * HOUR).mean() == pytest.approx(curve.at(hours * HOUR), abs=0.025)


@pytest.mark.parametrize(
    ("name", "share", "early", "watched"), [("k80", 0.69, 0.078, 64), ("p100", 0.80, 0.0, 40), ("v100", 0.90, 0.042, 48)]
)
def test_survival_as_transient_dl_tells_it(name: str, share: float, early: float, watched: int) -> None:
    """Measured: survive a day 69, 80 and 90%; revoked within 2 h 7.8, 0 and 4.2%."""
    measured_lives = lifetimes(name)
    assert len(measured_lives.revoked) + measured_lives.survived == watched
    assert survival(measured_lives).at(23.99 * HOUR) == pytest.approx(share, abs=0.01)
    assert 1 - survival(measured_lives).at(2 * HOUR) == pytest.approx(early, abs=0.001)


@pytest.mark.parametrize(("name", "spot", "on_demand"), [("k80", (80.7, 85.8), (75.6, 68.6)), ("p100", (91.9, 90.4), (70.3, 69.2))])
def test_start_up_lies_between_the_two_regions_measured(name: str, spot: tuple[float, float], on_demand: tuple[float, float]) -> None:
    measured_lives = lifetimes(name)
    for total, measured in ((measured_lives.start_up.total, spot), (measured_lives.on_demand_start_up.total, on_demand)):
        assert min(measured) - 0.1 <= total <= max(measured) + 0.1


@pytest.mark.parametrize(("megabytes", "seconds"), [(6.27, 3.79), (15.99, 3.82), (22.45, 3.97), (54.26, 5.31), (9.57, 4.35), (54.19, 5.23)])
def test_checkpoints_as_cm_dare_measured_them(megabytes: float, seconds: float) -> None:
    assert cloud_checkpoint_time(megabytes * 1e6) == pytest.approx(seconds, rel=0.15)
    assert restore_time(57.19e6) == pytest.approx(1.0)


def test_young_finds_the_minimum_of_daly() -> None:
    """If checkpoints are short compared with the mean time between failures, to first order."""
    best = young_interval(10.0, 36_000.0)
    assert best == pytest.approx(math.sqrt(2 * 10 * 36_000))
    at = {factor: daly_time(1e5, factor * best, 10.0, 60.0, 36_000.0) for factor in (0.8, 1.0, 1.25)}
    assert at[1.0] < min(at[0.8], at[1.25])


def test_every_gpu_of_a_part_exists_and_others_have_none(any_gpu: Gpu) -> None:
    assert lifetimes_of(any_gpu) is None
    for name in ("k80", "p100", "v100"):
        for gpu in lifetimes(name).gpus:
            part_lives = lifetimes_of(load_part(Gpu, gpu))
            assert part_lives is not None and part_lives.name == name


@pytest.fixture
def any_gpu() -> Gpu:
    """A GPU without measured lifetimes on the spot market."""
    return load_part(Gpu, "a100-sxm4-40gb")
