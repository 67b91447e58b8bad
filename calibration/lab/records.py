"""How are a laboratory's results stored? Every repetition in FILE.jsonl, one line per point, and rows that `validate` reads in FILE.csv.

After each point, both files are written under another name and renamed, so an interruption loses only the current point. A failed point is
stored with its reason but without a row, and the next run measures it again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from typing_extensions import TypedDict

from calibration.lab.measure import MeasuredPoint
from calibration.lab.plan import LabPlan, LabPoint
from calibration.measure.ddp_steps import RankSteps
from calibration.run_columns import COLUMNS
from calibration.run_records import Role
from sim.spec.strict import check_type, decode, parse_json, read_bytes
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError

SCHEMA: Final = 1
NOTED_CORES: Final = 0.2
"""Cores used by other programs from which a row's note mentions them. Hosts have priority, so they share only caches and memory."""
RecordLine = dict[str, Any]
"""One point with its results, as a JSON object."""


def raw_file(rows: Path) -> Path:
    """Return the file of repetitions that belongs to the CSV file *rows*."""
    return rows.with_suffix(".jsonl")


def read_lines(path: Path) -> list[RecordLine]:
    """Return the points stored in *path*; none if there is no such file. Raise SpecError if it holds something else."""
    if not path.exists():
        return []
    text = decode(read_bytes(path), str(path))
    lines: list[RecordLine] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        entry = parse_json(line, f"{path}:{number}", "expected lab points, one JSON document per line")
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise SpecError(f"{path}:{number}: is not a point of schema {SCHEMA}; move the file, or name another one with -o")
        check_type(_MeasuredLine if entry.get("state") == "measured" else _Line, entry, f"{path}:{number}")
        lines.append(entry)
    return lines


_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_LineCount = Annotated[int, Field(ge=0, le=1_000_000)]


class _PointLine(TypedDict):
    model: str
    batch: _LineCount
    hosts: _LineCount
    rate_bytes_per_s: _NonNegative | None
    delay_s: _NonNegative | None
    disk_bytes_per_s: _NonNegative | None
    workers: _LineCount


class _Line(TypedDict):
    state: Literal["measured", "failed"]
    point: _PointLine
    definition: dict[str, Any]
    role: Role


class _RankLine(TypedDict):
    times_s: Annotated[list[_NonNegative], Field(min_length=1)]


class _MeasuredLine(_Line):
    torch: str
    kernel: str
    date: str
    others_cores: _NonNegative
    step_time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delayed_by: str
    hosts_per_core: _NonNegative
    ranks: Annotated[list[_RankLine], Field(min_length=1)]


def record_line(
    plan: LabPlan, point: LabPoint, role: Role, machine: Mapping[str, Any], outcome: MeasuredPoint | SpecError, others: float = 0.0
) -> RecordLine:
    """Return the line to store for *point*: the measurement, during which *others* cores were used by other programs, or the failure."""
    line: RecordLine = {"schema": SCHEMA, "plan": plan.name, "point": _point_document(point), "definition": _definition(plan, point)}
    line |= {"role": role, "date": datetime.now(UTC).date().isoformat(), **machine}
    if isinstance(outcome, SpecError):
        return line | {"state": "failed", "reason": str(outcome)}
    rates = outcome.socket_rates
    return line | {
        "state": "measured",
        "others_cores": round(others, 3),
        "step_time_s": outcome.step_time,
        "delayed_by": outcome.delayed_by,
        "host_cores": [len(cores) for cores in outcome.cores],
        "hosts_per_core": _hosts_per_core(outcome),
        "ranks": [_rank_document(rank) for rank in outcome.ranks],
        "socket": None
        if rates is None
        else {
            "there_bytes_per_s": rates.forward,
            "back_bytes_per_s": rates.backward,
            "both_bytes_per_s": rates.duplex,
            "round_trip_s": rates.round_trip,
        },
    }


def _rank_document(rank: RankSteps) -> dict[str, Any]:
    document: dict[str, Any] = {"times_s": [round(time, 6) for time in rank.times], "cpu_time_s": round(rank.cpu_time, 6)}
    document |= {"sent_bytes": round(rank.sent)} if rank.sent else {}
    return document | ({"parts_s": {part: round(seconds, 6) for part, seconds in rank.parts.items()}} if rank.parts else {})


def _hosts_per_core(outcome: MeasuredPoint) -> float:
    """Return the largest number of hosts that share a core."""
    every = [core for cores in outcome.cores for core in cores]
    return max(every.count(core) for core in every)


def _point_document(point: LabPoint) -> dict[str, Any]:
    fields = asdict(point)
    own = {"layout": point.layout.model_dump(), "alone": point.isolated} if point.layout else {}
    return own | {
        "model": fields["model"],
        "batch": fields["batch"],
        "hosts": fields["hosts"],
        "rate_bytes_per_s": fields["rate"],
        "delay_s": fields["delay"],
        "disk_bytes_per_s": fields["disk"],
        "workers": fields["workers"],
    }


def _definition(plan: LabPlan, point: LabPoint) -> dict[str, Any]:
    """Return everything else that affects a measurement; a stored point with another definition does not count."""
    model = plan.models[point.model]
    return {"model": model.model, "inputs": list(model.inputs), "arguments": list(model.arguments), "cores_per_host": plan.cores_per_host}


def is_measured(lines: list[RecordLine], plan: LabPlan, point: LabPoint) -> bool:
    """Return whether *lines* hold *point* as this plan defines it."""
    wanted = (_point_document(point), _definition(plan, point))
    return any(line["state"] == "measured" and (line["point"], line["definition"]) == wanted for line in lines)


def store_line(rows: Path, plan: LabPlan, lines: list[RecordLine], new: RecordLine) -> list[RecordLine]:
    """Write both files with *new* in place of an earlier outcome of the same point, and return the updated *lines*."""
    same = (new["point"], new["definition"])
    kept = [line for line in lines if (line["point"], line["definition"]) != same] + [new]
    write_file(raw_file(rows), _head(raw_file(rows)) + "".join(json.dumps(line) + "\n" for line in kept))
    if any("layout" not in line["point"] for line in kept):  # points with a layout have no rows
        write_file(rows, rows_text(plan, kept))
    return kept


def _head(path: Path) -> str:
    """Return the comment lines with which *path* begins."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return "".join(takewhile(lambda line: line.startswith("#"), lines))


def rows_text(plan: LabPlan, lines: list[RecordLine]) -> str:
    """Return the measured *lines* as the CSV file that ``validate`` reads."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for line in lines:
        if line["state"] == "measured" and line["point"]["model"] in plan.models and "layout" not in line["point"]:
            writer.writerow(_row(plan, line))
    return out.getvalue()


def _row(plan: LabPlan, line: RecordLine) -> dict[str, Any]:
    point = line["point"]
    changes = [f"node.nic.bandwidth={8e-6 * point['rate_bytes_per_s']:g} Mbps"] if point["rate_bytes_per_s"] else []
    changes += [f"fabric.latency={1e3 * point['delay_s']:g} ms"] if point["delay_s"] else []
    if point["disk_bytes_per_s"]:
        changes += [f"node.storage.volume.bandwidth={1e-6 * point['disk_bytes_per_s']:g} MB/s", f"input.num_workers={point['workers']}"]
    if line["hosts_per_core"] > 1:
        changes.append(f"training.compute_factor={line['hosts_per_core']:g}")
    note = f"{len(line['ranks'][0]['times_s'])} steps"
    note += f"; {line['hosts_per_core']:g} hosts share each core" if line["hosts_per_core"] > 1 else ""
    note += f"; beside other programs on {line['others_cores']:.1f} cores" if line["others_cores"] > NOTED_CORES else ""
    note += f"; delayed by {line['delayed_by']}" if line["delayed_by"] else ""
    return {
        "source": "lab",
        "hardware": plan.hardware,
        "workload": plan.models[point["model"]].workload,
        "software": f"torch {line['torch']}, Linux {line['kernel']}, {line['date']}",
        "input": "real" if point["disk_bytes_per_s"] else "synthetic",
        "nodes": point["hosts"],
        "gpus_per_node": 1,
        "batch_per_gpu": point["batch"],
        "set": ";".join(changes),
        "step_time_s": f"{line['step_time_s']:.6g}",
        "role": line["role"],
        "note": note,
    }
