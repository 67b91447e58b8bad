"""Measured record: ResNet-50 with torch's DataLoader on 1 to 32 V100 (DLPerf), from two of its rows.

Oneflow-Inc/DLPerf @c89430ba PyTorch/resnet50v1.5/README.md: pytorch/examples, fp32, 128 images per GPU, four nodes of 8 V100 and two
Xeon Gold 5118; ``--workers`` is per node and divided by the ranks. The GPU's rate comes from the row with 1 GPU and 48 workers, a
worker's rate from the row with 8 GPUs and 8 workers; no other row is used.

One row resists: 1 GPU with 8 workers ran at 306 images/s although 8 workers deliver 1 070 elsewhere and the GPU takes 349. 4 GPUs with
48 workers ran at 306.6 images/s per GPU, within 0.1% the same rate. A slow disk, a cold page cache, NUMA-bound workers and the
first steps of a run were tried: each contradicts another row of the table. A GPU running 12% slower in those two runs fits both, but
nothing in the source says so, so the simulator does not either.
"""

from __future__ import annotations

import statistics

import pytest

from sim.events import Cause
from sim.study.scenario import Scenario, answer

BATCH = 128
ROWS = [  # nodes, GPUs per node, workers per node, measured images/s
    (1, 1, 8, 306.35),
    (1, 4, 8, 1079.19),
    (1, 8, 8, 1070.37),
    (2, 8, 8, 2093.53),
    (4, 8, 8, 4119.84),
    (1, 1, 48, 348.62),
    (1, 4, 48, 1226.38),
    (1, 8, 48, 2632.93),
    (2, 8, 48, 5115.40),
    (4, 8, 48, 10021.29),
]
GPU_ROW, WORKER_ROW, ODD_ROW = ROWS[5], ROWS[2], ROWS[0]


def throughput(row: tuple[int, int, int, float], *overrides: str) -> tuple[float, float, float]:
    """Return images/s, seconds per step, and the GPU's part of them."""
    nodes, gpus, workers, _ = row
    options = ("training.stack=torch-1.6-ddp", f"input.num_workers={-(-workers // gpus)}", *overrides)
    job = answer(Scenario("dlperf", "resnet50", options, nodes=nodes, placement="+".join([str(gpus)] * nodes), batch=BATCH)).run.jobs[0]
    return job.throughput, job.warm.step_time, job.warm.stalls[Cause.COMPUTE]


@pytest.fixture(scope="module")
def errors() -> dict[tuple[int, int, int, float], float]:
    _, step, compute = throughput(GPU_ROW)
    factor = (BATCH / GPU_ROW[3] - (step - compute)) / compute
    prep = WORKER_ROW[2] / WORKER_ROW[3]
    calibrated = (f"training.compute_factor={factor:.6f}", f"dataset.prep={1e3 * prep:.6f} ms")
    return {row: throughput(row, *calibrated)[0] / row[3] - 1 for row in ROWS}


def test_zero_shot_gpu_rate_is_near(errors: dict[tuple[int, int, int, float], float]) -> None:
    """Without any of these rows: DeepBench's kernels alone predict the GPU's rate within 10%."""
    assert throughput(GPU_ROW)[0] == pytest.approx(GPU_ROW[3], rel=0.10)


def test_calibration_rows_are_met(errors: dict[tuple[int, int, int, float], float]) -> None:
    assert abs(errors[GPU_ROW]) < 0.005
    assert abs(errors[WORKER_ROW]) < 0.005


def test_predicted_rows(errors: dict[tuple[int, int, int, float], float]) -> None:
    """The rows that were not used: 4% in the median; 10% at worst but for the row named above."""
    predicted = {row: abs(error) for row, error in errors.items() if row not in (GPU_ROW, WORKER_ROW)}
    assert statistics.median(predicted.values()) < 0.04
    assert max(error for row, error in predicted.items() if row != ODD_ROW) < 0.10
    assert 0.10 < predicted[ODD_ROW] < 0.15  # if a change explains it, say so above


def test_starved_rows_are_blamed_on_prep() -> None:
    """8 workers for 8 GPUs: the source calls it GPU-starved; the stall must be prep, and most of the step."""
    warm = answer(Scenario("dlperf", "resnet50", ("input.num_workers=1",), nodes=1, batch=BATCH)).run.jobs[0].warm
    assert warm.stalls[Cause.PREP] > 0.5 * warm.step_time
    assert warm.stalls[Cause.FETCH] == 0
