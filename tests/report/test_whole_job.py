"""Oracle: texts written by hand."""

from __future__ import annotations

import pytest

from sim.analysis.whole_job import JobPlan, WholeJob
from sim.report.whole_job import days_text, epochs_text, long_time, parts_text, whole_job_document, whole_job_text
from sim.study.whole_job import Course


@pytest.mark.parametrize(
    ("epochs", "text"), [(1.0, "1 epoch"), (90.0, "90 epochs"), (23.44, "23.4 epochs"), (0.123, "0.12 epochs"), (0.0, "0 epochs")]
)
def test_epochs_in_words(epochs: float, text: str) -> None:
    assert epochs_text(epochs) == text


def test_the_line_says_what_the_document_holds() -> None:
    job = Course(3.0, WholeJob(75.0, 600.0, 1000.0, 0.0, 25.0))
    document = whole_job_document(JobPlan(3), job, 36.0)
    assert document["cost_usd"] == pytest.approx(17.0)
    said = "whole job, 3 epochs: 28.3 min, $17.00 (startup 1.25 min, first epoch 10 min, later epochs 16.7 min, checkpoints 25 s)"
    assert whole_job_text(document) == said
    unpriced = f"{said.replace(', $17.00', '')}; no price is known: --set price.on_demand='10 USD/h' gives one"
    assert whole_job_text(whole_job_document(JobPlan(3), job, None)) == unpriced


def test_a_job_with_a_number_of_tokens_is_not_split_into_epochs() -> None:
    document = whole_job_document(JobPlan(None, tokens=3e9), Course(2.5, WholeJob(75.0, 600.0, 1000.0, 0.0, 25.0)), 36.0)
    assert whole_job_text(document).endswith("(startup 1.25 min, training 26.7 min, checkpoints 25 s)")


def test_weeks_are_said_in_days_as_well() -> None:
    """By hand: 2054 h are 85.6 days, each with three digits."""
    assert long_time(2054 * 3600.0) == "2,050 h (85.6 days)"
    assert long_time(205400 * 3600.0) == "205,000 h (8,560 days)"
    assert long_time(47 * 3600.0) == "47 h"
    assert long_time(94.4 * 3600.0) == "94.4 h (3.9 days)"  # as its parts are written
    assert parts_text({"later_epochs": 2902 * 3600.0}) == "later epochs 2,900 h"


def test_a_job_that_ends_within_its_startup_says_so() -> None:
    document = whole_job_document(JobPlan(None, time=36.0), Course(0.0, WholeJob(36.0, 0.0, 0.0, 0.0, 0.0)), 36.0)
    assert whole_job_text(document).startswith("whole job, 0 epochs, because it ends before training begins: 36 s, $0.36")


@pytest.mark.parametrize(("days", "text"), [(0.0204, "29.4 min"), (0.5, "12 h"), (1.0, "1.0 days"), (54.02, "54.0 days")])
def test_a_short_run_is_not_told_in_days(days: float, text: str) -> None:
    assert days_text(days) == text
