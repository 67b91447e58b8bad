"""``compare``: one workload on several machines, by time and money."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import (
    BatchOption,
    Checkpoints,
    Csv,
    Epochs,
    Evaluation,
    Folder,
    GlobalBatch,
    Hours,
    HtmlOption,
    JsonOption,
    LayoutFields,
    MarketOption,
    Nodes,
    PowerCap,
    PrecisionOption,
    PricesOption,
    Processes,
    SaidPrices,
    SampleTokens,
    Sets,
    StackOption,
    TokenBudget,
    WhereOption,
    Wl,
    prices_due,
    takes_layout,
)
from sim.terminal import show_table, talk, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim compare resnet50 p3.2xlarge p3.16xlarge p4d.24xlarge --precision amp_fp16\n"
    "  python -m sim compare vgg16 --where gpu=V100* --epochs 90 --sort cost"
)
@takes_layout
def compare(
    workload: Wl,
    hardware: Annotated[
        list[str],
        typer.Argument(metavar="HW...", help="machines to compare; all of the catalogue by default", autocompletion=names.hardware),
    ] = [],  # noqa: B006
    where: WhereOption = [],  # noqa: B006
    nodes: Nodes = None,
    batch: BatchOption = None,
    global_batch: GlobalBatch = None,
    sequence: SampleTokens = None,
    precision: PrecisionOption = None,
    stack: StackOption = None,
    layout: LayoutFields = (),
    sets: Sets = [],  # noqa: B006
    market: MarketOption = "on-demand",
    prices: PricesOption = "",
    price: SaidPrices = [],  # noqa: B006
    epochs: Epochs = None,
    hours: Hours = None,
    tokens: TokenBudget = None,
    evaluation: Evaluation = 0.0,
    checkpoints: Checkpoints = True,
    power_cap: PowerCap = None,
    sort: Annotated[str, typer.Option(help="time, cost, step or name")] = "time",
    processes: Processes = None,
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Compare machines for one workload by time and money."""
    from sim.documents import compared, reading
    from sim.report.comparison import comparison_document, comparison_plot, comparison_text, require_sort
    from sim.report.figures import figures_csv
    from sim.report.page.comparison import comparison_page
    from sim.study.compare import machines
    from sim.study.nearest import nearest_that_runs
    from sim.study.ranges import whole_numbers
    from sim.study.scenario import Scenario, market_of, workload_name
    from sim.study.whole_job import plan_of

    require_sort(sort)
    scenario = Scenario(
        "",
        workload,
        tuple(sets),
        batch=batch,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        stack=stack,
        market=market_of(market),
        plan=plan_of(epochs, hours, evaluation, checkpoints, tokens),
        layout=layout,
        prices=prices_due(prices, price),
    )
    names = machines(hardware, where)
    counts = whole_numbers(nodes, "--nodes") if nodes is not None else []
    rows = compared(scenario, names, counts, processes, talk.counting, power_cap)
    talk.progress("")
    note = "" if any(row.document for row in rows) else nearest_that_runs(scenario, names)
    document = comparison_document(workload_name(scenario), rows, sort, note)
    text, table = comparison_text(document), figures_csv(document["rows"])
    page = reading(comparison_page, scenario, [row.hardware for row in rows if row.document])
    write_result(output, html, "compare", (document, text), page, comparison_plot, {"compare.csv": table})
    show_table(document, text, table, as_json, as_csv)
    if not document["rows"]:
        raise typer.Exit(1)
