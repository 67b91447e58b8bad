"""Which files describe no decoder or contradict each other, and what does the message advise? Oracles: the programs' own key names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload

pytestmark = pytest.mark.usefixtures("no_layout_search")

T5 = {"model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 12, "num_decoder_layers": 12}
NAMED = {**T5, "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}


@pytest.mark.parametrize(
    "config", [NAMED, {**NAMED, "architectures": []}, T5, {"model_type": "t5", "d_model": 768}, {**NAMED, "num_decoder_layers": None}]
)
def test_encoder_decoders_are_told_how_to_be_traced(config: dict[str, object], tmp_path: Path) -> None:
    """Oracle: transformers' class of t5, and the inputs that its forward requires (modeling_t5.py)."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError) as refused:
        new_workload([str(tmp_path / "config.json")], tmp_path / "a.yaml")
    message = str(refused.value)
    assert "T5ForConditionalGeneration is not a decoder: an encoder-decoder is not simulated from its config.json" in message
    assert "extract transformers:T5ForConditionalGeneration --input input_ids=512:int64 --input decoder_input_ids=512:int64" in message
    assert "like those of" not in message


def test_an_encoder_decoder_of_no_known_class_is_traced_from_python(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "is_encoder_decoder": True}))
    with pytest.raises(
        SpecError, match=r"trace it instead, for example python -m sim new workload net\.py:Net --input input_ids=512:int64"
    ):
        new_workload([str(tmp_path / "config.json")], tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("config", "typo", "meant"),
    [
        ({"zero_optimisation": {"stage": 3}, "bf16": {"enabled": True}}, "zero_optimisation", "zero_optimization"),
        ({"zero_optimisation": {"stage": 3}}, "zero_optimisation", "zero_optimization"),
        ({"train_batch_size": 8, "gradient_accumulation_step": 4}, "gradient_accumulation_step", "gradient_accumulation_steps"),
        ({"zero_optimization": {"stge": 3}}, "zero_optimization.stge", "stage"),
    ],
)
def test_misspelled_keys_of_deepspeed_are_refused(config: dict[str, object], typo: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match=rf"ds\.json: unknown key {typo}; did you mean {meant}\?$"):
        new_workload(["llama-3.1-8b", str(tmp_path / "ds.json")], tmp_path / "a.yaml")


def test_a_json_of_deepspeed_is_recognized_by_any_of_its_keys(tmp_path: Path) -> None:
    """Oracle: deepspeed/runtime/constants.py; bfloat16 is the old name of bf16."""
    (tmp_path / "ds.json").write_text(json.dumps({"bfloat16": {"enabled": True}, "scheduler": {"type": "WarmupLR"}}))
    made = new_workload(["gpt2", str(tmp_path / "ds.json")], tmp_path / "a.yaml")
    assert load_workload(str(made.path)).spec.training.precision == "bf16"


FSDP = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
TRAINER = "train.py --model_name_or_path gpt2 --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("sources", "first", "second"),
    [
        (["gpt2", "acc.yaml", "zero.json"], "acc.yaml turns on FSDP", "zero.json turns on DeepSpeed"),
        ([f"accelerate launch --config_file acc.yaml {TRAINER} --deepspeed zero.json"], "acc.yaml turns on FSDP", "zero.json turns on"),
        ([f"torchrun {TRAINER} --fsdp full_shard --deepspeed zero.json"], "the command line turns on FSDP", "zero.json turns on DeepSpeed"),
    ],
)
def test_fsdp_and_deepspeed_contradict_each_other(
    sources: list[str], first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(FSDP)
    Path("zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    with pytest.raises(SpecError) as refused:
        new_workload(sources, Path("a.yaml"))
    (message,) = refused.value.problems
    assert first in message and second in message and message.endswith("a job is sharded by one of them; leave the other out")
    assert not Path("a.yaml").exists()


def test_an_option_that_replaces_fsdp_is_no_contradiction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of `accelerate launch` win over its file."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(FSDP)
    made = new_workload([f"accelerate launch --config_file acc.yaml --use_deepspeed {TRAINER}"], Path("a.yaml"))
    assert load_workload(str(made.path)).spec.training.parallel.shard == "gradients"
