"""Which step does a scenario with a layout have? One that `sim.mesh` simulates; a layout that does not fit is refused with what helps.

Plain data parallelism is the task of `sim.study.scenario`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from sim.analysis.cost import Market
from sim.analysis.layout_memory import StageMemory, memory_by_stage
from sim.analysis.whole_job import JobPlan
from sim.check import check_run, domain_warnings, prep_warnings, recipe_warnings, user_part_warnings
from sim.cluster.build import place
from sim.mesh import LayoutRun, prepare, run_layout, worker_node
from sim.parallel.lower.layouts import Layout
from sim.parallel.stack_options import mesh_options
from sim.spec.hardware import Hardware
from sim.spec.library import Loaded, fingerprint, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import Document, SpecError
from sim.study.infeasible import Infeasible
from sim.study.nccl_names import nccl_variables_named
from sim.study.not_validated import not_validated
from sim.study.one_batch import micro_batches_option
from sim.study.pretraining import PretrainingPart, parts_of
from sim.study.scenario import Scenario, loaded_hardware, notes_on_hardware, sorted_overrides
from sim.training.layouts.play import MOST_CLASSES, MOST_RANKS
from sim.units import pluralized


@dataclass(frozen=True)
class LayoutAnswer:
    """A simulated step of a layout, and the fingerprints (SHA-256) of its inputs."""

    run: LayoutRun
    inputs: Mapping[str, str]
    warnings: Sequence[str] = ()
    market: Market = "on_demand"
    plan: JobPlan | None = None
    """The whole job, if one is requested."""
    parts: tuple[PretrainingPart, ...] = ()
    """Parts of a budget of tokens with different batches or sequences."""


def layout_answer(scenario: Scenario, notice: Callable[[int], None] = lambda micro_batches: None) -> LayoutAnswer:
    """Load, check and simulate *scenario*. Raise SpecError listing the problems, Infeasible if memory is short.

    *notice* is called with the number of micro-batches of a step before all of them are simulated.
    """
    machine, loaded, workload, gpus = placed_scenario(scenario)
    many = partial(notice, workload.training.gradient_accumulation_steps)
    fits = partial(_require_memory, scenario, machine.spec, workload)
    with nccl_variables_named(), _placed_in(loaded, scenario):
        run = run_layout(machine.spec, workload, gpus, seed=scenario.seed, exact=scenario.exact, fits=fits, notice=many)
    tokens = scenario.plan.tokens if scenario.plan else None
    parts = parts_of(scenario, run, tokens, lambda other: layout_answer(other).run) if tokens else ()
    warnings = (*notes_on_hardware(scenario, machine.spec), *_warnings(run, scenario.exact))
    return LayoutAnswer(run, _inputs(machine.sha256, loaded), warnings, scenario.market, scenario.plan, parts)


@contextmanager
def _placed_in(loaded: Loaded[Workload], scenario: Scenario) -> Iterator[None]:
    """Give the problems of a layout that stands in the user's own workload file their place in it."""
    try:
        yield
    except Infeasible:
        raise
    except SpecError as error:
        raise SpecError([_with_place(problem, loaded.document, scenario) for problem in error.problems]) from None


def _with_place(problem: str, document: Document, scenario: Scenario) -> str:
    key = problem.partition(": ")[0]
    if not key.startswith("training.") or (key == "training.parallel" and scenario.layout):  # options changed the block in the file
        return problem
    mark = document.mark(tuple(key.split(".")))
    return f"{mark}: {problem}" if mark.line and mark.file == scenario.workload else problem


def checked_hardware(scenario: Scenario) -> Hardware:
    """Return the hardware of *scenario*, checked as in `layout_answer`, including memory, without simulating. Raise the same errors."""
    machine, loaded, workload, gpus = placed_scenario(scenario)
    with _placed_in(loaded, scenario):
        layout = prepare(machine.spec, workload, gpus)
    _require_memory(scenario, machine.spec, workload, layout, memory_by_stage(layout, workload, worker_node(machine.spec).gpu))
    return machine.spec


def placed_scenario(scenario: Scenario) -> tuple[Loaded[Hardware], Loaded[Workload], Workload, int]:
    """Return what *scenario* names, checked: hardware, workload, the workload with its micro-batches, and GPUs per node."""
    machine = loaded_hardware(scenario)
    _, of_workload = sorted_overrides(scenario)
    loaded = load_workload(scenario.workload, of_workload)
    with _placed_in(loaded, scenario):
        mesh_options(loaded.spec)
    check_run(machine, loaded, gpus=scenario.gpus)
    if scenario.batch == "max":
        raise SpecError(
            f"--batch max: applies to neither layouts nor a stack for them such as {loaded.spec.training.stack.name}; write the samples "
            "of a micro-batch, for example --batch 1"
        )
    placement = place(machine.spec, scenario.gpus, scenario.placement)
    each = {len(part.gpus) for part in placement}
    if len(each) > 1:
        raise SpecError(f"--placement {scenario.placement}: a layout needs the same number of GPUs on each node")
    return machine, loaded, with_micro_batches(loaded.spec, scenario, sum(len(part.gpus) for part in placement)), each.pop()


def _require_memory(scenario: Scenario, hardware: Hardware, workload: Workload, layout: Layout, memory: Sequence[StageMemory]) -> None:
    """Raise Infeasible if a stage needs more *memory* than its GPUs have."""
    if any(stage.verdict(worker_node(hardware).gpu) == "does_not_fit" for stage in memory):
        problem = memory_shortage(hardware, workload, layout, memory, scenario.plan_command)
        nodes = layout.mesh.gpus // layout.mesh.gpus_per_node
        raise Infeasible([problem], nodes, layout.mesh.gpus, "does not fit into GPU memory")


def _inputs(hardware: str, loaded: Loaded[Workload]) -> dict[str, str]:
    stack = fingerprint(loaded.document.value["training"]["stack"])
    return {"hardware": hardware, "workload": loaded.sha256, "stack": stack, "records": fingerprint([])}


def with_micro_batches(workload: Workload, scenario: Scenario, gpus: int) -> Workload:
    """Return *workload* with the number of micro-batches that the global batch needs. Raise SpecError if it does not divide evenly."""
    if scenario.global_batch is None:
        return workload
    training = workload.training
    replicas = gpus // training.parallel.model_ranks
    steps, rest = divmod(scenario.global_batch, max(1, replicas * training.batch))
    if rest or not steps:
        one = replicas * training.batch
        near = " or ".join(str(one * count) for count in (steps, steps + 1) if count)
        raise SpecError(
            f"--global-batch {scenario.global_batch}: is not divisible by {replicas} data-parallel ranks x "
            f"{pluralized(training.batch, 'sample')}; write {near}"
        )
    option, written = micro_batches_option(scenario), training.gradient_accumulation_steps
    if option and written != steps:
        raise SpecError(
            f"--global-batch {scenario.global_batch} and {option}: {replicas} data-parallel ranks x "
            f"{pluralized(training.batch, 'sample')} x {written} micro-batch{'es' * (written != 1)} are "
            f"{replicas * training.batch * written}; leave one of the two out"
        )
    return workload.with_training(gradient_accumulation_steps=steps)


def memory_shortage(hardware: Hardware, workload: Workload, layout: Layout, memory: Sequence[StageMemory], plan: str = "") -> str:
    """Return a sentence on the memory that a layout lacks, and what would help: the command *plan* if no small change does."""
    gpu = worker_node(hardware).gpu
    fullest = max(memory, key=lambda stage: stage.total)
    uses = {name: value for name, value in fullest.by_use().items() if name not in ("allocated", "reserved", "total")}
    largest = sorted(uses, key=lambda name: -uses[name])[:2]
    where = f"stage {fullest.stage}" if len(memory) > 1 else "each GPU"
    named = " and ".join(f"{_gib(uses[name])} of {_USES.get(name, name.replace('_', ' '))}" for name in largest)
    return (
        f"{workload.name} does not fit: {where} needs {_gib(fullest.of_gpu)}, {gpu.name} has {_gib(gpu.memory)}; the largest uses are "
        f"{named}; {_remedy(hardware, workload, layout.mesh.gpus_per_node, plan)}"
    )


_USES: Final = {"gathered": "gathered weights", "cached": "memory that the allocator keeps", "context": "CUDA context"}
"""What uses memory, where its name alone says too little."""


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _remedy(hardware: Hardware, workload: Workload, gpus_per_node: int, plan: str) -> str:
    """Return the first change of the layout that makes it fit; only memory is computed."""
    node = worker_node(hardware)
    for text, changed in _changes(workload, node.gpu_count):
        try:
            layout = prepare(hardware, changed, gpus_per_node)
        except SpecError:
            continue
        if all(stage.verdict(node.gpu) != "does_not_fit" for stage in memory_by_stage(layout, changed, node.gpu)):
            return f"{text} would fit"
    looks = f": '{plan}' tries every layout and says what would fit" if plan else ""
    return f"it needs another layout, more GPUs, or GPUs with more memory{looks}"


def _changes(workload: Workload, gpus: int) -> list[tuple[str, Workload]]:
    """Return changes of *workload* that reduce memory, by their options: of the layout, and of frozen weights held in fp32."""
    own = _layout_changes(workload, gpus)
    short = short_frozen_weights(workload)
    if short is None:
        return own
    option, shorter = short
    both = [(f"{text} {option}", changed) for text, changed in _layout_changes(shorter, gpus)]
    return [own[0], short, both[0], *own[1:], *both[1:]]


def short_frozen_weights(workload: Workload) -> tuple[str, Workload] | None:
    """Return *workload* with 16-bit weights and the option for that, if only adapters train and weights are held in fp32."""
    training = workload.training
    mesh = training.stack.mesh
    if workload.model.lora is None or mesh is None or mesh.weights != "fp32" or training.precision in ("fp32", "tf32"):
        return None
    width = "fp16" if training.precision in ("fp16", "amp_fp16") else "bf16"
    stack = training.stack.model_copy(update={"mesh": mesh.model_copy(update={"weights": width})})
    changed = workload.with_training(stack=stack)
    return f"--set training.stack.mesh.weights={width}", changed


def _layout_changes(workload: Workload, gpus: int) -> list[tuple[str, Workload]]:
    training = workload.training
    changes: list[tuple[str, Workload]] = []

    def changed(text: str, **fields: object) -> None:
        changes.append((text, workload.with_training(**fields)))

    checkpoint = {"activation_checkpointing": "blocks"}
    changed("--set training.activation_checkpointing=blocks", **checkpoint)
    for batch in (size for size in range(training.batch - 1, 0, -1) if training.batch % size == 0):
        steps = training.gradient_accumulation_steps * training.batch // batch
        changed(f"--batch {batch} --micro-batches {steps}", batch=batch, gradient_accumulation_steps=steps)
    sharded = training.parallel.model_copy(update={"shard": "parameters"})
    changed("--shard parameters", parallel=sharded)
    changed("--shard parameters --set training.activation_checkpointing=blocks", parallel=sharded, **checkpoint)
    tensor = training.parallel.tensor * 2
    while tensor <= gpus:
        wider = sharded.model_copy(update={"tensor": tensor})
        changed(f"--tp {tensor} --shard parameters --set training.activation_checkpointing=blocks", parallel=wider, **checkpoint)
        tensor *= 2
    return changes


def _warnings(run: LayoutRun, exact: bool = False) -> list[str]:
    sentences = []
    if run.memory_verdict == "thrashes":
        fullest = max(run.memory, key=lambda stage: stage.total)
        sentences.append(
            f"GPU memory is nearly full ({_gib(fullest.total)} of {_gib(run.node.gpu.memory)}): the allocator frees and retries, and "
            "steps may take several times longer; use a smaller micro-batch or activation checkpointing"
        )
    if run.layout.loses_gradients:
        sentences.append(
            f"torch's runtime loses gradients here: {run.layout.schedule} splits backward in two, and the first half does not find "
            "weights that were freed after forward (pipelining/_backward.py); this step assumes a runtime without this bug; to train, "
            "write reshard_after_forward: false"
        )
    sentences += [*not_validated(run), *user_part_warnings(run.workload), *recipe_warnings(run.workload)]
    sentences += [*domain_warnings(run.hardware), *prep_warnings(run.workload)]
    if not run.played.exact and run.mesh.is_even:
        why = f" ({_too_many(run.gpus)})" if exact or run.gpus > MOST_RANKS else ""
        sentences.append(
            f"a stage's nodes are spread unevenly over leaf switches{why}: all its groups are simulated as slow as those on the most "
            f"loaded uplinks; for an exact step {'' if why else 'use --exact, or '}give each stage the same number of nodes under every "
            "leaf"
        )
    elif not run.played.exact:
        sentences.append(
            f"stages are placed differently on nodes of {run.mesh.gpus_per_node} GPUs, and {_too_many(run.gpus)}: all nodes of a stage "
            "are simulated like its first; for an exact step use axes that fill whole nodes"
        )
    return sentences


def _too_many(gpus: int) -> str:
    """Return why ranks are not simulated by class: there are too many classes, or too many ranks to classify (`MOST_RANKS`)."""
    if gpus > MOST_RANKS:
        return f"more than {MOST_RANKS:,} ranks are not simulated individually"
    return f"there are more than {MOST_CLASSES} kinds of ranks"
