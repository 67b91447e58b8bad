"""How far off are predictions? A command for each kind of measurement but whole runs (`calibration.commands.validate`)."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from calibration.commands.app import app
from sim.commands.options import JsonOption
from sim.report.figures import figures_csv
from sim.report.files import csv_due
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.terminal import messages, print_json, show_text
from sim.units import pluralized


@app.command(
    epilog="Examples:\n  python -m calibration collectives my-collectives.csv -o predicted.csv\n"
    "  python -m calibration collectives all_reduce_perf.txt --hardware hgx-h100 --hardware-out mine.yaml"
)
def collectives(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="measured collectives: a CSV, or an output of nccl-tests; default: the committed records"),
    ] = None,
    hardware: Annotated[
        str, typer.Option(metavar="HW", help="if FILE is an output of nccl-tests: its machine, a file or a name from the catalog")
    ] = "",
    hardware_out: Annotated[
        Path | None,
        typer.Option(
            "--hardware-out",
            metavar="FILE.yaml",
            help="also write the machine of FILE with constants fitted to its rows, for `run` and `collective`",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(metavar="KEY,...", help="show errors by network, op, size, ranks or system instead, and how far quoted errors hold"),
    ] = "",
    write: Annotated[bool, typer.Option("--write", help="write the errors where `collective` and the tests read them")] = False,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.csv", callback=csv_due, help="also write each row with its prediction to this file"),
    ] = None,
) -> None:
    """Predict measured collectives, each system with constants fitted without it, and show the errors."""
    from calibration.collectives.groups import groups_document, groups_text, parse_groupings
    from calibration.collectives.quoted import publish
    from calibration.collectives.scores import error_rows, error_text, leave_systems_out, predict_all, prediction_rows, score_all
    from calibration.collectives.table import read_table
    from calibration.machines.collective_table import machine_document, machine_text, write_machine
    from calibration.run_records import SkippedRun
    from calibration.validate.validation import reason_lines

    if write and file:
        raise SpecError(f"--write {file}: writes only the errors of the committed records; leave the file out")
    if file and output and output.resolve() == file.resolve():
        raise SpecError(f"-o {output}: is the table of measurements; write to another file")
    if hardware and not file:
        raise SpecError(f"--hardware {hardware}: is for an output of nccl-tests; write collectives FILE --hardware {hardware}")
    if hardware_out and not file:
        raise SpecError(f"--hardware-out {hardware_out}: is for measured collectives of your own; name their FILE")
    if write and by:
        raise SpecError(f"--write --by {by}: writes the table of all systems; leave one of them out")
    keys = parse_groupings(by)
    table = read_table(file, hardware) if file else None
    skipped = [SkippedRun(*one) for one in table.skipped] if table else []
    if table and not table.records:
        raise SpecError("\n".join(["no row can be predicted:", *reason_lines(skipped)]))
    for note in table.notes if table else ():
        messages(note)
    fitted = write_machine(table.records, file, hardware_out) if table and file and hardware_out else None
    systems = leave_systems_out(table.records if table else None)
    predictions = predict_all(systems) if keys or output is not None else []
    rows = [] if keys else publish() if write else error_rows(score_all(systems, messages.counter("systems")))
    messages.progress("")
    document: dict[str, Any] = {"schema": 1} | (groups_document(predictions, keys) if keys else {"rows": rows})
    document |= {"fitted": machine_document(fitted)} if fitted else {}
    document |= {"not_described": [vars(one) for one in skipped]} if file else {}
    if output is not None:
        write_file(output, figures_csv(prediction_rows(predictions)))
        messages(f"wrote {output}")
    listed = ["", f"{pluralized(len(skipped), 'row')} that cannot be predicted:", *reason_lines(skipped)] if skipped else []
    shown = ["", machine_text(fitted)] if fitted else []
    errors = groups_text(predictions, keys) if keys else error_text(rows)
    print_json(document) if as_json else show_text("\n".join([errors, *shown, *listed]))
    if fitted:
        nodes = f" --nodes {fitted.nodes}" if fitted.nodes > 1 else ""
        messages(f"wrote {hardware_out}\nnext: python -m sim run {shlex.quote(str(hardware_out))} resnet50{nodes}")


@app.command(epilog="Examples:\n  python -m calibration kernels --left-out\n  python -m calibration kernels --refit")
def kernels(
    left_out: Annotated[
        bool, typer.Option("--left-out", help="also score each GPU with constants fitted to the others (takes minutes)")
    ] = False,
    refit: Annotated[bool, typer.Option("--refit", help="refit the constants of each GPU and kernel type, and show them")] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict published times of single kernels, and show the errors by GPU and kind of kernel."""
    from calibration.kernels import records as kernel_records
    from calibration.kernels import report

    rows = kernel_records.read_kernels()
    lines = report.refit_constants(rows) if refit else report.score_kernels(rows, left_out)
    shown = report.constants_text if refit else report.score_text
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
    as_json: JsonOption = False,
) -> None:
    """Predict step times, memory, power and kernels of a GPU before it is measured; measure them; show the errors."""
    from calibration.blind import rounds
    from calibration.blind.table import read_table, score_rows, scores_text

    table = what.endswith(".csv")
    if output is None and (do_measure or not table):
        raise SpecError("-o is missing: name the output file, such as -o predicted.csv")
    if do_measure and not table:
        raise SpecError(f"--measure {what}: expected the table written by 'python -m calibration blind {what} -o predicted.csv'")
    if not table or do_measure:
        assert output is not None
        counting = messages.counter("questions")
        count = rounds.measure(Path(what), output, counting) if do_measure else rounds.predict(what, output, counting)
        messages.progress("")
        messages(f"{output}: {count} cases {'measured' if do_measure else 'predicted'}")
        return
    scored = score_rows(read_table(Path(what)))
    print_json({"schema": 1, "rows": [one._asdict() for one in scored]}) if as_json else show_text(scores_text(scored))


@app.command(epilog="Examples:\n  python -m calibration longrun\n  python -m calibration longrun --seed 1 --json")
def longrun(
    seed: Annotated[int, typer.Option(min=0, help="random seed of the simulated fleets and runs")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Predict published failure counts, causes and effective shares of long runs from data of other fleets, and show the errors."""
    from calibration.longrun import longrun_document, longrun_text

    document = longrun_document(seed)
    print_json(document) if as_json else show_text(longrun_text(document))


@app.command(epilog="Examples:\n  python -m calibration energy\n  python -m calibration energy --json")
def energy(
    steps: Annotated[bool, typer.Option("--steps", help="also predict the power of an H100 in 39 training steps (takes a minute)")] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict the measured power of nodes and GPUs and the slowdown under power limits, and show the errors."""
    from calibration.blind.power import score_steps
    from calibration.energy import energy_document, energy_text

    document = energy_document(score_steps() if steps else ())
    print_json(document) if as_json else show_text(energy_text(document))


@app.command(epilog="Examples:\n  python -m calibration records my-runs.csv\n  python -m calibration records my-runs.csv --json")
def records(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="measured runs, one per row")],
    as_json: JsonOption = False,
) -> None:
    """Check a file of measured runs, and count its rows by machine, workload and role."""
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


@app.command(epilog="Examples:\n  python -m calibration servers\n  python -m calibration servers calibration/records/cmdare.csv --json")
def servers(
    files: Annotated[list[Path], typer.Argument(metavar="[FILE.csv]", help="measured runs; default: those of CM-DARE")] = [],
    as_json: JsonOption = False,
) -> None:
    """Fit the cost of parameter servers per update and per byte, and show the errors of predicted rows."""
    from calibration.clusters.servers import SERVER_RUNS, fit_servers, server_document, server_table

    fitted = fit_servers(files or [SERVER_RUNS])
    print_json(server_document(fitted)) if as_json else show_text(server_table(fitted))
