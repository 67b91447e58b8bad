"""``run``: one training job on one machine or a range of nodes, as text, JSON, CSV, HTML page and trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands.app import app
from sim.commands.options import Csv, Folder, HtmlOption, Hw, JsonOption, LayoutFields, PricesOption, Sets, TraceOption, Wl, takes_options
from sim.report.files import folder_due
from sim.spec.yaml import SpecError
from sim.study.options import ExtrasOptions, PlainRunOptions, SimulationOptions, WholeJobOptions, select_options
from sim.terminal import messages, show_table, write_report, wrote_trace

if TYPE_CHECKING:
    from sim.report.extras import RunExtras


@app.command(
    epilog="Examples:\n"
    "  python -m sim run p3.16xlarge vgg16 --nodes 1..16 --set node.nic.bandwidth='100 Gbps'\n"
    "  python -m sim run hgx-h100 llama-3.1-70b --nodes 8 --tp 8 --pp 4 --shard optimizer --micro-batches 16"
)
@takes_options
def run(
    hardware: Hw,
    workload: Wl,
    options: PlainRunOptions,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A..B[:n]",
            help="number of nodes (machines); a range is a scaling table and doubles: 3..5 is 3, 5, and 3..5:3 is 3, 4, 5",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N|A..B[:n]", help="total number of GPUs; a range gives a scaling table, as for --nodes")
    ] = None,
    batch: Annotated[str | None, typer.Option(metavar="N|max", help="samples per GPU; max: the largest batch that fits")] = None,
    layout: LayoutFields = (),
    sets: Sets = [],
    prices: PricesOption = "",
    fast: Annotated[bool, typer.Option("--fast", help="skip the what-if and sensitivity analysis")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="show every resource that was waited for")] = False,
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    trace: TraceOption = None,
    html: HtmlOption = None,
    chakra: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=folder_due, help="also write the step as a Chakra trace: one NAME.{rank}.et for each rank"),
    ] = None,
    comm_groups: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="communicators of a Chakra trace, as ASTRA-sim takes them; by default comm_group.json next to it"
        ),
    ] = None,
) -> None:
    """Simulate a training job, or a Chakra execution trace (run HW traces/job.et), and show where its time goes."""
    from sim.report.extras import RunExtras
    from sim.spec.foreign.chakra_files import trace_paths
    from sim.study.ranges import whole_numbers
    from sim.study.scaling import scaling
    from sim.study.scenario import Scenario, batch_of, has_layout, market_of
    from sim.study.whole_job import plan_of

    samples = batch_of(batch) if batch is not None else None
    scenario = Scenario(
        hardware,
        workload,
        tuple(sets),
        placement=options["placement"],
        batch=samples,
        market=market_of(options["market"]),
        plan=plan_of(**select_options(options, WholeJobOptions)),
        layout=layout,
        prices=prices,
        **select_options(options, SimulationOptions),
    )
    many_nodes = whole_numbers(nodes, "--nodes")
    many_gpus = whole_numbers(gpus, "--gpus")
    if trace_paths(workload) is not None:
        from sim.commands.graphs import only_of_workloads, show_graph

        of_workloads = {"--with-failures": "with_failures", "--reliability": "reliability", "--spares": "spares", "--exact": "exact"}
        only_of_workloads(scenario, {option: options.get(name) for option, name in of_workloads.items()} | {"--chakra": chakra})
        return show_graph(scaling(scenario, many_nodes, many_gpus), comm_groups, (as_json, as_csv), output, html, trace)
    if comm_groups is not None:
        raise SpecError(f"--comm-groups {comm_groups}: applies only to a Chakra trace, and {workload} is a workload; leave it out")
    extras = RunExtras(**select_options(options, ExtrasOptions))
    extras.check(scenario.plan, len(many_nodes) < 2 and len(many_gpus) < 2)
    if has_layout(scenario):
        from sim.commands.layouts import show_layouts

        return show_layouts(scenario, many_nodes, many_gpus, (as_json, as_csv, verbose), output, html, trace, chakra, extras)
    scenarios = scaling(scenario, many_nodes, many_gpus)
    if trace is not None:
        _write_trace(scenarios, trace)
    if chakra is not None:
        _write_chakra(scenarios, chakra)
    _show_runs(scenarios, (as_json, as_csv, verbose), output, html, not fast, extras)


def _show_runs(
    scenarios: Sequence[Any], formats: tuple[bool, bool, bool], output: Path | None, html: Path | None, thorough: bool, extras: RunExtras
) -> None:
    as_json, as_csv, verbose = formats
    from sim.report.document import infeasible_document, run_document
    from sim.report.rows import run_csv
    from sim.report.table import run_text, scaling_text, several_text
    from sim.study.scaling import answers

    keep_rates = output is not None or html is not None
    points = answers(scenarios, thorough, messages.counter("runs"), keep_rates, messages.counter("runs of the sensitivity analysis"))
    messages.progress("")
    documents = [
        run_document(point.run, point.inputs, point.warnings, point.bottlenecks, point.market, point.plan)
        if point.run is not None
        else infeasible_document(point.hardware, point.workload, point.nodes, point.gpus, point.problem, point.brief)
        for point in points
    ]
    rows = [row for document in documents for row in document.get("jobs", [document])]
    runs = [point.run for point in points if point.run is not None]
    if len(scenarios) == 1:
        if runs:
            documents[0] = extras.add_to(documents[0], runs[0], scenarios[0].plan)
            rows = documents[0].get("jobs", documents)
        first_document = documents[0]
        text = run_text(runs[0], rows[0], verbose=verbose) if len(rows) == 1 else several_text(runs[0], rows, verbose)
        if "with_failures" in first_document:
            from sim.report.goodput import goodput_text

            text += "\n\n" + goodput_text(first_document["with_failures"])
    else:
        first_document, text = {"schema": 1, "runs": documents}, scaling_text(rows)

    def page() -> str:
        from sim.documents import with_inputs
        from sim.report.page.run import run_page
        from sim.report.page.scaling import scaling_page

        return (
            run_page(runs[0], first_document, points[0].bottlenecks)
            if len(scenarios) == 1
            else with_inputs(scaling_page, scenarios[0])(first_document)
        )

    def plots() -> Mapping[str, str | bytes]:
        from sim.report.plots import pictures

        return pictures(runs, len(scenarios) > 1, points[0].bottlenecks)

    table = run_csv(rows)
    write_report(html, output, (first_document, text, table), page, plots)
    show_table(first_document, text, table, as_json, as_csv)
    if not runs:
        raise typer.Exit(1)


def _write_trace(scenarios: Sequence[Any], path: Path) -> None:
    from sim.report.trace.run_trace import write_trace
    from sim.study.scenario import answer

    if len(scenarios) > 1:
        raise SpecError("--trace: a trace shows one run; write one number of nodes or GPUs")
    wrote_trace(path, write_trace(answer(scenarios[0], keep_rates=True).run, path))


def _write_chakra(scenarios: Sequence[Any], folder: Path) -> None:
    from sim.report.trace.run_chakra import write_run
    from sim.study.scenario import answer_to, prepare

    if len(scenarios) > 1:
        raise SpecError("--chakra: a trace holds one run; write one number of nodes or GPUs")
    messages(f"wrote {write_run(answer_to(prepare(scenarios[0]), scenarios[0], complete=True).run, folder)}")
