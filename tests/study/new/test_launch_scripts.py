"""What does a launch script say of its job besides Megatron-LM's arguments? Oracles: options of Slurm, torchrun, transformers and TRL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.spec.foreign.launch_scripts import launch_script
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload
from tests.study.new.launched import CONFIGS, EIGHT_BILLION, SIZES, SMALL

pytestmark = pytest.mark.usefixtures("no_layout_search")


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
srun torchrun --nnodes 4 --nproc-per-node 8 train.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --micro-batch-size 3
"""


def test_a_batch_script_gives_the_layout_and_a_configuration_the_model(tmp_path: Path) -> None:
    """Oracle: the numbers of the script, and of the configuration."""
    parameters, config = CONFIGS["llama"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    (tmp_path / "job.sbatch").write_text(SCRIPT)
    made = new_workload([str(tmp_path / "config.json"), str(tmp_path / "job.sbatch")], tmp_path / "mine.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.parallel.tensor, training.parallel.pipeline, training.batch) == (2, 4, 3)
    assert load_workload(str(made.path)).spec.model.parameters == parameters


GPUS: dict[str, int | None] = {
    # a script's lines, and the GPUs of the job that it starts
    "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=a100:8": 32,
    "#SBATCH -N 2\n#SBATCH --gres=gpu:8(S:0-1)": 16,
    "#SBATCH --gpus 24": 24,
    "#SBATCH --nodes=2-4\nsrun torchrun --nproc-per-node=4 train.py": 8,
    "#SBATCH --nodes=4\nsrun torchrun --nnodes=2 --nproc-per-node=8 train.py": 16,
    "torchrun --standalone --nproc_per_node=4 train.py": 4,
    "torchrun --nnodes=2:4 --nproc_per_node=8 train.py": 16,
    "python -m torch.distributed.run --nnodes=2 --nproc_per_node=gpu train.py": 16,  # nodes of 8, which is noted
    "torchrun --nproc_per_node=auto train.py": 8,
    "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\nsrun torchrun --nnodes=$COUNT --nproc-per-node=$N train.py": 16,  # as Slurm starts
    "#SBATCH --nodes=4\nsrun torchrun --nnodes=${SLURM_NNODES:-2} --nproc-per-node=$((2 * SLURM_NNODES)) train.py": 32,
    "python train.py --bf16": None,
    "accelerate launch --num_machines 3 --num_processes 24 train.py": 24,
    "deepspeed --num_nodes 2 --num_gpus 8 train.py": 16,
    "#SBATCH --nodes=4": 32,  # nodes of 8, which is noted
    "#SBATCH --nodes=4\nsrun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$GPUS train.py\nGPUS=4": 16,
}


@pytest.mark.parametrize("text", GPUS)
def test_a_script_says_how_many_gpus_it_takes(text: str) -> None:
    assert launch_script(text, "job.sh").gpus == GPUS[text]


UNREAD: dict[str, str] = {
    # a script's lines, and the message about them
    "torchrun --nnodes $N train.py": "--nnodes $N: the script does not set this variable; replace it by a number",
    "#SBATCH --nodes=4\ntorchrun --nproc-per-node=$N t.py": "--nproc-per-node $N: the script does not set this variable; replace it",
    "N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc-per-node=$N t.py": "--nproc-per-node $N: its value cannot be read from the script;",
    "for N in 1 2; do torchrun --nnodes $N --nproc-per-node=8 t.py; done": "--nnodes $N: its value cannot be read from the script;",
    "torchrun --nnodes $(wc -l < hosts) --nproc-per-node 8 t.py": "--nnodes $(wc -l < hosts): its value cannot be read from the script;",
    "torchrun --nnodes $((N * 2)) --nproc-per-node 8 t.py": "--nnodes $((N * 2)): its value cannot be read from the script;",
    "accelerate launch --num_processes $((8 / 0)) t.py": "--num-processes $((8 / 0)): its value cannot be read from the script;",
    "deepspeed --num_gpus ${1} t.py": "--num-gpus ${1}: its value cannot be read from the script; replace it by a number",
}


@pytest.mark.parametrize("text", UNREAD)
def test_a_number_of_gpus_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        launch_script(text, "job.sh")
    (message,) = refused.value.problems
    assert message.startswith(f"job.sh: {UNREAD[text]}") and message.endswith("replace it by a number")


def test_sizes_of_no_model_cite_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL, "head_dim": 8, "hidden_size": 10**12}))
    with pytest.raises(
        SpecError, match=r"^[^:]*config.json: hidden_size 1,000,000,000,000 makes a model of over 1,000 trillion parameters; write a"
    ):
        new_workload([str(tmp_path / "config.json")], tmp_path / "a.yaml")


def test_a_decoder_of_the_catalog_is_the_model_of_launch_files(tmp_path: Path) -> None:
    """Oracle: the catalog's own parameters, and the layout of the file."""
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 3}))
    made = load_workload(str(new_workload(["llama-3.1-8b", str(tmp_path / "zero.json")], tmp_path / "a.yaml").path)).spec
    assert made.model.parameters == 8_030_261_248
    assert (made.training.batch, made.training.parallel.shard) == (3, "gradients")
    with pytest.raises(SpecError, match="vgg16: is not a decoder"):
        new_workload(["vgg16", str(tmp_path / "zero.json")], tmp_path / "b.yaml")


def test_names_of_tuned_models_are_the_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the catalog's own parameters."""

    def unreachable(name: str) -> str:
        raise SpecError(f"{name}: the hub does not respond")

    monkeypatch.setattr("sim.study.new.sources._from_hub", unreachable)
    tuned = new_workload(["gemma-2-9b-it"], tmp_path / "a.yaml")
    assert load_workload(str(tuned.path)).spec.model.name == "gemma-2-9b" and not tuned.left_out
    gated = new_workload(["meta-llama/Llama-3.1-8B"], tmp_path / "b.yaml")
    assert gated.left_out == ("meta-llama/Llama-3.1-8B cannot be read from the hub: used llama-3.1-8b of the catalog",)
    with pytest.raises(SpecError, match="mine/Own-7B: the hub does not respond"):
        new_workload(["mine/Own-7B"], tmp_path / "c.yaml")


def test_names_of_nothing_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^llama-9: no such file or folder, and no catalog model$"):
        new_workload(["llama-9"], tmp_path / "a.yaml")
    with pytest.raises(SpecError, match=rf"^{'a' * 80}: no such file or folder"):
        new_workload(["a" * 300], tmp_path / "a.yaml")


def test_a_message_about_a_size_names_the_option_of_a_script(tmp_path: Path) -> None:
    sizes = "--num-layers 2 --hidden-size 65 --num-attention-heads 4 --padded-vocab-size 100 --max-position-embeddings 32 --seq-length 32"
    (tmp_path / "train.sh").write_text(f"torchrun pretrain_gpt.py {sizes}\n")
    with pytest.raises(SpecError, match=r"--hidden-size \(65\) is not a multiple of --num-attention-heads \(4\); write --kv-channels, or"):
        new_workload([str(tmp_path / "train.sh")], tmp_path / "mine.yaml")


def test_models_in_two_launch_files_are_not_mixed(tmp_path: Path) -> None:
    """Before, experts of one file joined the sizes of the other."""
    (tmp_path / "job.sh").write_text(f"{SIZES} --seq-length 128 --max-position-embeddings 128 --num-experts 8\n")
    (tmp_path / "titan.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n')
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    for sources in (("job.sh", "config.json"), ("config.json", "titan.toml"), ("titan.toml", "job.sh")):
        with pytest.raises(SpecError, match=r"2 model configurations; name one"):
            new_workload([str(tmp_path / name) for name in sources], tmp_path / "mixed.yaml")
    assert not (tmp_path / "mixed.yaml").exists()


PEFT = "accelerate launch --num_processes 2 sft.py --per_device_train_batch_size 4 {more}"


@pytest.mark.parametrize(
    ("more", "rank"),
    [
        ("--use_peft --lora_r 64", 64), ("--use_peft True", 16), ("--use_peft False --lora_r 64", None), ("--lora_r=32", 32), ("", None),
        ("--finetuning_type lora", 8), ("--finetuning_type lora --lora_rank 4", 4), ("--finetuning_type full --lora_rank 4", None),
    ],
)  # fmt: skip
def test_adapters_of_a_trainer_are_taken_over(more: str, rank: int | None, tmp_path: Path) -> None:
    """Oracle: options and defaults of TRL (trainer/model_config.py), LLaMA-Factory (hparams/finetuning_args.py) and scripts for PEFT."""
    made = new_workload(["qwen2.5-0.5b", PEFT.format(more=more)], tmp_path / "mine.yaml")
    model = load_workload(str(made.path)).spec.model
    assert (model.lora.rank if model.lora else None) == rank
    trained = sum(sum(layer.gradients) for layer in model.layers)
    assert (trained < 0.1 * 494e6) == (rank is not None)


def test_quantized_weights_and_single_targets_of_adapters_are_named(tmp_path: Path) -> None:
    line = PEFT.format(more="--use_peft --lora_target_modules q_proj v_proj {bits}")
    notes = new_workload(["qwen2.5-0.5b", line.format(bits="--load_in_4bit True")], tmp_path / "a.yaml").left_out
    assert any("--load-in-4bit is not modeled: frozen weights take 2 bytes each in GPU memory" in note for note in notes)
    assert any("--lora-target-modules is not read: all products of a block have adapters" in note for note in notes)
    assert "# --load-in-4bit is not modeled" in (tmp_path / "a.yaml").read_text()
    plain_line = PEFT.format(more="--use_peft --lora_target_modules all-linear --load_in_8bit 0")
    plain = new_workload(["qwen2.5-0.5b", plain_line], tmp_path / "b.yaml")
    assert not any("--l" in note for note in plain.left_out)
    with pytest.raises(SpecError, match="--lora-r 0: write a rank of 1 or more"):
        new_workload(["qwen2.5-0.5b", PEFT.format(more="--use_peft --lora_r 0")], tmp_path / "c.yaml")
