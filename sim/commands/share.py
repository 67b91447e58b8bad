"""``share``: several jobs on one machine."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import Csv, Folder, HtmlOption, Hw, JsonOption, NodeCount, Sets
from sim.terminal import messages, show_table, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim share p3.16xlarge four-on-eight-gpus\n"
    "  python -m sim share p3.16xlarge four-on-eight-gpus --policy greedy --workers 32"
)
def share(
    hardware: Hw,
    jobs: Annotated[
        str, typer.Argument(metavar="JOBS", help="file with several jobs, or its name in workloads/jobs/", autocompletion=names.jobs)
    ],
    policy: Annotated[
        list[str], typer.Option(metavar="NAME", help="even, proportional or greedy, compared with even; all by default")
    ] = [],
    workers: Annotated[int | None, typer.Option(min=1, help="loader workers of a node; one per core by default")] = None,
    nodes: NodeCount = None,
    sets: Sets = [],
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Divide the data-loader workers of a node among its jobs: show what each job gains, and when it finishes."""
    from sim.documents import with_inputs
    from sim.report.figures import figures_csv
    from sim.report.page.share import share_page
    from sim.report.share import share_document, share_plot, share_rows, share_text
    from sim.study.scenario import Scenario
    from sim.study.share import POLICIES
    from sim.study.share import share as shared

    document = share_document(shared(hardware, jobs, policy or POLICIES, sets, workers, nodes, messages.counter("policies")))
    messages.progress("")
    text, table = share_text(document), figures_csv(share_rows(document))
    page = with_inputs(share_page, Scenario(hardware, jobs, tuple(sets), nodes=nodes))
    write_result(output, html, "share", (document, text), page, share_plot, {"share.csv": table})
    show_table(document, text, table, as_json, as_csv)
