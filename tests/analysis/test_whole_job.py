"""Oracle: the sum written out."""

from __future__ import annotations

import pytest

from sim.analysis.whole_job import Plan, whole_job


def test_parts_sum_to_the_whole() -> None:
    job = whole_job(Plan(epochs=10, evaluation=0.06, start_up=75.0), 200.0, 100.0, 0.5, 2.0)
    assert job == (75.0, 200.0, 900.0, pytest.approx(10 * 0.06 / 3 * 50.0), 20.0, 0.0)
    assert job.total == pytest.approx(75 + 200 + 900 + 10.0 + 20.0)


def test_without_checkpoints_and_evaluation_only_training_is_left() -> None:
    assert whole_job(Plan(1, checkpoints=False, start_up=0.0), 200.0, 100.0, 0.5, 2.0).total == 200.0


def test_a_job_has_an_epoch() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        whole_job(Plan(0), 1.0, 1.0, 1.0, 1.0)
