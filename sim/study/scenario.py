"""Which run does the user ask for? Names and options in; checked descriptions, or a finished run, out.

The one way from what stands on a command line (or in a sweep's point) to `sim.simulate`: every front end goes through here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sim.analysis.memory import gpu_memory, largest_batch
from sim.check import check_hardware, check_job, check_workload, require
from sim.cluster.build import Placement, place, with_nodes
from sim.simulate import Run, simulate
from sim.spec.catalogue import locate, read
from sim.spec.hardware import Gpu, Hardware
from sim.spec.library import Loaded, fingerprint, load, load_hardware, load_workload
from sim.spec.workload import Jobs, Workload
from sim.spec.yaml import SpecError
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
    batch: int | None = None
    """Samples per GPU."""
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
    warnings: Sequence[str] = field(default=())


def answer(scenario: Scenario, keep_rates: bool = False) -> Answer:
    """Load, check and simulate *scenario*. Raise SpecError with everything that is wrong."""
    hardware, jobs, inputs = prepare(scenario)
    run = simulate(hardware, jobs, exact=scenario.exact, fold=scenario.fold, keep_rates=keep_rates, seed=scenario.seed)
    return Answer(run, inputs)


def prepare(scenario: Scenario) -> tuple[Hardware, list[Job], dict[str, str]]:
    """Return the checked hardware, the jobs on it, and the fingerprints of what was read."""
    for_hardware, for_workload = _sorted_overrides(scenario)
    machine = load_hardware(scenario.hardware, for_hardware)
    hardware = with_nodes(machine.spec, scenario.nodes) if scenario.nodes is not None else machine.spec
    require(check_hardware(hardware, machine.document))
    if _is_jobs_file(scenario.workload):
        return _prepare_jobs(scenario, machine, hardware)
    loaded = load_workload(scenario.workload, for_workload)
    placement = place(hardware, scenario.gpus, scenario.placement)
    ranks = sum(len(part.gpus) for part in placement)
    workload = _sized(loaded.spec, scenario, ranks)
    require(check_workload(workload, loaded.document))
    _require_fit(machine, hardware, loaded, workload, ranks)
    inputs = {
        "hardware": machine.sha256,
        "workload": loaded.sha256,
        "stack": fingerprint(loaded.document.value["training"]["stack"]),
        "records": fingerprint([]),
    }
    return hardware, [Job(workload, placement)], inputs


def scaling(scenario: Scenario, nodes: Sequence[int], gpus: Sequence[int]) -> list[Scenario]:
    """Return one scenario for each number of nodes or, failing that, of GPUs."""
    if len(nodes) > 1 and len(gpus) > 1:
        raise SpecError("a scaling table varies --nodes or --gpus, not both at once")
    if len(gpus) > 1:
        return [replace(scenario, gpus=count, nodes=nodes[0] if nodes else None) for count in gpus]
    return [replace(scenario, nodes=count, gpus=gpus[0] if gpus else None) for count in nodes]


def _sorted_overrides(scenario: Scenario) -> tuple[list[str], list[str]]:
    """Return the overrides of the hardware and those of the workload, options among the latter."""
    for_hardware: list[str] = []
    for_workload: list[str] = []
    for text in scenario.overrides:
        for part in filter(None, map(str.strip, text.split(";"))):
            mine = part.partition("=")[0].partition(".")[0].strip()
            (for_workload if mine in _WORKLOAD_KEYS or mine == "jobs" else for_hardware).append(part)
    options = {"training.stack": scenario.stack, "training.precision": scenario.precision, "training.batch": scenario.batch}
    for_workload = [f"{key}={value}" for key, value in options.items() if value is not None] + for_workload
    return for_hardware, for_workload


def _sized(workload: Workload, scenario: Scenario, ranks: int) -> Workload:
    """Return *workload* with its share of the global batch, where one was asked for."""
    if scenario.global_batch is None:
        return workload
    if scenario.batch is not None:
        raise SpecError("--batch and --global-batch: write one of the two")
    if scenario.global_batch < ranks or scenario.global_batch % ranks:
        raise SpecError(f"--global-batch {scenario.global_batch}: does not divide evenly over {ranks} GPUs")
    training = workload.training.model_copy(update={"batch": scenario.global_batch // ranks})
    return workload.model_copy(update={"training": training})


def _require_fit(machine: Loaded[Hardware], hardware: Hardware, loaded: Loaded[Workload], workload: Workload, ranks: int) -> None:
    documents = (machine.document, loaded.document)
    require(check_job(hardware, workload, fit=lambda gpu, job: memory_problem(gpu, job, ranks), documents=documents))


def memory_problem(gpu: Gpu, workload: Workload, ranks: int) -> str | None:
    """Return in a sentence what does not fit into the GPU's memory, and what would; None where all fits."""
    needed = gpu_memory(workload, gpu, ranks=ranks).total
    if needed <= gpu.memory:
        return None
    most = largest_batch(workload, gpu, ranks=ranks)
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


def _prepare_jobs(scenario: Scenario, machine: Loaded[Hardware], hardware: Hardware) -> tuple[Hardware, list[Job], dict[str, str]]:
    given = {"--gpus": scenario.gpus, "--placement": scenario.placement, "--global-batch": scenario.global_batch, "--batch": scenario.batch}
    for option, value in given.items():
        if value is not None:
            raise SpecError(f"{option} {value}: a file of several jobs says this for each job")
    loaded = load(Jobs, Path(locate(scenario.workload, "workloads")), _sorted_overrides(scenario)[1])
    taken: dict[int, set[int]] = {}
    jobs = []
    for number, entry in enumerate(loaded.spec.jobs):
        placement = _free_gpus(hardware, entry.placement, entry.gpus, taken, f"{scenario.workload}: jobs.{number}")
        require(check_workload(entry.workload))
        ranks = sum(len(part.gpus) for part in placement)
        require(check_job(hardware, entry.workload, fit=lambda gpu, job, n=ranks: memory_problem(gpu, job, n)))  # type: ignore[misc]
        jobs.append(Job(entry.workload, placement, entry.start))
    stacks = fingerprint([entry["workload"]["training"]["stack"] for entry in loaded.document.value["jobs"]])
    inputs = {"hardware": machine.sha256, "workload": loaded.sha256, "stack": stacks, "records": fingerprint([])}
    return hardware, jobs, inputs


def _free_gpus(
    hardware: Hardware, pattern: str | None, gpus: Sequence[int], taken: dict[int, set[int]], where: str
) -> tuple[Placement, ...]:
    """Return a job's placement on GPUs that no earlier job has taken, and take them."""
    whole = place(hardware)
    if gpus:
        wanted = [Placement(whole[0].node, tuple(gpus))]
    elif pattern:
        counts = [len(part.gpus) for part in place(hardware, None, pattern)]
        wanted = []
        for part, count in zip(whole, counts, strict=False):
            free = [gpu for gpu in part.gpus if gpu not in taken.get(part.node, set())]
            if len(free) < count:
                raise SpecError(f"{where}: placement {pattern} needs {count} free GPUs on node {part.node}; {len(free)} are left")
            wanted.append(Placement(part.node, tuple(free[:count])))
    else:
        wanted = list(whole)
    for part in wanted:
        known = next(place.gpus for place in whole if place.node == part.node)
        used = taken.setdefault(part.node, set())
        for gpu in part.gpus:
            if gpu not in known:
                raise SpecError(f"{where}: there is no GPU {gpu} on node {part.node}; it has GPUs 0..{len(known) - 1}")
            if gpu in used:
                raise SpecError(f"{where}: GPU {gpu} of node {part.node} belongs to an earlier job")
            used.add(gpu)
    return tuple(wanted)
