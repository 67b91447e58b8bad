"""Which layers of a Hugging Face hybrid are state spaces, attention, feed-forward or experts? Keys as in `sim.spec.foreign.hf_families`."""

from __future__ import annotations

from typing import Any, Final

from sim.spec.foreign.hf_experts import EXPERTS
from sim.spec.foreign.hf_keys import Config, Shape
from sim.spec.transformer import LETTERS, MIXERS
from sim.spec.yaml import SpecError

_TYPES: Final = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E"}
"""Letters of ``Transformer.pattern`` for the types of layers in ``layers_block_type``, by their names since transformers 5 and before."""
_USUAL: Final = "ME*-"
"""Layers of the class if the file lists none."""


def nemotron_h(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Nemotron-H and Nemotron 3: Mamba-2 layers, attention without positions, feed-forward or experts."""
    pattern = _pattern(config)
    config.get("mamba_num_heads", "expand", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "mamba_hidden_act", "time_step_limit")
    mamba = {
        "heads": config.size("mamba_num_heads", default=128),
        "head_dim": config.size("mamba_head_dim", default=64),
        "state": config.size("ssm_state_size", default=128),
        "groups": config.size("n_groups", "mamba_n_groups", default=8),
        "conv": config.size("conv_kernel", "mamba_d_conv", default=4),
        "chunk": config.size("chunk_size", "mamba_chunk_size", default=128),
    }
    fields = shape | {
        "layers": len(pattern),
        "pattern": pattern,
        "positions": "none",
        "bias": config.biases(),
        "head_dim": config.size("head_dim", "attention_head_dim", default=128),
        **({"mamba": mamba} if "M" in pattern else {}),
    }
    return fields | (_experts(config) if "E" in pattern else {})


def _pattern(config: Config) -> str:
    """Return a letter for each layer. Raise SpecError for layers of another type."""
    types: Any = config.get("layers_block_type", "layer_types")
    pattern = config.get("hybrid_override_pattern", default=_USUAL)
    if isinstance(types, list):
        if strange := next((each for each in types if str(each) not in _TYPES), None):
            raise SpecError(f"{config.place}: {config.within}layers_block_type has {strange}; write some of {', '.join(_TYPES)}")
        pattern = "".join(_TYPES[str(each)] for each in types)
    if not isinstance(pattern, str) or not pattern or not {*pattern} <= {*MIXERS}:
        raise SpecError(f"{config.place}: {config.within}hybrid_override_pattern must have a letter for each layer: {LETTERS}")
    count = config.said.get("num_hidden_layers")
    if count not in (None, len(pattern)):
        raise SpecError(
            f"{config.place}: {config.within}num_hidden_layers is {count}, but {len(pattern)} layers are listed; write {len(pattern)}"
        )
    return pattern


def qwen_hybrid(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Qwen3-Next and Qwen3.5: delta nets or gated attention, each before a feed-forward block."""
    layers, dense = shape["layers"], config.get("mlp_only_layers", default=[]) or []
    every, interval = config.size("decoder_sparse_step", default=1) or 1, config.size("full_attention_interval", default=4) or 4
    listed = config.get("layer_types")
    kinds = listed if isinstance(listed, list) else ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(layers)]
    if len(kinds) != layers or not {*map(str, kinds)} <= {"linear_attention", "full_attention"}:
        raise SpecError(
            f"{config.place}: {config.within}layer_types must list linear_attention or full_attention for each of the {layers} layers"
        )
    experts = config.size(*EXPERTS)
    second = ["E" if experts and n not in dense and (n + 1) % every == 0 else "-" for n in range(layers)]
    delta = {
        "key_heads": config.size("linear_num_key_heads", default=16),
        "value_heads": config.size("linear_num_value_heads", default=32),
        "key_dim": config.size("linear_key_head_dim", default=128),
        "value_dim": config.size("linear_value_head_dim", default=128),
        "conv": config.size("linear_conv_kernel_dim", default=4),
    }
    fields = shape | {
        "layers": 2 * layers,
        "pattern": "".join(_TYPES[kind].replace("M", "G") + after for kind, after in zip(kinds, second, strict=True)),
        "head_dim": config.size("head_dim", default=256),
        "bias": "qkv_output" if config.get("attention_bias") else "none",
        "qk_norm": "head",
        "attention_gate": True,
        "delta_net": delta,
    }
    if "E" not in fields["pattern"]:
        return fields
    shared = config.size("shared_expert_intermediate_size")
    return fields | {
        "experts": experts,
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        **({"shared_experts": 1, "shared_expert_ffn": shared} if shared else {}),
    }


def granite_hybrid(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Granite 4: Mamba-2 or attention, each before experts with a shared one, or that one alone."""
    layers, listed = shape["layers"], config.get("layer_types", "layers_block_type")
    kinds = [str(each) for each in listed] if isinstance(listed, list) else ["mamba"] * layers
    if len(kinds) != layers or not {*kinds} <= {"mamba", "linear_attention", "attention", "full_attention"}:
        raise SpecError(f"{config.place}: {config.within}layer_types must list mamba or attention for each of the {layers} layers")
    experts = config.size(*EXPERTS, default=0)
    config.get("num_experts_per_tok")
    inside: Shape = {"ffn": config.due("shared_intermediate_size")}
    if experts:
        inside = {
            "experts": experts,
            "experts_per_token": config.due("num_experts_per_tok"),
            "expert_ffn": shape["ffn"],
            "shared_experts": 1,
            "shared_expert_ffn": inside["ffn"],
        }
    mamba = _mamba(config, shape)
    rotary = config.get("position_embedding_type", default="nope") == "rope"
    fields = shape | {"positions": "rope" if rotary else "none", "bias": config.biases()}
    fields = {name: value for name, value in fields.items() if name != "ffn"} | inside
    if {*kinds} <= {"attention", "full_attention"}:
        return fields
    pattern = "".join(_TYPES[kind] + ("E" if experts else "-") for kind in kinds)
    return fields | {"layers": len(pattern), "pattern": pattern, "mamba": mamba}


def _mamba(config: Config, shape: Shape) -> Shape:
    """Return the sizes of Mamba-2 layers from the keys of Granite 4 and Bamba."""
    config.get("mamba_conv_bias")
    if config.get("mamba_proj_bias"):
        config.notes.append(f"{config.within}mamba_proj_bias: the biases of Mamba's projections are left out, a small part of its weights")
    heads, expand = (config.size(name, default=usual) or usual for name, usual in (("mamba_n_heads", 128), ("mamba_expand", 2)))
    stated = config.get("mamba_d_head", default="auto")
    return {
        "heads": heads,
        "head_dim": expand * shape["hidden"] // heads if stated == "auto" else config.due("mamba_d_head"),
        "state": config.size("mamba_d_state", default=256),
        "groups": config.size("mamba_n_groups", default=1),
        "conv": config.size("mamba_d_conv", default=4),
        "chunk": config.size("mamba_chunk_size", default=256),
    }


def bamba(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Bamba: Mamba-2 or attention, each before a feed-forward block."""
    layers, attention = shape["layers"], config.get("attn_layer_indices", default=[]) or []
    if not isinstance(attention, list) or not {*map(str, attention)} <= {*map(str, range(layers))}:
        raise SpecError(f"{config.place}: {config.within}attn_layer_indices must list layers with attention, from 0 to {layers - 1}")
    config.read |= {"attn_rotary_emb", "layers_block_type"}
    pattern = "".join("*-" if layer in attention else "M-" for layer in range(layers))
    mamba = {"mamba": _mamba(config, shape)} if "M" in pattern else {}
    return shape | {"layers": len(pattern), "pattern": pattern} | mamba


def _experts(config: Config) -> Shape:
    return {
        "experts": config.due(*EXPERTS),
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "shared_experts": config.size("n_shared_experts", default=0),
        "shared_expert_ffn": config.size("moe_shared_expert_intermediate_size"),
        "expert_latent": config.size("moe_latent_size"),
    }
