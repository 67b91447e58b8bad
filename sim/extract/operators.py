"""What does one aten operator cost? FLOP, bytes read and written, kernels and operator class, derived only from its shapes.

FLOP are 2 per multiply-accumulate and are counted only for convolutions, matrix products and attention, as in torch's FlopCounterMode;
all other operators are memory-bound. Bytes are the bytes that the operator's CUDA kernels must move: each operand once, unless a kernel
reads it twice (batch norm: statistics, then normalization) or not at all (the backward of average pooling uses its input only for
the shape). Floating-point elements count as 4 bytes whatever their type, others with their own size. Kernel counts follow
pytorch/pytorch aten/src/ATen/native/cuda. Limits: caches are not modeled; algorithms that need several kernels (Winograd with
separate transforms, FFT) count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal, NamedTuple

from sim.spec.fields import OperatorClass
from sim.spec.layer import Attention

FLOAT_BYTES: Final = 4


class UnknownOperator(ValueError):
    """Raised for an aten operator without a cost rule."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor's shape and the bytes that it holds; an expanded tensor holds only the bytes of the original."""

    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """Return the number of elements, repeated ones counted each time."""
        return prod(self.shape)


class OperatorCost(NamedTuple):
    """The cost of one operator call. *op* is None for a mere view; *kernel_size* to *channels* describe the product."""

    op: OperatorClass | None
    flop: int = 0
    read: int = 0
    write: int = 0
    kernels: int = 0
    kernel_size: int = 0
    stride: int = 1
    channels: tuple[int, ...] = ()
    attention: Attention | None = None


class OperatorCall(NamedTuple):
    """One operator call: schema name, arguments with tensors as operands, tensor results."""

    name: str
    arguments: Sequence[Any]
    results: Sequence[Operand]
    kind: Literal["view", "pointwise", "other"] = "other"
    """view: by its schema, a result aliases an argument unchanged; pointwise: torch has tagged it as pointwise."""


def cost(call: OperatorCall) -> OperatorCost:
    """Return the cost of *call*; raise UnknownOperator if no rule covers it."""
    if call.kind == "view" or call.name in _FREE or call.name.startswith("profiler::"):
        return OperatorCost(None)
    if call.name in _PRODUCTS:
        return _PRODUCTS[call.name](call)
    op = _CLASSES.get(call.name, "elementwise")
    if op == "elementwise" and call.kind != "pointwise" and call.name.rstrip("_") not in _MEMORY_ONLY:
        raise UnknownOperator(call.name)
    read, write = _traffic(call)
    return OperatorCost(op, 0, read, write, _KERNELS.get(call.name, 1))


# --- operator tables ---------------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Return the words of *text*, so that long lists of operators can be written as prose."""
    return text.split()


_FREE: Final = frozenset(
    words(
        "empty empty_like empty_strided new_empty new_empty_strided empty_permuted _unsafe_view _reshape_alias lift_fresh lift "
        "unsafe_split unsafe_split_with_sizes unsafe_chunk resize_ set_ as_strided_ squeeze_ "
        "unsqueeze_ transpose_ t_ detach_ _assert_async is_same_size sym_size _sparse_coo_tensor_with_dims_and_tensors _indices _values"
    )
)
"""Operators that allocate or alias memory without a kernel."""

_CLASSES: Final[dict[str, OperatorClass]] = {
    **dict.fromkeys(
        words(
            "native_batch_norm native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training "
            "_batch_norm_with_update batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm "
            "native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward"
        ),
        "norm",
    ),
    **dict.fromkeys(
        words(
            "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward "
            "avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
            "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward"
        ),
        "pool",
    ),
    **dict.fromkeys(words("_softmax _softmax_backward_data _safe_softmax"), "softmax"),
    **dict.fromkeys(
        words("embedding embedding_dense_backward _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward"), "embedding"
    ),
    **dict.fromkeys(
        words(
            "_log_softmax _log_softmax_backward_data nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
            "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy "
            "binary_cross_entropy_backward binary_cross_entropy_with_logits"
        ),
        "loss",
    ),
}

_MEMORY_ONLY: Final = frozenset(
    words(
        "sum mean amax amin max min var var_mean std std_mean prod cumsum cumprod argmax argmin any all count_nonzero aminmax "
        "linalg_vector_norm norm logsumexp floor_divide histc _fft_r2c _fft_c2c _fft_c2r "
        "cat stack clone copy _to_copy native_dropout native_dropout_backward masked_fill where "
        "gather index_select index index_put _index_put_impl scatter scatter_add index_add index_copy slice_backward "
        "select_backward slice_scatter select_scatter zeros ones full arange linspace scalar_tensor zeros_like ones_like "
        "full_like new_zeros new_ones new_full rand randn randint randperm rand_like randn_like bernoulli uniform normal random "
        "fill zero tril triu roll flip repeat constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad2d_backward "
        "replication_pad2d replication_pad2d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
        "upsample_bilinear2d_backward _upsample_bilinear2d_aa upsample_bicubic2d upsample_bicubic2d_backward unfold_backward "
        "diagonal_backward im2col col2im pixel_shuffle pixel_unshuffle glu glu_backward _prelu_kernel _prelu_kernel_backward gelu "
        "gelu_backward silu hardswish hardsigmoid hardtanh elu leaky_relu mish softplus silu_backward mish_backward "
        "threshold_backward hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward elu_backward "
        "tanh_backward sigmoid_backward log_sigmoid_forward log_sigmoid_backward softplus_backward topk sort bucketize "
        "tril_indices eye one_hot expand_copy _weight_norm_interface _weight_norm_interface_backward polar view_as_complex_copy"
    )
)
"""Reductions, copies, fills and activations that torch does not tag as pointwise; a trailing underscore (in place) is ignored."""

_KERNELS: Final[dict[str, int]] = {
    "native_layer_norm_backward": 2,  # layer_norm_kernel.cu: one for the input, one for weight and bias
    "native_group_norm_backward": 2,
    "max_pool2d_with_indices_backward": 2,  # DilatedMaxPool2d.cu: zeros, then the scatter
    "_adaptive_avg_pool2d_backward": 2,
    "select_backward": 2,  # zeros, then a copy
    "slice_backward": 2,
    "nll_loss_backward": 2,
    "embedding_dense_backward": 6,  # estimate (Embedding.cu above 3072 indices: zeros, a radix sort of several kernels, the sum)
    "topk": 3,  # estimate (radix select, then a sort)
    "sort": 4,  # estimate (radix sort)
}

_PASSES: Final[dict[str, dict[int, int]]] = {
    # position of the argument: how often its bytes are read; 1 if not listed
    "native_batch_norm": {0: 2},  # Normalization.cuh: statistics, then transform
    "_native_batch_norm_legit": {0: 2},
    "_batch_norm_with_update": {0: 2},
    "native_batch_norm_backward": {0: 2, 1: 2},  # reduce of gradient and input, then the elementwise pass
    "batch_norm_backward": {0: 2, 1: 2},
    "native_layer_norm_backward": {0: 2, 1: 2},  # one pass for the gradient of the input, one for weight and bias
    "_fused_rms_norm_backward": {0: 2, 1: 2},
    "native_group_norm": {0: 2},  # group_norm_kernel.cu: row moments, then the affine pass
    "native_group_norm_backward": {0: 2, 1: 2},
    "max_pool2d_with_indices_backward": {1: 0},  # the input is used only for its shape
    "max_pool3d_with_indices_backward": {1: 0},
    "avg_pool2d_backward": {1: 0},
    "avg_pool3d_backward": {1: 0},
    "_adaptive_avg_pool2d_backward": {1: 0},
    "_adaptive_avg_pool3d_backward": {1: 0},
    "nll_loss_forward": {0: 0},  # one element per row
    "nll_loss_backward": {0: 0, 1: 0},
    "nll_loss2d_forward": {0: 0},
    "nll_loss2d_backward": {0: 0, 1: 0},
    "zero_": {0: 0},
    "fill_": {0: 0},
    "copy_": {0: 0},
    "bernoulli_": {0: 0},
    "uniform_": {0: 0},
    "normal_": {0: 0},
    "random_": {0: 0},
    "zeros_like": {0: 0},
    "ones_like": {0: 0},
    "full_like": {0: 0},
    "rand_like": {0: 0},
    "randn_like": {0: 0},
    "new_zeros": {0: 0},
    "new_ones": {0: 0},
    "new_full": {0: 0},
}

_GATHERS: Final = frozenset({"embedding", "gather", "index_select", "index", "_embedding_bag"})
"""Operators that read only the returned elements of their first argument."""
_SCATTERS: Final = frozenset({"index_put_", "_index_put_impl_", "scatter_", "scatter_add_", "index_add_", "index_copy_"})
"""Operators that write only the elements of their other arguments into their first argument."""
_FILL_FIRST: Final = frozenset({"max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "_adaptive_avg_pool2d_backward"})
"""Operators that write their result twice: first zeros, then sums."""


def _traffic(call: OperatorCall) -> tuple[int, int]:
    """Return the bytes read and written by a memory-bound operator."""
    passes = _PASSES.get(call.name, {})
    reads = [(index, operand.nbytes * passes.get(index, 1)) for index, operand in _operands(call.arguments)]
    written = sum(operand.nbytes for operand in call.results)
    if call.name in _SCATTERS:
        updates = sum(nbytes for index, nbytes in reads if index > 0)
        return updates, updates
    if call.name in _GATHERS:
        return written + sum(nbytes for index, nbytes in reads if index == 1), written
    read = sum(nbytes for _, nbytes in reads)
    if call.name in ("select_backward", "slice_backward"):
        return read, written + read  # zeros everywhere, then the slice
    return read, written * (2 if call.name in _FILL_FIRST else 1)


def _operands(arguments: Sequence[Any]) -> Iterator[tuple[int, Operand]]:
    for index, argument in enumerate(arguments):
        if isinstance(argument, Operand):
            yield index, argument
        elif isinstance(argument, list | tuple):
            yield from ((index, operand) for operand in argument if isinstance(operand, Operand))


# --- products: the operators with FLOP -----------------------------------------------------------------------------------


def convolution_flop(outside: Operand, weight: Operand) -> int:
    """Return the FLOP, 2 for each weight element and position; *outside* is the output (the input of a transposed convolution)."""
    return 2 * outside.shape[0] * prod(outside.shape[2:]) * weight.elements


def attention_flop(query: Operand, key: Operand, value: Operand, products: tuple[int, int] = (1, 1)) -> int:
    """Return the FLOP of attention; *products*: number of queries-by-keys matrix products with the query's and with the value's width."""
    *batch, rows, width = query.shape
    per_element = products[0] * width + products[1] * value.shape[-1]
    return 2 * prod(batch) * rows * key.shape[-2] * per_element


def _convolution(call: OperatorCall) -> OperatorCost:
    inputs, weight, bias, stride, *_ = call.arguments
    result = call.results[0]
    transposed, groups = bool(call.arguments[6]), int(call.arguments[8])
    read, write, kernels = inputs.nbytes + weight.nbytes, result.nbytes, 1
    if bias is not None:  # Convolution.cpp adds the bias after cuDNN, in place
        read, write, kernels = read + result.nbytes + bias.nbytes, write + result.nbytes, 2
    flop = convolution_flop(inputs if transposed else result, weight)
    return OperatorCost(_convolution_class(weight, groups, transposed), flop, read, write, kernels, *_window(weight, stride))


def _convolution_backward(call: OperatorCall) -> OperatorCost:
    gradient, inputs, weight, _, stride = call.arguments[:5]
    transposed, groups, mask = bool(call.arguments[7]), int(call.arguments[9]), call.arguments[10]
    product_flop = convolution_flop(inputs if transposed else gradient, weight)
    reads = (gradient.nbytes + weight.nbytes, gradient.nbytes + inputs.nbytes, gradient.nbytes)
    read = sum(nbytes for nbytes, wanted in zip(reads, mask, strict=True) if wanted)
    write = sum(operand.nbytes for operand in call.results)
    flop = product_flop * (bool(mask[0]) + bool(mask[1]))
    return OperatorCost(_convolution_class(weight, groups, transposed), flop, read, write, sum(map(bool, mask)), *_window(weight, stride))


def _convolution_class(weight: Operand, groups: int, transposed: bool) -> OperatorClass:
    return "depthwise_conv" if groups > 1 and not transposed and weight.shape[1] == 1 else "conv"


def _window(weight: Operand, stride: Sequence[int]) -> tuple[int, int, tuple[int, ...]]:
    return max(weight.shape[2:]), max(stride), (weight.shape[1], weight.shape[0])


def _product(left: int, right: int) -> Callable[[OperatorCall], OperatorCost]:
    """Return the rule of a matrix product of the arguments at *left* and *right*."""

    def rule(call: OperatorCall) -> OperatorCost:
        first, second = call.arguments[left], call.arguments[right]
        columns = second.shape[-1] if len(second.shape) > 1 else 1
        inner = first.shape[-1]
        read, write = _traffic(call)
        op: OperatorClass = "attention" if len(first.shape) == 3 else "gemm"
        return OperatorCost(op, 2 * first.elements * columns, read, write, 1, channels=(inner, columns))

    return rule


def _attention(masked: bool) -> Callable[[OperatorCall], OperatorCost]:
    """Return the rule of fused attention; *masked*: for the variant whose fourth argument is a mask (flash attention has none)."""

    def rule(call: OperatorCall) -> OperatorCost:
        query, key, value = call.arguments[:3]
        read, write = _traffic(call)
        plain = len(query.shape) == 4 and not (masked and call.arguments[3] is not None)
        shape = _attention_shape(query, key, value, bool(call.arguments[6 if masked else 4])) if plain else None
        return OperatorCost("attention", attention_flop(query, key, value), read, write, 1, attention=shape)

    return rule


def _attention_shape(query: Operand, key: Operand, value: Operand, causal: bool) -> Attention:
    """Return the shape of attention over operands of shape (batch, heads, tokens, size)."""
    heads, queries, size = query.shape[1:]
    return Attention(
        heads=heads,
        kv_heads=key.shape[1],
        head_dim=size,
        value_dim=None if value.shape[-1] == size else value.shape[-1],
        queries=queries,
        keys=key.shape[2],
        causal=causal,
    )


def _attention_backward(call: OperatorCall) -> OperatorCost:
    """Recompute the scores, then form the gradients of value, scores, query and key: 3 products of the key's width, 2 of the value's."""
    query, key, value = call.arguments[1:4]
    read, write = _traffic(call)
    return OperatorCost("attention", attention_flop(query, key, value, (3, 2)), read, write, 2)


_PRODUCTS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mm": _product(0, 1),
    "addmm": _product(1, 2),
    "bmm": _product(0, 1),
    "baddbmm": _product(1, 2),
    "mv": _product(0, 1),
    "addmv": _product(1, 2),
    "dot": _product(0, 1),
    "vdot": _product(0, 1),
    "_grouped_mm": _product(0, 1),
    "_scaled_dot_product_efficient_attention": _attention(masked=True),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention": _attention(masked=False),
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
}
