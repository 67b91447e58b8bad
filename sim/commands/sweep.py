"""``sweep``: many points of a grid, saved in a journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands.app import app
from sim.commands.options import (
    ClusterOption,
    HtmlOption,
    Hw,
    LayoutFields,
    PricesOption,
    Processes,
    Sets,
    Wl,
    check_workers,
    takes_options,
)
from sim.report.files import table_due
from sim.spec.yaml import SpecError
from sim.study.options import PointOptions, SweepOptions, select_options
from sim.terminal import messages, named_as_called

if TYPE_CHECKING:
    from sim.study.scenario import Scenario
    from sim.study.space import Point
    from sim.study.sweep import SweepRows


@app.command(
    epilog="Examples:\n"
    "  python -m sim sweep p3.8xlarge resnet50 --nodes 4 --vary node.nic.bandwidth='10..400 Gbps:7' -o nic.csv\n"
    "  python -m sim sweep p3.8xlarge resnet50 --vary 'batch=16,32,64' --nodes 1..4 -o grid.csv --cluster dask://HOST:8786"
)
@takes_options
def sweep(
    hardware: Hw,
    workload: Wl,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", callback=table_due, help="the table: FILE.csv or FILE.parquet")],
    options: SweepOptions,
    vary: Annotated[
        list[str],
        typer.Option(metavar="K=VALUES", help="any field, nodes, gpus, batch...; VALUES: 10..400 Gbps:7, 64..512, 1..64:log4 or a,b,c"),
    ] = [],
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="N|A..B[:n]|N,N",
            help="number of nodes (machines); several are one more field that varies; a range doubles: 3..5 is 3, 5, and 3..5:3 is 3, 4, 5",
        ),
    ] = None,
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    processes: Processes = None,
    cluster: ClusterOption = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file and the saved points of another sweep")] = False,
    html: HtmlOption = None,
) -> None:
    """Simulate many points and write one table; an interrupted sweep continues where it stopped.

    Each point is saved as soon as it is done, as a JSON line of FILE.journal. When all points are done, the table is written in the order
    of the points.
    """
    from sim.documents import row
    from sim.report.figures import check_table, write_table
    from sim.study.ranges import listed_numbers
    from sim.study.scenario import Scenario
    from sim.study.space import points_of
    from sim.study.sweep import sweep_rows

    check_table(output)
    if output.exists() and not force:
        raise SpecError(f"{output}: exists; --force replaces it")
    check_workers(processes, cluster)
    numbers = listed_numbers(nodes, "--nodes")
    several = [f"nodes={','.join(map(str, numbers))}"] if len(numbers) > 1 else []
    points = points_of([*several, *vary], options["sobol"], options["seed"])
    scenario = Scenario(
        hardware,
        workload,
        tuple(sets),
        nodes=numbers[0] if len(numbers) == 1 else None,
        layout=layout,
        prices=prices,
        **select_options(options, PointOptions),
    )
    journal = output.with_name(output.name + ".journal")
    with (
        _report_on_interrupt(journal, force),
        sweep_rows(scenario, points, row, journal, processes, messages.counter("points"), cluster, messages, alone=not force) as rows,
    ):
        messages.progress("")
        if output.exists() and not force:  # another process created it during this sweep
            raise SpecError(f"{output}: exists; --force replaces it")
        write_table(output, rows)
        if html is not None:
            _sweep_page(html, scenario, points[0], rows)
        failed = [each["problem"] for each in rows if each["problem"]]
        rows.forget()
    problem = f", {len(failed)} of them cannot run: {failed[0]}" if failed else ""
    messages(f"wrote {output}: {len(rows)} point{'s' * (len(rows) > 1)}{problem}")
    if html is not None:
        messages(f"wrote {html}")
    if len(failed) == len(rows):
        raise typer.Exit(1)


@contextmanager
def _report_on_interrupt(journal: Path, forced: bool) -> Iterator[None]:
    """Report where the computed points are saved if Ctrl-C ends the sweep inside the block."""
    try:
        yield
    except KeyboardInterrupt:
        messages.progress("")
        if journal.is_file():
            messages(f"the points computed so far are in {journal}; the same command{' without --force' * forced} continues from there")
        raise


def _sweep_page(html: Path, scenario: Scenario, first: Point, rows: SweepRows) -> None:
    from sim.report.page.sweep import sweep_page
    from sim.report.prices import price_rows
    from sim.report.sweep import sweep_document
    from sim.spec.whole_file import write_file
    from sim.study.descriptions import descriptions
    from sim.study.sweep import scenario_at

    read, varied = descriptions(scenario_at(scenario, first)), [key for key, _ in first]
    prices = price_rows(read.hardware[0], (scenario.market,)) if read.hardware else []
    write_file(html, named_as_called(sweep_page(sweep_document(scenario, rows, varied, len(rows), read.inputs, prices), read)))
