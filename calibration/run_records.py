"""Which measured runs does a CSV file contain? One `RunRecord` per row; all problems are reported at once, with file and line.

A row names the hardware, the workload, the stack and the placement of the job, and has a measured step time or throughput; ``role`` states
what the row may be used for. A blank cell means the workload's own value; a column takes precedence over ``set``. Lines that begin with
``#`` are comments. `read_records` rejects a file with any error; `read_table` reads what it can of foreign tables and lists the rest.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, cast, get_args

from calibration import RECORDS
from calibration.foreign_columns import (
    Cells,
    TranslatedHeader,
    describes_input,
    is_recognized,
    layout_of,
    network_of,
    sequence_of,
    translate_header,
    without_loaders,
)
from calibration.run_columns import COLUMNS, SPEEDS, check_header, column_meant
from sim.spec.fields import Precision
from sim.spec.strict import csv_lines, csv_number, csv_rows, whole_number
from sim.spec.yaml import SpecError
from sim.study.ranges import MOST
from sim.units import shorten

Role = Literal["compute", "network", "prediction"]

COMMITTED_RUNS: Final = RECORDS / "runs.csv"
"""The measured runs that come with the package."""
LONGEST_STEP: Final = 1e6
"""Longest step (s) that is read, 12 days: longer ones are mistakes, and would not fit on any scale."""
TOO_MANY_PROBLEMS: Final = 20
"""Problems shown for one file; further ones are only counted."""


@dataclass(frozen=True)
class RunRecord:
    """One measured run; None if the row is blank there. Times are in seconds."""

    file: str
    line: int
    hardware: str
    workload: str
    role: Role
    source: str = ""
    stack: str | None = None
    software: str = ""
    input: Literal["synthetic", "real"] | None = None
    nodes: int | None = None
    gpus_per_node: float | None = None
    placement: str | None = None
    batch_per_gpu: int | None = None
    gradient_accumulation_steps: int | None = None
    precision: Precision | None = None
    strategy: str | None = None
    overrides: str = ""
    step_time: float | None = None
    """Time of one optimizer step, seconds."""
    exposed_sync: float | None = None
    """Part of the step that waited for the gradient exchange, seconds."""
    throughput: float | None = None
    """Samples per second of all GPUs together."""
    note: str = ""
    total_gpus: int | None = None
    """GPUs of all nodes together."""
    global_batch: int | None = None
    """Samples per step, over all GPUs and micro-batches."""
    sequence: int | None = None
    """Tokens per sample."""
    throughput_per_gpu: float | None = None
    """Samples per second of one GPU."""
    gpu: str = ""
    """GPU of the machine, by any name; empty if the row names the machine only."""
    throughput_tokens: float | None = None
    """Tokens per second of all GPUs together."""
    network: str = ""
    """Network between nodes, in words."""

    @property
    def where(self) -> str:
        """Return file and line, for messages."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class SkippedRun:
    """A row that cannot be predicted, and the reason in words."""

    where: str
    row: str
    """Workload and hardware that it names, as far as they can be read."""
    reason: str
    """Everything that is wrong with it, one problem per line."""


@dataclass(frozen=True)
class RecordFile:
    """The rows of one file, notes on oddities that are no errors, and the rows that cannot be read."""

    records: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()
    skipped: tuple[SkippedRun, ...] = ()
    unread: tuple[RunRecord, ...] = ()
    """The records of *skipped*, blank where a cell is invalid."""


def read_records(path: Path) -> RecordFile:
    """Return the records of the CSV file *path*. Raise SpecError with all problems."""
    return require_valid(_read(path, lambda header, rows: TranslatedHeader(list(header), list, [])))


def require_valid(file: RecordFile) -> RecordFile:
    """Return *file*. Raise SpecError with the problems of its rows, if there are any."""
    if file.skipped:
        path = file.skipped[0].where.rpartition(":")[0]
        problems = [f"{one.where}: {line}" for one in file.skipped for line in one.reason.splitlines()]
        more = len(problems) - TOO_MANY_PROBLEMS
        raise SpecError("\n".join(problems[:TOO_MANY_PROBLEMS] + ([f"{path}: and {more} more problems like these"] if more > 0 else [])))
    return file


def read_table(path: Path) -> RecordFile:
    """Return the records of the CSV file *path*, which may use other column names, and the rows that cannot be read.

    Without a column ``role``, all rows are predictions, and so are rows that leave it blank. Raise SpecError if the header is invalid or
    there are no rows.
    """
    return _read(path, _read_foreign_header)


def _read_foreign_header(header: Sequence[str], rows: Sequence[Cells]) -> TranslatedHeader:
    translated = translate_header(header, rows, COLUMNS)
    if "role" in translated.columns:
        return _with_roles(translated)
    if any(column_meant(name) == "role" for name in translated.columns):  # a misspelled one, which is an error
        return translated
    if not describes_input(header):
        translated = without_loaders(translated)
        translated.notes.append("no column 'input': rows are predicted as if data were always ready, because no loader is described")
    translated.notes.append("no column 'role': all rows are predicted, and none is used for calibration")
    columns, fitting, notes = translated
    return TranslatedHeader(["role", *columns], lambda cells: ["prediction", *fitting(cells)], notes)


def _with_roles(table: TranslatedHeader) -> TranslatedHeader:
    """Return *table* with the role ``prediction`` in rows without one, which therefore calibrate nothing."""
    columns, fitting, notes = table
    place, note = columns.index("role"), "rows with a blank role are only predicted, not used for calibration"

    def fitted(cells: Cells) -> list[str]:
        read = list(fitting(cells))
        if place < len(read) and not read[place].strip():
            read[place] = "prediction"
            if note not in notes:
                notes.append(note)
        return read

    return TranslatedHeader(columns, fitted, notes)


def _read(path: Path, reads: Callable[[Sequence[str], Sequence[Cells]], TranslatedHeader]) -> RecordFile:
    lines = csv_lines(path)
    if not lines:
        raise SpecError(f"{path}: is empty; the first line must name the columns: {','.join(COLUMNS)}")
    _, header = next(csv_rows(lines[:1], str(path)))
    rows = list(csv_rows(lines[1:], str(path)))
    columns, fitting, own_notes = reads(header, [cells for _, cells in rows])
    line, text = lines[0]
    ignored = check_header(path, line, columns, text, is_recognized)
    skipped: list[SkippedRun] = []
    records: list[RunRecord] = []
    unread: list[RunRecord] = []
    for number, cells in rows:
        fitted = fitting(cells)
        problems: list[str] = []
        record = _record(str(path), number, columns, fitted, problems)
        record = replace(record, sequence=_sequence(columns, fitted, problems), network=network_of(columns, fitted))
        if problems:
            row = dict(zip(columns, fitted, strict=False))
            name = row_name(row.get("hardware", "") or row.get("gpu", ""), row.get("workload", ""))
            skipped.append(SkippedRun(record.where, name, "\n".join(problems)))
            unread.append(record)
        else:
            records.append(record)
    if not records and not skipped:
        raise SpecError(f"{path}: has no rows below its header")
    notes = [f"{path}:{line}: {note}" for note in own_notes] + ignored  # reading the rows adds notes
    return RecordFile(tuple(records), tuple(notes), tuple(skipped), tuple(unread))


def _sequence(columns: Sequence[str], cells: Cells, problems: list[str]) -> int | None:
    """Return the sequence length that a further column specifies; add to *problems* if it is none, or if the run has a layout."""
    if laid_out := layout_of(columns, cells):
        problems.append(
            f"{laid_out}: rows of this table are data-parallel only; put runs with a layout in a table of transformer runs, with a "
            "column gpu instead of a machine (docs/how-to/calibrate.md)"
        )
    tokens = sequence_of(columns, cells)
    length = whole_number(tokens)
    if tokens and not length:
        problems.append(f"sequence {shorten(tokens)}: write the number of tokens per sample, such as 4096")
    return length or None


def row_name(hardware: str, workload: str) -> str:
    """Return the name of a row in lists."""
    return f"{workload or '?'} on {hardware or '?'}"


def parse_record(file: str, line: int, header: Sequence[str], cells: Sequence[str]) -> RunRecord:
    """Return the record in the *cells* of one row under *header*. Raise SpecError, with *file* and *line*, if they are invalid."""
    problems: list[str] = []
    record = _record(file, line, header, cells, problems)
    if problems:
        raise SpecError([f"{record.where}: {problem}" for problem in problems])
    return record


def _record(file: str, line: int, header: Sequence[str], cells: Sequence[str], problems: list[str]) -> RunRecord:
    """Return the record in *cells*, blank where a cell is invalid, and add what is wrong to *problems*."""
    if len(cells) > len(header):  # cells may be in wrong columns, so nothing is said about them
        problems.append(f"{len(cells)} values for {len(header)} columns; put values that contain a comma in quotes")
        return RunRecord(file, line, "", "", "prediction")
    row = _RowCells(dict(zip(header, cells, strict=False)), problems)
    run = RunRecord(
        file,
        line,
        row.text("hardware", required=not row.text("gpu")),
        row.text("workload", required=True),
        cast(Role, row.one_of("role", get_args(Role), required=True)),
        source=row.text("source"),
        stack=row.text("stack") or None,
        software=row.text("software"),
        input=cast(Literal["synthetic", "real"] | None, row.one_of("input", ("synthetic", "real"))),
        nodes=row.count("nodes", MOST["--nodes"]),
        gpus_per_node=row.positive("gpus_per_node"),
        placement=row.text("placement") or None,
        batch_per_gpu=row.count("batch_per_gpu"),
        gradient_accumulation_steps=row.count("gradient_accumulation_steps"),
        precision=cast(Precision | None, row.one_of("precision", get_args(Precision))),
        strategy=row.text("strategy") or None,
        overrides=row.text("set"),
        step_time=row.positive("step_time_s", LONGEST_STEP),
        exposed_sync=row.number("exposed_sync_s"),
        throughput=row.positive("throughput_samples_per_s"),
        note=row.text("note"),
        total_gpus=row.count("total_gpus", MOST["--gpus"]),
        global_batch=row.count("global_batch"),
        throughput_per_gpu=row.positive("throughput_samples_per_s_per_gpu"),
        gpu=row.text("gpu"),
        throughput_tokens=row.positive("throughput_tokens_per_s"),
    )
    problems += _problems_of_times(run, row.cells)
    return run


def _problems_of_times(record: RunRecord, cells: Mapping[str, str]) -> list[str]:
    if not any(cells.get(column) for column in SPEEDS):
        return ["give step_time_s or throughput_samples_per_s"]
    if record.exposed_sync is not None and record.step_time is not None and record.exposed_sync >= record.step_time:
        return [f"exposed_sync_s {record.exposed_sync:g} must be less than the step time of {record.step_time:g} s"]
    return []


@dataclass(frozen=True)
class _RowCells:
    """Cells of one row by column; what is wrong with them is added to *problems*, and they count as blank."""

    cells: Mapping[str, str]
    problems: list[str]

    def text(self, column: str, required: bool = False) -> str:
        value = self.cells.get(column, "")
        if required and not value:
            self.problems.append(f"{column} is blank")
        return value

    def one_of(self, column: str, accepted: tuple[str, ...], required: bool = False) -> str | None:
        value = self.text(column, required)
        value = value.lower() if value.lower() in accepted else value
        if value and value not in accepted:
            near = difflib.get_close_matches(value.lower(), accepted, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; write one of {', '.join(accepted)}"
            self.problems.append(f"{column}: '{value}' is unknown{hint}")
            return None
        return value or None

    def number(self, column: str) -> float | None:
        return self._read(column, "a number of 0 or more, such as 0.25", lambda value: value >= 0)

    def positive(self, column: str, most: float = math.inf) -> float | None:
        wanted = "a number above 0, such as 0.25" + (f", and at most {most:,.0f}" if most < math.inf else "")
        return self._read(column, wanted, lambda value: 0 < value <= most)

    def count(self, column: str, most: int = 0) -> int | None:
        wanted = f"a whole number from 1 to {most:,}" if most else "a whole number of 1 or more"
        value = self._read(column, wanted, lambda value: value >= 1 and value == int(value) and (not most or value <= most))
        return None if value is None else int(value)

    def _read(self, column: str, wanted: str, valid: Callable[[float], bool]) -> float | None:
        text = self.cells.get(column, "")
        if not text:
            return None
        try:
            return csv_number(text, column, wanted, valid)
        except SpecError as error:
            self.problems.append(str(error))
            return None
