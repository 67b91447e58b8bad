"""Which run does the user ask for? Names and options in; checked descriptions, or a finished run, out.

The one way from what stands on a command line (or in a sweep's point) to `sim.simulate`: every front end goes through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from sim.analysis.bottleneck import Bottleneck
from sim.analysis.memory import gpu_memory, largest_batch
from sim.check import check_hardware, check_job, check_run, check_workload, require, warn_job
from sim.cluster.build import Placement, place, with_nodes
from sim.simulate import Run, ring_channels_of, simulate
from sim.spec.catalogue import locate, read
from sim.spec.hardware import Gpu, Hardware
from sim.spec.library import Loaded, fingerprint, load, load_hardware, load_workload
from sim.spec.workload import Jobs, JobSpec, Workload
from sim.spec.yaml import SpecError
from sim.study.bottleneck import bottlenecks
from sim.study.sensitivity import estimate_warnings
from sim.training.job import Job
from sim.units import show

_WORKLOAD_KEYS = frozenset(Workload.model_fields) - {"name", "description", "aliases"}


@dataclass(frozen=True)
class Scenario:
    """One run as the user names it; None leaves a value as described."""

    hardware: str
    workload: str
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE`` texts; the first word of the key tells whether it is the hardware's or the workload's."""
    nodes: int | None = None
    gpus: int | None = None
    """GPUs in all."""
    placement: str | None = None
    batch: int | Literal["max"] | None = None
    """Samples per GPU; max: as many as fit into the memory of every GPU."""
    global_batch: int | None = None
    precision: str | None = None
    stack: str | None = None
    seed: int = 0
    exact: bool = False
    fold: bool = True


@dataclass(frozen=True)
class Answer:
    """A finished run, and the fingerprints (SHA-256) of what went in."""

    run: Run
    inputs: Mapping[str, str]
    warnings: Sequence[str] = ()
    bottlenecks: Sequence[Bottleneck] = ()
    """By job, where they were asked for."""


def answer(scenario: Scenario, thorough: bool = False, keep_rates: bool = False) -> Answer:
    """Load, check and simulate *scenario*; *thorough* also tries what bounds it and which estimates decide it.

    Raise SpecError with all that is wrong.
    """
    question = prepare(scenario)
    run = simulate(question.hardware, question.jobs, exact=scenario.exact, fold=scenario.fold, keep_rates=keep_rates, seed=scenario.seed)
    found = [text for job in question.jobs for text in estimate_warnings(question.hardware, job.averaged)] if thorough else []
    return Answer(run, question.inputs, (*question.warnings, *found), bottlenecks(run) if thorough else ())


class Question(NamedTuple):
    """Checked descriptions, what is odd about them, and the fingerprints of what was read."""

    hardware: Hardware
    jobs: Sequence[Job]
    inputs: Mapping[str, str]
    warnings: Sequence[str]


def prepare(scenario: Scenario) -> Question:
    """Return the checked hardware and the jobs on it. Raise SpecError with everything that is wrong."""
    if scenario.gpus is not None and scenario.placement is not None:
        raise SpecError("--gpus and --placement: write one of the two; the placement counts the GPUs of each node")
    for_hardware, for_workload = sorted_overrides(scenario)
    machine = load_hardware(scenario.hardware, for_hardware)
    if scenario.nodes is not None:
        machine = replace(machine, spec=with_nodes(machine.spec, scenario.nodes))
    if _is_jobs_file(scenario.workload):
        return _prepare_jobs(scenario, machine)
    loaded = load_workload(scenario.workload, for_workload)
    ranks = _ranks(machine.spec, scenario)
    loaded = replace(loaded, spec=_sized(loaded.spec, scenario, ranks))
    warnings = [*_alias_notes(scenario, machine.spec), *check_run(machine, loaded, gpus=scenario.gpus)]
    job = Job(loaded.spec, place(machine.spec, scenario.gpus, scenario.placement))
    channels = ring_channels_of(machine.spec, job)
    if scenario.batch == "max":
        loaded = replace(loaded, spec=_with_batch(loaded.spec, _most(machine.spec, loaded.spec, ranks, channels)))
        job = replace(job, workload=loaded.spec)
    fits = partial(memory_problem, ranks=ranks, channels=channels)
    require(check_job(machine.spec, loaded.spec, fit=fits, documents=(machine.document, loaded.document)))
    inputs = {
        "hardware": machine.sha256,
        "workload": loaded.sha256,
        "stack": fingerprint(loaded.document.value["training"]["stack"]),
        "records": fingerprint([]),
    }
    return Question(machine.spec, [job], inputs, warnings)


def _alias_notes(scenario: Scenario, hardware: Hardware) -> list[str]:
    """Return what the user should know who wrote an alias of *hardware*."""
    if scenario.hardware not in hardware.aliases:
        return []
    return [
        f"{scenario.hardware} means {hardware.name}: {hardware.note}" if hardware.note else f"{scenario.hardware} means {hardware.name}"
    ]


def scaling(scenario: Scenario, nodes: Sequence[int], gpus: Sequence[int]) -> list[Scenario]:
    """Return one scenario for each number of *nodes* and of *gpus*, of which at most one list is long; an empty one leaves all."""
    if len(nodes) > 1 and len(gpus) > 1:
        raise SpecError("a scaling table varies --nodes or --gpus, not both at once")
    return [replace(scenario, nodes=count, gpus=total) for count in (nodes or (None,)) for total in (gpus or (None,))]


def sorted_overrides(scenario: Scenario) -> tuple[list[str], list[str]]:
    """Return the overrides of the hardware and those of the workload, options among the latter."""
    for_hardware, for_workload = split_overrides(scenario.overrides)
    options = {"training.stack": scenario.stack, "training.precision": scenario.precision, "training.batch": scenario.batch}
    for_workload = [f"{key}={value}" for key, value in options.items() if value not in (None, "max")] + for_workload
    return for_hardware, for_workload


def split_overrides(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the single overrides in *texts* that belong to the hardware, and those that belong to the workload."""
    for_hardware: list[str] = []
    for_workload: list[str] = []
    for text in texts:
        for part in filter(None, map(str.strip, text.split(";"))):
            mine = part.partition("=")[0].partition(".")[0].strip()
            (for_workload if mine in _WORKLOAD_KEYS or mine == "jobs" else for_hardware).append(part)
    return for_hardware, for_workload


def _sized(workload: Workload, scenario: Scenario, ranks: int) -> Workload:
    """Return *workload* with its share of the global batch, where one was asked for."""
    if scenario.global_batch is None:
        return workload
    if scenario.batch is not None:
        raise SpecError("--batch and --global-batch: write one of the two")
    if scenario.global_batch < ranks or scenario.global_batch % ranks:
        raise SpecError(f"--global-batch {scenario.global_batch}: does not divide evenly over {ranks} GPUs")
    return _with_batch(workload, scenario.global_batch // ranks)


def _with_batch(workload: Workload, batch: int) -> Workload:
    return workload.model_copy(update={"training": workload.training.model_copy(update={"batch": batch})})


def _most(hardware: Hardware, workload: Workload, ranks: int, channels: int | None) -> int:
    """Return the largest batch per GPU that fits every GPU; 1 where not even that fits, for the check that follows to refuse."""
    gpus = [group.node.gpu for group in hardware.groups if group.role == "worker" and group.node.gpu_count]
    return max(1, min((largest_batch(workload, gpu, ranks=ranks, channels=channels) for gpu in gpus), default=1))


def batch_of(text: str) -> int | Literal["max"]:
    """Return what ``--batch`` says: a whole number of at least 1, or ``max``."""
    if text == "max":
        return "max"
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise SpecError(f"--batch {text}: write the samples of each GPU, 1 or more, or max for as many as fit into its memory")
    return int(text)


def _ranks(hardware: Hardware, scenario: Scenario) -> int:
    """Return how many ranks the scenario asks for, whether or not there are as many GPUs."""
    if scenario.placement:
        return sum(len(part.gpus) for part in place(hardware, None, scenario.placement))
    return scenario.gpus or sum(group.count * group.node.gpu_count for group in hardware.groups if group.role == "worker")


def memory_problem(gpu: Gpu, workload: Workload, ranks: int, channels: int | None = None) -> str | None:
    """Return in a sentence what does not fit into the GPU's memory, and what would; None where all fits."""
    needed = gpu_memory(workload, gpu, ranks=ranks, channels=channels).total
    if needed <= gpu.memory:
        return None
    most = largest_batch(workload, gpu, ranks=ranks, channels=channels)
    would = f"the largest batch that fits is {most}" if most else "not even one sample fits"
    return (
        f"a batch of {workload.training.batch} per GPU needs {show(needed, 'binary size')} of GPU memory, "
        f"{gpu.name} has {show(gpu.memory, 'binary size')}; {would}"
    )


# --- several jobs ----------------------------------------------------------------------------------------------------


def _is_jobs_file(name: str) -> bool:
    """Tell whether *name* is a file that lists several jobs."""
    path = locate(name, "workloads")
    value = read(path).value
    return isinstance(value, dict) and "jobs" in value


def _prepare_jobs(scenario: Scenario, machine: Loaded[Hardware]) -> Question:
    given = {
        "--gpus": scenario.gpus,
        "--placement": scenario.placement,
        "--batch": scenario.batch,
        "--global-batch": scenario.global_batch,
        "--precision": scenario.precision,
        "--stack": scenario.stack,
    }
    for option, value in given.items():
        if value is not None:
            raise SpecError(f"{option} {value}: a file of several jobs says this for each job")
    loaded = load(Jobs, locate(scenario.workload, "workloads"), sorted_overrides(scenario)[1])
    require(check_hardware(machine.spec, machine.document))
    taken: dict[int, set[int]] = {}
    jobs: list[Job] = []
    warnings: list[str] = []
    for number, entry in enumerate(loaded.spec.jobs):
        placement = _free_gpus(machine.spec, entry, taken, f"{scenario.workload}: jobs.{number}")
        job = Job(entry.workload, placement, entry.start)
        require(
            [
                *check_workload(entry.workload),
                *check_job(
                    machine.spec, entry.workload, fit=partial(memory_problem, ranks=job.ranks, channels=ring_channels_of(machine.spec, job))
                ),
            ]
        )
        warnings += warn_job(machine.spec, entry.workload)
        jobs.append(job)
    stacks = fingerprint([entry["workload"]["training"]["stack"] for entry in loaded.document.value["jobs"]])
    inputs = {"hardware": machine.sha256, "workload": loaded.sha256, "stack": stacks, "records": fingerprint([])}
    return Question(machine.spec, jobs, inputs, warnings)


def _free_gpus(hardware: Hardware, entry: JobSpec, taken: dict[int, set[int]], where: str) -> tuple[Placement, ...]:
    """Return a job's placement on GPUs that no earlier job has taken, and take them."""
    whole = place(hardware)
    wanted = list(whole)
    if entry.gpus:
        wanted = [Placement(whole[0].node, entry.gpus)]
    elif entry.placement:
        counts = [len(part.gpus) for part in place(hardware, None, entry.placement)]
        free = [tuple(gpu for gpu in part.gpus if gpu not in taken.get(part.node, ())) for part in whole]
        short = next((node for node, count in enumerate(counts) if count > len(free[node])), None)
        if short is not None:
            raise SpecError(f"{where}: placement {entry.placement} needs {counts[short]} GPUs of node {short}; {len(free[short])} are free")
        wanted = [Placement(part.node, free[node][:count]) for node, (part, count) in enumerate(zip(whole, counts, strict=False))]
    known = {part.node: part.gpus for part in whole}
    for part in wanted:
        _take(part, known[part.node], taken.setdefault(part.node, set()), where)
    return tuple(wanted)


def _take(part: Placement, known: Sequence[int], used: set[int], where: str) -> None:
    for gpu in part.gpus:
        if gpu not in known:
            raise SpecError(f"{where}: there is no GPU {gpu} on node {part.node}; it has GPUs 0..{len(known) - 1}")
        if gpu in used:
            raise SpecError(f"{where}: GPU {gpu} of node {part.node} belongs to an earlier job")
        used.add(gpu)
