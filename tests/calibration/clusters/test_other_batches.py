"""Compute at batches beyond those measured: made steps give back what they were made of."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.clusters.compute_scale import measured_scale
from calibration.clusters.evaluate import Evaluator, predict
from calibration.clusters.other_batches import step_model
from calibration.clusters.scatter import LEAST_NOISE
from calibration.questions import question
from tests.calibration.runs import record, simulated

LAYERS = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8, unique=True)


@given(st.floats(0.0, 0.5), st.floats(0.8, 1.25))
def test_a_constant_and_a_rate_are_found_again(constant: float, rate: float) -> None:
    """By construction, except for the pull of the rate's prior: layers of very different sizes determine both."""
    layers = [0.02, 0.1, 0.5, 2.0, 8.0]
    model = step_model(layers, [constant + rate * each for each in layers])
    assert model.rate == pytest.approx(rate, rel=0.02)
    assert model.constant == pytest.approx(constant, abs=0.01)
    growth, spread = model.growth(20.0, 8.0)
    assert growth == pytest.approx((constant + 20.0 * rate) / (constant + 8.0 * rate), rel=0.01) and LEAST_NOISE <= spread < 2 * LEAST_NOISE


@given(LAYERS, st.data())
def test_time_grows_with_the_layers_and_never_faster_than_they_do(layers: Sequence[float], data: st.DataObject) -> None:
    measured = [data.draw(st.floats(0.3, 5.0)) * each for each in layers]
    model = step_model(layers, measured)
    assert model.constant >= 0.0 and model.rate >= 0.0 and model.time(min(layers)) > 0.0
    for more in (1.5, 4.0):
        growth, spread = model.growth(more * max(layers), max(layers))
        assert 1.0 <= growth <= more * (1.0 + 1e-9) and spread >= LEAST_NOISE


@pytest.mark.parametrize("layers", [(0.1, 1.0), (0.1, 0.2)])
def test_where_a_larger_batch_was_faster_no_time_falls_and_intervals_are_wide(layers: tuple[float, float]) -> None:
    """A line through both points falls, and is below zero further on."""
    model = step_model(layers, [0.5, 0.3])
    growth, spread = model.growth(10.0, layers[1])
    assert min(model.constant, model.rate) >= 0.0
    assert 1.0 <= growth <= 10.0 / layers[1]
    assert spread > 0.2


@given(st.floats(0.7, 1.4))
def test_steps_that_are_all_layers_keep_their_factor(factor: float) -> None:
    """Far from what is measured an interval widens."""
    layers = [0.1, 0.2, 0.4]
    model = step_model(layers, [factor * each for each in layers])
    near, far = model.growth(0.8, 0.4), model.growth(0.001, 0.1)
    assert near[0] == pytest.approx(2.0, rel=0.05) and near[1] < far[1]


def test_one_step_is_shared_between_constant_and_rate_by_the_priors() -> None:
    """By hand: nothing pulls the constant, so it takes all that is beyond a rate of 1; it is never below 0."""
    model = step_model([1.0], [2.0])
    assert model.rate == pytest.approx(1.0) and model.constant == pytest.approx(1.0)
    faster = step_model([1.0], [0.8])  # by hand, constant 0, n = 0.8 LEAST_NOISE: r = (0.8 / n^2 + 1 / 0.15^2) / (1 / n^2 + 1 / 0.15^2)
    noise = 0.8 * LEAST_NOISE
    assert faster.constant == 0.0
    assert faster.rate == pytest.approx((0.8 / noise**2 + 1 / 0.15**2) / (1 / noise**2 + 1 / 0.15**2), rel=1e-3)


class Beyond(NamedTuple):
    """A batch, and seconds of each step that no layer takes."""

    batch: int
    constant: float


@pytest.mark.parametrize("case", [Beyond(64, 0.05), Beyond(2, 0.05), Beyond(64, 0.0)])
def test_a_batch_beyond_those_measured_takes_the_constant_as_well(case: Beyond) -> None:
    """The simulator made the steps, to which a constant was added: the factor makes it say the same of another batch."""
    evaluator = Evaluator(processes=1)
    rows = simulated([record(placement="1", batch_per_gpu=batch, role="compute") for batch in (8, 16, 32)])
    slow = [replace(row, record=replace(row.record, step_time=row.step_time + case.constant)) for row in rows]
    run_question = question(record(placement="1", batch_per_gpu=case.batch))
    scale = measured_scale(slow, evaluator, None, [run_question])
    factor = scale.factor(run_question)
    assert factor is not None
    assert predict(run_question, factor).step == pytest.approx(predict(run_question).step + case.constant, rel=0.02)
    assert scale.deviation(run_question) >= LEAST_NOISE and scale.deviation(rows[0]) == 0.0
    assert math.isclose(scale.factor(rows[0]) or 0.0, (measured_scale(slow, evaluator).factor(rows[0]) or 1.0))
