"""Which run does the user request? From names and options to checked descriptions, or to a finished run.

This is the only path from a command line (or a point of a sweep) to `sim.simulate`: every front end goes through here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from sim.analysis.bottleneck import Bottleneck
from sim.analysis.cost import Market
from sim.analysis.whole_job import JobPlan
from sim.check import check_job, check_run, job_warnings, require
from sim.cluster.build import Placement, place, with_nodes
from sim.simulate import Run, ring_channels_of, simulate
from sim.spec import memo
from sim.spec.catalog import suggestions
from sim.spec.defaults import PARALLEL_STACK
from sim.spec.hardware import Hardware
from sim.spec.library import Loaded, fingerprint, load_hardware, load_workload
from sim.spec.overrides import Option, Override, single_overrides
from sim.spec.own_prices import PriceOverride
from sim.spec.references import MarkedValue, child, put
from sim.spec.schema import UNFOLDED, completed_key, home_key
from sim.spec.strict import is_series, whole_number
from sim.spec.workload import Workload
from sim.spec.yaml import Document, Mark, SpecError
from sim.study.bottleneck import bottlenecks
from sim.study.hardware_notes import hardware_notes
from sim.study.infeasible import Infeasible
from sim.study.jobs_file import jobs_file, place_jobs
from sim.study.layout_options import FIELDS
from sim.study.memory_fit import largest_fitting_batch, memory_problem, memory_shortage
from sim.study.nccl_names import nccl_variables_named
from sim.study.pool import Progress
from sim.study.sensitivity import estimate_warnings
from sim.training.job import Job
from sim.units import ambiguous_count

_UNSET = {"name", "description", "aliases", "note"}
_WORKLOAD_KEYS = (frozenset(Workload.model_fields) | {"jobs", "coordinated_prep"}) - _UNSET
_HARDWARE_KEYS = frozenset(Hardware.model_fields) | set(UNFOLDED)


A_LAYOUT: Final = f"such as --stack {PARALLEL_STACK} --shard parameters"
"""What to write for a layout, whatever stack the workload names."""
_SEARCHED: Final = tuple(f"training.{key}" for key in ("parallel", "activation_checkpointing", "batch", "gradient_accumulation_steps"))
"""Keys that a plan chooses itself."""


@dataclass(frozen=True)
class Scenario:
    """One run as the user specifies it; None keeps the value of the description."""

    hardware: str
    workload: str
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE`` texts; the first word of the key decides whether it belongs to the hardware or to the workload."""
    nodes: int | None = None
    gpus: int | None = None
    """Total number of GPUs."""
    placement: str | None = None
    batch: int | Literal["max"] | None = None
    """Samples per GPU; max: as many as fit into the memory of every GPU."""
    global_batch: int | None = None
    precision: str | None = None
    fp8_recipe: str | None = None
    stack: str | None = None
    seed: int = 0
    exact: bool = False
    fold: bool = True
    market: Market = "on_demand"
    """Which prices apply."""
    plan: JobPlan | None = None
    """The length of the whole job, if it is requested."""
    layout: tuple[tuple[str, str, str | int], ...] = ()
    """Fields of ``training`` that define the layout, with the options that set them: (option, key, value)."""
    sequence: int | None = None
    """Tokens per sample, for a model with ``transformer``."""
    prices: str = ""
    """The user's own price source, which replaces the prices of descriptions."""
    power_cap: str | None = None
    """Power limit of each GPU, such as ``500 W``, for which a row of a table is computed."""

    @property
    def plan_command(self) -> str:
        """Return the command that looks for a layout of this job."""
        return self._command("python -m sim plan", {"--nodes": self.nodes}, {"--sequence": self.sequence})

    @property
    def batches_command(self) -> str:
        """Return the command that divides the batch of this job among unequal machines."""
        sequence = None if self.sequence is None else f"model.sequence={self.sequence}"
        return self._command("python -m sim batches", {"--global-batch": self.global_batch, "--stack": self.stack}, {"--set": sequence})

    def _command(self, command: str, first: Mapping[str, object], last: Mapping[str, object]) -> str:
        """Return *command* for this job with the options *first* and *last*, and without those of a layout."""
        given = {**first, "--precision": self.precision, "--fp8-recipe": self.fp8_recipe, **last}
        options = [f"{option} {shlex.quote(str(value))}" for option, value in given.items() if value is not None]
        options += [f"--set {shlex.quote(text)}" for text in self.overrides if not text.strip().startswith(_SEARCHED)]
        return " ".join([command, shlex.quote(self.hardware), shlex.quote(self.workload), *options])


class Answer(NamedTuple):
    """A finished run, and the fingerprints (SHA-256) of its inputs."""

    run: Run
    inputs: Mapping[str, str]
    warnings: Sequence[str] = ()
    bottlenecks: Sequence[Bottleneck] = ()
    """By job, if requested."""
    market: Market = "on_demand"
    plan: JobPlan | None = None


def has_layout(scenario: Scenario) -> bool:
    """Return whether *scenario* runs as a layout (`sim.spec.training.Training.has_layout`); False if it cannot be read."""
    try:
        if jobs_file(scenario.workload) is not None:
            return False
        _, of_workload = sorted_overrides(scenario)
        return load_workload(scenario.workload, of_workload).spec.training.has_layout
    except SpecError:  # reported, with all other problems, when it is read to be run
        return False


def answer(
    scenario: Scenario, thorough: bool = False, keep_rates: bool = False, progress: Progress | None = None, keep_log: bool = True
) -> Answer:
    """Load, check and simulate *scenario*; *thorough* also finds what bounds it and which estimates decide the result.

    *progress* gets the number of runs that vary estimates done so far, and their total; with it, all cores may share them. For
    *keep_log* see `sim.simulate.simulate`. Raise SpecError listing all problems.
    """
    with memo.caching_inside():  # each file is read once
        if has_layout(scenario):
            refuse_layouts([load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec])
        return answer_to(prepare(scenario), scenario, thorough, keep_rates, progress, keep_log)


def refuse_parts(workloads: Sequence[Workload]) -> None:
    """Raise SpecError if one of *workloads* has parts of pre-training, which plain data parallelism does not support."""
    if any(workload.pretraining for workload in workloads):
        raise SpecError(f"pretraining: its parts are simulated only for layouts; write one, {A_LAYOUT}, or leave it out")


def refuse_settings_of_layouts(workloads: Sequence[Workload]) -> None:
    """Raise SpecError if one of *workloads* recomputes parts of blocks or launches kernels one by one, which only layouts do."""
    for training in (workload.training for workload in workloads):
        if training.stack.kernels.launch_blocking:
            raise SpecError(f"training.stack.launch_blocking: applies only to layouts; write one, {A_LAYOUT}, or leave it out")
        for name in ("recompute_blocks", "recompute_modules", "recompute_saves"):
            if getattr(training, name):
                raise SpecError(f"training.{name}: applies only to layouts; write one, {A_LAYOUT}, or leave it out")


def refuse_layouts(workloads: Sequence[Workload]) -> None:
    """Raise SpecError if one of *workloads* has a layout, which a run in data parallelism would ignore.

    A single workload may not have a stack for layouts either; of several, `place_jobs` warns about those that have one.
    """
    for number, workload in enumerate(workloads):
        training = workload.training
        if not training.parallel.is_trivial:
            place = f"jobs.{number}: " if len(workloads) > 1 else ""
            raise SpecError(
                f"{place}training.parallel: {workload.name} has a layout, but this runs plain data parallelism only; run a layout with "
                "'python -m sim run HW WL' or stallsim.run, or leave it out with --set training.parallel={}"
            )
        if training.has_layout and len(workloads) == 1:
            raise SpecError(
                f"training.stack: {training.stack.name} is for layouts, but this runs plain data parallelism only; run it with "
                "'python -m sim run HW WL' or stallsim.run, or use --stack torch-2.x-ddp"
            )


def answer_to(
    question: CheckedScenario,
    scenario: Scenario,
    thorough: bool = False,
    keep_rates: bool = False,
    progress: Progress | None = None,
    keep_log: bool = True,
    complete: bool = False,
) -> Answer:
    """Simulate the checked *question* with the options of *scenario*; for the other arguments see `answer`."""
    hardware, jobs = question.hardware, question.jobs
    refuse_layouts([job.workload for job in jobs])
    if any(job.workload.input.stream for job in jobs):
        raise SpecError(f"input.stream: applies only to layouts; write one, {A_LAYOUT}, or leave it out")
    if any(job.workload.training.noise.compute_correlation is not None for job in jobs):
        raise SpecError(
            "training.noise.compute_correlation: applies only to layouts, whose ranks synchronize within units; write one, "
            f"{A_LAYOUT}, or leave it out"
        )
    if scenario.plan and scenario.plan.tokens:
        refuse_parts([job.workload for job in jobs])
    refuse_settings_of_layouts([job.workload for job in jobs])
    with memo.caching_inside():  # many of the runs that are tried turn out to be the same
        with nccl_variables_named():
            simulated = partial(simulate, exact=scenario.exact, complete=complete, fold=scenario.fold, seed=scenario.seed)
            run = simulated(hardware, jobs, keep_rates=keep_rates, keep_log=keep_log)
        names = [f"jobs.{number}: " if len(jobs) > 1 else "" for number in range(len(jobs))]
        tried = zip(names, jobs, strict=True) if thorough else ()
        sensitive = [name + text for name, job in tried for text in estimate_warnings(hardware, job.averaged, progress)]
        freed = bottlenecks(run) if thorough else ()
    return Answer(run, question.inputs, (*question.warnings, *sensitive), freed, scenario.market, scenario.plan)


class CheckedScenario(NamedTuple):
    """Checked descriptions, warnings about them, and the fingerprints of what was read."""

    hardware: Hardware
    jobs: Sequence[Job]
    inputs: Mapping[str, str]
    warnings: Sequence[str]


def prepare(scenario: Scenario) -> CheckedScenario:
    """Return the checked hardware and the jobs on it.

    Raise SpecError listing all problems, `Infeasible` if only the number of nodes or GPUs is to blame.
    """
    _refuse_contradictions(scenario)
    _, for_workload = sorted_overrides(scenario)
    machine = loaded_hardware(scenario)
    notes = notes_on_hardware(scenario, machine.spec)
    if (path := jobs_file(scenario.workload)) is not None:
        _refuse_single_job_options(scenario)
        placed = place_jobs(machine, path, for_workload)
        inputs = {"hardware": machine.sha256, "workload": placed.sha256, "stack": placed.stacks, "records": fingerprint([])}
        return CheckedScenario(machine.spec, placed.jobs, inputs, [*notes, *placed.warnings])
    loaded = load_workload(scenario.workload, for_workload)
    check_run(machine, loaded)
    _refuse_two_batches(loaded.spec, scenario)
    asked_for = requested_gpus(machine.spec, scenario)
    gpus = [group.node.gpu for group in machine.spec.worker_groups]
    try:
        require(check_job(machine.spec, loaded.spec, gpus=scenario.gpus))
        placement = place(machine.spec, scenario.gpus, scenario.placement)
        job = Job(loaded.spec, placement)
        loaded = _sized(
            loaded, scenario, job.ranks, lambda: largest_fitting_batch(gpus, job.workload, job.ranks, ring_channels_of(machine.spec, job))
        )
    except SpecError as error:
        raise Infeasible(error.problems, machine.spec.worker_nodes, asked_for) from None
    channels = ring_channels_of(machine.spec, Job(loaded.spec, placement))
    if scenario.batch == "max":
        loaded = _with_batch(loaded, largest_fitting_batch(gpus, loaded.spec, job.ranks, channels), "--batch max")
    job = job_on(machine.spec, loaded.spec, placement)
    plan = scenario.plan_command if len(gpus) == 1 else ""  # layouts run on one group of workers
    of_global = scenario.global_batch is not None
    fits = partial(memory_problem, ranks=job.ranks, channels=channels, plan=plan, of_global=of_global)
    if problems := check_job(machine.spec, loaded.spec, fit=fits, documents=(machine.document, loaded.document)):
        own = [loaded.spec.model_copy(update={"training": loaded.spec.training.for_group(number)}) for number in range(len(gpus))]
        shortages = (memory_shortage(gpu, task, job.ranks, channels, plan, of_global) for gpu, task in zip(gpus, own, strict=True))
        shortage = next(filter(None, shortages), None)
        raise Infeasible(problems, len(placement), job.ranks, shortage.brief if shortage else "", shortage=shortage)
    notes += job_warnings(machine.spec, loaded.spec, max(len(part.gpus) for part in placement), job.ranks)
    inputs = {
        "hardware": machine.sha256,
        "workload": loaded.sha256,
        "stack": fingerprint(loaded.document.value["training"]["stack"]),
        "records": fingerprint([]),
    }
    return CheckedScenario(machine.spec, [job], inputs, notes)


def workload_name(scenario: Scenario) -> str:
    """Return the name in the workload of *scenario*, which may be specified by a file or an alias."""
    return load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.name


def job_on(hardware: Hardware, workload: Workload, placement: tuple[Placement, ...]) -> Job:
    """Return the job of *workload* on the nodes of *placement*, with the batches of their groups."""
    workers = hardware.worker_groups
    owners = [number for number, group in enumerate(workers) for _ in range(group.count)]
    return Job(workload, placement, groups=tuple(owners[part.node] for part in placement) if workload.training.batches else ())


def loaded_hardware(scenario: Scenario) -> Loaded[Hardware]:
    """Return the hardware that *scenario* names, with its overrides and its number of nodes."""
    for_hardware, _ = sorted_overrides(scenario)
    return _with_requested_nodes(load_hardware(scenario.hardware, for_hardware), scenario)


def notes_on_hardware(scenario: Scenario, simulated: Hardware) -> list[str]:
    """Return notes on the machine of *scenario*, which is *simulated* with the requested number of nodes."""
    return hardware_notes(scenario.hardware, load_hardware(scenario.hardware, sorted_overrides(scenario)[0]).spec, simulated)


def _refuse_single_job_options(scenario: Scenario) -> None:
    """Raise SpecError for options of a single job, which a jobs file specifies for each job."""
    values = {
        "--gpus": scenario.gpus,
        "--placement": scenario.placement,
        "--batch": scenario.batch,
        "--global-batch": scenario.global_batch,
        "--precision": scenario.precision,
        "--fp8-recipe": scenario.fp8_recipe,
        "--stack": scenario.stack,
        "--sequence": scenario.sequence,
        "--epochs": scenario.plan and scenario.plan.epochs,
        "--hours": scenario.plan and scenario.plan.time and scenario.plan.time / 3600,
        "--tokens": scenario.plan and scenario.plan.tokens,
    }
    for option, value in values.items():
        if value is not None:
            raise SpecError(f"{option} {value}: a jobs file sets this for each job; leave it out")
    for option, _, setting in scenario.layout:
        written = f"{option}{setting}" if option.endswith("=") else f"{option} {setting}"
        raise SpecError(f"{written}: a jobs file sets this for each job; leave it out")


def _refuse_contradictions(scenario: Scenario) -> None:
    """Raise SpecError for options that contradict each other."""
    if scenario.gpus is not None and scenario.placement is not None:
        raise SpecError("--gpus and --placement: write one of the two; the placement already sets the GPUs of each node")
    if scenario.batch is not None and scenario.global_batch is not None:
        raise SpecError("--batch and --global-batch: write one of the two")
    if scenario.global_batch is not None and (batches := overrides_of(scenario, "training.batch")):
        raise SpecError(f"--set {batches[0]} and --global-batch {scenario.global_batch}: write one of the two")
    parts = scenario.placement.count("+") + 1 if scenario.placement is not None else None
    if parts is not None and scenario.nodes is not None and scenario.nodes != parts:
        raise SpecError(
            f"--nodes {scenario.nodes} --placement {scenario.placement}: the placement covers {parts} node{'s' * (parts > 1)}; leave "
            "--nodes out, or write one number per node"
        )


def _with_requested_nodes(machine: Loaded[Hardware], scenario: Scenario) -> Loaded[Hardware]:
    """Return *machine* with the requested number of workers, or with those of a placement if it is a single group of fewer."""
    if scenario.nodes is not None:
        return memo.get_or_make(
            (Scenario, id(machine), scenario.nodes), lambda: _with_nodes(machine, scenario.nodes or 0, f"--nodes {scenario.nodes}"), machine
        )
    counts = [group.count for group in machine.spec.groups if group.role == "worker"]
    parts = scenario.placement.count("+") + 1 if scenario.placement is not None else 0
    if len(counts) == 1 and parts > counts[0]:
        return _with_nodes(machine, parts, f"--placement {scenario.placement}")
    return machine


def _with_nodes(machine: Loaded[Hardware], nodes: int, option: str) -> Loaded[Hardware]:
    """Return *machine* with *nodes* workers; messages about their number name the *option*."""
    spec = with_nodes(machine.spec, nodes)
    at = next(number for number, group in enumerate(spec.groups) if group.role == "worker")
    top = MarkedValue(machine.document.value, machine.document.root)
    groups = child(top, "groups")
    top = put(top, "groups", put(groups, at, put(child(groups, at), "count", MarkedValue(nodes, Mark(option)))))
    return Loaded(spec, fingerprint(top.value), Document(top.value, top.mark, machine.document.implied))


def _refuse_two_batches(workload: Workload, scenario: Scenario) -> None:
    """Raise SpecError for a batch option together with batches by group."""
    option = "--batch" if scenario.batch is not None else "--global-batch" if scenario.global_batch is not None else ""
    if workload.training.batches and option:
        raise SpecError(f"{option} and training.batches: write one of the two")


def sorted_overrides(scenario: Scenario) -> tuple[list[Override], list[Override]]:
    """Return the overrides of the hardware and those of the workload, including options."""
    if any(not text.strip("; ") for text in scenario.overrides):
        raise SpecError("--set '': write KEY=VALUE, for example node.nic.bandwidth='25 Gbps'")
    of_hardware, of_workload = split_overrides(scenario.overrides)
    given = {option: getattr(scenario, option) for option in OPTION_KEYS}
    options = [Option(f"--{name.replace('_', '-')}", OPTION_KEYS[name], value) for name, value in given.items() if value is not None]
    options += [Option(option, f"training.{key}", value) for option, key, value in scenario.layout]
    _refuse_conflicts(options, of_workload)
    priced = [PriceOverride(scenario.prices)] if scenario.prices else []
    return [*priced, *of_hardware], [*(option for option in options if option.value != "max"), *of_workload]


OPTION_KEYS: Final = {
    "stack": "training.stack", "precision": "training.precision", "fp8_recipe": "training.fp8_recipe", "batch": "training.batch",
    "sequence": "model.sequence",
}  # fmt: skip
"""Fields of a workload by the fields of `Scenario` that set them."""


def _refuse_conflicts(options: Sequence[Option], overrides: Sequence[str]) -> None:
    """Raise SpecError if two of *options*, or one of them and one of *overrides*, set one field to different values."""
    first: dict[str, Option] = {}
    for option in options:
        other = first.setdefault(option.key, option)
        if str(other.value) != str(option.value):
            raise SpecError(f"{other.written} and {option.written}: write one of the two, or the same value")
    for text in overrides:
        key, value = _key_and_value(text)
        for option in options:
            if option.key.startswith(f"{key}.") or (option.key == key and str(option.value) != value):
                raise SpecError(f"--set {text} and {option.written}: write one of the two, or the same value")


def _key_and_value(override: str) -> tuple[str, str]:
    """Return the key that *override* sets, and its value as written."""
    key, _, value = (piece.strip() for piece in override.partition("="))
    return ("training.gradient_accumulation_steps" if key == "training.parallel.micro_batches" else key), value


def overrides_of(scenario: Scenario, key: str) -> list[str]:
    """Return the overrides of *scenario* that set the field *key*."""
    return [text for text in single_overrides(scenario.overrides) if _key_and_value(text)[0] == key]


def with_overrides(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    """Return *scenario* with *overrides*, in place of its options and overrides that set the same fields."""
    kept = without_keys(scenario, [_key_and_value(text)[0] for text in overrides])
    return replace(kept, overrides=(*kept.overrides, *overrides))


def without_keys(scenario: Scenario, keys: Collection[str]) -> Scenario:
    """Return *scenario* without the options and overrides that set one of the fields *keys*."""
    options: dict[str, Any] = {name: None for name, key in OPTION_KEYS.items() if key in keys}
    layout = tuple(field for field in scenario.layout if f"training.{field[1]}" not in keys)
    overrides = tuple(text for text in single_overrides(scenario.overrides) if _key_and_value(text)[0] not in keys)
    return replace(scenario, layout=layout, overrides=overrides, **options)


def split_overrides(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the single overrides in *texts* that belong to the hardware, and those that belong to the workload.

    Raise SpecError for a key that belongs to neither.
    """
    for_hardware: list[str] = []
    for_workload: list[str] = []
    for text in single_overrides(texts):
        (for_workload if _is_of_workload(text) else for_hardware).append(text)
    return for_hardware, for_workload


def _is_of_workload(text: str) -> bool:
    """Return whether the override *text* is for the workload. Raise SpecError for a key that belongs to neither description."""
    first = text.partition("=")[0].partition(".")[0].strip()
    if first in _WORKLOAD_KEYS:
        return True
    if "=" in text and first and first not in _HARDWARE_KEYS:
        first_words = sorted(_WORKLOAD_KEYS | (_HARDWARE_KEYS - _UNSET))
        key = text.partition("=")[0].strip()
        homes = [(kind, place) for kind in (Hardware, Workload) if (place := home_key(kind, first))]
        completed = [completed_key(kind, place + key.removeprefix(first)) for kind, place in homes]
        near = [*filter(None, [FIELDS.get(key), *completed])] or suggestions(first, first_words, most=1)
        hint = f"did you mean '{near[0]}'?" if near else f"keys start with one of {', '.join(first_words)}"
        raise SpecError(f"--set {text}: unknown key '{first}'; {hint}")
    return False


def _sized(loaded: Loaded[Workload], scenario: Scenario, ranks: int, largest: Callable[[], int]) -> Loaded[Workload]:
    """Return *loaded* with its share of the global batch, if one was requested; *largest* returns the largest batch of a GPU that fits."""
    if scenario.global_batch is None:
        return loaded
    steps = loaded.spec.training.gradient_accumulation_steps
    each, rest = divmod(scenario.global_batch, ranks * steps)
    if rest or not each:
        over = f"{ranks} GPUs" if steps == 1 else f"{ranks} GPUs x {steps} accumulation steps"
        near = ranks * steps * min(max(1, each), largest())
        raise SpecError(f"--global-batch {scenario.global_batch}: does not divide evenly over {over}; write {near}")
    return _with_batch(loaded, each, f"--global-batch {scenario.global_batch}")


def _with_batch(loaded: Loaded[Workload], batch: int, option: str) -> Loaded[Workload]:
    """Return *loaded* with *batch* samples per GPU; messages about them name the *option*."""
    top = MarkedValue(loaded.document.value, loaded.document.root)
    top = put(top, "training", put(child(top, "training"), "batch", MarkedValue(batch, Mark(option))))
    document = Document(top.value, top.mark, loaded.document.implied)
    return Loaded(loaded.spec.with_training(batch=batch), fingerprint(top.value), document)


def batch_of(text: str) -> int | Literal["max"]:
    """Return the value of ``--batch``: a whole number of at least 1, or ``max``."""
    if text == "max":
        return "max"
    samples = whole_number(text)
    if not samples:
        hint = f"; for several, 'python -m sim sweep' takes --vary batch={text}" if is_series(text) else ""
        usual = f"write the samples per GPU, 1 or more, or max for as many as fit into its memory{hint}"
        raise SpecError(f"--batch {text[:20] or repr('')}: {ambiguous_count(text) or usual}")
    return samples


def market_of(text: str) -> Market:
    """Return the value of ``--market``."""
    markets: dict[str, Market] = {"on-demand": "on_demand", "spot": "spot"}
    if text not in markets:
        near = suggestions(text, list(markets), most=1)
        raise SpecError(f"--market {text}: " + (f"did you mean {near[0]}?" if near else f"write {' or '.join(markets)}"))
    return markets[text]


def requested_gpus(hardware: Hardware, scenario: Scenario) -> int:
    """Return how many GPUs the scenario requests, even if the hardware has fewer."""
    return scenario.gpus or hardware.worker_gpus
