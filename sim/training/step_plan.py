"""What does one GPU do in a step, and when does it meet other ranks? The layer table, cut where ranks communicate; no simulation.

The host launches kernels sequentially, and the GPU runs them in order. If the host falls behind, the GPU waits; this wait is the launch
stall of the step. With CUDA graphs, one launch starts all kernels of a micro-batch and the optimizer (NVIDIA, CUDA C++ Programming Guide,
"CUDA Graphs"); the shorter gaps between kernels of a graph are not modeled. Kernels between two cuts form one segment, which ends exactly
when its kernels would if simulated individually (max-plus algebra), however far the host is ahead. The number of simulated events is thus
proportional to the number of operations in `sim.parallel.lower.exchange_plan`, not to the number of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from sim.cluster.gpu import KernelWork, memory_time
from sim.parallel.lower.exchange_plan import BucketPlan, gradient_bytes, gradient_volume
from sim.parallel.lower.step_program import StepProgram, step_program
from sim.parallel.program import Instruction, Load, Pack, PassPart, Program, Start, Unpack, Wait, Work
from sim.spec import extensions
from sim.spec.hardware import Gpu
from sim.spec.identity import IdentityKey, same_layers
from sim.spec.layer import Layer
from sim.spec.model import batch_norms
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.segments import layers_to_recompute, segments
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.training.layer_times import layer_times, same_gpu
from sim.training.muon import muon_work

_OPTIMIZER_KERNELS = {"foreach": 0.05, "fused": 0.01}
"""Launches per parameter tensor: multi-tensor chunks, or one fused kernel per chunk (torch.optim). Otherwise, each tensor has its own."""
_CLIPPING_PASSES = 3.0
"""Gradients are read for their norm, then read and written (torch.nn.utils.clip_grad_norm_)."""


_new = tuple.__new__
"""Creates a NamedTuple from all its fields in half the time of its constructor; a plan has thousands."""


class Segment(NamedTuple):
    """Sequential kernels: their GPU time (s), their host time, and the bucket that is full at their end (-1: none)."""

    compute: float
    host: float = 0.0
    """Time (s) in which the host launches them."""
    gpu_wait: float = 0.0
    """Time (s) that the GPU waits in total if host and GPU begin the segment together; negative if the host keeps ahead."""
    bucket: int = -1
    waits_for_gpu: bool = False
    """Whether the host waits for the GPU before it begins to launch."""

    def wait(self, host: float, gpu: float) -> float:
        """Return how long the GPU, free at *gpu*, waits for the host, which has launched all earlier work at *host*."""
        return max(0.0, (gpu if self.waits_for_gpu else host) + self.gpu_wait - gpu)

    def launch_end(self, host: float, gpu: float) -> float:
        """Return when the host has launched this segment, with *host* and *gpu* as in `wait`."""
        return (gpu if self.waits_for_gpu else host) + self.host


class StepPlan(NamedTuple):
    """The program of one step, and the segment of each instruction; None if the instruction has no GPU work of its own."""

    program: Program
    segments: tuple[Segment | None, ...]

    @property
    def optimizer(self) -> Segment:
        """Return the segment of the optimizer update."""
        return self.segments[-1] or Segment(0.0)

    def waits(self, before: float = 0.0, after: float = 0.0) -> list[float]:
        """Return how long the GPU waits for the host at each instruction.

        *before* and *after* are the times (s) that it waits for other ranks: before the forward pass of the last micro-batch, and for
        gradients at the end of its backward pass.
        """
        host, gpu, waited, last = 0.0, 0.0, list[float](), self._last
        for each, segment in zip(self.program, self.segments, strict=True):
            if isinstance(each, Wait) and each.tag[1] >= 0 and each.tag[2] == last:
                gpu, after = gpu + after, 0.0
            if isinstance(each, Load) or (isinstance(each, Wait) and each.host):
                host = gpu
            gpu += before if isinstance(each, Load) and each.micro_batch == last else 0.0
            wait = segment.wait(host, gpu) if segment else 0.0
            if segment:
                host = segment.launch_end(host, gpu)
                gpu += wait + segment.compute
            waited.append(wait)
        return waited

    @property
    def isolated_time(self) -> float:
        """Return the time (s) of a step that does not wait for other ranks."""
        return math.fsum(segment.compute for segment in self.segments if segment) + math.fsum(self.waits())

    @property
    def _last(self) -> int:
        """Return the number of the last micro-batch."""
        return max(each.micro_batch for each in self.program if isinstance(each, Load))

    @property
    def buckets(self) -> tuple[float, ...]:
        """Return the bytes of each gradient bucket of the last micro-batch, in launch order."""
        starts = [each for each in self.program if isinstance(each, Start) and each.tag[1] >= 0 and each.tag[2] == self._last]
        return tuple(sum(message.nbytes for message in start.messages) for start in starts)

    def passes(self, part: PassPart, micro_batch: int = -1) -> list[tuple[Work | Pack, Segment]]:
        """Return the work and segments of the forward or backward pass of one micro-batch, by default the last.

        Instructions that fill a bucket are included only if no work precedes them; otherwise the segment of that work includes the copy.
        """
        number = micro_batch if micro_batch >= 0 else self._last
        return [
            (each, segment)
            for each, segment in zip(self.program, self.segments, strict=True)
            if segment is not None and isinstance(each, Work | Pack) and each.micro_batch == number
            if part == (each.part if isinstance(each, Work) else "B")
        ]


class StepClocks:
    """Host and GPU clocks of one step."""

    def __init__(self, launch_cpu: float) -> None:
        self.launch_cpu = launch_cpu
        self.host = 0.0
        self.gpu = 0.0

    def run(self, time: float, launches: float) -> float:
        """Launch and run kernels of *time* seconds; return how long the GPU waits for the host."""
        return self.play(kernel_segment(time, launches, self.launch_cpu))

    def play(self, segment: Segment) -> float:
        """Launch and run *segment*; return how long the GPU waits for the host."""
        stall = segment.wait(self.host, self.gpu)
        self.host = segment.launch_end(self.host, self.gpu)
        self.gpu += segment.compute + stall
        return stall


def kernel_segment(time: float, launches: float, launch_cpu: float) -> Segment:
    """Return a segment of *launches* equal kernels with a total GPU time of *time* (s), none of which begins before it is launched."""
    host = launches * launch_cpu
    if launches <= 1.0:
        return _new(Segment, (time, host, host, -1, False))
    return _new(Segment, (time, host, max(launch_cpu, host + time / launches - time), -1, False))


class TimedPass(NamedTuple):
    """The segments of forward, in layer order, and backward, in reverse order, and when each gradient is ready (s after backward began)."""

    forward: list[Segment]
    backward: list[Segment]
    ready: list[float]


def plan_step(workload: Workload, gpu: Gpu, cpu_speed: float, ranks: int) -> StepPlan:
    """Return the plan of one step on *gpu*, for one of *ranks* equal ranks."""
    return plan_steps([(workload, gpu, cpu_speed)], ranks)[0]


def plan_steps(machines: Sequence[tuple[Workload, Gpu, float]], ranks: int) -> list[StepPlan]:
    """Return the plan of one step on each of *machines* (workload, GPU, core speed).

    The job has *ranks* ranks in total, which all run the same operations. The workloads may differ in their batch.
    """
    keys = [plan_key(workload, gpu, cpu_speed) for workload, gpu, cpu_speed in machines]
    plans = _plans(tuple(dict.fromkeys(keys)), ranks)
    return [plans[machine] for machine in keys]


def plan_key(workload: Workload, gpu: Gpu, cpu_speed: float) -> IdentityKey:
    """Return the cache key of a plan. It covers everything that affects the plan; other fields of the descriptions may change."""
    training = workload.training
    scales = training.stack.kernels.launch_cpu, training.compute_factor, cpu_speed
    own_exchange = extensions.registration_count(extensions.EXCHANGES, training.stack.exchange.own_exchange)
    settings = training.gradient_accumulation_steps, training.activation_checkpointing, training.optimizer.name, own_exchange
    return IdentityKey((same_layers(workload), same_gpu(gpu), *scales, *settings), workload, gpu, cpu_speed)


@lru_cache(maxsize=4096)  # as large as a study's result cache (`sim.spec.memo`), because a sweep revisits each plan
def _plans(different: tuple[IdentityKey, ...], ranks: int) -> dict[IdentityKey, StepPlan]:
    """Return the plan of each of *different* machines of one job."""
    passes = [timed_pass(key) for key in different]
    ready = [max(times) for times in zip(*(each_pass.ready for each_pass in passes), strict=True)]
    program = step_program(different[0].held[0], ready, ranks)
    return {key: _plan(key, each_pass, program, ranks) for key, each_pass in zip(different, passes, strict=True)}


@lru_cache(maxsize=128)
def timed_pass(key: IdentityKey) -> TimedPass:
    """Return one forward and backward pass on one GPU, layer by layer."""
    workload, gpu, cpu_speed = key.held
    layers, stack, factor = workload.model.layers, workload.training.stack, workload.training.compute_factor
    times, launched = layer_times(workload, gpu), not stack.kernels.cuda_graphs
    launch_cpu = stack.kernels.launch_cpu / cpu_speed

    def run_forward(index: int) -> Segment:
        return kernel_segment(times.forward[index] * factor, times.forward_launches[index] * launched, launch_cpu)

    def run_backward(index: int) -> Segment:
        return kernel_segment(times.backward[index] * factor, times.backward_launches[index] * launched, launch_cpu)

    forward = [run_forward(index) for index in range(len(layers))]
    if stack.kernels.cuda_graphs and forward:
        forward[0] = _joined([kernel_segment(0.0, 1.0, launch_cpu), forward[0]])
    recomputed_layers = layers_to_recompute(segments(workload))
    backward = [
        _joined([*map(run_forward, recomputed_layers[index]), run_backward(index)]) if index in recomputed_layers else run_backward(index)
        for index in reversed(range(len(layers)))
    ]
    return TimedPass(forward, backward, _ready(workload, forward, backward))


def _ready(workload: Workload, forward: Sequence[Segment], backward: Sequence[Segment]) -> list[float]:
    """Return when each gradient tensor is ready after backward began, on a GPU that waits only for its host."""
    timeline = StepClocks(0.0)
    for segment in forward:
        timeline.play(segment)
    ends = list(accumulate(segment.compute + timeline.play(segment) for segment in backward))
    overlap, layers = workload.training.stack.exchange.overlap, reversed(workload.model.layers)
    return [end if overlap else ends[-1] for end, layer in zip(ends, layers, strict=True) for _ in layer.gradients]


def _plan(key: IdentityKey, each_pass: TimedPass, program: StepProgram, ranks: int) -> StepPlan:
    workload, gpu, cpu_speed = key.held
    stack = workload.training.stack
    # a parameter server runs the optimizer
    optimizer = (
        Segment(0.0)
        if isinstance(stack.exchange, ServerExchange)
        else _optimizer(workload, gpu, stack.kernels.launch_cpu / cpu_speed, ranks)
    )
    extra = stack.exchange.distributed_overhead if program.buckets else 0.0
    if stack.update.gradient_clipping:
        extra += memory_time(_CLIPPING_PASSES * gradient_volume(workload), gpu)
    optimizer = optimizer._replace(compute=optimizer.compute + extra)
    return StepPlan(program.instructions, (*_segments(workload, gpu, each_pass, program), optimizer))


def _segments(workload: Workload, gpu: Gpu, each_pass: TimedPass, program: StepProgram) -> Iterator[Segment | None]:
    """Yield the segment of each instruction except the update. The copy into a bucket is merged into the work before it."""
    copies = [_copy_time(bucket.copied_bytes / 2, bucket.payload.bytes_before, workload, gpu, bucket) for bucket in program.buckets]
    after = Segment(sum(_copy_time(bucket.copied_bytes / 2, bucket.payload.bytes_after, workload, gpu) for bucket in program.buckets))
    layers = {"F": each_pass.forward, "B": each_pass.backward[::-1]}
    segments: dict[tuple[str, int, int, int], Segment] = {}
    previous: Instruction | None = None
    for each, following in pairwise(program.instructions):
        match each:
            case Work(part, first, last):
                bucket = following.bucket if isinstance(following, Pack) else -1
                key = part, first, last, bucket
                if key not in segments:
                    run = layers[part][first : last + 1]
                    joined = _joined(run if part == "F" else run[::-1])
                    segments[key] = joined if bucket < 0 else joined._replace(compute=joined.compute + copies[bucket], bucket=bucket)
                yield segments[key]
            case Pack(bucket) if not isinstance(previous, Work):
                yield Segment(copies[bucket], bucket=bucket)
            case Unpack():
                yield after
            case _:
                yield None
        previous = each


def _copy_time(copied: float, traffic: float, workload: Workload, gpu: Gpu, compressed: BucketPlan | None = None) -> float:
    """Return the time (s) to move *copied* bytes into or out of buckets, plus that of a payload's *traffic*, which overlaps its FLOP."""
    copy = memory_time(copied * workload.training.stack.exchange.gradient_copy_passes, gpu)
    if compressed is None:
        return copy + memory_time(traffic, gpu)
    return copy + max(memory_time(traffic, gpu), compressed.payload.flop / gpu.peak["fp32"]) + compressed.payload.kernels * gpu.kernel_time


def _updated_bytes(layer: Layer, workload: Workload, ranks: int) -> float:
    """Return the bytes that the optimizer updates: for a table with sparse gradients, the rows that any rank looked up (torch.optim)."""
    width, stack = gradient_bytes(workload), workload.training.stack
    nbytes = layer.gradient_bytes(width)
    if not layer.rows_per_sample or not (stack.exchange.sparse_embeddings or (layer.sparse and ranks == 1)):
        return nbytes
    samples = workload.training.batch * workload.training.gradient_accumulation_steps * ranks
    return nbytes - layer.gradients[0] * layer.widths(width)[0] * (1.0 - min(1.0, samples * layer.rows_per_sample / layer.rows))


def optimizer_work(workload: Workload, gpu: Gpu, ranks: int = 1) -> KernelWork:
    """Return the GPU time and the number of launches of one optimizer step, on one of *ranks*."""
    stack, optimizer = workload.training.stack, workload.training.optimizer
    if optimizer.name == "none":
        return KernelWork(0.0, 0.0)
    tensors = sum(len(layer.gradients) for layer in workload.model.layers)
    updated = sum(_updated_bytes(layer, workload, ranks) for layer in workload.model.layers)
    kernels = max(1.0, tensors * _OPTIMIZER_KERNELS.get(stack.update.optimizer, optimizer.separate_kernels))
    passes = optimizer.passes if stack.update.optimizer == "fused" else optimizer.separate_passes
    busy = memory_time(updated * passes, gpu) + kernels * gpu.kernel_time
    more = muon_work(workload, gpu)
    return KernelWork(busy * stack.update.optimizer_factor + more.time, kernels * stack.update.optimizer_factor + more.launches)


def gradient_checks(workload: Workload) -> float:
    """Return the number of launches for gradient checks between backward and optimizer, during which the GPU waits."""
    return workload.training.stack.update.gradient_checks * sum(len(layer.gradients) for layer in workload.model.layers)


def mean_time_to_norm(workload: Workload, plan: StepPlan) -> float:
    """Return the mean compute time (s) in backward until the next persistent batch norm; infinity if there are none.

    Such a kernel cannot finish before a concurrent collective does (PyTorch issue 80259, NVIDIA/nccl issues 338 and 661). At a random
    moment, the next of evenly spaced norms is half a spacing away on average.
    """
    training = workload.training
    norms = len(batch_norms(workload.model)) if training.stack.kernels.persistent_norms else 0
    if not norms or PRECISION_TRAITS[training.precision].activation >= 4.0:
        return math.inf
    return sum(segment.compute for _, segment in plan.passes("B")) / norms / 2


def reads_before_update(workload: Workload) -> bool:
    """Return whether the host waits for backward before it launches the optimizer, because it reads a result back.

    Loss scaling reads whether gradients overflowed (torch.amp.GradScaler.step, apex's LossScaler.update_scale); gradient checks read more.
    """
    training = workload.training
    return training.precision in ("amp_fp16", "fp16") or training.stack.update.gradient_checks > 0


def _optimizer(workload: Workload, gpu: Gpu, launch_cpu: float, ranks: int) -> Segment:
    """Return the segment of the optimizer, including the host's gradient checks before it."""
    busy, launches = optimizer_work(workload, gpu, ranks)
    host = 0.0 if workload.training.stack.kernels.cuda_graphs else launches * launch_cpu
    checks = gradient_checks(workload) * launch_cpu
    return Segment(busy, checks + host, checks + max(0.0, host - busy), waits_for_gpu=reads_before_update(workload))


def _joined(segments: Sequence[Segment]) -> Segment:
    """Return sequential *segments*, none of them drained, merged into one.

    This composes ``end = max(gpu + compute, host + late + compute)`` over the segments in order.
    """
    compute, host, late = 0.0, 0.0, -math.inf
    for segment in segments:
        late = max(late, host - compute + segment.gpu_wait)
        compute += segment.compute
        host += segment.host
    return Segment(compute, host, late)
