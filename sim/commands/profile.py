"""``profile``: one step with and without each resource, the method of Stash."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import BatchOption, Folder, HtmlOption, Hw, JsonOption, NodesOption, PrecisionOption, Sets, StackOption, Wl
from sim.spec.yaml import SpecError
from sim.terminal import print_json, show_text, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim profile p3.16xlarge resnet50 --stack apex-per-tensor\n"
    "  python -m sim profile p3.8xlarge alexnet --twin none"
)
def profile(
    hardware: Hw,
    workload: Wl,
    twin: Annotated[
        str | None,
        typer.Option(
            metavar="HW",
            help="machine of half the GPUs, taken twice; 'none' leaves it out; the catalogue's by default",
            autocompletion=names.hardware,
        ),
    ] = None,
    nodes: NodesOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    stack: StackOption = None,
    sets: Sets = [],  # noqa: B006  typer copies the default
    literal: Annotated[bool, typer.Option("--literal", help="per-cent bases and fetch formula exactly as upstream codes them")] = False,
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Simulate the Stash profiler: runs RUN0 to RUN3, their stalls and costs, next to the direct attribution."""
    from sim.documents import reading
    from sim.report.figures import figures_csv
    from sim.report.page.profile import profile_page
    from sim.report.stash import profile_document, profile_plot, profile_rows, profile_text
    from sim.study.profile import profile as stash_profile
    from sim.study.ranges import one_number
    from sim.study.scenario import Scenario, has_layout

    scenario = Scenario(hardware, workload, tuple(sets), nodes=one_number(nodes, "--nodes"), batch=batch, precision=precision, stack=stack)
    if has_layout(scenario):
        raise SpecError(
            "profile follows Stash, which measures data-parallel training; of a layout 'python -m sim run' tells the stalls, "
            "and 'python -m sim whatif' what each resource costs"
        )
    profiled = stash_profile(scenario, twin)
    document = profile_document(profiled, literal)
    text, table = profile_text(profiled, document), figures_csv(profile_rows(document))
    write_result(output, html, "profile", (document, text), reading(profile_page, scenario), profile_plot, {"profile.csv": table})
    print_json(document) if as_json else show_text(text)
