"""Whole extractions of small nets, against torch running them for real and against formulas worked out by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from sim.extract import extract
from sim.spec.layer import Layer
from sim.spec.model import Model
from tests.extract.conftest import NETS
from tests.extract.readiness import Ready, assert_same_order, listed, watched
from tests.late import torch

pytestmark = pytest.mark.needs("torch")

Net = Callable[[str], str]


def built(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("nets_for_real", NETS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


def ready_for_real(model: Any, *inputs: Any) -> list[Ready]:
    """Return the gradients in the order a backward with real numbers completes them."""
    order = watched(model)
    model.train()(*inputs).sum().backward()
    return order


def named(model: Model) -> dict[str, Layer]:
    return {layer.name: layer for layer in model.layers}


def test_shared_parameters_are_ready_after_their_last_use(net: Net) -> None:
    """Oracle: hooks on the same net run with real numbers. The tied embedding comes last, the layer used twice before it."""
    torch.manual_seed(0)
    order = ready_for_real(built("Shared"), torch.randint(11, (2, 3)))
    table = extract(net("Shared"), ["tokens=3:int64"], "shared")
    assert_same_order(table, order)
    assert order[-1] == ("words", 66) and sum(each.elements for each in order) == table.parameters
    assert named(table)["words"].gradients == (66,)
    assert len(named(table)["twice"].gradients) == 2 and named(table)["twice.2"].gradients == ()


@pytest.mark.parametrize(("name", "shape"), [("convolutions", (3, 16, 16)), ("normed", (3, 8, 8)), ("Attention", (5, 32))])
def test_ready_order_is_that_of_a_real_backward(net: Net, name: str, shape: tuple[int, ...]) -> None:
    order = ready_for_real(built(name), torch.randn(4, *shape))
    assert_same_order(extract(net(name), ["x".join(map(str, shape))], name), order)


def counted(name: str, batch: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the forward and backward FLOP that torch's own counter finds."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model, inputs = built(name).to("meta").train(), torch.empty(batch, *shape)
        with FlopCounterMode(display=False) as forward:
            output = model(inputs)
        with FlopCounterMode(display=False) as backward:
            output.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize(
    ("name", "shape", "backward_too"), [("ungrouped", (3, 16, 16), True), ("convolutions", (3, 16, 16), False), ("normed", (3, 8, 8), True)]
)
def test_flop_are_those_of_torchs_counter(net: Net, name: str, shape: tuple[int, ...], backward_too: bool) -> None:
    """Oracle: FlopCounterMode, independent of ours; its backward counts every group of a grouped convolution in full."""
    forward, backward = counted(name, 1, shape) if name != "normed" else tuple(flop // 2 for flop in counted(name, 2, shape))
    table = extract(net(name), ["x".join(map(str, shape))], name)
    assert sum(layer.forward for layer in table.layers) == forward
    if backward_too:
        assert sum(layer.backward for layer in table.layers) == backward


def test_fused_attention_is_one_kernel_that_keeps_no_scores(net: Net) -> None:
    """Oracle: FlopCounterMode's formula for torch's memory-efficient attention, and the operands' sizes.

    Sequence 5, 4 heads of width 8: query, key, value and output hold 160 elements each; the log-sums are padded to 32 rows.
    """
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    shape = (1, 4, 5, 8)
    layers = extract(net("Attention"), ["5x32"], "attention").layers
    (attention,) = (layer for layer in layers if layer.op == "attention")
    assert (attention.forward_kernels, attention.write) == (1, 640 + 4 * 4 * 32)
    assert attention.forward == sdpa_flop_count(shape, shape, shape)
    assert attention.backward == sdpa_backward_flop_count(shape, shape, shape, shape)
    assert not any(layer.op == "softmax" for layer in layers)


def test_first_layer_computes_no_gradient_of_the_input(net: Net) -> None:
    first, *others = (layer for layer in extract(net("ungrouped"), ["3x16x16"], "net").layers if layer.forward)
    assert first.backward == first.forward
    assert all(layer.backward == 2 * layer.forward for layer in others)


def test_memory_bound_layers_by_hand(net: Net) -> None:
    """One sample of 4 x 8 x 8 = 256 elements (1024 B) through norm, in-place ReLU, 2x2 pooling (64 elements), dropout and linear."""
    layers = extract(net("normed"), ["3x8x8"], "normed").layers
    conv, norm, relu, pool, dropout, linear, loss = layers
    assert [layer.op for layer in layers] == ["conv", "norm", "elementwise", "pool", "elementwise", "gemm", "loss"]
    assert (conv.read, conv.write, conv.backward_traffic) == (768, 1024, 1024 + 768)  # weight gradient only: output gradient and input
    assert (norm.read, norm.write, norm.backward_traffic) == (2048, 1024, 5 * 1024)
    assert (relu.read, relu.write, relu.backward_traffic) == (1024, 1024, 3 * 1024)
    assert (pool.read, pool.write, pool.backward_traffic) == (1024, 256 + 512, 256 + 512 + 2 * 1024)
    assert (dropout.read, dropout.write, dropout.backward_traffic) == (256, 256 + 64, 256 + 64 + 256)
    assert (linear.read, linear.write) == (256, 20)
    assert (norm.forward_kernels, conv.forward_kernels, relu.forward_kernels) == (2, 1, 1)  # the norm's counter is a kernel too
    assert loss.forward == 0


def test_saved_activations_by_hand(net: Net) -> None:
    """Each storage once: the norm keeps its input, the ReLU its output (also the pool's input), the pool its indices, dropout its mask.

    The convolution keeps the model's input, which is not an activation; the linear layer the dropped-out activations.
    """
    layers = {layer.name: layer.saved for layer in extract(net("normed"), ["3x8x8"], "normed").layers}
    assert (layers["0"], layers["1"], layers["2"], layers["3"], layers["4"], layers["6"]) == (0, 1024, 1024, 512, 64, 256)


def test_frozen_parameters_get_no_gradient(net: Net) -> None:
    table = extract(net("Frozen"), ["7"], "frozen")
    assert (table.parameters, listed(table)) == (56 + 24, [("above", 3), ("above", 21)])
    assert named(table)["below"].backward == 0


def test_model_totals(net: Net) -> None:
    """Buffers of batch norm: mean and variance of 4 channels as float32, one 8-byte counter."""
    table = extract(net("normed"), ["3x8x8"], "normed", command="a command")
    assert (table.parameters, table.input, table.buffers) == (108 + 8 + 325, 768, 40)
    assert table.command == "a command"
    assert str(table.source).startswith("traced on the meta device of PyTorch ")


def test_a_model_that_returns_its_loss_is_trained_on_it(net: Net) -> None:
    layers = extract(net("own_loss"), ["5"], "net").layers
    assert [layer.op for layer in layers] == ["gemm", "elementwise"]


def test_a_recurrent_module_is_one_layer_and_the_batch_may_come_second(net: Net) -> None:
    """10 steps, 2 layers of 4 gates x 8 units, from 4 and 8 inputs and 8 hidden units: 2 FLOP for each product."""
    rnn = named(extract(net("lstm"), ["10xBx4"], "net"))["rnn"]
    assert (rnn.op, rnn.forward) == ("rnn", 10 * 2 * 32 * ((4 + 8) + (8 + 8)))


def test_example_inputs_from_a_function(net: Net) -> None:
    written = extract(net("Shared"), [f"@{NETS}:token_batch"], "net")
    assert written == extract(net("Shared"), ["tokens=3:int64"], "net")


def test_extracting_twice_gives_the_same_table(net: Net) -> None:
    assert extract(net("Attention"), ["5x32"], "net") == extract(net("Attention"), ["5x32"], "net")


def test_types_of_gradients_are_those_of_a_real_backward(net: Net) -> None:
    """Oracle: the types of the gradients of the same net run with real numbers; a frozen 16-bit matrix stands last."""
    model = built("Narrow")
    model(torch.zeros(2, 6)).float().sum().backward()
    names = {torch.float32: "fp32", torch.bfloat16: "bf16"}
    expected = sorted((each.numel(), names[each.grad.dtype]) for each in model.parameters() if each.grad is not None)
    layers = named(extract(net("Narrow"), ["6"], "narrow"))
    kinds = {"fp32": 4.0, "bf16": 2.0}
    traced = [pair for layer in layers.values() for pair in zip(layer.gradients, layer.widths(4.0), strict=False)]
    assert sorted(traced) == [(elements, kinds[dtype]) for elements, dtype in expected]
    assert (layers["narrow"].dtypes, layers["wide"].dtypes, layers["frozen"].dtypes) == (("bf16",), (), ("bf16",))
    assert (layers["frozen"].gradients, layers["frozen"].frozen, layers["frozen"].frozen_bytes(4.0)) == ((), (36,), 72.0)


def test_what_no_gradient_reaches_is_unused(net: Net) -> None:
    table = extract(net("partly_used"), ["5"], "net")
    assert (table.parameters, table.unused) == (60, 30)
