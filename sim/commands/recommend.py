"""``recommend``: which machine to rent for a budget of hours or money."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sim.commands.app import app
from sim.commands.options import (
    ClusterOption,
    Folder,
    HtmlOption,
    JsonOption,
    LayoutFields,
    MachinePrices,
    Machines,
    Nodes,
    PricesOption,
    Processes,
    Sets,
    WhereOption,
    Wl,
    check_workers,
    positive,
    prices_due,
    takes_options,
)
from sim.study.options import RecommendOptions, RentingOptions, SizeOptions, WholeJobOptions, select_options
from sim.terminal import messages, print_json, show_text, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim recommend resnet50 --where gpu=A10G --budget-hours 24 --epochs 90\n"
    "  python -m sim recommend p3.8xlarge p3.16xlarge resnet50 --budget-usd 100 --epochs 90"
)
@takes_options
def recommend(
    *,
    hardware: Machines = [],
    workload: Wl,
    options: RecommendOptions,
    where: WhereOption = [],
    nodes: Nodes = "1..4:4",
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    price: MachinePrices = [],
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="save each machine's figures here, so that a stopped command can resume")
    ] = None,
    processes: Processes = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Recommend what to rent for a time or money budget. The job is one epoch unless --epochs, --hours or --tokens is given.

    Spot machines are candidates only if their spot price (`list hardware`) and interruption data (K80, P100, V100) are available;
    --mean-lifetime replaces these data. All candidates train with the same global batch unless --batch or --micro-batches is given.
    """
    from sim.documents import RentalOptions, recommendation, with_inputs
    from sim.report.figures import figures_csv
    from sim.report.page.recommendation import recommendation_page
    from sim.report.recommendation import recommendation_plot, recommendation_text
    from sim.study.ranges import whole_numbers
    from sim.study.recommend import Budget
    from sim.study.scenario import Scenario
    from sim.study.whole_job import plan_due

    budget = Budget(positive(options["budget_hours"], "--budget-hours", 3600.0), positive(options["budget_usd"], "--budget-usd"))
    plan = plan_due(**select_options(options, WholeJobOptions))
    scenario = Scenario(
        "", workload, tuple(sets), plan=plan, layout=layout, prices=prices_due(prices, price), **select_options(options, SizeOptions)
    )
    counts = whole_numbers(nodes, "--nodes")
    check_workers(processes, cluster)
    renting = RentalOptions(
        budget,
        hardware,
        where,
        counts,
        processes=processes,
        journal=journal,
        cluster=cluster,
        notice=messages,
        searching=messages.progress,
        **select_options(options, RentingOptions),
    )
    document, able = recommendation(scenario, renting, messages.counter)
    messages.progress("")
    text, table = recommendation_text(document), figures_csv(document["candidates"])
    page = with_inputs(recommendation_page, replace(scenario, plan=None, global_batch=None), able)
    write_result(output, html, "recommend", (document, text), page, recommendation_plot, {"recommend.csv": table})
    print_json(document) if as_json else show_text(text)
    if document["best"] is None:
        raise typer.Exit(1)
