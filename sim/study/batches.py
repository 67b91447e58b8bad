"""How many samples per step should each group of unequal machines take for the shortest step? Integer shares of one global batch.

The lower bound of a share is the longest time of kernels, launches and optimizer of any group, planned for its batch. The search
(`sim.study.batch_search`) ends when no share can be better under the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from sim.analysis.memory import largest_batch
from sim.cluster.build import place
from sim.parallel.program import Load, Wait
from sim.simulate import ring_channels_of, simulate
from sim.spec.hardware import Group, Hardware
from sim.spec.library import load_workload
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.stack import AsyncParameterServer, Horovod
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.batch_search import MOST, BatchShare, GroupBatches, Search, all_choices, find_shortest_step
from sim.study.jobs_file import jobs_file
from sim.study.scenario import Scenario, job_on, prepare, sorted_overrides
from sim.training.job import Job
from sim.training.step_plan import StepPlan, plan_step


@dataclass(frozen=True)
class Batches:
    """The result: hardware and workload, the search, and steps to compare with."""

    hardware: Hardware
    workload: Workload
    search: Search
    equal: tuple[GroupBatches, float] | None
    """The same batch on every GPU; None if it does not divide evenly, or does not fit."""
    by_peak: tuple[GroupBatches, float]
    """Batches in the ratio of the GPUs' peak rates, rounded."""
    inputs: dict[str, str]

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the groups of workers."""
        return self.hardware.worker_groups


def since_waits(plan: StepPlan) -> list[float]:
    """Return the seconds that a GPU has computed since it last waited for others, at the end of each instruction of its step.

    If all of these are longer, so is every path through the step that passes this GPU.
    """
    ends, since = [], 0.0
    for each, segment in zip(plan.program, plan.segments, strict=True):
        since = (0.0 if isinstance(each, Wait | Load) else since) + (segment.compute if segment else 0.0)
        ends.append(since)
    return ends


def batches(
    scenario: Scenario, total: int | None = None, limit: int = MOST, progress: Callable[[str], None] = lambda text: None
) -> Batches:
    """Return the batches of each group with which a step of *total* samples is shortest.

    By default the total is the workload's batch on every GPU. Raise SpecError for a single group, for asynchronous workers, and if no
    batches add up to the total.
    """
    if jobs_file(scenario.workload) is None:
        _possible(load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec)  # before what does not fit, which nothing mends
    question = prepare(replace(scenario, batch=1, global_batch=None))
    machine, groups = question.hardware, question.hardware.worker_groups
    if len(question.jobs) != 1:
        raise SpecError("a file of several jobs gives each job one batch; write a single workload")
    if len(groups) < 2:
        raise SpecError(
            f"{machine.name}: has one group of workers, so all batches are equal; use a machine with several groups, such as 256x-tpu-v2-v3"
        )
    job = question.jobs[0]
    wanted = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.training.batch
    gpus = [group.count * group.node.gpu_count for group in groups]
    channels = ring_channels_of(machine, job)
    shares = [
        BatchShare(count, max(1, largest_batch(job.workload, group.node.gpu, ranks=job.ranks, channels=channels)))
        for count, group in zip(gpus, groups, strict=True)
    ]
    steps = job.workload.training.gradient_accumulation_steps
    samples = sum(gpus) * wanted if total is None else total // steps
    if total is not None and total % steps:
        raise SpecError(f"--global-batch {total}: is not divisible by {steps} accumulation steps")

    def step_time(sizes: GroupBatches) -> float:
        progress(f"{search.simulated} steps simulated, now {' and '.join(map(str, sizes))} samples per GPU")
        return simulate(machine, [_with(machine, job, sizes)], cold=False).jobs[0].warm.step_time

    @cache
    def planned(group: int, batch: int) -> StepPlan:
        node = groups[group].node
        own = job.workload.with_training(batch=batch)
        return plan_step(own, node.gpu, node.host.cpu.launching, job.ranks)

    @cache
    def work(group: int, batch: int) -> float:
        return planned(group, batch).isolated_time

    def parts(group: int, batch: int) -> list[float]:
        return since_waits(planned(group, batch))

    search = Search(shares, samples, step_time, work, parts if _same_buckets(job.workload) else None, limit, steps)
    units = PRECISION_TRAITS[job.workload.training.precision].needs or "fp32"
    peaks = [group.node.gpu.peak.get(units, group.node.gpu.peak["fp32"]) for group in groups]
    first = [samples * peak / sum(count * other for count, other in zip(gpus, peaks, strict=True)) for peak in peaks]
    near = min(all_choices(search), key=lambda sizes: math.dist(sizes, first))
    find_shortest_step(search)
    each, rest = divmod(samples, sum(gpus))
    same = (each,) * len(groups)
    fits = not rest and all(each <= share.most for share in shares)
    equal = (same, search.time(same)) if fits else None
    return Batches(machine, job.workload, search, equal, (near, search.time(near)), dict(question.inputs))


def _same_buckets(workload: Workload) -> bool:
    """Return whether ranks exchange the same buckets at every batch; Horovod's hold what is ready when a cycle ends."""
    exchange = workload.training.stack.exchange
    return not isinstance(exchange, Horovod) and exchange.own_exchange is None


def _possible(workload: Workload) -> None:
    """Raise SpecError for asynchronous workers, which wait for no other worker's batch, and for layouts, which need identical machines."""
    if not workload.training.parallel.is_trivial:
        raise SpecError(
            "training.parallel: batches of unlike machines are those of plain data parallelism; leave the layout out, with --set "
            "training.parallel={}"
        )
    if isinstance(workload.training.stack.exchange, AsyncParameterServer):
        raise SpecError(
            f"stack {workload.training.stack.name}: its workers do not wait for each other, so there are no batches to balance; write a "
            "synchronous stack"
        )


def _with(machine: Hardware, job: Job, sizes: GroupBatches) -> Job:
    return job_on(machine, job.workload.with_training(batches=sizes), place(machine))
