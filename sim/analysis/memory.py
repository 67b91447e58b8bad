"""How much GPU memory does one training step need? A first estimate by use, at the moment of the step that needs most.

Uses are those of TBD (arXiv 1803.06905): weights, gradients, optimizer state, activations, workspace; communication buffers, input batches
and the CUDA context beside them. Activations peak at the layer i that maximizes ``sum(saved, layers up to i) + read(i) + write(i) +
scratch(i)``; the optimizer's moment counts too. A checkpointed segment (``sim.spec.segments``) keeps its input alone until backward runs it
again. Autocast keeps 16-bit casts of weights until their layer's backward is done; what it saves in all, the layer table says
(``autocast_saved``). Background: docs/model/memory.md.

Gradients count as allocated throughout, or, where the stack frees them at the end of a step, from their layer's backward on.

Limits: no fragmentation or rounding of the allocator. cuDNN's scratch memory is an estimate.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from sim.spec.composed import composed_elements, composed_saved
from sim.spec.fields import OperatorClass, Precision
from sim.spec.hardware import Gpu
from sim.spec.identity import Same, parts
from sim.spec.precision import MEANING
from sim.spec.segments import segments
from sim.spec.workload import Layer, Model, Workload, fullest

_MIB = 2.0**20

_CONVOLUTIONS: frozenset[OperatorClass] = frozenset({"conv", "pointwise_conv", "direct_conv", "depthwise_conv"})
_MATRIX: frozenset[OperatorClass] = _CONVOLUTIONS | {"gemm", "attention", "rnn"}
_FP32_UNDER_AUTOCAST: frozenset[OperatorClass] = frozenset({"softmax", "loss", "embedding"})
"""torch.amp documentation: softmax and losses autocast to FP32; an embedding returns its FP32 weights."""

_CUBLAS = 2 * 4 * _MIB + 8 * 16 * 2.0**10
"""cuBLAS workspace of one handle and stream (torch CUDA documentation, ":4096:2:16:8")."""
_CUBLAS_HOPPER = 32 * _MIB
"""The same for compute capability 9, 10 and 12 (pytorch CublasHandlePool.cpp)."""
_CONVOLUTION_SCRATCH = 1.0
"""cuDNN's scratch per byte of a convolution's input and output: estimate (0 for implicit GEMM, 2.25 for Winograd F(4x4, 3x3) that
is not tiled; cuDNN chooses by heuristics and takes less when memory is short)."""
_RECURRENT_MAPS = 1 / 3
"""Gradients that exist together in a recurrent layer, whose time steps come one after another, over what it saved: estimate (a GRU saves
7.5 widths a step and direction; the output's gradient is one width in both directions, that of one direction's gates three)."""
_INPUT_BATCHES = 2
"""``x = x.cuda()`` in a loop copies the next batch while the name still holds the last one."""
_ANY_BATCH = 2**40
"""More samples than any GPU holds."""
_NCCL_BUFFERS = 4 * _MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""Receive buffers of one connection: Simple 4 MiB, LL128 4.7 MiB, LL 0.5 MiB (NVIDIA/nccl init.cc, DEFAULT_*_BUFFSIZE)."""
_NCCL_CONNECTIONS = 2
"""Connections per channel that a rank receives on: estimate (one of the ring and one of the tree, both set up with the communicator)."""
_NCCL_CHANNELS = 2
"""Where the caller does not know better: estimate (NCCL doubles the one ring it always finds)."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of GPU memory by use."""

    weights: float
    gradients: float
    optimizer_state: float
    activations: float
    workspace: float
    communication_buffers: float
    input: float
    context: float

    @property
    def total(self) -> float:
        """The sum of all uses."""
        return math.fsum(vars(self).values())

    def by_use(self) -> dict[str, float]:
        """Return the bytes by use, and their ``total``."""
        return {**vars(self), "total": self.total}


def gpu_memory(
    workload: Workload,
    gpu: Gpu,
    *,
    ranks: int = 1,
    batch: int | None = None,
    channels: int | None = None,
    gradient_as_bucket_view: bool = False,
) -> MemoryUse:
    """Return the memory that one training step of *workload* needs on *gpu*, as one of *ranks*.

    *batch* is per GPU, the workload's own by default; *channels* are NCCL's. With *gradient_as_bucket_view* (torch DDP's option)
    gradients live inside the communication buckets.
    """
    batch = workload.training.batch if batch is None else batch
    if batch < 1 or ranks < 1:
        raise ValueError(f"a batch of {batch} on {ranks} ranks: both must be at least 1")
    training = workload.training
    what = training.optimizer.name, workload.input.loader, training.precision, training.activation_checkpointing
    how = id(workload.model), parts(training.stack), gpu.context_memory, gpu.compute_capability
    key = (*what, *how, training.gradient_accumulation_steps)
    return _needed(Same(key, workload, gpu), batch, ranks > 1, channels, gradient_as_bucket_view)


@lru_cache(maxsize=256)
def _needed(question: Same, batch: int, beside_others: bool, channels: int | None, gradient_as_bucket_view: bool) -> MemoryUse:
    """Return what `gpu_memory` does; a check, a report and the points of a sweep ask the same again and again."""
    workload, gpu = fullest(question.held[0]), question.held[1]
    model, training = workload.model, workload.training
    widths = MEANING[training.precision]
    peak = _peak(workload, batch, freed=training.stack.frees_gradients and not (beside_others and gradient_as_bucket_view))
    kept_casts = 0.0 if widths.autocast else widths.cast * _cast_elements(model)
    return MemoryUse(
        weights=_weights(model, widths.weight) + kept_casts + peak.casts + model.buffers,
        gradients=peak.gradients,
        optimizer_state=0.0 if training.stack.uses_servers else _states(workload),
        activations=peak.activations,
        workspace=peak.fresh + peak.scratch + _cublas(gpu),
        communication_buffers=_communication(workload, channels, gradient_as_bucket_view) if beside_others else 0.0,
        input=batch * model.input * (1 if workload.input.loader == "synthetic" else _INPUT_BATCHES),
        context=gpu.context_memory,
    )


def _states(workload: Workload) -> float:
    """Return the bytes of the optimizer's states; matrices inside blocks and other tensors may have different ones."""
    optimizer, width = workload.training.optimizer, MEANING[workload.training.precision].state
    full = optimizer.states * width
    return math.fsum(
        layer.gradient_bytes(width) * (optimizer.state_width(width, matrix=layer.op == "gemm" and layer.name != "head") / width)
        for layer in workload.model.layers
        if layer.gradients and (full or optimizer.name == "adafactor")
    )


def largest_batch(
    workload: Workload, gpu: Gpu, *, ranks: int = 1, channels: int | None = None, gradient_as_bucket_view: bool = False
) -> int:
    """Return the largest batch per GPU whose step fits into *gpu*'s memory, 0 where not even one sample fits.

    Raise ValueError for a model without activations or input, of which any batch fits.
    """

    def fits(batch: int) -> bool:
        view = gradient_as_bucket_view
        return gpu_memory(workload, gpu, ranks=ranks, batch=batch, channels=channels, gradient_as_bucket_view=view).total <= gpu.memory

    if fits(_ANY_BATCH):
        raise ValueError(f"{workload.model.name}: the layer table has no activation sizes, so any batch fits")
    if not fits(1):
        return 0
    return bisect_left(range(1, _ANY_BATCH), True, key=lambda batch: not fits(batch))


def _elements(layer: Layer) -> int:
    return sum(layer.gradients) + sum(layer.frozen)


def _weights(model: Model, width: float) -> float:
    """Return the bytes of all parameters; those that no layer tells of are taken for FP32."""
    rest = model.parameters - sum(_elements(layer) for layer in model.layers)
    return width * rest + sum(layer.gradient_bytes(width) + layer.frozen_bytes(width) for layer in model.layers)


def _cast_elements(model: Model) -> float:
    """Return the weights that autocast keeps a second copy of: those of matrix operators, frozen ones included, that are FP32."""
    others = sum(_elements(layer) for layer in model.layers if layer.op not in _MATRIX)
    return model.parameters - others - sum(_elements(layer) - _single(layer) for layer in model.layers if layer.op in _MATRIX)


def _single(layer: Layer, frozen: bool = True) -> float:
    """Return the elements of the weights of *layer* that are FP32; with *frozen* those that are not trained as well."""
    if not layer.dtypes:
        return float(_elements(layer) if frozen else sum(layer.gradients))
    tensors = (*layer.gradients, *layer.frozen) if frozen else layer.gradients
    return sum(elements for elements, width in zip(tensors, layer.widths(0.0), strict=False) if not width)


class _Moment(NamedTuple):
    """Bytes held at one moment of the step beside weights and optimizer state."""

    gradients: float
    """Those that earlier layers' backward, or earlier steps, left."""
    activations: float
    fresh: float
    """New gradients."""
    scratch: float = 0.0
    casts: float = 0.0
    """Copies of weights in 16 bits that autocast made in forward; each goes when its layer's backward is done."""


class _Live(NamedTuple):
    """Bytes per sample at the backward of a layer."""

    kept: float
    """By the layers up to this one."""
    saved: float
    """By this one."""
    maps: float
    """The gradients of its inputs and outputs."""
    entering: float
    """The gradient of its inputs."""
    scratch: float


def _peak(workload: Workload, batch: int, freed: bool) -> _Moment:
    """Return the moment that needs most: the backward of some layer, or the optimizer."""
    return max(_moments(workload, batch, freed), key=sum)


def _moments(workload: Workload, batch: int, freed: bool = False) -> Iterator[_Moment]:
    """Yield the optimizer's moment, and those of each layer's backward: as it computes, and as autocast widens the weights' gradient.

    With *freed* the first backward of a step finds no gradients. The last of several adds to those of the others.
    """
    trainable, training, layers = _tensors(workload), workload.training, workload.model.layers
    every = math.fsum(_dense(layer, MEANING[training.precision].gradient, batch) for layer in layers)
    made = _made(workload, batch) if freed and training.gradient_accumulation_steps == 1 else [every] * len(layers)
    beside = {"per_tensor": max(trainable, default=0), "foreach": sum(trainable), "fused": 0}[training.stack.optimizer]
    yield _Moment(every, 0.0, beside)
    held = _held(Same((id(workload.model), id(training)), workload))
    earlier = 0.0
    for (live, cast, casts), (fresh, waiting), before in zip(held, _fresh_gradients(workload, batch), made, strict=True):
        yield _Moment(before, batch * (live.kept + live.maps), waiting + (cast or fresh), batch * live.scratch, casts)
        if cast:
            yield _Moment(before, batch * (live.kept - live.saved + live.entering), waiting + cast + fresh, 0.0, earlier)
        earlier = casts


@lru_cache(maxsize=64)
def _held(same: Same) -> tuple[tuple[_Live, float, float], ...]:
    """Return what no batch changes, by layer: what is live, the cast of its trained weights, and all casts made up to it (bytes)."""
    (workload,) = same.held
    meaning = MEANING[workload.training.precision]
    narrow = [meaning.cast * elements if meaning.autocast else 0.0 for elements in _cast_weights(workload.model)]
    return tuple(zip(_live(workload), narrow, accumulate(_casts(workload.model, narrow, meaning.cast)), strict=True))


def _cast_weights(model: Model) -> list[float]:
    """Return the trained elements of each layer that autocast casts: a product's own, or those that the product after it alone takes."""
    elements = [_single(layer, frozen=False) if layer.op in _MATRIX else 0.0 for layer in model.layers]
    for index, (layer, after) in enumerate(pairwise(model.layers)):
        taken = math.prod(after.channels)
        if not elements[index] and after.op in _MATRIX and not after.gradients and not layer.dtypes and taken in layer.gradients:
            elements[index] = float(taken)
    return elements


def _casts(model: Model, trained: Sequence[float], width: float) -> list[float]:
    """Return the bytes of casts, *width* an element, that forward leaves behind, by layer; *trained* are those of trained weights.

    One that shares a table casts that, or the slice of it that it takes: the whole once, as autocast remembers it, each slice anew.
    Where the input needs no gradient, as in a first layer, backward does not need the weight.
    """
    tables = {layer.name: layer.gradients[0] for layer in model.layers if layer.rows and not layer.dtypes}
    bytes_of_casts = []
    for layer, own in zip(model.layers, trained, strict=True):
        other = _single(layer) - _single(layer, frozen=False) + _shared_cast(layer, tables) if layer.op in _MATRIX else 0.0
        needed = layer.backward > 1.5 * layer.forward or not layer.forward
        bytes_of_casts.append(own + width * other if needed and any(trained) else 0.0)
    return bytes_of_casts


def _shared_cast(layer: Layer, tables: dict[str, int]) -> float:
    """Return the elements that a product casts of the table it shares, and take a table that is cast as a whole off *tables*."""
    taken = math.prod(layer.channels)
    if layer.shares in tables and taken < tables[layer.shares]:
        return float(taken)
    return float(tables.pop(layer.shares, 0))


def _live(workload: Workload) -> Iterator[_Live]:
    """Yield what is live at the backward of each layer, in forward order."""
    model, precision = workload.model, workload.training.precision
    fp32, widths = _kept_in_fp32(model, precision), MEANING[precision]
    share = _autocast_share(workload)
    kept = inside = 0.0  # by the layers up to here: for good, and by the segment that they are in
    before = 0
    for layer, segment in zip(model.layers, segments(workload), strict=True):
        width = 4.0 if layer.op in fp32 else widths.activation
        saved = share * _saved(layer, precision, fp32)
        if composed := composed_elements(layer, workload.training.stack):
            saved += composed * composed_saved(layer, precision)
        if segment != before:
            inside = 0.0
            kept += layer.read * width / 4 if segment else 0.0  # the segment's input
        kept, inside, before = (kept, inside + saved, segment) if segment else (kept + saved, 0.0, 0)
        maps = (layer.read + layer.write) * width / 4
        if layer.op == "rnn":
            maps = min(maps, _RECURRENT_MAPS * saved)
        scratch = _CONVOLUTION_SCRATCH * maps if layer.op == "conv" and layer.kernel_size > 1 else 0.0
        yield _Live(kept + inside, saved, maps, min(maps, layer.read * width / 4), scratch)


def _saved(layer: Layer, precision: Precision, fp32: frozenset[OperatorClass]) -> float:
    """Return the bytes a sample that *layer* saves, by the widths of the precision alone."""
    widths = MEANING[precision]
    return layer.saved / 4 * (widths.matrix if layer.op in _MATRIX else 4.0 if layer.op in fp32 else widths.activation)


def _autocast_share(workload: Workload) -> float:
    """Return what autocast keeps in all over what widths alone tell; products keep casts of 32-bit activations, each its own."""
    model, precision = workload.model, workload.training.precision
    if not (MEANING[precision].autocast and model.autocast_saved):
        return 1.0
    fp32 = _kept_in_fp32(model, precision)
    return model.autocast_saved / (math.fsum(_saved(layer, precision, fp32) for layer in model.layers) or model.autocast_saved)


def _fresh_gradients(workload: Workload, batch: int) -> list[tuple[float, float]]:
    """Return the bytes of weight gradients that are not yet added to the old ones, at the backward of each layer: its own, and others.

    A shared weight's gradient waits from its last use to its first; at each use between, what waits, what is new and their sum exist.
    """
    widths, layers = MEANING[workload.training.precision], workload.model.layers
    index = {layer.name: number for number, layer in enumerate(layers)}
    fresh = [_dense(layer, widths.gradient, batch) for layer in layers]
    users: dict[int, list[int]] = {}
    for number, layer in enumerate(layers):
        if layer.shares in index:
            users.setdefault(index[layer.shares], []).append(number)
    held = fresh.copy()
    for owner, others in users.items():
        *between, last = [owner, *others]
        for number in range(owner, last + 1):
            copies = 3 if number in between else 1
            held[number] += fresh[owner] * (copies - (number == owner))
    return [(own, total - own) for own, total in zip(fresh, held, strict=True)]


def _made(workload: Workload, batch: int) -> list[float]:
    """Return the bytes of gradients that the backward of later layers has left when each layer's begins, in forward order."""
    width = MEANING[workload.training.precision].gradient
    later = accumulate(_dense(layer, width, batch) for layer in reversed(workload.model.layers[1:]))
    return [0.0, *later][::-1]


def _dense(layer: Layer, width: float, batch: int) -> float:
    """Return the bytes of the gradient that torch makes, *width* an element: of a sparse one only the rows that the batch looked up."""
    nbytes = layer.gradient_bytes(width)
    return nbytes / layer.rows * min(layer.rows, batch * layer.rows_per_sample) if layer.sparse and layer.rows else nbytes


def _tensors(workload: Workload) -> list[float]:
    """Return the bytes of each gradient tensor."""
    width = MEANING[workload.training.precision].gradient
    return [
        elements * each for layer in workload.model.layers for elements, each in zip(layer.gradients, layer.widths(width), strict=False)
    ]


def _kept_in_fp32(model: Model, precision: Precision) -> frozenset[OperatorClass]:
    """Return the operators whose activations stay FP32 although the precision is narrower.

    The table does not tell BatchNorm, which takes its input's type, from LayerNorm, which autocasts to FP32: convolutions and
    buffers (running statistics) together mean BatchNorm.
    """
    if MEANING[precision].weight <= MEANING[precision].activation:
        # training loops of decoders widen the logits themselves (torchtitan, Megatron-LM and Hugging Face alike: logits.float())
        return frozenset({"loss"}) if model.transformer is not None else frozenset()
    batch_norm = model.buffers > 0 and any(layer.op in _CONVOLUTIONS for layer in model.layers)
    return _FP32_UNDER_AUTOCAST if batch_norm else _FP32_UNDER_AUTOCAST | {"norm"}


def _cublas(gpu: Gpu) -> float:
    return _CUBLAS_HOPPER if int(gpu.compute_capability.split(".")[0]) in (9, 10, 12) else _CUBLAS


def _communication(workload: Workload, channels: int | None, gradient_as_bucket_view: bool) -> float:
    """Return the bytes of gradient copies on their way and of NCCL's own buffers."""
    stack = workload.training.stack
    if stack.uses_servers:  # gradients leave as they are, without NCCL
        return 0.0
    tensors = _tensors(workload)
    if stack.strategy == "apex_per_tensor":  # each flat copy is freed once it is copied back (NVIDIA/apex distributed.py)
        copies = max(tensors, default=0.0)
    elif stack.fusion:  # one buffer, allocated whole (horovod/common/fusion_buffer_manager.cc)
        copies = stack.fusion.threshold
    else:  # DDP's buckets together, or one flat copy, hold every gradient (pytorch pull 41954 measured as much)
        copies = 0.0 if gradient_as_bucket_view and stack.strategy == "ddp" else sum(tensors)
    if stack.backend == "gloo":  # its buffers lie in host memory
        return copies
    return copies + (channels or stack.channels or _NCCL_CHANNELS) * _NCCL_CONNECTIONS * _NCCL_BUFFERS
