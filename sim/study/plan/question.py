"""Which layouts does a plan choose from, and what is its result? From the user's request to the outcome of the search with its settings.

The global batch is the same for every layout, by default the workload's batch on every GPU of the largest cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, get_args

from sim.analysis.cost import price
from sim.check import check_job, check_run
from sim.cluster.build import with_nodes
from sim.mesh import worker_node
from sim.parallel.split import split
from sim.spec import memo
from sim.spec.defaults import PARALLEL_STACK, REPLICATED_STACK, SHARDED_STACK
from sim.spec.extensions import SCHEDULES, names
from sim.spec.hardware import Hardware
from sim.spec.library import Loaded, load_hardware, load_workload
from sim.spec.model import Model
from sim.spec.overrides import single_overrides
from sim.spec.parallel import Parallel
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.journal import Journal
from sim.study.nccl_names import nccl_variables_named
from sim.study.options import Objective
from sim.study.plan.ahead import Workers, refiner
from sim.study.plan.data_parallel import layouts_of, setting_of, without_replicas
from sim.study.plan.floor import Setting
from sim.study.plan.refine import LocalRefiner, PlacedLayout, bounds, fits, usable_memory
from sim.study.plan.search import Limits, Outcome, Tally, search
from sim.study.plan.space import ALLOWED, DEFAULT, FIXED, LayoutCandidate, Space, parse_fixed, precisions, unsupported_option
from sim.study.plan.step_cache import StepCache
from sim.study.scenario import Scenario, overrides_of, sorted_overrides
from sim.study.whole_job import token_count
from sim.training.layouts.prices import KernelBook, PriceBook
from sim.units import any_of, show, show_tokens

STACKS: Final = (PARALLEL_STACK, "megatron-core")
"""Stacks whose layouts are compared if the user names none: torchtitan's, and Megatron-LM's for transformers.

Models that are not decoders have torch's own FSDP2 instead of torchtitan. They, and decoders that train adapters, are also compared under
their own stack, and under torch's DistributedDataParallel.
"""

_OTHERS: Final = frozenset({"conv", "depthwise_conv", "rnn"})


@dataclass(frozen=True)
class PlanQuestion:
    """The request for a plan; ``scenario`` holds names, overrides, precision, stack, sequence, global batch and market."""

    scenario: Scenario
    nodes: Sequence[int] = ()
    """Empty: as many as the hardware has, or as the number of GPUs needs."""
    gpus: int | None = None
    tokens: str | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)
    allowed: Set[str] = frozenset()
    """In addition to `DEFAULT`; ``no-X`` removes X."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class LayoutPlan:
    """The search's outcome on every cluster."""

    question: PlanQuestion
    layouts: Sequence[tuple[Setting, Sequence[LayoutCandidate]]]
    tally: Tally
    global_batch: int
    tokens: float | None
    inputs: Mapping[str, str]

    @property
    def sequence(self) -> int | None:
        """Return the tokens of a sample of full length."""
        return self.layouts[0][0].workload.sequence

    @property
    def tokens_per_sample(self) -> float | None:
        """Return the mean tokens of a sample; None if samples are not sequences."""
        return self.layouts[0][0].workload.tokens_per_sample

    @property
    def steps(self) -> float | None:
        """Return the steps of a job of ``tokens``."""
        each = self.tokens_per_sample
        return None if self.tokens is None or each is None else self.tokens / (self.global_batch * each)

    @property
    def has_prices(self) -> bool:
        """Return whether every cluster has a price."""
        return all(setting.rate is not None for setting, _ in self.layouts)

    @property
    def refused_schedules(self) -> list[PlacedLayout]:
        """Return a pipeline with each of the user's own schedules that runs on no pipeline, if such schedules were to take part."""
        piped = [PlacedLayout(setting, each) for setting, every in self.layouts for each in every if each.pipeline > 1]
        if not piped or "schedule" in self.question.fixed or "own_schedule" not in allowances(self.question.allowed):
            return []
        tried = {placed_layout.candidate.schedule for placed_layout in piped}
        first = min(piped, key=lambda placed_layout: placed_layout.candidate.virtual_stages)
        return [first._replace(candidate=first.candidate._replace(schedule=name)) for name in names(SCHEDULES) if name not in tried]

    def front(self) -> list[bool]:
        """Return for each simulated layout whether it is on the Pareto front of time, free memory and cost."""
        points = [(each.time, -headroom(each), each.penalty * (cost_of_step(each) or 0.0)) for each in self.tally.outcomes]
        return [not any(_beats(other, own) for other in points) for own in points]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


def headroom(outcome: Outcome) -> float:
    """Return the bytes of a GPU that the fullest rank leaves free."""
    return outcome.run.node.gpu.memory - max(stage.of_gpu for stage in outcome.run.memory)


def cost_of_step(outcome: Outcome) -> float | None:
    """Return the USD of one step, without the penalty of one that thrashes; None without a price."""
    rate = outcome.placed_layout.setting.rate
    return None if rate is None else rate * outcome.step_time


def plan(
    question: PlanQuestion,
    progress: Callable[[Tally], None] | None = None,
    journal: Path | None = None,
    trying: Callable[[str], None] | None = lambda change: None,
    crew: Workers | None = None,
) -> LayoutPlan:
    """Return the best layouts, none if all take longer than the limit. Raise SpecError for an invalid request, Infeasible if nothing fits.

    *trying* gets each change that is tried if nothing fits, which may take seconds; None if none is to be tried. A *crew* refines layouts
    ahead of time; the result is the same without one.

    With a *journal* file, layouts that an interrupted plan simulated are read from it, and new ones are added.
    """
    layout_plan = prepare_plan(question)
    limits = question.limits
    with Journal(journal) as steps, nccl_variables_named():
        kept = StepCache(steps) if journal is not None else None
        tally = search(layout_plan.layouts, limits, progress, refiner(LocalRefiner(limits.objective, limits.memory, kept), crew))
    layout_plan = replace(layout_plan, tally=tally)
    if tally.best is None and not tally.is_cut_off:
        raise _no_fit_error(layout_plan, trying)
    return layout_plan


def prepare_plan(question: PlanQuestion) -> LayoutPlan:
    """Return the plan before the search. Raise SpecError for an invalid request."""
    tokens = None if question.tokens is None else token_count(question.tokens)
    _require_sense(question)
    allowed = allowances(question.allowed)
    machine = load_hardware(question.scenario.hardware, sorted_overrides(question.scenario)[0])
    _require_one_kind(machine.spec, question.scenario)
    loaded = workloads_of(question.scenario)
    check_run(machine, loaded[0])
    sizes = _sizes(machine.spec, question)
    batch = question.scenario.global_batch or _default_batch(loaded[0].spec, max(nodes * each for nodes, each in sizes))
    space = Space(batch, allowed, question.fixed, machine.spec.fabric.has_structure)
    lacks = [unsupported_option(one.spec, space) for one in loaded]
    if all(lacks):
        raise SpecError(lacks[0])
    _require_able(machine.spec, [one.spec for one in loaded], space)
    _require_eight_bits(question, [one.spec for one in loaded], space)
    layouts = []
    gpu = worker_node(machine.spec).gpu
    kernels = KernelBook(passes=memo.get_or_make((KernelBook, id(gpu)), dict, held=gpu))  # machines of a study may have the same GPU
    for nodes, each in sizes:
        hardware = with_nodes(machine.spec, nodes)
        rate = price(hardware, question.scenario.market)
        share = each / worker_node(hardware).gpu_count
        by_stack = [(one.spec, layouts_of(one.spec, nodes, each, space)) for one in loaded]
        replicas = [layout for workload, every in by_stack if workload.training.stack.mesh is None for layout in every]
        for workload, every in by_stack:
            setting = setting_of(Setting(hardware, each, workload, PriceBook(kernels=kernels), None if rate is None else rate * share))
            layouts.append((setting, without_replicas(workload, every, replicas)))
    if not any(each for _, each in layouts):
        raise SpecError(_contradiction(question, layouts, space))
    if tokens is not None:
        sample = loaded[0].spec.tokens_per_sample
        if sample is None:
            raise SpecError(f"--tokens: {loaded[0].spec.model.name} has no token sequences; leave it out")
        if tokens < batch * sample:
            step = f"{batch * sample:,.0f} ({batch} samples of {sample:,.0f})"
            raise SpecError(f"--tokens {show_tokens(tokens)}: one step takes {step}; write at least that many")
    inputs = {"hardware": machine.sha256, "workload": loaded[0].sha256}
    return LayoutPlan(question, layouts, Tally(), batch, tokens, inputs)


def _require_sense(question: PlanQuestion) -> None:
    """Raise SpecError for limits, numbers and fixed axes that make no sense, whatever the machine and the workload."""
    if question.limits.memory is not None and question.limits.memory <= 0:
        raise SpecError("--max-memory: write more than 0, for example --max-memory '70 GiB'")
    if question.limits.objective not in get_args(Objective):
        raise SpecError(f"--objective {question.limits.objective}: write {any_of(get_args(Objective))}")
    for option, number in (("--simulate", question.limits.simulations), ("--global-batch", question.scenario.global_batch)):
        if number is not None and number < 1:  # the command line refuses it, Python does not
            raise SpecError(f"{option} {number}: write 1 or more")
    for key in ("data", "dp", "nodes", "gpus"):
        if key in question.fixed:
            what = "write --nodes or --gpus" if key in ("nodes", "gpus") else "it follows from the GPUs that tp, cp and pp leave; fix those"
            raise SpecError(f"--fix {key}={question.fixed[key]}: is not an axis of the search; {what}")


def _require_one_kind(hardware: Hardware, scenario: Scenario) -> None:
    """Raise SpecError, with an alternative, if *hardware* has several groups of workers."""
    groups = hardware.worker_groups
    if len(groups) < 2:
        return
    if all(group.node == groups[0].node for group in groups):
        count = sum(group.count for group in groups)
        raise SpecError(f"{hardware.name}: has {len(groups)} groups of identical workers; for layouts write one group with count: {count}")
    raise SpecError(
        f"{hardware.name}: has {len(groups)} groups of different workers, but a layout needs identical nodes; "
        f"'{scenario.batches_command}' divides a batch among them in data parallelism"
    )


def _require_able(hardware: Hardware, workloads: Sequence[Workload], space: Space) -> None:
    """Raise SpecError if no stack of *workloads*, or not the GPU, multiplies in a precision that is allowed."""
    for name in sorted({"fp8", "nvfp4"} & space.allowed):
        reasons = [_unable(hardware, workload, name, space) for workload in workloads]
        if all(reasons):
            raise SpecError(reasons[0])


def _unable(hardware: Hardware, workload: Workload, precision: str, space: Space) -> str:
    """Return why *workload* is not tried in *precision*; empty if it is."""
    training = workload.training
    for problem in check_job(hardware, workload.with_training(precision=precision)):
        key, _, text = problem.partition(": ")
        if key == "training.fp8_recipe":
            return f"--fp8-recipe {training.fp8_recipe}: {text}"
        if key == "training.precision":
            return f"--allow {precision}: {text.partition(';')[0]}; leave it out"
    does = precision in precisions(workload, space)
    return "" if does else f"--allow {precision}: stack {training.stack.name} does not support {precision}; leave it out"


def _require_eight_bits(question: PlanQuestion, workloads: Sequence[Workload], space: Space) -> None:
    """Raise SpecError if an FP8 recipe is requested, but no layout multiplies in 8 bits."""
    recipe, fixed_precision = question.scenario.fp8_recipe, question.fixed.get("precision", "fp8")
    tried = {precision for workload in workloads for precision in precisions(workload, space)}
    if recipe is None or "fp8" in tried & {fixed_precision}:
        return
    change = f"--allow fp8 tries fp8 as well as {workloads[0].training.precision}, --precision fp8 only fp8"
    change = change if fixed_precision == "fp8" else f"leave --fix precision={fixed_precision} out, or the recipe"
    raise SpecError(f"--fp8-recipe {recipe}: no layout of this plan uses fp8; {change}")


def allowances(names: Set[str]) -> frozenset[str]:
    """Return the features that may take part. Raise SpecError for names that do not exist."""
    allowed = set(DEFAULT)
    for name in names:
        bare = name.removeprefix("no-").replace("-", "_")
        if name == f"no-{bare}" and bare in names:
            raise SpecError(f"--allow {name}: contradicts {bare}; write one of the two")
        if bare not in ALLOWED:
            raise SpecError(
                f"--allow {name}: unknown feature; write one of {', '.join(sorted(ALLOWED))}, or one of these with the "
                "prefix no- to leave it out"
            )
        if name.startswith("no-"):
            allowed.discard(bare)
        else:
            allowed.add(bare)
    return frozenset(allowed)


def workloads_of(scenario: Scenario) -> list[Loaded[Workload]]:
    """Return the workload under each stack to try that supports its kind of model and its FP8 recipe.

    There is only one if overrides name the stack. The workload's own comes first, if it takes part.
    """
    loaded: list[Loaded[Workload]] = []
    is_chosen = scenario.stack is not None or bool(overrides_of(scenario, "training.stack"))
    for stack in [scenario.stack] if is_chosen else _usual_stacks(scenario):
        _, overrides = sorted_overrides(replace(scenario, stack=stack))
        one = load_workload(scenario.workload, overrides)
        runs = is_chosen or (
            not isinstance(one.spec.training.stack.exchange, ServerExchange)
            and (stack != "megatron-core" or is_transformer(one.spec.model))
        )
        if runs and all(one.spec.training != other.spec.training for other in loaded):
            loaded.append(one)
    return [one for one in loaded if one.spec.training.precision != "fp8" or one.spec.training.supports_recipe] or loaded


def _usual_stacks(scenario: Scenario) -> list[str | None]:
    """Return the stacks to try, None for the workload's own: those of layouts, and of plain data parallelism without options of layouts.

    Plain data parallelism of a decoder takes part if it trains adapters. Otherwise, in 16 bits it would win with 16-bit optimizer states
    where the others keep 32-bit ones. Models that torchtitan does not train have torch's FSDP2 instead, with the kernels and the
    optimizer of their replicas.
    """
    _, overrides = sorted_overrides(replace(scenario, stack=STACKS[0]))
    own = load_workload(scenario.workload, overrides).spec
    texts = single_overrides(scenario.overrides)
    of_layouts = own.training.parallel != Parallel() or any(text.startswith("training.stack.mesh") for text in texts)
    is_comparable = own.model.transformer is None or own.model.lora is not None
    replicated = [None, REPLICATED_STACK] if is_comparable and not of_layouts else []
    return [*replicated, *(STACKS if own.model.transformer is not None else (SHARDED_STACK, *STACKS[1:]))]


def is_transformer(model: Model) -> bool:
    """Return whether *model* has attention in all blocks, and no convolutions or recurrent layers there: Megatron-LM builds only that."""
    ops = [{piece.layer.op for piece in unit.pieces} for unit in split(model, Parallel()) if unit.kind == "block"]
    return model.transformer is not None or (bool(ops) and all("attention" in each and not each & _OTHERS for each in ops))


def _sizes(hardware: Hardware, question: PlanQuestion) -> list[tuple[int, int]]:
    """Return (nodes, GPUs per node) of every cluster to try."""
    most, own = worker_node(hardware).gpu_count, hardware.worker_nodes
    gpus = question.gpus
    if gpus is None:
        return [(nodes, most) for nodes in (question.nodes or [own])]
    if gpus < 1:
        raise SpecError(f"--gpus {gpus}: write 1 or more")
    nodes = list(question.nodes) or [own if gpus <= most * own else math.ceil(gpus / most)]
    wrong = next((count for count in nodes if gpus % count or gpus // count > most), None)
    if wrong is not None:
        near = next(each for each in range(max(1, gpus // wrong), 0, -1) if each <= most)
        raise SpecError(
            f"--gpus {gpus}: {wrong} nodes of {most} GPUs cannot provide them evenly; {wrong * near} would work, or other --nodes"
        )
    return [(count, gpus // count) for count in nodes]


def _default_batch(workload: Workload, gpus: int) -> int:
    return workload.training.batch * workload.training.gradient_accumulation_steps * gpus


def _contradiction(question: PlanQuestion, layouts: Sequence[tuple[Setting, Sequence[LayoutCandidate]]], space: Space) -> str:
    """Return why there is no layout at all, and the nearest change after which there is one."""
    gpus = sorted({setting.nodes * setting.gpus_per_node for setting, _ in layouts})
    on = f"{any_of(gpus)} GPUs with a global batch of {space.global_batch}"
    stated = ",".join(f"{key}={value}" for key, value in question.fixed.items())
    fields = parse_fixed(question.fixed)
    left_out = [
        name for name in sorted(ALLOWED.keys() - space.allowed) if _has_layouts(layouts, replace(space, allowed=space.allowed | {name}))
    ]
    if fields and left_out:
        return f"--fix {stated}: needs to be allowed; add --allow {left_out[0]}"
    for key in question.fixed:
        rest = {other: value for other, value in question.fixed.items() if other != key}
        values: set[object] = set()
        for setting, _ in layouts:
            free = layouts_of(setting.workload, setting.nodes, setting.gpus_per_node, replace(space, fixed=rest))
            values |= {getattr(each, FIXED.get(key, key)) for each in free}
        if values:
            of = sorted(values, key=lambda value: (str(type(value)), value))
            names = ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in of)
            return f"--fix {stated}: no layout has all of these on {on}; {key} may be {names} with the others"
    if fields:
        return f"--fix {stated}: no layout has all of these on {on}; leave two or more of them out"
    least = max(gpus[0], space.global_batch // gpus[0] * gpus[0])
    return f"--global-batch {space.global_batch}: does not divide evenly over the data ranks of any layout of {on}; {least} would"


def _has_layouts(layouts: Sequence[tuple[Setting, Sequence[LayoutCandidate]]], space: Space) -> bool:
    """Return whether *space* has a layout on any cluster."""
    return any(layouts_of(setting.workload, setting.nodes, setting.gpus_per_node, space) for setting, _ in layouts)


def _no_fit_error(layout_plan: LayoutPlan, trying: Callable[[str], None] | None) -> Infeasible:
    """Return the error that no layout fits, with the excess of the nearest one, and the smallest change that would help."""
    tally, setting = layout_plan.tally, layout_plan.layouts[-1][0]
    node = worker_node(setting.hardware)
    limit = layout_plan.question.limits.memory
    memory = node.gpu.memory if limit is None else min(limit, node.gpu.memory)
    details = [] if tally.tightest is None else [f"the nearest needs {tally.tightest[0] / 2**30:.1f} GiB more"]
    details += [] if trying is None else [_helpful_change(layout_plan, trying)]
    text = (
        f"{setting.workload.name} fits in none of {tally.candidates:,} layouts on {setting.nodes * setting.gpus_per_node} {node.gpu.name} "
        f"({show(memory, 'binary size')} each)"
    )
    text += f": {'; '.join(details)}" if details else ""
    gpus = setting.nodes * setting.gpus_per_node
    return Infeasible([text], setting.nodes, gpus, "does not fit into GPU memory", nothing_qualifies=True)


def _helpful_change(layout_plan: LayoutPlan, trying: Callable[[str], None]) -> str:
    """Return the smallest change after which a layout fits."""
    question = layout_plan.question
    allowed = allowances(question.allowed)
    base = replace(question, scenario=replace(question.scenario, global_batch=layout_plan.global_batch))
    trials: list[tuple[str, PlanQuestion]] = []
    if "recompute" not in allowed:
        trials.append(("--allow recompute", replace(base, allowed=question.allowed - {"no-recompute"} | {"recompute"})))
    if question.limits.memory is not None:
        trials.append(("without --max-memory it", replace(base, limits=replace(question.limits, memory=None))))
    for key in question.fixed:
        rest = {other: value for other, value in question.fixed.items() if other != key}
        trials.append((f"without --fix {key}={question.fixed[key]} it", replace(base, fixed=rest)))
    if question.scenario.stack is not None:
        trials.append((f"without --stack {question.scenario.stack} it", replace(base, scenario=replace(base.scenario, stack=None))))
    nodes = layout_plan.layouts[-1][0].nodes
    for times in (2, 4, 8, 16, 32):
        batch = max(layout_plan.global_batch, nodes * times * layout_plan.layouts[-1][0].gpus_per_node)
        grown = replace(base.scenario, global_batch=batch)
        trials.append((f"--nodes {nodes * times}", replace(base, scenario=grown, nodes=[nodes * times], gpus=None)))
    for text, trial in trials:
        trying(text)
        try:
            if any_fits(prepare_plan(trial)):
                return f"{text} would fit"
        except SpecError:
            continue
    return "it needs GPUs with more memory"


def any_fits(layout_plan: LayoutPlan) -> bool:
    """Return whether a layout of *layout_plan* fits, trying the least memory bounds of each cluster and stack first.

    Raise SpecError if the engine refuses all.
    """
    memory = layout_plan.question.limits.memory
    for setting, every in layout_plan.layouts:
        least, most = bounds(setting, every, most=0.0).memory, usable_memory(setting, memory)
        near = sorted((float(need), place) for place, need in enumerate(least) if need <= most)
        if any(fits(PlacedLayout(setting, every[place]), memory) for _, place in near):
            return True
    return False
