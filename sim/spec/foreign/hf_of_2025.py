"""How are configurations of families read that came to transformers in late 2025? Keys as in `sim.spec.foreign.hf_families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.spec.foreign.hf_experts import deepseek_experts
from sim.spec.foreign.hf_keys import Config, Family, Shape
from sim.spec.foreign.hf_windows import layer_mixture, layer_types, window


def _vaultgemma(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of VaultGemma: those of Gemma 2 without norms after attention and feed-forward blocks."""
    return shape | {"activation": "geglu"} | window(config, every=2)


def _cwm(config: Config, shape: Shape) -> Shape:
    layers = shape["layers"]
    kinds = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(layers)]
    fields = shape | {"bias": config.biases()} | window(config)
    return fields | (layer_mixture(config, layers, kinds, "layer_types") if "window" in fields and not layer_types(config) else {})


def _jais2(config: Config, shape: Shape) -> Shape:
    return shape | {"bias": config.biases(default=True)}


def _nanochat(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of nanochat, none of whose norms has weights; one follows the embedding."""
    return shape | {"qk_norm": "weightless", "embedding_norm": True, "bias": config.attention_bias()}


def _afmoe(config: Config, shape: Shape) -> Shape:
    """Return *shape* with the layers of Trinity: gated attention, four norms, and experts after the first layers."""
    every = config.size("global_attn_every_n_layers", default=4)
    fields = {"qk_norm": "head", "norms_per_layer": 4, "attention_gate": True, **window(config, every)}
    return deepseek_experts(config, shape) | {"first_dense_layers": config.size("num_dense_layers", default=1)} | fields


OF_2025: Final[Mapping[str, Family]] = {
    "afmoe": Family(_afmoe),
    "cwm": Family(_cwm),
    "jais2": Family(_jais2, gated=False, norm="layernorm", activation="relu2"),
    "nanochat": Family(_nanochat, gated=False, norm="nonparametric", activation="relu2"),
    "vaultgemma": Family(_vaultgemma, activation="gelu", tied=True),
}
"""Families by ``model_type``."""
