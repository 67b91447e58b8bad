"""Does a report of a cluster of two kinds of node name both? Oracles: each kind's own run, and the memory of its GPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from sim.report.document import run_document
from sim.report.kinds import gpus_text, tightest_gpu
from sim.report.page.run import run_page
from sim.report.table import run_text
from sim.study.scenario import Answer, Scenario, answer


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    path: Path = tmp_path_factory.mktemp("hardware") / "mixed.yaml"
    path.write_text("name: mixed\ngroups: [{node: hgx-h100, count: 1}, {node: dgx-a100, count: 2}]\n")
    return answer(Scenario(str(path), "resnet18"))


@cache
def error(hardware: str, nodes: int) -> float:
    """The error above which one in ten is, as a run on one kind of node expects it."""
    answered = answer(Scenario(hardware, "resnet18", nodes=nodes))
    return float(run_document(answered.run, answered.inputs)["expected_error"]["p90"])


def test_both_kinds_stand_with_their_numbers_in_text_and_page(mixed: Answer) -> None:
    kinds = "8 x H100-SXM5-80GB + 16 x A100-SXM4-40GB"
    assert gpus_text(mixed.run, 0) == kinds
    document = run_document(mixed.run, mixed.inputs)
    assert f"resnet18 on mixed: {kinds}, 3 nodes" in run_text(mixed.run, document)
    page = run_page(mixed.run, document)
    assert f"{kinds} on 3 nodes" in page and "GPU A100-SXM4-40GB" in page


def test_memory_is_of_the_gpu_with_least_to_spare(mixed: Answer) -> None:
    assert tightest_gpu(mixed.run, 0).name == "A100-SXM4-40GB"
    assert "of 40 GiB, on A100-SXM4-40GB" in run_text(mixed.run, run_document(mixed.run, mixed.inputs))


def test_the_error_is_the_larger_of_both_kinds(mixed: Answer) -> None:
    expected_error = run_document(mixed.run, mixed.inputs)["expected_error"]
    assert expected_error["p90"] == max(error("hgx-h100", 3), error("dgx-a100", 3)) > min(error("hgx-h100", 3), error("dgx-a100", 3))
    assert "largest error of 2 kinds of nodes" in expected_error["basis"]


def test_equal_nodes_are_one_kind() -> None:
    answered = answer(Scenario("p3.16xlarge", "resnet18", nodes=2))
    text = run_text(answered.run, run_document(answered.run, answered.inputs))
    assert ": 16 x V100-SXM2-16GB, 2 nodes" in text and "of 16 GiB; error" in text and "kinds of node" not in text
