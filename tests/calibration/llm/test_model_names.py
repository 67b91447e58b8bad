"""Models as tables name them. Oracle: totals of the models' cards, which follow from their configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.llm.weights import total_parameters
from tests.calibration.llm.test_unseen import _BLANK, case_of, refusal

_MANY = {"gpus": "1024", "dp": "1024", "nodes": "128", "global_batch": "1024", "status": "oom"}
PUBLISHED = {
    "InternLM2-20B": 19.86e9, "internlm2_5-7b-chat": 7.74e9, "internlm2-1_8b": 1.89e9, "Baichuan2-13B": 13.9e9, "Baichuan2-7B-Base": 7.5e9,
    "EXAONE-3.0-7.8B": 7.82e9, "EXAONE-3.5-2.4B": 2.41e9, "EXAONE-4.0-32B": 32.0e9, "EXAONE 4.0 1.2B": 1.28e9, "Falcon-40B": 41.3e9,
    "falcon-180B": 178.6e9, "chatglm3-6b": 6.24e9, "GLM-4-9B": 9.4e9, "GLM-4.5-Air": 106.9e9, "Command-R7B": 8.03e9, "Command-R": 34.98e9,
    "Command R+": 103.8e9, "Command A": 111.06e9, "Kimi-K2": 1026e9, "Qwen3-Next-80B-A3B": 79.6e9, "Qwen3-Next": 79.6e9,
    "Qwen3 Coder 30B A3B": 30.5e9, "ERNIE 4.5 0.3B": 0.361e9, "Hunyuan-7B": 7.5e9, "Magistral-Small": 23.57e9, "Devstral": 23.57e9,
    "Mistral-Small-24B-Instruct-2501": 23.57e9, "Snowflake Arctic": 480e9, "Granite-4.0-H-Small": 32.2e9, "Granite-4.0-H-Tiny": 6.94e9,
    "granite-4.0-h-micro": 3.19e9, "Bamba-9B": 9.78e9, "DeepSeek-R1-Distill-Llama-70B": 70.55e9, "DeepSeek-R1-Distill-Llama-8B": 8.03e9,
    "DeepSeek-R1-Distill-Qwen-32B": 32.76e9, "DeepSeek-R1-0528-Qwen3-8B": 8.19e9, "DeepSeek-R1": 671e9, "Qwen-14B": 14.17e9,
    "Qwen-72B": 72.3e9, "Qwen1.5-32B": 32.5e9, "CodeGemma-7B": 8.54e9, "bloomz-560m": 0.559e9, "GPT-Neo-2.7B": 2.65e9,
    "gpt-neo 1.3B": 1.32e9, "DeepSeek-V2-Lite": 15.71e9, "Moonlight-16B-A3B": 15.96e9,
    "CodeGen-16B": 16.03e9, "codegen-2b-mono": 2.78e9, "SantaCoder": 1.125e9, "XGen-7B": 6.9e9, "MiniCPM-2B": 2.72e9, "MiniCPM3-4B": 4.07e9,
    "XVERSE-65B": 66.4e9, "Jais-13B": 13.0e9, "Seed-Coder-8B": 8.25e9, "OLMo-1B": 1.18e9, "phi-1.5": 1.42e9, "phi-1_5": 1.42e9,
    "Megatron-Turing NLG 530B": 530e9, "Turing-NLG 17B": 17.2e9, "WizardLM-13B": 13.0e9,
}  # fmt: skip


def test_published_totals_of_models_by_their_names(tmp_path: Path) -> None:
    wrong = []
    for model, total in PUBLISHED.items():
        counted = total_parameters(case_of(tmp_path, model=model, **_MANY, **_BLANK))
        if counted != pytest.approx(total, rel=0.01):
            wrong.append(f"{model}: {counted:.4g}, published {total:.4g}")
    assert not wrong


def test_sizes_of_the_row_win_over_those_of_another_model_s_name(tmp_path: Path) -> None:
    """A distilled model has none of its teacher's experts and latent vectors."""
    shape = case_of(tmp_path, model="DeepSeek-R1-Distill-Llama-8B").shape
    assert (shape.experts, shape.mla, shape.layers, shape.hidden) == (0, None, 32, 4096)


def test_sizes_in_columns_suffice_for_a_name_that_is_unknown(tmp_path: Path) -> None:
    """``PLAIN`` has the sizes of Llama 3.1 8B."""
    assert total_parameters(case_of(tmp_path, model="Zebra-9")) == pytest.approx(8.03e9, rel=0.001)


def test_a_name_with_another_size_than_the_model_known_by_it_is_refused(tmp_path: Path) -> None:
    reason = refusal(tmp_path, model="Command-R 104B", **_BLANK)
    assert reason == (
        "'Command-R 104B': the model known by this name has 35.0 billion parameters; fill in layers, hidden, heads, ffn_hidden and vocab"
    )
    assert case_of(tmp_path, model="Command-R 104B", status="oom").shape.hidden == 4096, "columns say it"
    assert case_of(tmp_path, model="Llama 3.1 8B (4 layers)", **_BLANK).shape.layers == 4


def test_the_size_of_a_mixture_is_that_of_all_parameters_or_of_those_that_a_token_uses(tmp_path: Path) -> None:
    assert "has 671.0 billion parameters" in refusal(tmp_path, model="DeepSeek-V3 16B", **_BLANK)
    for model in ("DeepSeek-V3 671B", "DeepSeek-V3 37B", "Llama 4 Scout 17B", "Mixtral 8x7B", "Qwen3-30B-A3B"):
        assert case_of(tmp_path, model=model, **_MANY, **_BLANK).shape.experts, model
