"""How is the simulator used from a notebook? Each command has a function, and `simulate` returns a `Result`.

``simulate("p3.16xlarge", "vgg16", nodes=2, overrides={"node.nic.bandwidth": "100 Gbps"})`` takes the arguments of the command line.
`compare` compares machines, `sweep` simulates many points, `whatif` ranks what to improve, `plan` finds a layout, `recommend` finds a
machine to rent, and `goodput` simulates long jobs with failures. Tables are DataFrames; ``DataFrame.attrs`` holds the rest of the
command's JSON document. pandas and matplotlib are imported only when they are needed. `stallsim` is the public name of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from sim.documents import comparison_rows, require_tokens
from sim.documents import row as row_of
from sim.report.comparison import comparison_document
from sim.report.extras import RunExtras, require_failures
from sim.report.figures import flatten
from sim.report.picture import Picture
from sim.report.whatif import whatif_document
from sim.result import Result
from sim.spec.extensions import FAILURE_LAWS, register
from sim.spec.yaml import SpecError
from sim.study.argument_names import arguments_in, names_arguments
from sim.study.arguments import (
    Name,
    counts,
    max_memory_of,
    optional_path,
    price_source,
    require_mapping,
    require_whole,
    scenario_of,
    text_list,
    with_own_parts,
)
from sim.study.compare import machines
from sim.study.layout_options import layout_of, schedule_name, texts_of
from sim.study.options import (
    CompareOptions,
    ExtrasOptions,
    GoodputOptions,
    PlainRunOptions,
    PlanOptions,
    PointOptions,
    RecommendOptions,
    RentingOptions,
    SimulationOptions,
    SizeOptions,
    StepOptions,
    SweepOptions,
    Weeks,
    WhatifOptions,
    WholeJobOptions,
    arguments_of,
    documents_options,
    keywords,
    select_options,
)
from sim.study.scenario import answer, has_layout, workload_name
from sim.study.space import points_of
from sim.study.sweep import sweep as sweep_points
from sim.study.whatif import whatif as ask_whatif
from sim.study.whole_job import plan_due, plan_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from sim.spec.model import Model


@names_arguments()
@keywords(PlainRunOptions)
def simulate(
    hardware: Name,
    workload: Name,
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    batch: int | Literal["max"] | None = None,
    micro_batches: int | None = None,
    thorough: bool = False,
    prices: object = None,
    loader: object = None,
    collective: object = None,
    exchange: object = None,
    **options: Unpack[PlainRunOptions],
) -> Result:
    """Simulate *workload* on *hardware* and return the result; the options are those of ``sim run``.

    *overrides* maps dotted field names to values, as after ``--set``. *batch* is the number of samples per GPU in each of a step's
    *micro_batches*, and *gpus* the total number of GPUs. *thorough* also simulates what freeing each resource would save, and which
    estimates decide the result. *market* is ``on-demand`` or ``spot``. *epochs*, *hours* or *tokens* (``"300B"``) add time and cost of
    the whole job; *with_failures* adds failures to it, at a level of *reliability* (``"high"``, or a file) and with the given number of
    *spares*. *store* adds a checkpoint written to that store, *power_cap* (``"500 W"``) a limit on the power of each GPU. *prices* is a
    price source. *loader*, *collective* and *exchange* are your own data loader, all-reduce algorithm and gradient exchange: a name, or
    an object (`stallsim.protocols`). Raise `SpecError` listing everything that is wrong.
    """
    scenario = scenario_of(
        hardware, workload, with_own_parts(overrides, loader, collective, exchange), options["market"],
        nodes=nodes, gpus=gpus, placement=options["placement"], batch=batch,
        plan=plan_of(**select_options(options, WholeJobOptions)), layout=layout_of([], micro_batches=micro_batches),
        prices=price_source(prices), **select_options(options, SimulationOptions),
    )  # fmt: skip
    extras = RunExtras(**select_options(options, ExtrasOptions))
    extras.check(scenario.plan)
    require_tokens(scenario)
    return Result(scenario, answer(scenario, thorough=thorough), extras)


@names_arguments()
@keywords(PlanOptions)
def plan(
    hardware: Name,
    workload: Name,
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | Sequence[int] = (),
    journal: Name | None = None,
    export: Name | None = None,
    fix: Mapping[str, object] | None = None,
    allow: Sequence[str] = (),
    schedules: Sequence[object] = (),
    market: str = "on-demand",
    prices: object = None,
    processes: int | None = 1,
    **options: Unpack[PlanOptions],
) -> DataFrame:
    """Return the layouts of *workload* on *hardware* that were simulated, best first, one row each; options as for ``sim plan``.

    *max_memory* is the memory limit of each GPU, in bytes or as text such as ``"70GiB"``. *fix* fixes axes of the search by name
    (``{"tp": 8}``). *schedules* are pipeline schedules of your own to try as well. *export* is a folder for launch files of the best
    layout. ``DataFrame.attrs`` holds the rest of the document: the number of layouts, what was excluded, and the optimality gap.
    *processes* is the number of processes that simulate layouts in parallel (None: one per core). Raise `SpecError` if nothing fits.
    """
    import pandas

    from sim.report.files import folder_due
    from sim.report.layouts.layout_files import export_files
    from sim.report.plan import plan_document
    from sim.spec.whole_file import write_files
    from sim.study.plan.ahead import workers
    from sim.study.plan.question import PlanQuestion
    from sim.study.plan.question import plan as search_plan
    from sim.study.plan.search import Limits
    from sim.study.plan.sensitivity import sensitivity as sensitivities_of

    if options["with_failures"] and options["tokens"] is None:
        raise SpecError("with_failures: set the length of the job with tokens")
    require_failures(options["with_failures"], options["reliability"], options["spares"])
    scenario = scenario_of(hardware, workload, overrides, market, prices=price_source(prices), **select_options(options, StepOptions))
    require_whole("gpus", options["gpus"])
    if options["simulate"] is None:
        raise SpecError("simulate=None: expected a whole number")
    require_whole("simulate", options["simulate"])
    for schedule in schedules:
        schedule_name(schedule)
    require_mapping("fix", fix, {"tp": 8})
    fixed = {name: _axis(name, value) for name, value in (fix or {}).items()}
    allowed = frozenset(text_list("allow", allow))
    journal_path, folder = optional_path("journal", journal), optional_path("export", export)
    memory = max_memory_of(options["max_memory"])
    limits = Limits(options["simulate"], memory, options["objective"], power_cap=options["power_cap"])
    question = PlanQuestion(scenario, counts(nodes), options["gpus"], options["tokens"], fixed, allowed, limits)
    with workers(processes, None, lambda text: None) as crew:
        layout_plan = search_plan(question, journal=journal_path, crew=crew)
        sensitivities = sensitivities_of(layout_plan, None, crew) if options["sensitivity"] and not layout_plan.tally.interrupted else []
    document = plan_document(layout_plan, sensitivities, options["with_failures"], options["reliability"], options["spares"])
    if folder is not None:
        write_files(folder_due(folder) or folder, export_files(layout_plan).files)
    table = pandas.DataFrame(document.pop("layouts"))
    table.attrs.update(document)
    return table


def _axis(name: str, value: object) -> str:
    """Return the *value* of an axis as it is written on the command line; a user-defined schedule may be passed as the object itself."""
    if name == "schedule":
        return str(schedule_name(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* with the arguments of Python instead of options in its ``problem``, if it has one."""
    return dict(row) | ({"problem": arguments_in(row["problem"])} if row.get("problem") else {})


@names_arguments()
@keywords(CompareOptions)
def compare(
    workload: Name,
    hardware: Sequence[Name] = (),
    *,
    where: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    nodes: int | Sequence[int] = (),
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    processes: int | None = 1,
    prices: object = None,
    **options: Unpack[CompareOptions],
) -> DataFrame:
    """Return one row per machine, fastest first or in the order of *sort*; column names include the unit.

    *hardware* defaults to all single machines of the catalog; *where* holds conditions such as ``gpus=8``. Machines that cannot run
    the workload come last, with the reason in ``problem``. With *epochs*, *hours* or *tokens* (``"300B"``) machines are compared by
    the whole job, and its figures have columns of their own. *parallel* sets the layout of the model, as after ``--parallel``:
    ``{"tp": 8, "shard": "optimizer"}``. *processes* is the number of processes that simulate machines in parallel (None: one per core).
    ``DataFrame.attrs`` holds the rest of the document, such as its note and prices.
    Raise `SpecError` if no machine is left.
    """
    import pandas

    scenario = scenario_of(
        "", workload, overrides, options["market"], plan=plan_of(**select_options(options, WholeJobOptions)),
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches), prices=price_source(prices),
        **select_options(options, SizeOptions),
    )  # fmt: skip
    names = machines(text_list("hardware", hardware), text_list("where", where))
    rows = comparison_rows(scenario, names, counts(nodes), processes, power_cap=options["power_cap"])
    document = comparison_document(workload_name(scenario), rows, options["sort"])
    flat = [
        {key: value for key, value in row.items() if key != "whole_job" and not isinstance(value, dict)}
        | {f"{cause}_s": seconds for cause, seconds in row["stalls_s"].items()}
        | {"expected_error": (row["expected_error"] or {}).get("median")}
        | {f"whole_job_{key}": value for key, value in (row["whole_job"] or {}).items() if key in ("epochs", "time_s", "cost_usd")}
        for row in document["rows"]
    ]
    table = pandas.DataFrame([*flat, *map(_with_arguments, document["left_out"])])
    table.attrs.update((key, value) for key, value in document.items() if key not in ("rows", "left_out"))
    return table


@names_arguments()
@keywords(SweepOptions)
def sweep(
    hardware: Name,
    workload: Name,
    vary: Mapping[str, object],
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    processes: int | None = 1,
    prices: object = None,
    **options: Unpack[SweepOptions],
) -> DataFrame:
    """Return one row per point of the grid of *vary* (or per point of *sobol* many in it): the varied fields, then the results.

    *vary* maps each field to its values, as a list or as after ``--vary``: ``{"node.nic.bandwidth": "10..400 Gbps:7", "batch": [32, 64]}``.
    Points that cannot run have the reason in ``problem``. *processes* is the number of processes that simulate points in parallel (None:
    one per core). *power_cap* (``"500 W"``) limits the power of each GPU, and can itself be varied.
    Raise `SpecError` if an argument is invalid.
    """
    import pandas

    scenario = scenario_of(
        hardware, workload, overrides, nodes=nodes, prices=price_source(prices),
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches), **select_options(options, PointOptions),
    )  # fmt: skip
    if not isinstance(vary, Mapping):
        raise SpecError(f"vary={vary!r}: expected a mapping from fields to values, such as {{'batch': [32, 64]}}")
    varied = [
        f"{key}={values if isinstance(values, str) or not isinstance(values, Iterable) else ','.join(map(str, values))}"
        for key, values in vary.items()
    ]
    points = points_of(varied, options["sobol"], options["seed"])
    return pandas.DataFrame([_with_arguments(flatten(row)) for row in sweep_points(scenario, points, row_of, processes=processes)])


@names_arguments()
@keywords(WhatifOptions)
def whatif(
    hardware: Name,
    workload: Name,
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    prices: object = None,
    **options: Unpack[WhatifOptions],
) -> DataFrame:
    """Return one row per resource, most useful first: step time and cost with twice and with infinitely much of it.

    The options are those of ``sim whatif``; *parallel* is a layout, as in `compare`. With a layout, rows have the step time only.
    ``DataFrame.attrs`` holds the rest of the document, such as the gain from more of all ``links`` at once. Raise `SpecError` listing
    everything that is wrong.
    """
    import pandas

    from sim.report.layouts.layout_whatif import layout_whatif_document
    from sim.study.layout_whatif import layout_whatif

    scenario = scenario_of(
        hardware, workload, overrides, nodes=nodes, prices=price_source(prices),
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches), **select_options(options, WhatifOptions),
    )  # fmt: skip
    document = layout_whatif_document(layout_whatif(scenario)) if has_layout(scenario) else whatif_document(ask_whatif(scenario))
    table = pandas.DataFrame([flatten(row) for row in document.pop("resources")])
    table.attrs.update(document)
    return table


@names_arguments()
@keywords(RecommendOptions)
def recommend(
    workload: Name,
    hardware: Sequence[Name] = (),
    *,
    where: Sequence[str] = (),
    nodes: int | Sequence[int] = (1, 2, 3, 4),
    overrides: Mapping[str, object] | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    journal: Name | None = None,
    processes: int | None = 1,
    prices: object = None,
    **options: Unpack[RecommendOptions],
) -> DataFrame:
    """Return one row per machine and number of *nodes* that could be rented, those within the budget first.

    Pass exactly one of *budget_hours* (finds the cheapest machine that meets it) and *budget_usd* (finds the fastest within it). The job
    is one epoch unless *epochs*, *hours* or *tokens* is given. *parallel* is a layout, as in `compare`. A *journal* file stores computed
    rows, so that a repeated call continues where the last one stopped. ``DataFrame.attrs`` holds ``best``, ``runner_up`` and ``notes``.
    Raise `SpecError` if an argument is invalid.
    """
    import pandas

    from sim.documents import RentalOptions, recommendation
    from sim.study.recommend import Budget

    require_whole("spares", options["spares"])
    hours, money = options["budget_hours"], options["budget_usd"]
    for option, value in (("budget_hours", hours), ("budget_usd", money)):
        if value is not None and not (isinstance(value, int | float) and 0 < value < inf):
            raise SpecError(f"{option}={value!r}: expected a number above 0")
    scenario = scenario_of(
        "", workload, overrides, plan=plan_due(**select_options(options, WholeJobOptions)),
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches), prices=price_source(prices),
        **select_options(options, SizeOptions),
    )  # fmt: skip
    budget = Budget(None if hours is None else 3600.0 * hours, money)
    names, conditions = text_list("hardware", hardware), text_list("where", where)
    journal_path = optional_path("journal", journal)
    renting = RentalOptions(
        budget, names, conditions, counts(nodes), processes=processes, journal=journal_path, **select_options(options, RentingOptions)
    )
    document, _ = recommendation(scenario, renting)
    table = pandas.DataFrame([flatten(row) for row in document.pop("candidates")])
    table.attrs.update(document)
    return table


@names_arguments(Weeks)
@documents_options(GoodputOptions, Weeks)
def goodput(
    hardware: Name,
    workload: Name,
    *,
    days: float | None = None,
    tokens: str | None = None,
    epochs: float | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    prices: object = None,
    **options: Any,
) -> DataFrame:
    """Simulate a long job with failures *trials* times and return 41 of these runs, at even steps from the worst to the best.

    Each row is one run; ``share`` is the share of all runs with a lower effective share.

    Exactly one of *days*, *tokens* (``"15T"``) and *epochs* sets the length of the job. *failure_law* is a name, or a
    `stallsim.protocols.FailureLaw` object. ``DataFrame.attrs`` holds the rest of the document: shares, losses, checkpoints, energy.
    Raise `SpecError` if an argument is invalid.
    """
    import pandas

    from sim.analysis.failure_law import BUILT_IN
    from sim.documents import weeks_document
    from sim.study.weeks import check_weeks
    from sim.study.whole_job import token_count

    name_by_argument = arguments_of(Weeks)
    for argument, name in name_by_argument.items():
        if argument != name and {argument, name} <= options.keys():
            raise SpecError(f"{argument} and {name}: are the same option; write {argument}")
    of_run = select_options(options, GoodputOptions)
    weeks = {name_by_argument.get(argument, argument): value for argument, value in options.items() if argument not in of_run}
    scenario = scenario_of(
        hardware, workload, overrides, nodes=nodes, layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches),
        prices=price_source(prices), **of_run,
    )  # fmt: skip
    if not isinstance(weeks.get("law", ""), str):
        weeks["law"] = register(FAILURE_LAWS, weeks["law"], BUILT_IN)
    weeks = {name: str(value) if isinstance(value, PathLike) else value for name, value in weeks.items()}
    token_total = None if tokens is None else token_count(tokens)
    settings = Weeks(days=days, tokens=token_total, epochs=epochs, **weeks)
    check_weeks(settings)
    document = weeks_document(scenario, settings, changes=False)
    table = pandas.DataFrame(document.pop("distribution"))
    table.attrs.update(document)
    return table


@names_arguments()
def extract(
    target: str,
    inputs: Sequence[str],
    output: Name,
    *,
    name: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Model:
    """Write the layer table of the torch model that *target* (``my_file.py:build``) returns to *output*, and return it.

    *inputs* are the shapes of one sample (``["3x224x224"]``). The model is traced on the meta device, without weights or a GPU. Tracing
    runs the module's code, so only extract models that you trust. Raise `SpecError` if the model cannot be traced.
    """
    from sim.extract import run_extract

    argument_texts = [f"{key}={value}" for key, value in (arguments or {}).items()]
    return run_extract(str(target), text_list("inputs", inputs), Path(output), name, argument_texts)


__all__ = [
    "Picture", "Result", "SpecError", "compare", "extract", "goodput", "plan", "recommend", "simulate", "sweep", "whatif",
]  # fmt: skip
