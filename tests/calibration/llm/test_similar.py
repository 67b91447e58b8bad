"""Oracle: sources whose runs have a known error in common; a correction by a share that is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from calibration.llm.case import Case
from calibration.llm.prediction import LlmPrediction
from calibration.llm.score import ScoredRun, errors_with_one_row
from calibration.llm.similar import LARGEST, TRAITS, common_traits, cut, pair_sums, shared_error, traits
from tests.calibration.llm.test_case import one

ALIKE = TRAITS


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return one(tmp_path_factory.mktemp("similar"))


def row(case: Case, error: float, shared: tuple[float, ...]) -> ScoredRun:
    """Return *case* as scored, measured exp(*error*) times as long as predicted."""
    predicted = (case.measured or 1.0) / math.exp(error)
    return ScoredRun(case, LlmPrediction(predicted, 0.0, "fits"), {"predicted": predicted}, 0.0, 0.0, shared)


def test_a_run_has_all_traits_in_common_with_itself_but_not_with_one_on_another_scale(case: Case, tmp_path: Path) -> None:
    assert common_traits(traits(case), traits(case)) == TRAITS
    larger = one(tmp_path, nodes="16", gpus="128", dp="128", global_batch="2048")
    assert common_traits(traits(case), traits(larger)) == TRAITS - 1


def test_errors_that_all_runs_have_in_common_are_shared_whole(case: Case) -> None:
    sums = [pair_sums([(case, error)] * 5) for error in (0.1, -0.05, 0.02)]
    assert shared_error(sums) == pytest.approx((0.0,) * ALIKE + (1.0,))


def test_the_share_is_the_correlation_of_drawn_errors(case: Case) -> None:
    """Half of the variance between 300 sources, half within them."""
    random = np.random.default_rng(0)
    sources = [random.normal(0, 0.03) + random.normal(0, 0.03, 30) for _ in range(300)]
    shared = shared_error(pair_sums([(case, error) for error in errors.tolist()]) for errors in sources)
    assert shared[ALIKE] == pytest.approx(0.5, abs=0.06)


def test_unrelated_errors_are_not_shared(case: Case) -> None:
    errors = np.random.default_rng(1).normal(0, 0.05, 400).tolist()
    assert shared_error([pair_sums([(case, error) for error in errors])])[ALIKE] < 0.05
    assert shared_error([]) == (0.0,) * (TRAITS + 1)


def test_more_traits_in_common_never_share_less() -> None:
    sums = [(0.5, 1.0), (0.1, 1.0), (0.7, 1.0), (-0.2, 1.0), (0.0, 0.0), (0.8, 1.0), (0.6, 1.0)]
    assert shared_error([sums]) == (0.5, 0.5, 0.7, 0.7, 0.7, 0.8, 0.8)


@pytest.mark.parametrize(("share", "left"), [(0.0, 0.1), (0.5, 0.05), (1.0, 0.0)])
def test_a_measured_run_corrects_others_by_the_share(case: Case, share: float, left: float) -> None:
    rows = [row(case, 0.1, (share,) * (TRAITS + 1)) for _ in range(4)]
    assert errors_with_one_row(rows)["median"] == pytest.approx(1 - math.exp(-left))


def test_one_run_far_off_corrects_others_by_a_limited_error(case: Case) -> None:
    shared = (1.0,) * (TRAITS + 1)
    rows = [row(case, 2.0, shared), row(case, 0.0, shared)]
    assert cut(2.0) == LARGEST
    outlier_known, other_known = math.exp(LARGEST) - 1, 1 - math.exp(-2.0)
    assert errors_with_one_row(rows)["median"] == pytest.approx((outlier_known + other_known) / 2)
