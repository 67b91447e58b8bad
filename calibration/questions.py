"""What must be simulated to predict a measured run? The row's machine and job, with every override applied and checked.

The GPU memory check is skipped, because a measured run did fit; `calibration.validate.memory` notes the rows that it would reject.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from calibration import HARDWARE
from calibration.catalog.without_source import machine_without, workload_without
from calibration.run_records import TOO_MANY_PROBLEMS, RunRecord, SkippedRun, row_name
from sim.check import check_hardware, check_workload, precision_problems, require
from sim.cluster.build import place, with_nodes
from sim.spec.catalog import SUFFIX, UnknownName, file_of, is_file, locate, suggestions
from sim.spec.hardware import Gpu, Hardware
from sim.spec.library import Loaded, load, load_workload
from sim.spec.parallel import Parallel
from sim.spec.sections import with_fields
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.scenario import split_overrides
from sim.training.job import Job

MOST_CONTRADICTION: Final = 0.03
"""Largest relative difference between a row's step time and its throughput: estimate (rounding both to two digits causes less, another
batch size more)."""

_STACK: Final = "training.stack"
_SERVERS: Final = f"{_STACK}.servers"
"""Without nodes for parameter servers, each worker node runs one: tf_cnn_benchmarks and MXNet's tools/launch.py start as many servers as
workers (tensorflow/docs r1/guide/performance/benchmarks.md; its distributed runs)."""

_NO_SUCH_GPU: Final = (
    "no description of the GPU {gpu!r} ('python -m sim list gpus' shows those of the catalog); describe a machine with it in "
    "--hardware-dir and name that in a column hardware"
)

_OF_A_FILE: Final = re.compile(r".+?\.ya?ml:\d+:")
"""Beginning of a problem that is in a description file, whichever row names the file."""


@dataclass(frozen=True)
class Folders:
    """Folders that are searched for descriptions before the catalog."""

    hardware: Path | None = None
    workloads: Path | None = None
    without: str = ""
    """A source of measured runs; descriptions are taken as if it had never been measured (`calibration.catalog.without_source`)."""


@dataclass(frozen=True)
class RunQuestion:
    """One measured run with the machine and the job to simulate for it."""

    record: RunRecord
    hardware: Hardware
    job: Job
    assumed: str = ""
    """What the row does not say about its parameter servers or its input, one text a line; empty if nothing."""

    @property
    def workload(self) -> Workload:
        """Return the workload with the row's columns applied."""
        return self.job.workload

    @property
    def batch(self) -> int:
        """Return samples per GPU and micro-batch."""
        return self.workload.training.batch

    @property
    def gpu(self) -> Gpu:
        """Return the GPU of the first node the job runs on."""
        nodes = [group.node for group in self.hardware.groups if group.role == "worker" for _ in range(group.count)]
        return nodes[self.job.placement[0].node].gpu

    @property
    def nodes(self) -> int:
        """Return the number of nodes the job runs on."""
        return len(self.job.placement)

    @property
    def samples(self) -> int:
        """Return samples of all GPUs per optimizer step."""
        training = self.workload.training
        return self.job.ranks * training.batch * training.gradient_accumulation_steps

    @property
    def step_time(self) -> float:
        """Return the measured seconds of one optimizer step."""
        return next(iter(self.step_times.values()), 0.0)

    @property
    def step_times(self) -> dict[str, float]:
        """Return the measured seconds of one optimizer step by the column that states them or the samples per second."""
        record = self.record
        rates = _rates(record)
        ranks = {"throughput_samples_per_s_per_gpu": self.job.ranks, "throughput_tokens_per_s": 1 / (self.workload.tokens_per_sample or 1)}
        stated = {"step_time_s": record.step_time} if record.step_time is not None else {}
        return stated | {column: self.samples / rate / ranks.get(column, 1) for column, rate in rates.items() if rate}


def question(record: RunRecord, folders: Folders = Folders()) -> RunQuestion:
    """Return the question of *record*. Raise SpecError, with its file and line, if it names something unknown or impossible."""
    try:
        return _question(record, folders)
    except SpecError as error:
        raise SpecError("\n".join(f"{record.where}: {line}" for line in str(error).splitlines())) from None


def questions(records: Sequence[RunRecord], folders: Folders) -> list[RunQuestion]:
    """Return the question of each of *records*. Raise SpecError with all problems, each once, with the rows that have it."""
    described, refused = _try_questions(records, folders)
    problems: dict[str, list[RunRecord]] = defaultdict(list)
    for record, error in refused:
        for line in str(error).splitlines():
            problems[line].append(record)
    if problems:
        texts = [_problem_text(problem, rows) for problem, rows in problems.items()]
        more = len(texts) - TOO_MANY_PROBLEMS
        raise SpecError("\n".join(texts[:TOO_MANY_PROBLEMS] + ([f"and {more} more problems"] if more > 0 else [])))
    return described


def describe_runs(records: Sequence[RunRecord], folders: Folders) -> tuple[list[RunQuestion], list[SkippedRun]]:
    """Return the questions of those *records* that can be simulated, and the reasons why the others cannot."""
    described, refused = _try_questions(records, folders)
    return described, [SkippedRun(record.where, row_name(record.hardware, record.workload), str(error)) for record, error in refused]


def _try_questions(records: Sequence[RunRecord], folders: Folders) -> tuple[list[RunQuestion], list[tuple[RunRecord, SpecError]]]:
    """Return the questions of those *records* that can be simulated, and the others with what is wrong."""
    described: list[RunQuestion] = []
    refused: list[tuple[RunRecord, SpecError]] = []
    for record in records:
        try:
            described.append(_question(record, folders))
        except SpecError as error:
            refused.append((record, error))
    return described, refused


def _problem_text(problem: str, rows: Sequence[RunRecord]) -> str:
    """Return *problem* with the *rows* that have it; a problem in a description begins with the description's own file and line."""
    more = f"and {len(rows) - 1} more row{'s' if len(rows) > 2 else ''}" if len(rows) > 1 else ""
    if _OF_A_FILE.match(problem):
        return f"{problem} (read for {' '.join(filter(None, (rows[0].where, more)))})"
    return f"{rows[0].where}: {problem}{f' ({more})' if more else ''}"


def _question(record: RunRecord, folders: Folders) -> RunQuestion:
    for_hardware, for_workload = _overrides(record)
    problems: list[str] = []
    machine, workload = _named(record, folders, problems)
    pattern = ""
    if machine is not None:
        try:
            pattern = _pattern(record, machine)
        except SpecError as error:
            problems += error.problems
    if problems or machine is None or workload is None:
        raise SpecError(problems)
    if record.sequence not in (None, workload.sequence) and not workload.model.name.endswith(f"-seq{record.sequence}"):
        if workload.model.transformer is None:
            raise SpecError(f"sequence {record.sequence}: samples of {record.workload} have one length; name a workload of that length")
        for_workload = (*for_workload, f"model.sequence={record.sequence}")
        workload = workload_named(record.workload, for_workload, folders.workloads, folders.without)
    if record.global_batch is not None:
        batch = _batch_of_one_gpu(record.global_batch, pattern, workload.training.gradient_accumulation_steps)
        if record.batch_per_gpu not in (None, batch):
            raise SpecError(
                f"global_batch {record.global_batch} means {batch} samples per GPU, but the column batch_per_gpu has {record.batch_per_gpu}"
            )
        for_workload = (*for_workload, f"training.batch={batch}")
        workload = workload_named(record.workload, for_workload, folders.workloads, folders.without)
    if workload.training.parallel != Parallel():
        raise SpecError(
            "training.parallel: rows of this table are data-parallel only; put runs with a layout in a table of transformer runs"
        )
    nodes = pattern.count("+") + 1
    machine = _enlarged(record.hardware, for_hardware, folders, nodes)
    lacking = _what_it_lacks(workload, machine, record, nodes)
    if lacking:
        for_workload = (*for_workload, *(override for overrides in lacking.values() for override in overrides))
        workload = workload_named(record.workload, for_workload, folders.workloads, folders.without)
    require(precision_problems(machine, workload))
    described = RunQuestion(record, machine, Job(workload, place(machine, None, pattern)), "\n".join(lacking))
    _require_one_speed(described)
    return described


def _what_it_lacks(workload: Workload, machine: Hardware, record: RunRecord, nodes: int) -> dict[str, tuple[str, ...]]:
    """Return what *machine* lacks for *workload* on *nodes* nodes, in words, with the overrides by which it does without.

    Nothing for what the *record* itself says.
    """
    lacking: dict[str, tuple[str, ...]] = {}
    exchange = workload.training.stack.exchange
    grouped = isinstance(exchange, ServerExchange) and exchange.servers.placement == "group"
    if grouped and _SERVERS not in record.overrides and all(group.role == "worker" for group in machine.groups):
        on_workers = (f"{_SERVERS}.placement=colocated", f"{_SERVERS}.count={nodes}")
        lacking["it has no nodes of role server, so each node also runs a parameter server"] = on_workers
    unstored = any(group.node.storage is None for group in machine.worker_groups)
    if unstored and record.input is None and "input." not in record.overrides and workload.input.loader != "synthetic":
        lacking["it describes no storage, so rows with a blank input are predicted without reading data"] = ("input.loader=synthetic",)
    return lacking


def _named(record: RunRecord, folders: Folders, problems: list[str]) -> tuple[Hardware | None, Workload | None]:
    """Return the machine and the workload that *record* names, each None if it cannot be; the reasons are added to *problems*."""
    machine = workload = None
    for_hardware, for_workload = _overrides(record)
    if record.hardware:
        try:
            machine = machine_named(record.hardware, for_hardware, folders.hardware, folders.without)
        except UnknownName as error:
            problems += [_NO_SUCH_GPU.format(gpu=record.gpu)] if record.gpu and record.hardware == record.gpu else error.problems
        except SpecError as error:
            problems += error.problems
    if record.workload:
        try:
            workload = workload_named(record.workload, for_workload, folders.workloads, folders.without)
        except SpecError as error:
            problems += [_of_stack(problem) for problem in error.problems]
    return machine, workload


def _of_stack(problem: str) -> str:
    """Return *problem* in the words of a table if it is an unknown name in the column stack."""
    told = problem.removeprefix(f"--set {_STACK}=")
    return problem if told == problem else f"stack: {told.partition(': ')[2]}; or leave the cell blank for the stack of the workload"


def with_names_checked(skipped: SkippedRun, record: RunRecord, folders: Folders) -> SkippedRun:
    """Return *skipped*, whose *record* has invalid cells, with what is wrong with the machine and the workload that it names as well."""
    problems = skipped.reason.splitlines()
    with suppress(SpecError):  # overrides that cannot be read are reported once the row's cells are valid
        _named(record, folders, problems)
    return replace(skipped, reason="\n".join(problems))


def _rates(record: RunRecord) -> dict[str, float | None]:
    """Return the rates of *record* by the columns that state them."""
    return {
        "throughput_samples_per_s": record.throughput,
        "throughput_samples_per_s_per_gpu": record.throughput_per_gpu,
        "throughput_tokens_per_s": record.throughput_tokens,
    }


def _require_one_speed(question: RunQuestion) -> None:
    """Raise SpecError if two columns of the row state different speeds, given the samples per step."""
    record = question.record
    stated = {"step_time_s": record.step_time} | _rates(record)
    if record.throughput_tokens and not question.workload.tokens_per_sample:
        raise SpecError(f"throughput_tokens_per_s: samples of {record.workload} are no text of a known length; give samples per second")
    (first, step_time), *others = question.step_times.items()
    for column, other in others:
        if abs(step_time / other - 1.0) > MOST_CONTRADICTION:
            each = " per GPU" if column.endswith("per_gpu") else ""
            of_tokens = column == "throughput_tokens_per_s"
            counted, unit = (question.workload.tokens_per_sample or 1.0, "tokens") if of_tokens else (1.0, "samples")
            due = question.samples * counted / step_time / (question.job.ranks if each else 1)
            raise SpecError(
                f"{column}: {stated[column]:g} contradicts {first} {stated[first]:g}: {question.samples} samples a step "
                f"({question.job.ranks} GPUs) are {due:.4g} {unit}/s{each}; correct one of the two, or "
                "leave it blank"
            )


@lru_cache(maxsize=512)
def machine_named(name: str, overrides: tuple[str, ...] = (), folder: Path | None = None, without: str = "") -> Hardware:
    """Return the machine that a record calls *name*, with *overrides*; if *without* is set, as described without that source.

    Raise SpecError if there is no such machine or it is invalid.
    """
    library = (*([folder] if folder else []), HARDWARE)
    loaded: Loaded[Hardware] = load(Hardware, file_named(name, "hardware", library), overrides, library)
    require(check_hardware(loaded.spec, loaded.document))
    return machine_without(without, loaded.spec) if without else loaded.spec


@lru_cache(maxsize=2048)
def workload_named(name: str, overrides: tuple[str, ...] = (), folder: Path | None = None, without: str = "") -> Workload:
    """Return the workload that a record calls *name*, with *overrides*; if *without* is set, as described without that source.

    Raise SpecError if there is no such workload or it is invalid.
    """
    loaded = load_workload(str(file_named(name, "workloads", (folder,))), overrides, folder)
    require(check_workload(loaded.spec, loaded.document))
    return workload_without(without, loaded.spec, overrides) if without else loaded.spec


@lru_cache(maxsize=512)
def _enlarged(name: str, overrides: tuple[str, ...], folders: Folders, nodes: int) -> Hardware:
    """Return the machine, enlarged to at least *nodes* nodes if it is a single group of equal nodes."""
    machine = machine_named(name, overrides, folders.hardware, folders.without)
    return with_nodes(machine, nodes) if len(machine.groups) == 1 and machine.groups[0].count < nodes else machine


def file_named(name: str, kind: str, folders: tuple[Path | None, ...]) -> Path:
    """Return the file for *name*: from *folders*, from the catalog, or *name* itself as a path."""
    try:
        return _own_file(name, kind, folders) or locate(name, kind)
    except UnknownName as error:
        names = [each.stem for searched in _searched(kind, folders) for each in sorted(searched.glob("*" + SUFFIX))]
        near = suggestions(name, names)
        raise UnknownName(f"{error}; in the folders given: {' or '.join(near)}" if near else str(error)) from None


def has_file(name: str, kind: str, folders: tuple[Path | None, ...]) -> bool:
    """Return whether `file_named` has a file for *name*; unlike its error, the answer does not take a search for similar names."""
    try:
        return (_own_file(name, kind, folders) or file_of(name, kind)) is not None
    except UnknownName:
        return False


def _searched(kind: str, folders: tuple[Path | None, ...]) -> Iterator[Path]:
    for folder in filter(None, folders):
        yield from (folder / kind, folder)


def _own_file(name: str, kind: str, folders: tuple[Path | None, ...]) -> Path | None:
    paths = (searched / (name + SUFFIX) for searched in _searched(kind, folders))
    return next((path for path in paths if is_file(path)), None)


def _overrides(record: RunRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the overrides of hardware and workload. Those of columns come last, except the stack, which comes first: others refine it."""
    for_hardware, for_workload = split_overrides([record.overrides])
    if record.stack:
        for_workload = [f"{_STACK}={record.stack}"] + [text for text in for_workload if not _sets(text, _STACK)]
    columns = {
        "training.batch": record.batch_per_gpu,
        "training.gradient_accumulation_steps": record.gradient_accumulation_steps,
        "training.precision": record.precision,
        "training.stack.strategy": record.strategy,
        "input.loader": "synthetic" if record.input == "synthetic" else None,
    }
    for_workload += [f"{key}={value}" for key, value in columns.items() if value is not None]
    return tuple(for_hardware), tuple(for_workload)


def _sets(text: str, key: str) -> bool:
    return text.partition("=")[0].strip() == key


def _pattern(record: RunRecord, machine: Hardware) -> str:
    """Return the GPUs on each node joined by ``+``."""
    if record.placement:
        counts = _placement_of_digits(record, machine) or record.placement
        _check_placement(record, counts)
        return counts
    if record.gpus_per_node is None and record.total_gpus is not None:
        return _equal_placement(record.total_gpus, record.nodes, machine.groups[0].node.gpu_count)
    if record.gpus_per_node is None and record.nodes is None:
        return "+".join(str(len(part.gpus)) for part in place(machine))
    gpus = record.gpus_per_node if record.gpus_per_node is not None else machine.groups[0].node.gpu_count
    if gpus != int(gpus):
        raise SpecError(f"gpus_per_node {gpus:g} is an average; write the placement, for example 1+2")
    nodes = record.nodes or max(1, (record.total_gpus or 0) // int(gpus))
    if record.total_gpus not in (None, nodes * int(gpus)):
        raise SpecError(f"{nodes} nodes of {gpus:g} GPUs have {nodes * int(gpus)}, but the column total_gpus has {record.total_gpus}")
    return "+".join([str(int(gpus))] * nodes)


def _equal_placement(gpus: int, nodes: int | None, gpus_per_node: int) -> str:
    """Return *gpus* divided equally over *nodes* (by default, as few as have *gpus_per_node* each), as GPUs per node joined by ``+``."""
    nodes = nodes or -(-gpus // gpus_per_node)
    if gpus % nodes:
        raise SpecError(f"total_gpus: {gpus} GPUs do not divide evenly over {nodes} nodes; write the placement, for example 1+2")
    return "+".join([str(gpus // nodes)] * nodes)


def _batch_of_one_gpu(batch: int, pattern: str, micro_batches: int) -> int:
    """Return the samples per GPU and micro-batch for a global batch of *batch*."""
    parts = pattern.split("+")
    if not all(part.strip().isdigit() for part in parts):
        raise SpecError("global_batch needs a placement by GPUs per node, for example 1+2; or write batch_per_gpu")
    shares = sum(map(int, parts)) * micro_batches
    if batch % shares:
        micro = f" and {micro_batches} micro-batches" if micro_batches > 1 else ""
        raise SpecError(f"global_batch: {batch} samples do not divide evenly over {sum(map(int, parts))} GPUs{micro}")
    return batch // shares


def _placement_of_digits(record: RunRecord, machine: Hardware) -> str | None:
    """Return a placement written as one digit per node (``12``: one GPU, then two) with ``+`` in between; None for other notations."""
    text = record.placement or ""
    if len(text) < 2 or not text.isascii() or not text.isdigit():
        return None
    largest_node = max(group.node.gpu_count for group in machine.groups)
    if record.nodes == len(text) or (record.nodes is None and int(text) > largest_node):
        return "+".join(text)
    return None


def _check_placement(record: RunRecord, pattern: str) -> None:
    parts = pattern.split("+")
    if record.total_gpus is not None and all(part.strip().isdigit() for part in parts) and sum(map(int, parts)) != record.total_gpus:
        raise SpecError(f"placement {record.placement} has {sum(map(int, parts))} GPUs, but the column total_gpus has {record.total_gpus}")
    if record.nodes is not None and record.nodes != len(parts):
        raise SpecError(f"placement {record.placement} has {len(parts)} nodes, but the column nodes has {record.nodes}")
    if record.gpus_per_node is not None and all(part.strip().isdigit() for part in parts):
        mean = sum(map(int, parts)) / len(parts)
        if abs(mean - record.gpus_per_node) > 0.01:
            raise SpecError(
                f"placement {record.placement} means {mean:g} GPUs per node, but the column gpus_per_node has {record.gpus_per_node:g}"
            )


def assumptions(questions: Sequence[RunQuestion]) -> list[str]:
    """Return a note on what each machine lacks and what is assumed instead."""
    return list(dict.fromkeys(f"{one.record.hardware}: {line}" for one in questions for line in one.assumed.splitlines()))


def scale_job(question: RunQuestion, compute_scale: float) -> Job:
    """Return the job of *question* with all layer times, on the GPU and on the host that launches them, multiplied by *compute_scale*."""
    if compute_scale == 1.0:
        return question.job
    training = question.workload.training
    stack = with_fields(training.stack, launch_cpu=training.stack.kernels.launch_cpu * compute_scale)
    workload = question.workload.with_training(compute_factor=training.compute_factor * compute_scale, stack=stack)
    return replace(question.job, workload=workload)
