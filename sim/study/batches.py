"""How many samples should each group of unlike machines take a step, so that it is shortest? Integer shares of one global batch.

A step takes at least as long as the work of any one GPU: the bound of a share is the longest of its groups' kernels, launches and
optimizer, as planned for their batches. Shares are simulated best bound first until no bound is below the shortest step, so the answer
is the best of all whole numbers under the model, whatever the network does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Final, NamedTuple

from sim.analysis.memory import largest_batch
from sim.cluster.build import place
from sim.simulate import ring_channels_of, simulate
from sim.spec.hardware import Group, Hardware
from sim.spec.library import load_workload
from sim.spec.precision import MEANING
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, job_on, prepare, sorted_overrides
from sim.training.job import Job
from sim.training.step_plan import plan_step

MOST: Final = 400
"""Steps that a search simulates at most."""
SLACK: Final = 1e-9
"""Relative difference below which two steps take equally long."""
MANY: Final = 200_000
"""Ways to share a batch that are bounded at most."""

Sizes = tuple[int, ...]
"""The batch of each group's GPUs."""


class BatchShare(NamedTuple):
    """One group of workers: its GPUs, and the most samples of one GPU that fit its memory."""

    gpus: int
    most: int


@dataclass
class Search:
    """What is known of a search for the shortest step."""

    shares: Sequence[BatchShare]
    total: int
    """Samples of a step of all GPUs."""
    step_time: Callable[[Sizes], float]
    """Seconds of a step, simulated."""
    work: Callable[[int, int], float]
    """Seconds that a GPU of a group works at a batch, waiting for nobody."""
    limit: int = MOST
    steps: int = 1
    """Accumulation steps, of which each takes *total* samples."""
    known: dict[Sizes, float] = field(default_factory=dict)
    left: int = 0
    """Shares that were not simulated although they may be better."""

    @property
    def best(self) -> Sizes:
        """Return the batches of the shortest step."""
        return min(self.known, key=lambda sizes: (self.known[sizes], sizes))

    def bound(self, sizes: Sizes) -> float:
        """Return the seconds that a step takes at least."""
        return max(self.work(group, batch) for group, batch in enumerate(sizes))

    def time(self, sizes: Sizes) -> float:
        """Return the seconds of a step, simulated once."""
        if sizes not in self.known:
            self.known[sizes] = self.step_time(sizes)
        return self.known[sizes]

    def choices(self) -> Iterator[Sizes]:
        """Yield the batches that give the total and fit."""
        return _choices([share.gpus for share in self.shares], [share.most for share in self.shares], self.total)


def _choices(gpus: list[int], ceilings: list[int], total: int) -> Iterator[Sizes]:
    if len(gpus) == 1:
        batch, rest = divmod(total, gpus[0])
        if not rest and 1 <= batch <= ceilings[0]:
            yield (batch,)
        return
    least = sum(gpus[1:])
    for batch in range(1, min(ceilings[0], (total - least) // gpus[0]) + 1):
        yield from ((batch, *rest) for rest in _choices(gpus[1:], ceilings[1:], total - gpus[0] * batch))


def every_choice(search: Search) -> list[Sizes]:
    """Return all shares that give the total. Raise SpecError where none do, or too many."""
    every = list(islice(search.choices(), MANY + 1))
    if not every:
        raise SpecError(_unreachable(search))
    if len(every) > MANY:
        ways = f"can be shared in more than {MANY:,} ways; write a smaller one, or fewer groups"
        raise SpecError(f"--global-batch {search.total * search.steps}: {ways}")
    return every


def shortest(search: Search) -> Search:
    """Simulate shares best bound first until none can be better. Raise SpecError where none give the total, or too many do."""
    waiting = sorted((search.bound(sizes), sizes) for sizes in every_choice(search))
    for done, (bound, sizes) in enumerate(waiting):
        if search.known and bound >= search.known[search.best] * (1 - SLACK):
            return search
        if len(search.known) >= search.limit:
            search.left = sum(other < search.known[search.best] * (1 - SLACK) for other, _ in waiting[done:])
            return search
        search.time(sizes)
    return search


def _unreachable(search: Search) -> str:
    most = sum(share.gpus * share.most for share in search.shares)
    least = sum(share.gpus for share in search.shares)
    ceilings = [share.most for share in search.shares]
    gpus = [share.gpus for share in search.shares]
    near = sorted(range(least, most + 1), key=lambda total: abs(total - search.total))[:2000]
    would = next((total for total in near if next(_choices(gpus, ceilings, total), None)), least)
    return (
        f"--global-batch {search.total * search.steps}: groups of {' and '.join(map(str, gpus))} GPUs, of which each takes 1 to "
        f"{' or '.join(map(str, ceilings))} samples, cannot share it; {would * search.steps} is the nearest that they can"
    )


@dataclass(frozen=True)
class Batches:
    """The answer: hardware and workload, the search, and steps to compare with."""

    hardware: Hardware
    workload: Workload
    search: Search
    equal: tuple[Sizes, float] | None
    """The same batch on every GPU; None where it does not divide, or does not fit."""
    by_peak: tuple[Sizes, float]
    """Batches in the ratio of the GPUs' peak rates, rounded."""
    inputs: dict[str, str]

    @property
    def groups(self) -> list[Group]:
        """Return the groups of workers."""
        return workers(self.hardware)


def workers(hardware: Hardware) -> list[Group]:
    """Return the groups whose GPUs train."""
    return [group for group in hardware.groups if group.role == "worker" and group.node.gpu_count]


def batches(
    scenario: Scenario, total: int | None = None, limit: int = MOST, progress: Callable[[str], None] = lambda text: None
) -> Batches:
    """Return the batches of each group with which a step of *total* samples is shortest.

    By default the total is the workload's batch on every GPU. Raise SpecError for a single group, for a workload whose GPUs must have
    equal batches, and where no batches give the total.
    """
    question = prepare(replace(scenario, batch=1, global_batch=None))
    machine, groups = question.hardware, workers(question.hardware)
    if len(question.jobs) != 1:
        raise SpecError("a file of several jobs gives each job one batch; write a single workload")
    if len(groups) < 2:
        raise SpecError(
            f"{machine.name}: has one group of workers, whose batches are equal; "
            "write a file with several groups of machines, like 256x-tpu-v2-v3"
        )
    job = question.jobs[0]
    _possible(job.workload)
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
        raise SpecError(f"--global-batch {total}: does not divide by {steps} accumulation steps")

    def step_time(sizes: Sizes) -> float:
        progress(f"{len(search.known)} steps simulated, now {' and '.join(map(str, sizes))} samples per GPU")
        return simulate(machine, [_with(machine, job, sizes)], cold=False).jobs[0].warm.step_time

    def work(group: int, batch: int) -> float:
        node = groups[group].node
        own = job.workload.model_copy(update={"training": job.workload.training.model_copy(update={"batch": batch})})
        return plan_step(own, node.gpu, node.host.cpu.speed, job.ranks).alone

    search = Search(shares, samples, step_time, cache(work), limit, steps)
    units = MEANING[job.workload.training.precision].needs or "fp32"
    peaks = [group.node.gpu.peak.get(units, group.node.gpu.peak["fp32"]) for group in groups]
    first = [samples * peak / sum(count * other for count, other in zip(gpus, peaks, strict=True)) for peak in peaks]
    near = min(every_choice(search), key=lambda sizes: math.dist(sizes, first))
    shortest(search)
    each, rest = divmod(samples, sum(gpus))
    same = (each,) * len(groups)
    fits = not rest and all(each <= share.most for share in shares)
    equal = (same, search.time(same)) if fits else None
    return Batches(machine, job.workload, search, equal, (near, search.time(near)), dict(question.inputs))


def _possible(workload: Workload) -> None:
    """Refuse what makes every GPU take the same batch."""
    if workload.training.stack.asynchronous:
        raise SpecError(
            f"stack {workload.training.stack.name}: its workers do not wait for each other, so that no batch keeps others waiting; "
            "write a stack that keeps step"
        )


def _with(machine: Hardware, job: Job, sizes: Sizes) -> Job:
    training = job.workload.training.model_copy(update={"batches": sizes})
    workload = job.workload.model_copy(update={"training": training})
    return job_on(machine, workload, place(machine))
