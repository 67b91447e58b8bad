"""Blocks of hybrids against the torch model that `sim extract` traces at small sizes: parameters, products, gates, saved bytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sim.extract import extract
from sim.spec.decoder import decoder_layers
from sim.spec.layer import Layer
from sim.spec.transformer import Transformer

pytestmark = pytest.mark.needs("torch")

TOKENS = 128
SIZES: dict[str, Any] = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96, "vocab": 200}
MAMBA = {"heads": 6, "head_dim": 16, "state": 8, "groups": 1, "conv": 4, "norm": False}
LFM2 = SIZES | {"layers": 4, "pattern": "C-*-", "short_conv": 3, "qk_norm": "head", "tied": True, "block_letters": 2}
FALCON_H1 = SIZES | {"layers": 4, "pattern": "P-P-", "mamba": MAMBA, "block_letters": 2}
APERTUS = SIZES | {"layers": 2, "activation": "xielu", "qk_norm": "head"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "LFM2": (LFM2, {"pattern": "C-*-"}),
    "Falcon-H1": (FALCON_H1, {"pattern": "P-P-", "normed": 0, "tied": 0}),
    "Apertus": (APERTUS, {"pattern": "*-*-", "weighted": 1, "tied": 0}),
}


def tables(case: str) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Return the table of a shape and that of its torch model."""
    shape, arguments = CASES[case]
    target = f"{Path(__file__).with_name('mixers.py')}:Decoder"
    traced = extract(target, [f"input_ids={TOKENS}:int64"], "small", arguments).layers
    return decoder_layers(Transformer.model_validate(shape), TOKENS), traced


def total(layers: tuple[Layer, ...], field: str, *ops: str) -> float:
    return math.fsum(getattr(layer, field) for layer in layers if layer.op in ops)


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_those_of_the_torch_model(case: str) -> None:
    """Attention of the torch model counts the full square, and keys once for each head of queries."""
    made, traced = tables(case)
    assert sum(sum(layer.gradients) for layer in made) == sum(sum(layer.gradients) for layer in traced)
    assert sorted(elements for layer in made for elements in layer.gradients if elements < 100) == sorted(
        elements for layer in traced for elements in layer.gradients if elements < 100
    )
    for field in ("forward", "backward", "saved"):
        assert total(made, field, "gemm") == total(traced, field, "gemm")
    for field in ("forward", "backward"):
        assert 2 * total(made, field, "attention") == total(traced, field, "attention")


def test_a_short_convolution_keeps_and_computes_what_it_does_in_torch() -> None:
    """torch pads the sequence by two tokens, whose results it drops."""
    made, traced = tables("LFM2")
    block = tuple(layer for layer in traced if layer.name.startswith("blocks.0.") and layer.op != "gemm")
    own = tuple(layer for layer in made if layer.name.startswith("layers.0.conv.") and layer.op not in ("gemm", "norm"))
    own = tuple(layer for layer in own if not layer.name.endswith("residual"))
    for field in ("arithmetic", "backward_arithmetic"):
        assert total(own, field, "elementwise") == total(block, field, "elementwise")
    assert total(own, "arithmetic", "causal_conv") == pytest.approx(total(block, "forward", "depthwise_conv"), rel=0.02)
    assert total(own, "backward_arithmetic", "causal_conv") == pytest.approx(total(block, "backward", "depthwise_conv"), rel=0.02)
    assert math.fsum(layer.saved for layer in own) == pytest.approx(math.fsum(layer.saved for layer in block), rel=0.01)


def test_xielu_computes_what_it_does_in_torch() -> None:
    made, traced = tables("Apertus")
    own, other = (
        next(layer for layer in layers if layer.name == name)
        for layers, name in ((made, "layers.0.feed.activation"), (traced, "blocks.1.gate"))
    )
    assert (own.gradients, own.arithmetic, own.backward_arithmetic) == (other.gradients, other.arithmetic, other.backward_arithmetic)


def test_attention_beside_mamba_reads_one_norm() -> None:
    """The projections of both save their input once, and the sum has three terms."""
    made, _ = tables("Falcon-H1")
    block = [layer for layer in made if layer.name.startswith("layers.0.") and "feed" not in layer.name]
    assert [layer.op for layer in block].count("norm") == 2, "one before attention and Mamba-2, one before the feed-forward block"
    saved = {layer.name.removeprefix("layers.0."): layer.saved for layer in block}
    assert (saved["attention.qkv"], saved["mamba.input"]) == (4 * TOKENS * 64, 0)
    residual = next(layer for layer in block if layer.name.endswith("residual"))
    assert residual.read == 3 * residual.write
