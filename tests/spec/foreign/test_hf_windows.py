"""Windows and biases of decoders. Oracles: configuration_*.py and modeling_*.py of transformers, as each test names them."""

from __future__ import annotations

from typing import Any

import pytest

from sim.spec.foreign.hf_config import decoder_of
from sim.spec.transformer import Transformer
from tests.spec.foreign.test_hf_config import SMALL


def _layers_with_window(kind: str, **said: Any) -> list[bool]:
    """Return which of 8 layers of a mixture of the family *kind* have a window."""
    experts = {"num_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    config = {"model_type": kind, **SMALL, "num_hidden_layers": 8, **experts, **said}
    shape = Transformer.model_validate(decoder_of(config, "config.json").shape)
    return [bool(shape.window) and not (shape.global_every and (layer + 1) % shape.global_every == 0) for layer in range(8)]


@pytest.mark.parametrize(
    ("kind", "said", "windows"),
    [
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 8}, [True, False] * 4),
        ("qwen2_moe", {"use_sliding_window": False, "max_window_layers": 8}, [False] * 8),
        ("qwen3_moe", {"use_sliding_window": True, "max_window_layers": 8}, [True] * 8),
        ("qwen3_moe", {"max_window_layers": 8}, [False] * 8),
        ("dots1", {"max_window_layers": 0}, [True] * 8),
        ("dots1", {}, [False] * 8),
    ],
)
def test_layers_with_a_window_of_mixtures(kind: str, said: dict[str, Any], windows: list[bool]) -> None:
    """Oracle: layer_types of transformers, configuration_qwen2_moe.py, configuration_qwen3_moe.py and configuration_dots1.py."""
    assert _layers_with_window(kind, sliding_window=128, **said) == windows


@pytest.mark.parametrize("kind", ["qwen2_moe", "qwen3_moe"])
def test_the_window_that_a_file_leaves_out_is_that_of_the_class(kind: str) -> None:
    """Oracle: sliding_window of transformers, configuration_qwen2_moe.py and configuration_qwen3_moe.py."""
    said = {"model_type": kind, **SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    assert decoder_of(said | {"use_sliding_window": True}, "config.json").shape["window"] == 4096


@pytest.mark.parametrize("kind", ["olmo", "olmo2", "olmo3", "gemma", "gemma2", "gemma3_text", "nemotron"])
def test_biases_of_attention_are_read(kind: str) -> None:
    """Oracle: attention_bias in modeling_*.py of transformers: products of queries, keys, values and of the output."""
    biases = [decoder_of({"model_type": kind, **SMALL, "attention_bias": each}, "config.json").shape["bias"] for each in (False, True)]
    assert biases == ["none", "qkv_output"]


def test_biases_of_qwen2_moe_can_be_off() -> None:
    said = {"model_type": "qwen2_moe", **SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    assert [decoder_of(said | more, "config.json").shape["bias"] for more in ({}, {"qkv_bias": False})] == ["qkv", "none"]
