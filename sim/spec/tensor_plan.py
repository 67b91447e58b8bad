"""How do tensor ranks split the layers of a traced table, if the user specifies it for some modules in torch's terms?

A plan maps patterns of module paths to split styles, like torch's ``parallelize_module`` and transformers' ``tp_plan``. Between a
``colwise`` and the next ``rowwise`` product, layers without weights work on their share of heads or columns. Other layers that no pattern
matches are replicated. If the plan has ``sequence`` layers, the stream is split by tokens from the first ``rowwise``, ``vocabulary`` or
``sequence`` layer on.
Limits: consecutive ``colwise`` products read one input, which is gathered once (torch: ``PrepareModuleInput`` around them). Everything
else is complete or split by tokens, so layers with weights on split tokens must be in the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from sim.spec.layer import Layer, TensorShare
from sim.spec.module_paths import list_modules, matches, paths

PlanWord = Literal["colwise", "rowwise", "vocabulary", "per_head", "sequence", "replicated"]
"""A tensor share that a plan can assign; ``rowwise`` of an embedding means ``vocabulary``, as in torch."""

_FLOAT: Final = 4.0
"""Bytes of an element in a layer table."""


def with_tensor_plan(layers: Sequence[Layer], plan: Mapping[str, PlanWord]) -> tuple[Layer, ...]:
    """Return *layers* with the shares that *plan* assigns to them.

    Raise ValueError for a pattern that matches nothing, and for a share that is impossible for a layer or its position.
    """
    _check_patterns(layers, plan)
    split_tokens = "sequence" in plan.values()
    stream: TensorShare = "replicated"  # share of layers outside of split products
    columns = 0  # of the last colwise product while activations are split
    planned_layers = []
    for layer in layers:
        word = _word(layer, plan)
        if word == "" and columns:
            word = _share_inside(layer)
        elif word in ("", "replicated"):
            word = _share_outside(layer, stream)
        elif columns and word in ("vocabulary", "sequence"):
            raise ValueError(f"{layer.name} ({word}) is between a colwise and a rowwise product; use {word} only outside of them")
        planned_layers.append(layer.model_copy(update={"share": word} | _tokens(layer, columns)))
        if word == "colwise":
            columns = layer.channels[1]
        elif word in ("rowwise", "vocabulary", "sequence"):
            columns, stream = 0, "sequence" if split_tokens else "replicated"
        elif layer.op == "loss":
            columns = 0
    if columns:
        raise ValueError(
            "the last colwise product is followed by no rowwise product and no loss; write rowwise for the product that ends the split"
        )
    return tuple(planned_layers)


def _check_patterns(layers: Iterable[Layer], plan: Mapping[str, PlanWord]) -> None:
    for pattern in plan:
        if not any(matches(pattern, _path(layer)) for layer in layers):
            modules = list(dict.fromkeys(_path(layer) for layer in layers if _has_weights(layer)))
            raise ValueError(f"no layer matches {pattern}; modules with weights are {list_modules(modules)}")


def _path(layer: Layer) -> str:
    return (paths(layer.name) or (layer.name,))[-1]


def _has_weights(layer: Layer) -> bool:
    return bool(layer.gradients or layer.frozen or layer.shares)


def _word(layer: Layer, plan: Mapping[str, PlanWord]) -> TensorShare:
    """Return the share of the first pattern that matches *layer*, or an empty text; raise ValueError if the layer cannot be split so."""
    word: TensorShare = next((word for pattern, word in plan.items() if matches(pattern, _path(layer))), "")
    if layer.op == "embedding" and word == "rowwise":
        word = "vocabulary"
    if word in ("colwise", "rowwise") and (layer.op != "gemm" or len(layer.channels) != 2):
        raise ValueError(
            f"{layer.name} ({layer.op}) is not a matrix product with known input and output channels; {word} applies only to these"
        )
    if word == "vocabulary" and not layer.rows:
        raise ValueError(f"{layer.name} ({layer.op}) has no table with known rows; vocabulary applies only to embeddings with one")
    return word


def _share_inside(layer: Layer) -> TensorShare:
    if _has_weights(layer) or layer.op in ("gemm", "conv", "embedding"):
        raise ValueError(
            f"{layer.name} ({layer.op}) is between a colwise and a rowwise product and has weights; write rowwise for the product that "
            "ends the split, and per_head for weights that serve all heads"
        )
    return "heads"


def _share_outside(layer: Layer, stream: TensorShare) -> TensorShare:
    if stream == "sequence" and _has_weights(layer):
        raise ValueError(
            f"{layer.name} ({layer.op}) has weights and receives tokens split over ranks, because the plan has sequence layers; write "
            "sequence for a norm, colwise for a product, or leave all sequence layers out"
        )
    return stream


def _tokens(layer: Layer, columns: int) -> dict[str, int]:
    """Return the tokens of a loss over split *columns*, for which ranks exchange sums."""
    return {"tokens": round(layer.read / (_FLOAT * columns))} if layer.op == "loss" and columns else {}
