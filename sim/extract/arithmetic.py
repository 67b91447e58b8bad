"""How many FLOP does an operator without matrix products do? A formula for each, over the elements of its result or of an argument.

Each addition, multiplication, division, comparison, exponential, logarithm, root, tanh and erf counts as one FLOP per element.
Copies, gathers, fills and random numbers count as zero. Each formula is listed next to its operators. Pooling over k elements takes
k - 1 comparisons, or k - 1 additions and a division. A Fourier transform of n points takes 5 n log2 n (Cooley and Tukey, Math. Comput.
1965). Sorting takes log2 n comparisons per element.

Limits: savings of a kernel by fused factors and its work on indices are not counted. These FLOP do not affect times: memory bandwidth
bounds these layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import ceil, log2, prod
from typing import Final

from sim.extract.operators import Operand, OperatorCall, words


def arithmetic(call: OperatorCall) -> int:
    """Return the FLOP of *call*, which is not a matrix product."""
    if call.kind == "view":
        return 0
    name = call.name.rstrip("_")
    if name in _RULES:
        return _RULES[name](call)
    return _of_result(1)(call) if call.kind == "pointwise" and name not in _NONE else 0


FlopRule = Callable[[OperatorCall], int]


def _argument(call: OperatorCall, index: int) -> int:
    """Return the number of elements of the argument at *index*, or 0 if it is not a tensor."""
    argument = call.arguments[index] if index < len(call.arguments) else None
    return argument.elements if isinstance(argument, Operand) else 0


def _of_argument(index: int, each: int) -> FlopRule:
    return lambda call: each * _argument(call, index)


def _of_result(each: int) -> FlopRule:
    return lambda call: each * call.results[0].elements if call.results else 0


def _reduction(call: OperatorCall) -> int:
    """Each operation combines two elements until one is left for each result."""
    return max(0, _argument(call, 0) - (call.results[0].elements if call.results else 0))


def _window(call: OperatorCall, index: int) -> int:
    """Return the number of elements of the window whose edges are the argument at *index*; a single edge applies to all dimensions."""
    edges = call.arguments[index]
    if isinstance(edges, int):
        edges = [edges]
    return int(prod(edges)) if len(edges) > 1 else int(edges[0]) ** (len(call.results[0].shape) - 2)


def _max_pool(call: OperatorCall) -> int:
    return call.results[0].elements * (_window(call, 1) - 1)


def _average_pool(call: OperatorCall) -> int:
    return call.results[0].elements * _window(call, 1)


def _average_pool_backward(call: OperatorCall) -> int:
    return _argument(call, 0) * (_window(call, 2) + 1)


def _sorting(call: OperatorCall) -> int:
    operand = call.arguments[0]
    longest = max(operand.shape, default=1)
    return int(operand.elements * ceil(log2(longest))) if longest > 1 else 0


def _fourier(call: OperatorCall) -> int:
    longer: Operand = max((call.arguments[0], *call.results), key=lambda tensor: int(tensor.elements))
    edges: list[int] = [longer.shape[dimension] for dimension in call.arguments[1]]
    points = prod(edges)
    return int(5 * longer.elements * log2(points)) if points > 1 else 0


def _accumulated(index: int, flag: int) -> FlopRule:
    """Return the rule of a scatter that adds the argument at *index* only if the argument at *flag* is true."""
    return lambda call: _argument(call, index) if flag < len(call.arguments) and call.arguments[flag] is True else 0


def _bag(call: OperatorCall) -> int:
    rows, added = _argument(call, 1), call.results[0]
    return max(0, rows * added.shape[-1] - added.elements)


def _each(rule: FlopRule, names: str) -> Iterator[tuple[str, FlopRule]]:
    return ((name, rule) for name in words(names))


_NONE: Final = frozenset(words("copy _to_copy clone where masked_fill fill zero alias conj bernoulli uniform normal random"))
"""Operators that torch tags as pointwise although they compute nothing."""

_RULES: Final[dict[str, FlopRule]] = dict(
    chain(
        # x': normalized input, s: deviation, g: gradient. Forward: mean 1, squared deviations 3, (x - m) / s * w + b 4
        _each(_of_argument(0, 8), "native_batch_norm _native_batch_norm_legit _batch_norm_with_update native_layer_norm native_group_norm"),
        # RMS norm: squares 2, x / s * w 2
        _each(_of_argument(0, 4), "_native_batch_norm_legit_no_training _fused_rms_norm"),
        # x' 2, sum of g 1, of g x' 2, (g - m1 - x' m2) w/s 4; RMS norm: x' 1, weight 2, g w 1, its sum with x' 2, (g w - x' m) / s 3
        _each(_of_argument(0, 9), "native_batch_norm_backward batch_norm_backward _fused_rms_norm_backward"),
        # x' 2, bias 1, weight 2, g w 1, its sum 1, its sum with x' 2, (g w - m1 - x' m2) / s 4
        _each(_of_argument(0, 13), "native_layer_norm_backward native_group_norm_backward"),
        _each(_max_pool, "max_pool2d_with_indices max_pool3d_with_indices"),
        _each(_average_pool, "avg_pool2d avg_pool3d"),
        _each(_average_pool_backward, "avg_pool2d_backward avg_pool3d_backward"),
        _each(_of_argument(0, 1), "_adaptive_avg_pool2d _adaptive_avg_pool3d mean adaptive_max_pool2d cumsum cumprod"),
        _each(_of_argument(0, 1), "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward"),
        _each(_of_argument(0, 1), "embedding_dense_backward upsample_nearest2d_backward col2im"),
        _each(_of_result(1), "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward"),
        # maximum, difference, exponential, sum, quotient
        _each(_of_result(5), "_softmax _safe_softmax _log_softmax"),
        # y (g - sum of g y); log softmax: sum, exponential, 2
        _each(_of_argument(0, 4), "_softmax_backward_data _log_softmax_backward_data"),
        _each(_reduction, "sum amax amin max min any all prod argmax argmin count_nonzero"),
        _each(_of_argument(0, 2), "linalg_vector_norm norm aminmax"),
        _each(_of_argument(0, 4), "var std var_mean std_mean logsumexp"),
        _each(_bag, "_embedding_bag"),
        _each(_sorting, "sort topk"),
        _each(_fourier, "_fft_r2c _fft_c2c _fft_c2r"),
        _each(_of_argument(3, 1), "scatter_add index_add"),
        _each(_accumulated(2, 3), "index_put _index_put_impl"),
        # losses: l terms and their sum
        _each(_of_argument(1, 1), "nll_loss_forward nll_loss2d_forward"),
        _each(_of_argument(2, 1), "nll_loss_backward nll_loss2d_backward"),
        _each(_of_argument(0, 3), "mse_loss"),  # difference, square, sum
        _each(_of_result(3), "mse_loss_backward"),
        _each(_of_argument(0, 6), "smooth_l1_loss huber_loss"),  # difference, absolute value, comparison, square, factor, sum
        _each(_of_result(4), "smooth_l1_loss_backward huber_loss_backward"),
        _each(_of_argument(0, 8), "binary_cross_entropy"),  # two logarithms, 1 - p, 1 - t, two products, two sums
        _each(_of_result(5), "binary_cross_entropy_backward"),  # g (p - t) / (p (1 - p))
        _each(_of_argument(0, 12), "binary_cross_entropy_with_logits"),  # (1 - t) x, log(1 + exp(-|x|)), max(-x, 0), three sums
        # activations, element by element
        _each(_of_result(1), "relu threshold_backward log_sigmoid_forward"),
        _each(_of_result(2), "hardtanh hardtanh_backward leaky_relu leaky_relu_backward _prelu_kernel native_dropout_backward"),
        _each(_of_result(3), "native_dropout tanh_backward sigmoid_backward addcmul addcdiv lerp _prelu_kernel_backward"),
        _each(_of_result(4), "sigmoid elu elu_backward softplus softplus_backward hardsigmoid hardsigmoid_backward log_sigmoid_backward"),
        _each(_of_result(5), "silu gelu glu glu_backward hardswish hardswish_backward"),  # x sigmoid(x); x / 2 (1 + erf(x / root 2))
        _each(_of_result(6), "mish"),
        _each(_of_result(9), "silu_backward"),  # g s (1 + x (1 - s)) with its sigmoid s
        _each(_of_result(11), "gelu_backward mish_backward"),  # distribution 4, density 4, x times that, sum, g
        # interpolation: a weighted sum of 4 or 16 neighbors
        _each(_of_result(7), "upsample_bilinear2d _upsample_bilinear2d_aa"),
        _each(_of_argument(0, 8), "upsample_bilinear2d_backward"),
        _each(_of_result(31), "upsample_bicubic2d"),
        _each(_of_argument(0, 32), "upsample_bicubic2d_backward"),
    )
)
