"""Which jobs does a jobs file describe? Each gets GPUs that no earlier job has (`sim.study.job_places`), and is checked separately.

With ``coordinated_prep``, jobs with the same data set on the same nodes share batches: each job reads and prepares its part of them.
Limits: jobs that share run at the same pace (as in a hyperparameter search), and batches that wait for the slowest job take no memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sim.check import check_hardware, check_job, check_jobs, job_warnings, layout_stack_warnings, require
from sim.simulate import ring_channels_of
from sim.spec.catalog import catalog, locate, read
from sim.spec.elsewhere import cached
from sim.spec.hardware import Hardware
from sim.spec.library import Loaded, fingerprint, load
from sim.spec.overrides import Override
from sim.spec.schema import FOLDERS
from sim.spec.workload import Jobs
from sim.spec.yaml import SpecError
from sim.study.job_places import Places, nodes_of
from sim.study.memory_fit import memory_problem
from sim.training.job import Job
from sim.units import show


class PlacedJobs(NamedTuple):
    """The jobs of a file, warnings about them, and the fingerprints of the file and of the stacks in it."""

    jobs: list[Job]
    warnings: list[str]
    sha256: str
    stacks: str


def jobs_file(name: str) -> Path | None:
    """Return the path of the jobs file *name* (a path or a catalog name); None if it describes a single workload."""
    return cached((jobs_file, name), lambda: _jobs_file(name))


def _jobs_file(name: str) -> Path | None:
    folder = FOLDERS[Jobs]
    path = locate(name, folder if name in catalog(folder) else "workloads")
    value = read(path).value
    return path if isinstance(value, dict) and "jobs" in value else None


def place_jobs(machine: Loaded[Hardware], path: Path, overrides: list[Override]) -> PlacedJobs:
    """Return the jobs of the file *path* on *machine*. Raise SpecError listing the problems."""
    loaded = load(Jobs, path, overrides)
    require([*check_hardware(machine.spec, machine.document), *check_jobs(loaded.spec, loaded.document)])
    places = Places(machine.spec)
    jobs: list[Job] = []
    warnings: list[str] = []
    problems: list[str] = []
    for number, entry in enumerate(loaded.spec.jobs):
        where = loaded.document.message_start(("jobs", number))
        try:
            if entry.workload.training.batches:
                raise SpecError("training.batches: a file of several jobs gives each job one batch; write training.batch")
            job = Job(entry.workload, places.take(number, entry), entry.start)
            channels = ring_channels_of(machine.spec, job)
        except SpecError as error:
            problems += [where + text for text in error.problems]
            continue
        there = nodes_of(machine.spec, job.placement)
        fits = partial(memory_problem, ranks=job.ranks, channels=channels)
        problems += [where + text for text in check_job(there, entry.workload, fit=fits, documents=(machine.document, None))]
        most = max(len(part.gpus) for part in job.placement)
        texts = [*layout_stack_warnings(entry.workload), *job_warnings(there, entry.workload, most, job.ranks)]
        warnings += [f"jobs.{number}: {text}" for text in texts]
        jobs.append(job)
    require(problems)
    if loaded.spec.coordinated_prep:
        jobs, notes = _coordinated(jobs, loaded)
        warnings += notes
    stacks = fingerprint([entry["workload"]["training"]["stack"] for entry in loaded.document.value["jobs"]])
    return PlacedJobs(jobs, warnings, loaded.sha256, stacks)


def _coordinated(jobs: list[Job], loaded: Loaded[Jobs]) -> tuple[list[Job], list[str]]:
    """Return *jobs* with the number that share each batch, and a note for each job that shares none.

    Raise SpecError if no jobs share batches, or if jobs that should share cannot.
    """
    teams: dict[tuple[object, ...], list[int]] = {}
    for number, job in enumerate(jobs):
        alone = job.workload.input.loader == "synthetic"  # reads and prepares nothing
        where = tuple(part.node for part in job.placement)
        teams.setdefault((job.workload.dataset.name, where, number if alone else None), []).append(number)
    for first, *others in teams.values():
        for number in others:
            _check_can_share(jobs[number], jobs[first], loaded.document.message_start(("jobs", number)), first)
    count = {number: len(team) for team in teams.values() for number in team}
    if max(count.values()) == 1:
        start = loaded.document.message_start(("coordinated_prep",))
        raise SpecError(
            f"{start}has no effect, because no two jobs read and prepare the same data set on the same nodes; leave it out, or give such "
            "jobs the same 'nodes'"
        )
    lone = [number for number in range(len(jobs)) if count[number] == 1]
    notes = [f"jobs.{number}: shares no batches: no other job reads and prepares its data set on the same nodes" for number in lone]
    return [replace(job, sharers=count[number]) for number, job in enumerate(jobs)], notes


def _check_can_share(job: Job, first: Job, where: str, number: int) -> None:
    """Raise SpecError unless *job* can use the batches of *first*, which is job *number*."""
    own, other = job.workload, first.workload
    for field, mine, theirs in (
        ("batch", own.training.batch, other.training.batch),
        ("loader", own.input.loader, other.input.loader),
        ("start", show(job.start, "time"), show(first.start, "time")),
    ):
        if mine != theirs:
            raise SpecError(f"{where}{field} {mine}: with coordinated_prep, jobs use the same batches; write {theirs}, like jobs.{number}")
    if own.dataset != other.dataset:
        raise SpecError(f"{where}dataset {own.dataset.name}: differs from that of jobs.{number}, with which it shares batches")
