"""How should jobs divide the cores of their nodes among their loaders, and when does each finish? By policy, as jobs arrive and complete.

A worker prepares 1/c samples/s (c: core time per sample), and a GPU takes at most g samples/s, so a job with w workers per GPU runs at
min(g, w/c) per GPU. Policies divide as many workers as a node has cores (hardware threads count by what they add) among the jobs on it; a
job on several nodes has on each the number from the node that gives least:

- *even*: the same number for each job; *proportional*: the same number for each GPU;
- *greedy*: one per GPU, then one more for each GPU of the job whose busy share min(1, w/(c g)) grows most, as long as any grows
  (A-Dloader: loaders for concurrent jobs by predicted throughput, again as jobs arrive and complete).

Between arrivals and completions all rates are constant, from a simulation of the running jobs with warm caches, so the course of each
policy follows exactly. Limits: GPUs stay with their job; starting and stopping workers is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from sim.cluster.build import slots
from sim.simulate import simulate
from sim.spec.catalog import UnknownName, locate
from sim.spec.hardware import Hardware
from sim.spec.library import load
from sim.spec.schema import FOLDERS
from sim.spec.workload import Jobs
from sim.spec.yaml import SpecError
from sim.study.jobs_file import jobs_file
from sim.study.loader_workers import with_workers
from sim.study.pool import Progress
from sim.study.scenario import Scenario, prepare, sorted_overrides
from sim.training.job import Job, core_time, job_slots

LoaderPolicy = Literal["even", "proportional", "greedy"]
POLICIES: tuple[LoaderPolicy, ...] = get_args(LoaderPolicy)


class Need(NamedTuple):
    """Rates of one GPU of a job: the samples/s that it takes, and that one worker prepares."""

    demand: float
    worker_rate: float

    def busy(self, workers: int) -> float:
        """Return the share of the time that the GPU is busy with *workers* of its own."""
        return min(1.0, workers * self.worker_rate / self.demand)


class LoaderHost(NamedTuple):
    """A node, or several equal ones: its loader *workers*, and the *gpus* that each job, by number, has there."""

    workers: int
    gpus: Mapping[int, int]


LoaderNeeds = Mapping[int, Need]
"""By job, for the running jobs."""


def divide_evenly(hosts: Sequence[LoaderHost], needs: LoaderNeeds) -> dict[int, int]:
    """Return the workers of each GPU, by job, with the same number for every job on a host; each GPU has at least one."""
    return _least_of_hosts(hosts, needs, lambda host, here, job: host.workers // len(here) // here[job])


def divide_proportionally(hosts: Sequence[LoaderHost], needs: LoaderNeeds) -> dict[int, int]:
    """Return the workers of each GPU, by job, with the same number for every GPU of a host."""
    return _least_of_hosts(hosts, needs, lambda host, here, job: host.workers // sum(here.values()))


def _least_of_hosts(
    hosts: Sequence[LoaderHost], needs: LoaderNeeds, from_host: Callable[[LoaderHost, Mapping[int, int], int], int]
) -> dict[int, int]:
    """Return the workers of each GPU, by job: the least number *from_host* over all its hosts, and at least 1."""
    least: dict[int, int] = {}
    for host in hosts:
        here = {job: gpus for job, gpus in host.gpus.items() if job in needs}
        for job in here:
            each = max(1, from_host(host, here, job))
            least[job] = min(each, least.get(job, each))
    return {job: least[job] for job in needs}


def divide_greedily(hosts: Sequence[LoaderHost], needs: LoaderNeeds) -> dict[int, int]:
    """Return the workers of each GPU, by job; each further one goes where GPUs gain most busy time, as long as any gain."""
    workers = dict.fromkeys(needs, 1)
    left = [host.workers - sum(gpus for job, gpus in host.gpus.items() if job in needs) for host in hosts]
    while True:
        gains = {
            job: need.busy(workers[job] + 1) - need.busy(workers[job]) if _fits(hosts, left, job) else 0.0 for job, need in needs.items()
        }
        best = max(gains, key=lambda job: (round(gains[job], 9), -workers[job]))  # ties go to the fewest workers
        if gains[best] <= 1e-12:
            return workers
        workers[best] += 1
        left = [free - host.gpus.get(best, 0) for free, host in zip(left, hosts, strict=True)]


def _fits(hosts: Sequence[LoaderHost], left: Sequence[int], job: int) -> bool:
    """Return whether one more worker for each GPU of *job* is *left* on all its hosts."""
    return all(host.gpus.get(job, 0) <= free for host, free in zip(hosts, left, strict=True) if job in host.gpus)


DIVIDE: Mapping[LoaderPolicy, Callable[[Sequence[LoaderHost], LoaderNeeds], dict[int, int]]] = {
    "even": divide_evenly,
    "proportional": divide_proportionally,
    "greedy": divide_greedily,
}


class Stretch(NamedTuple):
    """A time span from *start* to *end* (s) in which the same jobs run: samples/s by job."""

    start: float
    end: float
    rates: Mapping[int, float]


def course(arrivals: Sequence[float], work: Sequence[float], rates: Callable[[tuple[int, ...]], Mapping[int, float]]) -> list[Stretch]:
    """Return the stretches between arrivals and completions of jobs with *work* samples each, at the *rates* of the running jobs."""
    left, now, stretches = dict(enumerate(work)), 0.0, list[Stretch]()
    while left:
        active = tuple(job for job in left if arrivals[job] <= now)
        later = min((arrivals[job] for job in left if arrivals[job] > now), default=math.inf)
        if not active:
            now = later
            continue
        speed = rates(active)
        ends = {job: now + left[job] / speed[job] for job in active}
        end = min(later, *ends.values())
        stretches.append(Stretch(now, end, dict(speed)))
        for job in active:
            left[job] -= speed[job] * (end - now)
            if ends[job] <= end * (1 + 1e-12):
                del left[job]
        now = end
    return stretches


@dataclass(frozen=True)
class PolicyOutcome:
    """The result of one policy for the jobs."""

    policy: LoaderPolicy
    workers: tuple[int, ...]
    """Workers of each GPU, by job, while the largest set of jobs runs together; for other jobs, those that they get on their own."""
    throughput: tuple[float, ...]
    """Mean samples/s by job, from its arrival to its end."""
    done: tuple[float, ...]
    """When each job ends (s)."""

    @property
    def makespan(self) -> float:
        """Return when the last job ends (s)."""
        return max(self.done)


@dataclass(frozen=True)
class SharedMachine:
    """The jobs of a file under each policy."""

    hardware: str
    jobs: tuple[Job, ...]
    arrivals: tuple[float, ...]
    epochs: tuple[float, ...]
    cores: tuple[int, int]
    """Loader workers of a node that has jobs: the fewest, and the most."""
    outcomes: tuple[PolicyOutcome, ...]
    machine: Hardware
    inputs: Mapping[str, str]
    """SHA-256 of each description."""


def share(
    hardware: str,
    jobs: str,
    policies: Sequence[str] = POLICIES,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    nodes: int | None = None,
    progress: Progress = lambda done, of: None,
) -> SharedMachine:
    """Return how *policies* (``even`` first, for comparison) divide the *workers* of each node (all cores if None) among its jobs.

    The jobs are those of a file, on *nodes* nodes (as many as described if None). *progress* gets the policies done and their total.
    """
    chosen = [_policy(name) for name in policies]
    try:
        path = jobs_file(jobs)
    except UnknownName:
        locate(jobs, FOLDERS[Jobs])  # its message names jobs files, not workloads
        raise
    if path is None:
        raise SpecError(f"{jobs}: lists no jobs; 'python -m sim share' takes a jobs file, such as resnet18-and-vgg16")
    scenario = Scenario(hardware, jobs, tuple(overrides), nodes=nodes)
    question = prepare(scenario)
    machine, placed = question.hardware, tuple(question.jobs)
    if any(job.sharers > 1 for job in placed):
        raise SpecError(f"{jobs}: with coordinated_prep, jobs share one loader; leave it out to divide workers among them")
    epochs = tuple(entry.epochs for entry in load(Jobs, path, sorted_overrides(scenario)[1]).spec.jobs)
    used = slots(machine, [job.placement for job in placed])
    hosts = [LoaderHost(workers or math.floor(slot.cores), {job: len(gpus) for job, gpus in slot.lent_gpus}) for slot in used]
    for host in hosts:
        if host.workers < (gpus := sum(host.gpus.values())):
            raise SpecError(f"--workers {host.workers}: each of a node's {gpus} GPUs needs a worker; write at least {gpus}")
    speeds = {number: min(slot.node.host.cpu.speed for slot, _ in job_slots(number, used)) for number in range(len(placed))}
    course_of = _JobCourses(
        machine, placed, epochs, {number: _need(machine, speeds[number], job) for number, job in enumerate(placed)}, hosts
    )
    every = dict.fromkeys((POLICIES[0], *chosen))
    progress(0, len(every))
    outcomes = []
    for policy in every:
        outcomes.append(course_of.outcome(policy))
        progress(len(outcomes), len(every))
    count, per_node = sum(slot.count for slot in used), [host.workers for host in hosts]
    return SharedMachine(
        f"{machine.name}, {count} nodes" if count > 1 else machine.name,
        placed, course_of.arrivals, epochs, (min(per_node), max(per_node)), tuple(outcomes), machine, question.inputs,
    )  # fmt: skip


def _policy(name: str) -> LoaderPolicy:
    policy_named = next((policy for policy in POLICIES if policy == name), None)
    if policy_named is None:
        raise SpecError(f"--policy {name}: write one of {', '.join(POLICIES)}")
    return policy_named


def _need(hardware: Hardware, speed: float, job: Job) -> Need:
    """Return the rates of *job*: of its GPUs by simulation with synthetic data, and of a worker on cores of *speed*."""
    workload = job.workload
    synthetic = workload.model_copy(update={"input": workload.input.model_copy(update={"loader": "synthetic"})})
    taken = simulate(hardware, [replace(job, workload=synthetic, start=0.0)], cold=False).jobs[0].throughput / job.ranks
    each = core_time(workload) / speed
    return Need(taken, 1.0 / each if each > 0 else math.inf)


class _JobCourses:
    """The courses of the jobs under policies; each division of workers among jobs that run together is simulated once."""

    def __init__(
        self, hardware: Hardware, jobs: Sequence[Job], epochs: Sequence[float], needs: LoaderNeeds, hosts: Sequence[LoaderHost]
    ) -> None:
        self.hardware, self.jobs, self.needs, self.hosts = hardware, jobs, needs, hosts
        self.arrivals = tuple(job.start for job in jobs)
        self.work = [job.workload.dataset.samples * count for job, count in zip(jobs, epochs, strict=True)]
        self._cached_rates: dict[tuple[tuple[int, int], ...], dict[int, float]] = {}

    def outcome(self, policy: LoaderPolicy) -> PolicyOutcome:
        """Return the result of *policy* for the jobs."""
        stretches = course(self.arrivals, self.work, lambda active: self._rates(policy, active))
        done = tuple(max(stretch.end for stretch in stretches if job in stretch.rates) for job in range(len(self.jobs)))
        throughput = tuple(work / (end - start) for work, end, start in zip(self.work, done, self.arrivals, strict=True))
        workers = self._workers_of(policy, max((tuple(stretch.rates) for stretch in stretches), key=len))
        return PolicyOutcome(policy, tuple(workers.get(job, self._workers_of(policy, (job,))[job]) for job in self.needs), throughput, done)

    def _workers_of(self, policy: LoaderPolicy, active: tuple[int, ...]) -> dict[int, int]:
        """Return the workers of each GPU, by job, while the *active* jobs run."""
        return DIVIDE[policy](self.hosts, {job: self.needs[job] for job in active})

    def _rates(self, policy: LoaderPolicy, active: tuple[int, ...]) -> dict[int, float]:
        key = tuple(self._workers_of(policy, active).items())
        if key not in self._cached_rates:
            running = [replace(self.jobs[job], workload=with_workers(self.jobs[job].workload, each), start=0.0) for job, each in key]
            ran = simulate(self.hardware, running, cold=False)
            self._cached_rates[key] = {job: job_run.throughput for job, job_run in zip(active, ran.jobs, strict=True)}
        return self._cached_rates[key]
