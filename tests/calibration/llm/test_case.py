"""Oracles: parameters that are published, layouts that multiply out, and what a row cannot mean."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.describe import describe
from calibration.llm.engine import memory_need
from calibration.llm.practice import blocks_of_chunks
from calibration.llm.priors import defaults
from calibration.llm.shapes import LLM_RECORDS
from calibration.llm.table import is_llm_table, read_table, repository
from calibration.llm.weights import stage_weights, total_parameters
from calibration.llm.what_fits import RECOMPUTED_TO_FIT
from sim.spec.yaml import SpecError
from tests.calibration.llm.tables import table


def cases(folder: Path, *rows: dict[str, str]) -> list[Case | str]:
    return [describe(row) for row in read_table(table(folder, rows))]


def one(folder: Path, **row: str) -> Case:
    (case,) = cases(folder, row)
    assert isinstance(case, Case), case
    return case


def test_published_parameter_totals(tmp_path: Path) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    published = {
        "Llama 3.1 8B": 8.03e9, "LLAMA3_70B": 70.55e9, "Llama 3.1 405b": 405.85e9, "DeepSeek V3": 671.0e9, "Qwen3_30B_a3B": 30.53e9,
        "Qwen3_235B_a22B": 235.1e9, "GPT OSS 120B": 116.8e9, "Nemotron4 15b": 15.63e9, "Mixtral 8x7B": 46.7e9, "GPT-3 175B": 175e9,
        "granite-7b": 6.74e9, "vicuna-7b-v1.5": 6.74e9, "LLaMA-7B": 6.74e9, "Qwen-7B": 7.72e9,
        "internlm-7b": 7.32e9, "pythia-160m": 0.1623e9,
        "Pythia-410M": 0.4053e9, "pythia-1b": 1.0118e9, "pythia-70m": 0.0704e9, "Qwen2-0.5B": 0.494e9,
        "gpt-neox-20b": 20.55e9, "Pythia-12B": 11.85e9, "Pythia 6.9B": 6.86e9, "pythia-1.4b": 1.415e9, "pythia-2.8b": 2.775e9,
        "EleutherAI/gpt-j-6B": 6.05e9, "tiiuae/falcon-7b": 6.92e9, "Falcon-40B": 41.3e9, "Falcon 180B": 179.5e9, "StarCoder 15.5B": 15.52e9,
        "LLaMA-65B": 65.29e9, "LLaMA 13B": 13.02e9, "LLaMA-30B": 32.53e9, "Llama 3.3 70B": 70.55e9, "CodeLlama 34B": 33.74e9,
        "Yi-34B": 34.39e9, "TinyLlama 1.1B": 1.1e9, "OLMo 7B": 6.89e9, "MT-NLG 530B": 530e9, "OPT-30B": 29.97e9, "GPT-2 1.5B": 1.558e9,
        "Grok1 314b": 314e9, "databricks/dbrx-base": 131.6e9, "GLM-4.5-Air": 106.9e9, "GLM-4.5": 352.8e9, "ChatGLM3-6B": 6.24e9,
        "GLM-4 9B": 9.4e9, "MiniMax-M2": 228.7e9, "deepseek-moe-16b": 16.38e9, "DeepSeek-LLM-67B": 67.4e9, "deepseek-coder-33b": 33.3e9,
        "deepseek-coder-6.7b": 6.74e9, "Phi-3.5-MoE": 41.9e9, "Phi-3-mini": 3.82e9, "Phi-3-medium-14B": 13.96e9, "OLMoE-1B-7B": 6.92e9,
        "OLMo 2 32B": 32.2e9, "OLMo-2 13B": 13.72e9, "OLMo-2 7B": 7.3e9, "InternLM2-20B": 19.86e9, "InternLM2 7B": 7.74e9,
        "SmolLM2-1.7B": 1.711e9, "SmolLM2-360M": 361.8e6, "SmolLM2-135M": 134.5e6, "SmolLM3-3B": 3.08e9, "StarCoder2-15B": 15.96e9,
        "StarCoder2-7B": 7.17e9, "StarCoder2-3B": 3.03e9, "Command R+": 103.8e9, "Command-R 35B": 34.98e9, "Qwen2-72B": 72.7e9,
        "Qwen2 7B": 7.62e9, "Qwen1.5-110B": 111.2e9, "Mistral Nemo 12B": 12.25e9, "Mistral Small 24B": 23.57e9,
        "Mistral Large 123B": 122.6e9, "CodeLlama-70b": 68.98e9, "CodeLlama-13b": 13.02e9, "CodeLlama-7b": 6.74e9,
        "Baichuan2-13B": 13.9e9, "Baichuan2-7B": 7.51e9, "Megatron GPT 1T": 1008e9, "Megatron 310B": 310.1e9, "Megatron 76B": 76.1e9,
        "Megatron 39.1B": 39.1e9, "Megatron 18.4B": 18.4e9, "GPT-2 124M": 124.4e6, "GPT2-medium 350M": 354.8e6, "GPT-2 774M": 774e6,
        "BLOOM 176B": 176.2e9, "Qwen 2.5 7B": 7.62e9, "GPT-3 6.7B": 6.7e9, "Megatron GPT 145.6B": 145.6e9, "Megatron GPT 22B": 22e9,
    }  # fmt: skip
    wrong = []
    for model, total in published.items():
        case = one(tmp_path, model=model, gpus="1024", dp="1024", nodes="128", global_batch="1024", **blank)
        counted = total_parameters(case)
        if abs(counted / total - 1) > 0.01:
            wrong.append(f"{model}: {counted:.4g}, published {total:.4g}")
    assert not wrong


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_same_rows_without_the_name_of_their_source(every: int) -> None:
    """What scripts set belongs to software where it can: without its name, most sources are predicted as with it.

    Left out are nanotron's cluster, whose latencies and debug variables its pages tell, and MLPerf, whose submissions name their software
    in many ways. Every third row tells of all sources; all rows are compared nightly.
    """
    apart: dict[str, list[float]] = defaultdict(list)
    at = defaults()
    for row in read_table(LLM_RECORDS / "training.csv"):
        if (
            row.line % every
            or re.search("nanotron|training_results", row.source)
            or (row.line % 7 and re.search("bigscience|dgxc|Bridge|foundry", row.source))
        ):
            continue
        named, unnamed = describe(row), describe(replace(row, text=row.text | {"source": "someone/runs", "set": ""}))
        assert isinstance(named, Case) is isinstance(unnamed, Case)
        if isinstance(named, Case) and isinstance(unnamed, Case):
            steps = [closed_form.predict(case, at).step_time for case in (named, unnamed)]
            apart[row.source].append(abs(math.log(steps[0] / steps[1])))
    assert len(apart) >= 9
    assert {source: round(median(each), 2) for source, each in apart.items() if median(each) > 0.05} == {}


def test_a_run_that_would_not_fit_recomputed_whole_blocks(tmp_path: Path) -> None:
    """Rows whose recomputation is known, read as if it were blank and their source unknown: no row without recomputation gains any."""
    readings: Counter[tuple[str, str]] = Counter()
    for row in read_table(LLM_RECORDS / "training.csv"):
        if row.line % 8 or not re.search("foundry|bigscience", row.source) or row.status != "ok":
            continue
        blank = row.text | {"source": "someone/runs", "set": "", "activation_checkpointing": ""}
        told, assumed = describe(row), describe(replace(row, text=blank))
        if not isinstance(told, Case) or not isinstance(assumed, Case):
            continue
        readings[told.recompute, assumed.recompute] += 1
        assert assumed.recompute == "full" or RECOMPUTED_TO_FIT not in assumed.assumptions
    assert not readings["none", "full"]
    assert readings["full", "full"] > readings["full", "none"]
    assert readings["none", "none"] >= 5


@pytest.mark.parametrize(
    ("framework", "status", "length", "expected"),
    [
        ("DeepSpeed", "ok", "8192", "full"),
        ("PyTorch FSDP", "ok", "8192", "full"),
        ("torchtune", "ok", "8192", "full"),
        ("DeepSpeed", "ok", "2048", "none"),  # fits as it is
        ("DeepSpeed", "ok", "131072", "none"),  # would not fit either way
        ("DeepSpeed", "oom", "8192", "none"),  # a run that failed need not have fitted
        ("Megatron-LM", "ok", "8192", "none"),
    ],
)
def test_blocks_are_recomputed_where_only_that_fits(tmp_path: Path, framework: str, status: str, length: str, expected: str) -> None:
    case = one(
        tmp_path, framework=framework, status=status, gpus="8", dp="8", tp="1", zero_stage="3", activation_checkpointing="",
        micro_batch="2", global_batch="16", grad_accum="", seq_len=length, source="someone/runs",
    )  # fmt: skip
    assert case.recompute == expected
    assert (RECOMPUTED_TO_FIT in case.assumptions) is (expected == "full")


def test_a_micro_batch_that_no_cell_states(tmp_path: Path) -> None:
    """Accumulation tells it; else it is the largest that fits: the next larger one does not. A run that failed keeps one sample."""
    layout = {"gpus": "8", "dp": "8", "tp": "1", "zero_stage": "3", "global_batch": "512", "micro_batch": "", "framework": "FSDP"}
    accumulated = one(tmp_path, grad_accum="16", **layout)
    assert (accumulated.micro_batch, accumulated.micro_batches) == (4, 16)
    largest = one(tmp_path, grad_accum="", activation_checkpointing="full", **layout)
    assert (largest.micro_batch * largest.micro_batches, memory_need(largest).verdict) == (64, "fits")
    larger = replace(largest, micro_batch=2 * largest.micro_batch, micro_batches=largest.micro_batches // 2)
    assert largest.micro_batch > 1 and memory_need(larger).verdict != "fits"
    assert f"micro_batch {largest.micro_batch}, the largest that fits" in largest.assumptions
    failed = one(tmp_path, grad_accum="", status="oom", activation_checkpointing="full", **layout)
    assert failed.micro_batch == 1 and "micro_batch 1" in failed.assumptions


@pytest.mark.parametrize(
    ("pipeline", "virtual", "sequences", "expected"),
    [
        ("1", "", 24, (1, 24)),
        ("4", "", 24, (4, 6)),
        ("16", "", 24, (24, 1)),
        ("8", "", 36, (9, 4)),
        ("8", "2", 36, (36, 1)),
        ("8", "2", 48, (8, 6)),
    ],
)
def test_pipelines_keep_a_micro_batch_for_each_stage(
    tmp_path: Path, pipeline: str, virtual: str, sequences: int, expected: tuple[int, int]
) -> None:
    """A small model, all of whose sequences fit at once; interleaved pipelines need a multiple of their stages."""
    case = one(
        tmp_path, model="GPT-2", layers="16", hidden="256", heads="4", kv_heads="4", ffn_hidden="1024", vocab="1024", seq_len="128",
        gpus="16", tp="1", dp="", pp=pipeline, virtual_pp=virtual, micro_batch="", grad_accum="", framework="Megatron-LM",
        global_batch=str(sequences * 16 // int(pipeline)),
    )  # fmt: skip
    assert (case.micro_batches, case.micro_batch) == expected


def test_micro_batches_of_torchtitan_are_the_largest_that_fit() -> None:
    """Its tables state them; with the cell blank, and the source unknown, they are found again."""
    for row in read_table(LLM_RECORDS / "training.csv"):
        if "torchtitan" in row.source and not row.line % 2:
            told = describe(row)
            cells = {name: number for name, number in row.number.items() if name not in ("micro_batch", "grad_accum")}
            assert isinstance(told, Case)
            blank = describe(replace(row, text=row.text | {"source": "someone/runs"}, number=cells | {"global_batch": told.global_batch}))
            assert isinstance(blank, Case)
            assert (blank.micro_batch, blank.micro_batches) == (told.micro_batch, told.micro_batches)


def test_what_a_batch_and_axes_that_are_blank_follow_from(tmp_path: Path) -> None:
    """Rate and time of a step tell its tokens; sharded parameters without any axis are data-parallel."""
    measured = one(tmp_path, global_batch="", grad_accum="", micro_batch="1", step_time_s="4", tokens_per_s_per_gpu="4096", seq_len="8192")
    assert measured.global_batch == 4 * 4096 * measured.gpus / 8192
    assert f"global_batch {measured.global_batch:g}, from tokens_per_s_per_gpu and step_time_s" in measured.assumptions
    blank = dict(dp="", tp="", pp="", cp="", gpus="16", global_batch="64")
    for sharded in ({"zero_stage": "3"}, {"fsdp_mode": "FULL_SHARD", "zero_stage": ""}):
        case = one(tmp_path, **blank, **sharded)
        assert (case.data, case.axes, case.zero) == (16, "data", 3)
        assert "dp 16: no axis is stated, and parameters are sharded" in case.assumptions


def test_a_rank_holds_its_share_of_the_weights(tmp_path: Path) -> None:
    alone = stage_weights(one(tmp_path)).total
    split = stage_weights(one(tmp_path, tp="4", pp="2", dp="1")).total
    tables = 128256 * 4096  # the head of the last stage is the embedding of the first
    assert split == pytest.approx((alone - 2 * tables) / 8 + tables / 4, rel=1e-3)


def test_peak_memory_is_read_in_the_units_of_its_source(tmp_path: Path) -> None:
    """Megatron-Bridge logs bytes over 1e9, whatever the column is called; a cell that is blank is no measurement."""
    rows = {"NVIDIA-NeMo/Megatron-Bridge@1:log": 40e9, "someone/runs@1:table.md": 40 * 2**30}
    for source, expected in rows.items():
        assert one(tmp_path, source=source, memory_peak_GiB_reported="40").measured_memory == expected
        assert one(tmp_path, source=source).measured_memory is None


def test_a_global_batch_that_does_not_divide_is_noted(tmp_path: Path) -> None:
    """Four ranks of micro-batches of one sequence: 62 and 63 sequences are 16 micro-batches, as 64 are."""
    layout = {"tp": "2", "dp": "4", "micro_batch": "1", "grad_accum": ""}
    exact, *others = (one(tmp_path, global_batch=batch, **layout) for batch in ("64", "62", "63"))
    assert not any("global_batch" in note for note in exact.assumptions)
    assert [case.global_batch for case in others] == [64, 64]
    assert [case.assumptions[-1] for case in others] == [
        f"global_batch 64, a multiple of dp 4 x micro_batch 1; the row says {batch}" for batch in (62, 63)
    ]
    smaller = one(tmp_path, global_batch="35", **layout | {"micro_batch": "16"})
    assert smaller.assumptions[-2:] == (
        "micro_batch 8, global_batch 35 / dp 4; the row says 16",
        "global_batch 32, a multiple of dp 4 x micro_batch 8; the row says 35",
    )


def test_what_the_columns_say(tmp_path: Path) -> None:
    case = one(
        tmp_path,
        gpu="Blackwell GPU (GB200)", gpus="64", nodes="16", tp="2", pp="4", cp="2", dp="4", virtual_pp="5", precision="mxfp8",
        global_batch="128", micro_batch="2", activation_checkpointing="full && export ACM=block && export ACL=3",
    )  # fmt: skip
    assert (case.chip.name, case.domain, case.data, case.micro_batches, case.virtual_stages) == ("GB200-186GB", 72, 4, 16, 5)
    assert (case.precision, case.stated_recipe, case.recompute, case.recomputed_layers, case.axes) == (
        "fp8",
        "mxfp8",
        "full",
        3,
        "tensor+pipeline+context",
    )
    assert case.nic == pytest.approx(50e9)
    assert case.global_batch == 128


def test_what_a_sources_scripts_recompute_holds_where_the_row_is_blank(tmp_path: Path) -> None:
    """MaxText's policies by release and precision (maxtext/configure.sh of NVIDIA/dgxc-benchmarking); a row that says something wins."""
    base = {"source": "NVIDIA/dgxc-benchmarking@1:maxtext/README_70b.md", "framework": "MaxText", "activation_checkpointing": ""}
    described = cases(
        tmp_path,
        {**base, "set": "NVIDIA DGX Cloud benchmarking v24.11.1", "precision": "bf16"},
        {**base, "set": "NVIDIA DGX Cloud benchmarking v24.11.1", "precision": "fp8"},
        {**base, "set": "NVIDIA DGX Cloud benchmarking v25.02.02", "precision": "bf16"},
        {**base, "set": "NVIDIA DGX Cloud benchmarking v25.02.02", "activation_checkpointing": "none"},
    )
    recomputed = [(case.recompute, case.saved_layers, case.stack) for case in described if isinstance(case, Case)]
    projections = ("attention.qkv", "attention.output")
    saved = [("full", saves, "xla-fsdp") for saves in (projections, projections, projections[:1])]
    assert recomputed == [*saved, ("none", (), "xla-fsdp")]


def test_a_blank_precision_of_mlperfs_adapters_is_eight_bits_where_the_gpu_has_them(tmp_path: Path) -> None:
    """Every configuration of llama2_70b_lora sets FP8=True; an A100 has no such products."""
    row = {"source": "mlcommons/training_results_v5.0@1:x", "model": "Llama 2 70B LoRA rank 16", "precision": ""}
    assert one(tmp_path, **row, gpu="H200").precision == "fp8"
    ampere = one(tmp_path, **row, gpu="A100")
    assert ampere.precision == "16bit" and "bf16" in ampere.assumptions


@pytest.mark.parametrize(
    ("stages", "virtual", "blocks"),
    [
        (4, 1, (16, 16, 16, 13)), (8, 1, (*[8] * 7, 5)), (16, 1, (*[4] * 15, 1)), (8, 2, (*[4] * 15, 1)), (4, 4, (*[4] * 15, 1)),
        (8, 4, (1, *[2] * 30, 0)),
    ],
)  # fmt: skip
def test_stages_of_deepseek_v3_as_its_recipes_lay_them_out(tmp_path: Path, stages: int, virtual: int, blocks: tuple[int, ...]) -> None:
    """``layout_map`` of Megatron-Bridge's deepseek_v3.py, and ``Et|(tt|)*30mL`` of its H100 script, with ``m`` in the last chunk."""
    assert blocks_of_chunks(61, stages * virtual, 0) == blocks
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    row = dict(
        blank, source="NVIDIA-NeMo/Megatron-Bridge@1:x", gpu="GB200", gpus="256", nodes="64", dp="", pp=str(stages), virtual_pp=str(virtual)
    )
    with_layer, without = (one(tmp_path, **row, ep="8", model=model) for model in ("DeepSeekV3", "DeepSeekV3 (w/o MTP)"))
    assert with_layer.layers_per_stage == (*blocks[:-1], blocks[-1] + 1)
    assert without.layers_per_stage == blocks
    assert (with_layer.shape.prediction_layers, without.shape.prediction_layers) == (1, 0)


def test_stages_of_deepseek_v3_as_nemo_cuts_them(tmp_path: Path) -> None:
    """NeMo pretrain_deepseek_v3.py: of 64 blocks in equal stages, the first lacks one, the last two."""
    assert blocks_of_chunks(61, 4, 1) == (15, 16, 16, 14)
    assert blocks_of_chunks(61, 8, 1) == (7, *[8] * 6, 6)
    assert blocks_of_chunks(61, 16, 1) == (3, *[4] * 14, 2)
    assert blocks_of_chunks(61, 24, 0) == blocks_of_chunks(61, 1, 0) == ()


def test_recipes_of_experts_by_their_scripts(tmp_path: Path) -> None:
    """dgxc-benchmarking's grok1_314b.yaml pads experts to a capacity; Megatron-Bridge's kimi_workload_base_configs.py names dispatchers."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    sized = dict(blank, gpus="64", nodes="8", dp="64", ep="8", activation_checkpointing="")
    assert one(tmp_path, **sized, source="NVIDIA/dgxc-benchmarking@1:x", model="Grok1 314b").drops_tokens
    kimi = {
        gpu: one(tmp_path, **sized, source="NVIDIA-NeMo/Megatron-Bridge@1:x", model="Kimi-K2", gpu=gpu)
        for gpu in ("H100", "GB200", "GB300")
    }
    assert {gpu: case.one_copy for gpu, case in kimi.items()} == {"H100": False, "GB200": True, "GB300": True}
    assert kimi["H100"].recomputed_modules == ("mla_up_proj", "mlp")
    assert kimi["GB200"].uses_cuda_graphs and not kimi["GB300"].uses_cuda_graphs


def test_a_blank_precision_is_that_of_the_recipe_with_this_layout(tmp_path: Path) -> None:
    """Megatron-Bridge's LLAMA3_8B_H100_BF16_BASE_CONFIG has two context ranks, LLAMA3_8B_H100_FP8_CS_BASE_CONFIG none."""
    row = {
        "source": "NVIDIA-NeMo/Megatron-Bridge@1:t.md",
        "model": "LLAMA3_8B",
        "framework_version": "25.09NeMo container",
        "precision": "",
    }
    eight, sixteen = one(tmp_path, **row), one(tmp_path, **row, cp="2", dp="4")
    assert (eight.precision, eight.recipe) == ("fp8", "tensorwise") and "bf16" not in eight.assumptions
    assert sixteen.precision == "16bit" and "bf16" in sixteen.assumptions
    assert one(tmp_path, **(row | {"precision": "bf16"})).precision == "16bit"


def test_graphs_of_whole_iterations_replay_no_experts_without_a_capacity(tmp_path: Path) -> None:
    """Qwen3 30B on B200: micro-batches of 1 come from recipes with such graphs, which these runs could not use; later ones graph parts."""
    row = {"source": "NVIDIA-NeMo/Megatron-Bridge@1:t.md", "model": "Qwen3_30B_a3B", "gpu": "B200", "precision": "mxfp8"}
    graphed = {name: one(tmp_path, **row, framework_version=name).uses_cuda_graphs for name in ("25.11NeMo", "26.02NeMo", "26.02.01NeMo")}
    assert graphed == {"25.11NeMo": False, "26.02NeMo": False, "26.02.01NeMo": True}


def test_a_point_tells_models_apart(tmp_path: Path) -> None:
    """1.3 and 13 billion parameters: the papers' tables of OPT (arXiv 2205.01068) and GPT-3 (arXiv 2005.14165)."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    names = ("facebook/opt-1.3b", "OPT 13B", "GPT3-1.3B", "gpt-3 13b", "GPT 1.3B", "GPT-6.7B")
    shapes = [one(tmp_path, model=name, seq_len="2048", **blank).shape for name in names]
    assert [shape.hidden for shape in shapes] == [2048, 5120, 2048, 5120, 2048, 4096]
    assert [shape.layers for shape in shapes] == [24, 40, 24, 40, 24, 32]


def test_rows_without_axes_are_data_parallel_if_their_software_is(tmp_path: Path) -> None:
    """ZeRO-2 and ZeRO-3 have no other axis; Megatron's distributed optimizer (ZeRO-1) may have any."""
    blank = dict(dp="", tp="", pp="", cp="", micro_batch="", grad_accum="")
    told = {
        "DeepSpeed": ("ZeRO-2", 2), "HF Trainer + DeepSpeed": ("ZeRO-1", 1), "Megatron-DeepSpeed": ("ZeRO-3", 3), "nanoGPT": ("", 0),
        "PyTorch DDP": ("", 0),
    }  # fmt: skip
    for framework, (stage, meant) in told.items():
        case = one(tmp_path, framework=framework, zero_stage=stage, **blank)
        assert (case.data, case.zero) == (8, meant) and any("no axis is stated" in text for text in case.assumptions), framework
    (refused,) = cases(tmp_path, dict(framework="Megatron-DeepSpeed", zero_stage="ZeRO-1", **blank))
    assert isinstance(refused, str) and refused.endswith("so the layout is unknown; for data parallelism write dp 8")


def test_plain_torch_has_the_whole_model_on_each_gpu(tmp_path: Path) -> None:
    plain, sharded = (one(tmp_path, framework="PyTorch 2.1", zero_stage="", fsdp_mode=mode) for mode in ("", "FULL_SHARD"))
    assert (plain.stack, plain.zero, sharded.zero) == ("torch-fsdp1", 0, 3)


def test_a_machine_in_place_of_a_gpu_is_its_gpu(tmp_path: Path) -> None:
    case = one(tmp_path, gpu="AWS p4d.24xlarge")
    assert case.chip.name == "A100-SXM4-40GB" and "A100-SXM4-40GB, the GPU of AWS p4d.24xlarge" in case.assumptions


def test_rows_that_cannot_be_described_say_why(tmp_path: Path) -> None:
    reasons = {
        "Cerebras": dict(gpu="Cerebras CS-3"),
        "does not divide": dict(tp="3"),
        "'eight'": dict(tp="eight"),
        "state-space": dict(model="Nemotron-H 22b"),
        "less than one sequence": dict(global_batch="4"),
        "global_batch": dict(global_batch="a lot", grad_accum=""),
        "layout is unknown; for data parallelism write dp ": dict(dp="", tp="", pp="", cp=""),
        "'GPT 65B': layers, hidden": dict(model="GPT 65B", layers="", hidden="", heads="", vocab=""),  # was read as 5B
        "'GPT-15B': layers, hidden": dict(model="GPT-15B", layers="", hidden="", heads="", vocab=""),
        "missing in the row": dict(model="Mystery", layers="", hidden="", heads="", vocab=""),
        "no fp8": dict(gpu="A100", precision="fp8"),
        "multiple": dict(kv_heads="7"),
        "seq_len": dict(seq_len="long"),
        "tp is '1.5', not a whole number": dict(tp="1.5"),
        "layers 100,000: larger than any model": dict(layers="100000"),
        "micro-batches of 1 on 8 ranks are no step": dict(global_batch="1048576000"),
        "topk is blank": dict(experts="8"),
        "encoders with decoders": dict(model="T5-11B"),
        "models of images": dict(model="ViT-22B"),
        "Mamba": dict(model="mamba2-2.7b"),
    }
    wrong = []
    for reason, row in reasons.items():
        (outcome,) = cases(tmp_path, row)
        if not isinstance(outcome, str) or reason not in outcome:
            wrong.append(f"{reason}: {outcome}")
    assert not wrong


def test_one_expert_is_a_dense_model_and_an_encoder_is_noted(tmp_path: Path) -> None:
    dense = one(tmp_path, experts="1", topk="1")
    assert dense.shape == one(tmp_path).shape == one(tmp_path, topk="1").shape
    assert "a decoder: an encoder's attention has no mask" in one(tmp_path, model="BERT-Large").assumptions
    assert not any("encoder" in note for model in ("Bertha 7B", "GPT-3 vitruvian") for note in one(tmp_path, model=model).assumptions)


def test_a_missing_column_is_one_sentence(tmp_path: Path) -> None:
    path = table(tmp_path, [{}], without=["gpu", "seq_len"])
    assert is_llm_table(path)
    with pytest.raises(SpecError, match=r"runs.csv:1: columns missing: seq_len, gpu;"):
        read_table(path)


def test_other_records_are_no_tables_of_runs(tmp_path: Path) -> None:
    short = tmp_path / "short.csv"
    short.write_text("source,model\nmine,Llama 3.1 8B\n")
    assert is_llm_table(short)  # so that the message names the columns of such tables
    assert not is_llm_table(LLM_RECORDS.parent / "runs.csv")
    assert is_llm_table(LLM_RECORDS / "training.csv")


def test_a_source_is_a_repository_without_its_release() -> None:
    assert repository("pytorch/torchtitan@b5bcd76c66d0:benchmarks/x.md") == "pytorch/torchtitan"
    assert repository("mlcommons/training_results_v4.1@b87b:NVIDIA") == repository("mlcommons/training_results_v5.0@0fdc:Dell")


def test_nodes_with_fewer_gpus_have_a_smaller_domain_and_share_their_nics(tmp_path: Path) -> None:
    """Juwels Booster: four A100 and four HDR NICs a node; Summit: six V100, two EDR NICs; Alps: four GH200, four NICs of 200 Gbps."""
    blank = {"node_type": "", "framework": "Megatron-LM", "global_batch": "192", "grad_accum": ""}
    juwels = one(tmp_path, gpu="A100-SXM4-40GB", nodes="4", gpus="16", tp="8", dp="2", network="4x HDR200", **blank)
    assert (juwels.domain, juwels.gpus_per_node, juwels.nic * 8 / 1e9) == (4, 4, 200)
    summit = one(tmp_path, gpu="V100-SXM2-16GB", nodes="2", gpus="12", dp="12", precision="fp16", network="2x EDR", **blank)
    assert (summit.gpus_per_node, round(summit.nic * 8 / 1e9)) == (6, 33)
    alps = one(tmp_path, gpu="GH200 120GB", nodes="4", gpus="16", dp="16", network="Slingshot-11 4x200", **blank)
    assert (alps.domain, alps.nic * 8 / 1e9) == (4, 200)
    dgx2 = one(tmp_path, gpu="Tesla V100-SXM3-32GB", nodes="1", gpus="16", dp="16", precision="fp16", **blank)
    assert dgx2.domain == 16
    single = one(tmp_path, gpu="A100", nodes="8", gpus="8", dp="8", network="8x HDR200", **blank)
    assert (single.domain, single.nic * 8 / 1e9) == (1, 200)  # one GPU does not get the NICs of eight


def test_nodes_with_fewer_gpus_are_simulated_with_as_many(tmp_path: Path) -> None:
    """Eight tensor ranks on two nodes of four cross the network, which eight on one node do not."""
    layout = {"gpu": "A100-SXM4-80GB", "gpus": "16", "tp": "8", "dp": "2", "global_batch": "16", "node_type": "", "network": "4x HDR200"}
    fours, eights = (one(tmp_path, nodes=nodes, framework="Megatron-LM", **layout) for nodes in ("4", "2"))
    for predict in (closed_form.predict, engine.predict):
        assert predict(fours, defaults()).step_time > 1.2 * predict(eights, defaults()).step_time


def test_gpus_that_are_blank_are_those_of_the_axes(tmp_path: Path) -> None:
    case = one(tmp_path, gpus="", nodes="4", dp="4", tp="2", pp="2", global_batch="64")
    assert case.gpus == 16 and "16 GPUs, the product of dp, tp, pp and cp" in case.assumptions
    case = one(tmp_path, gpus="", nodes="4", dp="", tp="2", global_batch="64")
    assert case.gpus == 32 and "32 GPUs, 8 on each node" in case.assumptions
    trays = one(tmp_path, gpu="GB200", gpus="", nodes="4", dp="", tp="2", global_batch="64", node_type="")
    assert (trays.gpus, trays.gpus_per_node) == (16, 4) and "16 GPUs, 4 on each node" in trays.assumptions  # NVL72: 18 trays of four


def test_a_card_of_two_dies_counts_as_two_gpus_if_the_axes_say_so(tmp_path: Path) -> None:
    """AMD Instinct MI250X: each of its two dies is a GPU to software."""
    cards, dies = (one(tmp_path, gpu="MI250X", nodes="2", gpus=gpus, dp="16", global_batch="64", node_type="") for gpus in ("8", "16"))
    assert cards.gpus == dies.gpus == 16
    assert "16 GPUs, the product of dp, tp, pp and cp; the row counts 8 cards of 2" in cards.assumptions


def test_boards_without_nvlink_in_one_node_are_not_one_node_each(tmp_path: Path) -> None:
    case = one(tmp_path, gpu="L40S", node_type="", nodes="1", gpus="8", network="")
    assert (case.gpus_per_node, case.domain, case.node_span) == (8, 8, 1)
    assert "the network between nodes" not in "; ".join(case.assumptions)
    two = one(tmp_path, gpu="L40S", node_type="", nodes="2", gpus="16", dp="16", global_batch="128")
    assert (two.gpus_per_node, two.domain) == (8, 8)
