"""``profile``: one step with and without each resource, as Stash measures it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import Folder, HtmlOption, Hw, JsonOption, LayoutFields, NodesOption, Sets, Wl, takes_options
from sim.spec.yaml import SpecError
from sim.study.options import ProfileOptions
from sim.terminal import messages, print_json, show_text, write_result

if TYPE_CHECKING:
    from sim.study.scenario import Scenario


@app.command(
    epilog="Examples:\n"
    "  python -m sim profile p3.16xlarge resnet50 --stack apex-per-tensor\n"
    "  python -m sim profile hgx-h100 llama-3.2-1b --nodes 2 --shard parameters"
)
@takes_options
def profile(
    hardware: Hw,
    workload: Wl,
    options: ProfileOptions,
    twin: Annotated[
        str | None,
        typer.Option(
            metavar="HW",
            help="machine with half the GPUs, used twice; 'none' skips it; from the catalog by default",
            autocompletion=names.hardware,
        ),
    ] = None,
    nodes: NodesOption = None,
    layout: LayoutFields = (),
    sets: Sets = [],
    literal: Annotated[bool, typer.Option("--literal", help="percentage bases and fetch formula exactly as in upstream's code")] = False,
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Simulate the Stash profiler: runs RUN0 to RUN3 with their stalls and costs, compared with the direct attribution of stalls."""
    from sim.documents import with_inputs
    from sim.report.figures import figures_csv
    from sim.report.page.profile import profile_page
    from sim.report.stash import profile_document, profile_plot, profile_rows, profile_text
    from sim.study.profile import profile as stash_profile
    from sim.study.ranges import one_number
    from sim.study.scenario import Scenario, has_layout

    scenario = Scenario(hardware, workload, tuple(sets), nodes=one_number(nodes, "--nodes"), layout=layout, **options)
    if has_layout(scenario):
        if twin not in (None, "none"):
            raise SpecError(
                f"--twin {twin}: would place the groups of a layout differently; leave it out, and RUN1 has an infinitely fast network"
            )
        if literal:
            raise SpecError("--literal: upstream's formulas need cold and warm epochs, which layouts do not have; leave it out")
        return _of_layout(scenario, as_json, output, html)
    profiled = stash_profile(scenario, twin)
    document = profile_document(profiled, literal)
    text, table = profile_text(profiled, document), figures_csv(profile_rows(document))
    write_result(output, html, "profile", (document, text), with_inputs(profile_page, scenario), profile_plot, {"profile.csv": table})
    print_json(document) if as_json else show_text(text)


def _of_layout(scenario: Scenario, as_json: bool, output: Path | None, html: Path | None) -> None:
    from functools import partial

    from sim.report.figures import figures_csv
    from sim.report.layouts.layout_profile import layout_profile_document, layout_profile_text, profile_rows
    from sim.report.page.layout_profile import layout_profile_page
    from sim.study.layout_profile import layout_profile

    profiled = layout_profile(scenario, messages.counter("runs"))
    messages.progress("")
    document = layout_profile_document(profiled)
    text, table = layout_profile_text(document), figures_csv(profile_rows(document))
    page = partial(layout_profile_page, profiled.answer.run)
    write_result(output, html, "profile", (document, text), page, None, {"profile.csv": table})
    print_json(document) if as_json else show_text(text)
