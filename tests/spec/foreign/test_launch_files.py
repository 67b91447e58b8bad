"""What do launch files say of stages, exchanges and degrees, and which are refused? By the programs' own rules for what they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from sim.spec.foreign.launch_accelerate import EAGER, accelerate, accelerate_options
from sim.spec.foreign.launch_deepspeed import deepspeed
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_scripts import launch_script
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.yaml import SpecError

TITAN = {"model": {"name": "llama3", "flavor": "8B"}, "training": {"seq_len": 8192}}
PIPED = {"pipeline_parallel_degree": 4}
LOOPED = {**PIPED, "pipeline_parallel_schedule": "Interleaved1F1B"}
NAMED = [["tok_embeddings", *[f"layers.{n}" for n in range(5)]], ["layers.5"], [f"layers.{n}" for n in range(6, 32)], ["norm", "output"]]
SIZES = (
    "--num-layers 32 --hidden-size 64 --num-attention-heads 2 --padded-vocab-size 1024 --position-embedding-type rope "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
)


def titan(layout: dict[str, Any], training: dict[str, Any] | None = None) -> LaunchSettings:
    return torchtitan({**TITAN, "training": {**TITAN["training"], **(training or {})}, "parallelism": layout}, "t.toml")


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (LOOPED, {"virtual_stages": 2}),
        ({**LOOPED, "pipeline_parallel_layers_per_stage": 3}, {"virtual_stages": 3}),  # ceil(34 / 3) = 12 stages
        ({**PIPED, "pipeline_parallel_last_stage_less_layers": 1, "pipeline_parallel_first_stage_less_layers": 1}, {}),
        (
            {**PIPED, "pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 2},
            {"layers_per_stage": [9, 9, 8, 6]},
        ),
        ({**PIPED, "module_fqns_per_model_part": NAMED}, {"layers_per_stage": [5, 1, 26, 0]}),
        ({"context_parallel_degree": 2}, {"context_exchange": "all_gather"}),
        ({"context_parallel_degree": 2, "context_parallel_rotate_method": "alltoall"}, {}),
    ],
)
def test_what_torchtitan_is_told_of_stages_and_exchanges(layout: dict[str, Any], expected: dict[str, Any]) -> None:
    """torchtitan/distributed/pipeline_parallel.py; the default exchange of keys and values is an all-gather (job_config.py)."""
    parallel = titan(layout).parallel
    assert {name: parallel[name] for name in ("virtual_stages", "layers_per_stage", "context_exchange") if name in parallel} == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--num-virtual-stages-per-pipeline-rank 2", {"virtual_stages": 2}),
        ("--pipeline-model-parallel-layout 'Et*7|t*8|t*8|t*9,L'", {"layers_per_stage": [7, 8, 8, 9]}),
        ('--pipeline-model-parallel-layout "E(tt|)*14,tt|tt,L"', {"virtual_stages": 4}),
        ("--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 5", {"layers_per_stage": [7, 10, 10, 5]}),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", {"layers_per_stage": [8, 9, 8, 7]}),
        (
            "--num-layers 30 --num-virtual-stages-per-pipeline-rank 8 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split",
            {"virtual_stages": 8, "layers_per_stage": [0, *[1] * 30, 0]},
        ),
        ("--context-parallel-size 2 --cp-comm-type all_gather", {"context_exchange": "all_gather"}),
        ("--context-parallel-size 2", {}),
    ],
)
def test_what_megatron_is_told_of_stages_and_exchanges(options: str, expected: dict[str, Any]) -> None:
    parallel = megatron(SIZES + options, "m.sh").parallel
    assert {name: parallel[name] for name in ("virtual_stages", "layers_per_stage", "context_exchange") if name in parallel} == expected


def test_what_is_not_modeled_of_experts_and_context_is_named() -> None:
    """Experts are split over tensor ranks unless --expert-tensor-parallel-size is 1 (model_parallel_config.py)."""
    experts = SIZES + "--sequence-parallel --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 "
    experts += "--context-parallel-size 2 --cp-comm-type a2a"
    notes = megatron(experts, "m.sh").notes
    assert ["a2a is not modeled" in notes[0], "split over 2 tensor ranks" in notes[1]] == [True, True]
    modeled = experts.replace(" --cp-comm-type a2a", " --expert-tensor-parallel-size 1")
    assert megatron(modeled, "m.sh").notes == []
    split = megatron(experts + " --expert-tensor-parallel-size 2", "m.sh").notes
    assert len(split) == 2 and "experts split over 2 tensor ranks (--expert-tensor-parallel-size) are not modeled" in split[1]
    beside = "--expert-model-parallel-size 4 --expert-tensor-parallel-size 2 --micro-batch-size 1"  # of a model in another file
    assert "experts split over 2 tensor ranks" in "".join(megatron(beside, "m.sh").notes)


MEGATRON_LM = {
    "distributed_type": "MEGATRON_LM",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "megatron_lm_config": {
        "megatron_lm_tp_degree": 4,
        "megatron_lm_pp_degree": 2,
        "megatron_lm_num_micro_batches": 8,
        "megatron_lm_sequence_parallelism": True,
        "megatron_lm_use_distributed_optimizer": True,
        "megatron_lm_recompute_activations": True,
        "megatron_lm_gradient_clipping": 1.0,
    },
}


@pytest.mark.parametrize(
    ("off", "arguments"),
    [
        ((), "--sequence-parallel --use-distributed-optimizer --recompute-activations"),
        (("sequence_parallelism",), "--use-distributed-optimizer --recompute-activations"),
        (("use_distributed_optimizer", "recompute_activations"), "--sequence-parallel"),
    ],
)
def test_what_accelerate_passes_to_megatron(off: tuple[str, ...], arguments: str) -> None:
    """Oracle: the same of Megatron-LM's own arguments, which accelerate/utils/dataclasses.py, MegatronLMPlugin, sets."""
    block = {**MEGATRON_LM["megatron_lm_config"], **{f"megatron_lm_{name}": False for name in off}}  # type: ignore[dict-item]
    told = accelerate({**MEGATRON_LM, "megatron_lm_config": block}, "a.yaml")
    own = megatron(f"--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --bf16 {arguments}", "m.sh")
    kept = ("stack", "activation_checkpointing", "precision")
    assert told.parallel == own.parallel and told.gpus == 16 and told.notes == []
    assert told.training == {name: own.training[name] for name in kept if name in own.training} | {"gradient_accumulation_steps": 8}
    options = {name.replace("_", "-"): str(value).lower() for name, value in block.items()}
    counts = {"num-processes": "16", "num-machines": "2", "mixed-precision": "bf16", "use-megatron-lm": ""}
    line = accelerate_options({**options, **counts}, {}, "the command line")
    assert (line.parallel, line.training, line.gpus) == (told.parallel, told.training, 16)


WRITTEN = """compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config: {}
distributed_type: FSDP
downcast_bf16: 'no'
dynamo_config: {}
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: true
gpu_ids: all
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
megatron_lm_config: {}
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
"""As `accelerate config` writes it (accelerate/commands/config/cluster.py)."""


def test_all_keys_that_accelerate_writes_are_known() -> None:
    assert accelerate(yaml.safe_load(WRITTEN), "a.yaml").notes == [EAGER]


@pytest.mark.parametrize(
    ("key", "value", "note"),
    [
        ("frobnicate", 3, "ignored: frobnicate, which Accelerate does not know"),
        ("fsdp_config", {"fsdp_sharding_strategy": "FULL_SHARD", "wobble": 1}, "ignored: fsdp_config.wobble, which Accelerate does not"),
        ("parallelism_config", {"parallelism_config_sp_size": 2}, "parallelism_config.sp_size 2 is not modeled"),
        ("megatron_lm_config", {"megatron_lm_tp_degree": 2}, "megatron_lm_config is ignored, as distributed_type is FSDP"),
    ],
)
def test_keys_of_accelerate_that_are_not_read_are_named(key: str, value: object, note: str) -> None:
    notes = accelerate({**yaml.safe_load(WRITTEN), key: value}, "a.yaml").notes
    (said,) = (text for text in notes if text != EAGER)
    assert said.startswith(note)
    assert EAGER in notes


def test_accelerate_and_deepspeed_compile_nothing_unless_told_to() -> None:
    """Oracle: accelerate/utils/dataclasses.py, TorchDynamoPlugin: no backend by default; DeepSpeed's JSON has none."""
    compiled = accelerate({**yaml.safe_load(WRITTEN), "dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "a.yaml")
    assert (compiled.training["stack"], compiled.notes) == ("torchtitan-2.x", [])
    with pytest.raises(SpecError, match=r"^a\.yaml: fsdp_config\.fsdp_version '3': write 1 or 2$"):
        accelerate({"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 3}}, "a.yaml")
    for version, eager in ((1, "hf-fsdp1"), (2, "torchtitan-2.x-eager")):
        config = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": version}}
        assert accelerate(config, "a.yaml").training["stack"] == eager
    replicated = accelerate({"distributed_type": "MULTI_GPU", "dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "a.yaml")
    assert replicated.notes == ["dynamo_backend INDUCTOR is not read: the stack decides whether blocks are compiled"]
    stacks = [
        deepspeed({"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}, "d").training.get("stack") for stage in range(4)
    ]
    assert stacks == [None, *["hf-deepspeed"] * 3]
    zero = accelerate({"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 2}}, "a.yaml")
    assert zero.training["stack"] == "hf-deepspeed"
    block = {"mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 3}, "parallelism_config": {"parallelism_config_tp_size": 2}}
    assert accelerate({"distributed_type": "DEEPSPEED", **block}, "a.yaml").training["stack"] == "torchtitan-2.x-eager"


def test_keys_of_fsdp_may_lack_their_prefix() -> None:
    """accelerate/commands/launch.py, _validate_launch_command, adds it."""
    plain = {"distributed_type": "FSDP", "fsdp_config": {"sharding_strategy": "SHARD_GRAD_OP", "offload_params": False}}
    assert accelerate(plain, "a.yaml").parallel == {"shard": "parameters", "reshard_after_forward": False}


def test_split_points_of_torchtitan_are_the_first_blocks_of_stages() -> None:
    """Oracle: torchtitan/config_manager.py: ["layers.0", "layers.2"] splits before these modules, into three stages."""
    for points, blocks in (
        (["layers.8", "layers.16", "layers.28"], [8, 8, 12, 4]),
        ("layers.8,layers.16,layers.28", [8, 8, 12, 4]),
        (["layers.0", "layers.16", "norm"], [0, 16, 16, 0]),
    ):
        assert titan({**PIPED, "pipeline_parallel_split_points": points}).parallel["layers_per_stage"] == blocks
    evenly = titan({**PIPED, "pipeline_parallel_split_points": []}).parallel
    assert evenly == titan(PIPED).parallel and "layers_per_stage" not in evenly
    interleaved = titan({**LOOPED, "pipeline_parallel_split_points": [f"layers.{first}" for first in range(3, 31, 4)]}).parallel
    assert interleaved["virtual_stages"] == 2 and interleaved["layers_per_stage"] == [3, 4, 4, 4, 4, 4, 4, 5]


def test_degrees_of_torchtitan_multiply_to_the_number_of_ranks() -> None:
    """torchtitan/distributed/parallel_dims.py; expert ranks are ranks of the other axes."""
    assert titan({"data_parallel_shard_degree": 64}).ranks == 64
    degrees = {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "context_parallel_degree": 2}
    assert titan({**degrees, "data_parallel_replicate_degree": 3, "expert_parallel_degree": 2}).ranks == 96
    assert titan({"tensor_parallel_degree": 2}).ranks is titan({"data_parallel_shard_degree": -1}).ranks is None


EXPERTS = SIZES + "--num-experts 8 --expert-model-parallel-size 4"
REFUSED: dict[str, tuple[Callable[[], LaunchSettings], str]] = {
    "text as a degree": (lambda: titan({"context_parallel_degree": "2"}), "parallelism.context_parallel_degree 2: write a whole number"),
    "a negative degree": (lambda: titan({"tensor_parallel_degree": -2}), "tensor_parallel_degree -2"),
    "true as a degree": (lambda: titan({"tensor_parallel_degree": True}), "tensor_parallel_degree True"),
    "a shard degree of text": (lambda: titan({"data_parallel_shard_degree": "all"}), "data_parallel_shard_degree all"),
    "a batch of text": (lambda: titan({}, {"local_batch_size": "x"}), "training.local_batch_size x"),
    "a long sequence": (lambda: titan({}, {"seq_len": "long"}), "training.seq_len long"),
    "a micro-batch of text": (
        lambda: titan({**PIPED, "pipeline_parallel_microbatch_size": "two"}),
        "pipeline_parallel_microbatch_size two",
    ),
    "no layers a stage": (lambda: titan({**LOOPED, "pipeline_parallel_layers_per_stage": 0}), "layers_per_stage 0"),
    "stages that do not divide": (
        lambda: titan({**LOOPED, "pipeline_parallel_layers_per_stage": 5}),
        "7 stages on 4 ranks; write a multiple",
    ),
    "many stages of one": (lambda: titan({**PIPED, "pipeline_parallel_layers_per_stage": 4}), "1F1B with 9 stages on 4 ranks; write 4"),
    "a first stage of less than none": (lambda: titan({**PIPED, "pipeline_parallel_first_stage_less_layers": 99}), "do not fill 4 stages"),
    "names of too few": (lambda: titan({**PIPED, "module_fqns_per_model_part": NAMED[:2]}), "names 6 blocks, but the model has 32"),
    "names that are numbers": (lambda: titan({**PIPED, "module_fqns_per_model_part": [1, 2, 3, 4]}), "names 0 blocks"),
    "an unknown exchange": (lambda: titan({"context_parallel_degree": 2, "context_parallel_rotate_method": "ring"}), "write allgather or"),
    "split points out of order": (
        lambda: titan({**PIPED, "pipeline_parallel_split_points": ["layers.16", "layers.8", "layers.24"]}),
        'write the first block of each stage but the first, in order, such as ["layers.16"], up to layers.31',
    ),
    "split points beyond the model": (lambda: titan({**PIPED, "pipeline_parallel_split_points": ["layers.40"]}), "up to layers.31"),
    "split points that are no blocks": (lambda: titan({**PIPED, "pipeline_parallel_split_points": ["attention"]}), "up to layers.31"),
    "too few split points": (
        lambda: titan({**PIPED, "pipeline_parallel_split_points": ["layers.16"]}),
        "2 stages on 4 ranks; write 4, one more than",
    ),
    "letters": (lambda: megatron(SIZES + "--pipeline-model-parallel-layout Etx|L", "m"), "write E, t, m and L"),
    "letters without end": (lambda: megatron(SIZES + "--pipeline-model-parallel-layout E(t*9999)*9999|L", "m"), "write E, t"),
    "too few letters": (
        lambda: megatron(SIZES + "--pipeline-model-parallel-layout Et|t|t|tL", "m"),
        "has 4 blocks, but --num-layers",
    ),
    "odd parts": (
        lambda: megatron(SIZES + "--pipeline-model-parallel-layout Et*16|t*8|t*8L", "m"),
        "3 parts, which do not divide evenly over 4 stages",
    ),
    "an uneven rest": (lambda: megatron(SIZES + "--decoder-first-pipeline-num-layers 6", "m"), "do not divide over 4 stages"),
    "a stage of text": (lambda: deepspeed({"zero_optimization": {"stage": "3"}}, "d"), "write the number 0, 1, 2 or 3"),
    "two precisions": (
        lambda: deepspeed({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "d"),
        "bf16 and fp16 are both enabled",
    ),
    "an unknown precision": (
        lambda: accelerate({"distributed_type": "FSDP", "mixed_precision": "int4"}, "a"),
        "write no, fp16",
    ),
    "a stage beyond": (lambda: accelerate({"deepspeed_config": {"zero_stage": 7}}, "a"), "write 0, 1, 2 or 3"),
    "a size of text": (
        lambda: accelerate({"parallelism_config": {"tp_size": "two"}}, "a"),
        "tp_size 'two': write a whole number",
    ),
    "a board of TPUs": (lambda: accelerate({"distributed_type": "TPU"}, "a"), "distributed_type 'TPU' is not modeled; write NO, MULTI_GPU"),
    "a strategy of nothing": (
        lambda: accelerate({"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "WOBBLE"}}, "a"),
        "fsdp_config.fsdp_sharding_strategy 'WOBBLE': write FULL_SHARD",
    ),
    "seven processes on two machines": (
        lambda: accelerate({"distributed_type": "MULTI_GPU", "num_processes": 7, "num_machines": 2}, "a"),
        "num_processes 7 is not a multiple of num_machines 2; write 8",
    ),
    "a typo": (
        lambda: megatron(SIZES + "--tensor-model-paralel-size 2", "m"),
        "unknown option --tensor-model-paralel-size; did you mean --tensor-model-parallel-size?",
    ),
    "a degree of Megatron in words": (
        lambda: accelerate({"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"megatron_lm_tp_degree": "four"}}, "a"),
        "a: megatron_lm_tp_degree 'four': write a whole number, 1 or more",
    ),
    "a negative degree of Megatron": (
        lambda: accelerate({"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"megatron_lm_pp_degree": -2}}, "a"),
        "a: megatron_lm_pp_degree '-2': write a whole number, 1 or more",
    ),
    "a switch of Megatron in words": (
        lambda: accelerate({"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"megatron_lm_sequence_parallelism": "maybe"}}, "a"),
        "a: megatron_lm_sequence_parallelism 'maybe': write true or false",
    ),
    "a misspelled key of Accelerate": (
        lambda: accelerate({"distributed_type": "FSDP", "num_proceses": 8}, "a"),
        "a: unknown key num_proceses; did you mean num_processes?",
    ),
    "a misspelled key in a block": (
        lambda: accelerate({"distributed_type": "FSDP", "fsdp_config": {"fsdp_shading_strategy": "NO_SHARD"}}, "a"),
        "a: unknown key fsdp_config.fsdp_shading_strategy; did you mean fsdp_sharding_strategy?",
    ),
    "training on CPUs": (lambda: accelerate({"distributed_type": "NO", "use_cpu": True}, "a"), "a: use_cpu is true, but only"),
    "experts over tensor ranks without sequence parallelism": (
        lambda: megatron(EXPERTS, "m"),
        "m: --expert-model-parallel-size 4 with --tensor-model-parallel-size 2 needs --sequence-parallel",
    ),
    "two precisions of Megatron": (lambda: megatron(SIZES + "--bf16 --fp16", "m"), "m: --bf16 and --fp16 are both set"),
    "a micro-batch of none": (
        lambda: deepspeed({"zero_optimization": {}, "train_micro_batch_size_per_gpu": 0}, "d"),
        "d: train_micro_batch_size_per_gpu 0: write a whole number, 1 or more",
    ),
    "a Trainer's batch of none": (
        lambda: launch_script("torchrun t.py --per_device_train_batch_size 0", "t"),
        "t: --per_device_train_batch_size 0: write a whole number, 1 or more",
    ),
    "a Trainer's steps of none": (
        lambda: launch_script("torchrun t.py --gradient_accumulation_steps 0", "t"),
        "t: --gradient_accumulation_steps 0: write a whole number, 1 or more",
    ),
    "two precisions of a Trainer": (
        lambda: launch_script("torchrun t.py --per_device_train_batch_size 1 --bf16 True --fp16", "t"),
        "t: --bf16 and --fp16 are both set",
    ),
    "minus eight processes": (
        lambda: accelerate({"distributed_type": "FSDP", "num_processes": -8}, "a"),
        "num_processes '-8'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_values_are_one_sentence(case: str) -> None:
    read, message = REFUSED[case]
    with pytest.raises(SpecError) as refused:
        read()
    assert message in str(refused.value) and len(refused.value.problems) == 1


def test_a_pipeline_of_torchtitan_divides_its_local_batch() -> None:
    """Oracle: torchtitan/config/job_config.py, pipeline_parallel_microbatch_size: 1 by default, and divides local_batch_size."""
    for layout, batch, micro_batches in (
        ({}, 8, None),
        (PIPED, 1, 8),
        ({**PIPED, "pipeline_parallel_microbatch_size": 2}, 2, 4),
        ({"pipeline_parallel_microbatch_size": 2}, 8, None),
    ):
        told = titan(layout, {"local_batch_size": 8}).training
        assert (told["batch"], told.get("gradient_accumulation_steps")) == (batch, micro_batches)
    with pytest.raises(SpecError, match=r"local_batch_size 8 is not a multiple of .*_microbatch_size 3; write 9"):
        titan({**PIPED, "pipeline_parallel_microbatch_size": 3}, {"local_batch_size": 8})


def test_a_plan_of_deepspeed_reads_as_json_numbers() -> None:
    settings = deepspeed(json.loads('{"train_batch_size": 64, "zero_optimization": {"stage": 2}}'), "d")
    assert (settings.global_batch, settings.parallel) == (64, {"shard": "gradients"})
