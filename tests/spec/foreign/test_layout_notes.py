"""Is anything of a layout lost in a launch file without a note? Every field of the layout, and of the stack, in every format."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest
import yaml

from sim.report.layouts.layout_files import launch_of
from sim.spec.foreign.layout_files import launch_files
from sim.spec.foreign.layout_launch import Launch
from sim.spec.foreign.layout_notes import READERS
from sim.spec.library import load_part, load_workload
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.stack import Stack
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.scenario import Scenario
from tests.study.plan.planned import outcome_of

NAMES = {"sequence_parallel": "sequence", "chunks": "virtual_stages"}


def plain(**changes: Any) -> Launch:
    """Return a run of Llama 3.1 8B on two nodes of eight GPUs, with *changes*."""
    shape = load_workload("llama-3.1-8b").spec.model.transformer
    launch = Launch("own", "llama-3.1-8b", shape, False, 8192, Parallel(), 16, 1, 4, "none", "bf16", 2, 8, "H100")
    return launch._replace(**changes)


def stack(name: str) -> Stack:
    return load_part(Stack, name)


def read_fields(file: str, text: str, launch: Launch) -> dict[str, Any]:
    """Return what *file* says of the fields of a layout and of training, by the readers of launch files alone."""
    settings = READERS[file](text)
    parallel = Parallel.model_validate(settings.parallel)
    fields = {name: getattr(parallel, name) for name in Parallel.model_fields if name not in ("sequence", "schedule", "virtual_stages")}
    batch = settings.training.get("batch")
    return fields | {
        "sequence_parallel": parallel.sequence_parallel, "chunks": parallel.chunks, "batch": batch,
        "schedule": parallel.schedule or ("1f1b" if parallel.virtual_stages == 1 else "interleaved_1f1b"),
        "precision": settings.training.get("precision", "fp32"), "fp8_recipe": settings.training.get("fp8_recipe"),
        "activation_checkpointing": settings.training.get("activation_checkpointing", "none"),
        "global_batch": settings.global_batch if settings.global_batch or file != "accelerate.yaml" else None,
    }  # fmt: skip


def meant_fields(launch: Launch) -> dict[str, Any]:
    parallel = launch.parallel
    fields = {name: getattr(parallel, name) for name in Parallel.model_fields if name not in ("sequence", "schedule", "virtual_stages")}
    return fields | {
        "sequence_parallel": parallel.sequence_parallel, "chunks": parallel.chunks, "batch": launch.batch,
        "schedule": parallel.schedule or ("1f1b" if parallel.virtual_stages == 1 else "interleaved_1f1b"),
        "precision": launch.precision, "fp8_recipe": launch.fp8_recipe, "activation_checkpointing": launch.checkpointing,
        "global_batch": launch.global_batch,
    }  # fmt: skip


def without_effect(field: str, launch: Launch, value: object) -> bool:
    """Return whether a field that reads back as *value* has the same effect in *launch*."""
    parallel = launch.parallel
    if field == "reshard_after_forward":
        return value in (None, parallel.pipeline == 1) and parallel.reshard_after_forward in (None, parallel.pipeline == 1)
    if field == "precision":
        return str(value).removeprefix("amp_") == launch.precision.removeprefix("amp_")
    return field == "context_exchange" and parallel.context == 1


def require_all_said(launch: Launch) -> set[str]:
    """Check that what is written of *launch* reads back equal or is named in a note; return the names of the files."""
    written = launch_files(launch, "sim run")
    for file in READERS:
        if file not in written.files:
            assert written.left_out[file].count(".") <= 3 and "\n" not in written.left_out[file]
            assert f"no {file}: " in written.files["notes.txt"]
            continue
        notes = " ".join(note for note in written.notes if note.startswith(f"{file}: "))
        read, meant = read_fields(file, written.files[file], launch), meant_fields(launch)
        for field, value in meant.items():
            if read[field] != value and not without_effect(field, launch, read[field]):
                word = "micro_batches" if field == "global_batch" else NAMES.get(field, field)
                assert f"{word} " in notes, (file, field, value, read[field], written.notes)
        if file.endswith((".toml", ".yaml")):
            assert all(f"# {note.removeprefix(f'{file}: ')}\n" in written.files[file] for note in written.notes if note.startswith(file))
        assert all(note in written.files["notes.txt"] for note in written.notes)
    return set(written.files)


CHANGES: dict[str, dict[str, Any]] = {
    "tensor": {"tensor": 2}, "sequence": {"tensor": 2, "sequence": False}, "pipeline": {"pipeline": 4}, "context": {"context": 2},
    "context_exchange": {"context": 2, "context_exchange": "all_gather"}, "expert": {"expert": 2},
    "replicate": {"shard": "parameters", "replicate": 2}, "many replicas": {"shard": "parameters", "replicate": 4},
    "replicas of an optimizer": {"shard": "optimizer", "replicate": 2}, "parameters": {"shard": "parameters"},
    "gradients": {"shard": "gradients"}, "optimizer": {"shard": "optimizer"},
    "kept": {"shard": "parameters", "reshard_after_forward": False}, "freed": {"shard": "parameters", "reshard_after_forward": True},
    "groups": {"shard": "parameters", "reshard_after_forward": 4},
    "freed in a pipeline": {"shard": "parameters", "pipeline": 2, "reshard_after_forward": True},
    "wrap": {"shard": "parameters", "wrap": 100_000_000}, "patterns": {"shard": "parameters", "wrap": ("layers.*",)},
    "schedule": {"pipeline": 4, "schedule": "gpipe"}, "zb_h1": {"pipeline": 4, "schedule": "zb_h1"},
    "zbv": {"pipeline": 4, "schedule": "zbv"}, "chunks": {"pipeline": 4, "virtual_stages": 2},
    "unequal": {"pipeline": 4, "layers_per_stage": (6, 8, 9, 9)}, "cuts": {"pipeline": 2, "cuts": ("layers.3",)},
    "near": {"tensor": 2, "pipeline": 2, "order": ("tensor", "context", "pipeline", "data")},
    "order": {"tensor": 2, "pipeline": 2, "order": ("pipeline", "context", "data", "tensor")},
    "order of two": {"shard": "parameters", "tensor": 2, "order": ("data", "context", "tensor", "pipeline")},
    "imbalance": {"expert": 2, "expert_imbalance": 1.5}, "capacity": {"capacity_factor": 1.25},
    "padded": {"capacity_factor": 1.25, "pad_to_capacity": True},
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_each_field_of_a_layout_is_written_or_named(case: str) -> None:
    parallel = Parallel(**CHANGES[case])
    data = 16 // parallel.model_ranks
    for sharded in ({}, {"shard": "parameters"}, {"shard": "optimizer"}):
        launch = plain(parallel=Parallel(**(sharded | CHANGES[case])), data=data)
        require_all_said(launch)
        require_all_said(launch._replace(stack=stack("torch-fsdp1")))


@pytest.mark.parametrize("checkpointing", ["none", "model", "blocks", "selective", "operators"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp_fp16", "amp_bf16", "fp16", "bf16"])
def test_each_precision_and_recomputation_is_written_or_named(checkpointing: str, precision: str) -> None:
    for shard in ("none", "optimizer", "parameters"):
        require_all_said(plain(parallel=Parallel(shard=shard), checkpointing=checkpointing, precision=precision))


def test_the_version_of_fsdp_is_the_stacks() -> None:
    """FSDP1 has strategies, FSDP2 a switch (torch ShardingStrategy, fully_shard); kept weights are SHARD_GRAD_OP, not ZeRO-2."""
    for kept, replicate, strategy in ((None, 1, "FULL_SHARD"), (False, 1, "SHARD_GRAD_OP"), (False, 2, "HYBRID_SHARD_ZERO2")):
        parallel = Parallel(shard="parameters", reshard_after_forward=kept, replicate=replicate)
        files = launch_files(plain(parallel=parallel, stack=stack("torch-fsdp1")), "").files
        block = yaml.safe_load(files["accelerate.yaml"])["fsdp_config"]
        assert (block["fsdp_version"], block["fsdp_sharding_strategy"]) == (1, strategy)
        assert (block["fsdp_backward_prefetch"], block["fsdp_forward_prefetch"]) == ("BACKWARD_PRE", False)
        assert Parallel(**READERS["accelerate.yaml"](files["accelerate.yaml"]).parallel) == parallel
        second = launch_files(plain(parallel=parallel, stack=stack("torchtitan-2.x")), "").files
        block = yaml.safe_load(second["accelerate.yaml"])["fsdp_config"]
        assert (block["fsdp_version"], block["fsdp_reshard_after_forward"]) == (2, kept is not False)


def test_kept_weights_are_named_where_zero_gathers_them_again() -> None:
    launch = plain(parallel=Parallel(shard="parameters", reshard_after_forward=False))
    notes = launch_files(launch, "").notes
    assert "deepspeed.json: DeepSpeed runs reshard_after_forward true, not false as planned" in notes


def test_the_stack_that_was_simulated_is_named_where_it_is_not_the_files() -> None:
    """A file for another program, and one for the same with options that it does not set."""
    notes = launch_files(plain(stack=stack("megatron-core")), "").notes
    assert "torchtitan.toml: time and memory are those of stack megatron-core, not of torchtitan" in notes
    assert not [note for note in notes if note.startswith("megatron.args: time")]
    written = launch_files(plain(stack=stack("nemo"), parallel=Parallel(shard="optimizer")), "")
    assert "--grad-reduce-in-bf16\n" in written.files["megatron.args"]
    (note,) = [note for note in written.notes if note.startswith("megatron.args: time")]
    assert "tensor_overlap 0.6" in note and "reduction" not in note
    deepspeed = launch_files(plain(stack=stack("megatron-deepspeed")), "")
    assert not [note for note in deepspeed.notes if note.startswith("deepspeed.json: time")]


def test_blocks_are_compiled_as_simulated() -> None:
    for name, compiled in (("torchtitan-2.x", True), ("torchtitan-2.x-eager", False), ("megatron-core", True)):
        made = launch_files(plain(parallel=Parallel(shard="parameters"), stack=stack(name)), "")
        assert tomllib.loads(made.files["torchtitan.toml"])["compile"] == {"enable": compiled}
        if name != "megatron-core":
            assert READERS["torchtitan.toml"](made.files["torchtitan.toml"]).training["stack"] == name
            assert not [note for note in made.notes if note.startswith("torchtitan.toml")]


@pytest.mark.parametrize("name", [name for name in MeshOptions.model_fields if name.endswith("_host")])
def test_times_of_a_host_are_no_options_of_a_program(name: str) -> None:
    own = stack("torchtitan-2.x")
    assert own.mesh is not None
    slower = own.model_copy(update={"mesh": own.mesh.model_copy(update={name: 1e-3})})
    assert launch_files(plain(stack=slower), "").notes == launch_files(plain(stack=own), "").notes


def test_torchrun_starts_the_program_of_the_stack() -> None:
    """Of a layout that both torchtitan and Megatron-LM can run, the one that was simulated."""
    starts = {name: launch_files(plain(stack=stack(name)), "").files["torchrun.sh"] for name in ("torchtitan-2.x", "megatron-core")}
    assert "torchtitan.train" in starts["torchtitan-2.x"] and "pretrain_gpt.py" in starts["megatron-core"]


def test_spot_prices_ask_for_spot_machines() -> None:
    resources = [yaml.safe_load(launch_files(plain(is_spot=spot), "").files["skypilot.yaml"])["resources"] for spot in (True, False)]
    assert [each.get("use_spot", False) for each in resources] == [True, False]


def test_plain_data_parallelism_is_accelerates_multi_gpu() -> None:
    """A stack without layouts is torch's DistributedDataParallel, whose 16 bits are autocast."""
    launch = plain(shape=None, stack=stack("torch-2.x-ddp"), precision="amp_bf16")
    written = launch_files(launch, "")
    assert yaml.safe_load(written.files["accelerate.yaml"])["distributed_type"] == "MULTI_GPU"
    assert [note for note in written.notes if note.startswith("accelerate")] == [
        "accelerate.yaml: your training script must set batch 1, micro_batches 4"
    ]
    assert any("precision bf16, not amp_bf16" in note for note in written.notes if note.startswith("deepspeed"))


@pytest.mark.parametrize(
    ("model", "stack_name", "sets"),
    [
        ("llama-3.1-8b", "torchtitan-2.x", ()), ("llama-3.1-8b", "megatron-core", ()), ("llama-3.1-8b", "nemo", ()),
        ("llama-3.1-8b", "torch-fsdp1", ()), ("llama-3.1-8b", "xla-fsdp", ()), ("llama-3.2-1b", "megatron-deepspeed", ()),
        ("llama-3.2-1b", "nanotron", ()),
        ("qwen3-30b-a3b", "megatron-core", ("training.parallel={expert: 2, capacity_factor: 1.25, pad_to_capacity: true}",)),
        ("qwen3-30b-a3b", "torchtitan-2.x", ("training.parallel={expert: 2, capacity_factor: 1.25, expert_imbalance: 1.5}",)),
        ("llama-3.1-8b", "megatron-core", ("training.activation_checkpointing=blocks", "training.recompute_blocks=4")),
        ("llama-3.1-8b", "megatron-core", ("training.recompute_modules=[mlp]",)),
    ],
)  # fmt: skip
def test_layouts_of_a_plan_read_back_equal_or_are_named(model: str, stack_name: str, sets: tuple[str, ...]) -> None:
    allowed = {"selective", "gpipe"} if stack_name == "torchtitan-2.x" else set()
    question = PlanQuestion(Scenario("hgx-h100", model, sets, global_batch=64, stack=stack_name), (2,), allowed=frozenset(allowed))
    plan, draw, files = prepare_plan(question), random.Random(5), set[str]()
    for setting, every in plan.layouts:
        for candidate in draw.sample(every, min(50, len(every))):
            files |= require_all_said(launch_of(plan, outcome_of(setting, candidate)))
    assert files & set(READERS) or model == "llama-3.2-1b"


@pytest.mark.parametrize("blocks", [20, 24])
def test_overlap_of_experts_is_written_for_megatron(blocks: int) -> None:
    """Oracle: megatron/training/arguments.py, ``--overlap-moe-expert-parallel-comm``, which needs expert ranks."""
    megatron_core = stack("megatron-core")
    assert megatron_core.mesh is not None
    options = {"one_copy": True, "paired_schedules": ("1f1b", "interleaved_1f1b"), "expert_blocks": blocks}
    own = megatron_core.model_copy(update={"mesh": megatron_core.mesh.model_copy(update=options)})
    shape = load_workload("mixtral-8x7b").spec.model.transformer
    for expert in (8, 1):
        written = launch_files(plain(model="mixtral-8x7b", shape=shape, stack=own, parallel=Parallel(expert=expert, shard="optimizer")), "")
        assert not [note for note in written.notes if note.startswith("megatron.args: time")]
        lines = written.files["megatron.args"].splitlines()
        assert ("--overlap-moe-expert-parallel-comm" in lines) == (f"--moe-deepep-num-sms {blocks}" in lines) == (expert > 1)
        assert ("--moe-token-dispatcher-type flex" in lines) == (expert > 1)


def test_what_a_stack_fuses_is_named_where_the_model_has_it() -> None:
    """Megatron-LM refuses the fused rotation of latent attention without YaRN (transformer_config.py, MLATransformerConfig)."""
    latent = load_workload("deepseek-v2-lite").spec.model.transformer
    for name, shape, named in (("nemo", plain().shape, False), ("megatron-core", plain().shape, False), ("megatron-core", latent, True)):
        written = launch_files(plain(shape=shape, parallel=Parallel(shard="optimizer"), stack=stack(name)), "")
        assert ("--no-rope-fusion" in written.files["megatron.args"]) is named
        assert ("with fused_latents true" in " ".join(written.notes)) is named
        assert "fused_squares" not in " ".join(written.notes)
    unfused = launch_files(plain(shape=latent, parallel=Parallel(shard="optimizer"), stack=stack("nemo")), "")
    assert "fused_latents" not in " ".join(unfused.notes)
