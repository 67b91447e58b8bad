"""Do priors say what calibration rows say? Oracle: the committed records, less their prediction rows."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median

import pytest

from calibration.clusters.cluster_fit import prior_model
from calibration.clusters.compute_scale import measured_scale
from calibration.clusters.evaluate import Evaluator
from calibration.clusters.network_parameters import USUAL_SLOWDOWN
from calibration.questions import Folders, questions
from calibration.run_records import COMMITTED_RUNS, read_records

SOURCES = ("lambda", "tf2017", "dlperf")
"""Those with rows on one GPU and ``network`` rows on several."""


@pytest.mark.nightly
def test_the_usual_loss_beside_others_is_the_median_of_clusters() -> None:
    """Steps that hardly wait for the exchange, relative to those of one GPU, against the prior's center."""
    records = [row for row in read_records(COMMITTED_RUNS).records if row.source in SOURCES]
    run_questions = questions([row for row in records if row.role != "prediction"], Folders())
    evaluator, losses = Evaluator(processes=1), defaultdict(list)
    for name in dict.fromkeys(row.record.hardware for row in run_questions):
        gpus = {row.gpu.name for row in run_questions if row.record.hardware == name}
        scale = measured_scale([row for row in run_questions if row.record.role == "compute" and row.gpu.name in gpus], evaluator)
        network = [
            row for row in run_questions if row.record.hardware == name and row.record.role == "network" and scale.needs_slowdown(row)
        ]
        model = prior_model(scale, network)
        for row, prediction in zip(network, evaluator.predict_all([model.simulated_case(row) for row in network]), strict=True):
            if prediction.exposed < 0.03 * prediction.step:
                losses[name].append(math.log(row.step_time / prediction.step))
    assert len(losses) >= 20
    assert median(map(median, losses.values())) == pytest.approx(0.0, abs=5e-4), "the prior's center is in the predictions"
    assert 0.0 < USUAL_SLOWDOWN < 0.03
