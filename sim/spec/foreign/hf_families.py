"""How are the configurations of each family of Hugging Face decoders translated to the fields of a Transformer?

Keys, and defaults other than sizes, are from huggingface/transformers, src/transformers/models/*/configuration_*.py and modeling_*.py;
defaults of sizes are in `sim.spec.foreign.hf_defaults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.spec.foreign.hf_defaults import DBRX_BLOCKS
from sim.spec.foreign.hf_encoders import ENCODERS
from sim.spec.foreign.hf_experts import (
    EXPERTS,
    dbrx_experts,
    deepseek_experts,
    dense_layers,
    ernie_experts,
    gpt_oss_experts,
    hunyuan_experts,
    llama4_experts,
    mixtral_experts,
    olmoe_experts,
    qwen_experts,
)
from sim.spec.foreign.hf_hub import OF_THE_HUB
from sim.spec.foreign.hf_hybrids import bamba, falcon_h1, granite_hybrid, lfm2, longcat_flash, mamba2, nemotron_h, qwen_hybrid
from sim.spec.foreign.hf_keys import Config, Family, Shape, with_latent_attention
from sim.spec.foreign.hf_of_2025 import OF_2025
from sim.spec.foreign.hf_windows import (
    alternate_window,
    global_period,
    last_layers_window,
    layer_mixture,
    layer_types,
    typed_window,
    used_window,
    window,
)
from sim.spec.yaml import SpecError

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "max_seq": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
"""Keys of a size in configurations, by our name for it."""
NEEDED: Final = ("layers", "hidden", "heads", "vocab")
_ACTIVATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    **dict.fromkeys(("relu2", "relu_squared", "squared_relu"), "relu2"),
    "xielu": "xielu",
}
_GATES: Final = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
MEANT: Final[Mapping[str, tuple[str, ...]]] = {
    **NAMES,
    "kv_heads": (*NAMES["kv_heads"], "num_kv_heads"),
    "ffn": (*NAMES["ffn"], "ffn_hidden_size", "intermediate_size_mlp"),
    "experts": EXPERTS,
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "moe_topk"),
    "expert_ffn": ("moe_intermediate_size", "intermediate_size"),
    "shared_experts": ("n_shared_experts",),
    "shared_expert_ffn": ("shared_expert_intermediate_size",),
    "first_dense_layers": ("first_k_dense_replace", "mlp_only_layers"),
    "moe_every": ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"),
    "window": ("sliding_window", "attention_chunk_size"), "short_conv": ("conv_L_cache",),
    "q_rank": ("q_lora_rank",), "kv_rank": ("kv_lora_rank",), "nope_dim": ("qk_nope_head_dim",), "rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",), "rope_base": ("rope_theta", "rotary_emb_base"),
    "rope_share": ("partial_rotary_factor", "rotary_pct"),
}  # fmt: skip
"""Keys in configurations that a field of a Transformer may come from, for messages."""


def _llama(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": config.biases()} | window(config)


def _qwen2(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": "qkv"} | used_window(config, shape["layers"])


def _qk_normed(config: Config, shape: Shape) -> Shape:
    return shape | {"qk_norm": "head", "bias": config.attention_bias()}


def _qwen3(config: Config, shape: Shape) -> Shape:
    return _qk_normed(config, shape) | used_window(config, shape["layers"])


def _smollm3(config: Config, shape: Shape) -> Shape:
    layers, interval = shape["layers"], config.size("no_rope_layer_interval", default=4) or 4
    rotary = config.get("no_rope_layers", default=[int((layer + 1) % interval != 0) for layer in range(layers)])
    if not isinstance(rotary, list) or len(rotary) != layers:
        raise SpecError(f"{config.place}: {config.within}no_rope_layers must be a list with one entry for each of the {layers} layers")
    used = bool(config.get("use_sliding_window"))
    fields = {name: value for name, value in _llama(config, shape).items() if used or name != "window"}
    kinds = ["full_attention" if each else "sliding_attention" for each in rotary]
    return fields | (layer_mixture(config, layers, kinds, "no_rope_layers") if "window" in fields and not layer_types(config) else {})


def _mixtral(config: Config, shape: Shape) -> Shape:
    return mixtral_experts(config, shape) | window(config)


def _qwen2_moe(config: Config, shape: Shape) -> Shape:
    bias = "qkv" if config.get("qkv_bias", default=True) else "none"
    return qwen_experts(config, shape | {"bias": bias} | alternate_window(config, shape["layers"]))


def _qwen3_moe(config: Config, shape: Shape) -> Shape:
    local = window(config) if config.get("use_sliding_window") else {}  # of all layers: there is no max_window_layers
    return qwen_experts(config, _qk_normed(config, shape) | local)


def _gpt2(config: Config, shape: Shape) -> Shape:
    return shape | {"positions": "learned", "bias": "all"}


def _gpt_neox(config: Config, shape: Shape) -> Shape:
    bias = "all" if config.get("attention_bias", default=True) else "ffn"
    return shape | {"bias": bias, "parallel": bool(config.get("use_parallel_residual", default=True))}


def _opt(config: Config, shape: Shape) -> Shape:
    if config.get("word_embed_proj_dim", default=shape["hidden"]) != shape["hidden"]:
        raise SpecError(
            f"{config.place}: word_embed_proj_dim differs from hidden_size, which is not supported; use a model in which they are equal"
        )
    bias = "all" if config.get("enable_bias", default=True) else "none"
    return shape | {"positions": "learned", "bias": bias, "dropout": config.get("dropout", default=0.1)}


def _bloom(config: Config, shape: Shape) -> Shape:
    return shape | {"positions": "alibi", "bias": "all", "embedding_norm": True, "ffn": 4 * shape["hidden"]}


def _mpt(config: Config, shape: Shape) -> Shape:
    attention, ratio = config.nested("attn_config").said, config.get("expansion_ratio", default=4)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < float("inf"):
        raise SpecError(f"{config.place}: {config.within}expansion_ratio: {ratio!r} is not a number above 0; write one")
    plain = bool(config.get("no_bias", default=True))
    inner = round(ratio * shape["hidden"])
    shape = shape | {"positions": "alibi" if attention.get("alibi", True) else "learned", "bias": "none" if plain else "all"}
    return shape | {"norm_bias": not plain, "ffn": inner} | ({"kv_heads": attention["kv_n_heads"]} if attention.get("kv_n_heads") else {})


def _falcon(config: Config, shape: Shape) -> Shape:
    new = bool(config.get("new_decoder_architecture", default="n_head_kv" in config.said))  # the first files of Falcon 40B
    single = not new and config.get("multi_query", default=True)
    kv_heads = config.size("num_kv_heads", "n_head_kv", default=shape["heads"])
    groups = 1 if single else kv_heads if new else shape["heads"]
    parallel = new or bool(config.get("parallel_attn", default=True))
    norms = 1 if parallel and not new else config.size("num_ln_in_parallel_attn", default=2)
    positions = "alibi" if config.get("alibi") else "rope"
    bias = "all" if config.get("bias") else "none"
    inner = config.size("ffn_hidden_size", default=4 * shape["hidden"])
    return shape | {"kv_heads": groups, "parallel": parallel, "norms_per_layer": norms, "positions": positions, "bias": bias, "ffn": inner}


def _gemma(config: Config, shape: Shape) -> Shape:
    return shape | {"activation": "geglu", "bias": config.biases()}


def _gemma2(config: Config, shape: Shape) -> Shape:
    return _gemma(config, shape) | {"norms_per_layer": 4} | window(config, every=2)


def _gemma3(config: Config, shape: Shape) -> Shape:
    every = global_period(config, 6)
    return _gemma(config, shape) | {"norms_per_layer": 4, "qk_norm": "head"} | window(config, every)


def _phi(config: Config, shape: Shape) -> Shape:
    return shape | {"parallel": True, "norms_per_layer": 1, "bias": "all", "head_bias": True}


def _phi3(config: Config, shape: Shape) -> Shape:
    return shape | window(config)


def _deepseek(config: Config, shape: Shape) -> Shape:
    config.read.add("qk_head_dim")  # nope_dim + rope_dim
    shape = with_latent_attention(config, shape, config.due("v_head_dim"))
    return shape if config.size(*EXPERTS) is None else deepseek_experts(config, shape)


def _deepseek_sparse(config: Config, shape: Shape) -> Shape:
    chosen, heads, width = (
        config.size(name, default=usual) or usual for name, usual in (("index_topk", 2048), ("index_n_heads", 64), ("index_head_dim", 128))
    )
    # inference/model.py, Indexer: queries from their latent vector, one key with a norm, and the weights of heads
    weights = shape["layers"] * (config.due("q_lora_rank") * heads * width + shape["hidden"] * (width + heads) + 2 * width)
    config.notes.append(
        f"{config.within}index_topk {chosen}: simulated with attention to all previous tokens, as before sparse training; its choice of "
        f"{chosen} tokens is not modeled, so sequences well above {chosen} tokens take less time than simulated, nor is the indexer that "
        f"chooses them, with {weights / 1e6:,.0f} million weights in all"
    )
    return _deepseek(config, shape)


def _gpt_oss(config: Config, shape: Shape) -> Shape:
    biased = {"bias": "all" if config.get("attention_bias", default=True) else "ffn", "sinks": True, "activation": "swiglu"}
    biased["clamped"] = True  # modeling_gpt_oss.py, GptOssExperts: limit = 7.0
    biased["rope_scaled"] = True  # GptOssRotaryEmbedding: attention_scaling of YaRN, 0.1 ln(factor) + 1
    return gpt_oss_experts(config, shape) | biased | window(config, every=2)


def _nemotron(config: Config, shape: Shape) -> Shape:
    return shape | {"norm_bias": True, "bias": config.biases()}


def _llama4(config: Config, shape: Shape) -> Shape:
    norm = "weightless" if config.get("use_qk_norm", default=True) else "none"
    chunk = config.size("attention_chunk_size")
    local = {"window": chunk, "chunked": True, "global_every": 4} if chunk else {}
    return llama4_experts(config, shape) | {"qk_norm": norm} | local


def _olmo(config: Config, shape: Shape) -> Shape:
    return shape | {"norm": "nonparametric", "bias": config.biases()}


def _olmo2(config: Config, shape: Shape) -> Shape:
    return shape | {"qk_norm": "all", "bias": config.biases()}


def _starcoder2(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": "all" if config.get("use_bias", default=True) else "none"} | window(config)


def _seed_oss(config: Config, shape: Shape) -> Shape:
    biased = bool(config.get("attention_bias", default=True)), bool(config.get("attention_out_bias"))
    return shape | {
        "bias": {(True, True): "qkv_output", (True, False): "qkv"}.get(biased, "none"),
    }


def _ernie(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": "all" if config.get("use_bias") else "none"}


def _olmo3(config: Config, shape: Shape) -> Shape:
    return _olmo2(config, shape) | window(config, every=4)


def _exaone4(config: Config, shape: Shape) -> Shape:
    pattern = config.get("sliding_window_pattern", default=4)
    every = pattern.upper().rfind("G") + 1 if isinstance(pattern, str) else global_period(config, 4)
    return shape | {"qk_norm": "head"} | window(config, every)


def _cohere(config: Config, shape: Shape) -> Shape:
    shape = shape | {
        "parallel": True,
        "norms_per_layer": 1,
        "norm_bias": False,
        "bias": config.attention_bias(),
    }
    return shape | ({"qk_norm": "head"} if config.get("use_qk_norm") else {})


def _cohere2(config: Config, shape: Shape) -> Shape:
    every = global_period(config, 4)
    return _cohere(config, shape) | window(config, every)


def _glm(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": config.attention_bias("qkv", default=True)}


def _glm4(config: Config, shape: Shape) -> Shape:
    return _glm(config, shape) | {"norms_per_layer": 4}


def _glm4_moe(config: Config, shape: Shape) -> Shape:
    normed = {"qk_norm": "head"} if config.get("use_qk_norm") else {}
    return deepseek_experts(config, shape | {"bias": config.attention_bias("qkv")} | normed)


def _glm4_moe_lite(config: Config, shape: Shape) -> Shape:
    return _deepseek(config, shape) | {"first_dense_layers": dense_layers(config, default=1)}


def _dots(config: Config, shape: Shape) -> Shape:
    return deepseek_experts(config, _qk_normed(config, shape) | last_layers_window(config, shape["layers"], 62))


def _olmoe(config: Config, shape: Shape) -> Shape:
    return olmoe_experts(config, shape | {"bias": config.biases()}) | (
        {"qk_norm": "all"} if config.get("use_qk_norm", default=True) else {}
    )


def _phimoe(config: Config, shape: Shape) -> Shape:
    bias = {"bias": config.attention_bias(), "head_bias": bool(config.get("lm_head_bias"))}
    return _mixtral(config, shape | bias)


def _stablelm(config: Config, shape: Shape) -> Shape:
    bias = {"bias": "qkv" if config.get("use_qkv_bias") else "none", "parallel": bool(config.get("use_parallel_residual"))}
    normed = {"qk_norm": "all"} if config.get("qk_layernorm") else {}  # a norm for each head, with weights of its own
    return shape | bias | normed | ({"norms_per_layer": 1} if bias["parallel"] else {})


def _ernie_moe(config: Config, shape: Shape) -> Shape:
    return _ernie(config, ernie_experts(config, shape))


def _hunyuan_moe(config: Config, shape: Shape) -> Shape:
    return hunyuan_experts(config, _qwen3(config, shape))


def _dbrx(config: Config, shape: Shape) -> Shape:
    attention = config.nested("attn_config", DBRX_BLOCKS)
    shape = shape | {"kv_heads": attention.size("kv_n_heads"), "norm_bias": False, "rope_base": attention.get("rope_theta")}
    return dbrx_experts(config, shape)


def _gpt_bigcode(config: Config, shape: Shape) -> Shape:
    return _gpt2(config, shape) | {"kv_heads": 1 if config.get("multi_query", default=True) else shape["heads"]}


def _gptj(config: Config, shape: Shape) -> Shape:
    width = config.size("rotary_dim", default=64)
    shares = {"rope_share": width * shape["heads"] / shape["hidden"]} if width else {}
    return shape | {"parallel": True, "norms_per_layer": 1, "bias": "ffn", "head_bias": True} | shares


def _gpt_neo(config: Config, shape: Shape) -> Shape:
    config.read |= {"attention_types", "attention_layers", "window_size"}
    config.notes.append(
        f"{config.within}attention_types: layers with a window compute all scores, as in transformers; the bias of attention's output is "
        "left out"
    )
    return shape | {"positions": "learned", "bias": "ffn", "dropout": config.get("resid_dropout", default=0.0)}


def _exaone_moe(config: Config, shape: Shape) -> Shape:
    return deepseek_experts(config, _exaone4(config, shape))


def _granite_shared(config: Config, shape: Shape) -> Shape:
    width = config.size("shared_intermediate_size", default=0)
    return _mixtral(config, shape) | ({"shared_experts": 1, "shared_expert_ffn": width} if width else {})


FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(_llama),
    "llama4_text": Family(_llama4),
    "mistral": Family(_llama),
    "mixtral": Family(_mixtral),
    "qwen2": Family(_qwen2),
    "qwen2_moe": Family(_qwen2_moe),
    "qwen3": Family(_qwen3),
    "qwen3_moe": Family(_qwen3_moe),
    "gpt2": Family(_gpt2, gated=False, norm="layernorm", activation="gelu", tied=True, dropout=0.1),
    "gpt_neox": Family(_gpt_neox, gated=False, norm="layernorm", activation="gelu"),
    "opt": Family(_opt, gated=False, norm="layernorm", activation="relu", tied=True),
    "bloom": Family(_bloom, gated=False, norm="layernorm", activation="gelu", tied=True),
    "mpt": Family(_mpt, gated=False, norm="layernorm", activation="gelu", tied=True),
    "falcon": Family(_falcon, gated=False, norm="layernorm", activation="gelu", tied=True),
    "gemma": Family(_gemma, activation="gelu", tied=True),
    "gemma2": Family(_gemma2, activation="gelu", tied=True),
    "gemma3_text": Family(_gemma3, activation="gelu", tied=True),
    "phi": Family(_phi, gated=False, norm="layernorm", activation="gelu"),
    "phi3": Family(_phi3),
    "deepseek_v2": Family(_deepseek),
    "deepseek_v3": Family(_deepseek),
    "deepseek_v32": Family(_deepseek_sparse),
    "glm_moe_dsa": Family(_deepseek_sparse),
    "kimi_k2": Family(_deepseek),
    "gpt_oss": Family(_gpt_oss),
    "nemotron": Family(_nemotron, gated=False, norm="layernorm", activation="relu2"),
    "qwen3_next": Family(qwen_hybrid),
    "qwen3_5_text": Family(qwen_hybrid),
    "qwen3_5_moe_text": Family(qwen_hybrid),
    "nemotron_h": Family(nemotron_h, gated=False, activation="relu2", lists_layers=True),
    "olmo": Family(_olmo, norm="nonparametric"),
    "olmo2": Family(_olmo2),
    "granite": Family(_llama),
    "smollm3": Family(_smollm3, tied=True),
    "seed_oss": Family(_seed_oss, dropout=0.1),
    "ernie4_5": Family(_ernie, tied=True),
    "hunyuan_v1_dense": Family(_qwen3),
    "ministral": Family(_llama),
    "ministral3": Family(_llama),
    "olmo3": Family(_olmo3),
    "olmoe": Family(_olmoe),
    "exaone4": Family(_exaone4),
    "cohere": Family(_cohere, norm="layernorm", tied=True),
    "cohere2": Family(_cohere2, norm="layernorm", tied=True),
    "glm": Family(_glm),
    "glm4": Family(_glm4),
    "glm4_moe": Family(_glm4_moe),
    "glm4v_text": Family(_glm4),
    "glm4v_moe_text": Family(_glm4_moe),
    "glm4_moe_lite": Family(_glm4_moe_lite),
    "dots1": Family(_dots),
    "minimax_m2": Family(_olmoe),
    "granitemoe": Family(_mixtral),
    "granitemoehybrid": Family(granite_hybrid),
    "phimoe": Family(_phimoe, norm="layernorm"),
    "arcee": Family(_llama, gated=False, activation="relu2"),
    "stablelm": Family(_stablelm, norm="layernorm"),
    "qwen2_5_vl": Family(_qwen2),
    "qwen2_5_vl_text": Family(_qwen2),
    "qwen3_vl_text": Family(_qwen3),
    "qwen3_vl_moe_text": Family(_qwen3_moe),
    "qwen2_vl": Family(_qwen2),
    "qwen2_vl_text": Family(_qwen2),
    "ernie4_5_moe": Family(_ernie_moe, tied=True),
    "hunyuan_v1_moe": Family(_hunyuan_moe),
    "dbrx": Family(_dbrx, norm="layernorm"),
    "gptj": Family(_gptj, gated=False, norm="layernorm", activation="gelu_new"),
    "gpt_bigcode": Family(_gpt_bigcode, gated=False, norm="layernorm", activation="gelu_pytorch_tanh", tied=True, dropout=0.1),
    "starcoder2": Family(_starcoder2, gated=False, norm="layernorm", activation="gelu", tied=True),
    "bamba": Family(bamba),
    "codegen": Family(_gptj, gated=False, norm="layernorm", activation="gelu_new"),
    "gpt_neo": Family(_gpt_neo, gated=False, norm="layernorm", activation="gelu_new", tied=True),
    "helium": Family(_llama),
    "apertus": Family(_qk_normed, gated=False, activation="xielu"),
    "exaone_moe": Family(_exaone_moe),
    "falcon_h1": Family(falcon_h1),
    "flex_olmo": Family(_olmoe),
    "granitemoeshared": Family(_granite_shared),
    "lfm2": Family(lfm2, tied=True),
    "lfm2_moe": Family(lfm2, tied=True),
    "longcat_flash": Family(longcat_flash),
    "mamba2": Family(mamba2),
    "solar_open": Family(_glm4_moe),
    "youtu": Family(_deepseek, tied=True),
    "RefinedWeb": Family(_falcon, gated=False, norm="layernorm", activation="gelu", tied=True),
    "RefinedWebModel": Family(_falcon, gated=False, norm="layernorm", activation="gelu", tied=True),
    **ENCODERS,
    **OF_2025,
    **OF_THE_HUB,
}
"""Families by ``model_type``."""


def shape_of(family: Family, config: Config) -> Shape:
    """Return the fields of the Transformer that *config* describes."""
    for name in NEEDED:
        if not (family.lists_layers and name == "layers"):
            config.due(*NAMES[name])
    shape: Shape = {name: config.size(*keys) for name, keys in NAMES.items()}
    activation_name = config.get("hidden_act", "activation_function", "hidden_activation", "mlp_hidden_act", default=family.activation)
    if not isinstance(activation_name, str) or activation_name not in _ACTIVATIONS:
        raise SpecError(f"{config.place}: unknown activation {activation_name}; supported: {', '.join(_ACTIVATIONS)}")
    activation = _ACTIVATIONS[activation_name]
    shape |= {
        "activation": _GATES.get(activation, activation) if family.gated else activation,
        "composed_gelu": activation_name == "gelu_new" and not family.gated,
        "norm": family.norm,
        "positions": "rope",
        "tied": config.flag("tie_word_embeddings", family.tied),
        "dropout": config.get("resid_pdrop", "hidden_dropout", "residual_dropout", default=family.dropout),
        "norm_epsilon": config.get("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon"),
    }
    fields = family.read(config, shape)
    fields |= typed_window(config, fields)
    if not fields.get("window"):
        fields.pop("chunked", None)
    fields |= _rotary(config) if fields["positions"] == "rope" else {}
    return {name: value for name, value in fields.items() if value is not None}


_SCALINGS: Final = ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope", "proportional")
"""Ways to scale rotary positions (modeling_rope_utils.py, and former names of them)."""


def _rotary(config: Config) -> Shape:
    """Return the base and share of rotary positions, from top-level keys or, since version 5 of transformers, from a block."""
    block = config.get("rope_parameters")
    inside = block if isinstance(block, Mapping) and not any(isinstance(each, Mapping) for each in block.values()) else {}
    scaling = config.get("rope_scaling", default=inside)
    kind = scaling.get("rope_type") or scaling.get("type") or "default" if isinstance(scaling, Mapping) else scaling
    if kind not in _SCALINGS:
        raise SpecError(f"{config.place}: {config.within}rope_scaling: unknown type {str(kind)[:40]}; known: {', '.join(_SCALINGS)}")
    factor = scaling.get("factor") if isinstance(scaling, Mapping) else None
    if factor is None:
        factor = 1
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise SpecError(f"{config.place}: {config.within}rope_scaling.factor {str(factor)[:40]}: write a number above 0")
    base = config.get("rope_theta", "rotary_emb_base", default=inside.get("rope_theta"))
    share = config.get("partial_rotary_factor", "rotary_pct", default=inside.get("partial_rotary_factor"))
    return {"rope_base": base, "rope_share": share}
