"""Does leaving rows out accept what predicts? Oracle: ridge regressions solved anew without each row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.clusters.acceptance import LinearizedFit, select_constants


def rows(count: int, truth: list[float], noise: float, seed: int) -> LinearizedFit:
    """Rows that depend on as many constants as *truth* has, seen from constants at zero."""
    drawn = np.random.default_rng(seed)
    slope = drawn.uniform(0.1, 1.0, (count, len(truth)))
    measured = slope @ np.array(truth) + noise * drawn.standard_normal(count)
    ones = np.ones(count)
    return LinearizedFit(-measured, slope, np.zeros(len(truth)), np.full(len(truth), 0.5), 0.03 * ones, ones, ones, -measured)


def at_fit(fit: LinearizedFit) -> LinearizedFit:
    """The same rows seen from their most probable constants."""
    precision = np.diag(fit.sigma**-2.0)
    solution = np.linalg.solve(fit.slopes.T @ precision @ fit.slopes + np.diag(fit.widths**-2.0), fit.slopes.T @ precision @ -fit.errors)
    return LinearizedFit(
        fit.errors + fit.slopes @ solution, fit.slopes, solution, fit.widths, fit.sigma, fit.weights, fit.counts, fit.prior_errors
    )


def test_one_formula_gives_what_leaving_out_each_row_gives() -> None:
    fit = at_fit(rows(12, [0.4, -0.3], 0.0, 1))
    targets, misses = fit.slopes @ fit.values - fit.errors, []
    robust = 1.0 / np.sqrt(1.0 + (fit.errors / fit.sigma / 2.0) ** 2)
    for row in range(12):
        rest = np.arange(12) != row
        slope, precision = fit.slopes[rest], (robust / fit.sigma**2)[rest]
        constants = np.linalg.solve(
            slope.T @ (slope * precision[:, None]) + np.diag(fit.widths**-2.0), slope.T @ (precision * targets[rest])
        )
        misses.append(fit.slopes[row] @ constants - targets[row])
    assert fit.left_out_errors([0, 1]) == pytest.approx(misses, abs=1e-9)


def test_no_constant_left_gives_the_prior() -> None:
    fit = rows(5, [0.2], 0.0, 2)
    assert at_fit(fit).left_out_errors([]) == pytest.approx(fit.prior_errors)


def test_what_the_rows_depend_on_stays_and_what_only_follows_noise_mostly_goes() -> None:
    """The second constant of the truth is zero: leaving one out is known to keep such a one in about a sixth to a third of cases."""
    selections = [select_constants(at_fit(rows(20, [0.5, 0.0], 0.03, seed)), [[0], [1]]) for seed in range(60)]
    assert all(0 in selected for selected in selections)
    assert sum(1 in selected for selected in selections) < 30


def test_a_single_row_says_nothing_of_itself() -> None:
    """Of one row no other tells: left out, it is predicted by the prior, which is as good; so the constant stays there, if it is judged."""
    fit = at_fit(rows(1, [0.4], 0.0, 3))
    assert fit.left_out_errors([0]) == pytest.approx(fit.prior_errors)
    assert select_constants(fit, [[0]]) == [] and select_constants(fit, []) == [0]


def test_constants_that_explain_the_same_share_it() -> None:
    """Two constants of one place that affect all rows equally: neither is dropped in favor of the other."""
    fit = rows(12, [0.4, 0.4], 0.0, 4)
    slope = fit.slopes.mean(axis=1, keepdims=True).repeat(2, axis=1)
    missed = -slope.sum(axis=1) * 0.4
    same = at_fit(LinearizedFit(missed, slope, fit.values, fit.widths, fit.sigma, fit.weights, fit.counts, missed))
    assert select_constants(same, [[0, 1]]) == [0, 1]


@given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from([[0.0, 0.0, 0.0, 0.0], [0.2, -0.2, 0.1, 0.0], [0.6, -0.5, 0.0, 0.1]]))
@settings(max_examples=60, deadline=None)
def test_what_is_accepted_never_predicts_rows_left_out_worse_than_priors(seed: int, count: int, truth: list[float]) -> None:
    """Of few noisy rows, some of which the priors explain by chance: two blocks of two constants that explain the same rows in part."""
    fit = at_fit(rows(count, truth, 0.1, seed))
    selected = select_constants(fit, [[0, 1], [2, 3]])
    assert fit.misfit(fit.left_out_errors(selected)) <= fit.misfit(fit.left_out_errors([])) + 1e-9


OWN = 0.04
"""Width of the slowdown of each job, which is measured by one row only."""


def jobs(seed: int, scale: float, noise: float, count: int = 6) -> tuple[LinearizedFit, np.ndarray, np.ndarray]:
    """One row for each of *count* jobs, determined by a network constant, a common slowdown and one per job: *scale* times the priors'
    widths.

    Also return the true constants, and the slopes of as many later rows of the same jobs, which wait for the network twice as much.
    """
    drawn = np.random.default_rng(seed)
    widths = np.array([0.5, 0.03] + [OWN] * count)
    slope = np.column_stack([drawn.uniform(0.0, 0.2, count), np.ones(count), np.eye(count)])
    truth = scale * widths * drawn.standard_normal(count + 2)
    measured, ones = slope @ truth + noise * drawn.standard_normal(count), np.ones(count)
    fit = LinearizedFit(-measured, slope, 0 * widths, widths, 0.03 * ones, ones, ones, -measured, tuple(range(2, count + 2)))
    later = slope * np.where(np.arange(count + 2) == 0, 2.0, 1.0)
    return replace(at_fit(fit), single_row_constants=fit.single_row_constants), truth, later


def test_constants_of_one_row_are_left_out_with_it() -> None:
    """Ridge regressions of all constants, solved anew without each row: its own constant stays at its prior there."""
    fit, _, _ = jobs(1, 1.0, 0.0)
    targets, misses = fit.slopes @ fit.values - fit.errors, []
    precision = 1.0 / np.sqrt(1.0 + (fit.errors / fit.sigma / 2.0) ** 2) / fit.sigma**2
    for row in range(6):
        rest = np.arange(6) != row
        slope = fit.slopes[rest]
        constants = np.linalg.solve(
            slope.T @ (slope * precision[rest][:, None]) + np.diag(fit.widths**-2.0), slope.T @ (precision[rest] * targets[rest])
        )
        misses.append(fit.slopes[row] @ constants - targets[row])
    assert fit.left_out_errors(range(8)) == pytest.approx(misses, abs=1e-9)


def test_a_loss_that_all_jobs_share_is_told_by_the_others() -> None:
    """Six jobs lose 4% each: the common constant is kept, although each job's own constant explains its row as well."""
    fit, _, _ = jobs(1, 0.0, 0.0)
    shifted = replace(fit, errors=0 * fit.errors - 0.04, prior_errors=0 * fit.errors - 0.04)
    assert 1 in select_constants(replace(at_fit(shifted), single_row_constants=fit.single_row_constants), [[0], [1]])


def _later_errors(scale: float, noise: float) -> tuple[float, float]:
    """Return the mean size of misses of later rows by constants at their priors, and by those that are accepted, over many clusters."""
    errors: list[tuple[float, float]] = []
    for seed in range(400):
        fit, truth, later = jobs(seed, scale, noise)
        selected = select_constants(fit, [[0], [1]])
        slope, targets = fit.slopes[:, selected], fit.slopes @ fit.values - fit.errors
        solution = np.linalg.solve(slope.T @ slope / 0.03**2 + np.diag(fit.widths[selected] ** -2.0), slope.T @ targets / 0.03**2)
        errors.append((float(np.abs(later @ truth).mean()), float(np.abs(later[:, selected] @ solution - later @ truth).mean())))
    before, after = np.mean(errors, axis=0)
    return float(before), float(after)


@pytest.mark.parametrize(("scale", "noise"), [(1.0, 0.03), (0.5, 0.03), (0.25, 0.03), (0.5, 0.01), (2.0, 0.03)])
def test_calibrating_helps_where_clusters_differ_from_their_descriptions(scale: float, noise: float) -> None:
    """Simulated clusters whose truth is known: constants as far off as their priors say, twice that, and down to a quarter."""
    before, after = _later_errors(scale, noise)
    assert after < before


def test_calibrating_costs_less_than_copying_rows_where_descriptions_are_right() -> None:
    """Nothing is off, so nothing can be gained. A row's miss copied to later rows of its job costs sqrt(2 / pi) standard deviations."""
    before, after = _later_errors(0.0, 0.03)
    assert before == 0.0 and after < 0.9 * np.sqrt(2.0 / np.pi) * 0.03


def test_two_rows_that_contradict_each_other_move_nothing() -> None:
    """Measured 2 and 5% below what is predicted: each says of the other what the prior says about as well."""
    slope, missed = np.ones((2, 1)), np.array([0.017, 0.055])
    ones = np.ones(2)
    fit = at_fit(LinearizedFit(missed, slope, np.zeros(1), np.array([0.35]), 0.03 * ones, ones, ones, missed))
    assert select_constants(fit, [[0]]) == []
    fit = at_fit(LinearizedFit(missed + 0.15, slope, np.zeros(1), np.array([0.35]), 0.03 * ones, ones, ones, missed + 0.15))
    assert select_constants(fit, [[0]]) == [0]


@pytest.mark.parametrize("truth", [0.0, 0.3])
def test_clusters_whose_truth_is_known_are_rarely_predicted_worse(truth: float) -> None:
    """Three hundred clusters of six rows, their truth at the prior or far from it; judged on rows without noise that no fit saw.

    Oracle: leaving the constant at its prior. If the truth is at the prior, a fit can only harm: at most as often as it is accepted, 1/7.
    """
    harmed, gained = 0, 0.0
    for seed in range(300):
        fit, new = at_fit(rows(6, [truth], 0.03, seed)), np.random.default_rng(seed + 1000).uniform(0.1, 1.0, 50)
        value = fit.values[0] if select_constants(fit, [[0]]) else 0.0
        after, before = np.median(np.abs(new * (value - truth))), np.median(np.abs(new * truth))
        harmed += bool(after > before + 0.005)
        gained += float(before - after) / 300
    assert harmed <= 300 / 7 and gained > (0.9 * 0.55 * truth if truth else -0.005)
