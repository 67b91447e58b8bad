"""How is a machine or a job measured, and what is made of the record? The commands ``profile``, ``fit``, ``lab`` and ``import-trace``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calibration.commands.app import HardwareDir, WorkloadDir, app
from sim.commands.options import JsonOption, LayoutFields, takes_options
from sim.report.files import csv_due, yaml_due
from sim.report.picture import picture_due
from sim.spec.yaml import SpecError
from sim.terminal import messages, print_json, show_text


@app.command(
    epilog="Examples:\n"
    "  python -m calibration profile -o my-machine.json\n"
    "  torchrun --nproc-per-node 8 -m calibration profile -o my-machine.json"
)
def profile(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="the record; an existing one is continued")] = Path(
        "record.json"
    ),
    only: Annotated[str | None, typer.Option(metavar="PROBE,...", help="measure only these; see --list")] = None,
    again: Annotated[bool, typer.Option("--again", help="repeat measurements that the record already has")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="fewer sizes, and less time for each")] = False,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="device to measure; default: cuda if there is a GPU")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="number of ranks that exchange gradients; default: one per GPU, or 2 on a CPU")
    ] = None,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="folder on the disk to measure; default: the record's")] = None,
    name: Annotated[str | None, typer.Option(help="name of the machine; default: derived from its hardware")] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CALLABLE", help="measure this model, named as for `extract`, instead of the built-in ones"),
    ] = None,
    inputs: Annotated[list[str], typer.Option("--input", metavar="SHAPE", help="input of --model: 3x224x224, or input_ids=384:int64")] = [],
    arguments: Annotated[list[str], typer.Option("--arg", metavar="K=V", help="argument of --model's callable")] = [],
    batch: Annotated[int, typer.Option(min=1, help="samples per rank for --model")] = 8,
    list_probes: Annotated[bool, typer.Option("--list", help="list the probes and exit")] = False,
) -> None:
    """Measure this machine in about three minutes, in one process or in each rank under torchrun. Ctrl-C keeps the results so far."""
    from calibration.measure import profile_run
    from calibration.measure.probes.probe import JobModel

    if list_probes:
        typer.echo(profile_run.probe_list())
        return
    if bool(inputs) != bool(model):
        raise SpecError("--model and --input must be used together: write --model MODULE:CALLABLE --input 3x224x224")
    job = JobModel(model, tuple(inputs), batch, tuple(arguments)) if model else None
    options = profile_run.MeasureOptions(output, only, again, quick, device, ranks, folder, name, job)
    try:
        measured = profile_run.profile(options, messages)
    except KeyboardInterrupt:
        messages(profile_run.interruption_text(output))
        raise typer.Exit(130) from None
    if measured is not None:
        typer.echo(profile_run.summary(output, measured))


@app.command(
    epilog="Examples:\n"
    "  python -m calibration fit my-machine.json -o my-machine.yaml\n"
    "  python -m calibration fit my-machine.json -o my-machine.yaml --plot residuals.png"
)
def fit(
    files: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="records of one machine, written by profile")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=yaml_due, help="the hardware file; its stack is written to FILE-stack.yaml"
        ),
    ] = Path("machine.yaml"),
    hardware: Annotated[
        str | None, typer.Option(metavar="HW", help="the machine, if known; its values are kept for everything that was not measured")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", callback=picture_due, help="also plot the distance of each point from its fit")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn records of a machine into a hardware description with 95% intervals, and list what the records do not determine."""
    from calibration.machines import fit_run
    from calibration.machines.residuals import residual_picture
    from calibration.machines.step_comparison import compare, comparison_rows, comparison_table

    records, fits, machine, step_ratios, written, left_out = fit_run.fit(files, output, hardware)
    if plot is not None:
        residual_picture(fits).save(plot)
    steps, notes = compare(records, written, step_ratios)
    if as_json:
        print_json(fit_run.fit_document(records, fits, machine) | {"steps": comparison_rows(steps)})
    else:
        show_text("\n\n".join([fit_run.fit_table(fits), *([comparison_table(steps)] if steps else [])]))
    for text in (*records.disturbed, *left_out, *notes, *(f"not measured: {text}" for text in machine.undetermined)):
        messages(text)
    using = f" --stack {written.stack}" if written.stack else ""
    messages(f"wrote {output}\nnext: python -m sim run {shlex.quote(str(output))} alexnet{using}")


@app.command(
    epilog="Examples:\n  python -m calibration lab my-plan.yaml -o my-lab.csv --limit 300\n  python -m calibration lab --layouts --score"
)
def lab(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="plan of points to measure, or with --score measured rows; default: the committed ones"),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.csv",
            callback=csv_due,
            help="measured rows; points that are already in the file are not repeated",
        ),
    ] = Path("lab.csv"),
    limit: Annotated[float | None, typer.Option(min=1, metavar="SECONDS", help="start no further point after this time")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="print the points of the plan without measuring")] = False,
    score: Annotated[bool, typer.Option("--score", help="predict measured rows and show the errors")] = False,
    layouts: Annotated[
        bool, typer.Option("--layouts", help="use the plan for FSDP2, tensor-parallel and pipeline ranks; with --score: their FILE.jsonl")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure training over networks of a specified rate and delay, with network namespaces of this machine as hosts (needs root)."""
    from calibration.lab import layout_score
    from calibration.lab import score as scoring
    from calibration.lab.plan import plan_points, read_plan
    from calibration.lab.run import run_plan

    if score and layouts:
        laid_out = layout_score.score_layouts(file or layout_score.COMMITTED_POINTS)
        return print_json(layout_score.layout_document(laid_out)) if as_json else show_text(layout_score.layout_table(laid_out))
    if score:
        scored = scoring.score(file or scoring.COMMITTED_ROWS)
        return print_json(scoring.score_document(scored)) if as_json else show_text(scoring.score_table(scored))
    plan = read_plan(file or (layout_score.PLAN if layouts else scoring.PLAN))
    if only_list:
        return typer.echo("\n".join(f"{role:10}  {point.text}" for point, role in plan_points(plan).items()))
    try:
        lines = run_plan(plan, output, messages, limit)
    except KeyboardInterrupt:
        messages(f"stopped, and removed the network; {output} has the points measured so far: repeat the command to continue")
        raise typer.Exit(130) from None
    if as_json:
        print_json({"points": lines})
    if any(line["state"] == "failed" for line in lines):
        messages("some points failed; repeat the command to retry them")
        raise typer.Exit(1)


@app.command(
    "import-trace",
    epilog="Examples:\n"
    "  python -m calibration import-trace rank*.json --record runs.csv --hardware my.yaml --workload resnet50 --batch 64\n"
    "  python -m calibration import-trace rank*.json --hardware p3.16xlarge --batch 64 --workload-out mine.yaml",
)
@takes_options
def import_trace(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PyTorch profiler traces, one per rank, or their folder")],
    record: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="append the job to these measured runs")] = None,
    workload_out: Annotated[
        Path | None,
        typer.Option("--workload-out", metavar="FILE.yaml", help="write a workload with the measured times, for `run` on other machines"),
    ] = None,
    hardware: Annotated[str, typer.Option(metavar="HW", help="machine on which it ran: a file, or a name from the catalog")] = "",
    workload: Annotated[
        str, typer.Option(metavar="WL", help="workload that it trained, or its layer table; used for the record and for replays")
    ] = "",
    stack: Annotated[str, typer.Option(help="software stack of the job; default: the workload's")] = "",
    batch: Annotated[int | None, typer.Option(min=1, help="samples per GPU and micro-batch; required if the trace lacks it")] = None,
    precision: Annotated[str, typer.Option(help="precision of the job; default: the workload's")] = "",
    layout: LayoutFields = (),
    hardware_dir: HardwareDir = None,
    workload_dir: WorkloadDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the time of a profiled job went, with the same breakdown as for a simulated job."""
    from calibration.questions import Folders
    from calibration.traces.agreement import complete_description
    from calibration.traces.import_trace import import_traces
    from calibration.traces.job_description import JobDescription
    from calibration.traces.replay import unseen_variation, write_replay
    from calibration.traces.trace_report import add_record, trace_document, trace_record, trace_table

    imported = import_traces(files)
    job = JobDescription(hardware, workload, stack, batch, precision, layout, Folders(hardware_dir, workload_dir))
    for doubt in complete_description(imported, job)[1]:
        messages(f"warning: {doubt}")
    if record is not None and imported.traced_ranks < imported.traces[0].world_size:
        raise SpecError(f"--record {record}: a record needs the traces of all {imported.traces[0].world_size} ranks")
    row = trace_record(imported, hardware=hardware, workload=workload, stack=stack, batch=batch, precision=precision)
    if workload_out is not None:
        write_replay(imported, job, workload_out)
        for text in unseen_variation(imported):
            messages(f"note: {text}")
        machine = shlex.quote(str(row["hardware"]))
        messages(f"wrote {workload_out}\nnext: python -m sim run {machine} {shlex.quote(str(workload_out))} --nodes 8")
    if record is not None:  # last, because the same trace cannot be added again
        add_record(record, row, Folders(hardware_dir, workload_dir))
        messages(f"added one row to {record}")
    print_json(trace_document(imported, row)) if as_json else show_text(trace_table(imported))
