"""Which files does a launch command name, and what does it say itself? Oracles: the defaults of these programs, and their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload

pytestmark = pytest.mark.usefixtures("no_layout_search")

QWEN = "train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16"
ZERO_3 = {"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}}
ACCELERATE = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nmixed_precision: fp16\nfsdp_config: {fsdp_version: 2}\n"


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


@pytest.mark.parametrize("launcher", ["accelerate launch", "python -m accelerate.commands.launch"])
def test_a_program_may_have_a_config_file_of_its_own(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kohya's sd-scripts have: options after the program are not those of Accelerate."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(ACCELERATE)
    own = f"{QWEN} --config_file own.toml"
    made = new_workload([f"{launcher} --config_file acc.yaml {own}"], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.parallel.shard == "parameters"
    made = new_workload([f"{launcher} --num_processes 8 {own}"], tmp_path / "v.yaml")
    assert load_workload(str(made.path)).spec.training.parallel.shard == "none"
    assert not any("read " in note for note in made.left_out)


def test_an_option_of_accelerate_wins_over_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n")
    made = new_workload([f"accelerate launch --config_file acc.yaml --use_deepspeed --zero_stage 1 {QWEN}"], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.parallel.shard == "optimizer"
    assert any("acc.yaml sets shard parameters, the command optimizer: used optimizer" in note for note in made.left_out)


SHARDED = {
    "ZeRO": "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 3}\n",
    "FSDP": "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n",
    "": "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
}


@pytest.mark.parametrize("library", SHARDED)
def test_sharded_weights_of_trl_are_not_under_autocast(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed and FSDP convert weights; in DistributedDataParallel, TRL's stay in 32 bits (trl/trainer/utils.py)."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(f"{SHARDED[library]}num_machines: 1\nnum_processes: 8\n")
    sft = QWEN.replace("train.py", "-m trl sft")
    made = new_workload([f"accelerate launch --config_file acc.yaml {sft}"], tmp_path / "w.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.shard, training.precision) == (("parameters", "bf16") if library else ("none", "amp_bf16"))
    assert any("TRL trains weights of 32 bits" in note for note in made.left_out) is (library == "")


@pytest.mark.parametrize(
    ("line", "wide"),
    [
        ("trl sft", True), ("cd ~/src/trl && torchrun examples/scripts/sft.py", True), ("torchrun trl/scripts/sft.py", True),
        ("torchrun train.py --output_dir /data/trl/run", False), ("cd trl-runs && torchrun train.py", False),
        ("# unlike trl, in 16 bits\ntorchrun train.py", False),
    ],
)  # fmt: skip
def test_trl_is_a_program_not_a_word(line: str, wide: bool, tmp_path: Path) -> None:
    options = QWEN.removeprefix("train.py ").replace("7B", "0.5B")
    made = new_workload([f"{line} --nproc_per_node 8 {options}"], tmp_path / "w.yaml")
    assert (load_workload(str(made.path)).spec.training.precision == "amp_bf16") is wide


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
    assert f"read t.toml (--job.config_file), with {replaced}" in made.left_out
    with pytest.raises(SpecError, match=r"gone\.toml': no such file"):
        new_workload([line.replace("t.toml", "gone.toml")], tmp_path / "x.yaml")
    with pytest.raises(SpecError, match=r"t\.toml: training\.local_batch_size two"):
        new_workload([line.replace("local_batch_size 2", "local_batch_size two")], tmp_path / "x.yaml")


@pytest.mark.parametrize("option", ["--deepspeed ds.json", "--deepspeed_config=ds.json", "--deepspeed --deepspeed_config conf/../ds.json"])
@pytest.mark.parametrize("as_script", [False, True])
def test_a_command_names_the_json_of_deepspeed(option: str, as_script: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON's own numbers; ``auto`` is the Trainer's --bf16."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_3))
    source = f"deepspeed {QWEN} {option}"
    if as_script:  # from another folder, so relative to the script
        (tmp_path / "run.sh").write_text(source + "\n")
        source = str(tmp_path / "run.sh")
    else:
        monkeypatch.chdir(tmp_path)
    made = new_workload([source], tmp_path / "w.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.shard, training.gradient_accumulation_steps, training.batch) == ("parameters", 4, 1)
    assert training.precision == "bf16"
    assert any("read " in note and "ds.json" in note for note in made.left_out)


def test_a_command_names_the_file_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own --bf16 wins over the file's fp16, with a note; the file's 16 GPUs and FSDP remain."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(ACCELERATE)
    made = new_workload([f"accelerate launch --config_file acc.yaml {QWEN}"], tmp_path / "w.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.shard, training.precision) == ("parameters", "bf16")
    assert any("request 16 GPUs" in note for note in made.left_out)
    assert "acc.yaml sets precision fp16, the command bf16: used bf16 (options win over Accelerate's file)" in made.left_out


def test_the_file_of_accelerate_names_the_json_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(ZERO_3))
    Path("acc.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n")
    training = load_workload(
        str(new_workload([f"accelerate launch --config_file acc.yaml {QWEN}"], tmp_path / "w.yaml").path)
    ).spec.training
    assert (training.parallel.shard, training.gradient_accumulation_steps, training.precision) == ("parameters", 4, "bf16")


def test_the_json_of_deepspeed_wins_over_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's engine reads only its file; the difference is told."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(ZERO_3))
    made = new_workload([f"deepspeed {QWEN} --gradient_accumulation_steps 2 --deepspeed ds.json"], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.gradient_accumulation_steps == 4
    assert any(note.startswith("ds.json sets gradient_accumulation_steps 4, the command 2: used 4 (DeepSpeed") for note in made.left_out)


@pytest.mark.parametrize(
    "line",
    [f"deepspeed {QWEN} --deepspeed nope.json", f"accelerate launch --config_file nope.json {QWEN}"],
)
def test_a_missing_file_that_a_command_names_is_an_error(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"nope\.json': no such file in the current folder or in that of the script; write the path"):
        new_workload([line], tmp_path / "w.yaml")
    assert not (tmp_path / "w.yaml").exists()


def test_a_file_that_a_command_names_may_be_passed_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_3))
    line = f"deepspeed {QWEN} --deepspeed /cluster/only/ds.json"
    made = new_workload([line, str(tmp_path / "ds.json")], tmp_path / "w.yaml")
    assert load_workload(str(made.path)).spec.training.gradient_accumulation_steps == 4


def test_a_file_whose_name_is_unknown_has_a_note(tmp_path: Path) -> None:
    made = new_workload([f"deepspeed {QWEN} --deepspeed $CONFIG"], tmp_path / "w.yaml")
    assert any("--deepspeed '$CONFIG' is not read, as its variables are unknown" in note for note in made.left_out)
