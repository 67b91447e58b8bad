"""Which command comes after `new workload`? Oracles: the command itself, and the nodes and GPUs that the launch files name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from sim.cli import main
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload
from tests.study.new.launched import CONFIGS, EIGHT_BILLION, MEGATRON, TORCHTITAN


def test_launch_files(tmp_path: Path) -> None:
    (tmp_path / "gpt3.sh").write_text(MEGATRON)
    made = new_workload([str(tmp_path / "gpt3.sh")], tmp_path / "a.yaml")
    written = load_workload(str(made.path)).spec
    layout, training = written.training.parallel, written.training
    assert (layout.tensor, layout.pipeline, layout.virtual_stages, layout.shard, layout.sequence_parallel) == (8, 4, 4, "optimizer", True)
    assert (training.batch, training.precision, training.activation_checkpointing) == (2, "bf16", "selective")
    assert training.stack.name == "megatron-core"
    assert written.model.transformer is not None
    assert written.model.transformer.vocab == 51200, "50,257 padded to a multiple of 128 x 8"
    assert "--global-batch 1536" in (tmp_path / "a.yaml").read_text()
    assert made.note.endswith("; the global batch is an option: --global-batch 1536, also of plan, compare and recommend")

    (tmp_path / "run.toml").write_text(TORCHTITAN)
    written = load_workload(str(new_workload([str(tmp_path / "run.toml")], tmp_path / "b.yaml").path)).spec
    layout = written.training.parallel
    assert (written.model.name, written.model.sequence) == ("llama-3.1-70b", 4096)
    assert (written.training.batch, written.training.gradient_accumulation_steps) == (1, 4), (
        "a pipeline's micro-batches are of 1 by default"
    )
    assert (layout.tensor, layout.pipeline, layout.schedule, layout.virtual_stages) == (8, 2, "interleaved_1f1b", 2)
    assert (layout.shard, written.training.activation_checkpointing) == ("parameters", "blocks")


TRAINER = """#!/bin/bash
#SBATCH -N{nodes}
#SBATCH --gres=gpu:h100:8,tmpdisk:100
GPUS=8
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \\
    --bf16 True --gradient_checkpointing True --fsdp "full_shard auto_wrap" --optim adamw_8bit --max_seq_length 1024 --fp16 False
"""


def test_settings_of_a_trainer_are_taken_over(tmp_path: Path) -> None:
    """Oracle: what each option means in transformers/training_args.py, and the nodes that the script asks for."""
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    (tmp_path / "job.sbatch").write_text(TRAINER.format(nodes=2))
    made = new_workload([str(tmp_path / "config.json"), str(tmp_path / "job.sbatch")], tmp_path / "mine.yaml")
    written = load_workload(str(made.path)).spec
    training = written.training
    assert (training.batch, training.gradient_accumulation_steps, training.precision, written.model.sequence) == (2, 8, "bf16", 1024)
    assert (training.activation_checkpointing, training.parallel.shard, training.optimizer.name) == ("blocks", "parameters", "adam8bit")
    assert " --nodes 2" in made.command


def test_nodes_of_a_script_are_those_of_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    (tmp_path / "gpt3.sh").write_text("#SBATCH --nodes=16\n#SBATCH --gpus-per-node=8\n" + MEGATRON)
    assert "--nodes 16" in new_workload([str(tmp_path / "gpt3.sh")], tmp_path / "a.yaml").command
    (tmp_path / "four.sh").write_text("torchrun --nproc-per-node 4 train.py\n")
    four = new_workload([str(tmp_path / "config.json"), str(tmp_path / "four.sh")], tmp_path / "b.yaml")
    assert " --gpus 4" in four.command and not four.left_out
    (tmp_path / "one.sh").write_text("torchrun --nproc-per-node 1 train.py --per_device_train_batch_size 32\n")  # more than a GPU holds
    one = new_workload([str(tmp_path / "config.json"), str(tmp_path / "one.sh")], tmp_path / "d.yaml")
    assert "--gpus" not in one.command
    assert "the launch files request 1 GPU; the command below uses 1 node of 8" in one.left_out
    assert "# the launch files request 1 GPU" in (tmp_path / "d.yaml").read_text()
    (tmp_path / "small.sh").write_text("#SBATCH --gres=gpu:a10g:2\ntorchrun --nproc-per-node 2 train.py\n")  # on larger nodes, and more
    small = new_workload([str(tmp_path / "config.json"), str(tmp_path / "small.sh")], tmp_path / "e.yaml")
    assert small.command.endswith(" --nodes 4")
    assert "the launch files request 2 GPUs; the command below uses 4 nodes of 4" in small.left_out
    (tmp_path / "silent.sh").write_text("torchrun train.py\n")
    with pytest.raises(SpecError, match="specifies no number of GPUs, model size or layout"):
        new_workload([str(tmp_path / "config.json"), str(tmp_path / "silent.sh")], tmp_path / "c.yaml")


def test_a_script_names_its_model_and_machine(tmp_path: Path) -> None:
    """Oracle: the catalog's machine with as many of the GPU, and its model of that name."""
    trainer = "train.py --model_name_or_path {} --per_device_train_batch_size 1 --fsdp full_shard --bf16"
    for number, (text, name, machine) in enumerate((
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=a100:4\nsrun torchrun " + trainer.format("Qwen/Qwen2.5-7B"), "qwen2.5-7b", "a2-highgpu-4g"),
        ("srun -N 2 --gpus-per-node=a100_80gb:4 torchrun " + trainer.format("meta-llama/Llama-3.1-8B"), "llama-3.1-8b", "a2-ultragpu-4g"),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\nsrun torchrun " + trainer.format("Qwen/Qwen2.5-7B"), "qwen2.5-7b", "hgx-h100"),
    )):  # fmt: skip
        (tmp_path / "job.sh").write_text(text)
        made = new_workload([str(tmp_path / "job.sh")], tmp_path / f"{number}.yaml")
        assert load_workload(str(made.path)).spec.model.name == name
        assert made.command.startswith(f"python -m sim run {machine} ") and " --nodes 2" in made.command
        assert any("--fsdp runs the modeling code of transformers" in note for note in made.left_out)
    for stage, name in ((2, "z2"), (3, "z3")):
        (tmp_path / "zero.json").write_text(f'{{"zero_optimization": {{"stage": {stage}}}, "bf16": {{"enabled": true}}}}')
        line = f"deepspeed --num_gpus 8 {trainer.format('Qwen/Qwen2.5-7B').replace(' --fsdp full_shard', '')} --deepspeed zero.json"
        zero = new_workload([line, str(tmp_path / "zero.json")], tmp_path / f"{name}.yaml")
        assert any("stage 3: whole blocks are gathered" in note for note in zero.left_out) == (stage == 3)
    (tmp_path / "job.sh").write_text("#SBATCH -N 2\n#SBATCH --gpus-per-node=zx9:4\ntorchrun " + trainer.format("gpt2"))
    assert (
        "no machine in the catalog has a GPU zx9; the command below uses hgx-h100"
        in new_workload([str(tmp_path / "job.sh")], tmp_path / "z.yaml").left_out
    )
    (tmp_path / "job.sh").write_text("torchrun " + trainer.format("mine/Own-7B"))
    with pytest.raises(SpecError, match="mine/Own-7B: no such model in the catalog; add --from"):
        new_workload([str(tmp_path / "job.sh")], tmp_path / "y.yaml")


def test_the_line_that_starts_a_job_is_read_in_place_of_a_file(tmp_path: Path) -> None:
    """Oracle: the same line in a file."""
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_BILLION))
    line = f"torchrun --nnodes=2 --nproc-per-node=8 train.py --per_device_train_batch_size 2 --fsdp full_shard --run {'x' * 300}"
    (tmp_path / "job.sh").write_text(line)
    said, filed = (
        new_workload([str(tmp_path / "config.json"), source], tmp_path / f"{name}.yaml")
        for name, source in (("a", line), ("b", str(tmp_path / "job.sh")))
    )
    assert load_workload(str(said.path)).spec.training.parallel.shard == "parameters"
    assert said.command.replace("a.yaml", "b.yaml") == filed.command and " --nodes 2" in said.command
    assert "config.json, the command line" in said.path.read_text()
    megatron = f"torchrun --nproc-per-node 8 {' '.join(MEGATRON.split('ARGS=(')[1].split())}"
    with pytest.raises(SpecError, match="the command line: "):
        new_workload([megatron.replace("$LAYERS", "many")], tmp_path / "c.yaml")


LAUNCHED: dict[str, tuple[str, str]] = {
    "none": ("", ""),
    "ZeRO of two samples": ("zero.json", json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}})),
    "ZeRO 1 on two nodes": (
        "zero.json",
        json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}),
    ),
    "a global batch": ("zero.json", json.dumps({"train_batch_size": 256, "zero_optimization": {"stage": 3}})),
    "32 ranks": ("job.sh", "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64"),
}


@pytest.mark.parametrize("case", LAUNCHED)
def test_the_next_command_fits(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command itself."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(EIGHT_BILLION))
    file, text = LAUNCHED[case]
    if file:
        Path(file).write_text(text)
    made = new_workload(["config.json", *([file] if file else [])], Path("mine.yaml"))
    assert made.command in Path("mine.yaml").read_text()
    assert main(shlex.split(made.command.removeprefix("python -m sim "))) == 0, capsys.readouterr().err
    assert "GPU memory of 80 GiB: fits" in capsys.readouterr().out


def test_what_no_usual_layout_holds_is_searched(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral", **CONFIGS["mixtral"][1], "num_hidden_layers": 200}))
    made = new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml")
    assert re.search(r"python -m sim plan hgx-h100 .*mine.yaml --nodes \d\d$", made.command)


def test_a_script_asks_for_no_more_than_there_is(tmp_path: Path) -> None:
    """Python reads no more than 4300 digits, and no float has more than 308."""
    (tmp_path / "job.sbatch").write_text(TRAINER.format(nodes="9" * 400))
    with pytest.raises(SpecError, match=r"job\.sbatch: '9{36}\.\.\. nodes or GPUs exceed any cluster; write at most 1,000,000$"):
        new_workload([str(tmp_path / "job.sbatch")], tmp_path / "mine.yaml")


def test_the_next_command_keeps_what_deepspeed_shards(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    for name in ("llama-3.1-8b", "llama-2-13b"):
        made = new_workload([name, str(tmp_path / "zero.json")], tmp_path / f"{name}.yaml")
        assert made.command.startswith("python -m sim run hgx-h100 ") and "--shard" not in made.command


TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n[parallelism]\n'
ZERO = {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "bf16": {"enabled": True}}


def test_gpus_that_files_fix_are_those_of_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 64 x 1; 4 x 2 x 2 = 16; 512 = 4 x 4 x 32, and two tensor ranks of each."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(EIGHT_BILLION))
    Path("zero.json").write_text(json.dumps({**ZERO, "zero_optimization": {"stage": 1}}))
    Path("wide.toml").write_text(f"{TITAN}data_parallel_shard_degree = 64\n")
    axes = "data_parallel_shard_degree = 4\ntensor_parallel_degree = 2\npipeline_parallel_degree = 2\n"
    Path("axes.toml").write_text(TITAN.replace("size = 1", "size = 2") + axes)
    for file, nodes in (("wide.toml", 8), ("axes.toml", 2)):
        made = new_workload([file], Path("a.yaml"), overwrite=True)
        assert made.command.endswith(f" --nodes {nodes}") and not made.left_out
    made = new_workload(["config.json", "zero.json"], Path("a.yaml"), sequence=1024, batch=8, overwrite=True)
    assert " --nodes 2" in made.command  # 512 = 8 x 4 x 16
    tensor = "#SBATCH --nodes=8\n--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 4"
    Path("job.sh").write_text(tensor)
    for more, nodes in (([], 4), (["job.sh"], 8)):
        made = new_workload(["config.json", "zero.json", *more], Path("a.yaml"), sequence=1024, overwrite=True)
        assert f" --nodes {nodes}" in made.command and " --shard" not in made.command
        assert not any("assuming" in note or "request" in note for note in made.left_out)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["llama-3.1-8b", "zero.json", "deepspeed --num_nodes 2 --num_gpus 8 t.py"], "takes 32 GPUs, but the launch files request 16"),
        (["torchrun --nnodes 2 --nproc-per-node 8 -m torchtitan.train --job.config_file t.toml"], "multiply to 64 GPUs, but the launch"),
        (
            ["llama-3.1-8b", "torchrun --nproc-per-node 8 t.py --micro-batch-size 3 --global-batch-size 36"],
            "3 on 8 data-parallel ranks; wr",
        ),
        (
            ["llama-3.1-8b", "torchrun --nnodes 2 --nproc-per-node 8 t.py --pipeline-model-parallel-size 3 --tensor-model-parallel-size 2"],
            "ranks are 6, which do not divide the 16 GPUs that the launch files request; write degrees whose product does, or 18 GPUs",
        ),
    ],
)
def test_jobs_of_other_gpus_than_their_files_fix_are_refused(
    sources: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """_batch_assertion of deepspeed/runtime/config.py, torchtitan/distributed/parallel_dims.py, num_microbatches_calculator.py.

    The world size of Megatron-LM is a multiple of the model's ranks (megatron/training/arguments.py, validate_args).
    """
    monkeypatch.chdir(tmp_path)
    Path("zero.json").write_text(json.dumps({**ZERO, "zero_optimization": {"stage": 1}}))
    Path("t.toml").write_text(f"{TITAN}data_parallel_shard_degree = 64\n")
    with pytest.raises(SpecError) as refused:
        new_workload(sources, Path("a.yaml"))
    assert message in str(refused.value) and len(refused.value.problems) == 1 and not Path("a.yaml").exists()


def test_a_layout_that_does_not_fit_is_changed_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zero.json").write_text(json.dumps({**ZERO, "zero_optimization": {"stage": 1}}))
    made = new_workload(["llama-3.1-8b", "zero.json"], Path("a.yaml"))
    changed = "--shard parameters"  # the stack of ZeRO has no tensor ranks
    assert f" --nodes 4 {changed}" in made.command and any(note.endswith(f"the command below uses {changed}") for note in made.left_out)


def test_a_trainer_whose_model_no_gpu_holds_gets_a_stack_of_layouts(tmp_path: Path) -> None:
    """Oracle: 70.6 billion parameters of 16 bits are more than the 80 GiB of a GPU."""
    options = "--model_name_or_path meta-llama/Llama-3.1-70B --per_device_train_batch_size 1 --max_length 512 --bf16"
    made = new_workload([f"torchrun --nproc_per_node=8 sft.py {options}"], tmp_path / "w.yaml")
    assert made.command.startswith("python -m sim plan hgx-h100 ")
    assert load_workload(str(made.path)).spec.training.stack.name != "hf-transformers"
    about_stacks = [note for note in made.left_out if "16 bits" in note or "hf-transformers" in note]
    assert [note.partition(" as hf")[0] for note in about_stacks] == ["no GPU holds the whole model"]


def test_a_layout_that_runs_nowhere_is_replaced_by_a_search_with_a_note(tmp_path: Path) -> None:
    """10 ranks divide no number of nodes with 8 GPUs that is a power of two."""
    line = "torchrun --nproc-per-node 10 t.py --pipeline-model-parallel-size 5 --tensor-model-parallel-size 2 --micro-batch-size 1"
    made = new_workload(["llama-3.1-8b", line], tmp_path / "a.yaml")
    assert made.command.startswith("python -m sim plan ")
    assert any(note.startswith("the layout of the launch files does not divide") and "searches" in note for note in made.left_out)
