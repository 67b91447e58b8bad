"""Costs of single operators against formulas worked out by hand; no torch needed."""

from __future__ import annotations

import pytest

from sim.extract.operators import Operand, OperatorCall, UnknownOperator, attention_flop, convolution_flop, cost


def floats(*shape: int) -> Operand:
    elements = 1
    for size in shape:
        elements *= size
    return Operand(shape, 4 * elements)


X = floats(2, 8, 6, 6)  # 576 elements, 2304 bytes
Y = floats(2, 16, 6, 6)


def convolution(weight: Operand, result: Operand, bias: Operand | None = None, groups: int = 1) -> OperatorCall:
    return OperatorCall("convolution", [X, weight, bias, [1, 1], [1, 1], [1, 1], False, [0, 0], groups], [result])


def test_convolution_multiplies_each_weight_once_per_position() -> None:
    """Hand count: 72 output positions x 16 x 8 x 3 x 3 weights, 2 FLOP each."""
    operator_cost = cost(convolution(floats(16, 8, 3, 3), Y))
    assert (operator_cost.op, operator_cost.flop) == ("conv", 2 * 72 * 16 * 8 * 9)
    assert (operator_cost.read, operator_cost.write, operator_cost.kernels) == (2304 + 4 * 1152, 4608, 1)
    assert (operator_cost.kernel_size, operator_cost.stride, operator_cost.channels) == (3, 1, (8, 16))


def test_bias_of_a_convolution_is_a_second_pass_over_the_output() -> None:
    bare, biased = cost(convolution(floats(16, 8, 1, 1), Y)), cost(convolution(floats(16, 8, 1, 1), Y, floats(16)))
    assert biased.kernels == bare.kernels + 1
    assert (biased.read - bare.read, biased.write - bare.write) == (4608 + 64, 4608)


def test_depthwise_convolution_is_a_class_of_its_own() -> None:
    """Each of 8 channels has its own 3x3 window: 72 positions x 8 x 9 products."""
    operator_cost = cost(convolution(floats(8, 1, 3, 3), floats(2, 8, 6, 6), groups=8))
    assert (operator_cost.op, operator_cost.flop) == ("depthwise_conv", 2 * 72 * 8 * 9)
    grouped = cost(convolution(floats(16, 4, 3, 3), Y, groups=2))
    assert (grouped.op, grouped.flop) == ("conv", 2 * 72 * 16 * 4 * 9)


@pytest.mark.parametrize(("mask", "products"), [((True, True, True), 2), ((False, True, True), 1), ((True, True, False), 2)])
def test_backward_of_a_convolution_is_one_product_per_wanted_gradient(mask: tuple[bool, bool, bool], products: int) -> None:
    """The first layer needs no gradient of its input, so it has one product, not two."""
    weight = floats(16, 8, 3, 3)
    call = OperatorCall(
        "convolution_backward", [Y, X, weight, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask], [X, weight, floats(16)]
    )
    operator_cost = cost(call)
    assert operator_cost.flop == products * 2 * 72 * weight.elements
    assert operator_cost.kernels == sum(mask)


def test_matrix_products() -> None:
    """mm of 3x4 by 4x5: 60 products; a batch of two of them counts as attention, whose operands are both activations."""
    assert cost(OperatorCall("mm", [floats(3, 4), floats(4, 5)], [floats(3, 5)])).flop == 120
    added = cost(OperatorCall("addmm", [floats(5), floats(3, 4), floats(4, 5)], [floats(3, 5)]))
    assert (added.op, added.flop, added.channels) == ("gemm", 120, (4, 5))
    batched = cost(OperatorCall("bmm", [floats(2, 3, 4), floats(2, 4, 5)], [floats(2, 3, 5)]))
    assert (batched.op, batched.flop) == ("attention", 240)
    assert cost(OperatorCall("mv", [floats(3, 4), floats(4)], [floats(3)])).flop == 24


def test_attention_flop() -> None:
    """Scores and weighted values: 2 x (4 x 5 x 8) products for each of 2 x 3 heads; backward does five such products."""
    query, key, value = floats(2, 3, 4, 8), floats(2, 3, 5, 8), floats(2, 3, 5, 8)
    assert attention_flop(query, key, value) == 2 * 6 * (2 * 4 * 5 * 8)
    assert attention_flop(query, key, value, (3, 2)) == 5 * 2 * 6 * (4 * 5 * 8)
    assert convolution_flop(Y, floats(16, 8, 3, 3)) == 2 * 72 * 1152


@pytest.mark.parametrize(
    ("name", "arguments", "results", "read", "write"),
    [
        # batch norm: statistics, then normalization; backward: reductions, then the elementwise pass, each over gradient and input
        ("native_batch_norm", [X, floats(8), floats(8), floats(8), floats(8)], [X, floats(8), floats(8)], 2 * 2304 + 128, 2304 + 64),
        ("native_batch_norm_backward", [X, X, floats(8)], [X, floats(8), floats(8)], 4 * 2304 + 32, 2304 + 64),
        ("relu_", [X], [X], 2304, 2304),
        ("threshold_backward", [X, X, 0], [X], 2 * 2304, 2304),
        ("add", [X, X], [X], 2 * 2304, 2304),
        # 3 x 3 outputs of 8 channels; indices are 8-byte integers
        ("max_pool2d_with_indices", [X], [floats(2, 8, 3, 3), Operand((2, 8, 3, 3), 8 * 144)], 2304, 576 + 1152),
        # gradient and indices in; zeros, then the scattered gradient out
        ("max_pool2d_with_indices_backward", [floats(2, 8, 3, 3), X, Operand((2, 8, 3, 3), 1152)], [X], 576 + 1152, 2 * 2304),
        ("_adaptive_avg_pool2d_backward", [floats(2, 8, 1, 1), X], [X], 64, 2 * 2304),
        # a mask of one byte an element
        ("native_dropout", [X, 0.5, True], [X, Operand(X.shape, 576)], 2304, 2304 + 576),
        # rows looked up, not the table
        ("embedding", [floats(1000, 6), Operand((2, 3), 48)], [floats(2, 3, 6)], 144 + 48, 144),
        ("_softmax", [X, 1, False], [X], 2304, 2304),
        ("cat", [[X, X]], [floats(2, 16, 6, 6)], 2 * 2304, 2 * 2304),
        ("copy_", [X, X], [X], 2304, 2304),
        ("zero_", [X], [X], 0, 2304),
        ("select_backward", [floats(2, 8, 6), [2, 8, 6, 6], 3, 0], [X], 384, 2304 + 384),
    ],
)
def test_bytes_of_operators_bound_by_memory(name: str, arguments: list[object], results: list[Operand], read: int, write: int) -> None:
    operator_cost = cost(OperatorCall(name, arguments, results, "pointwise" if name in ("relu_", "threshold_backward", "add") else "other"))
    assert (operator_cost.flop, operator_cost.read, operator_cost.write) == (0, read, write)


def test_views_are_free_and_unknown_operators_are_refused() -> None:
    assert cost(OperatorCall("transpose", [X], [X], "view")).kernels == 0
    assert cost(OperatorCall("empty_like", [X], [X])).write == 0
    with pytest.raises(UnknownOperator, match="linalg_qr"):
        cost(OperatorCall("linalg_qr", [X], [X, X]))
