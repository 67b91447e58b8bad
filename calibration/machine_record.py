"""What was measured on one machine? One JSON document: the machine, versions, and for each probe its raw repetitions.

The file is written whole or not at all, after every few answers, and says ``"state": "partial"`` until every probe asked for has
ended: whatever stops a measurement, what stands there can be read and continued. Times are seconds, one number a repetition; a row
holds what was asked beside what was measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from calibration.processor_use import DISTURBED
from sim.report.files import write_file
from sim.spec.yaml import SpecError

SCHEMA: Final = 1
KIND: Final = "stallsim machine record"
DIGITS: Final = 5
"""Significant digits that are kept of a measured number; repetitions differ by more."""

State = Literal["done", "partial", "skipped", "failed"]
Row = dict[str, Any]


@dataclass
class ProbeRecord:
    """What one probe found; *reason* says why it was skipped, failed or stopped."""

    state: State
    date: str
    """Day and time (UTC) of the last answer."""
    reason: str = ""
    duration_s: float = 0.0
    others_cores: float = 0.0
    """Cores that other programs kept busy beside it, on average."""
    rows: list[Row] = field(default_factory=list)


@dataclass
class MachineRecord:
    """One machine and the probes that ran on it."""

    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    state: Literal["complete", "partial"] = "partial"
    probes: dict[str, ProbeRecord] = field(default_factory=dict)

    def disturbed(self) -> str:
        """Return in words beside which probes other programs kept more than `processor_use.DISTURBED` of the cores busy; empty for none."""
        cores = self.machine.get("vcpus", 1)
        found = {name: probe.others_cores for name, probe in self.probes.items() if probe.others_cores > DISTURBED * cores}
        if not found:
            return ""
        told = ", ".join(f"{busy:.1f} beside {name}" for name, busy in found.items())
        return f"of {cores} cores other programs kept busy {told}; once they rest: profile --again --only {','.join(found)}"

    def rows(self, probe: str) -> list[Row]:
        """Return the rows of *probe*; none where it did not run."""
        return self.probes[probe].rows if probe in self.probes else []


def record_text(record: MachineRecord) -> str:
    """Return the JSON text of *record*, one row a line."""
    head = {"schema": SCHEMA, "kind": KIND, "name": record.name, "state": record.state}
    lines = [f'"{key}": {json.dumps(value)},' for key, value in (*head.items(), ("machine", record.machine), ("versions", record.versions))]
    probes = ",\n".join(_probe_text(name, probe) for name, probe in record.probes.items())
    return "{\n" + "\n".join(lines) + '\n"probes": {\n' + probes + "\n}}\n"


def _probe_text(name: str, probe: ProbeRecord) -> str:
    head = {key: value for key, value in asdict(probe).items() if key != "rows"}
    rows = ",\n".join("  " + json.dumps(rounded(row)) for row in probe.rows)
    text = json.dumps(rounded(head))[:-1]
    return f'"{name}": {text}, "rows": [' + (f"\n{rows}\n" if rows else "") + "]}"


def rounded(value: Any) -> Any:
    """Return *value* with every fraction in it at the digits that are kept."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_record(path: Path, record: MachineRecord) -> None:
    """Write *record* to *path*; what stood there stays until all is written. Raise SpecError where that fails."""
    write_file(path, record_text(record))


def read_record(path: Path) -> MachineRecord:
    """Return the record at *path*. Raise SpecError where it cannot be read, is cut off, or is of another schema."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not text; give a record that 'calibration profile' wrote") from None
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}:{error.colno}: is not whole JSON ({error.msg}); measure again with profile") from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise SpecError(f"{path}: is no record of a machine; give a file that 'calibration profile' wrote")
    if found.get("schema") != SCHEMA:
        raise SpecError(f"{path}: schema {found.get('schema')}, and this version reads schema {SCHEMA}; measure into another file")
    return _record(path, found)


def _record(path: Path, found: dict[str, Any]) -> MachineRecord:
    try:
        probes = {name: ProbeRecord(**probe) for name, probe in found["probes"].items()}
        record = MachineRecord(found["name"], found["machine"], found["versions"], found["state"], probes)
    except (KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{path}: a record of schema {SCHEMA} is due, but {_told(error)}") from None
    for name, probe in probes.items():
        rows = probe.rows if isinstance(probe.rows, list) else [None]
        if probe.state not in get_args(State) or not all(isinstance(row, dict) for row in rows):
            raise SpecError(f"{path}: probes.{name}: a state of {', '.join(get_args(State))} and a list of rows are due")
    return record


def _told(error: Exception) -> str:
    return f"the key {error} is missing" if isinstance(error, KeyError) else f"a key does not fit: {error}"
