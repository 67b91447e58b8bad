"""How are configurations of encoders read that are trained with masked language modeling? Keys as in `sim.spec.foreign.hf_families`.

An encoder has the layers of a decoder, with attention both ways and a product with the vocabulary for all tokens, as in the classes
``...ForMaskedLM``. Left out, within 1% of the weights: the head's dense layer and the table of token types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.spec.foreign.hf_keys import Config, Family, Shape
from sim.spec.foreign.hf_windows import layer_mixture, layer_types
from sim.spec.yaml import SpecError


def _masked(config: Config, shape: Shape) -> Shape:
    """Return *shape* of an encoder with a head for masked tokens, and a note on what is left out."""
    config.notes.append(
        "an encoder with a head for masked tokens, which computes logits of all tokens; its dense layer and token types are left out"
    )
    return shape | {"causal": False, "head_bias": True}


def _bert(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of BERT: learned positions, biases everywhere, a norm after the embedding and after each half."""
    positions = str(config.get("position_embedding_type", default="absolute"))
    if positions != "absolute":
        raise SpecError(f"{config.place}: {config.within}position_embedding_type {positions[:40]} is not modeled; write absolute")
    fields = {"positions": "learned", "bias": "all", "embedding_norm": True, "dropout": config.get("hidden_dropout_prob", default=0.1)}
    return _masked(config, shape) | fields


def _roberta(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of RoBERTa: those of BERT, whose first two positions no token has."""
    return _bert(config, shape) | {"max_seq": shape["max_seq"] and shape["max_seq"] - 2}


def _above_zero(config: Config, name: str, usual: int) -> int:
    """Return the whole number *name*, or *usual*. Raise SpecError if it is below 1."""
    number = config.size(name, default=usual)
    if number is None or number < 1:
        raise SpecError(f"{config.place}: {config.within}{name}: {number} is too small; write a whole number, 1 or more")
    return number


def _modernbert(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of ModernBERT, of which all but each third attend to half of ``local_attention`` on either side."""
    layers = shape["layers"]
    every, local = (_above_zero(config, name, usual) for name, usual in (("global_attn_every_n_layers", 3), ("local_attention", 128)))
    reach = local // 2
    kinds = layer_types(config) or ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]
    config.read.add("layer_types")
    if len(kinds) != layers:
        raise SpecError(f"{config.place}: {config.within}layer_types has {len(kinds)} entries, but the model has {layers} layers")
    fields = shape | {"bias": config.biases(), "norm_bias": bool(config.get("norm_bias")), "embedding_norm": True}
    fields |= {"window": reach} | layer_mixture(config, layers, kinds, "layer_types") if reach else {}
    return _masked(config, fields)


ENCODERS: Final[Mapping[str, Family]] = {
    "bert": Family(_bert, gated=False, norm="layernorm", activation="gelu", tied=True),
    "camembert": Family(_roberta, gated=False, norm="layernorm", activation="gelu", tied=True),
    "modernbert": Family(_modernbert, norm="layernorm", activation="gelu", tied=True),
    "roberta": Family(_roberta, gated=False, norm="layernorm", activation="gelu", tied=True),
    "xlm-roberta": Family(_roberta, gated=False, norm="layernorm", activation="gelu", tied=True),
}
"""Families by ``model_type``."""
TRAINED: Final = ("ForMaskedLM", "ForPreTraining")
"""Ends of the names of their classes that are trained so."""
