"""Do splits calibrate on one side and score the other? Oracle: rows whose sides are plain."""

from __future__ import annotations

from calibration.questions import question
from calibration.validate.splits import contradicting_repeats, split_rows
from tests.calibration.runs import record


def test_repeats_that_disagree_are_named() -> None:
    near, far = (question(record(step_time=step, placement="4", role="network", batch_per_gpu=8)) for step in (1.0, 1.19))
    beyond = question(record(step_time=1.21, placement="4", role="prediction", batch_per_gpu=8))
    other = question(record(step_time=9.0, placement="4", role="network", batch_per_gpu=16))
    assert contradicting_repeats([near, far, other]) == []
    assert contradicting_repeats([near, far, beyond, other]) == [[near, far, beyond]]


def test_larger_scales_are_scored_and_smaller_ones_calibrate() -> None:
    placed = [("1", "compute"), ("2+2", "network"), ("1+1+1", "network"), ("4+4", "prediction"), ("4+4+4", "prediction")]
    rows = [question(record(placement=placement, role=role, batch_per_gpu=8)) for placement, role in placed]
    changed, far = split_rows(rows, "nodes")
    assert [row.record.role for row in changed] == ["compute", "network", "prediction", "prediction", "prediction"]
    assert [row.nodes for row in far] == [3, 3]
    assert split_rows([row for row in rows if row.nodes < 3], "nodes") == ([], [])  # nothing on the far side
    assert split_rows([row for row in rows if row.nodes != 2], "nodes") == ([], [])  # nothing calibrates


def test_halves_of_batches() -> None:
    rows = [question(record(placement="4", role="network", batch_per_gpu=batch)) for batch in (8, 16, 32, 64)]
    rows += [question(record(placement="4", workload="vgg16", role="network", batch_per_gpu=8))]  # of one batch only: on the near side
    for name, batches in (("large-batches", [32, 64]), ("small-batches", [8, 16])):
        changed, far = split_rows(rows, name)
        assert [row.batch for row in far] == batches
        assert changed[-1].record.role == "network" and [row.record.role for row in changed].count("network") == 3
