"""A decoder's table against the one that `sim extract` makes of the torch model at small sizes: parameters, products, saved bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sim.extract import extract
from sim.spec.decoder import decoder_layers
from sim.spec.layer import Layer
from sim.spec.transformer import Transformer

pytestmark = pytest.mark.needs("torch")

TOKENS = 128
LLAMA = {"layers": 3, "hidden": 256, "heads": 4, "ffn": 704, "vocab": 500}
GPT = {"layers": 3, "hidden": 256, "heads": 4, "vocab": 500, "activation": "gelu", "norm": "layernorm", "positions": "learned"}
GPT |= {"max_seq": TOKENS, "bias": "all", "tied": True, "dropout": 0.1}
CASES: list[tuple[dict[str, Any], str, dict[str, int]]] = [
    (
        LLAMA,
        "workloads/models/sources/llama.py:Llama",
        {"width": 256, "depth": 3, "heads": 4, "inner": 704, "vocabulary": 500, "sequence": 128},
    ),
    (GPT, "workloads/models/sources/gpt.py:Gpt2", {"width": 256, "depth": 3, "heads": 4, "vocabulary": 500, "positions": 128}),
]


def products(layers: tuple[Layer, ...], op: str, field: str) -> float:
    return math.fsum(getattr(layer, field) for layer in layers if layer.op == op)


def test_the_table_is_that_of_the_torch_model() -> None:
    for shape, target, arguments in CASES:
        made = decoder_layers(Transformer.model_validate(shape), TOKENS)
        traced = extract(target, [f"input_ids={TOKENS}:int64"], "small", arguments).layers
        assert sum(sum(layer.gradients) for layer in made) == sum(sum(layer.gradients) for layer in traced)
        for field in ("forward", "backward"):
            assert products(made, "gemm", field) == products(traced, "gemm", field)
            assert 2 * products(made, "attention", field) == products(traced, "attention", field), "torch counts the full square"
        saved = [math.fsum(layer.saved for layer in layers if layer.op in ("gemm", "attention")) for layers in (made, traced)]
        assert saved[0] == pytest.approx(saved[1], rel=0.01)  # the logarithms of sums aside, which stay FP32 in 16 bits
