"""Oracles: steps are tokens over batch and sequence, each part is a run of its own, days and money add up; slips are one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cli import main
from sim.report.pretraining import pretraining_document
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.pretraining import PretrainingPart
from sim.study.scenario import Scenario
from sim.study.whole_job import plan_of

TRAINING: dict[str, Any] = {
    "batch": 1, "precision": "bf16", "optimizer": {"name": "adam"}, "stack": "megatron-core", "gradient_accumulation_steps": 4,
    "parallel": {"tensor": 2, "shard": "optimizer"},
}  # fmt: skip
RAMP = {
    "batch_ramp": {"start": 4, "step": 4, "tokens": "1B"},
    "last": [{"tokens": "2B", "sequence": 8192, "set": ["training.parallel.context=2"]}],
}


def described(folder: Path, pretraining: dict[str, Any] | None, **training: Any) -> str:
    path = folder / "job.yaml"
    rest = {} if pretraining is None else {"pretraining": pretraining}
    path.write_text(yaml.safe_dump({"name": "job", "model": "llama-3.2-1b", "dataset": "tokens", "training": TRAINING | training, **rest}))
    return str(path)


def scenario_of(workload: str, tokens: str | None = "10B", **fields: Any) -> Scenario:
    return Scenario("hgx-h100", workload, nodes=1, plan=plan_of(None, None, tokens=tokens), **fields)


def test_each_part_is_a_run_of_its_own(tmp_path: Path) -> None:
    answered = layout_answer(scenario_of(described(tmp_path, RAMP)))
    sequence = answered.run.workload.model.sequence
    assert sequence is not None
    third = pytest.approx(1e9 / 3)
    assert [(part.tokens, part.global_batch, part.sequence) for part in answered.parts] == [
        (third, 4, sequence),
        (third, 8, sequence),
        (third, 12, sequence),
        (7e9, 16, sequence),
        (2e9, 16, 8192),
    ]
    plain = described(tmp_path, None)
    alone = layout_answer(scenario_of(plain, None, global_batch=8)).run
    assert next(part.step_time for part in answered.parts if part.global_batch == 8) == alone.step_time
    longer = layout_answer(scenario_of(plain, None, global_batch=16, sequence=8192, overrides=("training.parallel.context=2",))).run
    assert answered.parts[-1].step_time == longer.step_time
    assert math.fsum(part.tokens for part in answered.parts) == pytest.approx(10e9)


def test_time_and_money_add_up() -> None:
    parts = [PretrainingPart(1e9, 4, 1000, 1000, 2.0), PretrainingPart(3e9, 16, 1000, 1000, 7.0)]
    document = pretraining_document(parts, price=0.5)
    assert document is not None
    assert document["steps"] == 250_000 + 187_500
    assert document["time_s"] == 250_000 * 2.0 + 187_500 * 7.0
    assert document["cost_usd"] == 0.5 * document["time_s"] == sum(part["cost_usd"] for part in document["parts"])
    assert PretrainingPart(1e9 + 1, 4, 1000, 1000, 2.0).steps == 250_001
    assert PretrainingPart(1e9 + 1, 4, 1000, 250, 2.0).steps == 1_000_001
    assert pretraining_document([], 0.5) is None


def test_the_whole_job_takes_what_its_parts_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = described(tmp_path, RAMP)
    assert main(["run", "p5.48xlarge", path, "--tokens", "10B", "--no-checkpoints", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    job, parts = document["whole_job"], document["pretraining"]
    assert job["time_s"] - job["parts_s"]["start_up"] == pytest.approx(parts["time_s"])
    assert job["cost_usd"] == pytest.approx(parts["cost_usd"] * job["time_s"] / parts["time_s"])
    assert main(["run", "p5.48xlarge", path, "--tokens", "10B"]) == 0
    text = capsys.readouterr().out
    assert f"in {len(parts['parts'])} parts: {parts['steps']:,} steps" in text


def test_without_a_budget_there_are_no_parts(tmp_path: Path) -> None:
    assert layout_answer(scenario_of(described(tmp_path, RAMP), None)).parts == ()
    assert layout_answer(scenario_of(described(tmp_path, None))).parts == ()


@pytest.mark.parametrize(
    ("pretraining", "training", "says"),
    [
        (RAMP | {"last": [{"tokens": "20B", "sequence": 4096}]}, {}, "--tokens 10B: the parts of pretraining already need 21B"),
        ({"batch_ramp": {"start": 6, "step": 5, "tokens": "1B"}}, {}, "global batch 6: --global-batch 6: is not divisible by 4 data"),
        ({"batch_ramp": {"start": 4, "step": 5, "tokens": "1B"}}, {}, "pretraining.batch_ramp: the batch never reaches 16 from 4 in "
        "steps of 5"),
        ({"last": [{"tokens": "1B", "sequence": 10**6}]}, {}, r"pretraining.last\[0\]: .*exceeds the model's"),
        ({"first": [{"tokens": "1B", "set": ["nothing.batch=2"]}]}, {}, r"pretraining.first\[0\]: --set nothing.batch=2: unknown key"),
        ({"last": [{"tokens": "1B", "set": ["training.batch=64"], "global_batch": 256}]}, {}, r"pretraining.last\[0\]: job does not fit"),
    ],
)  # fmt: skip
def test_slips_are_told_in_one_sentence(tmp_path: Path, pretraining: dict[str, Any], training: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        layout_answer(scenario_of(described(tmp_path, pretraining, **training)))


def test_plain_data_parallelism_refuses_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = described(tmp_path, RAMP, parallel={}, precision="amp_bf16", stack="torch-2.x-ddp")
    assert main(["run", "hgx-h100", path, "--tokens", "10B"]) == 2
    assert "simulated only for layouts" in capsys.readouterr().err


def test_weeks_of_training_sum_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = described(tmp_path, RAMP)
    quiet = ["--failure-rate", "0 /d", "--trials", "2", "--fast", "--json"]
    assert main(["goodput", "hgx-h100", path, "--nodes", "1", "--tokens", "10B", *quiet]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = layout_answer(scenario_of(path)).parts
    assert document["work_s"] == pytest.approx(sum(part.time for part in parts))
    assert document["tokens"] == pytest.approx(10e9)
    assert document["samples"] == pytest.approx(sum(part.tokens / part.sequence for part in parts))
    assert any("5 parts" in note for note in document["notes"])
    assert main(["goodput", "hgx-h100", path, "--nodes", "1", "--days", "2", *quiet]) == 0
    assert any("--tokens adds ramps" in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_failures_beside_a_run_take_the_same_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = described(tmp_path, RAMP)
    assert main(["run", "hgx-h100", path, "--nodes", "1", "--tokens", "10B", "--with-failures", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["with_failures"]["work_s"] == pytest.approx(document["pretraining"]["time_s"])


def test_weeks_of_plain_data_parallelism_refuse_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = described(tmp_path, RAMP, parallel={}, precision="amp_bf16", stack="torch-2.x-ddp")
    assert main(["goodput", "hgx-h100", path, "--nodes", "1", "--tokens", "10B"]) == 2
    assert "simulated only for layouts" in capsys.readouterr().err


def test_a_plan_says_what_it_plans_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for pretraining in (RAMP, None):
        path = described(tmp_path, pretraining)
        plan = ["plan", "hgx-h100", path, "--nodes", "1", "--tokens", "10B", "--json"]
        assert main([*plan, "--global-batch", "16"]) == 0
        said.append([text for text in json.loads(capsys.readouterr().out)["warnings"] if text.startswith("planned for")])
    assert [len(texts) for texts in said] == [1, 0]
    assert "global batch 16" in said[0][0]


def test_a_model_without_tokens_has_no_pretraining(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p3.16xlarge", "resnet50", "--set", "pretraining.batch_ramp={start: 4, step: 4, tokens: 1B}"]) == 2
    assert "no sequence" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pretraining", "tokens", "sentence"),
    [
        (
            {"batch_ramp": {"start": 4, "step": 4, "tokens": 1000}},
            "10B",
            r"pretraining\.batch_ramp, global batch 4: 333 tokens are less than one step of 32,768 \(4 samples of 8,192\)",
        ),
        (
            {"last": [{"tokens": 30_000, "sequence": 4096, "global_batch": 8}]},
            "10B",
            r"pretraining\.last\[0\]: 30,000 tokens are less than one step of 32,768 \(8 samples of 4,096\); write at least that many",
        ),
        (
            {"last": [{"tokens": "1B", "global_batch": 8}]},
            "1000100000",
            r"leave 100,000 for the workload's own steps of 131,072 each; write 1B, or 1000131072 and more",
        ),
    ],
)
def test_parts_that_do_not_make_a_step(pretraining: dict[str, Any], tokens: str, sentence: str, tmp_path: Path) -> None:
    """Oracle: samples times tokens; 16 samples of 8,192 tokens are the workload's own step."""
    with pytest.raises(SpecError, match=sentence):
        layout_answer(scenario_of(described(tmp_path, pretraining), tokens))
