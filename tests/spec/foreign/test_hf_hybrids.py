"""Oracles: parameters counted by hand from transformers' modeling files, and the keys of published files."""

from __future__ import annotations

import pytest

from sim.spec.decoder import parameter_count
from sim.spec.foreign.hf_config import decoder_of
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError
from tests.spec.foreign.test_hf_config import SMALL, sizes

GRANITE = sizes(40, 1536, 12, 512, 100352, 131072, num_key_value_heads=4) | {
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, "num_local_experts": 64, "num_experts_per_tok": 6,
    "shared_intermediate_size": 1024, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_heads": 48, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True, "position_embedding_type": "nope", "tie_word_embeddings": True,
}  # fmt: skip
"""The sizes of Granite 4.0 H Tiny."""


def test_granite_4_has_mamba_or_attention_before_experts() -> None:
    """By hand from modeling_granitemoehybrid.py; IBM's card of H Tiny says 7 billion parameters."""
    inner, both = 48 * 64, 2 * 128
    mamba = 1536 * (2 * inner + both + 48) + 5 * (inner + both) + 3 * 48 + inner + inner * 1536
    experts = 64 * 1536 + 64 * 3 * 1536 * 512 + 3 * 1536 * 1024
    total = 100352 * 1536 + 1536 + 36 * mamba + 4 * 1536 * (2 * 1536 + 2 * 512) + 40 * (experts + 2 * 1536)
    shape = Transformer.model_validate(decoder_of({"model_type": "granitemoehybrid", **GRANITE}, "config.json").shape)
    assert parameter_count(shape) == total
    assert (shape.positions, shape.pattern and shape.pattern[:12]) == ("none", "MEMEMEMEME*E")
    plain = GRANITE | {"layer_types": ["attention"] * 40, "num_local_experts": 0, "position_embedding_type": "rope"}
    dense = Transformer.model_validate(decoder_of({"model_type": "granitemoehybrid", **plain}, "config.json").shape)
    assert (dense.pattern, dense.ffn, dense.experts, dense.positions) == (None, 1024, 0, "rope")
    by_default = GRANITE | {"mamba_d_head": "auto", "mamba_n_heads": 48}  # 2 * 1536 / 48
    assert decoder_of({"model_type": "granitemoehybrid", **by_default}, "config.json").shape["mamba"]["head_dim"] == 64
    biased = decoder_of({"model_type": "granitemoehybrid", **GRANITE, "mamba_proj_bias": True}, "config.json")
    assert biased.shape == decoder_of({"model_type": "granitemoehybrid", **GRANITE}, "config.json").shape
    assert biased.notes == ("mamba_proj_bias: the biases of Mamba's projections are left out, a small part of its weights",)
    with pytest.raises(SpecError, match="layer_types must list mamba or attention for each of the 40 layers"):
        decoder_of({"model_type": "granitemoehybrid", **GRANITE, "layer_types": ["conv"] * 40}, "config.json")


def test_sparse_attention_is_simulated_as_dense_with_a_note() -> None:
    """DeepSeek-V3.2's layers are those of V3, with an indexer that chooses tokens (its technical report, section 2.1)."""
    latent = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    latent |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    sparse = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 256, "qk_head_dim": 48}
    dense = decoder_of({"model_type": "deepseek_v3", **SMALL, **latent}, "config.json")
    for kind in ("deepseek_v32", "glm_moe_dsa"):
        decoder = decoder_of({"model_type": kind, **SMALL, **latent, **sparse}, "config.json")
        # wq_b, wk, k_norm and weights_proj of deepseek-ai/DeepSeek-V3.2-Exp inference/model.py, Indexer, in four layers
        assert f"{4 * (96 * 64 * 128 + 256 * 128 + 256 + 256 * 64) / 1e6:.0f} million weights in all" in decoder.notes[-1]
        assert decoder.shape == dense.shape and decoder.notes[-1].startswith("index_topk 256: simulated with attention to all previous")
        assert not any("qk_head_dim" in note for note in decoder.notes)
