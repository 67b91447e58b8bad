"""Which validation does a table of runs get, data-parallel or transformer, and when does the command fail? The command ``validate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from calibration.commands.app import HardwareDir, WorkloadDir, app
from sim.commands.options import JsonOption
from sim.report.files import folder_due
from sim.spec.yaml import SpecError
from sim.terminal import messages, print_json, show_text

ALL_COMMITTED: Final = (
    "no FILE.csv: validating all committed records, which takes 5 to 10 minutes on two cores, and up to half an hour with --left-out"
)


@app.command(
    epilog="Examples:\n"
    "  python -m calibration validate my-runs.csv --hardware-dir my-machines --fail-if 'overall.calibrated.median>0.1'\n"
    "  python -m calibration validate -o validated"
)
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="[FILE.csv]", help="measured runs; the committed records by default")] = [],
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
    ] = [],
    as_json: JsonOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            callback=folder_due,
            help="also write JSON, table, CSV, plot and, of your own runs, calibrated hardware files to this folder",
        ),
    ] = None,
) -> None:
    """Calibrate on the measured runs whose role allows it, predict the others, and show the errors."""
    from calibration.questions import Folders
    from calibration.run_records import COMMITTED_RUNS
    from calibration.validate.calibrated_files import calibrated_files
    from calibration.validate.carry_over import KINDS, score_left_out
    from calibration.validate.condition import read_condition
    from calibration.validate.groups import KEYS, listed_names
    from calibration.validate.validation import Validation
    from calibration.validate.validation import validate as validation
    from calibration.validate.validation_report import explanation, named_files, validation_document, validation_table

    keys, kinds = listed_names("--by", by, KEYS), listed_names("--left-out", left_out, KINDS)
    if _are_transformer_tables(files, memory, no_leave_out):
        if keys or kinds:
            raise SpecError(
                "--by and --left-out are only for data-parallel runs; transformer runs are always grouped and scored without their source"
            )
        _validate_llm(files, memory, not no_leave_out, predictor, jobs, fail_if, as_json, output)
        return
    conditions = [read_condition(text, validation_document(Validation((), ()))) for text in fail_if]
    folders = Folders(hardware_dir, workload_dir)
    if not files:
        messages(ALL_COMMITTED)
    validated = validation(files or [COMMITTED_RUNS], folders, jobs, messages, messages.counter("clusters"))
    messages.progress("")
    for note in validated.notes:
        messages(note)
    validated = score_left_out(validated, folders, kinds, jobs, messages)
    document = validation_document(validated, keys)
    text = validation_table(validated, keys) + explanation(validated)

    def contents(document_text: str) -> Mapping[str, str | bytes]:
        calibrated = calibrated_files(validated, folders, output) if output and files else {}
        return {**named_files(validated, keys, document_text), **calibrated}

    _conclude(document, text, conditions, contents, output, as_json)


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
    fail_if: Sequence[str],
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict the transformer runs in *files* and show the errors."""
    from calibration.llm.table import column_notes
    from calibration.llm.validate import LlmValidation, llm_document, llm_table, named_files, predictor_named, validate_tables
    from calibration.validate.condition import read_condition
    from sim.study.pool import process_count

    conditions = [read_condition(text, llm_document(LlmValidation((), (), (), (), 0, 0))) for text in fail_if]
    validated = validate_tables(files, memory, leave_out, predictor_named(predictor), messages.counter("runs"), process_count(jobs or None))
    messages.progress("")
    for note in (note for path in (*files, *filter(None, [memory])) for note in column_notes(path)):
        messages(note)
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
