"""What do the settings files of torchtitan, DeepSpeed and Accelerate become? Oracles: their keys and defaults."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sim.cli import main
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.library import load_workload
from sim.spec.strict import parse_toml
from sim.spec.yaml import SpecError
from sim.study.new.first_command import first_command
from sim.study.new.workload import new_workload
from tests.study.new.launched import SMALL, TORCHTITAN, parsed

pytestmark = pytest.mark.usefixtures("no_layout_search")


def test_what_deepspeed_and_accelerate_offload_is_named(tmp_path: Path) -> None:
    """Oracle: the files' own words; nothing is said where nothing is offloaded."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    stage = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}, "zero_hpz_partition_size": 8}
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": stage, "optimizer": {"type": "OneBitAdam"}}))
    accelerate = "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_offload_params: true}\n"
    (tmp_path / "accelerate.yaml").write_text(accelerate)
    (tmp_path / "plain.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "optimizer": {"type": "Lamb"}}))

    def said(file: str) -> tuple[str, ...]:
        made = new_workload([str(tmp_path / "config.json"), str(tmp_path / file)], tmp_path / "mine.yaml", overwrite=True)
        assert all(f"# {note}" in made.path.read_text() for note in made.left_out)
        return made.left_out

    stack, optimizer, offloaded, plus, precision = said("zero.json")
    assert stack.startswith("zero_optimization.stage 3: whole blocks are gathered")
    assert optimizer == "optimizer OneBitAdam is not modeled: the workload uses adam"
    assert offloaded.startswith("zero_optimization.offload_optimizer (cpu) is not modeled: ")
    assert plus == "zero_optimization.zero_hpz_partition_size 8 is not modeled: the workload uses plain ZeRO"
    (tmp_path / "compiled.yaml").write_text(accelerate + "dynamo_config: {dynamo_backend: INDUCTOR}\n")
    assert precision == "neither bf16 nor fp16 is enabled: used fp32, DeepSpeed's default"
    *of_accelerate, fsdp_precision = said("accelerate.yaml")
    assert fsdp_precision == "mixed_precision is missing: used fp32, Accelerate's default"
    about_blocks, offloading = sorted(of_accelerate, key=lambda note: "offload" in note)
    assert about_blocks.startswith("fsdp_config runs operator by operator")
    assert offloading.startswith("fsdp_config.fsdp_offload_params (cpu) is ")
    assert said("compiled.yaml") == (offloading, fsdp_precision)
    assert said("plain.json") == (stack, precision)
    assert load_workload(str(tmp_path / "mine.yaml")).spec.training.optimizer.name == "lamb"


@pytest.mark.parametrize(
    ("files", "precision", "stack", "note"),
    [
        ({"zero.json": '{"zero_optimization": {"stage": 2}}'}, "fp32", "hf-deepspeed", "neither bf16 nor fp16 is enabled: used fp32"),
        ({"zero.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": false}}'}, "fp32", "hf-deepspeed", "neither bf16 nor fp16"),
        ({"zero.json": '{"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}'}, "fp16", "hf-deepspeed", ""),
        ({"zero.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'}, "bf16", "hf-deepspeed", "bf16 or fp16 is auto"),
        ({"a.yaml": "distributed_type: MULTI_GPU\n"}, "fp32", "torch-2.x-ddp", "mixed_precision is missing: used fp32"),
        ({"a.yaml": "distributed_type: MULTI_GPU\nmixed_precision: bf16\n"}, "bf16", "torch-2.x-ddp", ""),
        ({"a.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"}, "fp32", "hf-deepspeed", "mixed_precision is "),
        (
            {"a.yaml": "distributed_type: DEEPSPEED\n", "zero.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'},
            "bf16", "hf-deepspeed", "",
        ),
        (
            {"zero.json": '{"zero_optimization": {"stage": 2}}', "job.sh": "torchrun train.py --per_device_train_batch_size 4 --bf16"},
            "bf16", "hf-deepspeed", "",
        ),
        (
            {
                "zero.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}',
                "job.sh": "torchrun train.py --per_device_train_batch_size 4",
            },
            "fp32", "hf-deepspeed", "--bf16 and --fp16 are missing: used fp32, the Trainer's default",
        ),
    ],
)  # fmt: skip
def test_a_precision_that_no_file_sets_is_the_default_of_the_library(
    files: dict[str, str], precision: str, stack: str, note: str, tmp_path: Path
) -> None:
    """Oracle: deepspeed/runtime/precision_config.py, where bf16 and fp16 are off; accelerate/commands/launch.py, mixed_precision "no"."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    made = new_workload([str(tmp_path / name) for name in ("config.json", *files)], tmp_path / "mine.yaml")
    training = load_workload(str(made.path)).spec.training
    assert (training.precision, training.stack.name) == (precision, stack)
    about = [each for each in made.left_out if "used fp32" in each or "used bf16" in each or "auto" in each]
    assert [each.startswith(note) for each in about] == ([True] if note else [])


def test_what_accelerate_wraps_by_size_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    sized = "fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 20000"
    (tmp_path / "accelerate.yaml").write_text(f"distributed_type: FSDP\nfsdp_config: {{fsdp_sharding_strategy: FULL_SHARD, {sized}}}\n")
    new_workload([str(tmp_path / "config.json"), str(tmp_path / "accelerate.yaml")], tmp_path / "mine.yaml")
    assert load_workload(str(tmp_path / "mine.yaml")).spec.training.parallel.wrap == 20_000


@pytest.mark.parametrize(
    ("converter", "block", "recipe", "note"),
    [
        ("quantize.linear.float8", "", "tensorwise", ""),
        ("quantize.linear.float8", '[quantize.linear.float8]\nrecipe_name = "rowwise"', "rowwise", ""),
        ("float8", '[float8]\nrecipe_name = "rowwise"', "rowwise", ""),
        ("quantize.linear.float8", '[quantize.linear.float8]\nrecipe_name = "rowwise_with_gw_hp"', "rowwise", "is read as rowwise"),
        ("quantize.linear.mx", '[quantize.linear.mx]\nrecipe_name = "mxfp8_cublas"', "mxfp8", ""),
    ],
)
def test_recipes_of_torchtitan_are_read(converter: str, block: str, recipe: str, note: str, tmp_path: Path) -> None:
    """torchtitan/config/job_config.py: Float8Linear.recipe_name, None for dynamic scaling by tensor; MXLinear.recipe_name."""
    text = TORCHTITAN.replace('"70B"', f'"70B"\nconverters = ["{converter}"]') + f"\n{block}\n"
    workload, notes = parsed(text, tmp_path, "run.toml")
    assert (workload.training.precision, workload.training.fp8_recipe) == ("fp8", recipe)
    assert note in "".join(notes)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ('[quantize.linear.float8]\nrecipe_name = "columnwise"', "recipe_name columnwise; supported: tensorwise, rowwise and"),
        ("[quantize]\nlinear = 3", "linear is a single value; expected a block of keys"),
    ],
)
def test_recipes_that_torchtitan_has_not_are_refused(block: str, said: str, tmp_path: Path) -> None:
    text = TORCHTITAN.replace('"70B"', '"70B"\nconverters = ["quantize.linear.float8"]') + f"\n{block}\n"
    with pytest.raises(SpecError, match=re.escape(said)):
        parsed(text, tmp_path, "run.toml")


def test_a_global_batch_of_torchtitan_is_a_number_or_absent(tmp_path: Path) -> None:
    """Oracle: torchtitan/config/job_config.py, where -1 means the local batches of all ranks."""

    def told(value: object) -> int | None:
        path = tmp_path / "run.toml"
        path.write_text(TORCHTITAN.replace("[training]", f"[training]\nglobal_batch_size = {value}"))
        new_workload([str(path)], tmp_path / "mine.yaml", overwrite=True)
        return torchtitan(parse_toml(path.read_text(), "run.toml"), "run.toml").global_batch

    assert (told(-1), told(64)) == (None, 64)
    line = TORCHTITAN.splitlines().index("[training]") + 2
    for value, message in (
        (10**79, rf"run\.toml:{line}: 10+\.\.\. is too large for a whole number"),
        (0, r"run\.toml: training\.global_batch_size 0: write a whole number, 1 or more"),
        ('"64"', r"run\.toml: training\.global_batch_size 64: write a whole number, 1 or more, without quotes"),
    ):
        with pytest.raises(SpecError, match=message):
            told(value)


@pytest.mark.parametrize(
    ("text", "typo", "message"),
    [
        ("tensor_parallel_degree", "tensor_parallel_degre", "parallelism.tensor_parallel_degre; did you mean tensor_parallel_degree?"),
        ("local_batch_size", "local_batchsize", "training.local_batchsize; did you mean local_batch_size?"),
        ("[activation_checkpoint]", "[activation_checkpoints]", "activation_checkpoints; did you mean activation_checkpoint?"),
    ],
)
def test_misspelled_fields_of_torchtitan_are_refused(text: str, typo: str, message: str) -> None:
    """As torchtitan's own parser does (torchtitan/config/manager.py of release 0.2); read as left out, it would be another layout."""
    assert text in TORCHTITAN
    with pytest.raises(SpecError, match=rf"run\.toml: unknown key {re.escape(message)}$"):
        torchtitan(parse_toml(TORCHTITAN.replace(text, typo), "run.toml"), "run.toml")


def test_settings_of_torchtitan_that_are_not_modeled_are_named(tmp_path: Path) -> None:
    """Oracle: torchtitan/config/job_config.py."""
    workload, notes = parsed(TORCHTITAN.replace('"70B"', '"70B"\nconverters = ["quantize.linear.mx"]'), tmp_path, "run.toml")
    assert workload.training.precision == "fp8"
    assert notes == ("hgx-h100 lacks the data types of the launch files; the command below uses hgx-b200",)
    text = TORCHTITAN.replace('mode = "full"', 'mode = "selective"\nselective_ac_option = "2"') + '[optimizer]\nname = "Lion"\n'
    text = text.replace("[parallelism]", "[compile]\nenable = false\n[fault_tolerance]\n[parallelism]\nenable_async_tensor_parallel = true")
    workload, notes = parsed(text, tmp_path, "run.toml")
    training = workload.training  # every second of the 40 blocks of a rank
    assert (training.activation_checkpointing, training.recompute_blocks) == ("blocks", 20)
    assert parsed(text.replace('= "2"', '= "1"'), tmp_path, "run.toml")[0].training.recompute_blocks == 0
    assert notes == (
        "optimizer Lion is not modeled: the workload uses adam",
        "parallelism.enable_async_tensor_parallel is not modeled: tensor ranks wait for their collectives",
        "ignored: [fault_tolerance]",
    )
    assert parsed(TORCHTITAN + '[optimizer]\nname = "Muon"\n', tmp_path, "run.toml")[0].training.optimizer.name == "muon"


@pytest.mark.parametrize(
    ("section", "stack"),
    [
        ("", "torchtitan-2.x-eager"),
        ("[compile]\n", "torchtitan-2.x-eager"),
        ("[compile]\nenable = false\n", "torchtitan-2.x-eager"),
        ("[compile]\nenable = true\n", "torchtitan-2.x"),
        ('[compile]\nenable = true\ncomponents = ["loss"]\n', "torchtitan-2.x-eager"),
        ('[compile]\nenable = true\ncomponents = ["model"]\n', "torchtitan-2.x"),
    ],
)
def test_blocks_are_compiled_only_if_a_file_of_torchtitan_says_so(section: str, stack: str, tmp_path: Path) -> None:
    """Oracle: torchtitan/config/job_config.py, Compile: enable is false by default, components are model and loss."""
    workload, notes = parsed(TORCHTITAN + section, tmp_path, "run.toml")
    assert (workload.training.stack.name, notes) == (stack, ())
    former = TORCHTITAN.replace("[training]\n", "[training]\ncompile = true\n")
    assert parsed(former, tmp_path, "run.toml")[0].training.stack.name == "torchtitan-2.x"
    for wrong in ('enable = "yes"', 'components = ["optimizer"]'):
        with pytest.raises(SpecError, match=rf"run\.toml: compile\.{wrong.split(' ')[0]} "):
            torchtitan(parse_toml(f"{TORCHTITAN}[compile]\n{wrong}\n", "run.toml"), "run.toml")
    with pytest.raises(SpecError, match=r"unknown key compile\.enabled; did you mean enable\?$"):
        torchtitan(parse_toml(f"{TORCHTITAN}[compile]\nenabled = true\n", "run.toml"), "run.toml")


def test_sections_of_former_releases_of_torchtitan(tmp_path: Path) -> None:
    """Oracle: torchtitan/config_manager.py of 2024, whose train_configs had degrees in [training] and [experimental]."""
    degrees = "tensor_parallel_degree = 8\ndata_parallel_shard_degree = 4\n"
    former = TORCHTITAN.replace("[parallelism]\ntensor_parallel_degree = 8\n", f"{degrees}enable_float8_linear = true\n[experimental]\n")
    latter = TORCHTITAN.replace('"70B"', '"70B"\nconverters = ["float8"]').replace("tensor_parallel_degree = 8\n", degrees)
    assert "[experimental]" in former
    assert parsed(former, tmp_path, "run.toml") == parsed(latter, tmp_path, "run.toml")
    assert parsed(former.replace("data_parallel_shard_degree", "data_parallel_degree"), tmp_path, "run.toml") == parsed(
        latter, tmp_path, "run.toml"
    )
    other = former.replace("[experimental]", '[experimental]\ncustom_import = "mine"')
    assert "ignored: [experimental]" in parsed(other, tmp_path, "run.toml")[1]
    small = parsed(former.replace("llama3", "llama2"), tmp_path, "run.toml")[0]
    assert small.model.transformer is not None and small.model.transformer.vocab == 32000


def test_former_releases_of_torchtitan_divide_a_batch_into_a_number_of_micro_batches(tmp_path: Path) -> None:
    """Oracle: --help of 2024, pipeline_parallel_microbatches: "The default value will be the number of pipeline stages, if unspecified"."""
    former = TORCHTITAN.replace("local_batch_size = 4", "batch_size = 8").replace("[parallelism]", "[experimental]")
    given = former.replace("[experimental]", "[experimental]\npipeline_parallel_microbatches = 8")
    for text, expected in ((former, (2, 4)), (former.replace("Interleaved1F1B", "1F1B"), (4, 2)), (given, (1, 8))):
        training = parsed(text, tmp_path, "run.toml")[0].training
        assert (training.batch, training.gradient_accumulation_steps) == expected
    with pytest.raises(SpecError, match=r"batch_size 8 is not a multiple of its 3 micro-batches .* write 9"):
        parsed(given.replace("microbatches = 8", "microbatches = 3"), tmp_path, "run.toml")


def test_a_global_batch_of_deepspeed_keeps_its_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 256 samples over 8 GPUs in micro-batches of 4 take 8 of them, with ZeRO or without."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    for stage in (0, 2):
        zero = {"zero_optimization": {"stage": stage}, "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}
        Path("zero.json").write_text(json.dumps(zero | {"bf16": {"enabled": True}}))
        made = new_workload(["config.json", "zero.json"], Path("mine.yaml"), overwrite=True)
        mesh = load_workload(str(made.path)).spec.training.mesh
        assert not made.left_out and (mesh is not None and (mesh.weights, mesh.master) == ("bf16", True)) == (stage == 2)
        command = first_command("mine.yaml", "mine.yaml", 256)
        said = capture(shlex.split(command)[3:])
        assert (said["batch_per_gpu"], round(said["throughput_samples_per_s"] * said["step_time_s"])) == (4, 256)


def capture(words: list[str]) -> dict[str, Any]:
    """Return the JSON document that the command of *words* prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--json", "--fast"]) == 0
    return json.loads(printed.getvalue())  # type: ignore[no-any-return]
