"""Which errors of power and memory does a document quote? Oracle: the measured rows, predicted again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calibration.energy import LEAST_ROWS, expected_errors
from calibration.llm.case import Case, describe
from calibration.llm.published import memory_errors
from calibration.llm.table import read_table
from calibration.longrun import RECORDS
from sim.report.layouts.layout import layout_document, layout_text
from sim.report.layouts.layout_error import SUMMARY as LLM
from sim.report.layouts.memory_error import memory_error
from sim.report.power_error import SUMMARY as POWER
from sim.report.power_error import brief_power_error, power_error, power_error_text
from sim.report.validated import validated_groups, validated_part
from sim.spec.catalogue import roots
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
    assert f"one in ten above {100 * quoted['p90']:.0f}%" in power_error_text(quoted)


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
    assert "error of node power: median 6%" in text
