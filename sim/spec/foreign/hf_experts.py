"""Which blocks of a Hugging Face decoder have experts, and of which sizes? Families share few names for the same things.

Keys and defaults are from huggingface/transformers, as in `sim.spec.foreign.hf_families`. Each function returns the fields of a Transformer
with those of its experts.
"""

from __future__ import annotations

from typing import Any, Final

from sim.spec.foreign.hf_defaults import DBRX_BLOCKS
from sim.spec.foreign.hf_keys import Config, Shape
from sim.spec.yaml import SpecError

EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys for the number of experts; since version 5, transformers writes any of these."""


def mixtral_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with experts as wide as the feed-forward blocks they replace."""
    experts = {"experts": config.due(*EXPERTS), "experts_per_token": config.size("num_experts_per_tok")}
    return _instead_of_ffn(shape, experts | {"expert_ffn": shape["ffn"]})


def olmoe_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with experts whose number has a default."""
    experts = {"experts": config.size(*EXPERTS), "experts_per_token": config.due("num_experts_per_tok")}
    return _instead_of_ffn(shape, experts | {"expert_ffn": shape["ffn"]})


def gpt_oss_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with gpt-oss's experts, four for each token by default."""
    experts = {"experts": config.due(*EXPERTS), "expert_ffn": shape["ffn"]}
    experts["experts_per_token"] = config.size("num_experts_per_tok", "experts_per_token", default=4) or 4
    return _instead_of_ffn(shape, experts)


def qwen_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with Qwen's experts, in the layers that ``mlp_only_layers`` does not list."""
    shape = shape | {
        "experts": config.due(*EXPERTS),
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "moe_every": config.size("decoder_sparse_step"),
        "first_dense_layers": _leading(config, "mlp_only_layers", config.get("mlp_only_layers", default=[])),
    }
    if shared := config.size("shared_expert_intermediate_size"):  # Qwen3-Coder's files say 0
        shape |= {"shared_experts": 1, "shared_expert_ffn": shared}
    return shape


def deepseek_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with experts from DeepSeek's keys, which other families also use."""
    return shape | {
        "experts": config.due(*EXPERTS),
        "experts_per_token": config.due("num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "shared_experts": config.size("n_shared_experts", "num_shared_experts", default=0),
        "first_dense_layers": dense_layers(config),
        "moe_every": config.size("moe_layer_freq", default=1),
        **_limited_routing(config),
    }


def _limited_routing(config: Config) -> Shape:
    """Return the groups of experts, if a token's experts are in some of them only (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    groups, chosen = config.get("n_group", default=None), config.get("topk_group", default=None)
    if not (isinstance(groups, int) and isinstance(chosen, int) and 0 < chosen < groups):
        return {}
    return {"expert_groups": groups, "groups_per_token": chosen}


def llama4_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with Llama 4's experts and its shared one, in every n-th block."""
    return shape | {
        "ffn": config.size("intermediate_size_mlp"),
        "experts": config.due(*EXPERTS),
        "experts_per_token": config.size("num_experts_per_tok"),
        "expert_ffn": shape["ffn"],
        "shared_experts": 1,
        "moe_every": _llama4_step(config, shape["layers"]),
    }


def _llama4_step(config: Config, layers: int) -> int:
    """Return n if every n-th layer has experts. Raise SpecError if ``moe_layers`` lists other layers."""
    step = config.size("interleave_moe_layer_step", default=1) or 1
    if config.get("moe_layers", default=[*range(step - 1, layers, step)]) != [*range(step - 1, layers, step)]:
        raise SpecError(f"{config.place}: {config.within}moe_layers must be every {step}-th layer, as interleave_moe_layer_step specifies")
    return step


def ernie_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with ERNIE's experts. Raise SpecError if its last layers have none."""
    config.read.add("moe_capacity")  # so large that no token is dropped
    layers, interval = shape["layers"], config.size("moe_layer_interval", default=1) or 1
    start, end = config.size("moe_layer_start_index", default=1) or 0, config.size("moe_layer_end_index", default=-1)
    if end not in (-1, layers - 1):
        raise SpecError(
            f"{config.place}: {config.within}moe_layer_end_index: the layers after layer {end} have no experts; only the first layers may "
            "be without experts"
        )
    return shape | {
        "experts": config.due("moe_num_experts", *EXPERTS),
        "experts_per_token": config.due("moe_k", "num_experts_per_tok"),
        "expert_ffn": config.due("moe_intermediate_size"),
        "shared_experts": config.size("moe_num_shared_experts", default=2),
        "first_dense_layers": start,
        "moe_every": interval,
    }


def hunyuan_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with Hunyuan's experts. Raise SpecError if their number or width differs between layers."""
    config.read |= {"attention_head_dim", "moe_layer_num_skipped", "num_shared_expert"}
    inner = _single(config, "moe_intermediate_size", shape["ffn"])
    experts = {"experts": _single(config, "num_experts", None), "experts_per_token": _single(config, "moe_topk", 1), "expert_ffn": inner}
    shared = {"shared_experts": 1} if config.get("use_mixed_mlp_moe") else {}
    return _instead_of_ffn(shape, experts | shared)


def _single(config: Config, name: str, default: int | None) -> int:
    """Return the number that *name* gives for every layer, as one number or as a list. Raise SpecError if layers differ."""
    value = config.get(name, default=default)
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(type(number) is not int or number != numbers[0] for number in numbers):
        raise SpecError(f"{config.place}: {config.within}{name}: write one whole number, the same for all layers")
    return int(numbers[0])


def dbrx_experts(config: Config, shape: Shape) -> Shape:
    """Return *shape* with DBRX's experts, from its nested block."""
    experts = config.nested("ffn_config", DBRX_BLOCKS)
    fields = {"experts": "moe_num_experts", "experts_per_token": "moe_top_k", "expert_ffn": "ffn_hidden_size"}
    return _instead_of_ffn(shape, {field: experts.due(name) for field, name in fields.items()})


def _instead_of_ffn(shape: Shape, experts: Shape) -> Shape:
    """Return *shape* with *experts* in every block instead of plain feed-forward blocks."""
    return {name: value for name, value in shape.items() if name != "ffn"} | experts


def dense_layers(config: Config, default: int = 0) -> int | None:
    """Return the number of layers before the first one with experts, from the keys of DeepSeek and similar configurations."""
    kinds = config.get("mlp_layer_types", default=[])
    if isinstance(kinds, list) and kinds:
        return _leading(config, "mlp_layer_types", [layer for layer, kind in enumerate(kinds) if kind == "dense"])
    return config.size("first_k_dense_replace", default=default)


def _leading(config: Config, name: str, layers: Any) -> int:
    """Return the number of dense *layers*, the value of the key *name*. Raise SpecError if they are not the first layers."""
    indices = sorted(layers) if isinstance(layers, list) else []
    if indices != list(range(len(indices))):
        raise SpecError(
            f"{config.place}: {config.within}{name}: layers {indices[:4]} without experts are not the first ones; only the first layers "
            "may be without experts"
        )
    return len(indices)
