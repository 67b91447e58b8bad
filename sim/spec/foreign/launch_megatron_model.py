"""Which model do Megatron-LM's arguments describe? Fields of a `Transformer` (megatron/training/arguments.py and its defaults).

Limits: sizes that only the tokenizer knows must be given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sim.spec.foreign.launch_options import Arguments
from sim.spec.foreign.launch_unread import OTHER_LAYERS
from sim.spec.strict import whole_number
from sim.spec.transformer import LETTERS, MIXERS
from sim.spec.yaml import SpecError

SIZES: Final[Mapping[str, str]] = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "ffn-hidden-size": "ffn",
    "kv-channels": "head_dim",
    "max-position-embeddings": "max_seq",
    "num-experts": "experts",
    "moe-ffn-hidden-size": "expert_ffn",
    "moe-shared-expert-intermediate-size": "shared_expert_ffn",
    "moe-router-topk": "experts_per_token",
    "moe-router-num-groups": "expert_groups",
    "moe-router-group-topk": "groups_per_token",
    "moe-latent-size": "expert_latent",
    "mtp-num-layers": "prediction_layers",
}
"""Our names of sizes, by option."""
LATENT: Final[Mapping[str, tuple[str, int]]] = {
    "q-lora-rank": ("q_rank", 0),
    "kv-lora-rank": ("kv_rank", 32),
    "qk-head-dim": ("nope_dim", 128),
    "qk-pos-emb-head-dim": ("rope_dim", 64),
    "v-head-dim": ("value_dim", 128),
}
"""Our names of the sizes of latent attention and Megatron-LM's defaults, by option."""
MAMBA: Final[Mapping[str, tuple[str, int]]] = {
    "mamba-state-dim": ("state", 128),
    "mamba-head-dim": ("head_dim", 64),
    "mamba-num-groups": ("groups", 8),
}
"""Our names of the sizes of Mamba-2 layers and Megatron-LM's defaults, by option."""
_UNREAD: Final = {
    "G": ("gated delta nets", "delta_net"),
    "P": ("layers of attention beside Mamba-2", "mamba"),
    "C": ("short convolutions", "short_conv"),
}
"""Letters of ``Transformer.pattern`` that Megatron-LM's arguments do not size, with their layers and field."""
PATTERNS: Final = ("hybrid-override-pattern", "hybrid-layer-pattern")
"""Options for the kind of each layer of a hybrid; later releases have the second."""
_POSITIONS: Final[Mapping[str, str]] = {
    "learned_absolute": "learned", "absolute": "learned", "rope": "rope", "rotary": "rope", "mrope": "rope", "yarn": "rope",
    "alibi": "alibi", "none": "none",
}  # fmt: skip
"""Our names of positions, by those of Megatron-LM (megatron/training/arguments.py) and of bigscience's Megatron-DeepSpeed (enums.py)."""
_EXPAND: Final = 2
"""Elements of a Mamba-2 layer's heads for each of the stream, if ``--mamba-num-heads`` is not given (core/ssm/mamba_mixer.py)."""
OPTIONS: Final[Mapping[str, str]] = {
    **{name: f"--{option}" for option, name in SIZES.items()},
    **{name: f"--{option}" for option, (name, _) in LATENT.items()},
    "pattern": f"--{PATTERNS[0]}",
    **{"kv_heads": "--num-query-groups", "vocab": "--padded-vocab-size", "window": "--window-size", "rope_base": "--rotary-base"},
    **{"first_dense_layers": "--moe-layer-freq", "moe_every": "--moe-layer-freq"},
}
"""Options by our names, for messages."""


def model_shape(given: Arguments) -> dict[str, Any]:
    """Return the fields of the transformer."""
    hybrid = _hybrid(given)
    if not hybrid and (other := next((option for option in OTHER_LAYERS if option in given.values), None)):
        raise SpecError(
            f"{given.place}: --{other} selects layers that are not supported; only decoders of attention and feed-forward blocks are"
        )
    shape: dict[str, Any] = {name: size for option, name in SIZES.items() if (size := given.number(option)) is not None}
    shape |= {"vocab": _vocabulary(given), **_kind(given), "norm_epsilon": given.figure("norm-epsilon", 1e-5)}
    if shape["positions"] == "learned" and "max_seq" not in shape:
        raise SpecError(
            f"{given.place}: learned positions need the size of their table; add --max-position-embeddings, for example 4096, or "
            "--position-embedding-type rope"
        )
    if shape["positions"] == "rope":
        shape |= {"rope_base": given.number("rotary-base", 10_000), "rope_share": given.figure("rotary-percent", 1.0)}
    if "ffn" not in shape and "expert_ffn" not in shape and "hidden" in shape:
        # validate_args of megatron/training/arguments.py: gated blocks get two thirds, in multiples of 64
        shape["ffn"] = 8 * shape["hidden"] // 3 // 64 * 64 if shape["activation"] == "swiglu" else 4 * shape["hidden"]
    if "group-query-attention" in given.values:
        shape["kv_heads"] = given.number("num-query-groups", 1)
    if "experts" in shape:
        shape["experts_per_token"] = given.number("moe-router-topk", 2)
        shape |= {"shared_experts": 1} if "shared_expert_ffn" in shape else {}
        shape |= _expert_layers(given.values.get("moe-layer-freq", "1"), given.place)
    else:
        for name in ("experts_per_token", "expert_groups", "groups_per_token"):
            shape.pop(name, None)
    if "multi-latent-attention" in given.values:
        shape["mla"] = {name: given.number(option, default) for option, (name, default) in LATENT.items()}
        shape.pop("head_dim", None)
    return shape | hybrid


def _hybrid(given: Arguments) -> dict[str, Any]:
    """Return the kinds of a hybrid's layers, and the sizes of its Mamba-2 layers; empty for other models."""
    said = next((given.values[option] for option in PATTERNS if option in given.values), None)
    if said is None:
        return {}
    pattern = said.strip("'\"")
    if not {*pattern} <= {*MIXERS}:
        raise SpecError(f"{given.place}: --{PATTERNS[0]} {said}: write a letter for each layer, {LETTERS}")
    if letter := next((each for each in _UNREAD if each in pattern), ""):
        layers, field = _UNREAD[letter]
        raise SpecError(
            f"{given.place}: --{PATTERNS[0]} {said}: {layers} ({letter}) are not read from arguments of Megatron-LM; write a file with "
            f"model.transformer.{field}"
        )
    mamba = {name: given.number(option, default) for option, (name, default) in MAMBA.items()}
    heads = given.number("mamba-num-heads") or _EXPAND * (given.number("hidden-size") or 0) // (mamba["head_dim"] or 1)
    return {"pattern": pattern, "layers": given.number("num-layers") or len(pattern)} | (
        {"mamba": mamba | {"heads": heads}} if "M" in pattern else {}
    )


_TOKENIZERS: Final[Mapping[str, int]] = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokens of the published files that a class of ``--tokenizer-type`` is named after (hub: openai-community/gpt2, meta-llama/Llama-2-7b)."""


def assumed_vocabulary(given: Arguments) -> tuple[int, str]:
    """Return the tokens of the vocabulary that the tokenizer's kind suggests, and the option that names it; 0 if none does."""
    kind = given.values.get("tokenizer-type", "GPT2BPETokenizer" if "merge-file" in given.values else "")
    option = "--tokenizer-type" if "tokenizer-type" in given.values else "--merge-file"
    stated = any(given.number(option) for option in ("padded-vocab-size", "pad-vocab-size-to", "vocab-size"))
    return (0, "") if stated else (_TOKENIZERS.get(kind, 0), f"{option} {given.values.get(option[2:], '')}".rstrip())


def _vocabulary(given: Arguments) -> int:
    """Return the padded vocabulary size: a multiple of ``--make-vocab-size-divisible-by`` (128) times the tensor ranks.

    Megatron-DeepSpeed of bigscience takes ``--pad-vocab-size-to``.
    """
    if (padded := given.number("padded-vocab-size") or given.number("pad-vocab-size-to")) is not None:
        return padded
    size = given.number("vocab-size") or assumed_vocabulary(given)[0]
    if not size:
        raise SpecError(
            f"{given.place}: the vocabulary size depends on the tokenizer, which is not read; add --padded-vocab-size, for example 128256"
        )
    step = (given.number("make-vocab-size-divisible-by") or 128) * (given.number("tensor-model-parallel-size") or 1)
    return -(-size // step) * step


def _kind(arguments: Arguments) -> dict[str, Any]:
    given = arguments.values
    bias = "none" if "disable-bias-linear" in given else "all"
    return {
        "activation": "swiglu" if "swiglu" in given else "relu2" if "squared-relu" in given else "gelu",
        "norm": "rmsnorm" if given.get("normalization") == "RMSNorm" else "layernorm",
        "positions": "rope" if "use-rotary-position-embeddings" in given else _positions(arguments),
        **({"embedding_norm": True} if "embed-layernorm" in given else {}),
        "tied": "untie-embeddings-and-output-weights" not in given,
        "bias": "qkv" if bias == "none" and "add-qkv-bias" in given else bias,
        "qk_norm": "head" if "qk-layernorm" in given else "none",
        "dropout": arguments.figure("hidden-dropout", 0.1, least=0.0),
        **_window(arguments),
    }


def _positions(given: Arguments) -> str:
    kind = given.values.get("position-embedding-type", "learned_absolute")
    if kind not in _POSITIONS:
        raise SpecError(f"{given.place}: --position-embedding-type {kind} is not supported; supported: {', '.join(_POSITIONS)}")
    return _POSITIONS[kind]


def _window(given: Arguments) -> dict[str, Any]:
    """Return the attention window (``--window-size LEFT,RIGHT``), and n if every n-th layer attends to all tokens."""
    said = given.values.get("window-size")
    if said is None:
        return {}
    match = re.match(r"\s*(-1|\d{1,9})\s*(?:,|$)", said)
    if match is None:
        raise SpecError(f"{given.place}: --window-size {said}: write the number of previous tokens in the window, such as 128,0")
    window = int(match[1])
    every = given.number("window-attn-skip-freq")
    return {"window": window, **({"global_every": every} if every else {})} if window > 0 else {}


def _expert_layers(pattern: str, place: str) -> dict[str, Any]:
    """Return which layers have experts from ``--moe-layer-freq``: a number, or a pattern such as ``([0]*3+[1]*58)``."""
    if (every := whole_number(pattern)) is not None:
        return {"moe_every": every}
    match = re.fullmatch(r"\[0\]\*(\d+)\+\[1\]\*\d+", pattern.replace(" ", ""))
    if match is None:
        raise SpecError(f"{place}: --moe-layer-freq {pattern}: write a number, or [0]*N+[1]*M")
    return {"first_dense_layers": int(match[1])}
