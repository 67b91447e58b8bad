"""Families whose classes come with their weights. Oracle: tensors of each ``modeling_*.py``, added up here, and the published totals."""

from __future__ import annotations

from typing import Any

import pytest

from sim.spec.decoder import parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from tests.spec.foreign.test_hf_config import SMALL, sizes


def shape_of(kind: str, config: dict[str, Any]) -> Transformer:
    return Transformer.model_validate(decoder_of({"model_type": kind, **config}, "config.json").shape)


def gated(layers: int, hidden: int, queries: int, keys: int, inner: int) -> int:
    """Weights of blocks with q, k, v, o, gate, up and down, and two norms without biases."""
    return layers * (hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * inner + 2 * hidden)


INTERNLM2 = sizes(48, 6144, 48, 16384, 92544, 32768, num_key_value_heads=8) | {"bias": False, "tie_word_embeddings": False}
INTERNLM3 = sizes(48, 4096, 32, 10240, 128512, 32768, num_key_value_heads=2, head_dim=128) | {"bias": False, "qkv_bias": False}
INTERNLM = sizes(32, 4096, 32, 11008, 103168, 2048) | {"bias": True}
BAICHUAN_7B = sizes(32, 4096, 32, 11008, 125696, 4096) | {"model_max_length": 4096}
BAICHUAN_13B = {name: size for name, size in sizes(40, 5120, 40, 13696, 125696, 0).items() if name != "max_position_embeddings"}
BAICHUAN_13B |= {"model_max_length": 4096}
EXAONE = {
    "activation_function": "silu", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_layers": 32, "vocab_size": 102400, "max_position_embeddings": 32768, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
CHATGLM3 = {
    "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 13696, "kv_channels": 128, "seq_length": 8192,
    "padded_vocab_size": 65024, "multi_query_attention": True, "multi_query_group_num": 2, "add_bias_linear": False, "add_qkv_bias": True,
    "rmsnorm": True, "post_layer_norm": True, "hidden_dropout": 0.0,
}  # fmt: skip
QWEN = sizes(32, 4096, 32, 22016, 151936, 32768) | {"kv_channels": 128, "no_bias": True, "seq_length": 8192, "rotary_pct": 1.0}
GROK = sizes(64, 6144, 48, 32768, 131072, 8192, num_key_value_heads=8) | {"num_experts": 8, "num_experts_per_tok": 2}
ARCTIC = sizes(35, 7168, 56, 4864, 32000, 4096, num_key_value_heads=8) | {
    "num_local_experts": 128, "num_experts_per_tok": 2, "moe_layer_frequency": 1, "use_residual": True, "parallel_attn_mlp_res": True,
    "moe_train_capacity_factor": 1, "tie_word_embeddings": False,
}  # fmt: skip
MINICPM3 = sizes(62, 2560, 40, 6400, 73448, 32768, num_key_value_heads=40) | {
    "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
}  # fmt: skip
DEEPSEEK = sizes(28, 2048, 16, 10944, 102400, 4096, num_key_value_heads=16) | {
    "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6,
}  # fmt: skip
LING = sizes(20, 2048, 16, 5120, 157184, 32768, num_key_value_heads=4, head_dim=128) | {
    "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True, "first_k_dense_replace": 1, "moe_intermediate_size": 512,
    "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "n_group": 8, "topk_group": 4,
    "moe_router_enable_expert_bias": True,
}  # fmt: skip
OLMO = {
    "d_model": 4096, "n_heads": 32, "n_layers": 32, "mlp_hidden_size": 22016, "embedding_size": 50304, "vocab_size": 50280, "rope": True,
    "layer_norm_with_affine": False, "weight_tying": False, "max_sequence_length": 2048, "block_type": "sequential",
    "layer_norm_type": "default", "activation_type": "swiglu", "include_bias": False,
}  # fmt: skip
ORION = sizes(40, 5120, 40, 15360, 84608, 4096, num_key_value_heads=40)
BAMBA = sizes(32, 4096, 32, 14336, 128256, 262144, num_key_value_heads=8) | {
    "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": False,
}  # fmt: skip
OLD_FALCON = {"hidden_size": 8192, "n_head": 128, "n_head_kv": 8, "n_layer": 60, "vocab_size": 65024, "parallel_attn": True, "bias": False}
OLD_FALCON_7B = {"hidden_size": 4544, "n_head": 71, "n_layer": 32, "vocab_size": 65024, "parallel_attn": True, "multi_query": True}
CODEGEN = {"n_embd": 6144, "n_head": 24, "n_layer": 34, "n_positions": 2048, "rotary_dim": 64, "vocab_size": 51200}
_LATENT = 2560 * 768 + 768 + 768 * 40 * 96 + 2560 * (256 + 32) + 256 + 256 * 40 * (64 + 64) + 40 * 64 * 2560
_MAMBA = 4096 * (2 * 8192 + 2 * 128 + 128) + 5 * (8192 + 2 * 128) + 3 * 128 + 8192 + 8192 * 4096


@pytest.mark.parametrize(
    ("kind", "config", "parameters", "published"),
    [
        ("internlm2", INTERNLM2, 2 * 92544 * 6144 + 6144 + gated(48, 6144, 6144, 1024, 16384), 19.86e9),
        ("internlm3", INTERNLM3, 2 * 128512 * 4096 + 4096 + gated(48, 4096, 4096, 256, 10240), 8.8e9),
        ("internlm", INTERNLM, 2 * 103168 * 4096 + 4096 + gated(32, 4096, 4096, 4096, 11008) + 32 * 4 * 4096, 7.32e9),
        ("baichuan", BAICHUAN_7B, 2 * 125696 * 4096 + 4096 + gated(32, 4096, 4096, 4096, 11008), 7.5e9),
        ("baichuan", BAICHUAN_13B, 2 * 125696 * 5120 + 5120 + gated(40, 5120, 5120, 5120, 13696), 13.9e9),
        ("exaone", EXAONE, 2 * 102400 * 4096 + 4096 + gated(32, 4096, 4096, 1024, 14336), 7.8e9),
        ("chatglm", CHATGLM3, 2 * 65024 * 4096 + 4096 + gated(28, 4096, 4096, 256, 13696) + 28 * (4096 + 512), 6.24e9),
        ("qwen", QWEN, 2 * 151936 * 4096 + 4096 + gated(32, 4096, 4096, 4096, 11008) + 32 * 3 * 4096, 7.72e9),
        ("grok-1", GROK, 131072 * 6144 + 6144 + 64 * (6144 * (6144 + 2048) + 6144**2 + 8 * 6144 + 8 * 3 * 6144 * 32768 + 4 * 6144), 314e9),
        # less a norm of each layer, which a shared expert does not have
        ("arctic", ARCTIC, 2 * 32000 * 7168 + 7168 + gated(35, 7168, 7168, 1024, 7168) + 35 * (128 * 7168 + 128 * 3 * 7168 * 4864), 480e9),
        ("minicpm", sizes(40, 2304, 36, 5760, 122753, 2048), 122753 * 2304 + 2304 + gated(40, 2304, 2304, 2304, 5760), 2.72e9),
        ("minicpm3", MINICPM3, 73448 * 2560 + 2560 + 62 * (_LATENT + 3 * 2560 * 6400 + 2 * 2560), 4.07e9),
        ("deepseek", DEEPSEEK, 2 * 102400 * 2048 + 2048 + 28 * (4 * 2048**2 + 2 * 2048) + 3 * 2048 * 10944
         + 27 * (64 * 2048 + 66 * 3 * 2048 * 1408), 16.4e9),
        ("bailing_moe_v2", LING, 2 * 157184 * 2048 + 2048 + 20 * (2 * 2048 * (2048 + 512) + 2 * 2048 + 2 * 128) + 3 * 2048 * 5120
         + 19 * (256 * 2048 + 257 * 3 * 2048 * 512), 16.3e9),
        ("hf_olmo", OLMO, 2 * 50304 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008), 6.89e9),
        ("orion", ORION, 2 * 84608 * 5120 + 2 * 5120 + gated(40, 5120, 5120, 5120, 15360) + 40 * 2 * 5120, 14.5e9),
        ("bamba", BAMBA, 2 * 128256 * 4096 + 4096 + 32 * (3 * 4096 * 14336 + 2 * 4096)
         + 3 * 2 * 4096 * (4096 + 1024) + 29 * _MAMBA, 9.78e9),
        ("RefinedWeb", OLD_FALCON, 65024 * 8192 + 2 * 8192 + 60 * (8192 * (8192 + 2 * 512) + 8192**2 + 8 * 8192**2 + 4 * 8192), 41.3e9),
        ("RefinedWebModel", OLD_FALCON_7B, 65024 * 4544 + 2 * 4544
         + 32 * (4544 * (4544 + 2 * 64) + 4544**2 + 8 * 4544**2 + 2 * 4544), 6.92e9),
        ("codegen", CODEGEN, 2 * 51200 * 6144 + 51200 + 2 * 6144 + 34 * (12 * 6144**2 + 5 * 6144 + 2 * 6144), 16.0e9),
        ("Yi", sizes(60, 7168, 56, 20480, 64000, 4096, num_key_value_heads=8),
         2 * 64000 * 7168 + 7168 + gated(60, 7168, 7168, 1024, 20480), 34.4e9),
    ],
)  # fmt: skip
def test_weights_are_those_of_the_published_code(kind: str, config: dict[str, Any], parameters: int, published: float) -> None:
    counted = parameter_count(shape_of(kind, config))
    assert counted == parameters
    assert counted == pytest.approx(published, rel=0.01)


def test_gpt_neo_lacks_only_the_bias_of_attention_s_output() -> None:
    """modeling_gpt_neo.py; EleutherAI/gpt-neo-2.7B has 2,651,307,520 parameters."""
    config = {
        "hidden_size": 2560, "num_heads": 20, "num_layers": 32, "intermediate_size": None, "max_position_embeddings": 2048,
        "vocab_size": 50257, "activation_function": "gelu_new", "attention_types": [[["global", "local"], 16]], "window_size": 256,
        "attention_layers": ["global", "local"] * 16,
    }  # fmt: skip
    decoder = decoder_of({"model_type": "gpt_neo", **config}, "config.json")
    assert parameter_count(Transformer.model_validate(decoder.shape)) == 2_651_307_520 - 32 * 2560
    assert decoder.notes == (
        "attention_types: layers with a window compute all scores, as in transformers; the bias of attention's output is left out",
    )


def test_positions_and_norms_are_those_of_the_published_code() -> None:
    assert (shape_of("baichuan", BAICHUAN_13B).positions, shape_of("baichuan", BAICHUAN_13B).max_seq) == ("alibi", 4096)
    assert shape_of("baichuan", BAICHUAN_7B).positions == "rope"
    grok = shape_of("grok-1", GROK)
    assert (grok.activation, grok.norms_per_layer, grok.tied) == ("geglu", 4, True)
    assert shape_of("orion", ORION).norm == "layernorm" and shape_of("hf_olmo", OLMO).norm == "nonparametric"
    assert (shape_of("qwen", QWEN).ffn, shape_of("qwen", QWEN).bias) == (11008, "qkv")
    ling = shape_of("bailing_moe_v2", LING)
    assert (ling.qk_norm, ling.expert_groups, ling.groups_per_token) == ("head", 8, 4)
    assert (shape_of("bamba", BAMBA).pattern or "")[:22] == "M-" * 9 + "*-M-"
    stable = sizes(40, 5120, 32, 13824, 100352, 4096, num_key_value_heads=8) | {"use_parallel_residual": True}
    heads = parameter_count(shape_of("stablelm", stable | {"qk_layernorm": True})) - parameter_count(shape_of("stablelm", stable))
    assert heads == 40 * (5120 + 8 * 160)  # StableLmLayerNormPerHead: weights of its own for each head


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"model_type": "internlm3", "bias": True}, "bias true with qkv_bias false is not modeled"),
        ({"model_type": "chatglm", "inner_hidden_size": 16384}, "ffn_hidden_size is missing; the first ChatGLM"),
        ({"model_type": "hf_olmo", "block_type": "parallel"}, "block_type parallel is not modeled; use sequential or llama"),
        (
            {"model_type": "arctic", "num_local_experts": 8, "num_experts_per_tok": 2, "use_residual": True},
            "moe_layer_frequency 2, use_residual True: only",
        ),
        ({"model_type": "bamba", "attn_layer_indices": [9]}, "attn_layer_indices must list layers with attention, from 0 to 3"),
        ({"model_type": "zamba2", "mamba_d_state": 64}, "zamba2: its layers have blocks of attention whose weights several layers share"),
        (
            {"text_config": {"model_type": "gemma3n_text", **SMALL}},
            r"parallel streams \(AltUp\).* not modeled; trace its torch model instead",
        ),
        ({"model_type": "kimi_linear", "linear_attn_config": {}}, "kimi_linear: its layers have Kimi delta attention, whose decay"),
        ({"model_type": "bitnet"}, "bitnet: its layers have weights of 1.58 bits, and norms inside"),
        ({"model_type": "hunyuan", "use_cla": True}, "hunyuan: its layers have keys and values of the layer before"),
    ],
)
def test_layers_that_cannot_be_described_are_refused_in_a_sentence(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as raised:
        decoder_of(SMALL | said, "config.json")
    assert "like those of" not in str(raised.value) and "\n" not in str(raised.value)
