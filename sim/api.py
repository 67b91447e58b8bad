"""What does a notebook user hold? A `Result`: one finished run, with its stalls as a DataFrame, pictures, a trace and a page.

``simulate("p3.16xlarge", "vgg16", nodes=2, overrides={"node.nic.bandwidth": "100 Gbps"})`` takes what the command line takes; `compare`
puts machines side by side, `sweep` tries many points, `whatif` ranks what to improve, `plan` finds a layout, `recommend` a machine to
rent, `goodput` draws weeks with failures. Tables are DataFrames, and ``DataFrame.attrs`` holds the rest of the command's JSON document.
pandas and matplotlib are imported when something of theirs is asked for. `stallsim` is the public name of all this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sim.documents import compared
from sim.documents import row as row_of
from sim.report.beside import Beside, require_failures
from sim.report.comparison import comparison_document
from sim.report.figures import flat
from sim.report.picture import Picture
from sim.report.whatif import whatif_document
from sim.result import Result
from sim.spec.extensions import FAILURE_LAWS, give
from sim.spec.yaml import SpecError
from sim.study.arguments import Name, counts, own_parts, price_source, require_whole, scenario_of, several, size_of
from sim.study.compare import machines
from sim.study.layout_options import layout_of, schedule_name, texts_of
from sim.study.scenario import answer, has_layout, workload_name
from sim.study.space import asked_points
from sim.study.sweep import sweep as sweep_points
from sim.study.whatif import whatif as ask_whatif
from sim.study.whole_job import plan_due, plan_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from sim.spec.workload import Model

"""A YAML file, or a name of the catalogue."""


def simulate(
    hardware: Name,
    workload: Name,
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    placement: str | None = None,
    batch: int | Literal["max"] | None = None,
    global_batch: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    seed: int = 0,
    exact: bool = False,
    thorough: bool = False,
    market: str = "on-demand",
    sequence: int | None = None,
    epochs: float | None = None,
    hours: float | None = None,
    tokens: str | None = None,
    evaluation: float = 0.0,
    checkpoints: bool = True,
    with_failures: bool = False,
    reliability: str | None = None,
    spares: int | None = None,
    store: str | None = None,
    power_cap: str | None = None,
    prices: object = None,
    loader: object = None,
    collective: object = None,
    exchange: object = None,
) -> Result:
    """Simulate *workload* on *hardware* and return the result; the options are those of ``sim run``.

    *overrides* are fields by dotted key, as after ``--set``; *batch* counts samples per GPU, *gpus* all GPUs; *thorough* also tries
    what freeing each resource would save; *market* is ``on-demand`` or ``spot``; *epochs*, *hours* or *tokens* (``"300B"``) add the
    whole job, *with_failures* its weeks, at a level of *reliability* (``"high"``, a file) with so many *spares*; *store* a checkpoint
    written there, *power_cap* (``"500 W"``) a limit on GPUs; *prices* is a price source,
    *loader* a loader, *collective* an all-reduce and *exchange* a strategy of your own, a name or an object
    (`stallsim.protocols`).
    Raise `SpecError` with everything that is wrong.
    """
    own = own_parts(loader, collective, exchange)
    if own and isinstance(overrides, Mapping | None):
        overrides = {**(overrides or {}), **own}
    scenario = scenario_of(
        hardware, workload, overrides, market, nodes=nodes, gpus=gpus, placement=placement, batch=batch, global_batch=global_batch,
        precision=precision, stack=stack, seed=seed, exact=exact, plan=plan_of(epochs, hours, evaluation, checkpoints, tokens),
        prices=price_source(prices), sequence=sequence,
    )  # fmt: skip
    beside = Beside(with_failures, store, power_cap, reliability, spares)
    beside.checked(scenario.plan)
    return Result(scenario, answer(scenario, thorough=thorough), beside)


def plan(
    hardware: Name,
    workload: Name,
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | Sequence[int] = (),
    gpus: int | None = None,
    global_batch: int | None = None,
    tokens: str | None = None,
    with_failures: bool = False,
    reliability: str | None = None,
    spares: int | None = None,
    power_cap: str | None = None,
    sensitivity: bool = False,
    journal: Name | None = None,
    export: Name | None = None,
    sequence: int | None = None,
    objective: Literal["time", "cost", "energy"] = "time",
    max_memory: float | str | None = None,
    fix: Mapping[str, object] | None = None,
    allow: Sequence[str] = (),
    schedules: Sequence[object] = (),
    simulate: int = 200,
    precision: str | None = None,
    stack: str | None = None,
    market: str = "on-demand",
    prices: object = None,
    processes: int | None = 1,
) -> DataFrame:
    """Return the best layouts of *workload* on *hardware*, best first, a row for each that was simulated; options as of ``sim plan``.

    *max_memory* of each GPU is in bytes, or a text such as ``"70GiB"``, *fix* holds axes by name (``{"tp": 8}``), *schedules* are
    pipeline schedules of your own to try as well, *export* is a folder for launch files of the best. ``DataFrame.attrs`` holds the
    rest of the document: how many layouts there are, what was excluded, the gap. *processes* refine layouts side by side (None: one a
    core). Raise `SpecError` where nothing fits.
    """
    import pandas

    from sim.report.files import folder_due, write_files
    from sim.report.layouts.layout_files import export_files
    from sim.report.plan import plan_document
    from sim.study.plan.ahead import workers
    from sim.study.plan.question import PlanQuestion
    from sim.study.plan.question import plan as planned
    from sim.study.plan.search import Limits
    from sim.study.plan.sensitivity import sensitivity as turned

    if with_failures and tokens is None:
        raise SpecError("with_failures: say how long the job is with tokens")
    require_failures(with_failures, reliability, spares)
    scenario = scenario_of(
        hardware, workload, overrides, market, global_batch=global_batch, precision=precision, stack=stack, sequence=sequence,
        prices=price_source(prices),
    )  # fmt: skip
    require_whole("gpus", gpus)
    for schedule in schedules:
        schedule_name(schedule)
    fixed = {name: _axis(name, value) for name, value in (fix or {}).items()}
    limits = Limits(simulate, size_of(max_memory, "max_memory"), objective, power_cap=power_cap)
    question = PlanQuestion(scenario, counts(nodes), gpus, tokens, fixed, frozenset(allow), limits)
    with workers(processes, None, lambda text: None) as crew:
        made = planned(question, journal=None if journal is None else Path(journal), crew=crew)
        turns = turned(made, None, crew) if sensitivity and not made.tally.interrupted else []
    document = plan_document(made, turns, with_failures, reliability, spares)
    if export is not None:
        write_files(folder_due(Path(export)) or Path(export), export_files(made).files)
    table = pandas.DataFrame(document.pop("layouts"))
    table.attrs.update(document)
    return table


def _axis(name: str, value: object) -> str:
    """Return the *value* of an axis as it is typed; a schedule of the user's may be the object itself."""
    if name == "schedule":
        return str(schedule_name(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def compare(
    workload: Name,
    hardware: Sequence[Name] = (),
    *,
    where: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    nodes: int | Sequence[int] = (),
    batch: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    sort: str = "time",
    market: str = "on-demand",
    epochs: float | None = None,
    hours: float | None = None,
    tokens: str | None = None,
    evaluation: float = 0.0,
    checkpoints: bool = True,
    power_cap: str | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    processes: int | None = 1,
    prices: object = None,
) -> DataFrame:
    """Return a row for each machine, figures in columns that carry their unit, fastest (or what *sort* says) first.

    *hardware* defaults to the whole catalogue; *where* are conditions such as ``gpus=8``. Machines that cannot run the workload come
    last, with the reason in ``problem``. With *epochs*, *hours* or *tokens* (``"300B"``) machines are compared by the whole job, whose
    figures have columns. *parallel* lays the model out, as after ``--parallel``: ``{"tp": 8, "shard": "optimizer"}``.
    *processes* simulate side by side (None: one a core). Raise `SpecError` where nothing is left.
    """
    import pandas

    scenario = scenario_of(
        "", workload, overrides, market, batch=batch, global_batch=global_batch, sequence=sequence, precision=precision, stack=stack,
        plan=plan_of(epochs, hours, evaluation, checkpoints, tokens),
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches),
        prices=price_source(prices),
    )  # fmt: skip
    names = machines(several("hardware", hardware), several("where", where))
    rows = compared(scenario, names, counts(nodes), processes, power_cap=power_cap)
    document = comparison_document(workload_name(scenario), rows, sort)
    flat = [
        {key: value for key, value in row.items() if key != "whole_job" and not isinstance(value, dict)}
        | {f"{cause}_s": seconds for cause, seconds in row["stalls_s"].items()}
        | {"expected_error": (row["expected_error"] or {}).get("median")}
        | {f"whole_job_{key}": value for key, value in (row["whole_job"] or {}).items() if key in ("epochs", "time_s", "cost_usd")}
        for row in document["rows"]
    ]
    return pandas.DataFrame([*flat, *document["left_out"]])


def sweep(
    hardware: Name,
    workload: Name,
    vary: Mapping[str, object],
    *,
    sobol: int | None = None,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    batch: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    seed: int = 0,
    processes: int | None = 1,
    prices: object = None,
    power_cap: str | None = None,
) -> DataFrame:
    """Return a row for each point of the grid of *vary* (or for *sobol* points in it): its fields, then what a run says.

    *vary* has values by field, as a list or as after ``--vary``: ``{"node.nic.bandwidth": "10..400 Gbps:7", "batch": [32, 64]}``. Points
    that cannot run have the reason in ``problem``. *processes* simulate side by side (None: one a core). *power_cap* (``"500 W"``) limits
    each GPU, and may vary as well.
    Raise `SpecError` where the question is wrong.
    """
    import pandas

    scenario = scenario_of(
        hardware,
        workload,
        overrides,
        nodes=nodes,
        batch=batch,
        precision=precision,
        stack=stack,
        seed=seed,
        prices=price_source(prices),
        power_cap=power_cap,
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches),
    )
    if not isinstance(vary, Mapping):
        raise SpecError(f"vary={vary!r}: expected a mapping from fields to values, such as {{'batch': [32, 64]}}")
    varied = [f"{key}={','.join(map(str, values)) if isinstance(values, list | tuple) else values}" for key, values in vary.items()]
    return pandas.DataFrame([flat(row) for row in sweep_points(scenario, asked_points(varied, sobol, seed), row_of, processes=processes)])


def whatif(
    hardware: Name,
    workload: Name,
    *,
    overrides: Mapping[str, object] | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    placement: str | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    prices: object = None,
) -> DataFrame:
    """Return a row for each resource, best first: the step with twice and infinitely much of it, and what that is worth.

    Options are those of ``sim whatif``; *parallel* is a layout, as of `compare`. Rows of a layout have the step alone, and
    ``DataFrame.attrs`` holds the rest of the document, such as what more of all ``links`` at once brings. Raise `SpecError` with
    everything that is wrong.
    """
    import pandas

    from sim.report.layouts.layout_whatif import layout_whatif_document
    from sim.study.layout_whatif import layout_whatif

    scenario = scenario_of(
        hardware, workload, overrides, nodes=nodes, gpus=gpus, placement=placement, batch=batch, global_batch=global_batch,
        sequence=sequence, precision=precision, stack=stack, prices=price_source(prices),
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches),
    )  # fmt: skip
    document = layout_whatif_document(layout_whatif(scenario)) if has_layout(scenario) else whatif_document(ask_whatif(scenario))
    table = pandas.DataFrame([flat(row) for row in document.pop("resources")])
    table.attrs.update(document)
    return table


def recommend(
    workload: Name,
    hardware: Sequence[Name] = (),
    *,
    budget_hours: float | None = None,
    budget_usd: float | None = None,
    epochs: float | None = None,
    hours: float | None = None,
    tokens: str | None = None,
    where: Sequence[str] = (),
    nodes: int | Sequence[int] = (1, 2, 3, 4),
    overrides: Mapping[str, object] | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    parallel: Mapping[str, object] | None = None,
    micro_batches: int | None = None,
    on_demand: bool = False,
    evaluation: float = 0.0,
    checkpoints: bool = True,
    mean_lifetime: str | None = None,
    with_failures: bool = False,
    reliability: str | None = None,
    spares: int | None = None,
    power_cap: str | None = None,
    processes: int | None = 1,
    prices: object = None,
) -> DataFrame:
    """Return a row for each machine and number of *nodes* that could be rented, those within the budget first.

    One of *budget_hours* (the cheapest machine that meets it) and *budget_usd* (the fastest within it) is given; the job is one epoch
    unless *epochs*, *hours* or *tokens* say otherwise. *parallel* is a layout, as of `compare`. ``DataFrame.attrs`` holds ``best``,
    ``runner_up`` and ``notes``. Raise `SpecError` where the question is wrong.
    """
    import pandas

    from sim.documents import Renting, recommended
    from sim.study.recommend import Budget

    require_whole("spares", spares)
    for option, value in (("budget_hours", budget_hours), ("budget_usd", budget_usd)):
        if value is not None and not (isinstance(value, int | float) and 0 < value < inf):
            raise SpecError(f"{option}={value!r}: expected more than 0")
    job = plan_of(epochs, hours, evaluation, checkpoints, tokens) if tokens else plan_due(epochs, hours, evaluation, checkpoints)
    scenario = scenario_of(
        "", workload, overrides, batch=batch, global_batch=global_batch, sequence=sequence, precision=precision, stack=stack, plan=job,
        layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches), prices=price_source(prices),
    )  # fmt: skip
    budget = Budget(None if budget_hours is None else 3600.0 * budget_hours, budget_usd)
    names, conditions = several("hardware", hardware), several("where", where)
    renting = Renting(
        budget, names, conditions, counts(nodes), on_demand, mean_lifetime, with_failures, power_cap, processes, spares, reliability
    )
    document, _ = recommended(scenario, renting)
    table = pandas.DataFrame([flat(row) for row in document.pop("candidates")])
    table.attrs.update(document)
    return table


_OF_COMMAND = {
    "reliability": "level", "failure_rate": "rate", "failure_law": "law", "checkpoint": "mode", "checkpoint_interval": "interval",
    "repair": "repairs",
}  # fmt: skip
"""Options of the command `goodput` that have other names here."""


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
    gpus: int | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    market: str = "on-demand",
    trials: int = 2000,
    seed: int = 0,
    prices: object = None,
    **weeks: Any,
) -> DataFrame:
    """Return how weeks of a job go, failures and all: a row for each quantile of *trials* drawn runs.

    One of *days*, *tokens* (``"15T"``) and *epochs* says how long the job is. *weeks* are further fields of `sim.study.weeks.Weeks`:
    ``level``, ``rate``, ``mode``, ``store``, ``interval``, ``spares``, ``elastic``, ``law`` (a name, or an object of
    `stallsim.protocols.FailureLaw`). ``DataFrame.attrs`` holds the rest of the document: shares, losses, checkpoints, energy.
    Raise `SpecError` where the question is wrong.
    """
    from dataclasses import fields

    import pandas

    from sim.analysis.failure_law import BUILT_IN
    from sim.documents import weeks_document
    from sim.study.weeks import Weeks
    from sim.study.whole_job import token_count

    allowed = {field.name for field in fields(Weeks)}
    for name in weeks:
        if name in _OF_COMMAND:
            raise SpecError(f"{name}: write {_OF_COMMAND[name]}, as fields of Weeks are called")
        if name not in allowed:
            raise SpecError(f"{name}: unknown option; known are {', '.join(sorted(allowed))}")
    scenario = scenario_of(
        hardware, workload, overrides, market, nodes=nodes, gpus=gpus, batch=batch, global_batch=global_batch, precision=precision,
        stack=stack, layout=layout_of(texts_of(parallel or {}), micro_batches=micro_batches), sequence=sequence,
        prices=price_source(prices),
    )  # fmt: skip
    if not isinstance(weeks.get("law", ""), str):
        weeks["law"] = give(FAILURE_LAWS, weeks["law"], BUILT_IN)
    weeks = {name: str(value) if isinstance(value, PathLike) else value for name, value in weeks.items()}
    counted = None if tokens is None else token_count(tokens)
    drawn = Weeks(days=days, tokens=counted, epochs=epochs, trials=trials, seed=seed, **weeks)
    drawn.checked()
    document = weeks_document(scenario, drawn, changes=False)
    table = pandas.DataFrame(document.pop("distribution"))
    table.attrs.update(document)
    return table


def extract(
    target: str,
    inputs: Sequence[str],
    output: Name,
    *,
    name: str | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Model:
    """Write the layer table of the torch model that *target* (``my_file.py:build``) returns to *output*, and return it.

    *inputs* are shapes of one sample (``["3x224x224"]``). The model is traced on the meta device: no weights, no GPU. The module's code
    runs, so extract only what you trust. Raise `SpecError` where the model cannot be traced.
    """
    from sim.extract import run_extract

    given = [f"{key}={value}" for key, value in (arguments or {}).items()]
    return run_extract(str(target), several("inputs", inputs), Path(output), name, given)


__all__ = [
    "Picture", "Result", "SpecError", "compare", "extract", "goodput", "plan", "recommend", "simulate", "sweep", "whatif",
]  # fmt: skip
