"""How much GPU memory does one training step need? A first estimate by use, at the peak of the step. Background: docs/model/memory.md.

The uses are those of TBD (arXiv 1803.06905): weights, gradients, optimizer state, activations and workspace. Communication buffers, input
batches and the CUDA context are added. Activations peak at the layer i that maximizes ``sum(saved, layers up to i) + read(i) + write(i) +
scratch(i)``; the optimizer's moment counts too. A checkpointed segment (``sim.spec.segments``) keeps only its input until the backward
pass recomputes it. Autocast keeps 16-bit casts of weights until the backward pass of their layer is done; the layer table gives the total
that autocast saves (``autocast_saved``). Gradients count as allocated throughout the step; if the stack frees them at the end of a
step, only from the backward pass of their layer on.

Limits: no fragmentation or rounding of the allocator. cuDNN's scratch memory is an estimate.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple, assert_never

from sim.spec.composed import composed_elements, composed_saved
from sim.spec.fields import CONVOLUTIONS, OperatorClass, Precision
from sim.spec.hardware import Gpu
from sim.spec.identity import IdentityKey, field_identities
from sim.spec.layer import Layer
from sim.spec.lengths import at_full_length
from sim.spec.model import Model
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.segments import segments
from sim.spec.stack import Apex, ApexPerTensor, AsyncParameterServer, Ddp, Flat, Horovod, ParameterServer, ServerExchange
from sim.spec.workload import Workload

_MIB = 2.0**20

_MATRIX: frozenset[OperatorClass] = frozenset({*CONVOLUTIONS, "gemm", "attention", "rnn"})
_FP32_UNDER_AUTOCAST: frozenset[OperatorClass] = frozenset({"softmax", "loss", "embedding"})
"""torch.amp documentation: softmax and losses autocast to FP32; an embedding returns its FP32 weights."""

_CUBLAS = 2 * 4 * _MIB + 8 * 16 * 2.0**10
"""cuBLAS workspace (bytes) of one handle and stream (torch CUDA documentation, ":4096:2:16:8")."""
_CUBLAS_HOPPER = 32 * _MIB
"""The same for compute capability 9, 10 and 12 (pytorch CublasHandlePool.cpp)."""
_CONVOLUTION_SCRATCH = 1.0
"""cuDNN's scratch memory per byte of a convolution's input and output: estimate (0 for implicit GEMM, 2.25 for untiled Winograd
F(4x4, 3x3); cuDNN chooses by heuristics and uses less when memory is short)."""
_RECURRENT_MAPS = 1 / 3
"""Gradients alive at once in a recurrent layer, relative to the bytes it saved: estimate. Time steps run sequentially. A GRU saves 7.5
widths per step and direction; the gradient of the output is one width for each of both directions, the gates of one direction three."""
_INPUT_BATCHES = 2
"""``x = x.cuda()`` in a loop copies the next batch while the variable still holds the last one."""
_ANY_BATCH = 2**40
"""More samples than any GPU holds."""
_NCCL_BUFFERS = 4 * _MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""Receive buffers of one connection: Simple 4 MiB, LL128 4.7 MiB, LL 0.5 MiB (NVIDIA/nccl init.cc, DEFAULT_*_BUFFSIZE)."""
_NCCL_CONNECTIONS = 2
"""Receiving connections of a rank per channel: estimate (one for the ring and one for the tree, both set up with the communicator)."""
_NCCL_CHANNELS = 2
"""Default number of channels, if the caller specifies none: estimate (NCCL doubles the one ring it always finds)."""
THRASHING = 0.875
"""Share of the memory above which the allocator frees and retries: nanotron on 80 GB slows down 3 to 7 times from 70 GB on."""


class MemoryUse(NamedTuple):
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
        """Return the sum of all uses."""
        return math.fsum(self)

    def by_use(self) -> dict[str, float]:
        """Return the bytes by use, and their ``total``."""
        return {**self._asdict(), "total": self.total}


def gpu_memory(
    workload: Workload,
    gpu: Gpu,
    *,
    ranks: int = 1,
    batch: int | None = None,
    channels: int | None = None,
) -> MemoryUse:
    """Return the memory that one training step of *workload* needs on *gpu*, as one of *ranks*.

    *batch* is per GPU and defaults to the batch of the workload; *channels* are NCCL channels. Raise ValueError for a
    batch or a number of ranks below 1.
    """
    batch = workload.training.batch if batch is None else batch
    if batch < 1 or ranks < 1:
        raise ValueError(f"a batch of {batch} on {ranks} ranks: both must be at least 1")
    training = workload.training
    training_key = training.optimizer.name, workload.input.loader, training.precision, training.activation_checkpointing
    identity_key = id(workload.model), field_identities(training.stack)
    same = IdentityKey((*training_key, *identity_key, training.gradient_accumulation_steps), workload)
    held = _on_any_gpu(same, batch)
    return held._replace(
        workspace=held.workspace + _cublas(gpu),
        communication_buffers=_communication(same, channels) if ranks > 1 else 0.0,
        context=gpu.context_memory,
    )


@lru_cache(maxsize=256)
def _on_any_gpu(same: IdentityKey, batch: int) -> MemoryUse:
    """Return what does not depend on the GPU and the network, memoized: checks, reports and other machines request it repeatedly."""
    workload = _at_full_length(same.held[0])
    model, training = workload.model, workload.training
    widths = PRECISION_TRAITS[training.precision]
    peak = _peak(workload, batch, freed=training.stack.update.frees_gradients)
    kept_casts = 0.0 if widths.autocast else widths.cast * _cast_elements(model)
    return MemoryUse(
        weights=_weights(model, widths.weight) + kept_casts + peak.casts + model.buffers,
        gradients=peak.gradients,
        optimizer_state=0.0 if isinstance(training.stack.exchange, ServerExchange) else _states(workload),
        activations=peak.activations,
        workspace=peak.fresh + peak.scratch,
        communication_buffers=0.0,
        input=batch * model.input * (1 if workload.input.loader == "synthetic" else _INPUT_BATCHES),
        context=0.0,
    )


def _states(workload: Workload) -> float:
    """Return the bytes of the optimizer's states; the states of matrices inside blocks may differ from those of other tensors."""
    optimizer, width = workload.training.optimizer, PRECISION_TRAITS[workload.training.precision].state
    full = optimizer.states * width
    return math.fsum(
        layer.gradient_bytes(width) * (optimizer.state_width(width, matrix=layer.op == "gemm" and layer.name != "head") / width)
        for layer in workload.model.layers
        if layer.gradients and (full or optimizer.name == "adafactor")
    )


def largest_batch(workload: Workload, gpu: Gpu, *, ranks: int = 1, channels: int | None = None) -> int:
    """Return the largest batch per GPU whose step fits into the memory of *gpu*, or 0 if not even one sample fits.

    Raise ValueError for a model without sizes of activations and input, because any batch would fit.
    """

    def fits(batch: int) -> bool:
        return gpu_memory(workload, gpu, ranks=ranks, batch=batch, channels=channels).total <= gpu.memory

    if fits(_ANY_BATCH):
        raise ValueError(f"{workload.model.name}: the layer table has no activation sizes, so any batch fits")
    if not fits(1):
        return 0
    too_large = 2
    while fits(too_large):
        too_large *= 2
    half = too_large // 2  # fits
    return half - 1 + bisect_left(range(half, too_large), True, key=lambda batch: not fits(batch))


def _weights(model: Model, width: float) -> float:
    """Return the bytes of all parameters; parameters that no layer lists have *width* bytes each."""
    rest = model.parameters - sum(layer.parameters for layer in model.layers)
    return width * rest + sum(layer.gradient_bytes(width) + layer.frozen_bytes(width) for layer in model.layers)


def _cast_elements(model: Model) -> float:
    """Return the number of weights with a narrow copy for the whole step: FP32 weights of matrix operators, including frozen ones."""
    others = sum(layer.parameters for layer in model.layers if layer.op not in _MATRIX)
    return model.parameters - others - sum(layer.parameters - _fp32_elements(layer) for layer in model.layers if layer.op in _MATRIX)


def _fp32_elements(layer: Layer, frozen: bool = True) -> float:
    """Return the number of FP32 weights of *layer*; with *frozen*, include the weights that are not trained."""
    if not layer.dtypes:
        return float(layer.parameters if frozen else sum(layer.gradients))
    tensors = (*layer.gradients, *layer.frozen) if frozen else layer.gradients
    return sum(elements for elements, width in zip(tensors, layer.widths(0.0), strict=False) if not width)


class _HeldMoment(NamedTuple):
    """Bytes held at one moment of the step, in addition to weights and optimizer state."""

    gradients: float
    """Gradients left by the backward passes already done, or by earlier steps."""
    activations: float
    fresh: float
    """New gradients."""
    scratch: float = 0.0
    casts: float = 0.0
    """16-bit copies of weights that autocast made in the forward pass; each is freed when the backward pass of its layer is done."""


class _LiveBytes(NamedTuple):
    """Live bytes per sample during the backward pass of a layer."""

    kept: float
    """Saved by the layers up to this one."""
    saved: float
    """Saved by this layer."""
    maps: float
    """Gradients of its inputs and outputs."""
    entering: float
    """Gradient of its inputs."""
    scratch: float


def _peak(workload: Workload, batch: int, freed: bool) -> _HeldMoment:
    """Return the moment that needs most memory: the backward pass of some layer, or the optimizer's step."""
    return max(_moments(workload, batch, freed), key=sum)


def _moments(workload: Workload, batch: int, freed: bool = False) -> Iterator[_HeldMoment]:
    """Yield the optimizer's moment and, for each layer's backward pass, the computation and autocast's widening of weight gradients.

    With *freed*, the backward pass of a step starts without gradients. With gradient accumulation, the last backward pass adds to the
    gradients of the earlier ones, so all gradients exist.
    """
    trainable, training, layers = _tensors(workload), workload.training, workload.model.layers
    all_gradients = math.fsum(_gradient_bytes(layer, PRECISION_TRAITS[training.precision].gradient, batch) for layer in layers)
    gradients_left = (
        _gradients_left(workload, batch) if freed and training.gradient_accumulation_steps == 1 else [all_gradients] * len(layers)
    )
    optimizer_scratch = {"per_tensor": max(trainable, default=0), "foreach": sum(trainable), "fused": 0}[training.stack.update.optimizer]
    yield _HeldMoment(all_gradients, 0.0, optimizer_scratch)
    held = _batch_independent(IdentityKey((id(workload.model), id(training)), workload))
    earlier = 0.0
    for (live, cast, casts), (fresh, waiting), before in zip(held, _fresh_gradients(workload, batch), gradients_left, strict=True):
        yield _HeldMoment(before, batch * (live.kept + live.maps), waiting + (cast or fresh), batch * live.scratch, casts)
        if cast:
            yield _HeldMoment(before, batch * (live.kept - live.saved + live.entering), waiting + cast + fresh, 0.0, earlier)
        earlier = casts


@lru_cache(maxsize=64)
def _batch_independent(same: IdentityKey) -> tuple[tuple[_LiveBytes, float, float], ...]:
    """Return, by layer, what is independent of the batch: live bytes, the cast of its trained weights, and all casts up to it (bytes)."""
    (workload,) = same.held
    meaning = PRECISION_TRAITS[workload.training.precision]
    narrow = [meaning.cast * elements if meaning.autocast else 0.0 for elements in _cast_weights(workload.model)]
    return tuple(zip(_live(workload), narrow, accumulate(_casts(workload.model, narrow, meaning.cast)), strict=True))


def _cast_weights(model: Model) -> list[float]:
    """Return how many trained elements of each layer autocast casts: a matrix product's own, or those used only by the product after it."""
    elements = [_fp32_elements(layer, frozen=False) if layer.op in _MATRIX else 0.0 for layer in model.layers]
    for index, (layer, after) in enumerate(pairwise(model.layers)):
        taken = math.prod(after.channels)
        if not elements[index] and after.op in _MATRIX and not after.gradients and not layer.dtypes and taken in layer.gradients:
            elements[index] = float(taken)
    return elements


def _casts(model: Model, trained: Sequence[float], width: float) -> list[float]:
    """Return the bytes of casts that the forward pass leaves behind, by layer; *trained* are the bytes of casts of trained weights.

    Each other cast element has *width* bytes. A layer that shares a table casts the table or the slice that it uses. Autocast caches the
    cast of a whole table, so it is made once; each slice is cast again. If the input needs no gradient, as in a first layer, the backward
    pass does not need the weight.
    """
    tables = {layer.name: layer.gradients[0] for layer in model.layers if layer.rows and not layer.dtypes}
    bytes_of_casts, any_trained = [], any(trained)
    for layer, own in zip(model.layers, trained, strict=True):
        other = _fp32_elements(layer) - _fp32_elements(layer, frozen=False) + _shared_cast(layer, tables) if layer.op in _MATRIX else 0.0
        needed = layer.backward > 1.5 * layer.forward or not layer.forward
        bytes_of_casts.append(own + width * other if needed and any_trained else 0.0)
    return bytes_of_casts


def _shared_cast(layer: Layer, tables: dict[str, int]) -> float:
    """Return how many elements of its shared table a matrix product casts; remove a table that is cast as a whole from *tables*."""
    taken = math.prod(layer.channels)
    if layer.shares in tables and taken < tables[layer.shares]:
        return float(taken)
    return float(tables.pop(layer.shares, 0))


def _live(workload: Workload) -> Iterator[_LiveBytes]:
    """Yield what is live during the backward pass of each layer, in forward order."""
    model, precision = workload.model, workload.training.precision
    fp32, widths = _kept_in_fp32(model, precision), PRECISION_TRAITS[precision]
    share = _autocast_share(workload)
    kept = inside = 0.0  # saved by the layers so far: permanently, and recomputed inside the current segment
    before = 0
    for layer, segment in zip(model.layers, segments(workload), strict=True):
        width = 4.0 if layer.op in fp32 else widths.activation
        saved = share * _saved(layer, precision, fp32)
        if composed := composed_elements(layer, workload.training.stack.kernels):
            saved += composed * composed_saved(layer, precision)
        if segment != before:
            inside = 0.0
            kept += layer.read * width / 4 if segment else 0.0  # the segment's input
        kept, inside, before = (kept, inside + saved, segment) if segment else (kept + saved, 0.0, 0)
        maps = (layer.read + layer.write) * width / 4
        if layer.op == "rnn":
            maps = min(maps, _RECURRENT_MAPS * saved)
        scratch = _CONVOLUTION_SCRATCH * maps if layer.op == "conv" and layer.kernel_size > 1 else 0.0
        yield _LiveBytes(kept + inside, saved, maps, min(maps, layer.read * width / 4), scratch)


def _saved(layer: Layer, precision: Precision, fp32: frozenset[OperatorClass]) -> float:
    """Return the bytes per sample that *layer* saves, from the widths of the precision alone."""
    widths = PRECISION_TRAITS[precision]
    return layer.saved / 4 * (widths.matrix if layer.op in _MATRIX else 4.0 if layer.op in fp32 else widths.activation)


def _autocast_share(workload: Workload) -> float:
    """Return the ratio of the total that autocast saves to the total from widths alone; each product keeps its own cast of FP32 inputs."""
    model, precision = workload.model, workload.training.precision
    if not (PRECISION_TRAITS[precision].autocast and model.autocast_saved):
        return 1.0
    fp32 = _kept_in_fp32(model, precision)
    return model.autocast_saved / (math.fsum(_saved(layer, precision, fp32) for layer in model.layers) or model.autocast_saved)


def _fresh_gradients(workload: Workload, batch: int) -> list[tuple[float, float]]:
    """Return the bytes of weight gradients not yet accumulated during the backward pass of each layer: its own, and those of others.

    The gradient of a shared weight waits from the last use of the weight to its first. At each use in between, the waiting gradient, the
    new one and their sum exist at once.
    """
    widths, layers = PRECISION_TRAITS[workload.training.precision], workload.model.layers
    index = {layer.name: number for number, layer in enumerate(layers)}
    fresh = [_gradient_bytes(layer, widths.gradient, batch) for layer in layers]
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


def _gradients_left(workload: Workload, batch: int) -> list[float]:
    """Return the bytes of gradients left by the backward passes of later layers when that of each layer begins, in forward order."""
    width = PRECISION_TRAITS[workload.training.precision].gradient
    later = accumulate(_gradient_bytes(layer, width, batch) for layer in reversed(workload.model.layers[1:]))
    return [0.0, *later][::-1]


def _gradient_bytes(layer: Layer, width: float, batch: int) -> float:
    """Return the bytes of *layer*'s gradient at *width* bytes per element; a sparse one has only the rows that the batch looked up."""
    nbytes = layer.gradient_bytes(width)
    return nbytes / layer.rows * min(layer.rows, batch * layer.rows_per_sample) if layer.sparse and layer.rows else nbytes


def _tensors(workload: Workload) -> list[float]:
    """Return the bytes of each gradient tensor."""
    width = PRECISION_TRAITS[workload.training.precision].gradient
    return [
        elements * each for layer in workload.model.layers for elements, each in zip(layer.gradients, layer.widths(width), strict=False)
    ]


def _kept_in_fp32(model: Model, precision: Precision) -> frozenset[OperatorClass]:
    """Return the operators whose activations stay FP32 although the precision is narrower.

    The layer table does not distinguish BatchNorm, which keeps the type of its input, from LayerNorm, which autocasts to FP32. Convolutions
    together with buffers (running statistics) indicate BatchNorm.
    """
    if PRECISION_TRAITS[precision].weight <= PRECISION_TRAITS[precision].activation:
        # training loops of decoders widen the logits themselves (logits.float() in torchtitan, Megatron-LM and Hugging Face)
        return frozenset({"loss"}) if model.transformer is not None else frozenset()
    batch_norm = model.buffers > 0 and any(layer.op in CONVOLUTIONS for layer in model.layers)
    return _FP32_UNDER_AUTOCAST if batch_norm else _FP32_UNDER_AUTOCAST | {"norm"}


def _cublas(gpu: Gpu) -> float:
    return _CUBLAS_HOPPER if int(gpu.compute_capability.split(".")[0]) in (9, 10, 12) else _CUBLAS


@lru_cache(maxsize=256)
def _communication(same: IdentityKey, channels: int | None) -> float:
    """Return the bytes of gradient copies for communication and of NCCL's own buffers."""
    workload = _at_full_length(same.held[0])
    stack, tensors = workload.training.stack, _tensors(workload)
    match stack.exchange:
        case ParameterServer() | AsyncParameterServer():  # gradients are sent without a copy and without NCCL
            return 0.0
        case ApexPerTensor():  # each flat copy is freed once it is copied back (NVIDIA/apex distributed.py)
            copies = max(tensors, default=0.0)
        case Horovod(fusion=fusion):  # one buffer of the full threshold (horovod/common/fusion_buffer_manager.cc)
            copies = fusion.threshold
        case Ddp() | Apex() | Flat():  # buckets together hold every gradient (measured in pytorch pull 41954)
            copies = sum(tensors)
        case other:
            assert_never(other)
    if stack.library.backend == "gloo":  # its buffers are in host memory
        return copies
    return copies + (channels or stack.library.channels or _NCCL_CHANNELS) * _NCCL_CONNECTIONS * _NCCL_BUFFERS


def _at_full_length(workload: Workload) -> Workload:
    """Return *workload* with unpadded sequences of a decoder at their full length: they occur now and then, and memory must hold them."""
    model = workload.model
    if model.computed_share is None:
        return workload
    layers = at_full_length(model.layers, model.computed_share)
    return workload.model_copy(update={"model": model.model_copy(update={"layers": layers})})
