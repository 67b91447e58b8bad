"""What does one GPU do in a step, and when does it meet the others? Pure: the layer table, cut where ranks exchange something.

The host launches kernels one after another, the GPU runs them in order; where the host falls behind, the GPU waits and the
wait is the step's launch stall. With CUDA graphs one launch starts all kernels of a micro-batch and the optimizer (NVIDIA, CUDA C++
Programming Guide, "CUDA Graphs"); that graphs shorten the gaps between kernels as well is not modelled. Between two cuts compute and
launch stall are added up, so that simulated events are as few as the operations of `sim.parallel.lower.exchange_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from sim.cluster.gpu import Kernels, memory_time
from sim.parallel.lower.exchange_plan import BucketPlan, gradient_bytes, gradient_volume
from sim.parallel.lower.step_program import StepProgram, step_program
from sim.parallel.program import Instruction, Load, Pack, Part, Program, Start, Unpack, Work
from sim.spec import extensions
from sim.spec.hardware import Gpu
from sim.spec.identity import Same, same_layers
from sim.spec.precision import MEANING
from sim.spec.segments import recomputed, segments
from sim.spec.workload import Layer, Workload, batch_norms
from sim.training.layer_times import layer_times, same_gpu
from sim.training.muon import muon_work

_OPTIMIZER_KERNELS = {"foreach": 0.05, "fused": 0.01}
"""Launches per parameter tensor: multi-tensor chunks, one fused kernel per chunk (torch.optim); else one set of kernels each."""
_CLIPPING_PASSES = 3.0
"""Gradients are read for their norm, then read and written (torch.nn.utils.clip_grad_norm_)."""


_new = tuple.__new__
"""Makes a NamedTuple of as many fields as it has, in half the time; a plan has thousands."""


class Segment(NamedTuple):
    """GPU work (s), the host-bound wait before it (s), and the bucket that is full at its end (-1: none)."""

    compute: float
    launch: float
    bucket: int = -1


@dataclass(frozen=True)
class StepPlan:
    """The program of one step, and beside it what each instruction takes; None where it takes nothing of its own."""

    program: Program
    segments: tuple[Segment | None, ...]

    @property
    def optimizer(self) -> Segment:
        """Return what the update takes."""
        return self.segments[-1] or Segment(0.0, 0.0)

    @property
    def _last(self) -> int:
        """Return the number of the last micro-batch."""
        return max(each.micro_batch for each in self.program if isinstance(each, Load))

    @property
    def buckets(self) -> tuple[float, ...]:
        """Return the bytes of each gradient bucket of the last micro-batch, in launch order."""
        starts = [each for each in self.program if isinstance(each, Start) and each.tag[1] >= 0 and each.tag[2] == self._last]
        return tuple(sum(message.nbytes for message in start.messages) for start in starts)

    def passes(self, part: Part, micro_batch: int = -1) -> list[tuple[Work | Pack, Segment]]:
        """Return forward or backward of one micro-batch, the last by default: its work, and filling buckets where nothing comes before."""
        number = micro_batch if micro_batch >= 0 else self._last
        return [
            (each, segment)
            for each, segment in zip(self.program, self.segments, strict=True)
            if segment is not None and isinstance(each, Work | Pack) and each.micro_batch == number
            if part == (each.part if isinstance(each, Work) else "B")
        ]


class Timeline:
    """Host and GPU clocks of one step."""

    def __init__(self, launch_cpu: float) -> None:
        self.launch_cpu = launch_cpu
        self.host = 0.0
        self.gpu = 0.0

    def run(self, time: float, launches: float) -> Segment:
        """Launch and run kernels of *time* seconds; return their GPU time and the wait for the host."""
        self.host += launches * self.launch_cpu
        last_kernel = time / launches if launches > 1.0 else time
        stall = max(0.0, self.host + last_kernel - (self.gpu + time))
        self.gpu += time + stall
        return _new(Segment, (time, stall, -1))


class Pass(NamedTuple):
    """Every layer's forward in order and backward in reverse, and when each gradient tensor is ready after backward began (s)."""

    forward: list[Segment]
    backward: list[Segment]
    ready: list[float]
    lead: float
    """Seconds of work that the GPU still has when the host has launched all of it."""


def plan_step(workload: Workload, gpu: Gpu, cpu_speed: float, ranks: int) -> StepPlan:
    """Return the plan of one step on *gpu*, as one of *ranks* with the same."""
    return plan_steps([(workload, gpu, cpu_speed)], ranks)[0]


def plan_steps(machines: Sequence[tuple[Workload, Gpu, float]], ranks: int) -> list[StepPlan]:
    """Return the plan of one step on each of *machines* (workload, GPU, speed of a core); *ranks* in all exchange the same operations.

    The workloads may differ in their batch.
    """
    asked = [asked_of(workload, gpu, cpu_speed) for workload, gpu, cpu_speed in machines]
    plans = _plans(tuple(dict.fromkeys(asked)), ranks)
    return [plans[machine] for machine in asked]


def asked_of(workload: Workload, gpu: Gpu, cpu_speed: float) -> Same:
    """Return what decides a plan, as the key of caches: what else a description says may change."""
    training = workload.training
    scales = training.stack.launch_cpu, training.compute_factor, cpu_speed
    own = extensions.turn(extensions.EXCHANGES, training.stack.own_exchange)
    rest = training.gradient_accumulation_steps, training.activation_checkpointing, training.optimizer.name, own
    return Same((same_layers(workload), same_gpu(gpu), *scales, *rest), workload, gpu, cpu_speed)


@lru_cache(maxsize=4096)  # as many as a study keeps results (`sim.spec.shelf`): a sweep comes back to each in turn
def _plans(different: tuple[Same, ...], ranks: int) -> dict[Same, StepPlan]:
    """Return the plan of each of *different* machines of one job."""
    passes = [one_pass(asked) for asked in different]
    ready = [max(times) for times in zip(*(found.ready for found in passes), strict=True)]
    program = step_program(different[0].held[0], ready, ranks)
    return {asked: _plan(asked, found, program, ranks) for asked, found in zip(different, passes, strict=True)}


@lru_cache(maxsize=128)
def one_pass(asked: Same) -> Pass:
    """Return what one GPU does in one forward and backward pass, layer by layer."""
    workload, gpu, cpu_speed = asked.held
    layers, stack, factor = workload.model.layers, workload.training.stack, workload.training.compute_factor
    times, launched = layer_times(workload, gpu), not stack.cuda_graphs
    timeline = Timeline(stack.launch_cpu / cpu_speed)
    if stack.cuda_graphs:
        timeline.host = timeline.launch_cpu

    def run_forward(index: int) -> Segment:
        return timeline.run(times.forward[index] * factor, times.forward_launches[index] * launched)

    def run_backward(index: int) -> Segment:
        return timeline.run(times.backward[index] * factor, times.backward_launches[index] * launched)

    forward = [run_forward(index) for index in range(len(layers))]
    again = recomputed(segments(workload))
    backward = [
        _add([*map(run_forward, again[index]), run_backward(index)]) if index in again else run_backward(index)
        for index in reversed(range(len(layers)))
    ]
    ends = list(accumulate(segment.compute + segment.launch for segment in backward))
    ready = [end if stack.overlap else ends[-1] for end, layer in zip(ends, reversed(layers), strict=True) for _ in layer.gradients]
    return Pass(forward, backward, ready, max(0.0, timeline.gpu - timeline.host))


def _plan(asked: Same, found: Pass, program: StepProgram, ranks: int) -> StepPlan:
    workload, gpu, cpu_speed = asked.held
    stack = workload.training.stack
    # a parameter server runs the optimizer
    optimizer = Segment(0.0, 0.0) if stack.uses_servers else _optimizer(workload, gpu, stack.launch_cpu / cpu_speed, ranks, found.lead)
    extra = stack.distributed_overhead if program.buckets else 0.0
    if stack.gradient_clipping:
        extra += memory_time(_CLIPPING_PASSES * gradient_volume(workload), gpu)
    optimizer = optimizer._replace(compute=optimizer.compute + extra)
    return StepPlan(program.instructions, (*_segments(workload, gpu, found, program), optimizer))


def _segments(workload: Workload, gpu: Gpu, found: Pass, program: StepProgram) -> Iterator[Segment | None]:
    """Yield what each instruction but the update takes; a bucket is filled with the work before it, as one."""
    copies = [_work(bucket.copied / 2, bucket.payload.before, workload, gpu, bucket) for bucket in program.buckets]
    after = Segment(sum(_work(bucket.copied / 2, bucket.payload.after, workload, gpu) for bucket in program.buckets), 0.0)
    layers = {"F": found.forward, "B": found.backward[::-1]}
    known: dict[tuple[str, int, int, int], Segment] = {}
    before: Instruction | None = None
    for each, following in pairwise(program.instructions):
        match each:
            case Work(part, first, last):
                bucket = following.bucket if isinstance(following, Pack) else -1
                key = part, first, last, bucket
                if key not in known:
                    run = layers[part][first : last + 1]
                    done = _add(run if part == "F" else run[::-1])
                    known[key] = done if bucket < 0 else Segment(done.compute + copies[bucket], done.launch, bucket)
                yield known[key]
            case Pack(bucket) if not isinstance(before, Work):
                yield Segment(copies[bucket], 0.0, bucket)
            case Unpack():
                yield after
            case _:
                yield None
        before = each


def _work(copied: float, traffic: float, workload: Workload, gpu: Gpu, compressed: BucketPlan | None = None) -> float:
    """Return the seconds of moving *copied* bytes into buckets or out, and of a payload's *traffic*; products run beside its reads."""
    copy = memory_time(copied * workload.training.stack.gradient_copy_passes, gpu)
    if compressed is None:
        return copy + memory_time(traffic, gpu)
    return copy + max(memory_time(traffic, gpu), compressed.payload.flop / gpu.peak["fp32"]) + compressed.payload.kernels * gpu.kernel_time


def _updated(layer: Layer, workload: Workload, ranks: int) -> float:
    """Return the bytes that the optimizer updates: of a table with a sparse gradient the rows that all ranks looked up (torch.optim)."""
    width, stack = gradient_bytes(workload), workload.training.stack
    whole = layer.gradient_bytes(width)
    if not layer.rows_per_sample or not (stack.sparse_embeddings or (layer.sparse and ranks == 1)):
        return whole
    samples = workload.training.batch * workload.training.gradient_accumulation_steps * ranks
    return whole - layer.gradients[0] * layer.widths(width)[0] * (1.0 - min(1.0, samples * layer.rows_per_sample / layer.rows))


def optimizer_work(workload: Workload, gpu: Gpu, ranks: int = 1) -> Kernels:
    """Return the GPU time of one optimizer step of one of *ranks*, and the launches it takes the host."""
    stack, optimizer = workload.training.stack, workload.training.optimizer
    if optimizer.name == "none":
        return Kernels(0.0, 0.0)
    tensors = sum(len(layer.gradients) for layer in workload.model.layers)
    updated = sum(_updated(layer, workload, ranks) for layer in workload.model.layers)
    kernels = max(1.0, tensors * _OPTIMIZER_KERNELS.get(stack.optimizer, optimizer.separate_kernels))
    passes = optimizer.passes if stack.optimizer == "fused" else optimizer.separate_passes
    busy = memory_time(updated * passes, gpu) + kernels * gpu.kernel_time
    more = muon_work(workload, gpu)
    return Kernels(busy * stack.optimizer_factor + more.time, kernels * stack.optimizer_factor + more.launches)


def gradient_checks(workload: Workload) -> float:
    """Return what the host does to gradients between backward and optimizer, in launches, while the GPU waits."""
    return workload.training.stack.gradient_checks * sum(len(layer.gradients) for layer in workload.model.layers)


def norm_patience(workload: Workload, plan: StepPlan) -> float:
    """Return the mean seconds of backward up to its next persistent norm, which does not end before a collective beside it does.

    Seen from any moment, norms at equal distances are half a distance away (PyTorch issue 80259, NVIDIA/nccl issues 338 and 661).
    """
    training = workload.training
    norms = len(batch_norms(workload.model)) if training.stack.persistent_norms else 0
    if not norms or MEANING[training.precision].activation >= 4.0:
        return math.inf
    return sum(segment.compute for _, segment in plan.passes("B")) / norms / 2


def reads_before_update(workload: Workload) -> bool:
    """Return whether the host waits for backward before it launches the optimizer, to read a result back.

    Loss scaling asks whether gradients overflowed (torch.amp.GradScaler.step, apex's LossScaler.update_scale), gradient checks more.
    """
    training = workload.training
    return training.precision in ("amp_fp16", "fp16") or training.stack.gradient_checks > 0


def _optimizer(workload: Workload, gpu: Gpu, launch_cpu: float, ranks: int, lead: float) -> Segment:
    """Return the optimizer's work and its wait for a host that is *lead* seconds ahead, unless it waits for backward itself."""
    busy, launches = optimizer_work(workload, gpu, ranks)
    waits = 0.0 if workload.training.stack.cuda_graphs else launches * launch_cpu - busy
    ahead = 0.0 if reads_before_update(workload) else lead
    return Segment(busy, max(0.0, waits - ahead) + gradient_checks(workload) * launch_cpu)


def _add(segments: Sequence[Segment]) -> Segment:
    return Segment(sum([segment.compute for segment in segments]), sum([segment.launch for segment in segments]))
