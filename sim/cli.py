"""What can be typed after ``python -m sim``? Parse, call one function, print. No physics; how it speaks is `sim.terminal`'s."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim import __version__
from sim.deciding import deciding
from sim.describing import describing
from sim.lasting import lasting
from sim.options import (
    Checkpoints,
    Context,
    Csv,
    Epochs,
    Evaluation,
    Expert,
    Folder,
    GlobalBatch,
    Hours,
    Html,
    Hw,
    Json,
    Layout,
    Market,
    MicroBatches,
    Pipeline,
    Precision,
    Replicate,
    SampleTokens,
    Schedule,
    Sets,
    Shard,
    Stack,
    Tensor,
    TokenBudget,
    Trace,
    WithFailures,
    Wl,
    layout_of,
)  # fmt: skip
from sim.planning import planning
from sim.pricing import pricing
from sim.spec.yaml import SpecError
from sim.studying import studying
from sim.terminal import exit_code, json_text, print_json, show_table, talk, write_result

if TYPE_CHECKING:
    from sim.study.scenario import Scenario

app = typer.Typer(
    name="stallsim",
    help="Predict how a training job will run on a machine, and where its time goes, before any GPU is rented.",
    epilog="Example:  python -m sim run hardware/p3.16xlarge.yaml workloads/vgg16.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Where = Annotated[list[str], typer.Option("--where", metavar="COND", help="only rows that match, for example gpus=8; repeatable")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stallsim {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks; before or after the command")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="say nothing on stderr but errors; before or after the command")] = False,
) -> None:
    """Options of every command; `sim.terminal` has taken --debug and --quiet out, they stand here for --help."""


@app.command(epilog="Example:  python -m sim run p3.16xlarge vgg16 --nodes 1..16 --set node.nic.bandwidth='100 Gbps'")
def run(
    hardware: Hw,
    workload: Wl,
    nodes: Annotated[str | None, typer.Option(metavar="N|A..B", help="number of nodes (machines); a range gives a scaling table")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N|A..B", help="total number of GPUs; a range gives a scaling table")] = None,
    placement: Annotated[str | None, typer.Option(metavar="1+2", help="GPUs on each node in turn")] = None,
    batch: Annotated[str | None, typer.Option(metavar="N|max", help="samples per GPU; max: the largest batch that fits")] = None,
    global_batch: GlobalBatch = None,
    sequence: SampleTokens = None,
    precision: Precision = None,
    stack: Stack = None,
    tensor: Tensor = None,
    pipeline: Pipeline = None,
    context: Context = None,
    expert: Expert = None,
    replicate: Replicate = None,
    shard: Shard = None,
    micro_batches: MicroBatches = None,
    schedule: Schedule = None,
    parallel: Layout = [],  # noqa: B006  typer copies the default
    sets: Sets = [],  # noqa: B006
    market: Market = "on-demand",
    epochs: Epochs = None,
    hours: Hours = None,
    tokens: TokenBudget = None,
    evaluation: Evaluation = 0.0,
    checkpoints: Checkpoints = True,
    with_failures: WithFailures = False,
    seed: Annotated[int, typer.Option(help="random seed, used only with training.noise.draw: true")] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="simulate every step instead of skipping whole periods")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="skip the what-if and sensitivity analysis")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="show every resource that was waited for")] = False,
    as_json: Json = False,
    as_csv: Csv = False,
    output: Folder = None,
    trace: Trace = None,
    html: Html = None,
) -> None:
    """Simulate a training job and show where its time goes."""
    if as_json and as_csv:
        raise SpecError("--json and --csv: write one of the two")
    from sim.study.layout import has_layout
    from sim.study.ranges import whole_numbers
    from sim.study.scaling import scaling
    from sim.study.scenario import Scenario, batch_of, market_of
    from sim.study.whole_job import plan_of

    samples = batch_of(batch) if batch is not None else None
    scenario = Scenario(
        hardware, workload, tuple(sets), placement=placement, batch=samples, global_batch=global_batch, precision=precision, stack=stack,
        seed=seed, exact=exact, market=market_of(market), plan=plan_of(epochs, hours, evaluation, checkpoints, tokens),
        sequence=sequence, layout=layout_of(parallel, tensor, pipeline, context, expert, replicate, shard, micro_batches, schedule),
    )  # fmt: skip
    many_nodes = whole_numbers(nodes, "--nodes") if nodes is not None else []
    many_gpus = whole_numbers(gpus, "--gpus") if gpus is not None else []
    if has_layout(scenario):
        if with_failures:
            raise SpecError("--with-failures: for a layout use 'python -m sim goodput' with the same options")
        from sim.laying_out import show_layouts

        return show_layouts(scenario, many_nodes, many_gpus, (as_json, as_csv, verbose), output, html, trace)
    if with_failures:
        _require_weeks(scenario, len(many_nodes) > 1 or len(many_gpus) > 1)
    scenarios = scaling(scenario, many_nodes, many_gpus)
    if trace is not None:
        _write_trace(scenarios, trace)
    _show_runs(scenarios, (as_json, as_csv, verbose), output, html, not fast, with_failures)


def _require_weeks(scenario: Scenario, several: bool) -> None:
    if several:
        raise SpecError("--with-failures: write one number of nodes or GPUs")
    if scenario.plan is None:
        raise SpecError("--with-failures: say how long the job is with --epochs, --hours or --tokens")


def _show_runs(
    scenarios: Sequence[Any], shown: tuple[bool, bool, bool], output: Path | None, html: Path | None, thorough: bool, with_failures: bool
) -> None:
    as_json, as_csv, verbose = shown
    from sim.report.document import infeasible_document, run_document
    from sim.report.files import write_file
    from sim.report.rows import run_csv
    from sim.report.table import run_text, scaling_text
    from sim.study.scaling import answers

    found = answers(scenarios, thorough, talk.progress, keep_rates=output is not None or html is not None)
    talk.progress("")
    documents = [
        run_document(point.run, point.inputs, point.warnings, point.bottlenecks, point.market, point.plan)
        if point.run is not None
        else infeasible_document(point.hardware, point.workload, point.nodes, point.gpus, point.problem, point.brief)
        for point in found
    ]
    rows = [row for document in documents for row in document.get("jobs", [document])]
    runs = [point.run for point in found if point.run is not None]
    if len(scenarios) == 1:
        whole, text = documents[0], "\n\n".join(run_text(runs[0], row, number, verbose) for number, row in enumerate(rows))
        if with_failures:
            from sim.report.goodput import beside_run, goodput_text

            whole["with_failures"] = beside_run(whole, runs[0].hardware, runs[0].jobs[0].job.workload, scenarios[0].plan)
            text += "\n\n" + goodput_text(whole["with_failures"])
    else:
        whole, text = {"schema": 1, "runs": documents}, scaling_text(rows)
    if html is not None or output is not None:
        from sim.documents import reading
        from sim.report.page.run import run_page
        from sim.report.page.scaling import scaling_page

        made = run_page(runs[0], whole, found[0].bottlenecks) if len(scenarios) == 1 else reading(scaling_page, scenarios[0])(whole)
    if html is not None:
        write_file(html, made)
        talk(f"wrote {html}")
    if output is not None:
        from sim.report.plots import pictures

        drawn = pictures(runs, len(scenarios) > 1, found[0].bottlenecks)
        _write_output(
            output, {"run.json": json_text(whole), "report.txt": text + "\n", "report.html": made, "run.csv": run_csv(rows), **drawn}
        )
    if as_json:
        print_json(whole)
    else:
        typer.echo(run_csv(rows).rstrip("\n") if as_csv else text)
    if not runs:
        raise typer.Exit(1)


def _write_trace(scenarios: Sequence[Any], path: Path) -> None:
    from sim.report.trace import write_trace
    from sim.study.scenario import answer

    if len(scenarios) > 1:
        raise SpecError("--trace: a trace shows one run; write one number of nodes or GPUs")
    talk(f"wrote {write_trace(answer(scenarios[0], keep_rates=True).run, path)}")


def _write_output(folder: Path, files: dict[str, str | bytes]) -> None:
    from sim.report.files import write_files

    write_files(folder, files)
    names = list(files)
    talk(f"wrote {', '.join(str(folder / name) for name in names[:-1])} and {folder / names[-1]}")


@app.command(epilog="Example:  python -m sim collective p3.16xlarge --op all_reduce --bytes 1MiB..1GiB --nodes 2")
def collective(
    hardware: Hw,
    op: Annotated[
        str,
        typer.Option(help="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all; or parameter_server, for what hosts must carry"),
    ] = "all_reduce",
    sizes: Annotated[
        str, typer.Option("--bytes", metavar="SIZE|A..B[:n]", help="one size, or a range (doubling without n)")
    ] = "1MiB..1GiB",
    nodes: Annotated[int | None, typer.Option(min=1, help="number of nodes (machines)")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs in all")] = None,
    placement: Annotated[str | None, typer.Option(metavar="1+2", help="GPUs on each node in turn")] = None,
    compute_time: Annotated[str | None, typer.Option(metavar="TIME", help="of a step; hides a parameter_server: 100 ms")] = None,
    algo: Annotated[str | None, typer.Option(metavar="NAMES", help="as NCCL_ALGO; or (Rack)Hierarchical, HalvingDoubling")] = None,
    proto: Annotated[str | None, typer.Option(metavar="NAMES", help="as NCCL_PROTO: LL, LL128, Simple, ^LL")] = None,
    channels: Annotated[int | None, typer.Option(min=1, help="as NCCL_MAX_NCHANNELS")] = None,
    nccl: Annotated[str, typer.Option(metavar="2.10|2.30", help="version whose rules choose")] = "2.30",
    sets: Sets = [],  # noqa: B006
    as_json: Json = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Time a collective by itself, size by size, as nccl-tests does."""
    if as_json and as_csv:
        raise SpecError("--json and --csv: write one of the two")
    if op == "parameter_server":
        if gpus is not None or placement is not None:
            raise SpecError("--op parameter_server counts hosts, not GPUs; write --nodes N")
        if algo or proto or channels:
            raise SpecError("--op parameter_server has no NCCL options; leave --algo, --proto and --channels out")
        return _bound(hardware, sizes, compute_time or "100 ms", nodes, sets, (as_json, as_csv), output, html)
    from sim.report.collective import collective_csv, collective_document, collective_plot, collective_text, fabric_files
    from sim.report.page.collective import collective_page
    from sim.study.collective import collective_table, sizes_of
    from sim.study.descriptions import Descriptions
    from sim.training.collectives.plan import Tuning

    if compute_time:
        raise SpecError(f"--compute-time {compute_time}: belongs to --op parameter_server; leave it out")
    tuning = Tuning(nccl, algo, proto, channels)
    table = collective_table(hardware, op, sizes_of(sizes), nodes=nodes, gpus=gpus, placement=placement, tuning=tuning, overrides=sets)
    document, text = collective_document(table), collective_text(table)
    more: dict[str, str | bytes] = {"collective.csv": collective_csv(table), **fabric_files(table)} if output is not None else {}
    page = partial(collective_page, read=Descriptions([table.machine] if table.machine else [], []))
    write_result(output, html, "collective", (document, text), page, lambda _: collective_plot(table), more)
    show_table(document, text, collective_csv(table), as_json, as_csv)


def _bound(
    hardware: str, sizes: str, compute_time: str, nodes: int | None, sets: Sequence[str], shown: tuple[bool, bool],
    output: Path | None, html: Path | None,
) -> None:  # fmt: skip
    from sim.report.figures import figures_csv
    from sim.report.page.server_bound import bound_page
    from sim.report.server_bound import bound_document, bound_rows, bound_text
    from sim.study.collective import sizes_of
    from sim.study.descriptions import Descriptions
    from sim.study.server_bound import bound_table

    table = bound_table(hardware, sizes_of(sizes), compute_time, nodes=nodes, overrides=sets)
    document, text = bound_document(table), bound_text(table)
    rows = figures_csv(bound_rows(document))
    page = partial(bound_page, read=Descriptions([table.machine], []))
    write_result(output, html, "collective", (document, text), page, more={"collective.csv": rows})
    show_table(document, text, rows, *shown)


@app.command(epilog="Example:  python -m sim check hardware/p3.16xlarge.yaml my-model.yaml")
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="files or catalogue names; none checks the whole catalogue")] = [],  # noqa: B006
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="list every estimate")] = False,
) -> None:
    """Validate descriptions: every problem at once, each with file, line and column."""
    from sim.check import validate

    verdicts = validate(files)
    for verdict in verdicts:
        for problem in verdict.problems:
            typer.echo(problem, err=True)
        if verbose:
            for estimate in verdict.estimates:
                typer.echo(f"{verdict.file}: {estimate}")
    problems = sum(len(verdict.problems) for verdict in verdicts)
    estimates = sum(len(verdict.estimates) for verdict in verdicts)
    told = [f"{_counted(sum(bool(verdict.file) for verdict in verdicts), 'file')} {'checked' if problems else 'OK'}"]
    told += [_counted(problems, "problem")] if problems else []
    told += [f"{_counted(estimates, 'estimated value')}{'' if verbose else ' (-v lists them)'}"] if estimates else []
    typer.echo(", ".join(told))
    if problems:
        raise typer.Exit(2)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


@app.command("list", epilog="Example:  python -m sim list hardware --where provider=aws --where gpus=8")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]", help="hardware, workloads, jobs, gpus, models, datasets, stacks, links, cpus, volumes, transports"
        ),
    ] = "",
    where: Where = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Show the catalogue: hardware and workloads, or one kind of part."""
    from sim.report.listing import listing

    found = listing(kind, where)
    for problem in found.problems:
        typer.echo(problem, err=True)
    if found.empty:
        talk(found.empty)
    print_json(found.rows) if as_json else typer.echo(found.text)
    if found.empty:
        raise typer.Exit(1)


@app.command(epilog="Example:  python -m sim schema -o schemas")
def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="write one file per kind there")] = None,
) -> None:
    """Write JSON schemas of all kinds of description, for editors."""
    from sim.spec.json_schema import json_schemas, write_schemas

    if output is None:
        print_json(json_schemas())
    else:
        write_schemas(output)
        talk(f"wrote {len(json_schemas())} schemas to {output}")


@app.command(epilog="Example:  python -m sim show vgg16 --hardware p3.16xlarge")
def show(
    workloads: Annotated[list[str], typer.Argument(metavar="WL...", help="one workload: its layers; several: layers against gradients")],
    hardware: Annotated[str | None, typer.Option(metavar="HW", help="whose GPU gives times; several workloads run on all of it")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="samples per GPU")] = None,
    every: Annotated[bool, typer.Option("--layers", help="list every layer instead of blocks")] = False,
    sets: Sets = [],  # noqa: B006
    as_json: Json = False,
    output: Folder = None,
) -> None:
    """Show which layers hold a model's FLOP, parameters, activations and time."""
    from sim.report import layers
    from sim.study.show import against_gradients, chosen, layer_document

    names = chosen(workloads)
    if len(names) > 1 and hardware is None:
        raise SpecError(f"{len(names)} workloads are compared by what they wait for; write --hardware HW")
    if len(names) > 1 and hardware is not None:
        document = against_gradients(names, hardware, sets, batch)
        text, plot = layers.against_text(document), layers.against_plot
    else:
        document = layer_document(names[0], hardware, sets, batch)
        text, plot = layers.layers_text(document, every), layers.layers_plot
    print_json(document) if as_json else typer.echo(text)
    if output is not None:
        from sim.report.files import write_files

        write_files(output, {"show.json": json_text(document), "show.txt": text + "\n", **plot(document).files("show")})
        talk(f"wrote {output}/show.json, show.txt, show.png and show.svg")


app.add_typer(describing)
app.add_typer(deciding)
app.add_typer(planning)
app.add_typer(pricing)
app.add_typer(lasting)
app.add_typer(studying)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; *arguments* default to the process's own."""
    return exit_code(app, arguments)
