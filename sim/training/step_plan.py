"""What does one GPU do in a step, and when does each bucket become ready? Pure: the layer table, cut at bucket boundaries.

The host launches kernels one after another, the GPU runs them in order; where the host falls behind, the GPU waits and the
wait is the step's launch stall. Between two bucket boundaries compute and launch stall are added up, so that simulated
events are as few as the buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sim.cluster.gpu import Kernels, layer_time, memory_time
from sim.spec.hardware import Gpu
from sim.spec.workload import Workload
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

    ``accumulate`` are the backward segments of micro-batches before the last, which exchange nothing.
    """

    forward: Segment
    backward: tuple[Segment, ...]
    accumulate: Segment
    optimizer: Segment
    buckets: tuple[float, ...]
    micro_batches: int

    @property
    def compute(self) -> float:
        """Return the GPU time of a whole step (s), launch stalls left out."""
        last = self.forward.compute + sum(segment.compute for segment in self.backward) + self.optimizer.compute
        return last + (self.micro_batches - 1) * (self.forward.compute + self.accumulate.compute)


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
        end = max(self.gpu + kernels.time, self.host + last_kernel)
        stall = max(0.0, end - self.gpu - kernels.time)
        self.gpu = end
        return Segment(kernels.time, stall)


def gradient_bytes(workload: Workload) -> float:
    """Return the bytes of one gradient element of *workload*."""
    return 2.0 if workload.training.precision in ("fp16", "bf16", "fp8") else GRADIENT_BYTES


def plan_step(workload: Workload, gpu: Gpu, cpu_speed: float, distributed: bool) -> StepPlan:
    """Return the plan of one step on *gpu*, with gradient buckets only if the job is *distributed*."""
    training, layers = workload.training, workload.model.layers
    stack, batch, precision = training.stack, training.batch, training.precision
    timeline = _Timeline(stack.launch_cpu / cpu_speed)
    factor = training.compute_factor
    forward = _add([timeline.run(_scaled(layer_time(layer, gpu, precision, stack, batch), factor)) for layer in layers])

    width = gradient_bytes(workload)
    sizes = [elements * width for layer in reversed(layers) for elements in layer.gradients]
    assigned = stack_buckets(sizes, stack) if distributed else []
    closes = {bucket[-1]: index for index, bucket in enumerate(assigned)}
    buckets = tuple(sum(sizes[index] for index in bucket) for bucket in assigned)

    segments: list[Segment] = []
    open_segments: list[Segment] = []
    tensor = 0
    for layer in reversed(layers):
        open_segments.append(timeline.run(_scaled(layer_time(layer, gpu, precision, stack, batch, backward=True), factor)))
        for _ in layer.gradients:
            if tensor in closes:
                index = closes[tensor]
                open_segments.append(Segment(_copy_time(buckets[index], workload, gpu), 0.0))
                segments.append(_add(open_segments)._replace(bucket=index))
                open_segments = []
            tensor += 1
    if open_segments:
        segments.append(_add(open_segments))
    whole = _add(segments)
    copied = _copy_time(sum(buckets), workload, gpu)
    optimizer = _optimizer(workload, gpu, stack.launch_cpu / cpu_speed)
    accumulate = Segment(whole.compute - copied, whole.launch)
    after = Segment(optimizer.compute + copied + (stack.distributed_overhead if distributed else 0.0), optimizer.launch)
    return StepPlan(forward, tuple(segments), accumulate, after, buckets, training.gradient_accumulation_steps)


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


def _scaled(kernels: Kernels, factor: float) -> Kernels:
    return Kernels(kernels.time * factor, kernels.launches)


def _add(segments: list[Segment]) -> Segment:
    return Segment(sum(segment.compute for segment in segments), sum(segment.launch for segment in segments))
