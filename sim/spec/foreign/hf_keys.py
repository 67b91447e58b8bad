"""What are the keys of a Hugging Face ``config.json``, and which of them were not read?

Keys that are read are recorded. Of the other keys, those whose names indicate different layers (experts, convolutions, recurrent states)
are errors, because the family does not have such layers; other unread sizes are reported. Names follow huggingface/transformers,
src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sim.spec.yaml import SpecError

Shape = dict[str, Any]
"""Fields of a Transformer as plain data."""
_STRUCTURE: Final = re.compile(
    r"expert|moe|ssm|mamba|conv|recurrent|lru|linear_|state_size|lora_rank|hybrid|(block|layer)_types?|layers_block|"
    r"^block_configs$|^attn_layer_period$|^attn_type_list$"
)
"""Words in names of keys that change which products a layer has."""
_EXPERTS: Final = re.compile(r"expert|moe")
_EXPERT_COUNT: Final = re.compile(r"(num|n)_(\w+_)?experts")
_SIZE: Final = re.compile(r"_(size|dim|rank|width|heads?|layers?|interval)$|^(n|num)_")
_NO_SIZE: Final = re.compile(
    r"_token_|^max_window_layers$|^num_(labels|beams|beam_groups|return_sequences|logits_to_keep)$|^n_(ctx|group)$|^chunk_size|^ep_size$"
    r"|^query_pre_attn|^rotary_dim$|^no_rope_layer_interval$|^type_vocab_size$|^pad_vocab_size|^num_nextn_predict_layers$"
)
"""Keys that look like sizes but do not affect shapes: for generation, for the start of training, for details of routing or positions."""
_TYPES: Final = re.compile(r"(block|layer)_types?|layers_block|hybrid")
_OTHER_LAYERS: Final = frozenset({"block_configs", "attn_layer_period", "attn_type_list"})
"""Keys of models in which some layers have no attention, or sizes of their own; 1 means attention in every layer."""
ATTENTION: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Types of layers that differ only in the tokens to which they attend."""
_USUAL: Final = ATTENTION | {"dense"}
"""Types of layers that have only attention and a plain feed-forward block."""


class Config:
    """The keys of one file, with the *defaults* of its class; *place* is the file's name, *within* the prefix of a block, in messages."""

    def __init__(self, said: Mapping[str, Any], place: str, defaults: Mapping[str, int], within: str = "") -> None:
        self.said, self.place, self.defaults, self.within = said, place, defaults, within
        self.read: set[str] = {"model_type", "architectures"}
        self.assumed: dict[str, int] = {}
        """Sizes that the file leaves out, with the defaults of the class."""
        self.notes: list[str] = []
        """Notes for the user on what the description cannot express."""

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of *names* that is present and not null; if none is present, the default of the class, or *default*."""
        self.read.update(names)
        for name in names:
            if self.said.get(name) is not None:
                for other in names:
                    self.assumed.pop(other, None)
                return self.said[name]
        if not any(name in self.said for name in names):
            for name in names:
                if name in self.defaults:
                    self.assumed[name] = self.defaults[name]
                    return self.defaults[name]
        return default

    def size(self, *names: str, default: int | None = None) -> int | None:
        """Return a whole number, or *default*; raise SpecError for anything else."""
        value = self.get(*names, default=default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            name = next(name for name in names if self.said.get(name) is not None)
            raise SpecError(f"{self.place}: {self.within}{name}: {value!r} is not a whole number; write a whole number")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return whether *name* is true, or *default*; raise SpecError for anything but true or false."""
        value = self.get(name, default=default)
        if not isinstance(value, bool):
            raise SpecError(f"{self.place}: {self.within}{name}: {value!r} is not true or false; write one of them")
        return value

    def biases(self, default: bool = False) -> str:
        """Return which products have a bias, as ``Transformer.bias``, where attention and feed-forward blocks have a key each."""
        places = bool(self.get("attention_bias", default=default)), bool(self.get("mlp_bias", default=default))
        return {(True, True): "all", (True, False): "qkv_output", (False, True): "ffn"}.get(places, "none")

    def attention_bias(self, places: str = "qkv_output", default: bool = False) -> str:
        """Return which products have a bias, as ``Transformer.bias``, where one key says whether attention's do: those at *places*."""
        return places if self.get("attention_bias", default=default) else "none"

    def due(self, *names: str) -> int:
        """Return a whole number that must be present, except in nested blocks, where transformers leaves out defaults."""
        value = self.size(*names)
        if value is None or (not self.within and not any(name in self.said for name in names)):
            raise SpecError(f"{self.place}: {self.within}{f' or {self.within}'.join(names)} is missing; write it")
        return value

    def nested(self, name: str, defaults: Mapping[str, int] | None = None) -> Config:
        """Return the block *name*, empty if it is missing, with the *defaults* of its class. Raise SpecError if it is not a block."""
        block = self.get(name, default={})
        if not isinstance(block, Mapping):
            raise SpecError(f"{self.place}: {self.within}{name} is a single value; expected a block of keys")
        return Config(block, self.place, defaults or {}, f"{self.within}{name}.")

    def keys_of(self, meant: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """Return for each field in *meant* the first of its keys that the file has, or would have."""
        return {field: self.within + next((key for key in keys if key in self.said), keys[0]) for field, keys in meant.items()}

    def strange(self) -> dict[str, Any]:
        """Return the keys that were not read and that change the structure of layers."""
        dense = self._dense()
        return {
            name: value
            for name, value in self.said.items()
            if _STRUCTURE.search(name) and not (dense and _EXPERTS.search(name)) and self._changes_layers(name, value)
        }

    def unread(self) -> dict[str, Any]:
        """Return the other sizes that were not read."""
        return {
            name: value
            for name, value in self.said.items()
            if name not in self.read
            and _SIZE.search(name)
            and not _STRUCTURE.search(name)
            and not _NO_SIZE.search(name)
            and _is_above_one(value)
        }

    def _dense(self) -> bool:
        """Whether the file states that there are no experts, or only one."""
        counts = [value for name, value in self.said.items() if _EXPERT_COUNT.fullmatch(name) and value is not None]
        return bool(counts) and not any(_is_above_one(value) for value in counts)

    def _changes_layers(self, name: str, value: Any) -> bool:
        if name in self.read:
            return False
        each = value if isinstance(value, list) else [value]
        if name in _OTHER_LAYERS:
            return any(item not in (None, 1) for item in each)
        return any(map(_is_above_one, each)) or (
            bool(_TYPES.search(name)) and any(isinstance(word, str) and word not in _USUAL for word in each)
        )


def _is_above_one(value: Any) -> bool:
    """Return whether *value* is a whole number above 1; for counts, 1 is the same as none."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


ShapeReader = Callable[[Config, Shape], Shape]


def _unchanged(config: Config, shape: Shape) -> Shape:
    return shape


@dataclass(frozen=True)
class Family:
    """How to read the configurations of one ``model_type``."""

    read: ShapeReader = _unchanged
    gated: bool = True
    norm: str = "rmsnorm"
    activation: str = "silu"
    """Default activation of the class."""
    tied: bool = False
    """Whether the class ties the head by default."""
    dropout: float = 0.0
    """Default dropout of the class."""
    lists_layers: bool = False
    """Whether a file may list its layers without giving their number."""


def with_latent_attention(config: Config, shape: Shape, value_dim: int | None) -> Shape:
    """Return *shape* with multi-head latent attention, whose values have *value_dim* entries per head, in place of heads of one size."""
    latent = {
        "q_rank": config.size("q_lora_rank", default=0),
        "kv_rank": config.due("kv_lora_rank"),
        "nope_dim": config.due("qk_nope_head_dim"),
        "rope_dim": config.due("qk_rope_head_dim"),
        "value_dim": value_dim,
    }
    return {name: value for name, value in shape.items() if name not in ("head_dim", "kv_heads")} | {"mla": latent}


def listed(keys: Mapping[str, Any]) -> str:
    """Return *keys* with their values as text for a message."""
    return ", ".join(f"{name} {_short(value)}" for name, value in keys.items())


def _short(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return f"for {len(value)} layers"
    words = list(dict.fromkeys(map(str, value))) if isinstance(value, list) else [str(value)]
    return "/".join(words[:4]) + ("/..." if len(words) > 4 else "")
