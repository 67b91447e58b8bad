"""How should jobs on one machine divide its cores among their loaders, and who is done when? By policy, as jobs come and go.

A worker prepares 1/c samples/s (c: core time of a sample here), a GPU takes at most g of them, so a job with w workers for each of its
GPUs runs at min(g, w/c) a GPU. Policies divide as many workers as the node has cores (hardware threads by what they add):

- *even*: each job as many; *proportional*: each GPU as many;
- *greedy*: one for each GPU, then one more for each GPU of the job whose busy share min(1, w/(c g)) grows most by it, as long as any does
  (A-Dloader: loaders for concurrent jobs by predicted throughput, again as jobs arrive and complete).

Between two arrivals or completions all rates are constant, those of a simulation of the jobs that run, caches warm; so every policy's
course is exact arithmetic on those. Limits: jobs on the same nodes; GPUs stay with their job; starting and stopping workers is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from sim.cluster.build import slots
from sim.simulate import simulate
from sim.spec.hardware import Hardware, Node
from sim.spec.library import load, load_hardware
from sim.spec.workload import Jobs, Workload
from sim.spec.yaml import SpecError
from sim.study.jobs_file import jobs_file, place_jobs
from sim.study.scenario import Scenario, sorted_overrides
from sim.training.job import Job, core_time

Policy = Literal["even", "proportional", "greedy"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Need(NamedTuple):
    """What one job asks of a node: its GPUs there, the samples/s that one of them takes, and that one worker prepares."""

    gpus: int
    taken: float
    prepared: float

    def busy(self, workers: int) -> float:
        """Return the share of the time that a GPU works with so many *workers* of its own."""
        return min(1.0, workers * self.prepared / self.taken)


def even(workers: int, needs: Sequence[Need]) -> list[int]:
    """Return the workers of each GPU where every job has as many of *workers*; each GPU has one at least."""
    return [max(1, workers // len(needs) // need.gpus) for need in needs]


def proportional(workers: int, needs: Sequence[Need]) -> list[int]:
    """Return the workers of each GPU where every GPU has as many of *workers*."""
    return [max(1, workers // sum(need.gpus for need in needs))] * len(needs)


def greedy(workers: int, needs: Sequence[Need]) -> list[int]:
    """Return the workers of each GPU where each further one goes where GPUs work most more; none where none would."""
    given = [1] * len(needs)
    left = workers - sum(need.gpus for need in needs)
    while True:
        gains = [need.busy(have + 1) - need.busy(have) if need.gpus <= left else 0.0 for need, have in zip(needs, given, strict=True)]
        best = max(range(len(needs)), key=lambda job: gains[job])
        if gains[best] <= 1e-12:
            return given
        given[best] += 1
        left -= needs[best].gpus


DIVIDE: Mapping[Policy, Callable[[int, Sequence[Need]], list[int]]] = {"even": even, "proportional": proportional, "greedy": greedy}


class Stretch(NamedTuple):
    """From *start* to *end* (s), the jobs that run: samples/s by job."""

    start: float
    end: float
    rates: Mapping[int, float]


def course(arrivals: Sequence[float], work: Sequence[float], rates: Callable[[tuple[int, ...]], Mapping[int, float]]) -> list[Stretch]:
    """Return the stretches between arrivals and completions of jobs with *work* samples each, at the *rates* of those that run."""
    left, now, found = dict(enumerate(work)), 0.0, list[Stretch]()
    while left:
        active = tuple(job for job in left if arrivals[job] <= now)
        later = min((arrivals[job] for job in left if arrivals[job] > now), default=math.inf)
        if not active:
            now = later
            continue
        speed = rates(active)
        ends = {job: now + left[job] / speed[job] for job in active}
        end = min(later, *ends.values())
        found.append(Stretch(now, end, dict(speed)))
        for job in active:
            left[job] -= speed[job] * (end - now)
            if ends[job] <= end * (1 + 1e-12):
                del left[job]
        now = end
    return found


@dataclass(frozen=True)
class Outcome:
    """What one policy makes of the jobs."""

    policy: Policy
    workers: tuple[int, ...]
    """Of each GPU, by job, while all jobs run that ever run together with the first."""
    throughput: tuple[float, ...]
    """Samples/s by job, mean from its arrival to its end."""
    done: tuple[float, ...]
    """When each job ends (s)."""

    @property
    def makespan(self) -> float:
        """Return when the last job ends (s)."""
        return max(self.done)


@dataclass(frozen=True)
class Shared:
    """The jobs of a file under each policy."""

    hardware: str
    jobs: tuple[Job, ...]
    arrivals: tuple[float, ...]
    epochs: tuple[float, ...]
    cores: int
    outcomes: tuple[Outcome, ...]


def share(
    hardware: str, jobs: str, policies: Sequence[str] = POLICIES, overrides: Sequence[str] = (), workers: int | None = None
) -> Shared:
    """Return how *policies* (``even`` first, to compare with) divide *workers* (all cores if None) among the jobs of a file."""
    chosen = [_policy(name) for name in policies]
    path = jobs_file(jobs)
    if path is None:
        raise SpecError(f"{jobs}: lists no jobs; 'sim share' divides a machine among those of a jobs file, such as resnet18-and-vgg16")
    for_hardware, for_jobs = sorted_overrides(Scenario(hardware, jobs, tuple(overrides)))
    machine = load_hardware(hardware, for_hardware)
    placed = place_jobs(machine, path, for_jobs).jobs
    if any(job.sharers > 1 for job in placed):
        raise SpecError(f"{jobs}: with coordinated_prep jobs have one loader together; leave it out to divide workers among them")
    epochs = tuple(entry.epochs for entry in load(Jobs, path, for_jobs).spec.jobs)
    nodes = _same_nodes(placed)
    node = slots(machine.spec, [placed[0].placement])[0]
    total = workers if workers is not None else math.floor(node.cores)
    if total < sum(len(job.placement[0].gpus) for job in placed):
        raise SpecError(f"--workers {total}: {sum(len(job.placement[0].gpus) for job in placed)} GPUs of a node need one each; write that")
    course_of = _Courses(machine.spec, placed, epochs, [_need(machine.spec, node.node, job) for job in placed], total)
    every = dict.fromkeys((POLICIES[0], *chosen))
    outcomes = tuple(course_of.outcome(policy) for policy in every)
    return Shared(
        f"{machine.spec.name}, {nodes} nodes" if nodes > 1 else machine.spec.name,
        tuple(placed),
        course_of.arrivals,
        epochs,
        total,
        outcomes,
    )


def _policy(name: str) -> Policy:
    found = next((policy for policy in POLICIES if policy == name), None)
    if found is None:
        raise SpecError(f"--policy {name}: write one of {', '.join(POLICIES)}")
    return found


def _same_nodes(jobs: Sequence[Job]) -> int:
    """Return the nodes of *jobs*; raise SpecError unless all have the same ones, with as many GPUs on each."""
    nodes = [tuple(part.node for part in job.placement) for job in jobs]
    for number, (job, own) in enumerate(zip(jobs, nodes, strict=True)):
        if own != nodes[0] or len({len(part.gpus) for part in job.placement}) > 1:
            raise SpecError(
                f"jobs.{number}: runs on other nodes than jobs.0, or unevenly; 'sim share' divides nodes that all jobs have alike"
            )
    return len(nodes[0])


def _need(hardware: Hardware, node: Node, job: Job) -> Need:
    """Return what *job* asks: how fast its GPUs are by simulation with synthetic data, what a worker prepares by its core time."""
    workload = job.workload
    synthetic = workload.model_copy(update={"input": workload.input.model_copy(update={"loader": "synthetic"})})
    taken = simulate(hardware, [replace(job, workload=synthetic, start=0.0)], cold=False).jobs[0].throughput / job.ranks
    each = core_time(workload) / node.host.cpu.speed
    return Need(len(job.placement[0].gpus), taken, 1.0 / each if each > 0 else math.inf)


def with_workers(workload: Workload, workers: int) -> Workload:
    """Return *workload* with so many *workers* for each GPU: torch's processes, or DALI's threads."""
    field = "num_workers" if workload.input.loader == "pytorch" else "num_threads"
    return workload.model_copy(update={"input": workload.input.model_copy(update={field: workers})})


class _Courses:
    """The courses of the jobs under policies; a set of jobs that run together is simulated once for each division."""

    def __init__(self, hardware: Hardware, jobs: Sequence[Job], epochs: Sequence[float], needs: Sequence[Need], workers: int) -> None:
        self.hardware, self.jobs, self.needs, self.workers = hardware, jobs, needs, workers
        self.arrivals = tuple(job.start for job in jobs)
        self.work = [job.workload.dataset.samples * count for job, count in zip(jobs, epochs, strict=True)]
        self._known: dict[tuple[tuple[int, int], ...], dict[int, float]] = {}

    def outcome(self, policy: Policy) -> Outcome:
        """Return what *policy* makes of the jobs."""
        found = course(self.arrivals, self.work, lambda active: self._rates(policy, active))
        done = tuple(max(stretch.end for stretch in found if job in stretch.rates) for job in range(len(self.jobs)))
        throughput = tuple(work / (end - start) for work, end, start in zip(self.work, done, self.arrivals, strict=True))
        fullest = max((tuple(stretch.rates) for stretch in found), key=len)
        given = dict(zip(fullest, DIVIDE[policy](self.workers, [self.needs[job] for job in fullest]), strict=True))
        alone = {job: DIVIDE[policy](self.workers, [need])[0] for job, need in enumerate(self.needs)}
        return Outcome(policy, tuple(given.get(job, alone[job]) for job in range(len(self.jobs))), throughput, done)

    def _rates(self, policy: Policy, active: tuple[int, ...]) -> dict[int, float]:
        given = DIVIDE[policy](self.workers, [self.needs[job] for job in active])
        key = tuple(zip(active, given, strict=True))
        if key not in self._known:
            running = [replace(self.jobs[job], workload=with_workers(self.jobs[job].workload, each), start=0.0) for job, each in key]
            ran = simulate(self.hardware, running, cold=False)
            self._known[key] = {job: found.throughput for job, found in zip(active, ran.jobs, strict=True)}
        return self._known[key]
