"""Is the scatter of measured steps found? Oracle: misses drawn from known distributions, and limits of the closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibration.clusters.scatter import (
    LEAST_NOISE,
    LINEAR_LOSS_DEVIATIONS,
    Scatter,
    likeliest_scatter,
    loss,
    median_scatter,
    misfit,
    penalized_misfit,
    widen,
)

STEPS = np.geomspace(0.05, 2.0, 200)
EQUAL = np.ones(len(STEPS))


def drawn(scatter: Scatter, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(0.0, scatter.deviations(STEPS)))


def test_both_parts_add_as_independent_ones_do() -> None:
    assert Scatter(0.03, 0.1).deviations(np.array([0.1]))[0] == pytest.approx(math.hypot(0.03, math.log(2.0)))


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0, 10.0])
def test_a_time_scatters_a_step_as_delays_do(share: float) -> None:
    """Root mean square of the logarithm of a step with half-normal delays over one without, however long the delays are."""
    delays = np.abs(np.random.default_rng(0).normal(0.0, share, 20_000))
    assert Scatter(0.0, share).deviations(np.ones(1))[0] == pytest.approx(math.sqrt(np.mean(np.log1p(delays) ** 2)), rel=0.2)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_of_time_changes_nothing(unit: float) -> None:
    missed = drawn(Scatter(0.04, 0.03), 3)
    here, there = likeliest_scatter(missed, STEPS, EQUAL), likeliest_scatter(missed, STEPS * unit, EQUAL)
    assert (there.relative, there.seconds) == pytest.approx((here.relative, here.seconds * unit))
    assert penalized_misfit(missed, STEPS * unit, EQUAL, there) == pytest.approx(penalized_misfit(missed, STEPS, EQUAL, here))
    assert widen(there, 3 * missed, STEPS * unit).seconds == pytest.approx(widen(here, 3 * missed, STEPS).seconds * unit)


@pytest.mark.parametrize("longest", [0.03, 0.1, 0.5])
def test_intervals_hold_rows_that_contradict_each_other_and_stay_finite(longest: float) -> None:
    """Repeats of 50 ms to 2 s with half-normal delays: 90 to 99% of further ones are inside, and intervals are at most twice too wide."""
    generator, exact, wide = np.random.default_rng(1), np.repeat(np.geomspace(0.05, 2.0, 8), 4), []

    def measured(steps: np.ndarray) -> np.ndarray:
        return steps * np.exp(generator.normal(0.0, 0.02, len(steps))) + np.abs(generator.normal(0.0, longest, len(steps)))

    inside = []
    for _ in range(10):
        steps = exact * math.exp(np.median(np.log(measured(exact) / exact)))  # predicted, with the mean of the delays
        errors = np.log(steps / measured(exact))
        scatter = widen(likeliest_scatter(errors, steps, np.ones(len(steps))), errors, steps)
        further = np.log(np.tile(steps, 50) / measured(np.tile(exact, 50)))
        inside.append(np.mean(np.abs(further) <= 1.96 * np.tile(scatter.deviations(steps), 50)))
        wide.append(scatter.deviations(steps)[0] / math.sqrt(np.mean(further[::32] ** 2)))
    assert 0.9 <= np.mean(inside) <= 0.99 and np.median(wide) < 2.0


@pytest.mark.parametrize("seed", range(5))
def test_a_share_and_a_time_are_found_in_what_was_drawn_from_them(seed: int) -> None:
    missed = drawn(Scatter(0.05, 0.02), seed)
    scatter = widen(likeliest_scatter(missed, STEPS, EQUAL), missed, STEPS)
    assert scatter.relative == pytest.approx(0.05, rel=0.3)
    assert scatter.seconds == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_where_all_steps_scatter_by_the_same_share_no_time_is_assumed(seed: int) -> None:
    missed = drawn(Scatter(0.06), seed)
    share = median_scatter(missed, STEPS, EQUAL)
    assert share.seconds == 0.0 and share.relative == pytest.approx(0.06, rel=0.2)
    assert penalized_misfit(missed, STEPS, EQUAL, share) < penalized_misfit(missed, STEPS, EQUAL, likeliest_scatter(missed, STEPS, EQUAL))


@pytest.mark.parametrize("seed", range(5))
def test_where_short_steps_scatter_more_a_time_is_assumed(seed: int) -> None:
    missed = drawn(Scatter(0.03, 0.03), seed)
    assert penalized_misfit(missed, STEPS, EQUAL, likeliest_scatter(missed, STEPS, EQUAL)) < penalized_misfit(
        missed, STEPS, EQUAL, median_scatter(missed, STEPS, EQUAL)
    )


def test_rows_scatter_by_the_least_at_least() -> None:
    missed, steps = np.array([0.001, -0.002]), np.array([1.0, 0.1])
    assert median_scatter(missed, steps, np.ones(2)) == Scatter(LEAST_NOISE)
    assert likeliest_scatter(missed, steps, np.ones(2)).relative == pytest.approx(LEAST_NOISE)


def test_a_miss_costs_half_its_square_and_a_large_one_its_size() -> None:
    assert loss(np.array([0.01]))[0] == pytest.approx(0.5 * 0.01**2, rel=1e-4)
    assert loss(np.array([1000.0]))[0] == pytest.approx(LINEAR_LOSS_DEVIATIONS * 1000.0, rel=0.01)


def test_the_scatter_found_is_no_less_probable_than_its_neighbors() -> None:
    missed = drawn(Scatter(0.04, 0.03), 3)
    scatter = likeliest_scatter(missed, STEPS, EQUAL)
    least = misfit(missed, STEPS, EQUAL, scatter)
    for factor in (0.8, 1.25):
        assert least <= misfit(missed, STEPS, EQUAL, Scatter(scatter.relative * factor, scatter.seconds))
        assert least <= misfit(missed, STEPS, EQUAL, Scatter(scatter.relative, scatter.seconds * factor))


def test_it_is_widened_until_it_says_the_root_mean_square_and_never_narrowed() -> None:
    missed = np.array([0.09, -0.09, 0.09, -0.09])
    assert widen(Scatter(0.03), missed, np.ones(4)).relative == pytest.approx(0.09)
    assert widen(Scatter(0.3, 0.1), missed, np.ones(4)) == Scatter(0.3, 0.1)


@pytest.mark.parametrize("rows", [4, 8, 12, 20])
def test_one_row_far_off_widens_the_scatter_of_few_rows_as_one_at_the_clip_does(rows: int) -> None:
    """By hand: errors of a standard deviation, and one clipped to four of them, have a mean square of (rows - 1 + 16) / rows."""
    errors = np.append(np.full(rows - 1, 0.02), 1.0)
    assert widen(Scatter(0.02), errors, np.ones(rows)).relative == pytest.approx(0.02 * math.sqrt((rows + 15) / rows), rel=2e-3)
