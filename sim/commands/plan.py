"""``plan``: the best layout of a model on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.app import app
from sim.commands.options import (
    ClusterOption,
    Csv,
    Folder,
    HtmlOption,
    Hw,
    JsonOption,
    Nodes,
    PricesOption,
    Processes,
    Sets,
    Wl,
    check_workers,
    takes_options,
)
from sim.report.files import folder_due
from sim.spec.yaml import SpecError
from sim.study.options import PlanOptions, StepOptions, select_options
from sim.terminal import INTERRUPTED, messages, show_table, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim plan hgx-h100 llama-3.1-8b --nodes 2 --global-batch 64\n"
    "  python -m sim plan hgx-h100 llama-3.2-1b --gpus 8 --global-batch 64 --tokens 1T --sensitivity"
)
@takes_options
def plan(
    hardware: Hw,
    workload: Wl,
    options: PlanOptions,
    nodes: Nodes = None,
    fix: Annotated[list[str], typer.Option(metavar="K=V,...", help="axes to keep fixed: tp=8,pp=4,shard=optimizer; repeatable")] = [],
    allow: Annotated[
        list[str],
        typer.Option(metavar="NAME,...", help="also try fp8, zero_bubble ...; no-recompute excludes recomputation"),
    ] = [],
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="save simulated layouts here, so that a stopped plan can resume")
    ] = None,
    processes: Processes = None,
    cluster: ClusterOption = None,
    sets: Sets = [],
    prices: PricesOption = "",
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=folder_due, help="also write the best layout as launch files for other programs")
    ] = None,
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Find the best layout of a model on a cluster, and prove it: compute a bound for every layout, and simulate those that may be best.

    Ctrl-C or SIGTERM ends the search with the best layout so far.
    """
    from sim.report.extras import require_failures
    from sim.report.figures import figures_csv
    from sim.report.page.layout_plan import plan_page
    from sim.report.plan import plan_document
    from sim.report.plan_text import plan_text
    from sim.study.arguments import max_memory_of
    from sim.study.plan.ahead import workers
    from sim.study.plan.progress import progress_text
    from sim.study.plan.question import PlanQuestion
    from sim.study.plan.question import plan as search_plan
    from sim.study.plan.search import Limits
    from sim.study.plan.sensitivity import NOT_SEARCHED
    from sim.study.plan.sensitivity import sensitivity as sensitivities_of
    from sim.study.ranges import whole_numbers
    from sim.study.scenario import Scenario

    if options["with_failures"] and options["tokens"] is None:
        raise SpecError("--with-failures: set the length of the job with --tokens")
    require_failures(options["with_failures"], options["reliability"], options["spares"])
    scenario = Scenario(hardware, workload, tuple(sets), prices=prices, **select_options(options, StepOptions))
    limits = Limits(options["simulate"], max_memory_of(options["max_memory"]), options["objective"], power_cap=options["power_cap"])
    counts = whole_numbers(nodes, "--nodes")
    question = PlanQuestion(scenario, counts, options["gpus"], options["tokens"], fixed_axes(fix), frozenset(_words(allow)), limits)
    check_workers(processes, cluster)
    with workers(processes, cluster, messages) as crew:
        messages.progress("looking for a layout that fits")
        layout_plan = search_plan(
            question,
            lambda tally: messages.progress(progress_text(tally)),
            journal,
            lambda change: messages.progress(f"no layout fits; trying {change}"),
            crew,
        )
        sensitivities = (
            sensitivities_of(layout_plan, messages.counter("changes"), crew)
            if options["sensitivity"] and not layout_plan.tally.interrupted
            else []
        )
    messages.progress("")
    document = plan_document(layout_plan, sensitivities, options["with_failures"], options["reliability"], options["spares"])
    text, table = plan_text(document), figures_csv([_flat(row) for row in document["layouts"]])
    write_result(output, html, "plan", (document, text), plan_page, None, {"plan.csv": table})
    if export is not None:
        _export(layout_plan, export)
    show_table(document, text, table, as_json, as_csv)
    if layout_plan.tally.interrupted or any(turn.problem == NOT_SEARCHED for turn in sensitivities):
        raise typer.Exit(INTERRUPTED)


def _export(layout_plan: Any, folder: Path) -> None:
    from sim.report.layouts.layout_files import export_files
    from sim.spec.whole_file import write_files

    written = export_files(layout_plan)
    write_files(folder, written.files)
    messages(f"wrote {', '.join(str(folder / name) for name in written.files)}")
    for name, reason in written.left_out.items():
        messages(f"no {name}: {reason}")
    for note in written.notes:
        messages(f"note: {note}")


def _words(texts: Sequence[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def fixed_axes(texts: Sequence[str]) -> dict[str, str]:
    """Return the axes and values that ``--fix`` sets. Raise SpecError for text other than KEY=VALUE, and for two values of one key."""
    fixed: dict[str, str] = {}
    for word in _words(texts):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key or not value:
            raise SpecError(f"--fix {word}: write names and values, for example tp=8,pp=4")
        if fixed.get(key, value) != value:
            raise SpecError(f"--fix {key}={value}: contradicts {key}={fixed[key]}; write one of the two")
        fixed[key] = value
    return fixed


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in row.items() if key not in ("parallel", "seconds")}
    flat |= {f"parallel.{key}": str(value) if isinstance(value, (list, tuple)) else value for key, value in row["parallel"].items()}
    return flat | {f"seconds.{key}": value for key, value in row["seconds"].items()}
