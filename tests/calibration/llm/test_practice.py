"""Oracles: what a framework's name says beside it, what sharding sends, and what a network or a GPU lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.constants import fitted_constants
from calibration.llm.describe import describe
from calibration.llm.engine import memory_need, workload_document
from calibration.llm.priors import defaults
from calibration.llm.table import read_table
from sim.spec.fields import Precision
from sim.spec.foreign.launch_accelerate import accelerate
from sim.spec.foreign.launch_deepspeed import deepspeed
from sim.spec.foreign.launch_scripts import launch_script
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.layer import WIDTHS
from sim.spec.parallel import SHARDS
from sim.spec.precision import PRECISION_TRAITS
from sim.study.new.length import with_defaults
from tests.calibration.llm.tables import table
from tests.calibration.llm.test_case import one

PREDICTIONS: Final = (closed_form.predict, engine.predict)


def test_replicas_of_a_sharded_model_only_sum_gradients_between_nodes(tmp_path: Path) -> None:
    """Oracle: over a slow network, a rank's shard of 32-bit gradients crosses its NIC almost twice in each micro-batch."""
    row = {"framework": "FSDP", "nodes": "4", "gpus": "32", "dp": "32", "zero_stage": "", "network": "100GbE", "global_batch": "32"}
    case, full_shard = (one(tmp_path, **row, fsdp_mode=mode) for mode in ("HYBRID_SHARD", "FULL_SHARD"))
    crossing = 2 * (3 / 4) * 8.03e9 * 4 / 8 / (100e9 / 8 / 8)
    for predict in (closed_form.predict, engine.predict):
        assert crossing < predict(case, defaults()).step_time < 2 * crossing + 2.0
    assert memory_need(case).nbytes > memory_need(full_shard).nbytes + 8.03e9 * (1 / 8 - 1 / 32) * 12


@pytest.mark.parametrize(
    ("framework", "stage"),
    [
        ("DeepSpeed ZeRO-3.", 3), ("HF Trainer + DeepSpeed stage 2", 2), ("Megatron-DeepSpeed (ZeRO-1)", 1), ("HF Accelerate (ds_z3)", 3),
        ("torch FSDP SHARD_GRAD_OP", 2), ("Megatron-LM + distributed optimizer", 1), ("Megatron-LM, no distributed optimizer", 0),
        ("DeepSpeed 0.14", 0), ("Megatron-LM, 8-bit optim", 0),
    ],
)  # fmt: skip
def test_a_stage_beside_the_framework_s_name(tmp_path: Path, framework: str, stage: int) -> None:
    blank = {"zero_stage": "", "fsdp_mode": "", "status": "oom"}
    assert one(tmp_path, framework=framework, **blank).zero == stage
    assert one(tmp_path, framework=framework, **blank | {"zero_stage": "1"}).zero == 1, "the column wins"
    if stage > 1:
        assert one(tmp_path, framework=framework, **blank, dp="", tp="", pp="", cp="").data == 8


def test_ranks_that_divide_sequences_are_refused(tmp_path: Path) -> None:
    """DeepSpeed-Ulysses; Megatron's sequence parallelism uses the tensor ranks."""
    described = {sp: describe(read_table(table(tmp_path, [{"sp": sp, "tp": "2", "dp": "4"}]))[0]) for sp in ("8", "2", "1", "yes", "")}
    assert described.pop("8") == "sp 8: ranks that divide sequences beside tp 2 (Ulysses) are not modeled"
    assert all(isinstance(case, Case) for case in described.values())
    for written in ("Ulysses", "ulysses=8", "ring attention"):
        assert "not modeled" in str(describe(read_table(table(tmp_path, [{"sp": written, "tp": "2", "dp": "4"}]))[0]))
    assert one(tmp_path, sp="ulysses=1").sequence_parallel is False


def test_a_strategy_that_shards_nothing_is_no_default_of_fsdp(tmp_path: Path) -> None:
    """A blank cell, or FSDP without a strategy, is what the software does by default; ``DDP`` says that it does not."""
    stages = {mode: one(tmp_path, framework="torchtitan", fsdp_mode=mode, zero_stage="").zero for mode in ("DDP", "none", "", "FSDP")}
    assert stages == {"DDP": 0, "none": 0, "": 3, "FSDP": 3}
    assert one(tmp_path, framework="NeMo", fsdp_mode="none", zero_stage="").zero == 1, "its optimizer is distributed"


def test_words_for_attention_in_several_kernels(tmp_path: Path) -> None:
    said = {text: one(tmp_path, flash_attention=text).flash for text in ("eager", "math", "unfused", "sdpa", "FA3", "cuDNN", "")}
    assert said == {"eager": False, "math": False, "unfused": False, "sdpa": True, "FA3": True, "cuDNN": True, "": True}


def test_half_precision_where_the_gpu_has_no_bfloat16(tmp_path: Path) -> None:
    notes = {gpu: one(tmp_path, gpu=gpu, precision="bf16", status="oom").assumptions for gpu in ("V100", "A100")}
    assert "fp16: V100-SXM2-32GB has no bf16" in notes["V100"]
    assert not any("has no bf16" in note for note in notes["A100"])


def test_a_tpu_is_no_gpu(tmp_path: Path) -> None:
    """The catalog has boards of TPUs, which are joined in a torus, for data-parallel runs."""
    for name in ("TPU v3", "TPU-v2", "TPU v5p"):
        assert describe(read_table(table(tmp_path, [{"gpu": name}]))[0]) == f"no description of the GPU {name!r}"


def test_software_that_nobody_knows_widens_the_interval(tmp_path: Path) -> None:
    megatron, oneflow = (fitted_constants("someone").interval(one(tmp_path, framework=name)) for name in ("Megatron-LM", "OneFlow"))
    assert oneflow[1] > 1.05 * megatron[1]


def test_tcp_is_the_transport_of_a_network_that_says_so(tmp_path: Path) -> None:
    row = {"nodes": "2", "gpus": "16", "dp": "16"}
    transports = {
        network: engine.hardware_of(one(tmp_path, **row, network=network)).groups[0].node.nic for network in ("25GbE TCP", "25GbE")
    }
    assert [(nic.transport.name, nic.gpudirect) for nic in transports.values() if nic] == [("tcp", False), ("infiniband", True)]


@pytest.mark.parametrize(
    ("row", "compiled"),
    [
        ({"compile": "yes"}, True), ({"compile": "no"}, False), ({}, False), ({"framework": "torchtitan (FSDP2 + torch.compile)"}, True),
        ({"notes": "compiled blocks"}, True), ({"notes": "no torch.compile"}, False), ({"notes": "compile=False"}, False),
        ({"notes": "without compile", "compile": "yes"}, True), ({"framework": "FSDP2", "compile": "true"}, True),
        ({"notes": "no torch compile"}, False), ({"notes": "not using torch.compile"}, False), ({"notes": "torch.compile is off"}, False),
        ({"notes": "NCCL compiled from source"}, False), ({"compile": "eager"}, False), ({"compile": "inductor"}, True),
    ],
)  # fmt: skip
def test_blocks_are_compiled_only_if_a_row_says_so(tmp_path: Path, row: dict[str, str], compiled: bool) -> None:
    """By default, neither torchtitan (config/job_config.py, Compile) nor torch compiles anything."""
    case = one(tmp_path, **{"framework": "torchtitan", "zero_stage": "3", "status": "oom", **row})
    assert (case.is_compiled, case.stack) == (compiled, "torchtitan-2.x" if compiled else "torchtitan-2.x-eager")
    assert ("not compiled, which is the default" in case.assumptions) == (row == {} or "NCCL" in row.get("notes", ""))


FSDP = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1}}
SECOND = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
INDUCTOR = {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}


def zero(stage: int) -> LaunchSettings:
    return deepspeed({"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}, "d.json")


@pytest.mark.parametrize(
    ("row", "launched"),
    [
        ({"framework": "HF Accelerate", "fsdp_mode": "FULL_SHARD"}, accelerate(FSDP, "a.yaml")),
        ({"framework": "HF Accelerate", "fsdp_mode": "FSDP2"}, accelerate(SECOND, "a.yaml")),
        ({"framework": "HF Accelerate", "fsdp_mode": "FULL_SHARD", "compile": "yes"}, accelerate({**FSDP, **INDUCTOR}, "a.yaml")),
        ({"framework": "LLaMA-Factory with ds_z2_config"}, zero(2)),
        ({"framework": "HF Trainer ZeRO-3"}, zero(3)),
        ({"framework": "torchtitan", "fsdp_mode": "FULL_SHARD"}, torchtitan({"model": {"name": "llama3", "flavor": "8B"}}, "t.toml")),
    ],
)
def test_a_row_and_the_launch_file_of_the_same_run_have_the_same_stack(
    tmp_path: Path, row: dict[str, str], launched: LaunchSettings
) -> None:
    case = one(tmp_path, **{"zero_stage": "", "fsdp_mode": "", "status": "oom", **row})
    assert case.stack == launched.training["stack"]
    assert SHARDS[case.zero] == launched.parallel["shard"]


def test_compiled_zero_says_that_it_is_not_described(tmp_path: Path) -> None:
    case = one(tmp_path, framework="HF Trainer ZeRO-2", zero_stage="", fsdp_mode="", status="oom", compile="yes")
    assert case.stack == "hf-deepspeed" and "operator by operator: compiled blocks under ZeRO are not described" in case.assumptions


def test_operators_one_by_one_take_longer_than_compiled_blocks(tmp_path: Path) -> None:
    """At least by the bytes that norms, rotation and activation move more, at the memory's peak rate; and the host is no shorter."""
    row = {"framework": "torchtitan", "zero_stage": "3", "activation_checkpointing": "none", "micro_batch": "1", "global_batch": "8"}
    eager, compiled = (engine.predict(one(tmp_path, **row, compile=word), defaults()) for word in ("no", "yes"))
    norms, rotation, activation = 2 * 4096 * (28 + 92) * 0.8, 5120 * (20 + 20 - 8), 14336 * (28 - 16) * 2
    assert eager.step_time - compiled.step_time > 32 * 8192 * (norms + rotation + activation) / 4.8e12
    assert eager.step_time < 1.5 * compiled.step_time


_HF = ("LLaMA-Factory", "Axolotl", "HF Accelerate", "HuggingFace Trainer", "ms-swift")


@pytest.mark.parametrize(
    ("row", "stage"),
    [
        ({"zero_stage": "ds_z2_config"}, 2), ({"zero_stage": "2"}, 2), ({"zero_stage": "ZeRO-3"}, 3), ({"zero_stage": "1"}, 1),
        ({"zero_stage": "deepspeed_configs/zero2.json"}, 2), ({"zero_stage": "zero3_bf16.json"}, 3),
        ({"fsdp_mode": "ds_z3_config.json"}, 3), ({"fsdp_mode": "ZeRO-2"}, 2),
    ],
)  # fmt: skip
def test_stages_of_zero_under_hugging_face_are_deepspeed_s(tmp_path: Path, row: dict[str, str], stage: int) -> None:
    """Oracle: LLaMA-Factory examples/deepspeed, axolotl deepspeed_configs; neither FSDP's types nor its messages."""
    for framework in _HF:
        case = one(tmp_path, **{"framework": framework, "zero_stage": "", "fsdp_mode": "", "status": "oom", **row})
        assert (case.family, case.stack, case.zero) == ("deepspeed", "hf-deepspeed", stage), framework
    for beside in (f"LLaMA-Factory (ds_z{stage}_config)", f"Axolotl, zero{stage}.json", f"HF Trainer + DeepSpeed ZeRO-{stage}"):
        case = one(tmp_path, framework=beside, zero_stage="", fsdp_mode="", status="oom")
        assert (case.stack, case.zero) == ("hf-deepspeed", stage), beside


@pytest.mark.parametrize(
    ("row", "stage"),
    [
        ({"fsdp_mode": "FULL_SHARD"}, 3), ({"fsdp_mode": "SHARD_GRAD_OP"}, 2), ({"fsdp_mode": "FULL_SHARD", "zero_stage": "3"}, 3),
        ({"framework": "HF Accelerate + FSDP", "zero_stage": "3"}, 3), ({"zero_stage": "0"}, 0),
    ],
)  # fmt: skip
def test_fsdp_and_ddp_under_hugging_face_are_torch_s(tmp_path: Path, row: dict[str, str], stage: int) -> None:
    case = one(tmp_path, **{"framework": "HF Accelerate", "zero_stage": "", "status": "oom", **row})
    assert (case.family, case.stack, case.zero) == ("fsdp1", "hf-fsdp1", stage)


SAME_JOBS: dict[str, tuple[dict[str, str], str, Precision]] = {
    # What a table says of the software, and the command that starts the job. How weights are loaded: hiyouga/LLaMA-Factory
    # model/adapter.py, init_adapter; huggingface/trl trainer/utils.py, create_model_from_path; transformers 4 and 5, from_pretrained
    "TRL": ({"framework": "TRL (DDP)"}, "trl sft --bf16", "amp_bf16"),
    "LLaMA-Factory": ({"framework": "LLaMA-Factory DDP"}, "llamafactory-cli train --stage sft --finetuning_type full --bf16", "amp_bf16"),
    "adapters in LLaMA-Factory": (
        {"framework": "LLaMA-Factory DDP", "class": "LoRA"}, "llamafactory-cli train --stage sft --finetuning_type lora --bf16", "bf16",
    ),
    "the Trainer of transformers 5": ({"framework": "HF Trainer (DDP)", "framework_version": "5.2"}, "train.py --bf16", "bf16"),
    "a Trainer": ({"framework": "HF Trainer (DDP)"}, "train.py --bf16", "bf16"),
    "the Trainer of transformers 4": (
        {"framework": "transformers (DDP)", "framework_version": "4.51"}, "train.py --bf16 --torch_dtype float32", "amp_bf16",
    ),
    "float16": ({"framework": "HF Trainer (DDP)", "precision": "fp16"}, "train.py --fp16", "amp_fp16"),
}  # fmt: skip


@pytest.mark.parametrize("job", SAME_JOBS)
def test_ddp_under_hugging_face_has_the_weights_of_the_same_launch_file(tmp_path: Path, job: str) -> None:
    """The row and the command give the same precision, and as many bytes of weights, gradients and states."""
    row, command, precision = SAME_JOBS[job]
    case = one(tmp_path, **{"zero_stage": "", "status": "oom", "precision": "bf16", **row})
    assert (case.family, case.zero, workload_document(case)["training"]["precision"]) == ("fsdp1", 0, precision)
    script = f"torchrun --nproc_per_node=8 {command} --per_device_train_batch_size 1 --model_name_or_path x/y"
    told = with_defaults(launch_script(script, "job.sh"))
    assert told.training["precision"] == precision
    mesh, traits = case.stack_file.mesh, PRECISION_TRAITS[precision]
    assert mesh is not None
    widths = [WIDTHS[each] for each in (mesh.weights, mesh.gradients, mesh.states)]
    assert widths == [4 if precision.startswith("amp") else 2] * 3
    assert traits.gradient == widths[1]


def test_modeling_code_of_hugging_face_takes_longer_than_fused_kernels(tmp_path: Path) -> None:
    row = {"zero_stage": "", "fsdp_mode": "FULL_SHARD", "activation_checkpointing": "none", "micro_batch": "1", "global_batch": "8"}
    composed, fused = (one(tmp_path, framework=name, **row) for name in ("HF Accelerate", "Unsloth"))
    assert composed.runs_by_operator and fused.stack == "torch-fsdp1"
    assert engine.predict(composed, defaults()).step_time > 1.03 * engine.predict(fused, defaults()).step_time


@pytest.mark.parametrize(
    ("framework", "stack", "stage"),
    [
        ("ColossalAI Gemini", "megatron-core", 3), ("Colossal-AI low_level_zero", "megatron-core", 1),
        ("Megatron-FSDP", "megatron-core", 3), ("OLMo-core", "torchtitan-2.x-eager", 3), ("T5X", "xla-fsdp", 3), ("Pax", "xla-fsdp", 3),
    ],
)  # fmt: skip
def test_further_software_and_its_sharding(tmp_path: Path, framework: str, stack: str, stage: int) -> None:
    case = one(tmp_path, framework=framework, zero_stage="", fsdp_mode="", status="oom")
    assert (case.stack, case.zero) == (stack, stage)
    assert ("is unknown" in " ".join(case.assumptions)) == framework.startswith("Colossal")


def test_zero_without_a_framework_is_deepspeed_s(tmp_path: Path) -> None:
    for stage in ("2", "3", "ZeRO-1"):
        assert one(tmp_path, framework="", zero_stage=stage, status="oom").family == "deepspeed"
    assert one(tmp_path, framework="", zero_stage="1", status="oom").family == "megatron"


@pytest.mark.parametrize(
    ("row", "degree"),
    [
        ({"framework": "DeepSpeed + Ulysses SP=4"}, "sp 4:"), ({"framework": "DeepSpeed", "notes": "Ulysses degree 8"}, "sp 8:"),
        ({"framework": "HF Trainer ZeRO-3", "notes": "sp=8"}, "sp 8:"),
        ({"framework": "DeepSpeed", "notes": "sequence parallel size 4"}, "sp 4:"),
        ({"framework": "DeepSpeed-Ulysses", "dp": ""}, ""), ({"framework": "DeepSpeed-Ulysses", "dp": "2"}, ""),
    ],
)  # fmt: skip
def test_ranks_that_divide_sequences_are_refused_without_a_column(tmp_path: Path, row: dict[str, str], degree: str) -> None:
    reason = describe(read_table(table(tmp_path, [{"sp": "", **row}]))[0])
    assert isinstance(reason, str) and "(Ulysses)" in reason and "not modeled" in reason and reason.startswith(degree)


def test_tensor_ranks_may_divide_sequences_too(tmp_path: Path) -> None:
    for row in (
        {"notes": "sequence parallel 2", "tp": "2", "dp": "4"}, {"notes": "sequence parallelism on", "tp": "2", "dp": "4"},
        {"framework": "DeepSpeed-Ulysses", "sp": "1"}, {"framework": "DeepSpeed-Ulysses"}, {"notes": "no Ulysses", "dp": ""},
    ):  # fmt: skip
        assert one(tmp_path, **row).gpus == 8


def test_sharding_in_other_words_is_read_or_refused_but_never_dropped(tmp_path: Path) -> None:
    row = {"framework": "PyTorch", "zero_stage": "", "status": "oom"}
    for mode, stage, stack in (
        ("FSDP=8", 3, "torch-fsdp1"), ("FSDP8", 3, "torch-fsdp1"), ("FSDP2", 3, "torchtitan-2.x-eager"), ("none", 0, "torch-fsdp1"),
        ("fully_shard", 3, "torchtitan-2.x-eager"), ("DP", 0, "torch-fsdp1"), ("no", 0, "torch-fsdp1"), ("-", 0, "torch-fsdp1"),
        ("replicated", 0, "torch-fsdp1"),
    ):  # fmt: skip
        case = one(tmp_path, **row, fsdp_mode=mode)
        assert (case.zero, case.stack) == (stage, stack), mode
    for mode, sentence in (
        ("MiCS", "mics in 'MiCS' is not modeled; only ZeRO's stages and FSDP's strategies are"),
        ("ZeRO++", "zero++ in 'ZeRO++' is not modeled"),
        ("per-parameter", "fsdp_mode 'per-parameter' is unknown; use FULL_SHARD,"),
    ):
        reason = describe(read_table(table(tmp_path, [{**row, "fsdp_mode": mode}]))[0])
        assert isinstance(reason, str) and reason.startswith(sentence)


def test_short_words_for_recomputation(tmp_path: Path) -> None:
    row = {"framework": "torchtitan", "zero_stage": "3", "status": "oom"}
    for cell, expected in (
        ("AC", ("full", 0)), ("AC full", ("full", 0)), ("AC=selective", ("operators", 0)), ("SAC (every 2)", ("full", 16)),
        ("selective (every 4 layers)", ("full", 8)), ("AC: none", ("none", 0)),
    ):  # fmt: skip
        case = one(tmp_path, **row, activation_checkpointing=cell)
        assert (case.recompute, case.recomputed_layers) == expected, cell


def test_attention_of_2023_takes_longer_with_longer_sequences(tmp_path: Path) -> None:
    """Of NeMo 24.03 (cuDNN 8.9) over newer releases; of each round of MLPerf over the next (FlashAttention 1, 2, cuDNN)."""
    ratios = []
    for length in ("4096", "16384"):
        row = {"seq_len": length, "micro_batch": "1", "precision": "fp8", "global_batch": "8", "grad_accum": "1"}
        older, newer = (one(tmp_path, **row, framework_version=version) for version in ("24.03.01", "24.07"))
        assert [case.stack_file.kernels.attention_kernel for case in (older, newer)] == ["cudnn8", "cudnn"]
        ratios.append([predict(older, defaults()).step_time / predict(newer, defaults()).step_time for predict in PREDICTIONS])
    assert all(1.0 < short < long for short, long in zip(*ratios, strict=True))
    own = {"model": "GPT-3 175B", "framework": "NVIDIA NeMo Framework", "set": "MLPerf Training", "seq_len": "2048", "precision": "fp8"}
    sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    split = {"gpus": "64", "nodes": "8", "tp": "4", "pp": "8", "dp": "2", "virtual_pp": "12", "global_batch": "64", "grad_accum": "32"}
    rounds = [one(tmp_path, **own, **sizes, **split, source=f"mlcommons/training_results_v{each}@1:gpt3") for each in ("3.0", "3.1", "4.0")]
    assert [case.stack_file.kernels.attention_kernel for case in rounds] == ["flash1", "flash2", "cudnn"]
    for predict in PREDICTIONS:
        oldest, older, newer = (predict(case, defaults()).step_time for case in rounds)
        assert oldest > older > newer


def test_what_software_does_not_fuse_takes_longer(tmp_path: Path) -> None:
    """Megatron-Bridge rotates latent attention in fused kernels but for Moonlight; a squared ReLU is one kernel in NeMo 1 alone."""
    sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    row = {**sizes, "ep": "8", "dp": "8", "global_batch": "64", "grad_accum": "8", "seq_len": "4096", "activation_checkpointing": ""}
    moonlight = one(tmp_path, **row, model="Moonlight 16B-A3B", source="NVIDIA-NeMo/Megatron-Bridge@1:x", framework="Megatron-Bridge")
    benchmarks = {"source": "NVIDIA/dgxc-benchmarking@1:nemotron", "model": "Nemotron4 15b", "tp": "4", "dp": "2", "micro_batch": "4"}
    benchmarks |= {"seq_len": "4096", "grad_accum": "16"} | sizes
    first, second = (one(tmp_path, **benchmarks, framework_version=f"dgxc v25.0{release}.02") for release in (2, 4))
    fused = {moonlight: {"fused_latents": True}, second: {"fused_squares": True}}
    assert (moonlight.fused, first.fused, second.fused) == ({"fused_latents": False}, {"fused_squares": True}, {})
    for case, options in fused.items():
        for predict in PREDICTIONS:
            assert predict(case, defaults()).step_time > 1.02 * predict(replace(case, fused=options), defaults()).step_time
    assert first.mesh_options is not None and first.mesh_options.fused_squares
    assert second.mesh_options is not None and not second.mesh_options.fused_squares
