"""How long does a GPU take for an operator, or for a memory pass? The roofline model as pure functions.

A layer takes ``max(FLOP / (peak * e_op(time of one kernel at peak)), bytes / (memory bandwidth * e_mem))`` plus the minimum time of
its kernels (Williams, Waterman and Patterson, CACM 2009, with measured efficiencies), plus passes that only the software stack needs.
Tensor cores need channels last: with channels first, cuDNN transposes the inputs and outputs of convolutions (nchwToNhwcKernel), and
TensorFlow those of BatchNorm unless it uses cuDNN's persistent kernels. Autocast converts weights and gradients between 16 and 32 bits.
Tensor cores need multiples of 8 channels (NVIDIA, Deep Learning Performance Guide): cuDNN pads convolutions; before cuBLAS 11, other
matrix products run on vector units unless the software pads them. If a layer specifies its shape and the GPU describes kernels of known
shape, `sim.cluster.kernels` is used instead.
Limits: kernels of one layer run sequentially; only collectives overlap with compute, and slow it by the stack's ``overlap_slowdown``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from sim.cluster.kernels import ProductShape, attention_rate, attention_time, elementwise_time, kernels_of, product_time
from sim.cluster.quantizing import quantizing_bytes, recipe_of
from sim.spec.composed import composed_bytes, composed_elements, composed_kernels
from sim.spec.decoder import attended_pairs
from sim.spec.energy import KernelMix
from sim.spec.fields import SCANS, Curve, Fp8Recipe, OperatorClass, Peak, Precision, curve_value
from sim.spec.hardware import Gpu
from sim.spec.layer import Attention, Layer
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.stack import Exchange, Stack, StackKernels, UpdateWork

_LIKE: dict[Peak, Peak] = {"tf32": "fp16", "bf16": "fp16"}
"""The peak whose efficiency curve is used for a peak without one of its own: the same tensor cores, at another rate."""
PRODUCTS: frozenset[OperatorClass] = frozenset({"conv", "gemm", "attention", "rnn"})
"""Classes whose weights autocast converts."""
FUSIBLE: frozenset[OperatorClass] = frozenset({"elementwise", "norm", "softmax", "pool", "loss"})
"""Classes that a compiler or hand-written kernels fuse with their neighbors."""
ALIGNMENT = 8
"""Tensor cores process channels in multiples of this in 16 bits (NVIDIA, Deep Learning Performance Guide)."""
_SEPARATE_PRODUCTS = {True: (1.31, 1.06), False: (1.63, 1.49)}
"""Seconds of attention's products in separate kernels, relative to `product_time`: of scores and of results, by whether heads are a
multiple of `ALIGNMENT` elements. Medians of heads of 128 to 170 elements on an A100, forward (EleutherAI/cookbook @27dff48d sizing/results/
transformer_data/h_sweep.out); that backward and other GPUs have the same is an estimate."""
LIBRARY_LAUNCH = 0.1
"""Host time of a kernel that cuDNN launches per time step of a recurrent layer, relative to an operator: estimate (2.5 to 5 us from C)."""
NATIVE_BATCH_NORM = 1.75
"""Time of torch's native batch norm, the only one for BF16 (aten/src/ATen/native/Normalization.cpp), relative to moving the same number
of elements in 32 bits: fitted to ResNet-50 at batch 128 on an H100 in records/blind. On an H200, where memory bandwidth does not limit
this kernel, it takes a fifth longer than that."""
_ELEMENT = 4.0
"""Bytes of an element in the layer table."""
_CAST_BYTES = 4.0 + 2.0
"""Bytes moved for an element that is read in 32 bits and written in 16, or the reverse."""
_MATRIX_PRODUCTS: frozenset[OperatorClass] = frozenset({"gemm", "attention"})
_BY_ELEMENT: frozenset[OperatorClass] = frozenset({"norm", "pool"})
_FEW_BITS: frozenset[Peak] = frozenset({"fp8", "nvfp4"})
"""Units whose operands are quantized to fewer bits than all other tensors."""
_FULL_PRECISION_OPS = frozenset({"softmax", "loss"})  # kept in FP32 by autocast's and apex O1's lists


class KernelWork(NamedTuple):
    """GPU time in seconds, and the number of launches by the host."""

    time: float
    launches: float


def element_bytes(op: str, precision: Precision) -> float:
    """Return the bytes of one activation element of operator class *op*."""
    return 4.0 if op in _FULL_PRECISION_OPS else PRECISION_TRAITS[precision].activation


def peaks_for(op: str, precision: Precision, stack_kernels: StackKernels) -> tuple[Peak, ...]:
    """Return the peaks that an operator may use, best first; if the GPU lacks the units or kernels for one, the next one is used."""
    if precision == "fp32":
        return (stack_kernels.fp32_convolution if op == "conv" else stack_kernels.fp32_matmul, "fp32")
    return PRECISION_TRAITS[precision].units


class LayerWork(NamedTuple):
    """The work of one pass of a layer: seconds of products, bytes moved meanwhile, bytes of layout conversions and casts, kernels."""

    products: float
    least_products: float
    """Lower bound of ``products`` in seconds at the peak that the board allows, whatever other factors apply."""
    peak: Peak
    moved_bytes: float
    """Bytes moved while products compute."""
    converted_bytes: float
    """Bytes of passes before and after the products, including passes over gradients as they become ready."""
    kernels: float
    launches: float
    """Host time of the kernels, in launches of one operator each."""
    from_shape: bool
    """Whether ``products`` is computed from the shape of the kernels, so that factors of whole networks do not apply to it."""


def layer_work(layer: Layer, gpu: Gpu, precision: Precision, stack: Stack, batch: int, backward: bool = False) -> LayerWork:
    """Return the work of one layer for a batch (samples)."""
    flop, traffic, kernels = _described_work(layer, stack.kernels, backward)
    composed = composed_elements(layer, stack.kernels) if kernels else 0
    if composed:
        kernels, traffic = composed_kernels(layer, precision, backward), 0.0

    peak = _peak(layer, gpu, precision, stack.kernels)
    shaped, few_bits = _shaped(layer, gpu, peak), peak in _FEW_BITS
    if shaped:
        recipe = recipe_of(precision, stack.kernels, gpu) if few_bits else None
        products, least = _shaped_time(layer, gpu, stack.kernels, peak, recipe, batch, backward), 0.0
    elif layer.op in SCANS and gpu.kernels is not None:
        rate = gpu.kernels.scan_rate if layer.op == "scan" else gpu.kernels.delta_rate
        products, least = flop * batch / (rate * gpu.kernels.sm_count), 0.0
    else:
        products, least = _compute_time(layer, flop * batch, batch, gpu, stack.kernels, peak, backward)

    fused = _traffic(layer, stack.kernels) if layer.op in FUSIBLE else 1.0
    extra = _separate_bytes(layer) if backward else 0.0
    scale = _element_scale(layer, precision, stack.kernels)
    moved = (traffic - extra) * batch * scale * fused + _weight_bytes(layer, precision, stack.exchange, backward)
    if layer.op == "causal_conv" and gpu.kernels is not None:
        moved *= gpu.memory_efficiency / gpu.kernels.conv_share
    elif shaped:
        moved = 0.0 if layer.op in PRODUCTS else elementwise_time(moved, gpu) * gpu.memory_bandwidth * gpu.memory_efficiency

    of_gelu = 0 if layer.op == "norm" else composed  # the result of a GELU is cast for the next product
    casts = layer.casts + of_gelu if PRECISION_TRAITS[precision].autocast and kernels else 0
    hooks, passes = _gradient_upkeep(stack.update) if backward else (0.0, 0.0)
    converted = (_layout_bytes(layer, precision, stack.kernels, peak, backward) + extra * scale) * batch
    converted += _cast_bytes(layer, precision, backward)
    if shaped and few_bits and layer.channels:
        converted += quantizing_bytes(layer, _tokens(layer) * batch, gpu, precision, stack, backward)
    if composed:
        converted += composed_bytes(layer, precision, backward) * composed * batch
    converted += _CAST_BYTES * casts * batch
    converted += passes * layer.gradient_bytes(PRECISION_TRAITS[precision].gradient)
    converted += _score_bytes(layer, stack.kernels, precision, batch) if flop else 0.0

    kernels += bool(casts) + len(_cast_weights(layer, precision, backward))
    launched = kernels * LIBRARY_LAUNCH if layer.op == "rnn" else kernels
    upkeep = hooks * len(layer.gradients)
    started, launched = (count * stack.kernels.kernels_per_operator + upkeep for count in (kernels, launched))
    from_shape = gpu.kernels is not None if layer.op in SCANS else shaped and layer.op in PRODUCTS
    return LayerWork(products, least, peak, moved, converted, started, launched, from_shape)


def _described_work(layer: Layer, stack_kernels: StackKernels, backward: bool) -> tuple[float, float, float]:
    """Return FLOP and bytes per sample of a pass, and its kernels, as the layer table has them, with dropout that is not fused.

    Attention under a mask in memory computes all scores, and so does attention in separate kernels, whose backward recomputes none.
    """
    if backward:
        flop, traffic, kernels = layer.backward, layer.backward_traffic, layer.backward_kernels
    else:
        flop, traffic, kernels = layer.forward, layer.read + layer.write, layer.forward_kernels
    shape = layer.attention
    if shape is not None and (stack_kernels.score_passes or (shape.window and stack_kernels.masks_windows)):
        if backward and flop and stack_kernels.score_passes:  # no backward where no gradient passes
            flop = 2.0 * layer.forward
        seen = attended_pairs(shape.keys, shape.window, shape.chunked, shape.causal)
        flop *= shape.keys**2 / seen if shape.causal or shape.window else 1.0
    if layer.dropped and not stack_kernels.fused_dropout and kernels:  # backward has a kernel for it anyway, and reads once more
        traffic += (1.0 if backward else 2.0) * _ELEMENT * layer.dropped
        kernels += not backward
    return flop, traffic, kernels


def _traffic(layer: Layer, stack_kernels: StackKernels) -> float:
    """Return the bytes that an element-wise layer moves, relative to those of the layer table."""
    factor = stack_kernels.operator_traffic.get(layer.name.rpartition(".")[2]) if stack_kernels.operator_traffic else None
    return stack_kernels.elementwise_traffic if factor is None else factor


def _shaped(layer: Layer, gpu: Gpu, peak: Peak) -> bool:
    """Return whether *layer* is timed by its shape: it specifies one, and the GPU describes kernels of known shape."""
    kernels = kernels_of(gpu, peak)
    if kernels is None:
        return False
    return (
        attention_rate(gpu, peak) is not None
        if layer.attention is not None
        else _tokens(layer) > 0 and (layer.op not in PRODUCTS or len(layer.channels) == 2)
    )


def _tokens(layer: Layer) -> float:
    """Return the rows per sample of a layer: as specified, or for a matrix product without them, as computed from its FLOP."""
    if layer.tokens or layer.op != "gemm" or len(layer.channels) != 2:
        return float(layer.tokens)
    return layer.forward / (2.0 * math.prod(layer.channels))


def _composed_attention(shape: Attention, gpu: Gpu, peak: Peak, batch: int, backward: bool) -> float:
    """Return the seconds of attention's products as separate kernels, including the masked half of the scores.

    Forward computes scores and results. Backward computes gradients of scores, values, queries and keys; the last three sum over tokens, as
    results do.
    """
    groups = max(1, round(shape.heads * batch * shape.documents))
    value_dim = shape.value_dim or shape.head_dim
    of_scores, of_values = _SEPARATE_PRODUCTS[shape.head_dim % ALIGNMENT == 0]

    def scores(inner: int) -> float:
        return of_scores * product_time(gpu, peak, ProductShape(shape.queries, shape.keys, inner, groups))

    def sums(width: int) -> float:
        return of_values * product_time(gpu, peak, ProductShape(shape.queries, width, shape.keys, groups))

    if not backward:
        return scores(shape.head_dim) + sums(value_dim)
    return scores(value_dim) + sums(value_dim) + 2.0 * sums(shape.head_dim)


def _unmasked(shape: Attention) -> Attention:
    """Return attention of *shape* in which each query sees all keys."""
    return shape.model_copy(update={"window": 0, "chunked": False, "causal": False})


def _score_bytes(layer: Layer, stack_kernels: StackKernels, precision: Precision, batch: int) -> float:
    """Return the bytes that separate kernels for softmax, mask and dropout of attention's scores move in one pass of a layer."""
    if layer.attention is None or not stack_kernels.score_passes:
        return 0.0
    scores = layer.attention.heads * layer.attention.queries * layer.attention.keys * layer.attention.documents * batch
    return 0.5 * stack_kernels.score_passes * scores * PRECISION_TRAITS[precision].activation


def _shaped_time(
    layer: Layer, gpu: Gpu, stack_kernels: StackKernels, peak: Peak, recipe: Fp8Recipe | None, batch: int, backward: bool
) -> float:
    """Return the seconds of a layer's products by their shape; backward of a matrix product runs one for each gradient it needs."""
    if layer.attention is not None:
        if backward and not layer.backward:
            return 0.0
        if stack_kernels.score_passes:
            return _composed_attention(layer.attention, gpu, peak, batch, backward)
        shape = _unmasked(layer.attention) if stack_kernels.masks_windows and layer.attention.window else layer.attention
        return attention_time(gpu, peak, shape, batch, backward, stack_kernels.attention_kernel)
    if layer.op not in PRODUCTS or not layer.forward:
        return 0.0
    k, n = layer.channels
    groups = max(layer.groups, 1)
    tokens = _tokens(layer)
    rows = tokens * batch / groups
    scale = layer.forward / (2.0 * tokens * k * n)  # 1, unless a layer is split differently from its shape
    if not backward:
        return scale * product_time(gpu, peak, ProductShape(rows, n, k, groups), recipe=recipe, role="output")
    products = layer.backward / layer.forward
    inputs, weights = (1.0, 1.0) if products > 1.5 else (0.0, products) if layer.gradients else (products, 0.0)
    time = inputs * product_time(gpu, peak, ProductShape(rows, k, n, groups), recipe=recipe) if inputs else 0.0
    if weights:
        time += weights * product_time(gpu, peak, ProductShape(k, n, rows, groups), recipe=recipe, role="weights")
    return scale * time


def _gradient_upkeep(update: UpdateWork) -> tuple[float, float]:
    """Return kernels and passes for each gradient tensor as it becomes ready: hooks, zeroing (a write), adding (two reads, one write)."""
    kernels, passes = (2.0, 4.0) if update.accumulates_gradients else (0.0, 0.0)
    return update.gradient_hooks + kernels, update.gradient_hooks + passes


def layer_time(layer: Layer, gpu: Gpu, precision: Precision, stack: Stack, batch: int, backward: bool = False) -> KernelWork:
    """Return the GPU time and launches of one layer for a batch (samples)."""
    work = layer_work(layer, gpu, precision, stack, batch, backward)
    factor = 1.0 if work.from_shape else _stack_factor(layer, stack.kernels, work.peak)
    products = max(work.products * factor, work.least_products)
    busy = max(products, memory_time(work.moved_bytes, gpu)) + memory_time(work.converted_bytes, gpu)
    in_steps = gpu.kernels.whole_steps if stack.kernels.factor_by_kernels and gpu.kernels else 1.0
    return KernelWork((busy + work.kernels * gpu.kernel_time) * stack.kernels.compute_factor * in_steps, work.launches)


def kernel_mix(layers: Sequence[Layer], gpu: Gpu, precision: Precision, stack: Stack, batch: int) -> KernelMix | None:
    """Return the shares of time that products and memory bound in one forward and backward pass of *layers*; None if it takes no time.

    Recurrent kernels count as bound by memory: a time step waits for the one before, so their units are idle most of the time.
    """
    products = memory = starts = 0.0
    works: dict[tuple[int, bool], LayerWork] = {}  # a layer that occurs again is computed once
    for layer in layers:
        for backward in (False, True):
            if (id(layer), backward) not in works:
                works[id(layer), backward] = layer_work(layer, gpu, precision, stack, batch, backward)
            work = works[id(layer), backward]
            factor = 1.0 if work.from_shape else _stack_factor(layer, stack.kernels, work.peak)
            multiplied, moved = max(work.products * factor, work.least_products), memory_time(work.moved_bytes, gpu)
            bound = multiplied >= moved and layer.op != "rnn"
            products += multiplied if bound else 0.0
            memory += memory_time(work.converted_bytes, gpu) + (0.0 if bound else max(moved, multiplied))
            starts += work.kernels * gpu.kernel_time
    total = products + memory + starts
    return KernelMix(products / total, memory / total) if total > 0 else None


def _element_scale(layer: Layer, precision: Precision, stack_kernels: StackKernels) -> float:
    """Return the bytes of an activation element, relative to the 4 bytes of the layer table.

    Under autocast with channels first, norms and pools gain nothing from 16 bits: layer norm runs in 32 bits (torch.amp documentation),
    and batch norm and pooling process element by element: estimate (with it, the error on chips left out of the fit is 24 instead of 28%
    at the 90th percentile, and 9 instead of 8% in the median). Layer norm differs from batch norm in the statistics that it writes for
    each sample.
    """
    if layer.op in _BY_ELEMENT and PRECISION_TRAITS[precision].autocast and not stack_kernels.channels_last:
        native = "bf16" in PRECISION_TRAITS[precision].units and layer.op == "norm" and layer.write <= layer.read
        return NATIVE_BATCH_NORM if native else 1.0
    return element_bytes(layer.op, precision) / 4.0


def _separate_bytes(layer: Layer) -> float:
    """Return the bytes per sample that backward moves in separate kernels: sums of bias gradients, gradients added up or copied.

    Backward's two products read the output gradient twice and the input once, and write the input gradient.
    """
    if layer.op not in _MATRIX_PRODUCTS:
        return 0.0
    return max(0.0, layer.backward_traffic - 2.0 * (layer.read + layer.write))


def _weight_bytes(layer: Layer, precision: Precision, exchange: Exchange, backward: bool) -> float:
    """Return the bytes of weights read, and in *backward* of gradients written, once per batch; products use 16-bit copies of weights.

    An embedding reads only the rows it looks up, which the layer table counts; its backward fills a gradient of the table's size with
    zeros, unless that is sparse (torch.nn.Embedding). A frozen weight has no gradient.
    """
    width = PRECISION_TRAITS[precision].activation if layer.op in PRODUCTS else 4.0
    trained = layer.gradient_bytes(width)
    if layer.op == "embedding":
        return trained if backward and not (layer.sparse or exchange.sparse_embeddings) else 0.0
    return trained * (2.0 if backward else 1.0) + layer.frozen_bytes(width)


def _cast_weights(layer: Layer, precision: Precision, backward: bool) -> tuple[int, ...]:
    """Return the sizes of the weights (in *backward*, of the gradients) that autocast casts for a product, in one kernel each."""
    if layer.dtypes or layer.op not in PRODUCTS or not PRECISION_TRAITS[precision].autocast:  # autocast converts only FP32
        return ()
    return layer.gradients if backward else layer.gradients + layer.frozen


def _cast_bytes(layer: Layer, precision: Precision, backward: bool) -> float:
    """Return the bytes that autocast moves: it reads 4 and writes 2 for each weight, or the reverse for its gradient."""
    return _CAST_BYTES * sum(_cast_weights(layer, precision, backward))


def _layout_bytes(layer: Layer, precision: Precision, stack_kernels: StackKernels, peak: Peak, backward: bool) -> float:
    """Return the bytes per sample moved to transpose the inputs and outputs of a convolution; each element is read and written once.

    Backward is two convolutions: one reads the output gradient and writes the input gradient, the other reads input and output gradient.
    A norm with channels first has one input and one output; its backward has two gradients and the input
    (tensorflow/core/kernels/fused_batch_norm_op.cc).
    """
    if layer.op == "norm" and stack_kernels.transposed_norms and PRECISION_TRAITS[precision].activation < 4.0:
        return 2.0 * layer.write * _element_scale(layer, precision, stack_kernels) * (3.0 if backward else 2.0)
    if layer.op != "conv" or stack_kernels.channels_last or peak == "fp32" or layer.kernel_size == 1:
        return 0.0  # with channels first, a 1x1 convolution is a matrix product that needs no transpose
    return 2.0 * (layer.read + layer.write) * _element_scale(layer, precision, stack_kernels) * (2.0 if backward else 1.0)


def efficiency_class(layer: Layer, gpu: Gpu, stack_kernels: StackKernels) -> OperatorClass:
    """Return the operator class whose efficiency curve a layer uses.

    Winograd supports only 3x3 windows with stride 1, so other convolutions have classes of their own if the GPU describes them. Since
    cuDNN 5.1, Winograd kernels with separate transforms run on all GPUs (NVIDIA, cuDNN 5.1 release notes). Before, Winograd ran only on
    Maxwell: its kernel was Maxwell machine code, which runs only on its own major compute capability (NVIDIA, CUDA C Programming Guide,
    "Binary Compatibility"). That there was no such kernel for Pascal is an estimate: VGG-16 under cuDNN 5.0 reaches 0.72 of the peak on
    a GTX 1080 and 0.85 on a Maxwell Titan X; under 5.1 it reaches 1.05 on a Pascal Titan X (jcjohnson/cnn-benchmarks).
    """
    op_class: OperatorClass = "gemm" if layer.op in ("attention", *SCANS) and layer.op not in gpu.efficiency else layer.op
    if layer.op == "conv" and layer.kernel_size == 1:
        op_class = "pointwise_conv"
    elif layer.op == "conv" and layer.kernel_size and not (_winograd(layer) and _has_winograd(gpu, stack_kernels)):
        op_class = "direct_conv"
    return op_class if op_class in gpu.efficiency or op_class == "gemm" else layer.op


def _winograd(layer: Layer) -> bool:
    """Return whether a convolution has a 3x3 window and stride 1; the number of weights tells 3x3 from 1x3 and 3x1."""
    square = not layer.gradients or not layer.channels or max(layer.gradients) >= 9 * math.prod(layer.channels)
    return layer.kernel_size == 3 and layer.stride == 1 and square


def _has_winograd(gpu: Gpu, stack_kernels: StackKernels) -> bool:
    return _version(stack_kernels.cudnn) >= (5, 1) or (5, 0) <= _version(gpu.compute_capability) < (6, 0)


@lru_cache(maxsize=64)
def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _kernel_size(layer: Layer, batch: int) -> float:
    """Return the FLOP of one kernel, on which efficiency depends: one product of forward; backward runs two of the same size.

    A recurrent layer runs one kernel per time step; the additional kernels of other layers (bias, counters) do no products.
    """
    return layer.forward * batch / (max(layer.forward_kernels, 1) if layer.op == "rnn" else 1)


def _peak(layer: Layer, gpu: Gpu, precision: Precision, stack_kernels: StackKernels) -> Peak:
    """Return the peak that a layer's kernels use: the best that its stack allows, the GPU has, and its shape supports."""
    curves = gpu.efficiency.get(efficiency_class(layer, gpu, stack_kernels), {})
    usable = peaks_for(layer.op, precision, stack_kernels)
    if layer.attention is not None or layer.op in SCANS or layer.name.rpartition(".")[2] in stack_kernels.unquantized:
        usable = tuple(peak for peak in usable if peak not in _FEW_BITS)  # fused attention and scans stay in 16 bits as well
    peaks = [peak for peak in usable if peak in gpu.peak and (peak == "fp32" or _aligned(layer, gpu, stack_kernels))]
    if gpu.kernels is not None and (layer.attention is not None or _tokens(layer)):
        return next((peak for peak in peaks if peak in gpu.kernels.product_share), peaks[0])
    # if the class was measured on none of them, its share of another peak is better than none
    return next((peak for peak in peaks if _LIKE.get(peak, peak) in curves or peak in curves), peaks[0])


def _aligned(layer: Layer, gpu: Gpu, stack_kernels: StackKernels) -> bool:
    """Return whether tensor cores support the layer's channels, padded or not; GPUs since Ampere require cuBLAS 11."""
    if layer.op == "conv" or stack_kernels.unaligned_products or _version(gpu.compute_capability) >= (8, 0):
        return True
    return all(channels % ALIGNMENT == 0 for channels in layer.channels)


def _padding(layer: Layer, peak: Peak) -> float:
    """Return the FLOP on tensor cores, relative to the layer's own: the channels of convolutions are padded."""
    if peak == "fp32" or layer.op != "conv":
        return 1.0
    return math.prod(math.ceil(channels / ALIGNMENT) * ALIGNMENT / channels for channels in layer.channels)


def _compute_time(
    layer: Layer, flop: float, batch: int, gpu: Gpu, stack_kernels: StackKernels, peak: Peak, backward: bool
) -> tuple[float, float]:
    """Return the seconds of the products, and their lower bound.

    A board that throttles its tensor cores does not change their other limits, such as feeding from caches and registers: products take
    as long as on an unthrottled board with the same multiprocessors, unless the throttled rate makes them slower.
    """
    curves = gpu.efficiency.get(efficiency_class(layer, gpu, stack_kernels))
    if not curves or flop <= 0:
        return 0.0, 0.0
    units = gpu.peak[peak] / (1.0 if peak == "fp32" else gpu.tensor_core_rate)
    work = flop * _padding(layer, peak)
    if layer.op == "rnn":
        slowness = _recurrent_slowness(layer, batch, gpu, peak, units, backward)
    else:
        slowness = 1.0 / curve_value(_curve(curves, peak), _kernel_size(layer, batch) / units)
    throttled = units > gpu.peak[peak]
    lower_bound = work / (gpu.peak[peak] * _best_share(gpu, peak)) if throttled else 0.0
    return _network_factor(layer, gpu, peak) * work / units * slowness, lower_bound


def _recurrent_slowness(layer: Layer, batch: int, gpu: Gpu, peak: Peak, units: float, backward: bool) -> float:
    """Return the time of a recurrent layer, relative to its time at peak; it runs step by step, except for weight gradients.

    These are half of backward and one matrix product over all time steps, as DeepBench's times show (13 of 15.7 TFLOP/s on a V100, where
    steps reach 1 to 12). Steps larger than any measured one count as matrix products, too.
    """
    steps = _curve(gpu.efficiency["rnn"], peak)
    gemm = _curve(gpu.efficiency["gemm"], peak) if "gemm" in gpu.efficiency else steps
    larger = tuple(point for point in gemm if point[0] > steps[-1][0] and point[1] > steps[-1][1])
    stepwise = 1.0 / curve_value(steps + larger, _kernel_size(layer, batch) / units)
    return 0.5 * (stepwise + 1.0 / curve_value(gemm, layer.forward * batch / units)) if backward else stepwise


def _curve(curves: Mapping[Peak, Curve], peak: Peak) -> Curve:
    return curves.get(peak) or curves.get(_LIKE.get(peak, peak)) or next(iter(curves.values()))


def _best_share(gpu: Gpu, peak: Peak) -> float:
    """Return the largest share of a peak that matrix products reach."""
    return max(share for _, share in _curve(gpu.efficiency["gemm"], peak)) if "gemm" in gpu.efficiency else 1.0


def _network_factor(layer: Layer, gpu: Gpu, peak: Peak) -> float:
    if peak == "fp32":
        return gpu.vector_factor
    return gpu.tensor_core_gemm_factor if layer.op in _MATRIX_PRODUCTS else gpu.tensor_core_factor


def _stack_factor(layer: Layer, stack_kernels: StackKernels, peak: Peak) -> float:
    if peak == "fp32":
        return 1.0
    return stack_kernels.tensor_core_gemm_factor if layer.op in _MATRIX_PRODUCTS else stack_kernels.tensor_core_factor


def memory_time(nbytes: float, gpu: Gpu) -> float:
    """Return the time to move *nbytes* to and from the GPU's memory."""
    return nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency)


def roofline_time(flop: float, nbytes: float, gpu: Gpu, peak: Peak) -> float:
    """Return the time of a kernel given only its *flop* and the *nbytes* it moves: the longer of compute and memory time.

    Compute has the efficiency of matrix products with that many FLOP.
    """
    curves = gpu.efficiency.get("gemm", {})
    share = curve_value(_curve(curves, peak), flop / gpu.peak[peak]) if curves and flop else 1.0
    return max(flop / (gpu.peak[peak] * share), memory_time(nbytes, gpu))
