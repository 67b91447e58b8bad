"""How is an imported profile reported? As the stall table of a simulated run, as JSON, and as a row in the file of measured runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from calibration.questions import Folders, question
from calibration.run_columns import COLUMNS
from calibration.run_records import parse_record
from calibration.traces.import_trace import ImportedJob, kernel_times
from calibration.traces.kineto import CPU
from sim.causes import MEANINGS
from sim.events import STALLS, Cause
from sim.report.columns import Title, align
from sim.report.table import BAR, bar
from sim.spec.strict import csv_lines, csv_rows, decode, read_bytes
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.units import show

Record = Mapping[str, str | int | float]

LEAST_INPUT_SHARE = 0.01
"""Share of a step spent waiting for data from which a record reflects the loader rather than compute."""
_LONGEST_NAME = 90


def trace_document(imported: ImportedJob, row: Record) -> dict[str, Any]:
    """Return the JSON document of an imported job, including its *row* for the file of measured runs."""
    return {
        "schema": 1,
        "files": sorted({trace.file for trace in imported.traces}),
        "gpus": gpus(imported),
        "nodes": nodes(imported),
        "steps": imported.windows[0].steps,
        "step_time_s": imported.step_time,
        "stalls_s": {cause.value: imported.stalls[cause] for cause in STALLS},
        "exposed_sync_s": imported.exposed_sync,
        "resources": [{"cause": row.cause.value, "resource": row.resource, "time_s": row.seconds} for row in imported.resources],
        "ranks": [
            {
                "rank": trace.rank,
                "stands_for": trace.size,
                "step_time_s": (window.end - window.start) / window.steps,
                "stalls_s": {cause.value: stalls[cause] for cause in STALLS},
            }
            for trace, window, stalls in zip(imported.traces, imported.windows, imported.by_rank, strict=True)
        ],
        "kernels": kernel_times(imported),
        "record": dict(row),
    }


def trace_table(imported: ImportedJob) -> str:
    """Return the stall table, and a table of the kernels, collectives and copies that took most time."""
    count, hosts = gpus(imported), nodes(imported)
    what = "CPU rank" if imported.traces[0].gpu == CPU else "GPU"
    traced = f"{imported.traced_ranks} of " if imported.traced_ranks < count else ""
    lines = [
        f"{traced}{count} {what}{'s' * (count > 1)} on {hosts} node{'s' * (hosts > 1)}, {imported.windows[0].steps} steps profiled",
        "",
    ]
    lines += [f"  step {show(imported.step_time, 'time')}", ""]
    for cause in STALLS:
        seconds = imported.stalls[cause]
        if seconds > 1e-12:
            share = seconds / imported.step_time
            lines.append(f"  {cause.value:12} {show(seconds, 'time'):>10} {100 * share:5.1f}%  {bar(share):{BAR}}  {MEANINGS[cause]}")
    titles = [Title("kernels, collectives and copies", left=True), Title("calls per step"), Title("time per step")]
    rows = [[row["name"][:_LONGEST_NAME], f"{row['calls_per_step']:.4g}", show(row["time_s"], "time")] for row in kernel_times(imported, 8)]
    return "\n".join([*lines, "", *(f"  {line}" for line in align(titles, rows).splitlines())])


def gpus(imported: ImportedJob) -> int:
    """Return the number of ranks of the job."""
    return sum(trace.size for trace in imported.traces)


def nodes(imported: ImportedJob) -> int:
    """Return the number of hosts that the job ran on."""
    simulated = imported.traces[0].job_facts.get("nodes")
    return int(simulated) if simulated else len({trace.host for trace in imported.traces})


def trace_record(
    imported: ImportedJob, *, hardware: str = "", workload: str = "", stack: str = "", batch: int | None = None, precision: str = ""
) -> dict[str, str | int | float]:
    """Return a row for the file of measured runs: step time and its exposed gradient exchange (see `calibration.run_records`)."""
    described = imported.traces[0].job_facts
    simulated = {key: described.get(key, "") for key in ("hardware", "workload", "stack", "batch_per_gpu", "precision")}
    input_wait = imported.stalls[Cause.FETCH] + imported.stalls[Cause.PREP]
    waits = input_wait > LEAST_INPUT_SHARE * imported.step_time
    row: dict[str, str | int | float] = dict.fromkeys(COLUMNS, "")
    row |= {
        "source": "profile",
        "hardware": hardware or simulated["hardware"],
        "workload": workload or simulated["workload"],
        "stack": stack or simulated["stack"],
        "batch_per_gpu": batch or simulated["batch_per_gpu"],
        "precision": precision or simulated["precision"],
        "nodes": nodes(imported),
        "gpus_per_node": gpus(imported) // nodes(imported) if gpus(imported) % nodes(imported) == 0 else gpus(imported) / nodes(imported),
        "step_time_s": imported.step_time,
        "exposed_sync_s": imported.exposed_sync,
        "role": "prediction" if waits else "compute",
        "note": f"{imported.windows[0].steps} profiled steps"
        + (f"; {100 * input_wait / imported.step_time:.0f}% of a step waits for data" * waits),
    }
    return row


def add_record(path: Path, row: Record, folders: Folders) -> None:
    """Append *row* to the measured runs in the file *path*, which is created if needed.

    Raise SpecError and leave the file unchanged if it cannot be written, ``validate`` could not run the row, or the row exists already.
    """
    for column, option in _NAMED.items():
        if not row[column]:
            raise SpecError(f"--record {path}: the trace does not contain the record's {column}; add --{option}")
    before, columns = "", list(COLUMNS)
    if path.exists():
        before = decode(read_bytes(path), str(path), "save the table as CSV in UTF-8")
        _, columns = next(csv_rows(csv_lines(path)[:1], str(path)), (1, columns))
    lacking = [name for name in columns if name not in COLUMNS]
    needed = [name for name in COLUMNS if row[name] != "" and name not in columns]
    if lacking or needed:
        raise SpecError(f"{path}: its columns differ from those of a run record ({', '.join(lacking or needed)}); write to another file")
    cells = [str(row[name]) for name in columns]
    _check(path, columns, cells, folders)
    _check_new(path, cells)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([cells] if before.strip() else [columns, cells])
    write_file(path, before + ("\n" if before and not before.endswith("\n") else "") + text.getvalue())


_NAMED: Final = {"hardware": "hardware", "workload": "workload", "batch_per_gpu": "batch"}
"""Columns that a row of a trace must have, with the option that sets each; an empty batch would mean the workload's default."""


def _check(path: Path, columns: list[str], cells: list[str], folders: Folders) -> None:
    """Raise SpecError if the row *cells* names something that does not exist, or cannot have run as described."""
    where = f"--record {path}"
    try:
        question(parse_record(where, 0, columns, cells), folders)
    except SpecError as error:
        raise SpecError(str(error).replace(f"{where}:0: ", f"{where}: ")) from None


def _check_new(path: Path, cells: list[str]) -> None:
    """Raise SpecError if a row of *path*, if it exists, is equal to *cells*."""
    for number, row in csv_rows(csv_lines(path), str(path)) if path.exists() else ():
        if row == cells:
            raise SpecError(f"{path}:{number}: already has an identical row for this job; a trace can be added only once")
