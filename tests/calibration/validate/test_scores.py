"""Are scores correct? Oracles: quantiles by hand, and rules in their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from calibration.questions import question
from calibration.validate.baselines import RunCompute, closed_form, copy_row, fit_closed_form, free_communication
from calibration.validate.scores import ScoredRow, scores, weighted_quantile
from tests.calibration.runs import record


def scored_row(cluster: str, measured: float, said: float, rule: float, compute: float) -> ScoredRow:
    run_question = question(record(placement="2"))
    run_question = replace(run_question, record=replace(run_question.record, hardware=cluster, step_time=measured))
    names = ("zero_shot", "calibrated", "free_communication", "closed_form", "copy_row")
    values = dict(zip(names, (said, said, rule, rule, rule), strict=True))
    return ScoredRow(run_question, compute, values, {"zero_shot": 0.1, "calibrated": 0.1})


def test_quantiles_of_equal_weights() -> None:
    assert weighted_quantile([4.0, 1.0, 3.0, 2.0], [1.0] * 4, 0.5) == 2.5
    assert weighted_quantile([7.0], [2.0], 0.9) == 7.0


def test_clusters_weigh_alike_however_many_rows_they_have() -> None:
    rows = [scored_row("a", 1.0, 1.1, 1.2, 0.5)] * 9 + [scored_row("b", 1.0, 1.3, 1.2, 0.5)]
    calibrated = scores(rows)["calibrated"]
    assert calibrated["points"] == 10 and calibrated["median"] == pytest.approx(0.2, abs=0.1)
    assert scores(rows[:9])["calibrated"]["median"] == pytest.approx(0.1)


def test_skill_compares_with_the_best_rule() -> None:
    document = scores([scored_row("a", 1.0, 1.05, 1.2, 0.95)])
    assert document["calibrated"]["skill"] == pytest.approx(0.75)
    assert document["closed_form"]["skill"] is None
    assert document["calibrated"]["exposed"]["points"] == 0 and document["calibrated"]["exposed"]["median"] is None
    assert document["calibrated"]["coverage"] == 1.0


def test_a_rule_that_nothing_calibrates_is_left_out_and_takes_communication_for_free_in_skill() -> None:
    row = scored_row("a", 1.0, 1.05, 1.2, 0.95)
    alone = replace(row, predictions={name: value for name, value in row.predictions.items() if name != "closed_form"})
    document = scores([alone])
    assert document["closed_form"]["median"] is None and document["closed_form"]["points"] == 0
    assert document["calibrated"]["skill"] == pytest.approx(0.75) and document["calibrated"]["bias"] == pytest.approx(0.05)
    both = scores([alone, replace(row, predictions={**row.predictions, "closed_form": 1.1})])
    assert both["closed_form"]["points"] == 1 and both["closed_form"]["median"] == pytest.approx(0.1)
    assert both["calibrated"]["skill"] == pytest.approx(1.0 - 0.05 / 0.15)  # between a free 20% and its own 10%


def test_the_exposed_part_has_an_error_of_its_own() -> None:
    assert scores([scored_row("a", 1.0, 1.05, 1.2, 0.8)])["calibrated"]["exposed"]["part_median"] == pytest.approx(0.25)


def test_no_rows_give_no_figures() -> None:
    assert scores([])["calibrated"]["median"] is None


def test_the_closed_form_in_its_limits() -> None:
    run_question = question(record(placement="4", batch_per_gpu=8))
    fast, slow = [math.log(1e15)] * 2 + [math.log(1e-12)], [math.log(1e6)] * 2 + [math.log(1e-12)]
    assert closed_form(RunCompute(run_question, 0.3), fast) == pytest.approx(0.3, rel=1e-6)
    nbytes = 4.0 * run_question.workload.model.parameters
    assert closed_form(RunCompute(run_question, 0.3), slow) == pytest.approx(2 * 3 / 4 * nbytes / 1e6, rel=0.01)


def test_the_closed_form_fits_rows_of_its_own_kind() -> None:
    truth = (math.log(3e9), math.log(4e8), math.log(2e-4))
    rows = []
    for placement in ("2", "4", "1+1", "2+2", "1+1+1"):
        run_question = question(record(placement=placement, batch_per_gpu=8))
        step = closed_form(RunCompute(run_question, 0.1), truth)
        rows.append(RunCompute(replace(run_question, record=replace(run_question.record, step_time=step)), 0.1))
    fitted_rule = fit_closed_form(rows)
    assert fitted_rule is not None
    assert [closed_form(row, fitted_rule) for row in rows] == pytest.approx([row.question.step_time for row in rows], rel=0.02)


def test_the_copy_is_of_the_nearest_row_and_scales_with_compute() -> None:
    near, far = (question(record(placement=placement, step_time=step)) for placement, step in (("1+1", 2.0), ("4", 9.0)))
    target = RunCompute(question(record(placement="1+1+1")), 0.5)
    assert copy_row(target, [RunCompute(far, 1.0), RunCompute(near, 1.0)]) == pytest.approx(1.0)
    assert copy_row(target, []) is None and fit_closed_form([]) is None and free_communication(target) == 0.5
