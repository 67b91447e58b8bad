"""Is an estimated network between nodes said where it is used, and only there? Oracle: the sources in the descriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sim.cli import main
from sim.report.assumed_network import assumed_network, network_assumption, network_notes
from sim.spec.library import load_hardware


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_only_an_estimate_that_is_used_is_said() -> None:
    lambda_labs, azure = load_hardware("gpu_8x_h100_sxm5").spec, load_hardware("nd96isr_h100_v5").spec
    assert assumed_network(lambda_labs, 2) == "8 x 400 Gbps"
    assert assumed_network(lambda_labs, 1) is None
    assert assumed_network(azure, 2) is None
    (sentence,) = network_assumption(lambda_labs, 2)
    assert "is an estimate (that of 1-Click Clusters" in sentence
    assert network_notes([{"hardware": "a"}, {"hardware": "b", "assumed_network": "1 x 10 Gbps"}]) == [
        "the network between nodes is an estimate for b (1 x 10 Gbps per node); --set node.nic.bandwidth='100 Gbps', for example"
    ]


def test_run_compare_and_recommend_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["resnet50", "gpu_8x_h100_sxm5", "p4d.24xlarge", "--nodes", "2"]
    said = "The network between nodes is an estimate for gpu_8x_h100_sxm5 (8 x 400 Gbps per node)"
    assert said in printed(["compare", *job, "--jobs", "1"], capsys)
    assert "an estimate for" not in printed(["compare", *job[:3], "--jobs", "1"], capsys)
    recommended = json.loads(printed(["recommend", *job, "--epochs", "2", "--budget-hours", "9", "--jobs", "1", "--json"], capsys))
    assert [note for note in recommended["notes"] if note.startswith(said[:1].lower() + said[1:])]
    for layout in ([], ["--shard", "parameters"]):
        model = "llama-3.2-1b" if layout else "resnet50"
        run: dict[str, Any] = json.loads(printed(["run", "gpu_8x_h100_sxm5", model, "--nodes", "2", "--fast", "--json", *layout], capsys))
        assert run["assumed_network"] == "8 x 400 Gbps"
        assert [line for line in run["assumptions"] if line.startswith("the network between nodes of gpu_8x_h100_sxm5, 8 x 400 Gbps per")]
