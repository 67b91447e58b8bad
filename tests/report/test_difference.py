"""Oracle: what was changed by hand between two runs, and the two documents themselves."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.cli import main
from sim.documents import document
from sim.report.difference import difference, difference_text, read_document
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario
from sim.study.whole_job import plan_of

BEFORE = Scenario("p3.8xlarge", "vgg11", nodes=2)


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return document(BEFORE)


def said(before: dict[str, Any], after: dict[str, Any]) -> str:
    return difference_text(difference(before, after), before, after)


@pytest.mark.parametrize(
    ("change", "inputs", "words"),
    [
        (Scenario("p3.8xlarge", "vgg11", nodes=2, market="spot"), {"market": ["on_demand", "spot"]}, "only because of the price"),
        (
            Scenario("p3.8xlarge", "vgg11", ("price.on_demand=20 USD/h",), nodes=2),
            {"price.on_demand": ["12.24 USD/h", "20 USD/h"], "price.date": ["2026-07-20", ""]},
            "An epoch costs",
        ),
        (
            Scenario("p3.8xlarge", "vgg11", ("node.nic.bandwidth=100 Gbps",), nodes=2),
            {"node.nic.bandwidth": ["10 Gbps", "100 Gbps"]},
            "shorter",
        ),
        (
            Scenario("p3.8xlarge", "vgg11", ("node.gpu.power=200 W",), nodes=2),
            {"node.gpu.power": ["300 W", "200 W"]},
            "1 input differs, but the results are the same.",
        ),
        (Scenario("p3.8xlarge", "vgg11", nodes=2, seed=3), {"seed": [0, 3]}, "1 input differs, but the results are the same."),
        (Scenario("p3.8xlarge", "vgg11", nodes=3), {"nodes": [2, 3], "gpus": [8, 12]}, "network"),
        (Scenario("p3.8xlarge", "vgg11", nodes=2, batch=32), {"batch_per_gpu": [80, 32]}, "compute"),
    ],
)
def test_names_what_was_changed_and_nothing_else(
    before: dict[str, Any], change: Scenario, inputs: dict[str, list[Any]], words: str
) -> None:
    after = document(change)
    assert difference(before, after)["inputs"] == inputs
    text = said(before, after)
    assert words in text and "are the same." not in text.replace("the results are the same.", "")
    assert all(f"{key}: {old} -> {new}" in text for key, (old, new) in inputs.items())


def test_causes_explain_the_whole_change_of_the_step(before: dict[str, Any]) -> None:
    after = document(Scenario("p3.8xlarge", "vgg11", ("node.nic.bandwidth=100 Gbps",), nodes=2))
    changes = difference(before, after)
    assert sum(changes["stalls_s"].values()) == pytest.approx(after["step_time_s"] - before["step_time_s"], rel=1e-5)
    assert changes["cause"] == "network"
    assert changes["speedup"] == pytest.approx(before["step_time_s"] / after["step_time_s"])
    assert changes["changed"] == ["step_time_s", "epoch_time_s", "first_epoch_time_s", "cost_per_epoch_usd"]


def test_a_step_of_other_samples_is_no_speedup(before: dict[str, Any]) -> None:
    """Oracle: the documents' samples per second."""
    after = document(Scenario("p3.8xlarge", "vgg11", nodes=2, batch=32))
    change = 100 * (after["throughput_samples_per_s"] / before["throughput_samples_per_s"] - 1)
    assert change < 0 and f"; samples per second change by {change:+.1f}%." in said(before, after)
    assert "samples per second" not in said(before, document(Scenario("p3.8xlarge", "vgg11", ("node.nic.bandwidth=100 Gbps",), nodes=2)))


PIPELINE = ("training.parallel.tensor=8", "training.parallel.pipeline=2")


@pytest.mark.parametrize(("older", "newer"), [
    ((*PIPELINE, "training.gradient_accumulation_steps=4"), (*PIPELINE, "training.gradient_accumulation_steps=8")),
    (("training.parallel.shard=parameters",), (*PIPELINE, "training.gradient_accumulation_steps=8")),
])  # fmt: skip
def test_waiting_for_other_stages_is_one_of_the_causes(older: tuple[str, ...], newer: tuple[str, ...]) -> None:
    old, new = (document(Scenario("hgx-h100", "llama-3.1-8b", overrides, nodes=2)) for overrides in (older, newer))
    changes = difference(old, new)
    assert sum(changes["stalls_s"].values()) == pytest.approx(new["step_time_s"] - old["step_time_s"], rel=1e-5)
    assert changes["stalls_s"]["pipeline"] == pytest.approx(new["stalls_s"]["pipeline"] - old["stalls_s"]["pipeline"]) != 0
    assert any(line.split()[:1] == ["pipeline"] for line in difference_text(changes, old, new).splitlines())


def test_plain_data_parallelism_has_no_pipeline(before: dict[str, Any]) -> None:
    assert "pipeline" not in difference(before, before)["stalls_s"] and "pipeline" not in said(before, before)


def test_whole_jobs_of_other_lengths(before: dict[str, Any]) -> None:
    short, long = (document(replace(BEFORE, plan=plan_of(epochs, None))) for epochs in (2, 10))
    changes = difference(short, long)
    assert changes["inputs"] == {"epochs": [2.0, 10.0]}
    assert changes["changed"] == ["whole_job_time_s", "whole_job_cost_usd"]
    longer = long["whole_job"]["cost_usd"] - short["whole_job"]["cost_usd"]
    assert f"and costs ${longer:.2f} more." in said(short, long)
    assert difference(document(replace(BEFORE, plan=plan_of(None, 2.0))), short)["inputs"] == {"epochs": [None, 2.0], "hours": [2.0, None]}
    assert difference(before, short)["changed"] == ["whole_job_time_s", "whole_job_cost_usd"]  # asked for in one of them


def test_a_disk_that_only_the_first_epoch_meets() -> None:
    plain = document(Scenario("p3.16xlarge", "vgg11"))
    slow = document(Scenario("p3.16xlarge", "vgg11", ("node.storage.volume=gp3",)))
    text = said(plain, slow)
    assert "The step time is the same." in text and "The first epoch is " in text and "per step: fetch +" in text
    changes = difference(plain, slow)
    lost = slow["first_epoch"]["step_time_s"] - plain["first_epoch"]["step_time_s"]
    assert sum(changes["first_epoch_stalls_s"].values()) == pytest.approx(lost, rel=1e-6)


def test_rounding_is_no_difference(before: dict[str, Any]) -> None:
    after = deepcopy(before)
    after["step_time_s"] *= 1 + 1e-12
    after["cost_per_epoch_usd"] *= 1 - 1e-12
    after["stalls_s"]["compute"] += 1e-12 * after["step_time_s"]
    assert said(before, after).endswith("The two runs are identical.")
    assert said(before, deepcopy(before)).endswith("The two runs are identical.")


def test_files_that_differ_in_no_value_are_said_to(before: dict[str, Any]) -> None:
    after = deepcopy(before)
    after["inputs_sha256"]["hardware"] = "0" * 64
    assert "hardware: the file differs only in its layer table" in said(before, after)


def test_a_price_that_is_not_known_and_a_document_without_values(before: dict[str, Any]) -> None:
    after = deepcopy(before)
    after["cost_per_epoch_usd"] = None
    del after["inputs"]
    assert "The cost of an epoch is available only before." in said(before, after)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"stalls_s": {}, "step_time_s": 1}', '{"jobs": []}', '{"step_time_s": "1", "stalls_s": {"compute": 1}}', "\ufeffno"],
)
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(SpecError, match="write one with: python -m sim run"):
        read_document(file)


def test_nobody_is_told_to_write_over_a_description(tmp_path: Path) -> None:
    file = tmp_path / "my-box.yaml"
    file.write_text("name: my-box")
    with pytest.raises(SpecError, match=r"--json > run\.json"):
        read_document(file)


def test_reads_what_run_wrote(tmp_path: Path, before: dict[str, Any]) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(before))
    assert read_document(file) == before


def test_a_document_without_a_price_is_compared_as_one_whose_price_is_unknown(tmp_path: Path, before: dict[str, Any]) -> None:
    bare = {key: value for key, value in before.items() if key != "cost_per_epoch_usd"}
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    (tmp_path / "whole.json").write_text(json.dumps(before))
    command = ["diff", str(tmp_path / "bare.json"), str(tmp_path / "whole.json"), "--html", str(tmp_path / "page.html"), "-q"]
    assert main(command) == 0
    assert "available only after" in (tmp_path / "page.html").read_text()


def test_a_job_that_took_no_time_has_no_share(before: dict[str, Any]) -> None:
    jobs = [{**before, "whole_job": {"time_s": seconds, "epochs": 1.0, "given": "epochs"}} for seconds in (0.0, 60.0)]
    assert "The whole job is 1 min longer." in said(*jobs)
