"""Runs for tests: rows as a user would write them, and rows whose times the simulator itself makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calibration.clusters.evaluate import predict
from calibration.clusters.network_parameters import NetworkFactors
from calibration.questions import RunQuestion, question
from calibration.run_records import RunRecord


def record(**columns: Any) -> RunRecord:
    """A row on the machines of the catalog, synthetic input; *columns* replace what is said here."""
    given: dict[str, Any] = {
        "hardware": "g4dn.12xlarge",
        "workload": "resnet50",
        "role": "prediction",
        "input": "synthetic",
        "step_time": 1.0,
    }
    return RunRecord("runs.csv", 2, **(given | columns))


def simulated(records: Sequence[RunRecord], compute_scale: float = 1.0, factors: NetworkFactors = ()) -> list[RunQuestion]:
    """Questions whose measured times are the simulator's under the given truth."""
    made = []
    for run_record in records:
        run_question = question(run_record)
        prediction = predict(run_question, compute_scale, factors)
        made.append(replace(run_question, record=replace(run_record, step_time=prediction.step, exposed_sync=None)))
    return made
