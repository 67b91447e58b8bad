"""What a launch command says about Accelerate and torchtitan. Oracles: the options' defaults in these programs, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload

QWEN = "train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16"


@pytest.mark.parametrize(
    ("options", "shard", "reshard"),
    [
        ("--use_deepspeed --zero_stage 3", "parameters", None),
        ("--use_deepspeed", "gradients", None),  # accelerate/commands/launch.py: stage 2 by default
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", "parameters", False),
        ("--zero_stage 3", "none", None),  # without --use_deepspeed, it has no effect
    ],
)
def test_options_of_accelerate_shard(options: str, shard: str, reshard: bool | None, tmp_path: Path) -> None:
    made = new_workload([f"accelerate launch --num_processes 8 {options} {QWEN}"], tmp_path / "w.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.shard, training.parallel.reshard_after_forward) == (shard, reshard)
    assert training.precision == "bf16"


def test_an_option_of_accelerate_wins_over_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n")
    made = new_workload([f"accelerate launch --config_file acc.yaml --use_deepspeed --zero_stage 1 {QWEN}"], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.parallel.shard == "optimizer"
    assert any("acc.yaml sets shard parameters, the command optimizer: used optimizer" in note for note in made.left_out)


NAMED_TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
"""


def test_a_command_names_the_toml_of_torchtitan_and_replaces_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.toml").write_text(NAMED_TOML)
    options = "--training.local_batch_size 2 --parallelism.tensor_parallel_degree=4 --compile.enable"
    line = f"torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file t.toml {options}"
    made = new_workload([line], tmp_path / "w.yaml")
    loaded = load_workload(str(made.path)).spec
    assert (loaded.training.batch, loaded.training.parallel.tensor) == (2, 4)
    assert loaded.model.sequence == 4096
    replaced = "--training.local_batch_size 2, --parallelism.tensor_parallel_degree 4, --compile.enable"
    assert f"read t.toml, which --job.config_file names, with {replaced}" in made.left_out
    with pytest.raises(SpecError, match=r"gone\.toml': no such file"):
        new_workload([line.replace("t.toml", "gone.toml")], tmp_path / "x.yaml")
    with pytest.raises(SpecError, match=r"t\.toml: training\.local_batch_size two"):
        new_workload([line.replace("local_batch_size 2", "local_batch_size two")], tmp_path / "x.yaml")
