"""What do a Trainer's options, a launcher's GPUs and a job's length become? Oracles: defaults of transformers, and arithmetic."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from sim.api import simulate
from sim.cli import main
from sim.spec.foreign.launch_scripts import launch_script
from sim.spec.library import load_workload
from sim.spec.training import Training
from sim.spec.yaml import SpecError
from sim.study.new.workload import NewWorkload, new_workload
from tests.study.new.launched import SIZES

pytestmark = pytest.mark.usefixtures("no_layout_search")

RUN = "torchrun --nproc_per_node=8 run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B --block_size 1024 "


def made_of(source: str, folder: Path, dataset: str | None = None) -> tuple[NewWorkload, Training]:
    made = new_workload([source], folder / "mine.yaml", overwrite=True, dataset=dataset)
    return made, load_workload(str(made.path)).spec.training


def test_any_option_of_the_trainer_shows_that_there_is_one(tmp_path: Path) -> None:
    """Oracle: transformers/training_args.py, per_device_train_batch_size: 8 by default."""
    made, training = made_of(RUN + "--fp16 --optim adafactor --gradient_checkpointing --fsdp full_shard", tmp_path)
    assert (training.batch, training.precision, training.optimizer.name) == (8, "amp_fp16", "adafactor")
    assert (training.activation_checkpointing, training.parallel.shard) == ("blocks", "parameters")
    assert "--per_device_train_batch_size is missing: used the Trainer's default of 8" in made.left_out


@pytest.mark.parametrize("option", ["--gradient_checkpointing", "--num_train_epochs 1", "--max_steps 10", "--output_dir out", "--seed 1"])
def test_one_option_is_enough(option: str, tmp_path: Path) -> None:
    assert made_of(RUN + option, tmp_path)[1].batch == 8


@pytest.mark.parametrize(
    "options", ["train.py --seed 1 --bf16", f"pretrain_gpt.py {SIZES} --seq-length 64 --bf16 --gradient_checkpointing"]
)
def test_other_programs_have_no_trainer(options: str) -> None:
    """Megatron-LM's scripts and plain ones have --bf16 and --seed as well."""
    assert not launch_script(f"torchrun --nproc_per_node=8 {options}", "job.sh").defaults


BLIND = "calibration/records/blind/2026-11-26-h200.csv"
ADAPTED = {"llama-3.1-8b": ("meta-llama/Llama-3.1-8B", 2, 2048), "qwen2.5-1.5b": ("Qwen/Qwen2.5-1.5B", 8, 1024)}
"""Model, samples and tokens of the runs with adapters of rank 16 there."""


@pytest.mark.parametrize("name", ADAPTED)
def test_a_trainer_runs_the_modeling_code_of_transformers(name: str, tmp_path: Path) -> None:
    """Oracle: steps of Hugging Face's PEFT measured on an H200. The stack of torch's own kernels is 9 and 24% too fast for them."""
    released, batch, length = ADAPTED[name]
    options = f"--model_name_or_path {released} --per_device_train_batch_size {batch} --max_length {length} --bf16 --use_peft --lora_r 16"
    made, training = made_of(f"torchrun --nproc_per_node=1 sft.py {options}", tmp_path)
    assert training.stack.name == "hf-transformers"
    assert any("modeling code of transformers, eager" in note for note in made.left_out)
    with open(BLIND, encoding="utf-8") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        measured = next(float(row["measured"]) for row in rows if (row["kind"], row["name"]) == ("step", f"{name}-lora"))
    machine, synthetic = "gpu-h200-sxm_1gpu-16vcpu-200gb", {"input.loader": "synthetic"}
    assert simulate(machine, str(made.path), overrides=synthetic).step_time == pytest.approx(measured, rel=0.07)
    plain = simulate(machine, str(made.path), overrides=synthetic, stack="torch-2.x-ddp").step_time
    assert plain < 0.93 * measured


@pytest.mark.parametrize("option", ["--torch_compile", "--use_liger_kernel True", "--fsdp full_shard"])
def test_other_kernels_and_layouts_have_other_stacks(option: str, tmp_path: Path) -> None:
    """What is compiled, fused or sharded is not the modeling code as it is."""
    made, training = made_of(f"{RUN} {option}", tmp_path)
    assert training.stack.name != "hf-transformers"
    assert not any("hf-transformers" in note for note in made.left_out)
    if "--fsdp" in option:
        assert training.stack.name == "hf-fsdp1"
        for other, stack in (("--torch_compile", "torchtitan-2.x"), ("--use_liger_kernel", "torch-fsdp1")):
            made, training = made_of(f"{RUN} {option} {other}", tmp_path)
            assert training.stack.name == stack
            assert not any(f"depend on it: {other}" in note for note in made.left_out), "the stack follows from it"


PRECISIONS = {
    "--bf16 --torch_dtype float32": "amp_bf16", "--bf16 --dtype bfloat16": "bf16",
    "--bf16": "bf16", "--fp16 True": "amp_fp16", "": "fp32", "--bf16 False": "fp32", "--tf32 True": "tf32",
    "--torch_dtype bfloat16": "bf16",
}  # fmt: skip


@pytest.mark.parametrize("option", PRECISIONS)
def test_a_trainer_without_a_precision_trains_in_fp32(option: str, tmp_path: Path) -> None:
    """Oracle: transformers/training_args.py, bf16 and fp16: False by default."""
    made, training = made_of(f"{RUN} --per_device_train_batch_size 2 {option}", tmp_path)
    assert training.precision == PRECISIONS[option]
    noted = any("--bf16 and --fp16 are missing: used fp32, the Trainer's default" in note for note in made.left_out)
    assert noted == (PRECISIONS[option] == "fp32")


def test_the_precision_of_a_launcher_or_a_file_goes_before_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: training_args.py: mixed_precision is ACCELERATE_MIXED_PRECISION, which `accelerate launch` sets, unless --fp16 or --bf16."""
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n")
    Path("zero.json").write_text(json.dumps({"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 3, "zero_optimization": {}}))
    options = RUN.removeprefix("torchrun --nproc_per_node=8 ") + "--max_steps 10"
    for line in (f"accelerate launch --mixed_precision bf16 {options}", f"accelerate launch --config_file acc.yaml {options}"):
        assert made_of(line, tmp_path)[1].precision == "bf16"
    assert made_of(f"accelerate launch --mixed_precision bf16 {options} --fp16", tmp_path)[1].precision == "amp_fp16"
    for sources in (["zero.json", f"deepspeed {options}"], [f"deepspeed {options}", "zero.json"]):
        training = load_workload(str(new_workload(sources, Path("m.yaml"), overwrite=True).path)).spec.training
        assert (training.precision, training.batch) == ("bf16", 3)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("per_device_train_batch_sise", "per-device-train-batch-size"), ("gradient_checkpointng", "gradient-checkpointing")],
)
def test_misspelled_options_of_a_trainer_are_refused(typo: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"unknown option --{typo.replace('_', '-')}; did you mean --{meant}\?$"):
        made_of(f"{RUN} --{typo} 1", tmp_path)


def test_what_argparse_accepts_is_no_typo(tmp_path: Path) -> None:
    """Abbreviations, and no_ before flags that are on by default (HfArgumentParser)."""
    made_of(f"{RUN} --gradient_accumulation_step 2 --no_dataloader_pin_memory --per_device_eval_batch_size 4", tmp_path)


def test_options_that_a_description_cannot_have_are_one_note(tmp_path: Path) -> None:
    made, _ = made_of(f'{RUN} --bf16 --torch_compile --use_liger_kernel True --group_by_length False --fsdp "full_shard offload"', tmp_path)
    assert "not read, although a step may depend on it: --use_liger_kernel" in made.left_out
    assert any("--fsdp offload (cpu) is not modeled" in note for note in made.left_out)
    made, _ = made_of(f"{RUN} --bf16 --torch_compile --use_liger_kernel True", tmp_path)
    assert "not read, although a step may depend on it: --torch_compile, --use_liger_kernel" in made.left_out
    made, _ = made_of(f"{RUN} --bf16 --attn_implementation eager --padding_free True", tmp_path)
    assert "not read, although a step may depend on it: --padding_free" in made.left_out
    assert any("--attn_implementation eager is not modeled" in note for note in made.left_out)
    assert not any("attn" in note for note in made_of(f"{RUN} --bf16 --attn_implementation sdpa", tmp_path)[0].left_out)


def test_quantized_weights_have_a_note_without_adapters_too(tmp_path: Path) -> None:
    notes = made_of(f"{RUN} --load_in_4bit True --load_in_8bit False", tmp_path)[0].left_out
    assert [note for note in notes if "bit" in note and "load" in note] == [
        "--load-in-4bit is not read: without adapters, all weights are trained"
    ]


LENGTHS: dict[str, tuple[str, str]] = {
    # what is added to the line: the option of the command to run next, and the note
    "--max_steps 500 --per_device_train_batch_size 4 --gradient_accumulation_steps 2": (
        f"--tokens {500 * 4 * 2 * 8 * 1024}", f"--max_steps 500: {500 * 4 * 2 * 8 * 1024:,} tokens, 1,024 per sample",
    ),
    "--num_train_epochs 3": ("", "--num_train_epochs 3 is not read, because the data set is unknown; write --dataset, or --tokens"),
    "--num_train_epochs 3 --max_steps -1": ("", "--num_train_epochs 3 is not read"),
    "--max_steps $STEPS": ("", "--max_steps $STEPS is not read"),
    "--bf16": ("", ""),
}  # fmt: skip


@pytest.mark.parametrize("options", LENGTHS)
def test_the_length_of_a_trainer_is_that_of_the_next_command(options: str, tmp_path: Path) -> None:
    """Oracle: steps x samples of a step x tokens of a sample."""
    option, note = LENGTHS[options]
    made, _ = made_of(RUN + options, tmp_path)
    assert made.command.partition(".yaml")[2].replace("32.768M", "32768000").strip() == option
    assert any(each.startswith(note) for each in made.left_out) and bool(note) == any(
        "steps" in each or "epochs" in each for each in made.left_out
    )


def test_epochs_of_a_data_set_that_is_named(tmp_path: Path) -> None:
    assert made_of(f"{RUN} --num_train_epochs 2.5", tmp_path, dataset="wikitext-2")[0].command.endswith(" --epochs 2.5")


MEGATRON = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES} --max-position-embeddings 128 --seq-length 128 --micro-batch-size 2 "


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ("--train-samples 7000", 7000 * 128),
        ("--train-iters 300 --global-batch-size 64", 300 * 64 * 128),
        ("--train-iters 300 --tensor-model-parallel-size 2", 300 * 4 * 2 * 128),
    ],
)
def test_the_length_of_megatrons_arguments(options: str, tokens: int, tmp_path: Path) -> None:
    """Oracle: megatron/training/arguments.py: the global batch is a micro-batch for each data-parallel rank by default."""
    made, _ = made_of(MEGATRON + options, tmp_path)
    assert any(f": {tokens:,} tokens, 128 per sample" in note for note in made.left_out) and " --tokens " in made.command
    alone, _ = made_of((MEGATRON + "--train-iters 300").removeprefix("torchrun --nproc-per-node 8 "), tmp_path)
    assert any("--train-iters 300 is not read, because the number of GPUs is unknown" in note for note in alone.left_out)


def test_the_steps_of_torchtitan(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 64\nseq_len = 4096\nsteps = 1000\n'
    )
    assert made_of(str(tmp_path / "t.toml"), tmp_path)[0].command.endswith(f" --tokens {1000 * 64 * 4096 / 1e6:g}M")


INCLUDED: dict[str, int | None] = {
    "deepspeed --include localhost:0,1 train.py": 2,
    'deepspeed --include="a:0,1,2,3@b:0,1,2,3" train.py': 8,
    "deepspeed -i a:0-3@b:0-3 train.py": 8,
    "deepspeed --num_gpus 4 train.py --include localhost:0,1": 4,  # the program's own
    "deepspeed --include a@b train.py": None,
    "mpirun -np 16 -H a:8,b:8 python train.py": 16,
}


@pytest.mark.parametrize("line", INCLUDED)
def test_gpus_of_deepspeeds_include_and_of_mpirun(line: str, tmp_path: Path) -> None:
    """Oracle: deepspeed/launcher/runner.py, parse_resource_filter."""
    made, _ = made_of(f"{line} --model_name_or_path gpt2 --per_device_train_batch_size 1", tmp_path)
    expected = INCLUDED[line]
    noted = next((note for note in made.left_out if "the launch files request" in note), None)
    assert noted == (None if expected in (None, 8) else f"the launch files request {expected} GPUs; the command below uses 1 node of 8")


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("python train.py --lr 1e-4", "for others, pass the model's config.json"),
        ("mpirun -np 16 python train.py", "for others, pass the model's config.json"),
        ("sbatch -N 2 job.sh", "pass the script itself, job.sh"),
    ],
)
def test_other_launchers_are_told_which_are_read(
    line: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "workload", "--from", line, "-o", "a.yaml"]) == 2
    error = capsys.readouterr().err
    assert "a command line is read if it has torchrun, python -m torch.distributed.run, accelerate launch or deepspeed" in error
    assert rest in error and len(error.strip().splitlines()) == 1


def test_the_script_that_plan_exports_is_read_with_its_arguments(tmp_path: Path) -> None:
    """Oracle: the plan's own layout, and the catalog's parameters."""
    (tmp_path / "torchrun.sh").write_text("torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py $(cat megatron.args)\n")
    (tmp_path / "megatron.args").write_text(f"{SIZES} --seq-length 64\n--max-position-embeddings 64\n--context-parallel-size 4\n")
    made, training = made_of(str(tmp_path / "torchrun.sh"), tmp_path)
    assert (training.parallel.context, training.stack.name) == (4, "megatron-core")
    assert "read megatron.args ($(cat megatron.args))" in made.left_out
    assert any("request 16 GPUs" in note for note in made.left_out)
    (tmp_path / "megatron.args").unlink()
    with pytest.raises(SpecError, match=r"\$\(cat FILE\) 'megatron.args': no such file in the current folder or in that of the script"):
        made_of(str(tmp_path / "torchrun.sh"), tmp_path)


def test_sizes_of_the_catalogs_model_may_be_in_a_file_as_well(tmp_path: Path) -> None:
    """As `plan --export` writes them for a model of the catalog."""
    assert (
        main(
            [
                "plan",
                "hgx-h100",
                "llama-3.2-1b",
                "--gpus",
                "8",
                "--stack",
                "megatron-core",
                "--global-batch",
                "64",
                "--export",
                str(tmp_path / "e"),
            ]
        )
        == 0
    )
    made = new_workload(["llama-3.2-1b", str(tmp_path / "e" / "torchrun.sh")], tmp_path / "mine.yaml")
    assert load_workload(str(made.path)).spec.model.name == "llama-3.2-1b"
    with pytest.raises(SpecError, match="2 model configurations; name one"):
        new_workload(["llama-3.1-8b", str(tmp_path / "e" / "torchrun.sh")], tmp_path / "other.yaml")
