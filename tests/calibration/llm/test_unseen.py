"""Rows as a source that nobody here has seen would write them: each is described, or refused in one sentence that says why.

Oracles: published parameter totals, numbers that must multiply out, and what a word in a cell means to those who write it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.describe import describe
from calibration.llm.engine import memory_need
from calibration.llm.priors import defaults
from calibration.llm.score import is_scorable, memory_scores
from calibration.llm.table import read_table
from calibration.llm.weights import blocks_of_stages, total_parameters
from calibration.llm.what_fits import SHARDED_TO_FIT
from sim.spec.decoder import parameter_count
from tests.calibration.llm.tables import table

_BLANK = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
_MIXTURE = {"model": "custom-moe", "experts": "64", "topk": "8", "ffn_hidden": "1536", "nodes": "2", "gpus": "16", "dp": "16"}


def described(folder: Path, **row: str) -> Case | str:
    return describe(read_table(table(folder, [row]))[0])


def case_of(folder: Path, **row: str) -> Case:
    case = described(folder, **row)
    assert isinstance(case, Case), case
    return case


def refusal(folder: Path, **row: str) -> str:
    reason = described(folder, **row)
    assert isinstance(reason, str), reason
    assert "\n" not in reason
    return reason


def test_published_parameter_totals_of_further_models(tmp_path: Path) -> None:
    """Totals of the models' cards."""
    published = {
        "granite-3.0-8b-base": 8.17e9, "Granite 3.1 2B": 2.53e9, "Granite-34B-code": 33.7e9, "granite 20b": 20.1e9,
        "Granite-8B-Code": 8.05e9,
        "Phi-4-mini 3.8B": 3.84e9, "OLMo-2-0425-1B": 1.48e9, "Olmo-3-1025-7B": 7.3e9, "Qwen2-57B-A14B": 57.4e9, "Qwen1.5-MoE-A2.7B": 14.3e9,
        "QwQ-32B": 32.76e9, "Ministral-8B": 8.02e9, "Codestral-22B": 22.25e9, "Yi-1.5-9B": 8.83e9, "Falcon3-7B": 7.46e9,
        "Seed-OSS-36B": 36.15e9, "SmolLM-1.7B": 1.71e9, "Llama-3.1-Nemotron-70B": 70.55e9, "GLM-4.6": 352.8e9, "glm45_air_106b": 106.9e9,
        "GLM-5": 743e9, "Phi-4 14B": 14.66e9, "phi-2 2.7B": 2.78e9, "Qwen3 Next 80B": 79.5e9,
        "Falcon3-1B": 1.67e9, "Falcon3-3B": 3.23e9, "Falcon3-10B": 10.31e9, "Falcon2-11B": 11.1e9, "granite-4.0-micro": 3.4e9,
        "granite-3b-code": 3.48e9, "granite-3.1-3b-a800m": 3.3e9, "granite-3.0-1b-a400m": 1.33e9, "InternLM3-8B-Instruct": 8.8e9,
        "internlm2-1.8b": 1.89e9, "InternLM-20B": 20.1e9, "Baichuan-7B": 7.0e9, "Baichuan-13B": 13.26e9, "GLM-4-32B-0414": 32.57e9,
        "Grok-2 270B": 269.5e9, "deepseek-llm-7b": 6.91e9, "Cerebras-GPT-13B": 12.85e9,
        "Cerebras-GPT-6.7B": 6.65e9, "RedPajama-INCITE-7B": 6.86e9, "RedPajama-INCITE-Base-3B": 2.78e9, "StableLM-2-12B": 12.14e9,
        "StableLM-2-1.6B": 1.64e9, "StableLM-3B-4e1t": 2.8e9, "Aya-23-8B": 8.03e9, "Minitron-8B": 8.27e9, "Hunyuan-Large": 389e9,
        "Hunyuan-A13B": 80.4e9, "ERNIE-4.5-21B-A3B": 21.83e9, "ERNIE-4.5-300B-A47B": 300e9, "Ling-mini-2.0 (16B-A1.4B)": 16.26e9,
        "Ling-flash-2.0": 103e9, "Ling-1T": 1000e9, "Ling-lite": 16.8e9, "Aquila2-34B": 33.9e9, "Aquila2-7B": 7.3e9,
        "Skywork-13B": 13.85e9, "Skywork-MoE 146B": 146.5e9, "XVERSE-13B": 13.71e9, "Orion-14B": 14.5e9, "Apertus-8B": 8.05e9,
        "Apertus 70B": 70.6e9, "EuroLLM-9B": 9.15e9, "EuroLLM-1.7B": 1.66e9, "salamandra-7b": 7.77e9, "K2-65B": 65.3e9,
        "dots.llm1": 142.8e9, "MiMo-7B": 7.61e9, "SOLAR-10.7B": 10.73e9, "EXAONE-3.5-32B": 32.0e9, "EXAONE-3.5-7.8B": 7.82e9,
        "OpenCoder-8B": 7.77e9, "Poro-34B": 34.2e9, "Lucie-7B": 6.71e9, "zephyr-7b-beta": 7.24e9, "Tulu-3-8B": 8.03e9,
        "Megatron-LM 8.3B": 8.3e9, "Turing-NLG 17B": 17.2e9, "Yi-1.5-34B": 34.39e9, "Devstral-24B": 23.57e9, "Pixtral-12B": 12.25e9,
        "SmolLM-135M": 0.1345e9, "SmolLM-360M": 0.3618e9,
    }  # fmt: skip
    wrong = []
    for model, total in published.items():
        case = case_of(tmp_path, model=model, gpus="1024", dp="1024", nodes="128", global_batch="1024", status="oom", **_BLANK)
        if abs(total_parameters(case) / total - 1) > 0.01:
            wrong.append(f"{model}: {total_parameters(case):.4g}, published {total:.4g}")
    assert not wrong


def test_a_size_after_a_name_must_agree_with_the_model(tmp_path: Path) -> None:
    assert "layers, hidden" in refusal(tmp_path, model="Phi-4 70B", **_BLANK)


def test_sizes_that_the_model_of_the_name_does_not_have_are_noted(tmp_path: Path) -> None:
    assert "hidden 8,192 as in the row; Llama 3.1 8B has 4,096" in case_of(tmp_path, hidden="8192", status="oom").assumptions
    assert "layers 4 as in the row; Llama 3.1 8B has 32" in case_of(tmp_path, layers="4").assumptions
    for row in ({}, {"model": "mine"}, {"vocab": "128512"}):
        assert not [note for note in case_of(tmp_path, **row).assumptions if "as in the row" in note]


def test_hybrids_that_the_catalog_lacks_are_refused_as_such(tmp_path: Path) -> None:
    for model in ("Nemotron 3 Ultra", "Jamba 1.5", "Falcon-H1-7B", "Kimi-Linear-48B-A3B", "Mamba-2.8B"):
        assert "the kind of each layer is unknown" in refusal(tmp_path, model=model)
    assert case_of(tmp_path, model="Nemotron-H 47B", gpus="64", dp="64", nodes="8", status="oom", **_BLANK).model_family == "nemotron-h"


HYBRIDS = {"Falcon-H1-34B": (72, 33.64e9), "Falcon-H1-0.5B": (36, 0.521e9), "LFM2-1.2B": (16, 1.17e9), "LFM2-8B-A1B": (24, 8.34e9)}
HYBRIDS |= {"LongCat-Flash-Chat": (28, 560e9)}
"""Layers of the model's code, and published parameters, of hybrids that are known by name."""


@pytest.mark.parametrize("model", HYBRIDS)
def test_hybrids_of_several_letters_a_layer_have_the_layers_of_their_code(tmp_path: Path, model: str) -> None:
    layers, parameters = HYBRIDS[model]
    for said in ("", f"{layers}"):
        case = case_of(tmp_path, model=model, status="oom", **{**_BLANK, "layers": said})
        assert case.shape.block_count == layers
        assert parameter_count(case.shape) == pytest.approx(parameters, rel=0.01)


def test_linear_attention_is_named(tmp_path: Path) -> None:
    for model in ("MiniMax-Text-01", "RWKV-7 2.9B", "Kimi-Linear-48B-A3B"):
        assert "state-space layers (Mamba) or linear attention" in refusal(tmp_path, model=model)


def test_a_rate_of_tokens_is_scored_without_a_global_batch(tmp_path: Path) -> None:
    """Oracle: a rank's micro-batches times its ranks make the batch, and one GPU passes so many tokens in a step."""
    blank = {"global_batch": "", "step_time_s": "", "gpus": "8", "nodes": "1", "dp": "8", "seq_len": "4096", "tokens_per_s_per_gpu": "8192"}
    accumulated = case_of(tmp_path, micro_batch="2", grad_accum="4", **blank)
    assert (accumulated.global_batch, accumulated.measured) == (64.0, 4.0) and is_scorable(accumulated)
    once = case_of(tmp_path, micro_batch="2", grad_accum="", **blank)
    assert (once.global_batch, once.measured) == (16.0, 1.0) and any("grad_accum 1" in text for text in once.assumptions)
    assert "global_batch is blank" in refusal(tmp_path, micro_batch="2", grad_accum="", **{**blank, "dp": "4", "pp": "2"})
    assert "global_batch is blank" in refusal(
        tmp_path, micro_batch="2", grad_accum="", **{**blank, "step_time_s": "3", "tokens_per_s_per_gpu": ""}
    )


def test_software_and_expert_ranks_tell_the_layout(tmp_path: Path) -> None:
    """FSDP shards over all GPUs; expert ranks are data ranks unless others are stated."""
    blank = dict.fromkeys(("dp", "tp", "pp", "cp", "zero_stage", "fsdp_mode"), "")
    sharded = case_of(tmp_path, framework="HF Trainer + Accelerate FSDP", **blank)
    assert (sharded.data, sharded.zero) == (sharded.gpus, 3)
    experts = case_of(tmp_path, **_MIXTURE | blank | {"ep": "16", "framework": "Megatron-LM"})
    assert (experts.data, experts.expert, experts.tensor) == (16, 16, 1)
    assert "layout is unknown" in refusal(tmp_path, **_MIXTURE | blank | {"ep": "1", "framework": "Megatron-LM"})


def test_models_that_also_read_images_say_what_is_left_out(tmp_path: Path) -> None:
    note = "a decoder of text: encoders of images or sound are left out"
    assert note in case_of(tmp_path, model="Qwen2.5-VL-7B").assumptions
    assert note not in case_of(tmp_path, model="Qwen2.5-7B").assumptions
    assert refusal(tmp_path, model="Qwen2.5-VL-7B", **_BLANK).endswith("fill in those of the decoder of text")


def test_layers_in_a_name_and_proxies(tmp_path: Path) -> None:
    assert case_of(tmp_path, model="Llama 3.1 8B (4 layers)", **_BLANK).shape.layers == 4
    assert case_of(tmp_path, model="Llama 3.1 8B (4 layers)").shape.layers == 32, "the column says 32"
    assert "is a proxy" in refusal(tmp_path, model="Llama 3.1 405B proxy", **_BLANK)


def test_sizes_in_words_are_read_or_refused_but_never_dropped(tmp_path: Path) -> None:
    """A mixture whose experts could not be read would be predicted as a dense model."""
    case = case_of(tmp_path, **{**_MIXTURE, "experts": "64 + 2 shared", "topk": "top-8"})
    assert (case.shape.experts, case.shape.shared_experts, case.shape.experts_per_token) == (64, 2, 8)
    assert case_of(tmp_path, **{**_MIXTURE, "experts": "64 (1 shared)"}).shape.shared_experts == 1
    for written in ("64+2", "2 + 64"):
        assert (shape := case_of(tmp_path, **{**_MIXTURE, "experts": written}).shape).experts == 64 and shape.shared_experts == 2
    assert refusal(tmp_path, **{**_MIXTURE, "experts": "many"}) == "experts is 'many', not a whole number above 0"
    assert refusal(tmp_path, model="custom", kv_heads="GQA") == "kv_heads is 'GQA', not a whole number above 0"
    named = case_of(tmp_path, model="Llama 3.1 8B", kv_heads="GQA")
    assert named.shape.groups == 8 and "kv_heads 8, by the model's name; the row says 'GQA'" in named.assumptions


def test_a_gated_model_without_the_width_of_its_feed_forward_names_the_column(tmp_path: Path) -> None:
    assert "ffn_hidden missing" in refusal(tmp_path, model="Llama-like 7B", ffn_hidden="", kv_heads="32")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"ep": "7"}, "ep 7 does not divide 64 experts"),
        ({"ep": "128"}, "ep 128 does not divide 64 experts"),
        ({"ep": "32"}, "ep 32 does not divide the 16 tensor, context and data ranks"),
        ({"ep": "8", "experts": "", "topk": ""}, "ep is 8, but experts is blank and 'custom-moe' is not known to have any"),
    ],
)
def test_expert_ranks_that_do_not_multiply_out(row: dict[str, str], reason: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, **{**_MIXTURE, **row}) == reason
    assert case_of(tmp_path, **_MIXTURE, ep="8").expert == 8


def test_context_ranks_of_hybrids(tmp_path: Path) -> None:
    """Those of Mamba-2 are described; those of delta nets would lack their exchanges."""
    row = {"gpus": "64", "nodes": "8", "dp": "16", "cp": "4", "status": "oom", "framework": "Megatron-LM", **_BLANK}
    assert case_of(tmp_path, model="Nemotron-H 8B", **row).context == 4
    assert refusal(tmp_path, model="Qwen3-Next-80B-A3B", **row) == "cp 4: context ranks of layers with gated delta nets are not modeled"


def test_chunks_beyond_the_layers_are_noted(tmp_path: Path) -> None:
    case = case_of(tmp_path, pp="4", dp="2", virtual_pp="16")
    assert case.virtual_stages == 1 and "virtual_pp 1: 16 chunks on each of 4 stages are more than 32 layers" in case.assumptions


def test_offload_is_refused_wherever_it_is_written(tmp_path: Path) -> None:
    for column, cell in (
        ("zero_stage", "3 (CPU offload)"),
        ("fsdp_mode", "FULL_SHARD, cpu_offload: true"),
        ("zero_stage", "ZeRO-Infinity"),
        ("activation_checkpointing", "full + offload"),
        ("notes", "optimizer off-load"),
    ):
        assert "offload is not supported" in refusal(tmp_path, **{column: cell, "framework": "DeepSpeed"}), cell
    for cell in ("FULL_SHARD, no offload", "FULL_SHARD, cpu_offload=False", "FULL_SHARD without CPU offload"):
        assert case_of(tmp_path, fsdp_mode=cell, zero_stage="", framework="FSDP").zero == 3
    assert case_of(tmp_path, notes="offload was tried later", offload="none").zero == 1


def test_steps_that_do_more_than_train_are_refused(tmp_path: Path) -> None:
    for words in ({"set": "GRPO"}, {"class": "rlhf"}, {"set": "DPO, beta 0.1"}, {"class": "distillation"}, {"class": "inference"}):
        assert "not supported; only training of a decoder is" in refusal(tmp_path, **words)
    assert case_of(tmp_path, set="pretraining, hippo data")


def test_adapters_by_any_of_their_names(tmp_path: Path) -> None:
    assert (
        case_of(tmp_path, set="PEFT").lora and case_of(tmp_path, framework="HF PEFT").lora and case_of(tmp_path, **{"class": "DoRA"}).lora
    )
    assert not case_of(tmp_path, set="full fine-tuning").lora
    by_set = case_of(tmp_path, framework="Megatron-Bridge", set="LoRA rank 16", seq_len="4096")
    by_model = case_of(tmp_path, framework="Megatron-Bridge", model="Llama 3.1 8B LoRA", seq_len="4096")
    assert by_set.lora_targets == by_model.lora_targets == ("attention.qkv",) and by_set.document_tokens == by_model.document_tokens


def test_megatron_fsdp_shards_as_it_says(tmp_path: Path) -> None:
    stages = {
        mode: case_of(tmp_path, framework="Megatron-LM", zero_stage="", fsdp_mode=mode).zero
        for mode in ("no_shard", "optim", "optim_grads", "optim_grads_params", "Megatron-FSDP", "megatron_fsdp")
    }
    assert list(stages.values()) == [0, 1, 2, 3, 3, 3]


def test_parameters_that_stay_gathered_until_backward(tmp_path: Path) -> None:
    for mode in ("FSDP2, reshard_after_forward=False", "FULL_SHARD (reshard_after_forward: false)"):
        assert case_of(tmp_path, framework="torchtitan", zero_stage="", fsdp_mode=mode).zero == 2
    assert case_of(tmp_path, framework="torchtitan", zero_stage="", fsdp_mode="FSDP2, reshard_after_forward=True").zero == 3


def test_a_recipe_that_the_gpu_lacks_is_refused(tmp_path: Path) -> None:
    """Transformer Engine's MX blocks need compute capability 10 (pytorch/quantization.py, ``check_mxfp8_support``)."""
    assert refusal(tmp_path, precision="MXFP8") == "H100-SXM5-80GB has no mxfp8; use delayed, tensorwise, rowwise or blockwise"
    assert case_of(tmp_path, precision="MX-FP8", gpu="B200").recipe == "mxfp8"


def test_a_gpu_that_only_its_machine_names(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu="", node_type="p5en.48xlarge", gpus="8")
    assert case.chip.name == "H200-SXM-141GB" and "H200-SXM-141GB, the GPU of p5en.48xlarge" in case.assumptions
    assert refusal(tmp_path, gpu="", node_type="our lab") == "gpu is blank"


def test_how_many_gpus_where_the_cell_is_blank_or_counts_those_of_a_node(tmp_path: Path) -> None:
    named = case_of(tmp_path, gpu="2x H100", gpus="", nodes="2", dp="")
    assert named.gpus == 4 and "4 GPUs, 2 on each node by '2x H100'" in named.assumptions
    of_node = case_of(tmp_path, gpus="8", nodes="2", dp="2", tp="8")
    assert of_node.gpus == 16 and of_node.data == 2
    assert case_of(tmp_path, gpus="16", nodes="2", dp="4", tp="8").gpus == 16, "no node has 16 of them"


def test_boards_without_nvlink_share_a_node_unless_nodes_say_otherwise(tmp_path: Path) -> None:
    alone = case_of(tmp_path, gpu="L40S", nodes="", gpus="8", framework="FSDP", zero_stage="3")
    assert (alone.gpus_per_node, alone.domain) == (8, 8) and "8 L40Ss on each node" in alone.assumptions
    assert case_of(tmp_path, gpu="L40S", nodes="8", gpus="8", framework="FSDP", zero_stage="3").gpus_per_node == 1


def test_all_gpus_of_one_node_are_in_it(tmp_path: Path) -> None:
    """A DGX-1 joins eight V100s, a server eight H100 NVL in pairs; no node has sixteen H100s of SXM boards."""
    row = {"gpus": "8", "nodes": "1", "dp": "1", "tp": "8", "status": "oom", "network": ""}
    for gpu, nvlink in (("V100", 8), ("V100 16GB", 8), ("H100 NVL", 2), ("H200 NVL", 4)):
        case = case_of(tmp_path, gpu=gpu, precision="fp16", **row)
        assert (case.gpus_per_node, case.domain) == (8, nvlink) and "the network between nodes" not in case.assumptions
    one, two = (engine.predict(case_of(tmp_path, gpu="V100", precision="fp16", **row | {"nodes": nodes}), defaults()) for nodes in "12")
    assert one.step_time < two.step_time
    assert case_of(tmp_path, gpu="H100", **row | {"gpus": "16"}).gpus_per_node == 8


def test_megatron_shards_its_optimizer_if_only_that_fits(tmp_path: Path) -> None:
    """8 billion parameters take 18 bytes each on one GPU: 145 GB; a sixteenth of the optimizer leaves some 54 GB."""
    row = {"framework": "Megatron-LM", "gpus": "16", "nodes": "2", "dp": "16", "seq_len": "2048", "activation_checkpointing": "full"}
    assumed = case_of(tmp_path, zero_stage="", **row)
    assert assumed.zero == 1 and SHARDED_TO_FIT in assumed.assumptions
    assert case_of(tmp_path, zero_stage="0", **row).zero == 0
    assert case_of(tmp_path, zero_stage="", status="oom", **row).zero == 0
    prediction = closed_form.predict(assumed, defaults())
    assert memory_scores([(assumed, prediction)])["fitted"]["points"] == 0, "that it fits says nothing about the count of memory"


def test_columns_in_words_that_others_use(tmp_path: Path) -> None:
    path = table(tmp_path, [{"virtual_pp": "2", "pp": "4", "dp": "2", "activation_checkpointing": "full", "zero_stage": "yes"}])
    text = path.read_text(encoding="utf-8")
    for own, other in (
        ("virtual_pp", "VPP"),
        ("activation_checkpointing", "Recompute"),
        ("zero_stage", "Distributed Optimizer"),
        ("network", "Interconnect"),
    ):
        text = text.replace(f",{own},", f",{other},")
    path.write_text(text, encoding="utf-8")
    case = describe(read_table(path)[0])
    assert isinstance(case, Case), case
    assert (case.virtual_stages, case.recompute, case.zero) == (2, "full", 1)
    assert "the network between nodes" not in case.assumptions


def test_scripts_of_nemotron_super_on_b200(tmp_path: Path) -> None:
    """Megatron-Bridge scripts/performance/configs/nemotronh/nemotron_3_workload_base_configs.py @f601ba97141a: FP8 with 64 expert ranks."""
    row = {"framework": "Megatron-Bridge", "model": "Nemotron_3_Super", "gpu": "B200", "gpus": "64", "dp": "64", "nodes": "8", "ep": "64"}
    case = case_of(tmp_path, precision="mxfp8", activation_checkpointing="", **row, **_BLANK)
    assert set(case.recomputed_modules) == {"moe_act", "layernorm"} and not case.uses_cuda_graphs
    assert memory_need(case).verdict == "fits"


def test_prediction_layers_of_a_hybrid_are_attention_and_experts(tmp_path: Path) -> None:
    """Two letters each, as Megatron-Bridge's mtp_hybrid_override_pattern *E says; a layer of the pattern is one."""
    row = {"framework": "Megatron-Bridge", "model": "Nemotron_3_Super", "gpu": "GB300", "gpus": "64", "dp": "64", "nodes": "16", "ep": "64"}
    case = case_of(tmp_path, precision="mxfp8", **row, **_BLANK)
    assert case.shape.prediction_layers == 2 and blocks_of_stages(case) == ((88 + 2 * 2,), 0)


def test_modules_that_are_recomputed_with_or_without_the_word_selective(tmp_path: Path) -> None:
    row = {"framework": "Megatron-Bridge", "zero_stage": "1"}
    for cell in ("moe_act, layernorm", "selective: layernorm, moe_act", "['layernorm', 'moe_act']", "selective (moe_act + layernorm)"):
        case = case_of(tmp_path, activation_checkpointing=cell, **row)
        assert (case.recompute, case.recomputed_modules) == ("none", ("moe_act", "layernorm")), cell
    assert case_of(tmp_path, activation_checkpointing="core_attn", **row).recompute == "attention"
    assert "is unknown" in refusal(tmp_path, activation_checkpointing="moe_act and magic", **row)
    assert "has an unknown module" in refusal(tmp_path, activation_checkpointing="selective: mlp, magic", **row)


_SHARDED = {"framework": "torchtitan", "zero_stage": "3"}
_SLOW = {"network": "100 Gbps Ethernet"}
_BOARDS = {"gpu": "L40S", **_SLOW}
_LAYOUTS = {
    "FSDP of boards": {
        **_SHARDED, **_BOARDS, "model": "gpt2-xl", "nodes": "16", "gpus": "128", "dp": "128", "seq_len": "1024", "grad_accum": "1",
    },
    "FSDP under a pipeline": {
        **_SHARDED, **_SLOW, "model": "opt-13b", "gpu": "MI325X", "nodes": "16", "gpus": "128", "dp": "4", "tp": "8", "pp": "4",
        "seq_len": "2048",
    },
    "FSDP of experts": {
        **_SHARDED, **_SLOW, "model": "gpt-oss-120b", "gpu": "A100-SXM4-40GB", "nodes": "32", "gpus": "256", "dp": "128", "tp": "2",
        "ep": "32", "seq_len": "4096", "grad_accum": "1",
    },
    "torch's ring": {**_SHARDED, **_SLOW, "nodes": "4", "gpus": "32", "dp": "2", "cp": "16", "seq_len": "65536"},
    "experts over PCIe": {
        **_BOARDS, "model": "mixtral-8x7b", "nodes": "4", "gpus": "32", "dp": "8", "pp": "4", "ep": "8", "seq_len": "4096",
    },
    "tied tables": {
        **_SLOW, "model": "llama-3.2-1b", "nodes": "4", "gpus": "32", "dp": "8", "pp": "4", "seq_len": "2048", "grad_accum": "4",
    },
    "two ranks of a mesh": {
        "model": "llama-3.1-70b", "gpu": "MI355X", "nodes": "8", "gpus": "64", "dp": "2", "tp": "2", "pp": "8", "cp": "2",
        "virtual_pp": "2", "framework": "Megatron-LM", "precision": "fp8",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", _LAYOUTS)
def test_both_predictors_agree_on_layouts_that_no_table_has(name: str, tmp_path: Path) -> None:
    """They share what a layout sends and little else: one prices messages by formulas, the other by link, and only one has queues."""
    case = case_of(tmp_path, **(_BLANK | dict.fromkeys(("params", "node_type", "network", "global_batch"), "") | _LAYOUTS[name]))
    by_formula = closed_form.predict(case, defaults()).step_time
    assert 0.6 < engine.simulate_case(case, defaults()).step_time / by_formula < 1.6
