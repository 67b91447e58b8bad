"""Which jobs does a file of several ask for, and on which GPUs? Each takes GPUs that no earlier job has.

A job says ``placement`` (GPUs of each node in turn, as in ``1+2``: the first that are free), or ``gpus`` (those of the first node),
or neither (all GPUs, which only a job alone can have). With ``coordinated_prep`` jobs with one data set on the same nodes share their
batches: each reads and prepares its part of them. Limits: jobs that share have the same pace (as those of one search of hyperparameters
have), and the batches that wait for the slowest take no memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sim.check import check_hardware, check_job, check_jobs, require, warn_job
from sim.cluster.build import Placement, place
from sim.simulate import ring_channels_of
from sim.spec.catalogue import catalogue, locate, read
from sim.spec.hardware import Hardware
from sim.spec.library import Loaded, fingerprint, load
from sim.spec.overrides import Override
from sim.spec.schema import FOLDERS
from sim.spec.workload import Jobs, JobSpec
from sim.spec.yaml import SpecError
from sim.study.memory_fit import memory_problem
from sim.training.job import Job


class PlacedJobs(NamedTuple):
    """The jobs of a file, what is odd about them, and the fingerprints of the file and of the stacks in it."""

    jobs: list[Job]
    warnings: list[str]
    sha256: str
    stacks: str


def jobs_file(name: str) -> Path | None:
    """Return the file that *name* (path or catalogue name) stands for where it lists several jobs; None for one workload."""
    folder = FOLDERS[Jobs]
    path = locate(name, folder if name in catalogue(folder) else "workloads")
    value = read(path).value
    return path if isinstance(value, dict) and "jobs" in value else None


def place_jobs(machine: Loaded[Hardware], path: Path, overrides: list[Override]) -> PlacedJobs:
    """Return the jobs of the file *path* on *machine*. Raise SpecError with what is wrong."""
    loaded = load(Jobs, path, overrides)
    require([*check_hardware(machine.spec, machine.document), *check_jobs(loaded.spec, loaded.document)])
    taken: dict[int, set[int]] = {}
    jobs: list[Job] = []
    warnings: list[str] = []
    problems: list[str] = []
    for number, entry in enumerate(loaded.spec.jobs):
        where = loaded.document.place(("jobs", number))
        job = Job(entry.workload, _free_gpus(machine.spec, entry, taken, where), entry.start)
        fits = partial(memory_problem, ranks=job.ranks, channels=ring_channels_of(machine.spec, job))
        problems += [where + text for text in check_job(machine.spec, entry.workload, fit=fits, documents=(machine.document, None))]
        most = max(len(part.gpus) for part in job.placement)
        warnings += [f"jobs.{number}: {text}" for text in warn_job(machine.spec, entry.workload, most, job.ranks)]
        jobs.append(job)
    if loaded.spec.coordinated_prep:
        jobs = _coordinated(jobs, loaded)
    require(problems)
    stacks = fingerprint([entry["workload"]["training"]["stack"] for entry in loaded.document.value["jobs"]])
    return PlacedJobs(jobs, warnings, loaded.sha256, stacks)


def _coordinated(jobs: list[Job], loaded: Loaded[Jobs]) -> list[Job]:
    """Return *jobs* that know how many share each batch. Raise SpecError where one cannot use the batches of another."""
    teams: dict[tuple[object, ...], list[int]] = {}
    for number, job in enumerate(jobs):
        teams.setdefault((job.workload.dataset.name, tuple(part.node for part in job.placement)), []).append(number)
    for first, *others in teams.values():
        for number in others:
            for field in ("batch", "loader"):
                own, due = (getattr(section, field) for section in (_about(jobs[at], field) for at in (number, first)))
                if own != due:
                    where = loaded.document.place(("jobs", number))
                    raise SpecError(f"{where}{field} {own}: with coordinated_prep jobs use the same batches; write {due}, as jobs.{first}")
    count = {number: len(team) for team in teams.values() for number in team}
    return [replace(job, sharers=count[number]) for number, job in enumerate(jobs)]


def _about(job: Job, field: str) -> object:
    return job.workload.training if field == "batch" else job.workload.input


def _free_gpus(hardware: Hardware, entry: JobSpec, taken: dict[int, set[int]], where: str) -> tuple[Placement, ...]:
    """Return a job's placement on GPUs that no earlier job has taken, and take them."""
    whole = place(hardware)
    wanted = list(whole)
    if entry.gpus:
        wanted = [Placement(whole[0].node, entry.gpus)]
    elif entry.placement is not None:
        wanted = _first_free(hardware, entry.placement, taken, where)
    known = {part.node: part.gpus for part in whole}
    for part in wanted:
        _take(part, known[part.node], taken.setdefault(part.node, set()), where)
    return tuple(wanted)


def _first_free(hardware: Hardware, placement: str, taken: dict[int, set[int]], where: str) -> list[Placement]:
    try:
        counts = [len(part.gpus) for part in place(hardware, None, placement)]
    except SpecError as error:
        raise SpecError(where + str(error).removeprefix("--")) from None
    whole = place(hardware)
    free = [tuple(gpu for gpu in part.gpus if gpu not in taken.get(part.node, ())) for part in whole]
    short = next((node for node, count in enumerate(counts) if count > len(free[node])), None)
    if short is not None:
        raise SpecError(f"{where}placement {placement} needs {counts[short]} GPUs of node {short}, of which {len(free[short])} are free")
    return [Placement(part.node, gpus[:count]) for part, gpus, count in zip(whole, free, counts, strict=False)]


def _take(part: Placement, known: tuple[int, ...], used: set[int], where: str) -> None:
    for gpu in part.gpus:
        if gpu not in known:
            raise SpecError(f"{where}there is no GPU {gpu} on node {part.node}; it has GPUs 0 to {len(known) - 1}")
        if gpu in used:
            raise SpecError(
                f"{where}GPU {gpu} of node {part.node} belongs to an earlier job; give each job 'placement' or 'gpus' of its own"
            )
        used.add(gpu)
