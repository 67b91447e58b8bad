"""Which layers of a Hugging Face decoder attend to a window of tokens, and which to all? A window, and the period of the others.

Keys are from huggingface/transformers, as in `sim.spec.foreign.hf_families`. A Transformer has every n-th layer attend to all tokens; other
orders are refused or, if all such layers come first, replaced by the closest period, with a note.
"""

from __future__ import annotations

from sim.spec.foreign.hf_keys import ATTENTION, Config, Shape
from sim.spec.yaml import SpecError


def window(config: Config, every: int | None = None) -> Shape:
    """Return the window of attention; with *every*, each layer with that period attends to all tokens."""
    size = config.size("sliding_window")
    return {"window": size} | ({"global_every": every} if every else {}) if size else {}


def used_window(config: Config, layers: int) -> Shape:
    """Return the window of Qwen's classes, which ``use_sliding_window`` turns on: layers from ``max_window_layers`` on have it."""
    return last_layers_window(config, layers, 28) if config.get("use_sliding_window") else {}


def last_layers_window(config: Config, layers: int, usual: int) -> Shape:
    """Return the window of the layers from ``max_window_layers`` on, *usual* if the file does not say it."""
    shape = window(config)
    first = min(config.size("max_window_layers", default=usual) or 0, layers)
    if not shape or layer_types(config):
        return shape
    return shape | layer_mixture(config, layers, ["full_attention"] * first + ["sliding_attention"] * (layers - first), "max_window_layers")


def alternate_window(config: Config, layers: int) -> Shape:
    """Return the window of Qwen2-MoE's class, if it is used: every second layer below ``max_window_layers`` has it, from the first on."""
    shape = window(config) if config.get("use_sliding_window") else {}
    first = config.size("max_window_layers", default=28) or 0
    if not shape or layer_types(config):
        return shape
    kinds = ["full_attention" if layer % 2 or layer >= first else "sliding_attention" for layer in range(layers)]
    return shape | layer_mixture(config, layers, kinds, "max_window_layers")


def global_period(config: Config, default: int) -> int:
    """Return the period of the layers that attend to all tokens. Raise SpecError unless it is 1 or more."""
    every = config.size("sliding_window_pattern", "_sliding_window_pattern", default=default)
    if every is None or every < 1:
        raise SpecError(f"{config.place}: {config.within}sliding_window_pattern {every}: write a whole number, 1 or more")
    return every


def layer_types(config: Config) -> list[str]:
    """Return ``layer_types``, if the file lists kinds of attention for its layers."""
    kinds = config.said.get("layer_types")
    return kinds if isinstance(kinds, list) and kinds and all(isinstance(kind, str) and kind in ATTENTION for kind in kinds) else []


def typed_window(config: Config, shape: Shape) -> Shape:
    """Return which layers have the window of *shape* according to ``layer_types``. Raise SpecError if it is not as long as the model."""
    kinds, layers = layer_types(config), shape["layers"]
    if not kinds:
        return {}
    config.read.add("layer_types")
    if len(kinds) != layers:
        raise SpecError(f"{config.place}: {config.within}layer_types has {len(kinds)} entries, but the model has {layers} layers")
    return layer_mixture(config, layers, kinds, "layer_types") if shape.get("window") else {}


def layer_mixture(config: Config, layers: int, kinds: list[str], key: str) -> Shape:
    """Return the period of layers with full attention among *kinds*, which *key* specifies.

    If they are the first ones, return the closest period; if every n-th one from the first on, that period, and note both. Raise SpecError
    for any other order.
    """
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    if len(full) in (0, layers):
        return {"global_every": 0} | ({"window": 0} if full else {})
    every = full[0] + 1
    if full == [*range(every - 1, layers, every)]:
        return {"global_every": every}
    step = full[1] - full[0] if len(full) > 1 else layers
    if full[0] == 0 and step > 1 and full == [*range(0, layers, step)]:
        fewer = "" if layers % step == 0 else f" (of which there are {layers // step}, not {len(full)}, so it is slightly too fast)"
        config.notes.append(
            f"{config.within}{key}: layers 0, {step}, {2 * step}, ... attend to all tokens; simulated as layers {step - 1}, "
            f"{2 * step - 1}, {3 * step - 1}, ...{fewer}"
        )
        return {"global_every": step}
    if full != [*range(len(full))]:
        raise SpecError(
            f"{config.place}: {config.within}{key}: layers with full attention must be every n-th one, or the first ones; here they are "
            f"{', '.join(map(str, full[:6]))}{', ...' if len(full) > 6 else ''}, counted from 0"
        )
    every = min(range(1, layers + 1), key=lambda period: abs(layers // period - len(full)))
    closest = layers // every
    error = (
        "as many" if closest == len(full) else "more, so attention takes too long" if closest > len(full) else "fewer, so it is too fast"
    )
    config.notes.append(
        f"{config.within}{key}: the first {len(full)} of {layers} layers attend to all tokens; simulated as every layer whose number is a "
        f"multiple of {every} ({closest} layers: {error})"
    )
    return {"global_every": every}
