"""Measured record: 1-GPU rows of calibration/records/single_gpu.csv, predicted by factors that were fitted without them.

The current figures are next to the aims, so that a change that makes predictions better or worse is visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from calibration.catalog.catalog_factors import FITTED_FOLDERS
from calibration.catalog.compute import fit
from calibration.catalog.compute_model import (
    FIRST_KERNELS,
    FIRST_STACKS,
    ROW_FACTORS,
    FactorRow,
    factor_keys,
    gpu_part,
    predicted_time,
    step_time,
    step_time_and_slopes,
)
from calibration.catalog.without_source import _rows
from sim.spec.catalog import all_files
from tests.calibration.catalog.predicting import LeftOutPrediction, leave_out, predict, predict_from_older, predict_from_one_point, score

IMAGES, REST = "fp32 convolution", "tensor cores and BERT"


def all_rows() -> Sequence[FactorRow]:
    """Return all rows, which other modules read as well."""
    return _rows()


def errors(predictions: list[LeftOutPrediction], family: str) -> tuple[float, float]:
    score_of_rows = score(prediction.error for prediction in predictions if prediction.row.family == family)
    return score_of_rows.median, score_of_rows.p90


def baseline_median(predictions: list[LeftOutPrediction], family: str) -> float:
    return score(prediction.baseline / prediction.row.measured - 1 for prediction in predictions if prediction.row.family == family).median


def test_every_row_says_where_it_comes_from() -> None:
    assert len(all_rows()) > 550
    for row in all_rows():
        record = row.record
        assert "@" in record.source or "cnn-benchmarks" in record.source, record.where
        assert record.software and record.batch_per_gpu and record.precision and record.role in ("compute", "prediction"), record.where


def test_gpus_of_one_multiprocessor_share_their_factors() -> None:
    """NVIDIA's Kepler Tuning Guide: the K80's multiprocessor is the K40's but for registers and shared memory; no other pair is merged."""
    owners = {row.record.hardware: row.capability for row in all_rows()}
    assert owners["k80"] == owners["k40c"]
    assert len(set(owners.values())) == len({gpu_part(name).compute_capability for name in owners}) - 1


def test_a_fit_finds_factors_that_made_the_rows() -> None:
    """Closed form: rows timed by the model itself with known factors are predicted again, once fitted."""
    true_factors = {("vector", "all"): 0.04, ("memory", "cc 7.0"): 0.1, ("overall", "torch-0.3"): 0.2, ("fused", "oneflow-0.2"): -0.3}
    made = [replace(row, measured=predict(row, true_factors)) for row in all_rows()]
    factors = fit(made)
    assert score(predict(row, factors) / row.measured - 1 for row in made).p90 < 0.02


def test_left_out_rows_do_not_matter() -> None:
    """Conservation: a chip's own measurements, a hundred times too long, change nothing of what is predicted for it without them."""
    few = [row for row in all_rows() if row.stack == "ngc-pytorch-22.09"]
    spoilt = [replace(row, measured=100 * row.measured) if row.chip == "h100" else row for row in few]
    honest, robust = (
        [prediction.predicted for prediction in leave_out(kind, lambda row: row.chip) if prediction.row.chip == "h100"]
        for kind in (few, spoilt)
    )
    assert honest == pytest.approx(robust, rel=0.01)


@pytest.mark.nightly
def test_the_catalog_carries_the_factors_that_the_rows_give() -> None:
    """GPU parts and stacks against a fit of the same rows; the two differ where one part represents boards of several powers."""
    factors = fit(all_rows())
    differences = np.abs([predicted_time(row.record) / predict(row, factors) - 1 for row in all_rows()])
    assert np.median(differences) < 0.01 and np.percentile(differences, 90) < 0.02


def test_the_files_carry_the_values_of_the_fit() -> None:
    """Oracle: writing the factors of the same rows into the files of GPUs and stacks again changes none of them by more than rounding."""
    factors = fit(all_rows())
    compared = 0
    for folder, of in FITTED_FOLDERS:
        for path in all_files(folder).values():
            text = path.read_text(encoding="utf-8")
            for key, value in of(path, factors).items():
                written = re.findall(rf"(?m)^{key}: ([0-9.e+-]+)", text)  # none where a board takes it from the one that it extends
                assert all(float(each) == pytest.approx(float(value.split()[0]), rel=0.02) for each in written), f"{path}: {key}"
                compared += len(written)
    assert compared > 100


@pytest.mark.nightly
def test_known_gpus_models_and_stacks() -> None:
    """The simulator's own plan over the rows it was fitted to, and over the rows of the other role, which it was not.

    Those are 12 of Gavel's (instances and boards unknown, real data), 6 of NVIDIA's whose batch is not in the table, 10 of a T4 at small
    batches, and 35 of an RTX 3090, a GPU without fitted rows, of which half keep channels first; most of its models have no fitted row.
    """
    reached = {("compute", IMAGES): (0.062, 0.191), ("compute", REST): (0.058, 0.164)}
    reached |= {("prediction", IMAGES): (0.106, 0.202), ("prediction", REST): (0.075, 0.159)}
    for (role, family), figures in reached.items():
        of_role = [row for row in all_rows() if row.record.role == role and row.family == family]
        score_of_role = score(predicted_time(row.record) / row.measured - 1 for row in of_role)
        assert (score_of_role.median, score_of_role.p90) == pytest.approx(figures, abs=0.015)


def test_other_batches_from_one_measured_point() -> None:
    """Aim: 6% median. Reached 4.1% of all; CIFAR-10, whose small batches the host bounds and whose large ones throttle a T4, 4%.

    Worst: ResNet-50 of adaptdl in 16 bits, whose small batches take up to 31% longer than predicted.
    """
    predictions = predict_from_one_point(all_rows())
    assert score(prediction.error for prediction in predictions).median == pytest.approx(0.041, abs=0.01)
    small = [prediction for prediction in predictions if prediction.row.record.workload == "cifar10-resnet18"]
    rest = [prediction for prediction in predictions if prediction.row.record.workload != "cifar10-resnet18"]
    assert score(prediction.error for prediction in small).median == pytest.approx(0.044, abs=0.015)
    assert errors(rest, IMAGES) == pytest.approx((0.042, 0.106), abs=0.015)
    assert errors(rest, REST) == pytest.approx((0.038, 0.157), abs=0.015)
    assert all(errors(rest, family)[0] < 0.5 * baseline_median(rest, family) + 0.01 for family in (IMAGES, REST))


def test_other_batches_have_no_part_in_their_own_prediction() -> None:
    """Conservation: measured times of all but the middle batch of each sweep, a hundred times too long, change no prediction."""
    few = [row for row in all_rows() if row.stack in ("torch-0.3", "mxnet-1.6-gluon", "oneflow-0.2")]
    honest = predict_from_one_point(few)
    predicted_records = {id(prediction.row.record) for prediction in honest}
    spoilt = predict_from_one_point(
        [replace(row, measured=100 * row.measured) if id(row.record) in predicted_records else row for row in few]
    )
    assert honest and [one.predicted for one in spoilt] == [one.predicted for one in honest]


def test_stacks_of_the_first_tensor_core_kernels_tell_of_each_other() -> None:
    """Their 16-bit rows take longer by a factor they share, which a stack of them that was left out has as well; no other stack has it."""
    factors = fit([row for row in all_rows() if row.stack != "tensorflow-1.5"])
    assert factors["tensor", FIRST_KERNELS] > 0.2
    stacks = {row.stack for row in all_rows() if (("tensor", FIRST_KERNELS), ROW_FACTORS.index("tensor")) in factor_keys(row)}
    assert stacks == {stack for stack in FIRST_STACKS if any(row.stack == stack for row in all_rows())}


def test_slopes_are_those_of_the_time() -> None:
    """Oracle: differences of the time itself, for every kind of factor; a bound that changes hands within the step may differ."""
    local, step = np.full(len(ROW_FACTORS), 0.05), 1e-6
    for row in all_rows()[::20]:
        there, slope = step_time_and_slopes(row, local)
        moved = [np.log(step_time(row, local + step * unit) / there) / step for unit in np.eye(len(ROW_FACTORS))]
        assert slope == pytest.approx(np.array(moved), abs=0.01)


@pytest.mark.nightly
def test_a_chip_that_was_never_fitted() -> None:
    """Aims: 10 and 25% for images in FP32; 18 and 45% for the rest, whose stack is then often unknown too. Reached: 10, 28, 9, 22."""
    predictions = leave_out(all_rows(), lambda row: row.chip)
    assert errors(predictions, IMAGES) == pytest.approx((0.096, 0.276), abs=0.02)
    assert errors(predictions, REST) == pytest.approx((0.085, 0.223), abs=0.02)
    assert all(2 * errors(predictions, family)[0] < baseline_median(predictions, family) for family in (IMAGES, REST))


@pytest.mark.nightly
def test_an_architecture_newer_than_any_fitted() -> None:
    """Aims: 10 and 25%. Reached: 12 and 27% of images in FP32, 11 and 29% of the rest; H100, with all older ones fitted, 11% too fast."""
    predictions = predict_from_older(all_rows())
    assert errors(predictions, IMAGES) == pytest.approx((0.119, 0.267), abs=0.02)
    assert errors(predictions, REST) == pytest.approx((0.112, 0.294), abs=0.02)
    assert all(2 * errors(predictions, family)[0] < baseline_median(predictions, family) for family in (IMAGES, REST))
    newest = [prediction.error for prediction in predictions if prediction.left_out == "9.0"]
    assert len(newest) >= 40 and np.median(newest) == pytest.approx(-0.106, abs=0.02)


def test_what_is_newer_does_not_matter() -> None:
    """Conservation: measurements of an architecture, a hundred times too long, change nothing of what is predicted for it or older ones."""
    few = [row for row in all_rows() if row.stack in ("torch-1.4-ddp", "ngc-pytorch-20.10")]
    spoilt = [replace(row, measured=100 * row.measured) if row.capability == "8.0" else row for row in few]
    honest, robust = ([each.predicted for each in predict_from_older(kind) if float(each.left_out) <= 8.0] for kind in (few, spoilt))
    assert honest and honest == pytest.approx(robust, rel=1e-9)


@pytest.mark.nightly
def test_a_model_that_was_never_fitted() -> None:
    """Aims as above. Reached: 10 and 24%; 9 and 31%, worst ResNet-50, without which few rows tell how tensor cores do convolutions."""
    predictions = leave_out(all_rows(), lambda row: row.record.workload)
    assert errors(predictions, IMAGES) == pytest.approx((0.101, 0.243), abs=0.02)
    assert errors(predictions, REST) == pytest.approx((0.086, 0.307), abs=0.02)
    assert all(2 * errors(predictions, family)[0] < baseline_median(predictions, family) for family in (IMAGES, REST))


@pytest.mark.nightly
def test_a_stack_that_was_never_fitted() -> None:
    """Aim without a stack factor: 18 and 45% for tensor cores and BERT. Reached: 12 and 28%; images in FP32 14 and 29%."""
    predictions = leave_out(all_rows(), lambda row: row.stack)
    assert errors(predictions, IMAGES) == pytest.approx((0.135, 0.287), abs=0.02)
    assert errors(predictions, REST) == pytest.approx((0.115, 0.281), abs=0.02)


def test_whole_networks_from_kernels_and_other_networks(v100: list[FactorRow]) -> None:
    """Forward and backward of three networks on one V100 in FP32 (u39kun), none of them among the fitted: off by 18, 0 and 10%."""
    nets = {row.record.workload for row in v100}
    factors = fit([row for row in all_rows() if row.record.workload not in nets])
    assert all(abs(predict(row, factors) / row.measured - 1) < 0.2 for row in v100)


@pytest.fixture
def v100() -> list[FactorRow]:
    v100_rows = [row for row in all_rows() if row.stack == "torch-0.3" and row.record.hardware == "v100-sxm2-16gb" and row.family == IMAGES]
    assert {row.record.workload for row in v100_rows} == {"vgg16", "resnet152", "densenet161"}
    return v100_rows
