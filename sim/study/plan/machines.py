"""How would each machine run a model that needs a layout? For each machine and number of nodes, its best layout at a global batch.

Machines that the user names keep their row; one on which no layout fits states why. Few layouts are simulated for each, because the bound
is tight: the search ends as soon as the best is proven within `GAP`, except for layouts that take long to simulate, whose bounds are part
of the gap that rows state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from sim.mesh import LayoutRun, worker_node
from sim.spec.library import fingerprint, load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, ExclusionRule, MachinePoint, bounds_kept, machine_rows
from sim.study.computing import ALL_CORES, Computing
from sim.study.jobs_file import jobs_file
from sim.study.layout import LayoutAnswer
from sim.study.plan.progress import progress_text
from sim.study.plan.question import LayoutPlan, PlanQuestion, any_fits, plan, prepare_plan, workloads_of
from sim.study.plan.search import Limits, Tally
from sim.study.plan.space import LayoutCandidate
from sim.study.pool import LEAST_FOR_PROCESSES, Progress, process_count, runs_here
from sim.study.scenario import Scenario, sorted_overrides, split_overrides
from sim.units import pluralized

SIMULATIONS: Final = 40
"""Maximum number of layouts simulated for each machine and number of nodes."""
GAP: Final = 0.03
"""Share of the best layout's step that another may still save when the search ends, unless that is slow to simulate: estimate (less than
the error of predictions)."""

ON_CLUSTER: Final = 64
"""Number of machines that a cluster plans before others are excluded."""


@dataclass(frozen=True)
class MachinePlanning:
    """How the layouts of machines are planned, and what becomes of them."""

    document_of: Callable[[LayoutAnswer], Mapping[str, Any]]
    """Returns the document of a row; picklable if *computing* is several processes."""
    power_cap: str | None = None
    """Power limit of each GPU, such as ``500 W``."""
    computing: Computing = ALL_CORES
    exclusion: ExclusionRule | None = None
    """Decides which machines get no row."""
    progress: Progress | None = None
    searching: Callable[[str], None] | None = None
    """Called with the progress of each search that runs in this process."""


def needs_layout(scenario: Scenario, rows: Sequence[ComparedMachine]) -> bool:
    """Return whether the workload is a decoder that runs on no machine as it is."""
    if not rows or any(row.document is not None for row in rows):
        return False
    return load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.model.transformer is not None


def shared_batch(scenario: Scenario, names: Sequence[str], nodes: Sequence[int]) -> int:
    """Return the global batch of every plan: as requested, or the workload's batch on every GPU of the largest cluster."""
    if scenario.global_batch is not None:
        return scenario.global_batch
    for_hardware, for_workload = sorted_overrides(scenario)
    training = load_workload(scenario.workload, for_workload).spec.training
    gpus = [1]
    for name in names:
        try:
            hardware = load_hardware(name, for_hardware).spec
            gpus.append(worker_node(hardware).gpu_count * max(nodes, default=hardware.worker_nodes))
        except SpecError:
            continue
    return training.batch * training.gradient_accumulation_steps * max(gpus)


def require_readable_workload(scenario: Scenario) -> None:
    """Read the workload of *scenario* as plans do, under each stack. Raise SpecError if it cannot be read as it is."""
    load_workload(scenario.workload, sorted_overrides(scenario)[1])
    with suppress(SpecError):  # a workload without layouts needs none of their stacks
        workloads_of(scenario)


def specified_layout(scenario: Scenario) -> dict[str, str]:
    """Return the layout fields that the user specified, which every plan keeps. Raise SpecError for one that no plan can keep."""
    specified = [(option, key, str(value)) for option, key, value in scenario.layout]
    _, overrides = split_overrides(scenario.overrides)
    parts = [text.partition("=") for text in overrides]
    specified += [(f"--set {name.strip()}", name.strip().removeprefix("training."), value.strip()) for name, _, value in parts]
    fixed = {}
    for option, key, value in specified:
        if key.partition(".")[0] != "parallel":
            continue
        name = {"reshard_after_forward": "reshard"}.get(field := key.removeprefix("parallel").lstrip("."), field)
        if name not in LayoutCandidate._fields:
            raise SpecError(
                f"{option}: cannot be fixed here, where a layout is chosen for each machine; leave it out, set a key such as "
                "training.parallel.tensor=4, or use 'python -m sim compare', which takes a whole layout"
            )
        fixed[name] = value
    return fixed


def planned_rows(
    scenario: Scenario,
    names: Sequence[str],
    nodes: Sequence[int],
    planning: MachinePlanning,
) -> list[ComparedMachine]:
    """Return a row for each of *names* and each number of *nodes*: the document of its best layout, or why there is none."""
    _, unused = _without_unused_recipe(scenario)
    if unused:
        raise SpecError(f"--fp8-recipe {scenario.fp8_recipe}: has no effect in {unused}; add --precision fp8, or leave it out")
    job = replace(scenario, global_batch=shared_batch(scenario, names, nodes), batch=None)
    points, fixed_fields = [(name, count) for name in names for count in (nodes or (None,))], specified_layout(scenario)
    planned = _planned(job, fixed_fields, points, planning)
    return [planned[point] for point in points if point in planned]


def _without_unused_recipe(scenario: Scenario) -> tuple[Scenario, str]:
    """Return *scenario* without an FP8 recipe that its precision does not use, and that precision; empty if nothing is removed."""
    if scenario.fp8_recipe is None:
        return scenario, ""
    precision = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec.training.precision
    return (scenario, "") if precision == "fp8" else (replace(scenario, fp8_recipe=None), precision)


def _planned(
    job: Scenario, fixed_fields: Mapping[str, str], points: Sequence[MachinePoint], planning: MachinePlanning
) -> dict[MachinePoint, ComparedMachine]:
    """Return the row of each of *points* that is not excluded."""
    computing, exclusion, progress = planning.computing, planning.exclusion, planning.progress
    most_nodes = max((count for _, count in points if count is not None), default=None)
    row_of = partial(_row, job, fixed_fields, planning.document_of, planning.power_cap, advised=most_nodes)
    rows: dict[MachinePoint, ComparedMachine] = {}

    def key_of(point: MachinePoint) -> str:
        return fingerprint([computing.question, "planned", asdict(job), fixed_fields, planning.power_cap, point])

    def plan_all(some: Sequence[MachinePoint], cutoffs: Sequence[float], counted: Progress | None = None) -> None:
        """Add the rows of *some*, each with its cutoff; *counted* gets the number done and their total."""
        tasks = [(key_of(point), (point, cutoff)) for point, cutoff in zip(some, cutoffs, strict=True)]
        alone = computing.cluster is None and runs_here(len(some), computing.processes)
        rows.update(
            zip(
                some, machine_rows(partial(row_of, searching=planning.searching if alone else None), tasks, computing, counted), strict=True
            )
        )

    bounded = [(name, count) for name, count in points if count is not None]
    if exclusion is None or len(bounded) < len(points):
        plan_all(points, [math.inf] * len(points), progress)
        return rows
    exclusion.note(bounds_kept(map(key_of, bounded), computing))
    sure = [point for point in bounded if not exclusion.is_bounded(point)]
    plan_all(sure, [math.inf] * len(sure))
    exclusion.note(rows.values())
    left = [point for point in bounded if point not in rows and not exclusion.excludes(point)]
    while left:
        if progress is not None:  # machines that wait for others are not done
            done = sum(row.least_step is None for row in rows.values()) - len(sure)
            progress(done, done + exclusion.expected(left))
        some, later = (ordered := exclusion.in_order(left))[: _at_once(computing)], ordered[_at_once(computing) :]
        plan_all(some, [exclusion.cutoff(point) for point in some])
        exclusion.note(rows[point] for point in some)
        waiting = [point for point in some if rows[point].least_step is not None]
        left = [point for point in (*later, *waiting) if not exclusion.excludes(point)]
    return {point: row for point, row in rows.items() if not exclusion.excludes((point[0], point[1] or 1))}


def _at_once(computing: Computing) -> int:
    """Return how many machines are planned before others are excluded: enough for every process."""
    if computing.cluster is not None:
        return ON_CLUSTER
    processes = process_count(computing.processes)
    return 1 if processes == 1 else max(LEAST_FOR_PROCESSES + 1, processes)


def with_planned_layouts(
    scenario: Scenario,
    rows: Sequence[ComparedMachine],
    planning: MachinePlanning,
    but: Collection[str] = (),
) -> list[ComparedMachine]:
    """Return *rows*; on machines with too little memory for a decoder, rows get the document of the best layout, if there is one.

    Rows of the machines *but* stay as they are; rows that are excluded are left out. The global batch of a plan is what *scenario*
    gives all GPUs together, as in all rows. Rows keep their reason for a specified layout, ramps of pre-training and several jobs, because
    a plan would not be what was requested.
    """
    short = rows_to_plan(scenario, rows, but)
    if not short:
        return list(rows)
    points, (scenario, _) = [(row.hardware, row.nodes) for row in short], _without_unused_recipe(scenario)
    planned = _planned(scenario, {}, points, planning)
    is_short = set(points)
    laid_out = ((_or_remedy(planned.get(point), row) if (point := (row.hardware, row.nodes)) in is_short else row) for row in rows)
    return [row for row in laid_out if row is not None]


def _or_remedy(planned: ComparedMachine | None, row: ComparedMachine) -> ComparedMachine | None:
    """Return the *planned* row; if no layout fits, its reason names options with which the whole model of *row* fits on each GPU."""
    if planned is None or not planned.problem or not row.memory_remedy:
        return planned
    return replace(planned, problem=f"{planned.problem}; on the workload's own stack, {row.memory_remedy}")


def rows_to_plan(scenario: Scenario, rows: Sequence[ComparedMachine], but: Collection[str] = ()) -> list[ComparedMachine]:
    """Return those of *rows* that `with_planned_layouts` plans: machines with too little memory for a decoder, except *but*."""
    short = [row for row in rows if row.document is None and row.memory_remedy is not None and row.hardware not in but]
    return short if short and is_planned(scenario) else []


def is_planned(scenario: Scenario) -> bool:
    """Return whether *scenario* is a decoder that gets a layout where it needs one (`with_planned_layouts`)."""
    if scenario.layout or scenario.batch == "max" or jobs_file(scenario.workload) is not None:
        return False
    workload = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec
    return workload.model.transformer is not None and workload.pretraining is None and not specified_layout(scenario)


def layout_fits(scenario: Scenario) -> bool:
    """Return whether *scenario* fits its machine in any layout, without simulating. Raise SpecError if it cannot run there at all."""
    return any_fits(prepare_plan(PlanQuestion(_without_unused_recipe(scenario)[0])))


def no_fit(scenario: Scenario) -> str:
    """Return why *scenario* fits its machine in no layout, and what would help; empty if one fits."""
    try:
        _whole_plan(PlanQuestion(_without_unused_recipe(scenario)[0], limits=Limits(simulations=1, shown=1)))
    except SpecError as error:
        return error.problems[0]
    return ""


def _whole_plan(
    question: PlanQuestion,
    progress: Callable[[Tally], None] | None = None,
    trying: Callable[[str], None] | None = lambda change: None,
) -> LayoutPlan:
    """Return what `plan` returns. Raise KeyboardInterrupt after Ctrl-C, also if layouts were simulated: their best may not be the best."""
    made = plan(question, progress, trying=trying)
    if made.tally.interrupted:
        raise KeyboardInterrupt
    return made


def _row(
    job: Scenario,
    fixed_fields: Mapping[str, str],
    document_of: Callable[[LayoutAnswer], Mapping[str, Any]],
    power_cap: str | None,
    task: tuple[MachinePoint, float],
    advised: int | None = None,
    searching: Callable[[str], None] | None = None,
) -> ComparedMachine:
    """Return the row of a machine; one without a document, but with the least time of a step, if no layout takes less than a cutoff (s).

    Only on *advised* nodes, the most that are tried, the reason why no layout fits includes what would.
    """
    (name, count), cutoff = task
    scenario = replace(job, hardware=name)
    limits = Limits(SIMULATIONS, shown=1, gap=GAP, power_cap=power_cap, early=False, cutoff=cutoff)
    question = PlanQuestion(scenario, () if count is None else (count,), fixed=fixed_fields, limits=limits)
    place = name if count is None else f"{name}, {pluralized(count, 'node')}"
    hears = None if searching is None else lambda tally: searching(f"{place}: {progress_text(tally)}")
    try:
        best_plan = _whole_plan(question, hears, (lambda change: None) if count == advised else None)
    except SpecError as error:
        return ComparedMachine(scenario.hardware, count, None, f"{scenario.hardware}: {error.problems[0]}")
    best, least_step = best_plan.tally.best, best_plan.tally.least_step
    if best is None or least_step is not None:
        return ComparedMachine(scenario.hardware, count, None, least_step=least_step)
    run: LayoutRun = best.run
    inputs = {**best_plan.inputs, "stack": "", "records": ""}
    document = {**document_of(LayoutAnswer(run, inputs, (), scenario.market, scenario.plan)), "layout_gap": best_plan.tally.gap}
    return ComparedMachine(scenario.hardware, count, document, provider=best_plan.layouts[0][0].hardware.provider)
