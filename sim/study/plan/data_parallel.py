"""Which runs of a stack without layouts take part in a plan, and how long do they take? Plain data parallelism, as `run` simulates it.

A stack without ``mesh``, such as torch's DistributedDataParallel, only replicates the model: its layouts differ in the micro-batch and in
what is recomputed. A step is one of a warm epoch, with loading and copies to the GPU (`sim.simulate`); the lower bound is a step that waits
for nothing but the host. Limit: the figures of a plan are kept, not the event log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy

from sim.analysis.layout_memory import StageMemory
from sim.analysis.memory import gpu_memory
from sim.check import check_job, require
from sim.cluster.build import place
from sim.events import LAYOUT_STALLS, Cause, EventLog
from sim.mesh import prepare, worker_node
from sim.parallel.lower.layouts import Layout
from sim.simulate import Run, ring_channels_of, simulate
from sim.spec.defaults import PARALLEL_STACK
from sim.spec.library import load_part
from sim.spec.parallel import Parallel
from sim.spec.segments import segments
from sim.spec.stack import Stack
from sim.spec.training import Checkpointing
from sim.spec.workload import Workload
from sim.study.plan.floor import Floors, Setting
from sim.study.plan.space import LayoutCandidate, Space, candidates, checkpointing_modes, divisors, parse_fixed, precisions
from sim.study.scenario import refuse_parts, refuse_settings_of_layouts
from sim.training.job import Job
from sim.training.layouts.scene import GROUPS, PlayedLayout, StageStep
from sim.training.step_plan import plan_step


@dataclass(frozen=True)
class DataParallelSetting(Setting):
    """One cluster and one stack that only replicates models."""

    def has_own_cuts(self, candidate: LayoutCandidate) -> bool:
        """Return False: nothing is cut."""
        return False

    def workload_in(self, candidate: LayoutCandidate) -> Workload:
        """Return the workload with the batch, precision and recomputation of *candidate*."""
        return self.workload.with_training(
            parallel=Parallel(), batch=candidate.batch, gradient_accumulation_steps=candidate.micro_batches,
            activation_checkpointing=candidate.checkpointing, precision=candidate.precision,
        )  # fmt: skip


class ReplicaMemory(StageMemory):
    """Memory of one rank by `sim.analysis.memory`, which counts what the allocator reserves."""

    @property
    def reserved(self) -> float:
        """Return the bytes that torch's allocator reserves from the driver."""
        return self.allocated


def setting_of(setting: Setting) -> Setting:
    """Return *setting*, as a `DataParallelSetting` if its stack has no layouts."""
    if setting.workload.training.stack.mesh is not None:
        return setting
    return DataParallelSetting(setting.hardware, setting.gpus_per_node, setting.workload, setting.book, setting.rate)


def layouts_of(workload: Workload, nodes: int, gpus_per_node: int, space: Space) -> list[LayoutCandidate]:
    """Return every layout that the stack of *workload* can run on *nodes* nodes with *gpus_per_node* GPUs each.

    Raise SpecError for a fixed field that does not exist.
    """
    if workload.training.stack.mesh is not None:
        return candidates(workload, nodes, gpus_per_node, space)
    fixed = parse_fixed(space.fixed or {})
    every = _replicated(workload, nodes, gpus_per_node, space)
    return [each for each in every if all(getattr(each, name) == value for name, value in fixed.items())]


def without_replicas(workload: Workload, every: list[LayoutCandidate], replicas: Iterable[LayoutCandidate]) -> list[LayoutCandidate]:
    """Return *every* layout of a stack, of models other than decoders without those that are among *replicas*, of stacks without layouts.

    FSDP's frameworks call torch's DistributedDataParallel for them (torchtitan distributed/parallelize.py, ``replicate``), whose buckets
    are simulated tensor by tensor in stacks without layouts. These recompute no model without blocks, such as VGG, whose other
    replicas stay. A decoder's kernels differ between these stacks.
    """
    mesh = workload.training.stack.mesh
    if mesh is None or not mesh.framework.startswith("fsdp") or workload.model.transformer is not None:
        return every
    replicated = {(each.batch, each.precision, each.checkpointing) for each in replicas}
    return [
        each
        for each in every
        if each.shard != "none"
        or each.tensor * each.context * each.pipeline * each.expert > 1
        or (each.batch, each.precision, each.checkpointing) not in replicated
    ]


def _replicated(workload: Workload, nodes: int, gpus_per_node: int, space: Space) -> Iterator[LayoutCandidate]:
    data, stack = nodes * gpus_per_node, workload.training.stack.name
    for batch in divisors(space.global_batch // data) if space.global_batch % data == 0 else ():
        for precision in precisions(workload, space):
            for mode in _modes(workload, space):
                yield LayoutCandidate(
                    nodes, stack, precision, tensor=1, sequence=False, context=1, pipeline=1, expert=1, data=data, replicate=1,
                    shard="none", reshard=None, schedule="1f1b", virtual_stages=1, batch=batch,
                    micro_batches=space.global_batch // (data * batch), checkpointing=mode, near=False,
                )  # fmt: skip


def _modes(workload: Workload, space: Space) -> list[Checkpointing]:
    """Return what may be recomputed: the workload's own setting, and blocks if the model has any."""
    has_blocks = any(segments(workload.with_training(activation_checkpointing="blocks")))
    return [mode for mode in checkpointing_modes(workload, space) if mode in ("model", "none") or (mode == "blocks" and has_blocks)]


def data_parallel_floors(setting: DataParallelSetting, candidates: Sequence[LayoutCandidate], most: float) -> Floors:
    """Return the memory of each of *candidates* and a lower bound of its time, which is infinite if it needs more than *most* bytes."""
    node, jobs = worker_node(setting.hardware), [job_of(setting, each) for each in candidates]
    memory = numpy.array([_memory(setting, job).total for job in jobs])
    time = [
        plan_step(job.workload, node.gpu, node.host.cpu.launching, job.ranks).isolated_time if needed <= most else numpy.inf
        for job, needed in zip(jobs, memory, strict=True)
    ]
    times = numpy.array(time)
    unknown = numpy.zeros(len(times))
    return Floors(memory, times, unknown, lambda places: times[places])  # a step that waits for nothing has no messages to price


def job_of(setting: Setting, candidate: LayoutCandidate) -> Job:
    """Return the job of *candidate* on all GPUs of *setting*."""
    return Job(setting.workload_in(candidate), place(setting.hardware, setting.nodes * setting.gpus_per_node))


def replica_memory(setting: DataParallelSetting, candidate: LayoutCandidate) -> tuple[StageMemory, ...]:
    """Return the memory of one rank of *candidate*."""
    return (_memory(setting, job_of(setting, candidate)),)


def _memory(setting: DataParallelSetting, job: Job) -> StageMemory:
    gpu = worker_node(setting.hardware).gpu
    use = gpu_memory(job.workload, gpu, ranks=job.ranks, channels=ring_channels_of(setting.hardware, job))
    return ReplicaMemory(
        stage=0, weights=use.weights, gradients=use.gradients, optimizer_state=use.optimizer_state, activations=use.activations + use.input,
        gathered=0.0, workspace=use.workspace, cached=0.0, communication_buffers=use.communication_buffers, context=use.context,
    )  # fmt: skip


def run_replicas(setting: Setting, candidate: LayoutCandidate) -> Run:
    """Return the run of *candidate* in a warm epoch. Raise SpecError if `run` refuses the job."""
    job = job_of(setting, candidate)
    require(check_job(setting.hardware, job.workload, gpus=job.ranks))
    refuse_parts([job.workload])
    refuse_settings_of_layouts([job.workload])
    return simulate(setting.hardware, [job], cold=False, keep_log=False)


def simulate_replicas(setting: DataParallelSetting, candidate: LayoutCandidate) -> PlayedLayout:
    """Return a warm step of *candidate*. Raise SpecError if `run` refuses the job."""
    warm = run_replicas(setting, candidate).jobs[0].warm
    stalls = {cause: warm.stalls.get(cause, 0.0) for cause in LAYOUT_STALLS}
    exposed = dict.fromkeys(GROUPS, 0.0) | {"data": stalls[Cause.INTERCONNECT] + stalls[Cause.NETWORK]}
    resources = {(row.cause, row.resource): row.seconds for row in warm.resources}
    return PlayedLayout((StageStep(warm.step_time, stalls, resources, exposed, 0.0, warm.step_time),), EventLog(lambda: 0.0))


def replicated_layout(setting: DataParallelSetting, workload: Workload) -> Layout:
    """Return the mesh, and the micro-batches, of *workload*; its other fields are those of replicas under a stack for layouts."""
    workload = workload.with_training(stack=load_part(Stack, PARALLEL_STACK))
    own = workload.input.model_copy(update={"own_loader": None})
    return prepare(setting.hardware, workload.model_copy(update={"input": own}), setting.gpus_per_node, check_deadlock=False)
