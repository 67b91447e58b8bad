"""Which decoder does a Hugging Face ``config.json`` describe? Its keys by family, in our words.

Keys and defaults are those of huggingface/transformers, src/transformers/models/*/configuration_*.py;
what ``save_pretrained`` leaves out because it is a class default, such as a tied head, takes that default here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sim.spec.yaml import SpecError

Shape = dict[str, Any]
"""Fields of a Transformer as plain data."""

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "max_seq": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
"""Where a size stands, by our name for it."""
_NEEDED: Final = ("layers", "hidden", "heads", "vocab")
_ACTIVATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    **dict.fromkeys(("relu2", "relu_squared", "squared_relu"), "relu2"),
}
_GATES: Final = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}


class _Config:
    """The keys of one file; *place* is its name in messages."""

    def __init__(self, said: Mapping[str, Any], place: str) -> None:
        self.said, self.place = said, place

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of *names* that is there and not null."""
        return next((self.said[name] for name in names if self.said.get(name) is not None), default)

    def size(self, *names: str, default: int | None = None) -> int | None:
        """Return a whole number, or *default*; raise SpecError for anything else."""
        value = self.get(*names, default=default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            name = next(name for name in names if self.said.get(name) is not None)
            raise SpecError(f"{self.place}: {name}: {value!r} is no whole number; write one")
        return value

    def due(self, *names: str) -> int:
        """Return a whole number that has to be there."""
        value = self.size(*names)
        if value is None:
            raise SpecError(f"{self.place}: {' or '.join(names)} is missing; write it")
        return value


Reader = Callable[[_Config, Shape], Shape]


def _llama(config: _Config, shape: Shape) -> Shape:
    projections, inner = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    bias = {(True, True): "all", (True, False): "qkv_output", (False, True): "ffn"}.get((projections, inner), "none")
    return shape | {"bias": bias} | _window(config)


def _qwen2(config: _Config, shape: Shape) -> Shape:
    return shape | {"bias": "qkv"} | (_window(config) if config.get("use_sliding_window") else {})


def _qwen3(config: _Config, shape: Shape) -> Shape:
    return _llama(config, shape | {"qk_norm": "head"})


def _mixtral(config: _Config, shape: Shape) -> Shape:
    experts = {"experts": config.due("num_local_experts"), "experts_per_token": config.size("num_experts_per_tok", default=2)}
    return _without_ffn(shape, experts | {"expert_ffn": shape["ffn"]}) | _window(config)


def _qwen_experts(config: _Config, shape: Shape) -> Shape:
    shape = shape | {
        "experts": config.due("num_experts"),
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "moe_every": config.size("decoder_sparse_step", default=1),
        "first_dense_layers": _leading(config.get("mlp_only_layers", default=[])),
    }
    if (shared := config.size("shared_expert_intermediate_size")) is not None:
        shape |= {"shared_experts": 1, "shared_expert_ffn": shared}
    return shape


def _qwen2_moe(config: _Config, shape: Shape) -> Shape:
    return _qwen_experts(config, _qwen2(config, shape))


def _qwen3_moe(config: _Config, shape: Shape) -> Shape:
    return _qwen_experts(config, _qwen3(config, shape))


def _gpt2(config: _Config, shape: Shape) -> Shape:
    return shape | {"positions": "learned", "bias": "all", "dropout": config.get("resid_pdrop", default=0.1)}


def _gpt_neox(config: _Config, shape: Shape) -> Shape:
    bias = "all" if config.get("attention_bias", default=True) else "ffn"
    return shape | {"bias": bias, "parallel": bool(config.get("use_parallel_residual", default=True))}


def _opt(config: _Config, shape: Shape) -> Shape:
    if config.get("word_embed_proj_dim", default=shape["hidden"]) != shape["hidden"]:
        raise SpecError(f"{config.place}: word_embed_proj_dim is not hidden_size; write a model whose embeddings are as wide")
    bias = "all" if config.get("enable_bias", default=True) else "none"
    return shape | {"positions": "learned", "bias": bias, "dropout": config.get("dropout", default=0.1)}


def _bloom(config: _Config, shape: Shape) -> Shape:
    return shape | {"positions": "alibi", "bias": "all", "embedding_norm": True, "ffn": 4 * shape["hidden"]}


def _mpt(config: _Config, shape: Shape) -> Shape:
    attention = config.get("attn_config", default={})
    plain = bool(config.get("no_bias", default=True))
    inner = round(config.get("expansion_ratio", default=4) * shape["hidden"])
    shape = shape | {"positions": "alibi" if attention.get("alibi", True) else "learned", "bias": "none" if plain else "all"}
    return shape | {"norm_bias": not plain, "ffn": inner} | ({"kv_heads": attention["kv_n_heads"]} if attention.get("kv_n_heads") else {})


def _falcon(config: _Config, shape: Shape) -> Shape:
    new = bool(config.get("new_decoder_architecture"))
    single = not new and config.get("multi_query", default=True)
    groups = 1 if single else config.size("num_kv_heads", default=shape["heads"]) if new else shape["heads"]
    parallel = new or bool(config.get("parallel_attn", default=True))
    norms = 1 if parallel and not new else config.size("num_ln_in_parallel_attn", default=2)
    positions = "alibi" if config.get("alibi") else "rope"
    bias = "all" if config.get("bias") else "none"
    inner = config.size("ffn_hidden_size", default=4 * shape["hidden"])
    return shape | {"kv_heads": groups, "parallel": parallel, "norms_per_layer": norms, "positions": positions, "bias": bias, "ffn": inner}


def _gemma(config: _Config, shape: Shape) -> Shape:
    return shape | {"head_dim": config.size("head_dim", default=256), "activation": "geglu"}


def _gemma2(config: _Config, shape: Shape) -> Shape:
    window = config.size("sliding_window", default=4096)
    return _gemma(config, shape) | {"norms_per_layer": 4, "window": window, "global_every": 2}


def _gemma3(config: _Config, shape: Shape) -> Shape:
    window, every = config.size("sliding_window", default=4096), config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _gemma(config, shape) | {"norms_per_layer": 4, "qk_norm": "head", "window": window, "global_every": every}


def _phi(config: _Config, shape: Shape) -> Shape:
    return shape | {"parallel": True, "norms_per_layer": 1, "bias": "all", "head_bias": True}


def _phi3(config: _Config, shape: Shape) -> Shape:
    return shape | _window(config)


def _deepseek(config: _Config, shape: Shape) -> Shape:
    latent = {
        "q_rank": config.size("q_lora_rank", default=0),
        "kv_rank": config.due("kv_lora_rank"),
        "nope_dim": config.due("qk_nope_head_dim"),
        "rope_dim": config.due("qk_rope_head_dim"),
        "value_dim": config.due("v_head_dim"),
    }
    shape = {name: value for name, value in shape.items() if name not in ("head_dim", "kv_heads")} | {"mla": latent}
    return shape if config.size("n_routed_experts") is None else _routed(config, shape)


def _routed(config: _Config, shape: Shape) -> Shape:
    """Return *shape* with experts as DeepSeek's configurations name them, which others took over."""
    return shape | {
        "experts": config.due("n_routed_experts"),
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "shared_experts": config.size("n_shared_experts", default=0),
        "first_dense_layers": config.size("first_k_dense_replace", default=0),
        "moe_every": config.size("moe_layer_freq", default=1),
    }


def _gpt_oss(config: _Config, shape: Shape) -> Shape:
    experts = {"experts": config.due("num_local_experts"), "expert_ffn": shape["ffn"]}
    experts["experts_per_token"] = config.size("num_experts_per_tok", "experts_per_token", default=4) or 4
    window = config.size("sliding_window", default=128)
    biased = {"bias": "all" if config.get("attention_bias", default=True) else "ffn", "sinks": True, "activation": "swiglu"}
    return _without_ffn(shape, experts) | biased | {"window": window, "global_every": 2}


def _nemotron(config: _Config, shape: Shape) -> Shape:
    return shape | {"norm_bias": True}


def _llama4(config: _Config, shape: Shape) -> Shape:
    shape = shape | {
        "ffn": config.size("intermediate_size_mlp", default=16384),
        "experts": config.due("num_local_experts"),
        "experts_per_token": config.size("num_experts_per_tok", default=1),
        "expert_ffn": shape["ffn"],
        "shared_experts": 1,
        "moe_every": config.size("interleave_moe_layer_step", default=1),
        "qk_norm": "weightless" if config.get("use_qk_norm", default=True) else "none",
    }
    return shape | {"window": config.size("attention_chunk_size", default=8192), "global_every": 4}


def _olmo(config: _Config, shape: Shape) -> Shape:
    return shape | {"norm": "nonparametric"}


def _olmo2(config: _Config, shape: Shape) -> Shape:
    return shape | {"qk_norm": "all"}


def _starcoder2(config: _Config, shape: Shape) -> Shape:
    return shape | {"bias": "all" if config.get("use_bias", default=True) else "none"} | _window(config)


def _seed_oss(config: _Config, shape: Shape) -> Shape:
    biased = bool(config.get("attention_bias", default=True)), bool(config.get("attention_out_bias"))
    return shape | {
        "head_dim": config.size("head_dim", default=128),
        "bias": {(True, True): "qkv_output", (True, False): "qkv"}.get(biased, "none"),
    }


def _ernie(config: _Config, shape: Shape) -> Shape:
    return shape | {"head_dim": config.size("head_dim", default=128), "bias": "all" if config.get("use_bias") else "none"}


def _olmo3(config: _Config, shape: Shape) -> Shape:
    return _olmo2(config, shape) | {"window": config.size("sliding_window", default=4096), "global_every": 4}


def _exaone4(config: _Config, shape: Shape) -> Shape:
    pattern = config.get("sliding_window_pattern", default=4)
    every = pattern.upper().rfind("G") + 1 if isinstance(pattern, str) else config.size("sliding_window_pattern", default=4)
    window = _window(config)
    return shape | {"qk_norm": "head"} | window | ({"global_every": every} if window else {})


def _cohere(config: _Config, shape: Shape) -> Shape:
    shape = shape | {
        "parallel": True,
        "norms_per_layer": 1,
        "norm_bias": False,
        "bias": "qkv_output" if config.get("attention_bias") else "none",
    }
    return shape | ({"qk_norm": "head"} if config.get("use_qk_norm") else {})


def _cohere2(config: _Config, shape: Shape) -> Shape:
    every = config.size("sliding_window_pattern", "_sliding_window_pattern", default=4)
    return _cohere(config, shape) | {"window": config.size("sliding_window", default=4096), "global_every": every}


def _glm(config: _Config, shape: Shape) -> Shape:
    return shape | {
        "head_dim": config.size("head_dim", default=128),
        "bias": "qkv" if config.get("attention_bias", default=True) else "none",
    }


def _glm4(config: _Config, shape: Shape) -> Shape:
    return _glm(config, shape) | {"norms_per_layer": 4}


def _glm4_moe(config: _Config, shape: Shape) -> Shape:
    normed = {"qk_norm": "head"} if config.get("use_qk_norm") else {}
    return _routed(config, shape | {"bias": "qkv" if config.get("attention_bias") else "none"} | normed)


def _glm4_moe_lite(config: _Config, shape: Shape) -> Shape:
    return _deepseek(config, shape) | {"first_dense_layers": config.size("first_k_dense_replace", default=1)}


def _dots(config: _Config, shape: Shape) -> Shape:
    return _routed(config, _qwen3(config, shape))


def _olmoe(config: _Config, shape: Shape) -> Shape:
    experts = {
        "experts": config.size("num_experts", "num_local_experts", default=64),
        "experts_per_token": config.due("num_experts_per_tok"),
    }
    normed = {"qk_norm": "all"} if config.get("use_qk_norm", default=True) else {}
    return _without_ffn(shape, experts | {"expert_ffn": shape["ffn"]} | normed)


def _phimoe(config: _Config, shape: Shape) -> Shape:
    bias = {"bias": "qkv_output" if config.get("attention_bias") else "none", "head_bias": bool(config.get("lm_head_bias"))}
    return _mixtral(config, shape | bias)


def _stablelm(config: _Config, shape: Shape) -> Shape:
    bias = {"bias": "qkv" if config.get("use_qkv_bias") else "none", "parallel": bool(config.get("use_parallel_residual"))}
    return shape | bias | ({"norms_per_layer": 1} if bias["parallel"] else {})


def _same(config: _Config, shape: Shape) -> Shape:
    return shape


@dataclass(frozen=True)
class _Family:
    """How the configurations of one ``model_type`` read."""

    read: Reader = _same
    gated: bool = True
    norm: str = "rmsnorm"
    activation: str = "silu"
    """What the class takes where the file names none."""
    tied: bool = False
    """Whether the class ties the head where the file says nothing."""


FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _Family(_llama),
    "llama4_text": _Family(_llama4),
    "mistral": _Family(_llama),
    "mixtral": _Family(_mixtral),
    "qwen2": _Family(_qwen2),
    "qwen2_moe": _Family(_qwen2_moe),
    "qwen3": _Family(_qwen3),
    "qwen3_moe": _Family(_qwen3_moe),
    "gpt2": _Family(_gpt2, gated=False, norm="layernorm", activation="gelu", tied=True),
    "gpt_neox": _Family(_gpt_neox, gated=False, norm="layernorm", activation="gelu"),
    "opt": _Family(_opt, gated=False, norm="layernorm", activation="relu", tied=True),
    "bloom": _Family(_bloom, gated=False, norm="layernorm", activation="gelu", tied=True),
    "mpt": _Family(_mpt, gated=False, norm="layernorm", activation="gelu", tied=True),
    "falcon": _Family(_falcon, gated=False, norm="layernorm", activation="gelu", tied=True),
    "gemma": _Family(_gemma, activation="gelu", tied=True),
    "gemma2": _Family(_gemma2, activation="gelu", tied=True),
    "gemma3_text": _Family(_gemma3, activation="gelu", tied=True),
    "phi": _Family(_phi, gated=False, norm="layernorm", activation="gelu"),
    "phi3": _Family(_phi3),
    "deepseek_v2": _Family(_deepseek),
    "deepseek_v3": _Family(_deepseek),
    "kimi_k2": _Family(_deepseek),
    "gpt_oss": _Family(_gpt_oss),
    "nemotron": _Family(_nemotron, gated=False, norm="layernorm", activation="relu2"),
    "olmo": _Family(_olmo, norm="nonparametric"),
    "olmo2": _Family(_olmo2),
    "granite": _Family(_llama),
    "smollm3": _Family(_llama, tied=True),
    "seed_oss": _Family(_seed_oss),
    "ernie4_5": _Family(_ernie, tied=True),
    "hunyuan_v1_dense": _Family(_qwen3),
    "ministral": _Family(_llama),
    "ministral3": _Family(_llama),
    "olmo3": _Family(_olmo3),
    "olmoe": _Family(_olmoe),
    "exaone4": _Family(_exaone4),
    "cohere": _Family(_cohere, norm="layernorm", tied=True),
    "cohere2": _Family(_cohere2, norm="layernorm", tied=True),
    "glm": _Family(_glm),
    "glm4": _Family(_glm4),
    "glm4_moe": _Family(_glm4_moe),
    "glm4_moe_lite": _Family(_glm4_moe_lite),
    "dots1": _Family(_dots),
    "minimax_m2": _Family(_olmoe),
    "granitemoe": _Family(_mixtral),
    "phimoe": _Family(_phimoe, norm="layernorm"),
    "arcee": _Family(_llama, gated=False, activation="relu2"),
    "stablelm": _Family(_stablelm, norm="layernorm"),
    "qwen2_5_vl": _Family(_qwen2),
    "qwen2_5_vl_text": _Family(_qwen2),
    "qwen3_vl_text": _Family(_qwen3),
    "qwen3_vl_moe_text": _Family(_qwen3_moe),
    "starcoder2": _Family(_starcoder2, gated=False, norm="layernorm", activation="gelu", tied=True),
}
"""By ``model_type``."""


def transformer_of(said: Mapping[str, Any], place: str) -> Shape:
    """Return the fields of the decoder that a configuration describes; *place* names its file in messages.

    Raise SpecError for a family that is not known, and for a size that is missing or no number.
    """
    inside = said.get("text_config")
    if isinstance(inside, Mapping):
        said = {"model_type": f"{said.get('model_type', '')}_text", **inside}
    kind = str(said.get("model_type", ""))
    family = FAMILIES.get(kind)
    if family is None:
        raise SpecError(f"{place}: {_unknown(kind, said)}")
    config = _Config(said, place)
    for name in _NEEDED:
        config.due(*_NAMES[name])
    shape: Shape = {name: config.size(*keys) for name, keys in _NAMES.items()}
    written = config.get("hidden_act", "activation_function", "hidden_activation", default=family.activation)
    if not isinstance(written, str) or written not in _ACTIVATIONS:
        raise SpecError(f"{place}: activation {written} is not known; known are {', '.join(_ACTIVATIONS)}")
    plain = _ACTIVATIONS[written]
    shape |= {
        "activation": _GATES.get(plain, plain) if family.gated else plain,
        "norm": family.norm,
        "positions": "rope",
        "tied": bool(config.get("tie_word_embeddings", default=family.tied)),
    }
    found = family.read(config, shape)
    return {name: value for name, value in found.items() if value is not None}


def _unknown(kind: str, said: Mapping[str, Any]) -> str:
    """Return that the family *kind* is not known, and what to do about it."""
    near = difflib.get_close_matches(kind.removesuffix("_text"), FAMILIES, n=3, cutoff=0.7)
    which = f"model_type {kind} is not known" if kind else f"model_type is missing; known are {', '.join(FAMILIES)}"
    like = f"; if its layers are like those of {' or '.join(near or ['llama'])}, write that for model_type in a copy of the file"
    fields = "layers: ..., hidden: ..., heads: ..., ffn: ..., vocab: ..."
    sizes = f"; or describe a decoder by its sizes: model: {{transformer: {{{fields}}}, sequence: ...}}"
    architectures = said.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures and isinstance(architectures[0], str) else ""
    traced = f"; or trace it: python -m sim extract transformers:{named} --input input_ids=512:int64" if named.isidentifier() else ""
    return f"{which}{like if kind else ''}{traced}{sizes}; or let 'python -m sim new workload' ask"


def _window(config: _Config) -> Shape:
    window = config.size("sliding_window")
    return {"window": window} if window else {}


def _without_ffn(shape: Shape, experts: Shape) -> Shape:
    """Return *shape* with *experts* in every block, none of which has a plain feed-forward block."""
    return {name: value for name, value in shape.items() if name != "ffn"} | experts


def _leading(layers: Any) -> int:
    """Return how many of the first layers a list of dense layers covers."""
    given = sorted(layers) if isinstance(layers, list) else []
    return len(given) if given == list(range(len(given))) else 0
