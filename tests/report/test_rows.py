"""Does a spreadsheet get every job and every size? Oracle: the csv module."""

from __future__ import annotations

import csv
import io
from typing import Any

from sim.report.rows import run_csv, run_row

STALLS = {"compute": 0.7, "fetch": 0.3}


def run(**more: Any) -> dict[str, Any]:
    return {
        "hardware": "toy", "workload": "w", "stack": "s", "nodes": 1, "gpus": 2, "batch_per_gpu": 4, "precision": "fp32",
        "step_time_s": 1.0,
        "throughput_samples_per_s": 8.0, "epoch_time_s": 10.0, "cost_per_epoch_usd": None, "stalls_s": STALLS, "whole_job": None,
        "first_epoch": {"step_time_s": 2.0, "epoch_time_s": 20.0, "cost_usd": 0.5, "stalls_s": STALLS}, "gpu_memory_bytes": {"total": 9.0},
    } | more  # fmt: skip


def test_units_stand_in_the_names() -> None:
    row = run_row(run())
    assert (row["compute_s"], row["fetch_s"], row["first_fetch_s"], row["first_cost_usd"]) == (0.7, 0.3, 0.3, 0.5)
    assert row["gpu_memory_bytes"] == 9.0


def test_jobs_and_sizes_that_cannot_run_have_rows_too() -> None:
    failed = {"hardware": "toy", "workload": "w", "nodes": 3, "gpus": 6, "infeasible": "too, few"}
    rows = list(csv.DictReader(io.StringIO(run_csv([run(), run(job=1, gpus=4), failed]))))
    assert [(row["job"], row["gpus"], row["step_time_s"], row["infeasible"]) for row in rows] == [
        ("0", "2", "1.0", ""), ("1", "4", "1.0", ""), ("0", "6", "", "too, few"),
    ]  # fmt: skip
