"""What do the words in a table's cells mean? Yes or no, the precision, what is recomputed, the stage of ZeRO.

Unknown words are never guessed: `CannotDescribe` states which words are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from calibration.llm.chips import ProductPrecision
from calibration.llm.shapes import CannotDescribe
from sim.spec.fields import Fp8Recipe

Recompute = Literal["none", "full", "attention", "operators"]
_NO: Final = ("no", "false", "off", "0", "null", "disabled")
_NARROW: Final = re.compile(r"fp8|float8|e4m3|e5m2|mxfp8|8.?bit")
_NOT_PRODUCTS: Final = re.compile(r"(?:\bno|\bnot|without|w/o)\s+(?:fp8|float8|8.?bit)|(?:fp8|float8|8.?bit)\s+(?:adamw?|optim\w*|states?)")
"""Words on 8 bits that are not about products: what is not used, and the optimizer."""
_NARROWEST: Final = re.compile(r"fp4|float4")
_SIXTEEN: Final = re.compile(r"bf16|bfloat16|fp16|float16|half|16.?mixed|16.?true|^16$|(?<![a-z])amp(?![a-z])|mixed|^o[12]$")
"""``O1`` and ``O2`` are levels of NVIDIA's apex.amp."""
_FLOAT16: Final = re.compile(r"(?<!b)(fp16|float16)|half|(?<!bf)(?<!\d)16.?(mixed|true)|^16$|^o[12]$")
_NONE: Final = re.compile(r"(none|no|not|null|0|off|false|disabled|without|w/o|unset)\b(?![./]\d)")
_FULL: Final = re.compile(
    r"(full(y)?|true|yes|on|all|every (layer|block)|enabled|uniform|block|1|"
    r"(gradient[ _])?checkpoint(ing|ed)?|recompute|remat|activation checkpointing)\b"
)
_SHARES: Final[Mapping[str, Callable[[re.Match[str]], float]]] = {
    r"(0?\.\d+)": lambda match: float(match.group(1)),
    r"(\d+(?:\.\d+)?)\s*%": lambda match: float(match.group(1)) / 100,
    r"(?:selective\s*)?\(?(\d+)\s*(?:/|of|in)\s*(\d+)(?:\s*(?:blocks|layers))?\)?": lambda match: (
        float(match.group(1)) / max(1.0, float(match.group(2)))
    ),
    r".*\bevery (\d+)(?: layers| blocks)?": lambda match: 1.0 / max(1.0, float(match.group(1))),
    r".*\bevery (?:2nd|second|other)\b.*": lambda match: 1 / 2,
    r".*\bevery (?:3rd|third)\b.*": lambda match: 1 / 3,
    r".*\bevery (?:4th|fourth)\b.*": lambda match: 1 / 4,
}
"""The share of blocks that is recomputed, by the pattern that a text matches (the selective mode of torchtitan and of IBM's fms-fsdp)."""
_BLOCKS: Final = re.compile(r"acl=(\d+)|\bblock\b\D{0,3}(\d+)|\bblock\b.*num.layers\D{0,3}(\d+)")
_COUNT: Final = re.compile(r"num.layers\D{0,3}(\d+)")
"""Megatron's recompute_num_layers: the layers that are recomputed (block), or those of a group whose first input is kept (uniform)."""
_OFF: Final = re.compile(
    r"(?:(?:gradient|activation)[ _-])?(?:checkpointing|recompute|remat)\s*[=: ]\s*(?:false|0|no|none|off|disabled)\b|-$|-r 0"
)
_MEGATRON: Final = re.compile(r"(?:--)?recompute[-_](?:granularity[\s=:]+|(?=activations))")
"""Megatron's options; ``--recompute-activations`` is short for selective (megatron/training/arguments.py)."""
_SHORT: Final = re.compile(r"^ac(?:\s*[=:]\s*|\s+|$)")
"""The usual short name of activation checkpointing before what it does."""
_PART: Final = re.compile(r"(?:recompute|remat|checkpointing)[\s=:(]+(?:only )?(mlp|moe|layer.?norm|ffn|feed|minimal|save)")


SAVED_LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "minimal": ("attention.qkv", "attention.output", "feed.gate_up"),
    "save_dot_except_mlpwi": ("attention.qkv", "attention.output"),
    "save_dot_except_mlp": ("attention.qkv", "attention.output"),
    "save_qkv_proj": ("attention.qkv",),
    "save_out_proj": ("attention.output",),
}
"""Layers of a plain decoder's block whose outputs are saved, by MaxText's ``remat_policy`` (layers/models.py, ``get_remat_policy``).

Some policies also name ``mlpwo``, the last product's output, which no backward reads, so JAX does not save it. MaxText saves q and k after
their rotation (layers/attentions.py): the bytes are the same, but here the rotation is recomputed, which is too much.
"""


def means_yes(text: str, default: bool) -> bool:
    """Return whether *text* means yes; *default* if it is blank."""
    plain = text.strip().lower()
    return not plain.startswith(_NO) if plain else default


_UNFUSED: Final = re.compile(r"(eager|math|naive|vanilla|unfused|local)\b")
"""Attention in several kernels: transformers' attn_implementation, torch's SDPBackend.MATH, and Megatron-LM's --attention-backend."""


def is_fused_attention(text: str) -> bool:
    """Return whether *text* on attention means one kernel, as it does if it is blank."""
    return means_yes(text, True) and not _UNFUSED.match(text.strip().lower())


_SCALED: Final[Mapping[str, Fp8Recipe]] = {
    r"mx": "mxfp8",
    r"block|sub.?channel|(?<![a-z])sc(?![a-z])": "blockwise",
    r"row.?wise": "rowwise",
    r"(?<![a-z])cs(?![a-z])|current|tensor.?wise|dynamic": "tensorwise",
    r"(?<![a-z])ds(?![a-z])|delayed": "delayed",
}
"""The FP8 recipe by the first pattern that matches; words of two letters are those of NeMo and Megatron-Bridge."""


def precision_of(text: str) -> tuple[ProductPrecision, Fp8Recipe | None]:
    """Return the precision of products that *text* names, and the FP8 recipe if it states one.

    Raise CannotDescribe if it names no precision that can be described.
    """
    plain = _NOT_PRODUCTS.sub("", text.lower())
    if _NARROWEST.search(plain):
        return "fp4", None
    if _NARROW.search(plain):
        return "fp8", next((recipe for word, recipe in _SCALED.items() if re.search(word, plain)), None)
    if _SIXTEEN.search(plain):
        return "16bit", None
    raise CannotDescribe(f"precision {text!r} is not supported; use bf16, fp16, fp8, mxfp8 or nvfp4")


def is_float16(text: str) -> bool:
    """Return whether *text* names IEEE half precision, whose gradients are scaled, not bfloat16."""
    return bool(_FLOAT16.search(text.strip().lower()))


def share_of(text: str) -> float | None:
    """Return the share of blocks that *text* says are recomputed, such as ``1/2`` or ``every 2nd layer``; None if it states none."""
    plain = re.sub(r"\(\s*(every .*?)\s*\)", r"\1", text.strip().lower())
    matches = ((share, re.fullmatch(pattern, plain)) for pattern, share in _SHARES.items())
    return next((min(1.0, share(match)) for share, match in matches if match), None)


MODULES: Final = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj")
"""Parts of a block that Megatron can recompute individually (megatron/core/transformer/transformer_config.py, ``recompute_modules``)."""


def modules_of(text: str) -> tuple[str, ...]:
    """Return the modules in *text*, such as ``selective: mlp, core_attn`` or ``[moe_act]``; empty if it names anything else as well."""
    named = re.sub(r"^selective\s*[:(\[]?", "", text.strip().lower())
    chosen = set(re.split(r"[\s,+;&]+", re.sub(r"[\[\]()'\"]", " ", named).strip()))
    return tuple(name for name in MODULES if name in chosen) if chosen <= {*MODULES} else ()


def recompute_of(text: str, family: str, blocks: int = 0) -> tuple[Recompute, int]:
    """Return what software of *family* recomputes, and in how many of the *blocks* of a rank (0: all).

    Raise CannotDescribe for unknown words.
    """
    plain = re.sub("^activations", "selective", _MEGATRON.sub("", text.strip().lower(), count=1))
    plain = _SHORT.sub("", plain) or "full"
    if plain in SAVED_LAYERS:
        return "full", 0
    if modules := modules_of(plain):
        return ("attention" if "core_attn" in modules else "none"), 0
    share = share_of(text)
    if share is not None:
        some = round(share * blocks)
        return ("full", 0 if some == blocks else some) if some else ("none", 0)
    if _OFF.match(plain) or _NONE.match(plain):
        return "none", 0
    if re.match(r"(?:recompute|remat|.*checkpointing)[\s=:(]+(?:only )?(?:core.)?att", plain):
        return "attention", 0
    if _FULL.match(plain) and not _PART.search(plain):
        limit = _BLOCKS.search(plain)
        counted = _COUNT.search(plain)
        if limit is None and counted is not None and "uniform" not in plain:
            raise CannotDescribe(
                f"activation_checkpointing {text!r} does not say which layers: write 'block, num_layers={counted[1]}' if the first "
                f"{counted[1]} of each stage are recomputed, or 'uniform, num_layers={counted[1]}' if all are, in groups of {counted[1]}"
            )
        return "full", int(next(group for group in limit.groups() if group)) if limit else 0
    if re.match(r"selective|sac\b|op\b", plain) and family == "fsdp2":
        return "operators", 0
    if "attention" in plain or "core_attn" in plain or (plain.startswith("selective") and ":" not in plain):
        return "attention", 0
    if plain.startswith("selective:"):
        raise CannotDescribe(f"activation_checkpointing {text!r} has an unknown module; use {', '.join(MODULES)}")
    raise CannotDescribe(
        f"activation_checkpointing {text!r} is unknown; use full, selective, selective: MODULES, none or one of MaxText's policies"
    )


def saves_of(text: str) -> tuple[str, ...]:
    """Return the layers whose outputs are saved though their block is recomputed, if *text* is one of MaxText's policies; else none."""
    return SAVED_LAYERS.get(text.strip().lower(), ())


class Shards(NamedTuple):
    """FSDP's sharding strategy as a stage of ZeRO, and whether it means several replicas of a sharded model."""

    stage: int
    replicated: bool = False


_STRATEGIES: Final[Mapping[str, Shards]] = {
    "full_shard": Shards(3),
    "shard_grad_op": Shards(2),
    "no_shard": Shards(0),
    "hybrid_shard": Shards(3, True),
    "_hybrid_shard_zero2": Shards(2, True),
    "hybrid_shard_zero2": Shards(2, True),
    "hsdp": Shards(3, True),
    "gemini": Shards(3),
    "low_level_zero": Shards(1),
    "optim": Shards(1),
    "optim_grads": Shards(2),
    "optim_grads_params": Shards(3),
}
"""Strategies of torch.distributed.fsdp.ShardingStrategy, the usual short name of hybrid sharding, and strategies of Megatron-FSDP
(megatron/core/distributed/distributed_data_parallel_config.py, ``data_parallel_sharding_strategy``); plugins of Colossal-AI
(colossalai/booster/plugin/gemini_plugin.py, low_level_zero_plugin.py: stage 1 by default)."""


_STAGE: Final = re.compile(
    r"(?<![a-z])(?:zero[-_ =:]*(?:stage[-_ =:]*)?|deepspeed[-_ ,(]*stage[-_ =:]*|(?:ds[-_])?z[-_ ]?)([0-3])(?!\.?\d)"
)
"""A stage of ZeRO: in words, as LLaMA-Factory names its files (ds_z3_config.json), and as people shorten it (Z3)."""
_WHOLE: Final = re.compile(
    r"((?:megatron[-_ ]|custom[-_ ])?fsdp ?[12]?|fully_shard|fsdp ?=? ?\d+)([,;( ].*)?|"
    r"(full(?:y)?(?:[-_ ]?sharded)?|sharded|yes|true|on) ?([,;(].*)?"
)
"""FSDP without a strategy, whose default shards parameters, perhaps with its degree; not with another word such as ``FSDP+DP``. Or a cell
that only says that it is used, which no other word follows, as in ``sharded optimizer`` or ``fully replicated``."""
_OTHER_SHARDING: Final = re.compile(r"(?<![a-z])(mics|zero ?\+\+|hpz|qwz|qgz)(?![a-z])")
"""Sharding that moves other data than a stage of ZeRO: inside groups of ranks (MiCS, arXiv 2205.00119; hpZ) or quantized (ZeRO++)."""
_DISTRIBUTED: Final = re.compile(r"(?<!no )(?<!without )(?<!w/o )(?<!non-)distributed optimizer")
"""Megatron's."""
_GATHERED_ONCE: Final = re.compile(r"reshard_after_forward\s*[=:]?\s*(?:false|off|no|0)\b|no reshard")
"""FSDP2's option with which parameters stay gathered until backward, as in FSDP1's ``SHARD_GRAD_OP``."""


def shards_of(text: str) -> Shards | None:
    """Return the sharding of the strategy or of the ZeRO stage that *text* names; None if it names neither. A stage wins.

    Raise CannotDescribe for sharding that is neither.
    """
    plain = re.sub(r"\b(full|hybrid|no)[ -]shard(?:ing)?|^\s*(hybrid)\s*$", r"\1\2_shard", text.lower())
    if other := _OTHER_SHARDING.search(plain):
        raise CannotDescribe(f"{other.group(1)} in {text!r} is not modeled; only ZeRO's stages and FSDP's strategies are")
    stage = _STAGE.search(plain)
    named = re.search(rf"(?<![a-z0-9])({'|'.join(sorted(_STRATEGIES, key=len, reverse=True))})(?![a-z0-9_])", plain)
    shards = _STRATEGIES[named.group(1)] if named else Shards(3) if _WHOLE.fullmatch(plain.strip()) else None
    if shards is not None and shards.stage == 3 and _GATHERED_ONCE.search(plain):
        shards = shards._replace(stage=2)
    if stage or _DISTRIBUTED.search(plain):
        return Shards(int(stage.group(1)) if stage else 1, shards is not None and shards.replicated)
    return shards


def refuses_sharding(text: str) -> bool:
    """Return whether *text* on sharding says that nothing is sharded."""
    return bool(
        re.fullmatch(r"(none|no|off|false|0|d?dp|data.?parallel\w*|unsharded|not sharded|replicated)([,;( ].*)?", text.strip().lower())
    )


def means_no_sharding(text: str) -> bool:
    """Return whether *text* on sharding is blank, or says that nothing is sharded, or that FSDP is one of several axes."""
    return refuses_sharding(text) or bool(re.fullmatch(r"(n/?a|-|.*fsdp.*)?([,;( ].*)?", text.strip().lower()))


def shards_of_software(text: str) -> Shards | None:
    """Return the sharding that stands beside a framework's name, as in ``DeepSpeed ZeRO-3``; None if none does."""
    return shards_of(re.sub(r"\boptim\b", "", text, flags=re.IGNORECASE))


def offloads(text: str) -> bool:
    """Return whether *text* means that something is kept outside the GPU."""
    return means_yes(text, False) and not text.strip().lower().startswith("none")


_OFFLOAD: Final = re.compile(r"off ?load|zero ?infinity")
_NO_OFFLOAD: Final = re.compile(
    r"\b(no|not|non|without|w/o) ((cpu|nvme|optimizer|parameter|activation)s? )*off ?load\w*|"
    r"off ?load\w*( to)?( ?[=:] ?| )(false|off|no|none|0)\b"
)


def mentions_offload(text: str) -> bool:
    """Return whether *text* on other things, such as ``ZeRO-3, CPU offload``, says that something is kept outside the GPU."""
    return bool(_OFFLOAD.search(_NO_OFFLOAD.sub("", re.sub(r"[-_ ]+", " ", text.lower()))))


_ADAPTED: Final = re.compile(r"lora|(?<![a-z])(peft|dora)(?![a-z])")
_OTHER_JOBS: Final[Mapping[str, str]] = {
    r"grpo|ppo|rloo|dapo|gspo|reinforcement|rlhf": "reinforcement learning, whose steps also generate text, is",
    r"dpo|kto": "DPO and KTO, whose steps also run a reference model, are",
    r"distill\w*": "distillation, whose steps also run a teacher, is",
    r"inference|serving|prefill|decoding": "inference is",
}
"""What a step does beside training a decoder, by a word in a row's class or set."""


def trains_adapters(text: str) -> bool:
    """Return whether *text* on what is trained means adapters (LoRA) beside frozen weights."""
    return bool(_ADAPTED.search(text.lower()))


def other_job(text: str) -> str:
    """Return what steps that *text* names do beside training a decoder, with a verb; empty if nothing."""
    plain = re.sub("[-_]", " ", text.lower())
    return next((what for words, what in _OTHER_JOBS.items() if re.search(rf"(?<![a-z])({words})(?![a-z])", plain)), "")


def zero_of(text: str) -> int:
    """Return the stage of ZeRO in *text*, such as ``ZeRO-3``, ``none``, ``FSDP`` or ``distributed optimizer``.

    Raise CannotDescribe if it names none.
    """
    plain = text.strip().lower()
    if re.match(r"(none|no|off|false|ddp|disabled)\b", plain):
        return 0
    stage = re.search(r"(?<!\d)[0-3](?!\d)", re.sub(r"^fsdp[- ]?[12]\b", "fsdp", plain))  # versions of FSDP are no stages
    if stage is not None:
        return int(stage.group())
    if re.match(r"(fsdp|full|fully)", plain):
        return 3
    if re.search(r"dist\w*[ _-]?opt|^(yes|true|on)$", plain):  # Megatron's --use-distributed-optimizer
        return 1
    raise CannotDescribe(f"zero_stage is {text!r}, not a number from 0 to 3")
