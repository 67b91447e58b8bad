"""A decoder's table against the one that `sim extract` makes of the torch model at small sizes: parameters, products, saved bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sim.cluster.gpu import layer_time
from sim.extract import extract
from sim.extract.target import load_target
from sim.spec.decoder import decoder_layers
from sim.spec.fields import Precision
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_part
from sim.spec.model import Model
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.transformer import Transformer
from tests.extract.readiness import watched
from tests.late import torch

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


def assert_same_model(made: tuple[Layer, ...], traced: tuple[Layer, ...]) -> None:
    """Assert that a decoder *made* of its shape has what the *traced* torch model has: parameters, FLOP of products, bytes for backward."""
    assert sum(gradients(made)) == sum(gradients(traced))
    for field in ("forward", "backward"):
        assert products(made, "gemm", field) == products(traced, "gemm", field)
        assert 2 * products(made, "attention", field) == products(traced, "attention", field), "torch counts the full square"
    saved = [math.fsum(layer.saved for layer in layers if layer.op in ("gemm", "attention")) for layers in (made, traced)]
    assert saved[0] == pytest.approx(saved[1], rel=0.01)  # the logarithms of sums aside, which stay FP32 in 16 bits


def gradients(layers: tuple[Layer, ...]) -> list[int]:
    """Return the elements of the gradients, in the order of the table."""
    return [elements for layer in layers for elements in layer.gradients]


def test_the_table_is_that_of_the_torch_model() -> None:
    for shape, target, arguments in CASES:
        made = decoder_layers(Transformer.model_validate(shape), TOKENS)
        traced = extract(target, [f"input_ids={TOKENS}:int64"], "small", arguments).layers
        assert_same_model(made, traced)


GPT2_SIZES = {"gpt2": "small", "gpt2-medium": "medium", "gpt2-large": "large", "gpt2-xl": "xl"}


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("gpt2", 1024),
        pytest.param("gpt2", 256, marks=pytest.mark.nightly),
        *(pytest.param(name, 1024, marks=pytest.mark.nightly) for name in list(GPT2_SIZES)[1:]),
    ],
)
def test_gpt2_of_the_catalog_is_the_traced_one(name: str, tokens: int) -> None:
    """At any length; gradients come in the same order, and backward keeps the same bytes, except for masks of dropout.

    These are bytes in any precision, and count as a half of a 16-bit element.
    """
    described = load_part(Model, name)
    assert described.transformer is not None
    made = decoder_layers(described.transformer, tokens)
    traced = extract("workloads/models/sources/gpt.py:gpt2", [f"input_ids={tokens}:int64"], name, {"size": GPT2_SIZES[name]})
    assert_same_model(made, traced.layers)
    assert gradients(made) == gradients(traced.layers)
    assert traced.parameters == described.parameters
    elements = tokens * described.transformer.hidden
    masks = elements * (2 * described.transformer.layers + 1)
    kept = [math.fsum(layer.saved for layer in layers) for layers in (made, traced.layers)]
    assert kept[0] - masks == pytest.approx(kept[1], rel=0.002)  # the loss leaves out the last token


def test_autocast_casts_what_it_casts_in_the_torch_model() -> None:
    """Oracle: casts that `sim extract` counts, product by product: rotated queries and keys too, and gate and up each their input.

    The loss casts logits, which the torch model copies before, without their last token.
    """
    for shape, target, arguments in CASES:
        made = decoder_layers(Transformer.model_validate(shape), TOKENS)
        traced = extract(target, [f"input_ids={TOKENS}:int64"], "small", arguments).layers
        assert {op: products(made, op, "casts") for op in ("gemm", "attention")} == {
            op: products(traced, op, "casts") for op in ("gemm", "attention")
        }
        assert [layer.casts for layer in made if layer.op not in ("gemm", "attention") and layer.casts] == [TOKENS * shape["vocab"]]
        dropped = [layer.read / 4 for layer in traced if layer.name.endswith("dropout")]
        assert [layer.dropped for layer in made if layer.dropped] == dropped


@pytest.mark.parametrize("precision", ["amp_bf16", pytest.param("fp32", marks=pytest.mark.nightly)])
def test_an_eager_step_of_gpt2_takes_what_the_traced_one_takes(precision: Precision) -> None:
    """But for attention, of which the torch model counts the full square, and logits, which it copies without the last token's.

    Its GELU is one kernel. Backward adds up gradients of the stream, which the traced table counts with the norm, in 32 bits. What a
    stack says of operators by the names that a description gives them is left out.
    """
    described = load_part(Model, "gpt2")
    assert described.transformer is not None
    made = decoder_layers(described.transformer.model_copy(update={"composed_gelu": False}), 1024)
    traced = extract("workloads/models/sources/gpt.py:gpt2", ["input_ids=1024:int64"], "gpt2", {"size": "small"}).layers
    gpu = load_hardware("hgx-h100").spec.groups[0].node.gpu
    stacks = [load_part(Stack, name) for name in ("torch-2.x-ddp", "hf-transformers")]
    for stack in (with_fields(stack, operator_traffic={}) for stack in stacks):
        for backward in (False, True):
            times, launches = (
                [
                    math.fsum(
                        layer_time(layer, gpu, precision, stack, 16, backward)._asdict()[field]
                        for layer in layers
                        if layer.op not in ("attention", "loss") and layer.name not in ("clone", "arange")
                    )
                    for layers in (made, traced)
                ]
                for field in ("time", "launches")
            )
            assert times[0] == pytest.approx(times[1], rel=0.06), (stack.name, backward)
            assert launches[0] == pytest.approx(launches[1], rel=0.1), (stack.name, backward)


def test_gradients_of_gpt2_are_ready_as_in_a_real_backward() -> None:
    """Oracle: hooks of torch's own backward of a small GPT-2 with real numbers; the head shares the embedding's table."""
    net = load_target("workloads/models/sources/gpt.py:Gpt2")(width=16, depth=2, heads=2, vocabulary=50, positions=8)
    order = watched(net)
    net(torch.zeros(2, 8, dtype=torch.long)).backward()
    shape = GPT | {"layers": 2, "hidden": 16, "heads": 2, "vocab": 50, "max_seq": 8}
    made = decoder_layers(Transformer.model_validate(shape), 8)
    assert [elements for layer in reversed(made) for elements in layer.gradients] == [each.elements for each in order]
