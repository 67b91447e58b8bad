"""How are configurations read whose classes come with their weights (``trust_remote_code``), not with transformers?

Keys, and defaults other than sizes, are from the files ``configuration_*.py`` and ``modeling_*.py`` beside the weights on the hub, as
vllm-project/vllm, model_executor/models, reads them. These classes are at the top level of a file, so that sizes have no defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.spec.foreign.hf_experts import EXPERTS, deepseek_experts, mixtral_experts
from sim.spec.foreign.hf_keys import Config, Family, Shape, with_latent_attention
from sim.spec.foreign.hf_windows import used_window, window
from sim.spec.yaml import SpecError


def _internlm(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the biases of InternLM and InternLM2, whose feed-forward blocks have none."""
    return shape | {"bias": "qkv_output" if config.get("bias", default=config.said.get("model_type") == "internlm") else "none"}


def _internlm3(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the biases of InternLM3. Raise SpecError for those that a Transformer cannot have."""
    places = bool(config.get("qkv_bias")), bool(config.get("bias"))
    if places == (False, True):
        raise SpecError(f"{config.place}: {config.within}bias true with qkv_bias false is not modeled; write the same for both")
    return shape | {"bias": {(True, True): "all", (True, False): "qkv"}.get(places, "none")}


def _baichuan(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the positions of Baichuan: ALiBi in the class of 13 billion parameters, which has no max_position_embeddings."""
    length = config.size("model_max_length")
    return shape if shape["max_seq"] else shape | {"positions": "alibi", "max_seq": length}


def _qwen(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the sizes of the first Qwen, whose ``intermediate_size`` is that of gate and up together."""
    plain = bool(config.get("no_bias", default=True))
    heads = {"head_dim": config.size("kv_channels", default=128), "ffn": config.due("intermediate_size") // 2}
    return shape | heads | {"bias": "qkv" if plain else "all"}


def _chatglm(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of ChatGLM2, ChatGLM3 and GLM-4. Raise SpecError for those of the first ChatGLM."""
    if "ffn_hidden_size" not in config.said:
        raise SpecError(
            f"{config.place}: {config.within}ffn_hidden_size is missing; the first ChatGLM, with attention both ways, is not modeled"
        )
    everywhere, inputs = bool(config.get("add_bias_linear")), bool(config.get("add_qkv_bias"))
    groups = config.due("multi_query_group_num") if config.get("multi_query_attention") else shape["heads"]
    return shape | {
        "vocab": config.due("padded_vocab_size", "vocab_size"),
        "ffn": config.due("ffn_hidden_size"),
        "head_dim": config.size("kv_channels", default=128),
        "kv_heads": groups,
        "norm": "rmsnorm" if config.get("rmsnorm", default=True) else "layernorm",
        "bias": "all" if everywhere else "qkv" if inputs else "none",
    }


def _olmo_of_hub(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of OLMo's own code (allenai/OLMo, olmo/config.py and model.py)."""
    if (kind := str(config.get("block_type", default="sequential"))) not in ("sequential", "llama"):
        raise SpecError(f"{config.place}: {config.within}block_type {kind[:40]} is not modeled; use sequential or llama")
    norm = str(config.get("layer_norm_type", default="default"))
    weighted = bool(config.get("layer_norm_with_affine", default=True))
    groups = config.size("n_kv_heads") or (1 if config.get("multi_query_attention") else shape["heads"])
    biased = bool(config.get("include_bias"))
    inner = config.size("mlp_hidden_size") or config.size("mlp_ratio", default=4) * shape["hidden"]
    gated = str(config.get("activation_type", default="swiglu")) == "swiglu"
    return shape | {
        "vocab": config.size("embedding_size", default=shape["vocab"]),
        "max_seq": config.size("max_sequence_length"),
        "ffn": inner // 2 if gated else inner,
        "activation": "swiglu" if gated else "gelu",
        "kv_heads": groups,
        "norm": "rmsnorm" if norm == "rms" else "layernorm" if weighted else "nonparametric",
        "norm_bias": bool(config.get("bias_for_layer_norm", default=biased)) and norm != "rms",
        "qk_norm": "all" if config.get("attention_layer_norm") else "none",
        "positions": "alibi" if config.get("alibi") else "rope" if config.get("rope") else "learned",
        "bias": "all" if biased else "none",
        "tied": bool(config.get("weight_tying", default=True)),
    }


def _grok(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Grok-1: gated GELU in each expert, norms before and after attention and experts."""
    return mixtral_experts(config, shape) | {"activation": "geglu", "norms_per_layer": 4}


def _arctic(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Arctic, whose experts run beside attention and a feed-forward block as wide as the stream.

    That block is a shared expert here. Raise SpecError for layers without it.
    """
    every = config.size("moe_layer_frequency", default=2) or 2
    if every > 1 or not config.get("use_residual"):
        raise SpecError(
            f"{config.place}: {config.within}moe_layer_frequency {every}, use_residual {config.said.get('use_residual', False)}: only "
            "Arctic's layers with experts and a residual block in each are modeled; write 1 and true"
        )
    config.read |= {name for name in config.said if name.startswith("moe_")} | {"parallel_attn_mlp_res", "enable_expert_tensor_parallelism"}
    config.notes.append(
        f"{config.within}use_residual: the feed-forward block beside the experts is simulated as a shared expert; its norm, and experts "
        "beside attention, are not modeled"
    )
    return mixtral_experts(config, shape) | {"shared_experts": 1, "shared_expert_ffn": shape["hidden"]} | window(config)


def _minicpm(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of MiniCPM, or of its mixture of experts."""
    shape = shape | {"bias": config.attention_bias("qkv")}
    return shape if config.size(*EXPERTS, default=0) in (None, 0) else mixtral_experts(config, shape)


def _minicpm3(config: Config, shape: Shape) -> Shape:
    """Return *shape* with MiniCPM3's latent attention."""
    return with_latent_attention(config, shape, config.size("v_head_dim", default=shape["hidden"] // shape["heads"]))


def _deepseek_moe(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the experts of DeepSeekMoE and plain attention."""
    shape = shape | {"bias": config.attention_bias()}
    return shape if config.size(*EXPERTS) is None else deepseek_experts(config, shape)


def _bailing(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the experts of Ling, and the norms of queries and keys that Ling 2.0 has."""
    everywhere, inputs = bool(config.get("use_bias")), bool(config.get("use_qkv_bias"))
    config.read |= {"moe_router_enable_expert_bias", "moe_router_enable_shared_expert"}
    routed = deepseek_experts(config, shape | {"bias": "all" if everywhere else "qkv" if inputs else "none"})
    shared = config.size("moe_shared_expert_intermediate_size")
    widths = {"shared_expert_ffn": shared * routed["shared_experts"]} if shared and routed["shared_experts"] else {}
    return routed | widths | ({"qk_norm": "head"} if config.get("use_qk_norm") else {})


def _mimo(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": config.attention_bias("qkv", default=True)} | used_window(config, shape["layers"])


def _orion(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": config.biases()}


OF_THE_HUB: Final[Mapping[str, Family]] = {
    "arctic": Family(_arctic),
    "aquila": Family(),
    "baichuan": Family(_baichuan),
    "bailing_moe": Family(_bailing),
    "bailing_moe_v2": Family(_bailing),
    "chatglm": Family(_chatglm),
    "deepseek": Family(_deepseek_moe),
    "exaone": Family(),
    "grok-1": Family(_grok, activation="gelu", tied=True),
    "hf_olmo": Family(_olmo_of_hub),
    "internlm": Family(_internlm),
    "internlm2": Family(_internlm),
    "internlm3": Family(_internlm3),
    "mimo": Family(_mimo),
    "minicpm": Family(_minicpm, tied=True),
    "minicpm3": Family(_minicpm3, tied=True),
    "orion": Family(_orion, norm="layernorm"),
    "qwen": Family(_qwen),
    "skywork": Family(),
    "xverse": Family(),
    "Yi": Family(),
}
"""Families by ``model_type``."""
