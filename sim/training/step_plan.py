"""What does one GPU do in a step, and when does each bucket become ready? Pure: the layer table, cut at bucket boundaries.

The host launches kernels one after another, the GPU runs them in order; where the host falls behind, the GPU waits and the
wait is the step's launch stall. Between two bucket boundaries compute and launch stall are added up, so that simulated
events are as few as the buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.cluster.gpu import Kernels, layer_time, memory_time
from sim.spec.hardware import Gpu
from sim.spec.workload import Layer, Workload
from sim.training.buckets import stack_buckets

GRADIENT_BYTES = 4.0
"""Bytes of one gradient element: parameters and gradients stay FP32 under AMP; pure half precision halves them."""

_OPTIMIZER_KERNELS = {"per_tensor": 4.0, "foreach": 0.05, "fused": 0.01}
"""Launches per parameter tensor: separate ops on each tensor, multi-tensor chunks, one fused kernel per chunk (torch.optim)."""


class Segment(NamedTuple):
    """GPU work (s), the host-bound wait before it (s), and the bucket that is ready at its end (-1: none)."""

    compute: float
    launch: float
    bucket: int = -1


@dataclass(frozen=True)
class StepPlan:
    """One forward and backward pass, the optimizer, and the bytes of each bucket in launch order.

    ``accumulate`` is the whole backward of the micro-batches before the last, which exchange nothing.
    """

    forward: Segment
    backward: tuple[Segment, ...]
    accumulate: Segment
    optimizer: Segment
    buckets: tuple[float, ...]
    micro_batches: int


class _Timeline:
    """Host and GPU clocks of one step."""

    def __init__(self, launch_cpu: float) -> None:
        self.launch_cpu = launch_cpu
        self.host = 0.0
        self.gpu = 0.0

    def run(self, kernels: Kernels) -> Segment:
        """Launch and run *kernels*; return their GPU time and the wait for the host."""
        self.host += kernels.launches * self.launch_cpu
        last_kernel = kernels.time / max(kernels.launches, 1.0)
        stall = max(0.0, self.host + last_kernel - (self.gpu + kernels.time))
        self.gpu += kernels.time + stall
        return Segment(kernels.time, stall)


def gradient_bytes(workload: Workload) -> float:
    """Return the bytes of one gradient element of *workload*."""
    return 2.0 if workload.training.precision in ("fp16", "bf16", "fp8") else GRADIENT_BYTES


def plan_step(workload: Workload, gpu: Gpu, cpu_speed: float, distributed: bool) -> StepPlan:
    """Return the plan of one step on *gpu*, with gradient buckets only if the job is *distributed*."""
    training, layers = workload.training, workload.model.layers
    stack, batch, precision = training.stack, training.batch, training.precision
    timeline = _Timeline(stack.launch_cpu / cpu_speed)

    def run(layer: Layer, backward: bool) -> Segment:
        kernels = layer_time(layer, gpu, precision, stack, batch, backward)
        return timeline.run(Kernels(kernels.time * training.compute_factor, kernels.launches))

    forward = _add([run(layer, False) for layer in layers])
    backward = [(run(layer, True), len(layer.gradients)) for layer in reversed(layers)]
    sizes = [elements * gradient_bytes(workload) for layer in reversed(layers) for elements in layer.gradients]
    assigned = stack_buckets(sizes, stack) if distributed else []
    buckets = tuple(sum(sizes[index] for index in bucket) for bucket in assigned)
    copies = [_copy_time(nbytes, workload, gpu) for nbytes in buckets]
    segments = _cut(backward, [bucket[-1] for bucket in assigned], copies, stack.overlap)
    accumulate = _add([segment for segment, _ in backward])
    optimizer = _optimizer(workload, gpu, stack.launch_cpu / cpu_speed)
    after = Segment(optimizer.compute + sum(copies) + (stack.distributed_overhead if distributed else 0.0), optimizer.launch)
    return StepPlan(forward, segments, accumulate, after, buckets, training.gradient_accumulation_steps)


def _cut(layers: Sequence[tuple[Segment, int]], last: Sequence[int], copies: Sequence[float], overlap: bool) -> tuple[Segment, ...]:
    """Cut backward, given as layers with their numbers of gradient tensors, after the *last* tensor of each bucket.

    Each bucket is filled (*copies*, s) as soon as its tensors are there; without *overlap* all are, after the last layer.
    """
    if not overlap:
        return (_add([segment for segment, _ in layers]), *(Segment(copy, 0.0, bucket) for bucket, copy in enumerate(copies)))
    segments: list[Segment] = []
    pending: list[Segment] = []
    tensors = 0
    for segment, count in layers:
        pending.append(segment)
        tensors += count
        while len(segments) < len(last) and last[len(segments)] < tensors:
            bucket = len(segments)
            segments.append(_add([*pending, Segment(copies[bucket], 0.0)])._replace(bucket=bucket))
            pending = []
    return (*segments, _add(pending)) if pending else tuple(segments)


def _copy_time(nbytes: float, workload: Workload, gpu: Gpu) -> float:
    """Half of the copy passes move gradients into buckets, the other half back out."""
    return memory_time(nbytes * workload.training.stack.gradient_copy_passes / 2, gpu)


def _optimizer(workload: Workload, gpu: Gpu, launch_cpu: float) -> Segment:
    tensors = sum(len(layer.gradients) for layer in workload.model.layers)
    elements = sum(sum(layer.gradients) for layer in workload.model.layers)
    launches = max(1.0, tensors * _OPTIMIZER_KERNELS[workload.training.stack.optimizer])
    passes = workload.training.optimizer.passes
    busy = memory_time(elements * gradient_bytes(workload) * passes, gpu) + launches * gpu.kernel_time
    return Segment(busy, max(0.0, launches * launch_cpu - busy))


def _add(segments: list[Segment]) -> Segment:
    return Segment(sum(segment.compute for segment in segments), sum(segment.launch for segment in segments))
