"""What do the ranks of one job exchange in a step, and at which layers? Pure: from the layer table and the stack to operations.

Buckets come from `buckets`, their payloads from `compression`. Torch's DDP broadcasts buffers before the first forward
after an exchange (torch/nn/parallel/distributed.py, ``_sync_buffers``), separately for each data type (c10d's
``compute_bucket_assignment_by_size``): BatchNorm's statistics in FP32, then its batch counts in int64. SyncBatchNorm gathers mean,
inverse deviation and count of every channel in forward, and sums two gradients of them in backward (torch/nn/modules/_functions.py),
in FP32. Limits: its own kernels cost the same as those of BatchNorm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from sim.parallel.lower.buckets import GRADIENT_ELEMENT, exchange_buckets
from sim.parallel.lower.compression import Payload, Tensor, payload
from sim.parallel.lower.fusion import Bucket
from sim.parallel.program import Message, Start
from sim.spec.layer import Layer
from sim.spec.model import batch_norms
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.stack import Exchange, ServerExchange
from sim.spec.workload import Workload

SCALAR_BYTES = 4.0
_COUNT_BYTES = 8.0


class BucketPlan(NamedTuple):
    """One bucket: the place of its last tensor in ready order, the gradient bytes copied into it, its payload and its ``Start``."""

    last: int
    copied_bytes: float
    payload: Payload
    start: Start


class ExchangePlan(NamedTuple):
    """The operations of a micro-batch that exchanges; *norms*: (forward, backward) of each BatchNorm layer, by its place in the table."""

    before: tuple[Start, ...] = ()
    between: tuple[Start, ...] = ()
    buckets: tuple[BucketPlan, ...] = ()
    norms: Mapping[int, tuple[Start, Start]] = {}


def start_of(name: str, messages: Sequence[Message], bucket: int = -1, delay: float = 0.0) -> Start:
    """Return the ``Start`` of the operation *name* among all ranks, for *bucket* (-1: none), in the first micro-batch."""
    (op, nbytes), *more = messages
    return Start((name, bucket, 0), op, "shard", nbytes, "gradients", more_messages=tuple(more), delay=delay)


def gradient_bytes(workload: Workload) -> float:
    """Return the bytes of one gradient element of *workload* for tensors that the model's code declares as FP32."""
    return PRECISION_TRAITS[workload.training.precision].gradient


def gradient_volume(workload: Workload) -> float:
    """Return the bytes of all gradients of *workload*, each tensor in its own data type."""
    width = gradient_bytes(workload)
    return sum(layer.gradient_bytes(width) for layer in workload.model.layers)


def sent_width(workload: Workload, element: float | None = None) -> float:
    """Return the bytes that are sent for a gradient element of *element* bytes (default: an FP32 tensor's element)."""
    wire = workload.training.stack.exchange.wire_dtype
    element = gradient_bytes(workload) if element is None else element
    narrow = wire in ("fp16", "bf16") or (wire == "autocast" and PRECISION_TRAITS[workload.training.precision].autocast)
    return min(element, 2.0) if narrow else element


def plan_exchange(workload: Workload, ready: Sequence[float], ranks: int) -> ExchangePlan:
    """Return what *ranks* exchange if all of them have each gradient tensor at *ready* (s after backward began, increasing)."""
    exchange, buffers = workload.training.stack.exchange, _buffers(workload)
    if ranks == 1 and not isinstance(exchange, ServerExchange):
        return ExchangePlan()
    before = [start_of("broadcast buffers", buffers)] if exchange.broadcast_buffers and buffers else []
    scalar = (Message("all_reduce", SCALAR_BYTES),)
    between = [start_of(f"scalar {index}", scalar) for index in range(exchange.blocking_scalar_all_reduces)]
    norms = {index: _norm(workload.model.layers[index], ranks) for index in batch_norms(workload.model)} if exchange.sync_batch_norm else {}
    return ExchangePlan(tuple(before), tuple(between), _buckets(workload, ready, ranks), norms)


def _buffers(workload: Workload) -> tuple[Message, ...]:
    """Return the broadcasts of buffers, one per data type; Gloo's two threads send both at once, so they are combined into one."""
    total, counts = workload.model.buffers, _COUNT_BYTES * len(batch_norms(workload.model))
    parts = (total,) if workload.training.stack.library.backend == "gloo" else (total - counts, counts)
    return tuple(Message("broadcast", nbytes) for nbytes in parts if nbytes > 0)


def gradient_tensors(workload: Workload) -> list[Tensor]:
    """Return the gradient tensors of *workload* in the order in which they become ready."""
    training = workload.training
    samples = training.batch * (training.gradient_accumulation_steps if training.stack.exchange.no_sync else 1)
    sparse = training.stack.exchange.sparse_embeddings
    return [
        tensor for layer in reversed(workload.model.layers) for tensor in _tensors(layer, samples * layer.rows_per_sample if sparse else 0)
    ]


def gradient_widths(workload: Workload) -> list[float]:
    """Return the bytes per element of each tensor in `gradient_tensors`."""
    width = gradient_bytes(workload)
    return [each for layer in reversed(workload.model.layers) for each in layer.widths(width)[: len(layer.gradients)]]


def _tensors(layer: Layer, touched: int) -> list[Tensor]:
    """Return the gradient tensors of *layer*; *touched*: rows of its table that are sent if the table is sent as rows, else 0."""
    rows = layer.rows or (layer.channels[-1] if layer.channels else 1)
    tensors = [Tensor(elements, rows if elements % rows == 0 and elements > rows else 1.0) for elements in layer.gradients]
    return [tensors[0]._replace(touched_rows=float(min(touched, layer.rows))), *tensors[1:]] if touched and tensors else tensors


def _buckets(workload: Workload, ready: Sequence[float], ranks: int) -> tuple[BucketPlan, ...]:
    exchange, tensors, widths = workload.training.stack.exchange, gradient_tensors(workload), gradient_widths(workload)
    sizes = [width * tensor.elements for width, tensor in zip(widths, tensors, strict=True)]
    sparse = {index for index, tensor in enumerate(tensors) if tensor.touched_rows is not None}
    plans = []
    for index, bucket in enumerate(_buckets_by_type(sizes, widths, sparse, exchange, ready, ranks)):
        element = widths[bucket.tensors[0]]
        sent = payload([tensors[place] for place in bucket.tensors], element, sent_width(workload, element), exchange.compression, ranks)
        copied = sum(sizes[place] for place in bucket.tensors if place not in sparse)
        plans.append(BucketPlan(bucket.tensors[-1], copied, sent, start_of(f"bucket {index}", sent.messages, index, bucket.delay)))
    return tuple(plans)


def _buckets_by_type(
    sizes: Sequence[float], widths: Sequence[float], sparse: Set[int], exchange: Exchange, ready: Sequence[float], ranks: int
) -> list[Bucket]:
    """Return the buckets in launch order; no framework mixes data types in one bucket.

    torch's reducer.cpp fills buckets for each type and device (``BucketKey``); apex splits by type; Horovod fuses only equal types.
    """
    if len(set(widths)) < 2:
        return exchange_buckets(sizes, exchange, ready, ranks, widths[0] if widths else GRADIENT_ELEMENT, sparse)
    buckets = []
    for width in dict.fromkeys(widths):
        places = [index for index, other in enumerate(widths) if other == width]
        alone = {index for index, place in enumerate(places) if place in sparse}
        times = [ready[place] for place in places if ready]
        for bucket in exchange_buckets([sizes[place] for place in places], exchange, times, ranks, width, alone):
            buckets.append(Bucket(tuple(places[index] for index in bucket.tensors), bucket.delay))
    return sorted(buckets, key=lambda bucket: bucket.tensors[-1])


def _norm(layer: Layer, ranks: int) -> tuple[Start, Start]:
    channels = layer.gradients[0]
    gathered = Message("all_gather", ranks * (2.0 * channels + 1.0) * SCALAR_BYTES)
    summed = Message("all_reduce", 2.0 * channels * SCALAR_BYTES)
    return start_of("batch norm forward", (gathered,)), start_of("batch norm backward", (summed,))
