"""Families of late 2025, and hybrids of them. Oracle: tensors of transformers' ``modeling_*.py``, added up here, and the published totals.

Published totals are those of the safetensors on the hub (Falcon-H1, LFM2, Apertus, Mamba-Codestral), or what the model's name or card says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.spec.decoder import decoder_layers, parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.library import load_workload
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from sim.study.new.workload import new_workload
from tests.spec.foreign.test_hf_config import sizes


def shape_of(kind: str, config: dict[str, Any]) -> Transformer:
    return Transformer.model_validate(decoder_of({"model_type": kind, **config}, "config.json").shape)


def attended(hidden: int, queries: int, keys: int) -> int:
    """Weights of q, k, v and o."""
    return hidden * (queries + 2 * keys) + queries * hidden


def scanned(hidden: int, heads: int, size: int, state: int, groups: int) -> int:
    """Weights of a Mamba-2 layer with a convolution of four tokens and its biases, without norms."""
    inner, channels = heads * size, heads * size + 2 * groups * state
    return hidden * (inner + channels + heads) + 5 * channels + 3 * heads + inner * hidden


def latent(hidden: int, heads: int, nope: int, value: int) -> int:
    """Weights of latent attention with ranks of 1536 and 512 and 64 rotary elements, with both inner norms."""
    down = hidden * (1536 + 512 + 64) + 1536 + 512
    return down + 1536 * heads * (nope + 64) + 512 * heads * (nope + value) + heads * value * hidden


FALCON_H1 = sizes(36, 1024, 8, 2048, 32784, 16384, num_key_value_heads=2, head_dim=64) | {
    "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_chunk_size": 128, "mamba_conv_bias": True, "mamba_proj_bias": False, "mamba_rms_norm": False, "mamba_expand": 2,
    "layers_block_type": ["hybrid"] * 36,
}  # fmt: skip
LFM2 = sizes(16, 2048, 32, 12288, 65536, 128000, num_key_value_heads=8) | {
    "block_dim": 2048, "block_ff_dim": 12288, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_heads": 32,
}  # fmt: skip
LFM2_MOE = sizes(24, 2048, 32, 7168, 65536, 128000, num_key_value_heads=8) | {
    "conv_L_cache": 3, "num_dense_layers": 2, "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4,
    "layer_types": ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
}  # fmt: skip
LONGCAT = {
    "attention_method": "MLA", "vocab_size": 131072, "hidden_size": 6144, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048,
    "num_layers": 28, "num_attention_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "n_routed_experts": 512, "zero_expert_num": 256, "zero_expert_type": "identity", "moe_topk": 12,
    "max_position_embeddings": 131072,
}  # fmt: skip
CODESTRAL = {
    "num_hidden_layers": 64, "hidden_size": 4096, "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "chunk_size": 256, "expand": 2, "vocab_size": 32768, "tie_word_embeddings": False, "use_conv_bias": True, "rms_norm": True,
}  # fmt: skip
APERTUS = sizes(32, 4096, 32, 21504, 131072, 65536, num_key_value_heads=8) | {"hidden_act": "xielu"}
TRINITY = sizes(32, 2048, 32, 6144, 200192, 131072, num_key_value_heads=4, head_dim=128) | {
    "num_dense_layers": 2, "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "global_attn_every_n_layers": 4, "sliding_window": 2048,
}  # fmt: skip
EXAONE = sizes(48, 6144, 64, 18432, 153600, 262144, num_key_value_heads=8, head_dim=128) | {
    "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 1,
    "sliding_window": 128, "sliding_window_pattern": "LLLG", "n_group": 1, "topk_group": 1,
}  # fmt: skip
SOLAR = {name: size for name, size in sizes(48, 4096, 64, 0, 196608, 131072, num_key_value_heads=8, head_dim=128).items() if size}
SOLAR |= {"n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 1280}
YOUTU = sizes(32, 2048, 16, 6144, 128256, 131072, num_key_value_heads=16) | {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
}  # fmt: skip
GRANITE = sizes(24, 1024, 16, 512, 49155, 4096, num_key_value_heads=8) | {
    "num_local_experts": 32, "num_experts_per_tok": 8, "shared_intermediate_size": 1024, "tie_word_embeddings": True,
}  # fmt: skip
FLEX_OLMO = sizes(32, 4096, 32, 11008, 100352, 4096) | {"num_experts": 7, "num_experts_per_tok": 7}


@pytest.mark.parametrize(
    ("kind", "config", "parameters", "published"),
    [
        ("falcon_h1", FALCON_H1, 2 * 32784 * 1024 + 1024 + 36 * (attended(1024, 512, 128) + scanned(1024, 24, 64, 128, 1)
         + 3 * 1024 * 2048 + 2 * 1024), 521_411_104),
        ("lfm2", LFM2, 65536 * 2048 + 2048 + 16 * (3 * 2048 * 8192 + 2 * 2048) + 6 * (attended(2048, 2048, 512) + 2 * 64)
         + 10 * (4 * 2048**2 + 3 * 2048), 1_170_340_608),
        ("lfm2_moe", LFM2_MOE, 65536 * 2048 + 2048 + 24 * 2 * 2048 + 6 * (attended(2048, 2048, 512) + 2 * 64)
         + 18 * (4 * 2048**2 + 3 * 2048) + 2 * 3 * 2048 * 7168 + 22 * 32 * (2048 + 3 * 2048 * 1792), 8_339_929_856),
        ("apertus", APERTUS, 2 * 131072 * 4096 + 4096 + 32 * (attended(4096, 4096, 1024) + 2 * 4096 * 21504 + 2 * 4096 + 2 * 128 + 2),
         8_053_338_176),
        ("mamba2", CODESTRAL, 2 * 32768 * 4096 + 4096 + 64 * (scanned(4096, 128, 64, 128, 8) + 128 * 64 + 4096), 7_285_403_648),
        # of the router's 768 columns, those of the experts that return their input are left out
        ("longcat_flash", LONGCAT, 2 * 131072 * 6144 + 6144 + 28 * (2 * (latent(6144, 64, 128, 128) + 3 * 6144 * 12288 + 2 * 6144)
         + 512 * (6144 + 3 * 6144 * 2048)), 560e9),
        ("afmoe", TRINITY, 2 * 200192 * 2048 + 2048 + 32 * (attended(2048, 4096, 512) + 2048 * 4096 + 2 * 128 + 4 * 2048)
         + 2 * 3 * 2048 * 6144 + 30 * (128 * 2048 + 129 * 3 * 2048 * 1024), 26e9),
        ("exaone_moe", EXAONE, 2 * 153600 * 6144 + 6144 + 48 * (attended(6144, 8192, 1024) + 2 * 128 + 2 * 6144) + 3 * 6144 * 18432
         + 47 * (128 * 6144 + 129 * 3 * 6144 * 2048), 236e9),
        ("solar_open", SOLAR, 2 * 196608 * 4096 + 4096 + 48 * (attended(4096, 8192, 1024) + 2 * 4096 + 128 * 4096 + 129 * 3 * 4096 * 1280),
         102e9),
        ("youtu", YOUTU, 128256 * 2048 + 2048 + 32 * (latent(2048, 16, 128, 128) + 3 * 2048 * 6144 + 2 * 2048), 1.96e9),
        ("vaultgemma", sizes(26, 1152, 4, 6912, 256000, 1024, num_key_value_heads=4, head_dim=256) | {"sliding_window": 512},
         256000 * 1152 + 1152 + 26 * (attended(1152, 1024, 1024) + 3 * 1152 * 6912 + 2 * 1152), 1.04e9),
        ("nanochat", sizes(32, 2048, 16, 8192, 65536, 2048), 2 * 65536 * 2048 + 32 * (4 * 2048**2 + 2 * 2048 * 8192), 1.88e9),
        ("cwm", sizes(64, 6144, 48, 21504, 128256, 131072, num_key_value_heads=8, head_dim=128) | {"sliding_window": 8192},
         2 * 128256 * 6144 + 6144 + 64 * (attended(6144, 6144, 1024) + 3 * 6144 * 21504 + 2 * 6144), 32.6e9),
        ("jais2", sizes(32, 3328, 26, 26624, 150272, 8192), 2 * 150272 * 3328 + 2 * 3328
         + 32 * (4 * (3328**2 + 3328) + 2 * 3328 * 26624 + 26624 + 3328 + 4 * 3328), 8.09e9),
        ("flex_olmo", FLEX_OLMO, 2 * 100352 * 4096 + 4096 + 32 * (4 * 4096**2 + 4 * 4096 + 7 * (4096 + 3 * 4096 * 11008)), 33.3e9),
        ("granitemoeshared", GRANITE, 49155 * 1024 + 1024 + 24 * (attended(1024, 1024, 512) + 2 * 1024 + 32 * (1024 + 3 * 1024 * 512)
         + 3 * 1024 * 1024), 1.41e9),
    ],
)  # fmt: skip
def test_weights_are_those_of_the_published_code(kind: str, config: dict[str, Any], parameters: int, published: float) -> None:
    counted = parameter_count(shape_of(kind, config))
    assert counted == parameters
    assert counted == pytest.approx(published, rel=0.0 if isinstance(published, int) else 0.01)


def test_falcon_h1_has_attention_beside_mamba() -> None:
    shape = shape_of("falcon_h1", FALCON_H1)
    assert (shape.pattern, shape.block_count, shape.bias) == ("P-" * 36, 36, "none")
    assert shape.mamba is not None and not shape.mamba.norm
    assert (shape.share_of("*"), shape.share_of("M"), shape.share_of("-")) == (0.5, 0.5, 0.5), "of letters, a half have both"
    normed = shape_of("falcon_h1", FALCON_H1 | {"mamba_rms_norm": True})
    assert parameter_count(normed) - parameter_count(shape) == 36 * 1536
    said = FALCON_H1 | {"key_multiplier": 0.5, "ssm_multipliers": [1.0, 0.5], "attention_in_multiplier": 1.0}
    assert (
        "key_multiplier, ssm_multipliers: multiplied with neighboring operators"
        in decoder_of({"model_type": "falcon_h1", **said}, "").notes[0]
    )
    by_default = {name: size for name, size in FALCON_H1.items() if name != "mamba_d_head"}
    assert shape_of("falcon_h1", by_default) == shape, "1536 / 24"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"mamba_n_heads": 0}, r"mamba_n_heads \(0\) does not divide Mamba's 1536 channels"),
        ({"mamba_n_heads": 7}, r"mamba_n_heads \(7\) does not divide Mamba's 1536 channels"),
        ({"mamba_n_heads": 12}, r"mamba_d_head \(64\) times mamba_n_heads \(12\) is 768, not Mamba's 1536 channels; write 128"),
    ],
)
def test_sizes_of_mamba_that_contradict_each_other_are_refused(more: dict[str, Any], sentence: str) -> None:
    """As configuration_falcon_h1.py and configuration_mamba2.py of transformers refuse them."""
    with pytest.raises(SpecError, match=sentence):
        decoder_of({"model_type": "falcon_h1", **FALCON_H1, **more}, "config.json")
    with pytest.raises(SpecError, match=r"head_dim \(64\) times num_heads \(128\) is 8192, not Mamba's 4096 channels; write 32"):
        decoder_of({"model_type": "mamba2", **CODESTRAL, "hidden_size": 2048}, "config.json")


def test_messages_have_the_keys_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lfm2", **LFM2, "conv_L_cache": 0}))
    with pytest.raises(SpecError, match="conv_L_cache: 0 is too small"):
        new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml")


def test_longcat_flash_has_two_blocks_a_layer_and_experts_beside_the_first() -> None:
    """Of 12 experts, 8 of 512 + 256 compute, as its report says (arXiv 2509.01322, section 2.1)."""
    shape = shape_of("longcat_flash", LONGCAT)
    assert (shape.pattern, shape.block_count, shape.experts_per_token) == ("*E*-" * 28, 28, 8)
    names = [layer.name for layer in decoder_layers(shape, 64)]
    assert names.count("layers.0.attention.core") == 2 and "layers.28.attention.core" not in names
    notes = decoder_of({"model_type": "longcat_flash", **LONGCAT}, "config.json").notes
    assert any("zero_expert_num 256: of the 12 experts of a token, 8 compute on average" in note for note in notes)
    written = {name: size for name, size in LONGCAT.items() if name != "num_layers"} | {"num_hidden_layers": 56}
    assert shape_of("longcat_flash", written) == shape, "transformers counts blocks"


def test_lfm2_has_short_convolutions_or_attention() -> None:
    """Widths: two thirds of 12288 (Lfm2MLP of transformers), in multiples of 256."""
    shape = shape_of("lfm2", LFM2)
    assert (shape.pattern or "")[:12] == "C-C-*-C-C-*-" and (shape.ffn, shape.short_conv, shape.tied) == (8192, 3, True)
    assert shape_of("lfm2", LFM2 | {"block_auto_adjust_ff_dim": False}).ffn == 12288
    assert shape_of("lfm2", LFM2 | {"block_ff_dim": 1000, "block_multiple_of": 64}).ffn == 704
    assert (shape_of("lfm2_moe", LFM2_MOE).pattern or "")[:12] == "C-C-*ECECECE"
    with pytest.raises(SpecError, match="layer_types must list conv or full_attention for each of the 16 layers"):
        shape_of("lfm2", LFM2 | {"layer_types": ["conv"]})
    with pytest.raises(SpecError, match="block_ffn_dim_multiplier: wide is not a number above 0"):
        shape_of("lfm2", LFM2 | {"block_ffn_dim_multiplier": "wide"})


def test_windows_and_gates_are_those_of_the_published_code() -> None:
    small = {"model_type": "cwm", **sizes(8, 256, 8, 640, 1000, 512, num_key_value_heads=4, head_dim=32), "sliding_window": 64}
    cwm = decoder_of(small, "config.json")
    assert (cwm.shape["window"], cwm.shape["global_every"]) == (64, 4)
    assert cwm.notes == ("layer_types: layers 0, 4, 8, ... attend to all tokens; simulated as layers 3, 7, 11, ...",)
    uneven = {"layer_types": ["full_attention" if layer % 3 == 0 else "sliding_attention" for layer in range(8)]}
    note = decoder_of(small | uneven, "config.json").notes[0]
    assert "(of which there are 2, not 3, so it is slightly too fast)" in note
    trinity = shape_of("afmoe", TRINITY)
    assert (trinity.attention_gate, trinity.norms_per_layer, trinity.window, trinity.global_every) == (True, 4, 2048, 4)
    assert (trinity.first_dense_layers, trinity.qk_norm) == (2, "head")
    nanochat = shape_of("nanochat", sizes(4, 256, 8, 640, 1000, 512))
    assert (nanochat.norm, nanochat.qk_norm, nanochat.embedding_norm, nanochat.activation) == ("nonparametric", "weightless", True, "relu2")
    exaone = shape_of("exaone_moe", EXAONE)
    assert (exaone.window, exaone.global_every, exaone.first_dense_layers) == (128, 4, 1)


@pytest.mark.parametrize(
    ("kind", "config"), [("falcon_h1", FALCON_H1), ("lfm2", LFM2 | {"full_attn_idxs": [0, 5]}), ("longcat_flash", LONGCAT)]
)
def test_a_workload_is_written_and_read_again(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Also patterns that begin with *, which begins an alias in YAML."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    made = new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml")
    assert load_workload(str(made.path)).spec.model.transformer == shape_of(kind, config)


@pytest.mark.parametrize("block", ["text_config", "llm_config", "language_config"])
def test_the_decoder_of_a_model_with_images_is_in_a_block(block: str, tmp_path: Path) -> None:
    """Blocks as in transformers, and in the own code of InternVL (llm_config) and DeepSeek-VL2 (language_config)."""
    inside = {"model_type": "qwen3", **sizes(4, 256, 8, 640, 1000, 512, num_key_value_heads=4, head_dim=32)}
    around = {"model_type": "around", block: inside, "vision_config": {"hidden_size": 64}}
    plain = decoder_of(inside, "config.json")
    decoder = decoder_of(around, "config.json")
    assert decoder.shape == plain.shape
    assert any(f"only {block} is modeled: the model's vision_config" in note for note in decoder.notes)
    with pytest.raises(SpecError, match=rf"config\.json: {block}\.hidden_size: 'wide' is not a whole number"):
        decoder_of(around | {block: inside | {"hidden_size": "wide"}}, "config.json")
    (tmp_path / "config.json").write_text(json.dumps(around))
    assert load_workload(str(new_workload([str(tmp_path / "config.json")], tmp_path / "mine.yaml").path)).spec.model.transformer is not None
