"""``goodput``: weeks of training with failures, checkpoints, spares and energy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands.app import app
from sim.commands.options import Folder, HtmlOption, Hw, JsonOption, LayoutFields, NodeCount, PricesOption, Sets, Wl, takes_options
from sim.study.options import GoodputOptions, TrainingOptions, Weeks, select_options
from sim.terminal import messages, print_json, show_text, write_result

if TYPE_CHECKING:
    from sim.study.scenario import Scenario


@app.command(
    epilog="Examples:\n"
    "  python -m sim goodput hgx-h100 gpt2-xl --nodes 256 --batch 4 --precision amp_bf16 --days 54\n"
    "  python -m sim goodput hgx-h100 llama-3.1-8b --nodes 16 --parallel shard=parameters --tokens 1T --checkpoint tiered"
)
@takes_options
def goodput(
    hardware: Hw,
    workload: Wl,
    options: GoodputOptions,
    drawn: Weeks,
    nodes: NodeCount = None,
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    fast: Annotated[bool, typer.Option("--fast", help="skip the effects of single changes")] = False,
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Simulate weeks of training with failures: goodput, days and cost to completion, lost time, energy and CO2."""
    from sim.study.scenario import Scenario, market_of
    from sim.study.whole_job import token_count

    scenario = Scenario(
        hardware,
        workload,
        tuple(sets),
        nodes,
        market=market_of(options["market"]),
        layout=layout,
        prices=prices,
        **select_options(options, TrainingOptions),
    )
    weeks = replace(drawn, tokens=None if drawn.tokens is None else token_count(drawn.tokens))
    _show(scenario, weeks, fast, as_json, output, html)


def _show(scenario: Scenario, weeks: Weeks, fast: bool, as_json: bool, output: Path | None, html: Path | None) -> None:
    """Simulate *weeks* of *scenario*, print the results and write the requested files."""
    from sim.documents import weeks_document, with_inputs
    from sim.report.figures import figures_csv
    from sim.report.goodput import goodput_plot, goodput_text
    from sim.report.page.goodput import goodput_page
    from sim.study.weeks import check_weeks

    check_weeks(weeks)
    document = weeks_document(scenario, weeks, changes=not fast, progress=messages.counter("batches of simulated runs"))
    messages.progress("")
    text, table = goodput_text(document), figures_csv(document["distribution"])
    write_result(output, html, "goodput", (document, text), with_inputs(goodput_page, scenario), goodput_plot, {"goodput.csv": table})
    print_json(document) if as_json else show_text(text)
