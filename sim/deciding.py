"""What can be typed to decide? ``profile compare recommend spot whatif``: what to take, and what to change first. Parse, call, print."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from sim.options import (
    Batch,
    Checkpoints,
    Count,
    Csv,
    Epochs,
    Evaluation,
    Folder,
    GlobalBatch,
    Hours,
    Html,
    Hw,
    Json,
    Layout,
    Market,
    MeanLifetime,
    Nodes,
    Precision,
    Processes,
    Sets,
    Stack,
    TokenBudget,
    Where,
    WithFailures,
    Wl,
    layout_of,
)  # fmt: skip
from sim.spec.yaml import SpecError
from sim.terminal import print_json, show_table, talk, write_result

deciding = typer.Typer()


@deciding.command(epilog="Example:  python -m sim profile p3.16xlarge resnet50 --stack apex-per-tensor")
def profile(
    hardware: Hw,
    workload: Wl,
    twin: Annotated[
        str | None,
        typer.Option(metavar="HW", help="machine of half the GPUs, taken twice; 'none' leaves it out; the catalogue's by default"),
    ] = None,
    nodes: Count = None,
    batch: Batch = None,
    precision: Precision = None,
    stack: Stack = None,
    sets: Sets = [],  # noqa: B006  typer copies the default
    literal: Annotated[bool, typer.Option("--literal", help="per-cent bases and fetch formula exactly as upstream codes them")] = False,
    as_json: Json = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Simulate the Stash profiler: runs RUN0 to RUN3, their stalls and costs, next to the direct attribution."""
    from sim.documents import reading
    from sim.report.figures import figures_csv
    from sim.report.page.profile import profile_page
    from sim.report.stash import profile_document, profile_plot, profile_rows, profile_text
    from sim.study.profile import profile as stash_profile
    from sim.study.ranges import one_number
    from sim.study.scenario import Scenario

    scenario = Scenario(hardware, workload, tuple(sets), nodes=one_number(nodes, "--nodes"), batch=batch, precision=precision, stack=stack)
    found = stash_profile(scenario, twin)
    document = profile_document(found, literal)
    text, table = profile_text(found, document), figures_csv(profile_rows(document))
    write_result(output, html, "profile", (document, text), reading(profile_page, scenario), profile_plot, {"profile.csv": table})
    print_json(document) if as_json else typer.echo(text)


@deciding.command(epilog="Example:  python -m sim compare resnet50 p3.2xlarge p3.16xlarge p4d.24xlarge --precision amp_fp16")
def compare(
    workload: Wl,
    hardware: Annotated[list[str], typer.Argument(metavar="HW...", help="machines to compare; all of the catalogue by default")] = [],  # noqa: B006
    where: Where = [],  # noqa: B006
    nodes: Nodes = None,
    batch: Batch = None,
    global_batch: GlobalBatch = None,
    precision: Precision = None,
    stack: Stack = None,
    parallel: Layout = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    market: Market = "on-demand",
    epochs: Epochs = None,
    hours: Hours = None,
    evaluation: Evaluation = 0.0,
    checkpoints: Checkpoints = True,
    sort: Annotated[str, typer.Option(help="time, cost, step or name")] = "time",
    processes: Processes = None,
    as_json: Json = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Compare machines for one workload by time and money."""
    from sim.documents import document, reading
    from sim.report.comparison import comparison_document, comparison_plot, comparison_text
    from sim.report.figures import figures_csv
    from sim.report.page.comparison import comparison_page
    from sim.study.compare import compare as compared
    from sim.study.compare import machines
    from sim.study.nearest import nearest_that_runs
    from sim.study.ranges import whole_numbers
    from sim.study.scenario import Scenario, market_of
    from sim.study.whole_job import plan_of

    scenario = Scenario(
        "", workload, tuple(sets), batch=batch, global_batch=global_batch, precision=precision, stack=stack, market=market_of(market),
        plan=plan_of(epochs, hours, evaluation, checkpoints), layout=layout_of(parallel),
    )  # fmt: skip
    names = machines(hardware, where)
    counts = whole_numbers(nodes, "--nodes") if nodes is not None else []
    rows = compared(scenario, names, document, nodes=counts, processes=processes, progress=talk.counting("machines"))
    talk.progress("")
    note = "" if any(row.document for row in rows) else nearest_that_runs(scenario, names)
    found = comparison_document(workload, rows, sort, note)
    text, table = comparison_text(found), figures_csv(found["rows"])
    page = reading(comparison_page, scenario, [row.hardware for row in rows if row.document])
    write_result(output, html, "compare", (found, text), page, comparison_plot, {"compare.csv": table})
    show_table(found, text, table, as_json, as_csv)
    if not found["rows"]:
        raise typer.Exit(1)


@deciding.command(epilog="Example:  python -m sim recommend resnet50 --budget-hours 12 --epochs 90 --nodes 1..8:8")
def recommend(
    workload: Wl,
    hardware: Annotated[list[str], typer.Argument(metavar="HW...", help="machines to compare; all of the catalogue by default")] = [],  # noqa: B006
    budget_hours: Annotated[float | None, typer.Option(help="time budget: recommends the cheapest machine that meets it")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="money budget: recommends the fastest machine within it")] = None,
    epochs: Epochs = None,
    hours: Hours = None,
    tokens: TokenBudget = None,
    evaluation: Evaluation = 0.0,
    checkpoints: Checkpoints = True,
    where: Where = [],  # noqa: B006
    nodes: Nodes = "1..4:4",
    on_demand: Annotated[bool, typer.Option("--on-demand", help="consider on-demand prices only")] = False,
    mean_lifetime: MeanLifetime = None,
    with_failures: WithFailures = False,
    batch: Batch = None,
    global_batch: GlobalBatch = None,
    precision: Precision = None,
    stack: Stack = None,
    sets: Sets = [],  # noqa: B006
    processes: Processes = None,
    as_json: Json = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Recommend what to rent for a time or money budget. The job is one epoch unless --epochs or --hours is given.

    Spot machines count only where their price (`python -m sim list hardware`) and interruption data (K80, P100, V100) are known;
    --mean-lifetime stands in for the data. All candidates train at one global batch unless --batch is given.
    """
    from sim.documents import document, reading
    from sim.report.figures import figures_csv
    from sim.report.layout import layout_document
    from sim.report.page.recommendation import recommendation_page
    from sim.report.recommendation import layout_note, recommendation_document, recommendation_plot, recommendation_text
    from sim.study.compare import compare as compared
    from sim.study.compare import machines
    from sim.study.one_batch import usual_global_batch
    from sim.study.plan.machines import needs_layout, planned_rows, shared_batch
    from sim.study.ranges import whole_numbers
    from sim.study.recommend import MARKETS, Budget, require_one_budget
    from sim.study.recommend import recommend as recommended
    from sim.study.scenario import Scenario
    from sim.study.whole_job import plan_due, plan_of

    plan = plan_due(epochs, hours, evaluation, checkpoints) if tokens is None else plan_of(epochs, hours, evaluation, checkpoints, tokens)
    assert plan is not None
    budget = Budget(_positive(budget_hours, "--budget-hours", 3600.0), _positive(budget_usd, "--budget-usd"))
    require_one_budget(plan, budget)
    if batch is not None and global_batch is not None:
        raise SpecError("--batch and --global-batch: write one of the two")
    scenario = Scenario("", workload, tuple(sets), batch=batch, precision=precision, stack=stack)
    counts = whole_numbers(nodes, "--nodes") if nodes is not None else []
    names = machines(hardware, [*where, "nodes=1"] if not hardware else where)
    together = None if batch is not None else global_batch or usual_global_batch(scenario)
    progress = talk.counting("machines")
    rows = compared(scenario, names, document, nodes=counts, global_batch=together, processes=processes, progress=progress)
    laid = needs_layout(scenario, rows)
    if laid:
        together = shared_batch(replace(scenario, global_batch=together), names, counts)
        rows = planned_rows(replace(scenario, global_batch=together), names, counts, layout_document, talk.counting("machines planned"))
    talk.progress("")
    markets = MARKETS[:1] if on_demand else MARKETS
    chosen = recommended(scenario, rows, plan, budget, markets, mean_lifetime, with_failures, together)
    found = recommendation_document(workload, chosen, hardware)
    if laid and together is not None:
        found["notes"].append(layout_note(together))
    text, table = recommendation_text(found), figures_csv(found["candidates"])
    page = reading(recommendation_page, scenario, [row.hardware for row in rows if row.document])
    write_result(output, html, "recommend", (found, text), page, recommendation_plot, {"recommend.csv": table})
    print_json(found) if as_json else typer.echo(text)
    if found["best"] is None:
        raise typer.Exit(1)


@deciding.command(epilog="Example:  python -m sim spot p3.2xlarge resnet50 --workers 4 --epochs 90")
def spot(
    hardware: Hw,
    workload: Wl,
    epochs: Annotated[float | None, typer.Option(help="epochs of the job")] = None,
    steps: Annotated[float | None, typer.Option(help="steps of the job; of asynchronous workers, all their steps together")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="number of spot machines")] = None,
    interval: Annotated[
        str, typer.Option("--checkpoint-interval", metavar="auto|none|TIME", help="work between checkpoints; auto searches for the best")
    ] = "auto",
    policy: Annotated[str | None, typer.Option(help="after a revocation: wait; shrink; replace: go on until another joins")] = None,
    mean_lifetime: MeanLifetime = None,
    trials: Annotated[int, typer.Option(min=2, help="number of simulated runs")] = 1000,
    batch: Batch = None,
    precision: Precision = None,
    stack: Stack = None,
    sets: Sets = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="random seed of the interruptions")] = 0,
    processes: Processes = None,
    as_json: Json = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Simulate a job on spot machines, with interruptions: the spread of its time and cost, against on-demand."""
    from sim.documents import document, reading
    from sim.report.figures import figures_csv
    from sim.report.page.spot import spot_page
    from sim.report.spot import spot_document, spot_plot, spot_text
    from sim.study.scenario import Scenario
    from sim.study.spot import Wanted
    from sim.study.spot import spot as drawn

    wanted = Wanted(_positive(epochs, "--epochs"), _positive(steps, "--steps"), interval, policy, trials, mean_lifetime)
    scenario = Scenario(hardware, workload, tuple(sets), nodes=workers, batch=batch, precision=precision, stack=stack, seed=seed)
    found = spot_document(drawn(scenario, wanted, document, processes))
    text = spot_text(found)
    table = figures_csv(found["distribution"])
    write_result(output, html, "spot", (found, text), reading(spot_page, scenario), spot_plot, {"spot.csv": table})
    print_json(found) if as_json else typer.echo(text)


def _positive(value: float | None, option: str, factor: float = 1.0) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise SpecError(f"{option} {value:g}: write more than 0")
    return None if value is None else value * factor


@deciding.command(epilog="Example:  python -m sim whatif p3.8xlarge alexnet --nodes 2")
def whatif(
    hardware: Hw,
    workload: Wl,
    nodes: Count = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="total number of GPUs")] = None,
    placement: Annotated[str | None, typer.Option(metavar="1+2", help="GPUs on each node in turn")] = None,
    batch: Batch = None,
    global_batch: GlobalBatch = None,
    precision: Precision = None,
    stack: Stack = None,
    parallel: Layout = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    as_json: Json = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Rank upgrades: the step with each resource 2x and infinitely fast, and what an upgrade is worth."""
    from sim.documents import reading
    from sim.report.figures import figures_csv
    from sim.report.layout_whatif import layout_whatif_document, layout_whatif_text
    from sim.report.page.layout import layout_page
    from sim.report.page.whatif import whatif_page
    from sim.report.whatif import whatif_document, whatif_plot, whatif_text
    from sim.study.layout import has_layout
    from sim.study.layout_whatif import layout_whatif
    from sim.study.ranges import one_number
    from sim.study.scenario import Scenario
    from sim.study.whatif import whatif as asked

    scenario = Scenario(
        hardware,
        workload,
        tuple(sets),
        one_number(nodes, "--nodes"),
        gpus,
        placement,
        batch,
        global_batch,
        precision=precision,
        stack=stack,
        layout=layout_of(parallel),
    )
    if has_layout(scenario):
        laid = layout_whatif(scenario, talk.counting("resources"))
        talk.progress("")
        document = layout_whatif_document(laid)
        said, rows = layout_whatif_text(document), figures_csv(document["resources"])
        page = partial(layout_page, laid.answer.run)
        write_result(output, html, "whatif", (document, said), page, None, {"whatif.csv": rows})
        return show_table(document, said, rows, as_json, as_csv)
    found = whatif_document(asked(scenario, progress=talk.counting("resources")))
    talk.progress("")
    text, table = whatif_text(found), figures_csv(found["resources"])
    write_result(output, html, "whatif", (found, text), reading(whatif_page, scenario), whatif_plot, {"whatif.csv": table})
    show_table(found, text, table, as_json, as_csv)
