"""Is what the docs and every run say about errors what validation finds? Oracle: validation run again."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from calibration.clusters.cluster_fit import SHARED_CONSTANTS
from calibration.questions import Folders, question
from calibration.run_records import COMMITTED_RUNS
from calibration.validate.published import BLOCK, DERIVED, ROOT, UNEQUAL_RUNS, summary, validated_block
from calibration.validate.scores import ScoredRow
from calibration.validate.validation import ClusterOutcome, Validation, validate
from sim.report.document import run_document
from sim.report.validated import SUMMARY
from sim.study.scenario import Scenario, answer
from tests.calibration.runs import record

FIGURE = re.compile(r"-?\d+\.\d+|\d+")


def test_errors_are_grouped_and_counted() -> None:
    run_question = question(record(placement="2", step_time=1.0))
    row = ScoredRow(run_question, 0.5, {"as_described": 1.25}, {})
    error_groups = summary(Validation((ClusterOutcome("a", None, None, tuple([row] * 5), ()),), ()))["groups"]  # type: ignore[arg-type]
    assert set(error_groups) == {"T4, host memory, torch-1.13-ddp", "T4, host memory", "host memory", "all runs"}
    assert error_groups["host memory"] | {"sources": []} == {
        "points": 5, "median": 0.25, "p90": 0.25, "low": 0.8, "high": 0.8, "most_nodes": 1, "most_gpus": 2, "sources": [],
        "most_parameters": 25557032, "shortest_step_s": 1.0, "families": ["a convolutional network"],
    }  # fmt: skip
    assert summary(Validation((ClusterOutcome("a", None, None, (row,), ()),), ()))["groups"] == {}  # type: ignore[arg-type]


def test_a_run_quotes_the_nearest_group_and_says_when_it_extrapolates() -> None:
    scenario_answer = answer(Scenario("g4dn.12xlarge", "resnet50", ("input.loader=synthetic",), nodes=64))
    expected_error = run_document(scenario_answer.run, scenario_answer.inputs)["expected_error"]
    assert expected_error["extrapolates"] and "extrapolated: 64 nodes" in expected_error["basis"]
    assert 0 < expected_error["median"] <= expected_error["p90"]
    inside = answer(replace(Scenario("dlperf", "resnet50", ("input.loader=synthetic",)), stack="torch-1.6-ddp"))
    expected_error = run_document(inside.run, inside.inputs)["expected_error"]
    assert not expected_error["extrapolates"] and "V100-SXM2-16GB, infiniband between nodes, torch-1.6-ddp" in expected_error["basis"]


def test_constants_in_use_are_those_that_the_published_validation_derived_again() -> None:
    """A change of the simulator moves them; then `calibration/clusters/priors.yaml` needs their new values, to the digits given there."""
    shown = BLOCK.search((ROOT / "docs" / "trust" / "validation.md").read_text(encoding="utf-8"))
    assert shown is not None
    for name, field in DERIVED.items():
        [line] = [line for line in shown[0].splitlines() if line.startswith(f"{name} ")]
        in_use, derived = map(float, line.removeprefix(name).split())
        assert in_use == getattr(SHARED_CONSTANTS, field), "run `make validated`"
        assert in_use == pytest.approx(derived, rel=0.03), name


@pytest.mark.nightly
def test_the_published_figures_are_those_of_validation() -> None:
    validation = validate([COMMITTED_RUNS], Folders())
    shown = BLOCK.search((ROOT / "docs" / "trust" / "validation.md").read_text(encoding="utf-8"))
    assert shown is not None
    page = iter(shown[0].splitlines())  # between lines of the table are those of what is left out, which would take minutes more
    for line in validated_block(validation, validate([UNEQUAL_RUNS], Folders())).splitlines():
        written = next((other for other in page if other[:38] == line[:38]), "")
        before, after = ([float(figure) for figure in FIGURE.findall(text)] for text in (written, line))
        assert before == pytest.approx(after, abs=0.1), f"run `make validated`: {line}"
    groups = json.loads((ROOT / SUMMARY).read_text(encoding="utf-8"))["groups"]
    fresh = summary(validation)["groups"]
    assert groups.keys() == fresh.keys()
    for name, figures in groups.items():
        assert [figures["median"], figures["p90"]] == pytest.approx([fresh[name]["median"], fresh[name]["p90"]], abs=0.001), name
