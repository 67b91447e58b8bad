"""Which arguments describe a model to Megatron-LM, and which parts of it can they not express?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_megatron_model import LATENT, MAMBA, PATTERNS
from sim.spec.foreign.layout_launch import fields_with_defaults
from sim.spec.transformer import Transformer

_UNSPECIFIED: Final = {"rope_base": ("rotary-base", "10000"), "norm_epsilon": ("norm-epsilon", "1e-05")}
"""Fields that a model may leave unspecified: Megatron-LM's options for them, and its defaults."""


def model_arguments(shape: Transformer, sequence: int | None) -> dict[str, Any]:
    """Return the options that describe *shape*: its sizes, activation, norms, positions and experts."""
    options: dict[str, Any] = {
        "num-layers": shape.layers, "hidden-size": shape.hidden, "num-attention-heads": shape.heads,
        "seq-length": sequence, "max-position-embeddings": max(sequence or 0, shape.max_seq or 0), "padded-vocab-size": shape.vocab,
        "ffn-hidden-size": shape.ffn, "kv-channels": None if shape.mla else shape.head_dim,
    }  # fmt: skip
    if shape.kv_heads and shape.kv_heads != shape.heads:
        options |= {"group-query-attention": "", "num-query-groups": shape.kv_heads}
    if shape.mla:
        options |= {"multi-latent-attention": ""} | {option: getattr(shape.mla, name) or None for option, (name, _) in LATENT.items()}
    options |= _kinds(shape) | _positions(shape) | _experts(shape) | _hybrid(shape)
    options["mtp-num-layers"] = shape.prediction_layers or None
    return {option: value for option, value in options.items() if value is not None}


def _kinds(shape: Transformer) -> dict[str, Any]:
    flags = {
        "swiglu": shape.activation == "swiglu", "squared-relu": shape.activation == "relu2", "qk-layernorm": shape.qk_norm == "head",
        "untie-embeddings-and-output-weights": not shape.tied, "disable-bias-linear": shape.bias in ("none", "qkv"),
        "add-qkv-bias": shape.bias == "qkv",
    }  # fmt: skip
    return {
        "normalization": "RMSNorm" if shape.norm == "rmsnorm" else None,
        "norm-epsilon": shape.norm_epsilon,
        **dict.fromkeys(("hidden-dropout", "attention-dropout"), shape.dropout),  # Megatron-LM's default is 0.1
        **{name: "" for name, holds in flags.items() if holds},
    }


def _positions(shape: Transformer) -> dict[str, Any]:
    """Return the options for position encoding; latent attention needs rope-type, because its default there is YaRN.

    Megatron-LM refuses to fuse any other rotation of latent attention (transformer_config.py, MLATransformerConfig), which is its default.
    """
    if shape.positions != "rope":
        return {"position-embedding-type": "none" if shape.positions == "none" else None}
    return {
        "position-embedding-type": "rope", **({"rope-type": "rope", "no-rope-fusion": ""} if shape.mla else {}),
        "rotary-base": shape.rope_base, "rotary-percent": None if shape.rope_share == 1.0 else shape.rope_share,
    }  # fmt: skip


def _experts(shape: Transformer) -> dict[str, Any]:
    if not shape.experts:
        return {}
    dense, every = shape.first_dense_layers, shape.moe_every if shape.moe_every > 1 else None
    return {
        "num-experts": shape.experts, "moe-router-topk": shape.experts_per_token, "moe-ffn-hidden-size": shape.expert_ffn,
        "moe-shared-expert-intermediate-size": fields_with_defaults(shape)["shared_expert_ffn"] or None,
        "moe-latent-size": shape.expert_latent,
        "moe-router-num-groups": shape.expert_groups if shape.expert_groups > 1 else None,
        "moe-router-group-topk": shape.groups_per_token,
        "moe-layer-freq": f"([0]*{dense}+[1]*{shape.layers - dense})" if dense else every,
    }  # fmt: skip


def _hybrid(shape: Transformer) -> dict[str, Any]:
    """Return the options for a hybrid of Mamba-2 and other layers, which Megatron-LM's pretrain_mamba.py reads."""
    if shape.pattern is None or {*shape.pattern} & {*"GPC"}:
        return {}
    sizes: dict[str, Any] = {"is-hybrid-model": "", PATTERNS[0]: f"'{shape.pattern}'"}
    if shape.mamba is not None:
        sizes |= {"mamba-num-heads": shape.mamba.heads} | {option: getattr(shape.mamba, name) for option, (name, _) in MAMBA.items()}
    return sizes


def inexpressible_fields(shape: Transformer, sequence: int | None, arguments: Mapping[str, Any]) -> list[str]:
    """Return the fields of *shape* that the arguments *arguments* do not express correctly, for samples of *sequence* tokens."""
    if sequence and shape.window >= sequence:
        shape = shape.model_copy(update={"window": 0, "chunked": False, "global_every": 0})
    read, meant = fields_with_defaults(Transformer(**megatron(option_lines(arguments), "arguments").shape)), fields_with_defaults(shape)
    unspecified = {name for name in _UNSPECIFIED if meant[name] is None}
    return [name for name, value in meant.items() if read[name] != value and name not in unspecified]


def option_lines(options: Mapping[str, Any]) -> str:
    """Return the options *options*, one per line."""
    return "".join(f"--{name}{f' {value}' if value != '' else ''}\n" for name, value in options.items())


def megatron_notes(shape: Transformer) -> list[str]:
    """Return notes on options that are left to Megatron-LM's defaults because *shape* does not specify them."""
    fields = {field: said for field, said in _UNSPECIFIED.items() if field != "rope_base" or shape.positions == "rope"}
    unspecified = {field: said for field, said in fields.items() if getattr(shape, field) is None}
    notes = [
        f"--{option} is {default}, Megatron-LM's default; set model.transformer.{field} to change it"
        for field, (option, default) in unspecified.items()
    ]
    if shape.experts:
        notes.append("router scoring and load balancing (--moe-router-...) use Megatron-LM's defaults")
    return notes
