"""Which commands does ``python -m calibration`` have? Each parses its options, calls one function and prints the result. No physics here.

Data goes to stdout, messages to stderr. Exit codes: 0 ok; 1 ran, but a condition failed; 2 wrong usage or bad input; 130 interrupted.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sim import __version__
from sim.commands.help import CommandLine
from sim.report.files import csv_due, folder_due, yaml_due
from sim.report.picture import picture_due
from sim.spec.yaml import SpecError
from sim.terminal import exit_code, messages, show_text

app = CommandLine(
    {
        "Measure": "profile lab fit import-trace",
        "Check predictions": "validate blind records collectives kernels servers longrun energy",
    },
    name="stallsim-calibrate",
    help="Measure machines, fit the simulator's parameters, and check its predictions against measurements.",
    epilog="Examples:\n"
    "  python -m calibration profile -o my-machine.json\n"
    "  python -m calibration validate my-runs.csv --hardware-dir my-machines",
)

Json = Annotated[bool, typer.Option("--json", help="print one JSON document, and nothing else, on stdout")]
HardwareDir = Annotated[
    Path | None,
    typer.Option("--hardware-dir", metavar="DIR", exists=True, file_okay=False, help="folder of your own hardware files, searched first"),
]
WorkloadDir = Annotated[
    Path | None,
    typer.Option("--workload-dir", metavar="DIR", exists=True, file_okay=False, help="folder of your own workloads, models and stacks"),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stallsim-calibrate {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="print only errors on stderr")] = False,
) -> None:
    """Handle the options that precede the command."""
    messages.quiet = messages.quiet or quiet


@app.command(epilog="Examples:\n  python -m calibration collectives\n  python -m calibration collectives my-collectives.csv --json")
def collectives(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.csv]", help="measured collectives; default: the committed records")] = None,
    write: Annotated[bool, typer.Option("--write", help="write the errors where `sim collective` and the tests read them")] = False,
    as_json: Json = False,
) -> None:
    """Predict measured collectives, each system with constants fitted without it, and show the errors."""
    from calibration.collectives.records import read_collectives
    from calibration.collectives.scores import apart, error_rows, error_text, publish, score_all

    if write and file:
        raise SpecError(f"--write {file}: writes only the errors of the committed records; leave the file out")
    rows = publish() if write else error_rows(score_all(apart(read_collectives(file) if file else None), messages.counting("systems")))
    messages.progress("")
    print_json({"schema": 1, "rows": rows}) if as_json else show_text(error_text(rows))


@app.command(epilog="Examples:\n  python -m calibration kernels --left-out\n  python -m calibration kernels --refit")
def kernels(
    left_out: Annotated[
        bool, typer.Option("--left-out", help="also score each GPU with constants fitted to the others (takes minutes)")
    ] = False,
    refit: Annotated[bool, typer.Option("--refit", help="refit the constants of each GPU and kernel type, and show them")] = False,
    as_json: Json = False,
) -> None:
    """Predict published times of single kernels, and show the errors by GPU and kind of kernel."""
    from calibration.kernels import records as kernel_records
    from calibration.kernels import report

    rows = kernel_records.read()
    lines = report.refitted(rows) if refit else report.scored(rows, left_out)
    shown = report.refitted_text if refit else report.text
    print_json({"schema": 1, "rows": lines}) if as_json else show_text(shown(lines))


@app.command(
    epilog="Examples:\n"
    "  python -m calibration blind hgx-h200 -o predicted.csv\n"
    "  python -m calibration blind predicted.csv --measure -o measured.csv"
)
def blind(
    what: Annotated[str, typer.Argument(metavar="HW|FILE.csv", help="machine to predict, or table of predictions to measure or score")],
    do_measure: Annotated[bool, typer.Option("--measure", help="measure the cases of the table on this machine's GPU")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.csv", callback=csv_due, help="file for the table")] = None,
    as_json: Json = False,
) -> None:
    """Predict step times, memory, power and kernels of a GPU before it is measured; measure them; show the errors."""
    from calibration.blind import rounds
    from calibration.blind.table import read_table, scores, scores_text

    table = what.endswith(".csv")
    if output is None and (do_measure or not table):
        raise SpecError("-o is missing: name the output file, such as -o predicted.csv")
    if do_measure and not table:
        raise SpecError(f"--measure {what}: expected the table written by 'python -m calibration blind {what} -o predicted.csv'")
    if not table or do_measure:
        assert output is not None
        counting = messages.counting("questions")
        count = rounds.measure(Path(what), output, counting) if do_measure else rounds.predict(what, output, counting)
        messages.progress("")
        messages(f"{output}: {count} cases {'measured' if do_measure else 'predicted'}")
        return
    scored = scores(read_table(Path(what)))
    print_json({"schema": 1, "rows": [one._asdict() for one in scored]}) if as_json else show_text(scores_text(scored))


@app.command(epilog="Examples:\n  python -m calibration longrun\n  python -m calibration longrun --json")
def longrun(as_json: Json = False) -> None:
    """Predict published failure counts, causes and effective shares of long runs from data of other fleets, and show the errors."""
    from calibration.longrun import longrun_document, longrun_text

    document = longrun_document()
    print_json(document) if as_json else show_text(longrun_text(document))


@app.command(epilog="Examples:\n  python -m calibration energy\n  python -m calibration energy --json")
def energy(
    steps: Annotated[bool, typer.Option("--steps", help="also predict the power of an H100 in 39 training steps (takes a minute)")] = False,
    as_json: Json = False,
) -> None:
    """Predict the measured power of nodes and GPUs and the slowdown under power limits, and show the errors."""
    from calibration.blind.power import score_steps
    from calibration.energy import energy_document, energy_text

    document = energy_document(score_steps() if steps else ())
    print_json(document) if as_json else show_text(energy_text(document))


@app.command(epilog="Examples:\n  python -m calibration records my-runs.csv\n  python -m calibration records my-runs.csv --json")
def records(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="measured runs, one per row")],
    as_json: Json = False,
) -> None:
    """Check a file of measured runs, and count its rows by machine, workload and role."""
    from collections import Counter

    from calibration.run_records import read_table, require_valid

    file_read = read_table(file)
    for note in file_read.notes:
        messages(note)
    require_valid(file_read)
    counts = Counter((record.hardware, record.workload, record.role) for record in file_read.records)
    rows = [{"hardware": key[0], "workload": key[1], "role": key[2], "rows": count} for key, count in sorted(counts.items())]
    if as_json:
        print_json({"rows": rows})
    else:
        typer.echo("\n".join(f"{row['hardware']:24} {row['workload']:24} {row['role']:12} {row['rows']:6}" for row in rows))


@app.command(
    epilog="Examples:\n"
    "  python -m calibration validate my-runs.csv --hardware-dir my-machines --fail-if 'overall.calibrated.median>0.1'\n"
    "  python -m calibration validate -o validated"
)
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="[FILE.csv]", help="measured runs; the committed records by default")] = [],  # noqa: B006
    hardware_dir: HardwareDir = None,
    workload_dir: WorkloadDir = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=0, help="number of processes; 0: one per core")] = 0,
    memory: Annotated[
        Path | None,
        typer.Option("--memory", metavar="FAILED.csv", help="transformer runs that ran out of memory, to test whether this is predicted"),
    ] = None,
    no_leave_out: Annotated[bool, typer.Option("--no-leave-out", help="also use constants fitted to the source of FILE")] = False,
    by: Annotated[
        str, typer.Option(metavar="KEY,...", help="also show errors, signed and absolute, by workload, nodes, gpus, stack or precision")
    ] = "",
    left_out: Annotated[
        str,
        typer.Option(
            "--left-out",
            metavar="KIND,...",
            help="also score rows without constants based on their source (source), or calibrated only on up to two nodes (nodes) or on "
            "the other half of the batches (large-batches, small-batches)",
        ),
    ] = "",
    predictor: Annotated[
        str,
        typer.Option(
            metavar="both|closed-form|simulator",
            help="for transformer runs: fast formulas, a simulation of each step, or the geometric mean of the two",
        ),
    ] = "both",
    fail_if: Annotated[
        list[str],
        typer.Option("--fail-if", metavar="COND", help="exit with code 1 if this holds, for example 'overall.calibrated.median>0.1'"),
    ] = [],  # noqa: B006
    as_json: Json = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", callback=folder_due, help="also write JSON, table, CSV and plot to this folder"),
    ] = None,
) -> None:
    """Calibrate on the measured runs whose role allows it, predict the others, and show the errors."""
    from calibration.questions import Folders
    from calibration.run_records import COMMITTED
    from calibration.validate.carry_over import carried_over, kinds_of
    from calibration.validate.condition import read_condition
    from calibration.validate.groups import keys_of
    from calibration.validate.validation import validate as validation
    from calibration.validate.validation_report import explained, named_files, validation_document, validation_table

    conditions = [read_condition(text) for text in fail_if]
    keys, kinds = keys_of(by), kinds_of(left_out)
    if _are_transformer_tables(files, memory, no_leave_out):
        if keys or kinds:
            raise SpecError(
                "--by and --left-out are only for data-parallel runs; transformer runs are always grouped and scored without their source"
            )
        _validate_llm(files, memory, not no_leave_out, predictor, jobs, conditions, as_json, output)
        return
    folders = Folders(hardware_dir, workload_dir)
    validated = validation(files or [COMMITTED], folders, jobs, messages, messages.counting("clusters"))
    messages.progress("")
    for note in validated.notes:
        messages(note)
    validated = carried_over(validated, folders, kinds, jobs, messages)
    document = validation_document(validated, keys)
    text = validation_table(validated, keys) + explained(validated)
    _conclude(document, text, conditions, partial(named_files, validated, keys), output, as_json)


def _are_transformer_tables(files: Sequence[Path], memory: Path | None, no_leave_out: bool) -> bool:
    """Return whether *files* are tables of transformer runs. Raise SpecError if only some are, or if an option requires such tables."""
    from calibration.llm.table import is_llm_table

    tables = [is_llm_table(path) for path in files]
    if any(tables) and not all(tables):
        raise SpecError(
            f"{files[tables.index(False)]}: is not a table of transformer runs, but other files are; validate each kind separately"
        )
    if not any(tables) and (memory or no_leave_out):
        raise SpecError("--memory and --no-leave-out are only for tables of transformer runs; pass such a table as FILE.csv")
    return any(tables)


def _validate_llm(
    files: Sequence[Path],
    memory: Path | None,
    leave_out: bool,
    predictor: str,
    jobs: int,
    conditions: Sequence[Any],
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict the transformer runs in *files* and show the errors."""
    from calibration.llm.validate import llm_document, llm_table, named_files, predictor_named, validate_tables
    from sim.study.pool import process_count

    validated = validate_tables(
        files, memory, leave_out, predictor_named(predictor), messages.counting("runs"), process_count(jobs or None)
    )
    messages.progress("")
    document = llm_document(validated)
    _conclude(document, llm_table(validated), conditions, partial(named_files, validated), output, as_json)


def _conclude(
    document: dict[str, Any],
    text: str,
    conditions: Sequence[Any],
    files: Callable[[str], Mapping[str, str | bytes]],
    output: Path | None,
    as_json: bool,
) -> None:
    """Print *document* or its *text*, write the *files* built from its JSON, and exit with 1 if one of the *conditions* holds."""
    from sim.spec.whole_file import write_files

    failed = [condition.text for condition in conditions if condition.holds(document)]
    if output is not None:
        contents = files(json.dumps(document, indent=2) + "\n")
        write_files(output, contents)
        *names, last = contents
        messages(f"wrote {output}/{', '.join(names)} and {last}")
    print_json(document) if as_json else show_text(text)
    for broken in failed:
        messages(f"failed: {broken}")
    if failed:
        raise typer.Exit(1)


@app.command(epilog="Examples:\n  python -m calibration servers\n  python -m calibration servers calibration/records/cmdare.csv --json")
def servers(
    files: Annotated[list[Path], typer.Argument(metavar="[FILE.csv]", help="measured runs; default: those of CM-DARE")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Fit the cost of parameter servers per update and per byte, and show the errors of predicted rows."""
    from calibration.clusters.servers import MEASURED, fit_servers, server_document, server_table

    fitted = fit_servers(files or [MEASURED])
    print_json(server_document(fitted)) if as_json else show_text(server_table(fitted))


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
        typer.Option(metavar="MODULE:CALLABLE", help="measure this model, named as for 'sim extract', instead of the built-in ones"),
    ] = None,
    inputs: Annotated[list[str], typer.Option("--input", metavar="SHAPE", help="input of --model: 3x224x224, or input_ids=384:int64")] = [],  # noqa: B006
    arguments: Annotated[list[str], typer.Option("--arg", metavar="K=V", help="argument of --model's callable")] = [],  # noqa: B006
    batch: Annotated[int, typer.Option(min=1, help="samples per rank for --model")] = 8,
    list_probes: Annotated[bool, typer.Option("--list", help="list the probes and exit")] = False,
) -> None:
    """Measure this machine in about three minutes, in one process or in each rank under torchrun. Ctrl-C keeps the results so far."""
    from calibration.measure import profile_run
    from calibration.measure.probes.probe import JobModel

    if list_probes:
        typer.echo(profile_run.listing())
        return
    if bool(inputs) != bool(model):
        raise SpecError("--model and --input must be used together: write --model MODULE:CALLABLE --input 3x224x224")
    job = JobModel(model, tuple(inputs), batch, tuple(arguments)) if model else None
    wishes = profile_run.Wishes(output, only, again, quick, device, ranks, folder, name, job)
    try:
        measured = profile_run.profile(wishes, messages)
    except KeyboardInterrupt:
        messages(profile_run.kept(output))
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
    as_json: Json = False,
) -> None:
    """Turn records of a machine into a hardware description with 95% intervals, and list what the records do not determine."""
    from calibration.machines import fit_run
    from calibration.machines.residuals import residual_picture
    from calibration.machines.step_comparison import compare, comparison_rows, comparison_table

    measured, fits, machine, ratios, written = fit_run.fit(files, output, hardware)
    if plot is not None:
        residual_picture(fits).save(plot)
    steps, notes = compare(measured, written, ratios)
    if as_json:
        print_json(fit_run.fit_document(measured, fits, machine) | {"steps": comparison_rows(steps)})
    else:
        show_text("\n\n".join([fit_run.fit_table(fits), *([comparison_table(steps)] if steps else [])]))
    for text in (*measured.disturbed, *notes, *(f"not measured: {text}" for text in machine.untold)):
        messages(text)
    using = f" --stack {written.stack}" if written.stack else ""
    messages(f"wrote {output}\nnext: python -m sim run {shlex.quote(str(output))} alexnet{using}")


@app.command(
    "import-trace",
    epilog="Examples:\n"
    "  python -m calibration import-trace rank*.json --record runs.csv --hardware my.yaml --workload resnet50 --batch 64\n"
    "  python -m calibration import-trace rank*.json --hardware p3.16xlarge --batch 64 --workload-out mine.yaml",
)
def import_trace(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PyTorch profiler traces, plain or gzip, one per rank")],
    record: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="append the job to these measured runs")] = None,
    workload_out: Annotated[
        Path | None,
        typer.Option(
            "--workload-out", metavar="FILE.yaml", help="write a workload with the measured times, for 'sim run' on other machines"
        ),
    ] = None,
    hardware: Annotated[str, typer.Option(metavar="HW", help="machine on which it ran: a file, or a name from the catalog")] = "",
    workload: Annotated[
        str, typer.Option(metavar="WL", help="workload that it trained, if there is a description; used for the record")
    ] = "",
    stack: Annotated[str, typer.Option(help="software stack of the job; default: the workload's")] = "",
    batch: Annotated[int | None, typer.Option(min=1, help="samples per GPU; required if the trace does not contain it")] = None,
    precision: Annotated[str, typer.Option(help="precision of the job; default: the workload's")] = "",
    hardware_dir: HardwareDir = None,
    workload_dir: WorkloadDir = None,
    as_json: Json = False,
) -> None:
    """Show where the time of a profiled job went, with the same breakdown as for a simulated job."""
    from calibration.questions import Folders
    from calibration.traces.agreement import agreed
    from calibration.traces.asked import JobDescription
    from calibration.traces.import_trace import import_traces
    from calibration.traces.replay import write_replay
    from calibration.traces.trace_report import add_record, trace_document, trace_record, trace_table

    imported = import_traces(files)
    job = JobDescription(hardware, workload, stack, batch, precision, Folders(hardware_dir, workload_dir))
    for doubt in agreed(imported, job)[1]:
        messages(f"warning: {doubt}")
    row = trace_record(imported, hardware=hardware, workload=workload, stack=stack, batch=batch, precision=precision)
    if record is not None:
        add_record(record, row, Folders(hardware_dir, workload_dir))
        messages(f"added one row to {record}")
    if workload_out is not None:
        write_replay(imported, job, workload_out)
        machine = shlex.quote(str(row["hardware"]))
        messages(f"wrote {workload_out}\nnext: python -m sim run {machine} {shlex.quote(str(workload_out))} --nodes 8")
    print_json(trace_document(imported, row)) if as_json else show_text(trace_table(imported))


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
    as_json: Json = False,
) -> None:
    """Measure training over networks of a specified rate and delay, with network namespaces of this machine as hosts (needs root)."""
    from calibration.lab import layout_score
    from calibration.lab import score as scoring
    from calibration.lab.plan import points, read_plan
    from calibration.lab.run import run_plan

    if score and layouts:
        laid_out = layout_score.score_layouts(file or layout_score.COMMITTED)
        return print_json(layout_score.layout_document(laid_out)) if as_json else show_text(layout_score.layout_table(laid_out))
    if score:
        scored = scoring.score(file or scoring.COMMITTED)
        return print_json(scoring.score_document(scored)) if as_json else show_text(scoring.score_table(scored))
    plan = read_plan(file or (layout_score.PLAN if layouts else scoring.PLAN))
    if only_list:
        return typer.echo("\n".join(f"{role:10}  {point.text}" for point, role in points(plan).items()))
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


def print_json(value: Any) -> None:
    """Print *value* as the one JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; *arguments* default to the process's own."""
    return exit_code(app, arguments)
