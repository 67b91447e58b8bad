"""Do 95% intervals hold the truth in 19 of 20 cases? Oracle: times drawn from known parameters and noise, in hundreds of seeds."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.machines.posterior import FitParameter, fit_mean, fit_terms, interval_half_width
from sim.spec.yaml import SpecError

SEEDS = 300


def coverage(design: np.ndarray, truth: np.ndarray, unknowns: list[FitParameter], noise: float) -> dict[str, float]:
    """Return in which share of seeds each interval holds the truth, where the parameter was identified in most of them."""
    inside = {one.name: 0 for one in unknowns}
    identified = dict(inside)
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        times = (design @ truth) * np.exp(generator.normal(0.0, noise, len(design)))
        for value, estimate in zip(truth, fit_terms(design, times, unknowns).estimates, strict=True):
            inside[estimate.name] += estimate.low <= value <= estimate.high
            identified[estimate.name] += estimate.identified
    return {name: count / SEEDS for name, count in inside.items() if identified[name] > SEEDS / 2}


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_intervals_of_a_fixed_cost_and_a_rate(noise: float) -> None:
    """As of copies: 1 KiB to 256 MiB at 5 GB/s and 20 us."""
    sizes = 4.0 ** np.arange(5, 15)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    shares = coverage(design, np.array([20e-6, 1 / 5e9]), [FitParameter("fixed", 10e-6), FitParameter("per byte", 1e-10)], noise)
    assert set(shares) == {"fixed", "per byte"}
    assert all(0.90 <= share <= 0.99 for share in shares.values()), shares


def test_intervals_of_a_collective() -> None:
    """As of rings of 2 and 8 ranks: start, step around the ring, and bytes, each with the prior of its transport class."""
    rows = [(ranks, 4.0**power) for ranks in (2, 8) for power in range(2, 14)]
    design = np.array([[1.0, 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size] for ranks, size in rows])
    unknowns = [FitParameter("launch", 100e-6, 0.7), FitParameter("step", 250e-6, 0.7), FitParameter("per byte", 1 / 1.25e9, 0.7)]
    shares = coverage(design, np.array([60e-6, 180e-6, 1 / 0.9e9]), unknowns, 0.08)
    assert {"step", "per byte"} <= set(shares)
    assert all(0.90 <= share <= 0.99 for share in shares.values()), shares


def test_intervals_of_repeated_values() -> None:
    inside = 0
    for seed in range(SEEDS):
        estimate = fit_mean("launch", list(5e-6 * np.exp(np.random.default_rng(seed).normal(0.0, 0.05, 7))))["launch"]
        inside += estimate.low <= 5e-6 <= estimate.high
    assert 0.90 <= inside / SEEDS <= 0.99


def test_exact_times_give_exact_parameters() -> None:
    """Without noise the parameters are exact, except for the pull of a vague prior."""
    sizes = 10.0 ** np.arange(3, 9)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    posterior = fit_terms(design, design @ np.array([1e-5, 1e-9]), [FitParameter("fixed", 1e-6), FitParameter("per byte", 1e-10)])
    assert posterior["fixed"].value == pytest.approx(1e-5, rel=1e-3) and posterior["per byte"].value == pytest.approx(1e-9, rel=1e-3)
    assert np.abs(posterior.residuals).max() < 1e-3


def test_what_the_data_do_not_tell_keeps_its_prior() -> None:
    """Large messages alone say nothing of a fixed cost; rings of one size tell start and steps together, not apart."""
    sizes = np.array([1e8, 2e8, 4e8, 8e8])
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    posterior = fit_terms(
        design,
        design @ np.array([1e-5, 1e-9]) * np.array([1.01, 0.99, 1.0, 1.02]),
        [FitParameter("fixed", 1e-5, 0.7), FitParameter("per byte", 1e-9)],
    )
    assert posterior["per byte"].identified and not posterior["fixed"].identified
    assert posterior["fixed"].value == pytest.approx(1e-5, rel=0.1)
    assert posterior["fixed"].high / posterior["fixed"].low == pytest.approx(np.exp(2 * 1.96 * 0.7), rel=0.05)


def test_few_points_make_wide_intervals() -> None:
    assert interval_half_width(np.inf) == pytest.approx(1.96, abs=0.01)
    assert interval_half_width(2) == pytest.approx(4.30, abs=0.01)  # any table of Student's t
    with pytest.raises(SpecError, match="nothing to fit"):
        fit_mean("launch", [])
