"""What can be typed to study? ``sweep share diff study``: many points, many jobs, two runs, a paper. Parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.options import (
    Batch,
    Count,
    Csv,
    Folder,
    Html,
    Hw,
    Json,
    Layout,
    Precision,
    Processes,
    Sets,
    Stack,
    Wl,
    layout_of,
)  # fmt: skip
from sim.report.files import file_due
from sim.spec.yaml import SpecError
from sim.terminal import print_json, show_table, talk, write_result

if TYPE_CHECKING:
    from sim.study.scenario import Scenario
    from sim.study.space import Point
    from sim.study.sweep import Rows

studying = typer.Typer()


@studying.command(
    epilog="Examples:  python -m sim sweep p3.8xlarge resnet50 --nodes 4 --vary node.nic.bandwidth='10..400 Gbps:7' -o nic.csv"
    "     the same on many machines: ... --cluster dask://HOST:8786"
)
def sweep(
    hardware: Hw,
    workload: Wl,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", callback=file_due, help="the table: FILE.csv or FILE.parquet")],
    vary: Annotated[
        list[str],
        typer.Option(metavar="K=VALUES", help="10..400 Gbps:7, 64..512, 1..64:log4 or a,b,c; of any field, nodes, gpus, batch..."),
    ] = [],  # noqa: B006
    sobol: Annotated[int | None, typer.Option(metavar="N", help="N points of a Sobol sequence instead of the whole grid")] = None,
    nodes: Count = None,
    batch: Batch = None,
    precision: Precision = None,
    stack: Stack = None,
    parallel: Layout = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="random seed of the Sobol sequence and of every run")] = 0,
    processes: Processes = None,
    cluster: Annotated[str | None, typer.Option(metavar="dask://HOST:PORT", help="compute on the workers of this dask scheduler")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file, and what another sweep to it kept")] = False,
    html: Html = None,
) -> None:
    """Run many points and write one table; a sweep that was stopped goes on where it was.

    Each point is kept as it comes, as a JSON line of FILE.journal; the table is made of it when all are there, in the order of the points.
    """
    from sim.documents import row
    from sim.report.figures import check_table, write_table
    from sim.study.ranges import one_number
    from sim.study.scenario import Scenario
    from sim.study.space import asked_points
    from sim.study.sweep import swept

    check_table(output)
    if output.exists() and not force:
        raise SpecError(f"{output}: exists; --force replaces it")
    if cluster is not None and processes is not None:
        raise SpecError("--jobs and --cluster: write one of the two; how many workers a cluster has is decided there")
    points = asked_points(vary, sobol, seed)
    scenario = Scenario(
        hardware, workload, tuple(sets), nodes=one_number(nodes, "--nodes"), batch=batch, precision=precision, stack=stack, seed=seed,
        layout=layout_of(parallel),
    )  # fmt: skip
    journal = output.with_name(output.name + ".journal")
    progress = talk.counting("points")
    with swept(
        scenario, points, row, journal, processes, lambda done: progress(done.points, done.of), cluster, talk, alone=not force
    ) as rows:
        talk.progress("")
        if output.exists() and not force:  # made while this sweep ran
            raise SpecError(f"{output}: exists; --force replaces it")
        write_table(output, rows)
        if html is not None:
            _sweep_page(html, scenario, points[0], rows)
        failed = [found["problem"] for found in rows if found["problem"]]
        rows.forget()
    problem = f", {len(failed)} of them cannot run: {failed[0]}" if failed else ""
    talk(f"wrote {output}: {len(rows)} point{'s' * (len(rows) > 1)}{problem}")
    if html is not None:
        talk(f"wrote {html}")
    if len(failed) == len(rows):
        raise typer.Exit(1)


def _sweep_page(html: Path, scenario: Scenario, first: Point, rows: Rows) -> None:
    from sim.report.files import write_file
    from sim.report.page.sweep import sweep_page
    from sim.report.sweep import sweep_document
    from sim.study.descriptions import descriptions
    from sim.study.sweep import at

    read, varied = descriptions(at(scenario, first)), [key for key, _ in first]
    write_file(html, sweep_page(sweep_document(scenario, rows, varied, len(rows), read.inputs), read))


@studying.command(epilog="Example:  python -m sim share p3.16xlarge four-on-eight-gpus --policy greedy")
def share(
    hardware: Hw,
    jobs: Annotated[str, typer.Argument(metavar="JOBS", help="a file of several jobs, or its name in workloads/jobs/")],
    policy: Annotated[list[str], typer.Option(help="even, proportional or greedy, beside even; all without any")] = [],  # noqa: B006
    workers: Annotated[int | None, typer.Option(min=1, help="loader workers of a node; as many as it has cores by default")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="number of nodes (machines)")] = None,
    sets: Sets = [],  # noqa: B006
    as_json: Json = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Divide the loader workers of nodes among jobs that come and go: what each gains, and who is done when."""
    from sim.documents import reading
    from sim.report.figures import figures_csv
    from sim.report.page.share import share_page
    from sim.report.share import share_document, share_plot, share_rows, share_text
    from sim.study.scenario import Scenario
    from sim.study.share import POLICIES
    from sim.study.share import share as shared

    document = share_document(shared(hardware, jobs, policy or POLICIES, sets, workers, nodes))
    text, table = share_text(document), figures_csv(share_rows(document))
    page = reading(share_page, Scenario(hardware, jobs, tuple(sets), nodes=nodes))
    write_result(output, html, "share", (document, text), page, share_plot, {"share.csv": table})
    show_table(document, text, table, as_json, as_csv)


@studying.command(epilog="Example:  python -m sim diff before.json after.json")
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="document of a run (A.json), or the folder that `run -o` wrote")],
    after: Annotated[Path, typer.Argument(metavar="B", help="of another run")],
    as_json: Json = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Say what changed between two runs, and by which cause."""
    from sim.report.difference import difference, difference_text, read_document
    from sim.report.page.difference import difference_page

    old, new = read_document(before), read_document(after)
    found = difference(old, new)
    text = difference_text(found, old, new)
    write_result(output, html, "diff", (found, text), lambda whole: difference_page(whole, old, new))
    print_json(found) if as_json else typer.echo(text)


study = typer.Typer(help="Regenerate a published study in simulation.", no_args_is_help=True)
studying.add_typer(study, name="study")


@study.callback()
def _study() -> None:
    """Regenerate a published study in simulation."""


@study.command(epilog="Example:  python -m sim study stash2022 -o stash2022")
def stash2022(processes: Processes = None, as_json: Json = False, output: Folder = None, html: Html = None) -> None:
    """Characterise Amazon's P2 and P3 instances as Stash (arXiv 2208.14344) did: which published findings reappear."""
    from sim.report.figures import figures_csv
    from sim.report.page.stash2022 import study_page
    from sim.report.stash2022 import cost_rows, study_document, study_text
    from sim.report.stash2022_plots import study_plots
    from sim.study.stash2022 import read_for
    from sim.study.stash2022 import stash2022 as studied

    found = studied(processes, talk.counting("cases"))
    talk.progress("")
    document, text = study_document(found), study_text(found)
    tables = {"stalls.csv": document["rows"], "layers.csv": document["micro"], "costs.csv": cost_rows(found)}
    more = {name: figures_csv(rows) for name, rows in tables.items()} | study_plots(found) if output is not None else {}
    write_result(output, html, "stash2022", (document, text), lambda whole: study_page(whole, read_for(found)), more=more)
    print_json(document) if as_json else typer.echo(text)
