"""``spot``: training on machines that can be revoked."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.app import app
from sim.commands.options import (
    Folder,
    HtmlOption,
    Hw,
    JsonOption,
    LayoutFields,
    PricesOption,
    Processes,
    Sets,
    Wl,
    positive,
    takes_options,
)
from sim.spec.yaml import SpecError
from sim.study.options import BatchOptions, LifetimeOptions
from sim.terminal import print_json, show_text, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim spot p3.2xlarge resnet50 --workers 4 --epochs 90\n"
    "  python -m sim spot p4d.24xlarge resnet50 --epochs 90 --mean-lifetime 20h"
)
@takes_options
def spot(
    hardware: Hw,
    workload: Wl,
    options: BatchOptions,
    lifetime: LifetimeOptions,
    epochs: Annotated[float | None, typer.Option(help="epochs of the job")] = None,
    steps: Annotated[float | None, typer.Option(help="steps of the job; for asynchronous workers, the sum of their steps")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="number of spot machines")] = None,
    interval: Annotated[
        str, typer.Option("--checkpoint-interval", metavar="auto|none|TIME", help="work between checkpoints; auto searches for the best")
    ] = "auto",
    policy: Annotated[str | None, typer.Option(help="after a revocation: wait; shrink; replace: continue until another joins")] = None,
    trials: Annotated[int, typer.Option(min=2, help="number of simulated runs")] = 1000,
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    seed: Annotated[int, typer.Option(min=0, help="random seed of the interruptions")] = 0,
    processes: Processes = None,
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Simulate a job on spot machines with interruptions: the distribution of its time and cost, compared with on-demand machines."""
    from sim.documents import document, with_inputs
    from sim.report.figures import figures_csv
    from sim.report.page.spot import spot_page
    from sim.report.spot import spot_document, spot_plot, spot_text
    from sim.study.ranges import MOST
    from sim.study.scenario import Scenario
    from sim.study.spot import SpotRequest
    from sim.study.spot import spot as drawn

    wanted = SpotRequest(positive(epochs, "--epochs"), positive(steps, "--steps"), interval, policy, trials, **lifetime)
    if workers is not None and workers > (most := MOST["--nodes"]):
        raise SpecError(f"--workers {workers}: write {most:,} or less")
    scenario = Scenario(hardware, workload, tuple(sets), nodes=workers, seed=seed, layout=layout, prices=prices, **options)
    answer = spot_document(drawn(scenario, wanted, document, processes))
    text = spot_text(answer)
    table = figures_csv(answer["distribution"])
    write_result(output, html, "spot", (answer, text), with_inputs(spot_page, scenario), spot_plot, {"spot.csv": table})
    print_json(answer) if as_json else show_text(text)
