"""``goodput``: weeks of training with failures, checkpoints, spares and energy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import (
    BatchOption,
    Folder,
    GlobalBatch,
    HtmlOption,
    Hw,
    JsonOption,
    LayoutFields,
    MarketOption,
    PowerCap,
    PrecisionOption,
    PricesOption,
    SampleTokens,
    Sets,
    StackOption,
    Wl,
    takes_layout,
)
from sim.terminal import print_json, show_text, talk, write_result

if TYPE_CHECKING:
    from sim.study.scenario import Scenario
    from sim.study.weeks import Weeks


@app.command(
    epilog="Examples:\n"
    "  python -m sim goodput hgx-h100 gpt2-xl --nodes 256 --batch 4 --precision amp_bf16 --days 54\n"
    "  python -m sim goodput hgx-h100 llama-3.1-8b --nodes 16 --parallel shard=parameters --tokens 1T --checkpoint tiered"
)
@takes_layout
def goodput(
    hardware: Hw,
    workload: Wl,
    days: Annotated[float | None, typer.Option(help="days that the job runs: shows how much of them counts")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="N", help="tokens of the job, such as 15T: shows time and cost")] = None,
    epochs: Annotated[float | None, typer.Option(help="epochs of the job: shows time and cost")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="number of nodes (machines)")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="total number of GPUs")] = None,
    batch: BatchOption = None,
    global_batch: GlobalBatch = None,
    precision: PrecisionOption = None,
    stack: StackOption = None,
    layout: LayoutFields = (),
    sequence: SampleTokens = None,
    sets: Sets = [],  # noqa: B006
    reliability: Annotated[str, typer.Option(metavar="low|middle|high|FILE", help="how often the fleet fails")] = "middle",
    rate: Annotated[str | None, typer.Option("--failure-rate", metavar="RATE", help="failures of 8 GPUs, such as '0.0038 /d'")] = None,
    law: Annotated[
        str,
        typer.Option(
            "--failure-law",
            metavar="exponential|weibull:SHAPE|NAME",
            help="how times between failures scatter, or a law of your own",
            autocompletion=names.of_words("exponential", "weibull:0.7"),
        ),
    ] = "exponential",
    mode: Annotated[str, typer.Option("--checkpoint", metavar="sync|async|tiered", help="how checkpoints are written")] = "async",
    store: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE|disk", help="where checkpoints go: hardware/parts/stores, or each node's disk", autocompletion=names.stores
        ),
    ] = "object-store",
    interval: Annotated[
        str, typer.Option("--checkpoint-interval", metavar="auto|TIME", help="work between checkpoints; auto takes the best")
    ] = "auto",
    spares: Annotated[int | None, typer.Option(min=0, help="warm spare nodes; 5% of the nodes by default")] = None,
    repair: Annotated[bool, typer.Option(help="whether failed nodes come back")] = True,
    elastic: Annotated[bool, typer.Option("--elastic", help="go on with fewer replicas where no spare is ready")] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="warm standbys: processes restart where they are")] = False,
    new_fleet: Annotated[bool, typer.Option("--new-fleet", help="the fleet is new, and some GPUs fail early")] = False,
    mean_lifetime: Annotated[
        str | None, typer.Option("--mean-lifetime", metavar="TIME", help="spot machines, revoked at random after this time on average")
    ] = None,
    market: MarketOption = "on-demand",
    prices: PricesOption = "",
    region: Annotated[
        str | None, typer.Option(help="region of the electricity: us-east-1, europe-north1, FRA; the price's by default")
    ] = None,
    power_cap: PowerCap = None,
    trials: Annotated[int, typer.Option(min=2, help="number of simulated runs")] = 2000,
    fast: Annotated[bool, typer.Option("--fast", help="skip what other set-ups would give")] = False,
    seed: Annotated[int, typer.Option(min=0, help="random seed of the failures")] = 0,
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Simulate weeks of training with failures: goodput, days and cost to the end, where time is lost, energy and CO2."""
    from sim.study.scenario import Scenario, market_of
    from sim.study.weeks import Weeks
    from sim.study.whole_job import token_count

    scenario = Scenario(
        hardware,
        workload,
        tuple(sets),
        nodes,
        gpus,
        batch=batch,
        global_batch=global_batch,
        precision=precision,
        stack=stack,
        market=market_of(market),
        sequence=sequence,
        layout=layout,
        prices=prices,
    )
    weeks = Weeks(
        days,
        token_count(tokens) if tokens is not None else None,
        epochs,
        reliability,
        rate,
        mode,
        store,
        interval,
        spares,
        repair,
        elastic,
        in_place,
        new_fleet,
        mean_lifetime,
        trials,
        region,
        seed,
        law,
        power_cap,
    )
    _show(scenario, weeks, fast, as_json, output, html)


def _show(scenario: Scenario, weeks: Weeks, fast: bool, as_json: bool, output: Path | None, html: Path | None) -> None:
    """Draw *weeks* of *scenario*, print them and write what is asked for."""
    from sim.documents import reading, weeks_document
    from sim.report.figures import figures_csv
    from sim.report.goodput import goodput_plot, goodput_text
    from sim.report.page.goodput import goodput_page

    weeks.checked()
    document = weeks_document(scenario, weeks, changes=not fast, progress=talk.counting("parts of the draws"))
    talk.progress("")
    text, table = goodput_text(document), figures_csv(document["distribution"])
    write_result(output, html, "goodput", (document, text), reading(goodput_page, scenario), goodput_plot, {"goodput.csv": table})
    print_json(document) if as_json else show_text(text)
