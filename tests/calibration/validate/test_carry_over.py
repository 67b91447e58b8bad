"""Are values that one cluster takes from others chosen without the scored one? Oracle: medians and coverage of made-up rows, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.cli import main
from calibration.clusters.cluster_fit import EXCHANGE_DEVIATION, JOB_WIDTH, UNSEEN_JOB_DEVIATION
from calibration.questions import question
from calibration.validate.carry_over import (
    KINDS,
    SINGLE_SOURCE_WIDTH,
    constants_without,
    few_sources_factor,
    interval_score,
    widening,
)
from calibration.validate.groups import listed_names
from calibration.validate.scores import ScoredRow
from calibration.validate.validation import ClusterOutcome, Validation
from sim.spec.yaml import SpecError
from tests.calibration.runs import record


def row(source: str, cluster: str, log_error: float, loss: float | None = None) -> ScoredRow:
    run_question = question(record(placement="2", source=source))
    run_question = replace(run_question, record=replace(run_question.record, hardware=cluster))
    spread = math.hypot(0.01, EXCHANGE_DEVIATION * 0.4)  # 40% of the step waits for others
    names = ("zero_shot", "calibrated", "free_communication")
    return ScoredRow(
        run_question, 0.5, dict.fromkeys(names, math.exp(log_error)), dict.fromkeys(names[:2], spread), wait_share=0.4, log_slowdown=loss
    )


def validation(rows: list[ScoredRow], fitted: list[ScoredRow]) -> Validation:
    return Validation((ClusterOutcome("any", None, None, tuple(rows), tuple(fitted)),), ())  # type: ignore[arg-type]


def test_the_usual_loss_and_the_form_are_those_of_other_sources() -> None:
    rows = [row("mine", "a", 0.5)] * 20 + [row("other", "b", 0.08)] * 20
    fitted = [row("mine", "a", 0.0, 0.09), row("other", "b", 0.0, 0.01), row("other", "b", 0.0, 0.03), row("third", "c", 0.0, 0.04)]
    without = constants_without(validation(rows, fitted), "mine")
    assert without.usual_slowdown == pytest.approx(0.03)  # of two clusters: 2% and 4%
    # all errors are 8%; the shortest intervals that hold them score best: the least form on the grid with 1.96 hypot(0.01, form 0.4) > 0.08
    assert without.exchange_deviation == pytest.approx(0.1) and without.unseen_job_deviation == UNSEEN_JOB_DEVIATION
    # 60% is the widest on the grid, and does not hold errors of 50%
    assert constants_without(validation(rows, fitted), "other").exchange_deviation == pytest.approx(0.6)
    everything = constants_without(validation(rows, fitted), "")  # the middle of 9%, 2% and 4%
    assert everything.usual_slowdown == pytest.approx(0.04)


def test_the_width_of_a_jobs_own_loss_is_that_within_clusters_of_other_sources() -> None:
    """Oracle: losses drawn around the mean of each of 100 clusters; how much the means differ does not count."""
    drawn = np.random.default_rng(3)
    fitted = [row("other", f"c{number}", 0.0, 0.1 * number + 0.03 * float(drawn.normal())) for number in range(100) for _ in range(4)]
    fitted += [row("mine", "a", 0.0, loss) for loss in (0.0, 0.5, 1.0)]
    assert constants_without(validation([], fitted), "mine").job_width == pytest.approx(0.03, rel=0.1)
    alone = [row("other", "b", 0.0, 0.01), row("third", "c", 0.0, 0.04)]  # of two jobs on two clusters nothing follows
    assert constants_without(validation([], alone), "mine").job_width == JOB_WIDTH
    assert constants_without(validation([], [*alone, row("third", "c", 0.0, 0.05)]), "").job_width == pytest.approx(0.01 / math.sqrt(2))


def test_the_width_of_a_clusters_loss_is_that_between_clusters_of_other_sources() -> None:
    """Lambda's rows alone determine its prior. Oracle: losses of 2, 4 and 6% have a standard deviation of 2%; three sources are few."""
    fitted = [row("lambda", "a", 0.0, 0.5), *(row(f"s{loss}", f"c{loss}", 0.0, loss) for loss in (0.02, 0.04, 0.06))]
    widths = dict(constants_without(validation([], fitted), "lambda").widths)
    assert widths["distributed"] == pytest.approx(0.02 * few_sources_factor(3))
    assert "distributed" not in dict(constants_without(validation([], fitted), "s0.02").widths)
    assert dict(constants_without(validation([], fitted[:2]), "lambda").widths)["distributed"] == SINGLE_SOURCE_WIDTH


def test_the_form_is_that_with_which_exposed_communication_was_drawn() -> None:
    """Oracle: 30 clusters whose errors are drawn with a form of 0.25; half of the rows wait for 5 to 80% of a step, the others for 1%.

    A required coverage would choose a narrower one: rows that hardly wait lie inside their intervals whatever the form is.
    """
    drawn = np.random.default_rng(2)
    half = 1.96 * math.hypot(0.01, EXCHANGE_DEVIATION * 0.4)
    rows = []
    for number in range(30):
        for wait in (*drawn.uniform(0.05, 0.8, 20), *[0.01] * 20):
            error = float(drawn.normal(0.0, math.hypot(0.01, 0.25 * wait)))
            deviations = {"calibrated": math.hypot(0.01, EXCHANGE_DEVIATION * wait)}
            rows.append(replace(row("s", f"c{number}", error), wait_share=float(wait), deviations=deviations))
    assert constants_without(validation(rows, []), "").exchange_deviation == pytest.approx(0.25, abs=0.026)
    # by hand: a length of 2 half, and one of two rows lies 0.1 outside, which costs 40 times 0.1
    [inside, outside] = [row("s", "c", 0.0), row("s", "c", half + 0.1)]
    assert interval_score([inside, outside], EXCHANGE_DEVIATION, 0.0) == pytest.approx(2.0 * half + 40.0 * 0.1 / 2.0)


def test_priors_that_rest_on_one_source_are_wide_without_it() -> None:
    outcome = validation([row("mine", "a", 0.0)], [])
    assert {source: dict(constants_without(outcome, source).widths) for source in ("pollux", "sia", "lambda", "dlperf")} == {
        "pollux": {"pair": 0.7},
        "sia": {"total": 0.7},
        "lambda": {"distributed": 0.7},
        "dlperf": {},
    }


def test_a_spread_that_few_sources_tell_is_wider_by_what_their_number_leaves_open() -> None:
    """Oracle: sources that differ by a normal, drawn many times; 95% of next sources lie inside intervals from the spread of a few."""
    drawn = np.random.default_rng(1)
    for sources in (2, 4, 8):
        observed = drawn.standard_normal((20_000, sources - 1))  # as many as differ freely
        spread = np.sqrt(np.mean(observed**2, axis=1))
        inside = np.abs(drawn.standard_normal(20_000)) <= 1.96 * few_sources_factor(sources) * spread
        assert np.mean(inside) == pytest.approx(0.95, abs=0.006)
    assert few_sources_factor(1) == few_sources_factor(2) > few_sources_factor(3) > few_sources_factor(300) == pytest.approx(1.0, abs=0.01)


def test_intervals_are_widened_by_what_a_new_cluster_would_miss() -> None:
    """Oracle: clusters in turn left out of 40 that miss differently; 95% of their rows lie inside. Few clusters say the largest miss."""
    half = 1.96 * math.hypot(0.01, EXCHANGE_DEVIATION * 0.4)
    every = {f"c{number}": [row("s", f"c{number}", half * (0.05 * number + 0.01 * place)) for place in range(5)] for number in range(40)}
    inside = []
    for name, mine in every.items():
        factor = widening([one for other, rows in every.items() if other != name for one in rows])
        inside += [abs(math.log(one.predictions["calibrated"])) <= factor * half for one in mine]
    assert 0.95 <= sum(inside) / len(inside) < 0.99
    few = [one for number in range(30, 35) for one in every[f"c{number}"]]
    assert widening(few) == pytest.approx(0.05 * 34 + 0.04)
    assert widening(every["c3"]) == widening([]) == 1.0  # never narrower than the model says
    wide = [replace(one, deviations={"calibrated": 2.0 * one.deviations["calibrated"]}, widening=2.0) for one in few]
    assert widening(wide) == pytest.approx(widening(few))


def test_a_table_without_larger_clusters_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ended in a KeyError."""
    (tmp_path / "runs.csv").write_text("machine,model,nodes,batch_size_per_gpu,step_time_ms\np3.8xlarge,resnet18,1,32,100\n")
    assert main(["validate", str(tmp_path / "runs.csv"), "-j", "1", "--left-out", "nodes,source"]) == 0
    printed = capsys.readouterr().out
    assert "3+ nodes left out: no cluster has rows on both sides" in printed and "source left out: overall" in printed


def test_what_can_be_left_out() -> None:
    assert listed_names("--left-out", "source, nodes", KINDS) == ["source", "nodes"]
    with pytest.raises(SpecError, match="'gpus' is unknown; choose from source,nodes,small-batches,large-batches"):
        listed_names("--left-out", "gpus", KINDS)
