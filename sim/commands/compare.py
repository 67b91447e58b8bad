"""``compare``: one workload on several machines, by time and money."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Annotated

import typer

from sim.commands.app import app
from sim.commands.options import (
    Csv,
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
    prices_due,
    takes_options,
)
from sim.study.options import CompareOptions, SizeOptions, WholeJobOptions, select_options
from sim.terminal import messages, show_table, write_result

MANY = 60
"""Number of machines that the user's conditions may select and that are all shown: as many as fit on a screen or two."""


@app.command(
    epilog="Examples:\n"
    "  python -m sim compare p3.2xlarge p3.16xlarge p4d.24xlarge resnet50 --precision amp_fp16\n"
    "  python -m sim compare vgg16 --where gpu=V100* --epochs 90 --sort cost"
)
@takes_options
def compare(
    *,
    hardware: Machines = [],
    workload: Wl,
    options: CompareOptions,
    where: WhereOption = [],
    nodes: Nodes = None,
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    price: MachinePrices = [],
    processes: Processes = None,
    every: Annotated[bool, typer.Option("--all", help="show all machines, not only the most important of many")] = False,
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Compare machines for one workload by time and money.

    Of the whole catalog, the table shows the Pareto front, the best machine of every provider, and the first others; JSON, CSV and pages
    have all machines.
    """
    from sim.documents import comparison_rows, with_inputs
    from sim.report.comparison import MOST_ROWS, comparison_document, comparison_plot, comparison_text, require_sort
    from sim.report.figures import figures_csv
    from sim.report.page.comparison import comparison_page
    from sim.study.compare import machines
    from sim.study.nearest import nearest_that_runs
    from sim.study.ranges import whole_numbers
    from sim.study.scenario import Scenario, market_of, workload_name
    from sim.study.whole_job import plan_of

    require_sort(options["sort"])
    scenario = Scenario(
        "",
        workload,
        tuple(sets),
        market=market_of(options["market"]),
        plan=plan_of(**select_options(options, WholeJobOptions)),
        layout=layout,
        prices=prices_due(prices, price),
        **select_options(options, SizeOptions),
    )
    names = machines(hardware, where)
    counts = whole_numbers(nodes, "--nodes")
    rows = comparison_rows(scenario, names, counts, processes, messages.counter, options["power_cap"])
    messages.progress("")
    note = "" if any(row.document for row in rows) else nearest_that_runs(replace(scenario, power_cap=options["power_cap"]), names)
    document = comparison_document(workload_name(scenario), rows, options["sort"], note)
    text, table = comparison_text(document), figures_csv(document["rows"])
    page = with_inputs(comparison_page, scenario, [row.hardware for row in rows if row.document])
    write_result(output, html, "compare", (document, text), page, comparison_plot, {"compare.csv": table})
    most = inf if every or hardware else MANY if where else MOST_ROWS
    show_table(document, comparison_text(document, most), table, as_json, as_csv)
    if not document["rows"]:
        raise typer.Exit(1)
