"""``whatif``: which part of the machine to upgrade first."""

from __future__ import annotations

from functools import partial

from sim.commands.app import app
from sim.commands.options import Csv, Folder, HtmlOption, Hw, JsonOption, LayoutFields, NodesOption, PricesOption, Sets, Wl, takes_options
from sim.study.options import WhatifOptions
from sim.terminal import messages, show_table, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim whatif p3.8xlarge alexnet --nodes 2\n"
    "  python -m sim whatif p3.16xlarge bert-large-seq384 --batch 4 --html whatif.html"
)
@takes_options
def whatif(
    hardware: Hw,
    workload: Wl,
    options: WhatifOptions,
    nodes: NodesOption = None,
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Rank upgrades: the step time with each resource 2x and infinitely fast, and the value of the upgrade."""
    from sim.documents import with_inputs
    from sim.report.figures import figures_csv
    from sim.report.layouts.layout_whatif import layout_whatif_document, layout_whatif_text
    from sim.report.page.layout_whatif import layout_whatif_page
    from sim.report.page.whatif import whatif_page
    from sim.report.whatif import whatif_document, whatif_plot, whatif_text
    from sim.study.layout_whatif import layout_whatif
    from sim.study.ranges import one_number
    from sim.study.scenario import Scenario, has_layout
    from sim.study.whatif import whatif as upgrades

    scenario = Scenario(hardware, workload, tuple(sets), one_number(nodes, "--nodes"), layout=layout, prices=prices, **options)
    if has_layout(scenario):
        layout_answer = layout_whatif(scenario, messages.counter("resources"))
        messages.progress("")
        document = layout_whatif_document(layout_answer)
        layout_text, rows = layout_whatif_text(document), figures_csv(document["resources"])
        page = partial(layout_whatif_page, layout_answer.answer.run)
        write_result(output, html, "whatif", (document, layout_text), page, None, {"whatif.csv": rows})
        return show_table(document, layout_text, rows, as_json, as_csv)
    answer = whatif_document(upgrades(scenario, progress=messages.counter("resources")))
    messages.progress("")
    text, table = whatif_text(answer), figures_csv(answer["resources"])
    write_result(output, html, "whatif", (answer, text), with_inputs(whatif_page, scenario), whatif_plot, {"whatif.csv": table})
    show_table(answer, text, table, as_json, as_csv)
