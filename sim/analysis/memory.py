"""How much GPU memory does one training step need? A first estimate by use, at the moment of the step that needs most.

The split follows TBD (arXiv 1803.06905): weights, gradients, optimizer state, activations, workspace; beside them
communication buffers, input batches and the CUDA context. Weights, gradients and state go by the element widths of the precision.
Backward frees what forward saved, layer by layer, so activations peak at the layer i that maximises
``sum(saved, layers up to i) + read(i) + write(i) + scratch(i)``: the gradients of its inputs and outputs exist together with what
the layers before it saved. All of that grows with the batch, and so does the input; nothing else does.

Limits: gradients count as allocated throughout; no fragmentation or rounding of the allocator; no activation checkpointing; the
optimizer's temporaries (about one copy of the parameters for "foreach", torch.optim documentation) are left out: they are needed
when activations are already freed. cuDNN's scratch memory is an estimate.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import NamedTuple

from sim.spec.fields import OperatorClass, Precision
from sim.spec.hardware import Gpu
from sim.spec.workload import Layer, Model, Workload

_MIB = 2.0**20


class _Widths(NamedTuple):
    """Bytes per element."""

    weight: float
    cast: float
    """Of the copy in which autocast keeps the weights of matrix operators for the whole step."""
    gradient: float
    state: float
    activation: float
    matrix: float
    """Of activations saved by matrix operators."""


_AMP = _Widths(4, 2, 4, 4, 2, 2)  # torch.amp documentation: parameters stay FP32, casts of weights are cached
_HALF = _Widths(2, 0, 2, 2, 2, 2)  # torch.optim creates state in the parameters' type
_WIDTHS: dict[Precision, _Widths] = {
    "fp32": _Widths(4, 0, 4, 4, 4, 4),
    "tf32": _Widths(4, 0, 4, 4, 4, 4),
    "amp_fp16": _AMP,
    "amp_bf16": _AMP,
    "fp16": _HALF,
    "bf16": _HALF,
    "fp8": _Widths(4, 2, 4, 4, 2, 1),  # Transformer Engine user guide: weights keep their type, FP8 copy plain and transposed
}

_CONVOLUTIONS: frozenset[OperatorClass] = frozenset({"conv", "pointwise_conv", "depthwise_conv"})
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
_INPUT_BATCHES = 2
"""``x = x.cuda()`` in a loop copies the next batch while the name still holds the last one."""
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
        return math.fsum(asdict(self).values())

    def by_use(self) -> dict[str, float]:
        """Return the bytes by use, and their ``total``."""
        return {**asdict(self), "total": self.total}


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
    model, training = workload.model, workload.training
    widths = _WIDTHS[training.precision]
    trainable = float(sum(_elements(layer) for layer in model.layers))
    activations, scratch = _peak(model, training.precision)
    return MemoryUse(
        weights=widths.weight * model.parameters + widths.cast * _cast_elements(model) + model.buffers,
        gradients=widths.gradient * trainable,
        optimizer_state=0.0 if training.stack.uses_servers else widths.state * training.optimizer.states * trainable,
        activations=batch * activations,
        workspace=batch * scratch + _cublas(gpu),
        communication_buffers=_communication(workload, channels, gradient_as_bucket_view) if ranks > 1 else 0.0,
        input=batch * model.input * (1 if workload.input.loader == "synthetic" else _INPUT_BATCHES),
        context=gpu.context_memory,
    )


def largest_batch(
    workload: Workload, gpu: Gpu, *, ranks: int = 1, channels: int | None = None, gradient_as_bucket_view: bool = False
) -> int:
    """Return the largest batch per GPU whose step fits into *gpu*'s memory, 0 where not even one sample fits.

    Raise ValueError for a model without activations or input, of which any batch fits.
    """

    def total(batch: int) -> float:
        return gpu_memory(workload, gpu, ranks=ranks, batch=batch, channels=channels, gradient_as_bucket_view=gradient_as_bucket_view).total

    first, per_sample = total(1), total(2) - total(1)
    if first > gpu.memory:
        return 0
    if per_sample <= 0:
        raise ValueError(f"{workload.model.name}: the layer table holds no activation sizes, so any batch fits")
    return 1 + math.floor((gpu.memory - first) / per_sample)


def _elements(layer: Layer) -> int:
    return sum(layer.gradients)


def _cast_elements(model: Model) -> int:
    """Return the weights that autocast keeps a second copy of: those of matrix operators, frozen ones included."""
    return model.parameters - sum(_elements(layer) for layer in model.layers if layer.op not in _MATRIX)


def _peak(model: Model, precision: Precision) -> tuple[float, float]:
    """Return bytes per sample of activations and of scratch memory at the layer of backward that needs most."""
    fp32 = _kept_in_fp32(model, precision)
    widths = _WIDTHS[precision]
    saved, peak = 0.0, (0.0, 0.0)
    for layer in model.layers:
        width = 4.0 if layer.op in fp32 else widths.activation
        saved += layer.saved * (widths.matrix if layer.op in _MATRIX else width) / 4
        maps = (layer.read + layer.write) * width / 4
        scratch = _CONVOLUTION_SCRATCH * maps if layer.op == "conv" and layer.kernel_size > 1 else 0.0
        peak = max(peak, (saved + maps, scratch), key=sum)
    return peak


def _kept_in_fp32(model: Model, precision: Precision) -> frozenset[OperatorClass]:
    """Return the operators whose activations stay FP32 although the precision is narrower.

    The table does not tell BatchNorm, which takes its input's type, from LayerNorm, which autocasts to FP32: convolutions and
    buffers (running statistics) together mean BatchNorm.
    """
    if precision not in ("amp_fp16", "amp_bf16", "fp8"):
        return frozenset()
    batch_norm = model.buffers > 0 and any(layer.op in _CONVOLUTIONS for layer in model.layers)
    return _FP32_UNDER_AUTOCAST if batch_norm else _FP32_UNDER_AUTOCAST | {"norm"}


def _cublas(gpu: Gpu) -> float:
    return _CUBLAS_HOPPER if int(gpu.compute_capability.split(".")[0]) in (9, 10, 12) else _CUBLAS


def _communication(workload: Workload, channels: int | None, gradient_as_bucket_view: bool) -> float:
    """Return the bytes of gradient copies on their way and of NCCL's own buffers."""
    stack = workload.training.stack
    if stack.uses_servers:  # gradients leave as they are, without NCCL
        return 0.0
    width = _WIDTHS[workload.training.precision].gradient
    tensors = [elements for layer in workload.model.layers for elements in layer.gradients]
    if stack.strategy == "apex_per_tensor":  # each flat copy is freed once it is copied back (NVIDIA/apex distributed.py)
        copies = width * max(tensors, default=0)
    elif stack.fusion:  # one buffer, allocated whole (horovod/common/fusion_buffer_manager.cc)
        copies = stack.fusion.threshold
    else:  # DDP's buckets together, or one flat copy, hold every gradient (pytorch pull 41954 measured as much)
        copies = 0.0 if gradient_as_bucket_view and stack.strategy == "ddp" else width * sum(tensors)
    return copies + (channels or stack.channels or _NCCL_CHANNELS) * _NCCL_CONNECTIONS * _NCCL_BUFFERS
