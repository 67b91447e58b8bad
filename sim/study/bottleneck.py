"""What if one resource were infinitely fast? The run is repeated with a resource freed: how much the step gains, and what bounds it then.

This counterfactual is behind the one-sentence verdict of ``sim run``. A resource is freed in the description (`sim.study.faster`): it
becomes a million times as fast. The warm epoch is repeated from its start, with the burst credits that the run itself had left then: what
a faster cold epoch would have used is not counted. Limits: warm epochs only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sim.analysis.bottleneck import RESOURCES, TIE, Bottleneck, largest_saving
from sim.causes import CAUSES, Resource
from sim.events import STALLS, Cause
from sim.simulate import JobRun, Run, simulate
from sim.spec.sections import with_fields
from sim.spec.workload import Workload
from sim.study.faster import faster
from sim.study.loader_workers import enough_workers, limiting_workers, with_workers
from sim.training.collectives.price.collective_plan import CORES_COPY, OF_BROADCAST
from sim.training.input_pipeline import STORAGE_NETWORK

_MOMENTS = (0.25, 0.5, 0.75)
"""Shares of the time between two batches by which the work of loaders is shifted: with the run itself, four moments, evenly spaced."""
_WAITED = 0.01
"""Share of the step below which a wait does not justify a run."""


def bottlenecks(run: Run, noteworthy: float = 0.04) -> list[Bottleneck]:
    """Return by job what bounds the warm epochs of *run*; a first resource must save at least the share *noteworthy* of the step."""
    trials = _Trials(run)
    by_job = [_bottleneck(trials, number, noteworthy) for number in range(len(run.jobs))]
    return [
        replace(
            each,
            without_broadcast=trials.without_broadcast(number, noteworthy),
            doubled_time=trials.doubled(number, each.tied),
            more_workers=trials.more_workers(number, each),
            phases=trials.phases(number),
        )
        for number, each in enumerate(by_job)
    ]


class _Trials:
    """Simulations with resources freed, each run once for all jobs that meet anywhere (see `jobs_met_by`)."""

    def __init__(self, run: Run) -> None:
        if any(each.job.workload.training.noise.draw for each in run.jobs):  # compare means, not draws
            run = simulate(run.hardware, [each.job.averaged for each in run.jobs], cold=False)
        self._done: dict[tuple[tuple[int, ...], frozenset[Resource]], Run] = {}
        self._moved: dict[tuple[int, ...], list[Run]] = {}
        self._base = run
        self._with = jobs_met_by(run)

    def job(self, number: int, *resources: Resource) -> JobRun:
        """Return the run of job *number* with *resources* freed; jobs that it never meets do not matter."""
        if not resources:
            return self._base.jobs[number]
        company, freed = self._with[number], frozenset(resources)
        if (company, freed) not in self._done:
            hardware, jobs = faster(self._base.hardware, [self._base.jobs[other].job for other in company], resources)
            self._done[company, freed] = simulate(hardware, jobs, cold=False, credits=self._base.credits)
        return self._done[company, freed].jobs[company.index(number)]

    def without_broadcast(self, number: int, noteworthy: float) -> float | None:
        """Return the warm step (s) of job *number* without broadcasts of buffers, if it waits at least the share *noteworthy* for them."""
        job_run = self._base.jobs[number]
        waited = sum(row.seconds for row in job_run.warm.resources if row.resource.endswith(OF_BROADCAST))
        if waited < noteworthy * job_run.warm.step_time:
            return None
        workload = job_run.job.workload
        stack = with_fields(workload.training.stack, broadcast_buffers=False)
        return self._with_workload(number, workload.with_training(stack=stack), self._base.credits)

    def more_workers(self, number: int, bottleneck: Bottleneck) -> tuple[int, float] | None:
        """Return how many workers the idle cores of job *number* could run to feed its GPUs, and the warm step (s) with them.

        That is the step of another run, whose cold epoch uses its own burst credits. Freed cores do not speed up the reads of each worker,
        so if one worker for each hardware thread is `TIE` faster, those are returned.
        """
        workers = limiting_workers(self._base, number) if bottleneck.first == "cpu" else None
        if workers is None:
            return None
        count = enough_workers(workers, bottleneck.step_time / bottleneck.freed_times["cpu"])
        workload = self._base.jobs[number].job.workload
        enough, most = (self._with_workload(number, with_workers(workload, each), None) for each in (count, workers.threads))
        return (count, enough) if most > (1.0 - TIE) * enough else (workers.threads, most)

    def _with_workload(self, number: int, workload: Workload, credits: Mapping[str, float] | None) -> float:
        """Return the warm step (s) of job *number* with another *workload*, beside the same jobs; *credits* as in `simulate`."""
        changed, company = replace(self._base.jobs[number].job, workload=workload), self._with[number]
        jobs = [changed if other == number else self._base.jobs[other].job for other in company]
        return simulate(self._base.hardware, jobs, cold=False, credits=credits).jobs[company.index(number)].warm.step_time

    def doubled(self, number: int, tied: tuple[Resource, Resource] | None) -> float | None:
        """Return the warm step (s) of job *number* with twice as much of both resources in *tied*, if there are any."""
        if tied is None:
            return None
        company = self._with[number]
        hardware, jobs = faster(self._base.hardware, [self._base.jobs[other].job for other in company], tied, 2.0)
        return simulate(hardware, jobs, cold=False, credits=self._base.credits).jobs[company.index(number)].warm.step_time

    def phases(self, number: int) -> tuple[float, ...]:
        """Return the warm steps (s) of job *number* with loaders, also of jobs that it meets, shifted to other moments of steps.

        The moment in a step when a batch is pinned, copied or decoded on the GPU depends, to the millisecond, on how long it takes to
        build. So neither that moment nor its cost is as certain as the throughput of the loader.
        """
        job_run = self._base.jobs[number]
        options = job_run.job.workload.input
        if options.loader == "synthetic" or (options.loader == "pytorch" and options.num_workers == 0):
            return ()
        company = self._with[number]
        if company not in self._moved:
            jobs = [self._base.jobs[other] for other in company]
            between = [  # a batch that is later than that would hold up the step
                each.warm.step_time / each.job.workload.training.gradient_accumulation_steps for each in jobs
            ]
            self._moved[company] = [
                simulate(
                    self._base.hardware,
                    [each.job for each in jobs],
                    cold=False,
                    lags=[share * time for time in between],
                    credits=self._base.credits,
                )
                for share in _MOMENTS
            ]
        return tuple(moved.jobs[company.index(number)].warm.step_time for moved in self._moved[company])

    def step_times(self, number: int, *resources: Resource) -> dict[Resource, float]:
        """Return the warm step (s) of job *number* with *resources* and one more freed, for each that it then waits for."""
        waited = _waited_for(self.job(number, *resources))
        return {more: self.job(number, *resources, more).warm.step_time for more in RESOURCES if more in waited - {*resources}}


def jobs_met_by(run: Run) -> list[tuple[int, ...]]:
    """Return, by job, which jobs it meets on a node or on a link between nodes, directly or through others, including itself."""
    places = [{*wiring.shared_capacities} if wiring else set[str]() for wiring in run.rings]
    for slot in run.cluster:
        for number, _ in (*slot.lent_gpus, *slot.server_numbers):
            places[number].add(slot.name)
    company_of: dict[int, set[int]] = {}
    for number, own in enumerate(places):
        company = {number}.union(*(company_of[other] for other in range(number) if own & places[other]))
        company_of |= dict.fromkeys(company, company)
    return [tuple(sorted(company_of[number])) for number in range(len(places))]


def _bottleneck(trials: _Trials, number: int, noteworthy: float) -> Bottleneck:
    job = trials.job(number)
    step, freed = job.warm.step_time, trials.step_times(number)
    others: dict[Resource, float] = {resource: time for resource, time in freed.items() if resource != "gpu"}
    best = largest_saving(step, others)
    if best is None or step - others[best] < noteworthy * step:
        best = _most_blamed(job, others)  # no single one helps: perhaps two bound the step together
        if best is None or step - job.warm.stalls[Cause.COMPUTE] < noteworthy * step:
            return Bottleneck(step, freed, limit_behind_gpus=_behind(trials.job(number, "gpu"), step))
    return Bottleneck(step, freed, best, trials.step_times(number, best))


def _behind(freed: JobRun, step: float) -> Resource | None:
    """Return what a job waits for with its GPUs *freed*, if that takes nearly as long as its *step* (s); else None."""
    if step - freed.warm.step_time >= TIE * step:
        return None
    return _most_blamed(freed, dict.fromkeys(_waited_for(freed) - {"gpu"}, 0.0))


def _most_blamed(job: JobRun, freed: Mapping[Resource, float]) -> Resource | None:
    """Return the resource behind the largest direct stall of *job*; if there are several, the one that saves most when *freed*."""
    for cause in sorted(STALLS, key=lambda cause: -job.warm.stalls[cause]):
        if tried := [resource for resource in CAUSES[cause].blamed if resource in freed]:
            return min(tried, key=lambda resource: freed[resource])
    return None


def _waited_for(job: JobRun) -> set[Resource]:
    """Return the resources from which *job* may gain: those that it waits for at least 1% of the step, and its GPUs.

    Freeing any other resource would gain nothing, so its run is skipped.
    """
    resources: set[Resource] = {"gpu"}
    for cause, seconds in job.warm.stalls.items():
        if seconds > _WAITED * job.warm.step_time:
            resources.update(CAUSES[cause].blamed)
    workload = job.job.workload
    if resources & {"disk", "cpu"}:  # a loader overlaps its stages, so blame on one may hide another
        resources |= {"disk", "cpu", "copy"}
    limits = {row.resource for row in job.warm.resources}
    if CORES_COPY in limits:
        resources.add("cpu")
    if STORAGE_NETWORK in limits:
        resources.add("network")
    if workload.input.loader != "dali_gpu":
        resources.discard("decode")
    else:
        resources.discard("copy")  # the sample crosses PCIe as it was read: covered by PCIe
    if workload.input.loader == "synthetic" or job.hit_ratio >= 1.0:
        resources.discard("disk")
    return resources
