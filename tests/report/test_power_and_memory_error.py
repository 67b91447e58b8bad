"""Which errors of power and memory does a document quote? Oracle: the measured rows, predicted again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calibration.energy import LEAST_ROWS, expected_errors
from calibration.llm.case import Case
from calibration.llm.describe import describe
from calibration.llm.published import memory_errors
from calibration.llm.table import read_table
from calibration.longrun import RECORDS
from sim.report.layouts.layout import layout_document, layout_text
from sim.report.layouts.layout_error import SUMMARY as LLM
from sim.report.layouts.memory_error import memory_error
from sim.report.power_error import SUMMARY as POWER
from sim.report.power_error import brief_power_error, energy_error_words, energy_intervals, power_error, power_error_text, with_energy_error
from sim.report.validated import validated_groups, validated_part
from sim.spec.catalog import roots
from sim.study.layout import layout_answer
from sim.study.scenario import Scenario


def committed(summary: str) -> Any:
    return json.loads(next(root / summary for root in roots() if (root / summary).is_file()).read_text(encoding="utf-8"))


def test_errors_of_power_are_those_of_the_measured_rows() -> None:
    assert committed(POWER) == json.loads(json.dumps(expected_errors()))
    assert all(group["points"] >= LEAST_ROWS for group in validated_groups(POWER).values())


@pytest.mark.nightly
def test_errors_of_memory_are_those_of_the_measured_rows() -> None:
    described = [case for case in map(describe, read_table(RECORDS / "llm" / "training.csv")) if isinstance(case, Case)]
    assert committed(LLM)["memory"] == json.loads(json.dumps(memory_errors(described)))


def test_a_gpu_without_measured_power_has_no_error() -> None:
    assert power_error({"A100-SXM4-80GB"}, by_kernel=True) is None
    assert power_error({"H100-SXM5-80GB"}, by_kernel=False) is None
    assert power_error({"H100-SXM5-80GB", "V100-PCIe-16GB"}, by_kernel=True) is None
    assert "unknown" in brief_power_error(None)
    quoted = power_error({"H100-SXM5-80GB"}, by_kernel=True)
    assert quoted is not None
    assert (quoted["of"], quoted["points"]) == ("node_power_w", 5)
    assert f"one in ten above {100 * quoted['p90']:.0f}%" in brief_power_error(quoted)


def test_a_framework_without_measured_memory_has_no_error() -> None:
    assert memory_error("fsdp1") is None
    assert set(validated_part("memory", LLM)) == {"deepspeed", "fsdp2", "megatron", "nanotron"}


def test_a_layout_quotes_both() -> None:
    answer = layout_answer(Scenario("hgx-h100", "llama-3.2-1b", nodes=1, layout=(("--shard", "parallel.shard", "parameters"),)))
    document = layout_document(answer)
    assert document["memory_expected_error"]["sources"] == ["torchtitan"]
    assert document["energy"]["expected_error"]["gpu"] == "H100-SXM5-80GB"
    text = layout_text(answer.run, document, False)
    assert "12 measured runs of torchtitan" in text
    assert "error of node power: median 3%" in text


def test_energy_and_co2_are_quoted_with_all_errors() -> None:
    """Oracle: the ends times the prediction; errors that do not count leave narrower intervals."""
    error = power_error({"H100-SXM5-80GB"}, by_kernel=True)
    step, grid = {"measured_over_predicted_95": {"low": 0.8, "high": 1.3}}, {"assumed": False, "kg_per_kwh": 0.4}
    energy = with_energy_error({"kwh_per_epoch": 100.0, "grid": grid, "expected_error": error}, step)
    assert energy is not None
    ratios = energy["expected_error"]["true_over_predicted"]
    low, high = ratios["energy"]["interval95"]
    assert 0.6 < low < 0.8 < 1.2 < high < 1.6 and ratios["errors_of"] == ["power", "step", "PUE"]
    assert energy_error_words(energy, 10.0) in power_error_text(energy | {"kwh_per_epoch": 10.0})
    assert f"{10 * low:.3g} kWh and {10 * high:.3g} kWh with the errors of power, step and PUE" in energy_error_words(energy, 10.0)
    given = energy_intervals(error, None, grid, given_time=True)
    assert given is not None and low < given["energy"]["interval95"][0] and given["errors_of"] == ["power", "PUE"]
    unknown = energy_intervals(error, step, grid | {"assumed": True})
    assert unknown is not None and unknown["co2"]["interval95"][0] < ratios["co2"]["interval95"][0] / 2
    assert energy_intervals(error, None, grid) is None and energy_intervals(None, step, grid) is None
    assert energy_error_words({"expected_error": None}, 10.0) == ""
