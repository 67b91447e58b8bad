"""Which layers of a Hugging Face hybrid are state spaces, attention, feed-forward or experts? Keys as in `sim.spec.foreign.hf_families`."""

from __future__ import annotations

from typing import Any, Final

from sim.spec.foreign.hf_experts import EXPERTS
from sim.spec.foreign.hf_keys import Config, Shape, with_latent_attention
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
        "bias": config.attention_bias(),
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


def _mamba(config: Config, shape: Shape, width: int | None = None) -> Shape:
    """Return the sizes of Mamba-2 layers from the keys of Granite 4, Bamba and Falcon-H1; *width*: of all heads, if it is stated."""
    config.get("mamba_conv_bias")
    if config.get("mamba_proj_bias"):
        config.notes.append(f"{config.within}mamba_proj_bias: the biases of Mamba's projections are left out, a small part of its weights")
    heads, expand = config.size("mamba_n_heads", default=128) or 0, config.size("mamba_expand", default=2) or 0
    stated = None if config.get("mamba_d_head", default="auto") == "auto" else config.due("mamba_d_head")
    size = _scan_head(config, ("mamba_n_heads", "mamba_d_head"), heads, stated, width or expand * shape["hidden"])
    return {
        "heads": heads,
        "head_dim": size,
        "state": config.size("mamba_d_state", default=256),
        "groups": config.size("mamba_n_groups", default=1),
        "conv": config.size("mamba_d_conv", default=4),
        "chunk": config.size("mamba_chunk_size", default=256),
    }


def _scan_head(config: Config, keys: tuple[str, str], heads: int, stated: int | None, inner: int) -> int:
    """Return the size of each of *heads* heads of *inner* channels; *keys*: of their number and size.

    Raise SpecError if the *stated* size differs (None: none is stated), as classes of transformers do.
    """
    if heads < 1 or inner < 1 or inner % heads:
        raise SpecError(f"{config.place}: {config.within}{keys[0]} ({heads}) does not divide Mamba's {inner} channels; write a divisor")
    size = inner // heads
    if stated is not None and stated != size:
        raise SpecError(
            f"{config.place}: {config.within}{keys[1]} ({stated}) times {keys[0]} ({heads}) is {heads * stated}, not Mamba's {inner} "
            f"channels; write {size}"
        )
    return size


def bamba(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Bamba: Mamba-2 or attention, each before a feed-forward block."""
    layers, attention = shape["layers"], config.get("attn_layer_indices", default=[]) or []
    if not isinstance(attention, list) or not {*map(str, attention)} <= {*map(str, range(layers))}:
        raise SpecError(f"{config.place}: {config.within}attn_layer_indices must list layers with attention, from 0 to {layers - 1}")
    config.read |= {"attn_rotary_emb", "layers_block_type"}
    pattern = "".join("*-" if layer in attention else "M-" for layer in range(layers))
    mamba = {"mamba": _mamba(config, shape)} if "M" in pattern else {}
    return shape | {"layers": len(pattern), "pattern": pattern} | mamba


_MULTIPLIERS: Final = (
    "key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier", "ssm_multipliers",
    "mlp_multipliers",
)  # fmt: skip
"""Keys of Falcon-H1 that multiply activations inside of layers."""


def falcon_h1(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Falcon-H1: attention and Mamba-2 side by side, before a feed-forward block."""
    layers = shape["layers"]
    mamba = _mamba(config, shape, config.size("mamba_d_ssm")) | {"norm": bool(config.get("mamba_rms_norm"))}
    config.read |= {"mamba_use_mlp", "mamba_norm_before_gate", "layers_block_type", "layer_types"}
    if config.get("projectors_bias"):
        config.notes.append(f"{config.within}projectors_bias: the biases of Mamba's output are left out, a small part of its weights")
    scaled = [name for name in _MULTIPLIERS if any(each not in (None, 1) for each in _each(config.get(name)))]
    if scaled:
        config.notes.append(
            f"{config.within}{', '.join(scaled)}: multiplied with neighboring operators, as compilers do; eager code runs a kernel for each"
        )
    return shape | {"layers": 2 * layers, "pattern": "P-" * layers, "block_letters": 2, "bias": config.biases(), "mamba": mamba}


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def lfm2(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of LFM2: short convolutions or attention, each before a feed-forward block or experts."""
    layers, indices, listed = shape["layers"], config.get("full_attn_idxs"), config.get("layer_types")
    if not isinstance(listed, list):
        attend = indices if isinstance(indices, list) else [*range(layers)]
        listed = ["full_attention" if layer in attend else "conv" for layer in range(layers)]
    if len(listed) != layers or not {*map(str, listed)} <= {"conv", "full_attention"}:
        raise SpecError(f"{config.place}: {config.within}layer_types must list conv or full_attention for each of the {layers} layers")
    config.read |= {"conv_dim", "conv_dim_out", "block_dim", "num_heads", "block_use_swiglu", "use_expert_bias"}
    if config.get("conv_bias"):
        config.notes.append(f"{config.within}conv_bias: the biases of short convolutions are left out, a small part of their weights")
    dense = config.size("num_dense_layers", default=0) if (experts := config.size(*EXPERTS)) else layers
    second = ["-" if layer < (dense or 0) else "E" for layer in range(layers)]
    routed: Shape = {}
    if experts and "E" in second:
        routed = {
            "experts": experts,
            "experts_per_token": config.due("num_experts_per_tok"),
            "expert_ffn": config.due("moe_intermediate_size"),
        }
    convolved = {"short_conv": config.size("conv_L_cache", default=3)} if "conv" in listed else {}
    fields = {
        "layers": 2 * layers,
        "pattern": "".join(("C" if kind == "conv" else "*") + after for kind, after in zip(listed, second, strict=True)),
        "block_letters": 2,
        "qk_norm": "head",
        "ffn": shape["ffn"] if experts else _adjusted_width(config),
        "tied": config.flag("tie_embedding", shape["tied"]),
    }
    return shape | convolved | routed | fields


def _adjusted_width(config: Config) -> int:
    """Return the width of LFM2's feed-forward blocks: two thirds of the stated one, in whole multiples (``Lfm2MLP``)."""
    width, adjusts = config.due("block_ff_dim", "intermediate_size"), config.flag("block_auto_adjust_ff_dim", True)
    factor, multiple = config.get("block_ffn_dim_multiplier", default=1.0), config.size("block_multiple_of", default=256) or 256
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 100:
        raise SpecError(f"{config.place}: {config.within}block_ffn_dim_multiplier: {str(factor)[:40]} is not a number above 0; write one")
    return -(-int(factor * int(2 * width / 3)) // multiple) * multiple if adjusts else width


def mamba2(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Mamba-2, which have neither attention nor feed-forward blocks."""
    heads, expand = shape["heads"], config.size("expand", default=2) or 2
    config.get("use_conv_bias", "rms_norm")
    if config.get("use_bias"):
        config.notes.append(f"{config.within}use_bias: the biases of Mamba's projections are left out, a small part of its weights")
    size = _scan_head(config, ("num_heads", "head_dim"), heads, shape["head_dim"], expand * shape["hidden"])
    mamba = {
        "heads": heads,
        "head_dim": size,
        "state": config.size("state_size", default=128),
        "groups": config.size("n_groups", default=8),
        "conv": config.size("conv_kernel", default=4),
        "chunk": config.size("chunk_size", default=256),
    }
    return shape | {"pattern": "M" * shape["layers"], "positions": "none", "head_dim": size, "mamba": mamba}


def longcat_flash(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of LongCat-Flash: two blocks with latent attention, the first of which has experts beside its own.

    That feed-forward block is a shared expert here: both read the same norm. Of a token's experts, those that return their input cost
    nothing; the router chooses them as often as others (LongCat-Flash, arXiv 2509.01322, section 2.1).
    """
    layers, inner = config.size("num_layers") or shape["layers"] // 2, config.due("ffn_hidden_size", "intermediate_size")
    experts, chosen = config.due(*EXPERTS), config.due("moe_topk", "num_experts_per_tok")
    idle = config.size("zero_expert_num", default=0) or 0
    used = max(1, round(chosen * experts / (experts + idle)))
    config.read |= {"qk_head_dim", "head_dim", "zero_expert_type", "attention_method"}
    if idle:
        config.notes.append(
            f"{config.within}zero_expert_num {idle}: of the {chosen} experts of a token, {used} compute on average; the others return it"
        )
    config.notes.append(f"{config.within}n_routed_experts: experts run before the second attention of their layer, not beside it")
    fields = with_latent_attention(config, shape, config.due("v_head_dim"))
    return fields | {
        "layers": 4 * layers,
        "pattern": "*E*-" * layers,
        "block_letters": 4,
        "ffn": inner,
        "experts": experts,
        "experts_per_token": used,
        "expert_ffn": config.due("expert_ffn_hidden_size", "moe_intermediate_size"),
        "shared_experts": 1,
        "shared_expert_ffn": inner,
    }


def _experts(config: Config) -> Shape:
    return {
        "experts": config.due(*EXPERTS),
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "shared_experts": config.size("n_shared_experts", default=0),
        "shared_expert_ffn": config.size("moe_shared_expert_intermediate_size"),
        "expert_latent": config.size("moe_latent_size"),
    }
