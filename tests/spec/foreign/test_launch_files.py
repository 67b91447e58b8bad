"""What do launch files say of stages, exchanges and degrees, and which are refused? By the programs' own rules for what they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sim.spec.foreign.launch_accelerate import accelerate
from sim.spec.foreign.launch_deepspeed import deepspeed
from sim.spec.foreign.launch_megatron import megatron
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
    experts = SIZES + "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 --context-parallel-size 2 --cp-comm-type a2a"
    notes = megatron(experts, "m.sh").notes
    assert ["a2a is not modeled" in notes[0], "split over 2 tensor ranks" in notes[1]] == [True, True]
    modeled = experts.replace(" --cp-comm-type a2a", " --expert-tensor-parallel-size 1")
    assert megatron(modeled, "m.sh").notes == []


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
