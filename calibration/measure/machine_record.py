"""What was measured on one machine? One JSON document: the machine, versions, and for each probe its raw repetitions.

The file is written atomically after every few answers, with ``"state": "partial"`` until all requested probes have ended. So after any
interruption the file can be read and the measurement continued. Times are in seconds, one value per repetition. A row holds a question
together with its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from calibration.measure.processor_use import DISTURBANCE
from sim.spec.strict import check_type, read_json
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError

SCHEMA: Final = 1
KIND: Final = "stallsim machine record"
DIGITS: Final = 5
"""Significant digits kept of a measured number; repetitions differ by more."""

ProbeState = Literal["done", "partial", "skipped", "failed"]
AnswerRow = dict[str, Any]


@dataclass
class ProbeRecord:
    """The results of one probe; *reason* explains why it was skipped, failed or stopped."""

    state: ProbeState
    date: str
    """Day and time (UTC) of the last answer."""
    reason: str = ""
    duration_s: float = 0.0
    others_cores: float = 0.0
    """Mean number of cores that other programs kept busy during the probe."""
    rows: list[AnswerRow] = field(default_factory=list)


@dataclass
class MachineRecord:
    """One machine and the probes that ran on it."""

    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    state: Literal["complete", "partial"] = "partial"
    probes: dict[str, ProbeRecord] = field(default_factory=dict)

    def disturbed(self) -> str:
        """Return a text on the probes during which other programs used more than `DISTURBANCE` of the cores; empty if there are none."""
        cores = self.machine.get("vcpus", 1)
        busy_cores = {name: probe.others_cores for name, probe in self.probes.items() if probe.others_cores > DISTURBANCE * cores}
        if not busy_cores:
            return ""
        text = ", ".join(f"{busy:.1f} during {name}" for name, busy in busy_cores.items())
        return f"other programs used, of {cores} cores, {text}; when they are idle, run: profile --again --only {','.join(busy_cores)}"

    def rows(self, probe: str) -> list[AnswerRow]:
        """Return the rows of *probe*; none if it did not run."""
        return self.probes[probe].rows if probe in self.probes else []


def record_text(record: MachineRecord) -> str:
    """Return the JSON text of *record*, with one row per line."""
    head = {"schema": SCHEMA, "kind": KIND, "name": record.name, "state": record.state}
    lines = [f'"{key}": {json.dumps(value)},' for key, value in (*head.items(), ("machine", record.machine), ("versions", record.versions))]
    probes = ",\n".join(_probe_text(name, probe) for name, probe in record.probes.items())
    return "{\n" + "\n".join(lines) + '\n"probes": {\n' + probes + "\n}}\n"


def _probe_text(name: str, probe: ProbeRecord) -> str:
    head = {key: value for key, value in asdict(probe).items() if key != "rows"}
    rows = ",\n".join("  " + json.dumps(round_numbers(row)) for row in probe.rows)
    text = json.dumps(round_numbers(head))[:-1]
    return f'"{name}": {text}, "rows": [' + (f"\n{rows}\n" if rows else "") + "]}"


def round_numbers(value: Any) -> Any:
    """Return *value* with every float in it rounded to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: round_numbers(inner) for key, inner in value.items()}
    return [round_numbers(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_record(path: Path, record: MachineRecord) -> None:
    """Write *record* to *path* atomically. Raise SpecError if that fails."""
    write_file(path, record_text(record))


def read_record(path: Path) -> MachineRecord:
    """Return the record at *path*. Raise SpecError if it cannot be read, is truncated, or has another schema."""
    document = read_json(path, "pass a record written by 'calibration profile'")
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise SpecError(f"{path}: is not a machine record; pass a file written by 'calibration profile'")
    if document.get("schema") != SCHEMA:
        raise SpecError(f"{path}: schema {document.get('schema')}, but this version reads schema {SCHEMA}; measure into another file")
    return _record(path, document)


def _record(path: Path, content: dict[str, Any]) -> MachineRecord:
    document = check_type(_RecordDocument, content, str(path))
    probes = {name: ProbeRecord(**probe) for name, probe in content["probes"].items()}
    return MachineRecord(document["name"], content["machine"], document["versions"], document["state"], probes)


def check_rows(path: Path, record: MachineRecord) -> None:
    """Raise SpecError if a row of *record*, read from *path*, does not have the form that its probe writes and fits need."""
    for name, probe in record.probes.items():
        for number, row in enumerate(probe.rows):
            for kind in (_MeasuredRow, *_ROWS.get(name, ())):
                check_type(kind, row, f"{path}: probes.{name}.rows[{number}]")


# --- the types of a record -------------------------------------------------------------------------------------------

_PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Natural = Annotated[int, Field(ge=1, le=10_000_000)]
_Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Times = Annotated[list[_Time], Field(min_length=1)]
_ByRank = Annotated[list[_Times], Field(min_length=1)]


class _GpuEntry(TypedDict):
    name: str
    memory_bytes: _PositiveNumber
    compute_capability: NotRequired[str]


class _MachineEntry(TypedDict, total=False):
    cpu: str
    vendor: str
    clock_hz: _PositiveNumber
    sockets: _Natural
    physical_cores: _Natural
    vcpus: _Natural
    memory_bytes: _PositiveNumber
    device: Literal["cpu", "cuda"]
    gpus: list[_GpuEntry]
    ranks: _Natural
    nodes: _Natural
    backend: str


@with_config(ConfigDict(extra="forbid"))
class _ProbeEntry(TypedDict):
    state: ProbeState
    date: str
    reason: NotRequired[str]
    duration_s: NotRequired[_NonNegative]
    others_cores: NotRequired[_NonNegative]
    rows: NotRequired[list[dict[str, Any]]]


class _RecordDocument(TypedDict):
    name: str
    state: Literal["complete", "partial"]
    machine: _MachineEntry
    versions: dict[str, str]
    probes: dict[str, _ProbeEntry]


class _MeasuredRow(TypedDict, total=False):
    """Keys that any row may have."""

    times_s: _Times
    times_by_rank_s: _ByRank
    whole_s: _Times
    flop: _PositiveNumber
    bytes: _PositiveNumber
    block_bytes: _PositiveNumber
    batch: _PositiveNumber
    ranks: _Natural
    nodes: _Natural
    together: _Natural
    workers: Annotated[int, Field(ge=0)]
    threads: _Natural
    shape: list[_PositiveNumber]


class _LaunchRow(TypedDict):
    clock: str
    times_s: _Times


class _PassRow(TypedDict):
    bytes: _PositiveNumber


class _Product(TypedDict):
    precision: str
    flop: _PositiveNumber
    shape: list[_PositiveNumber]


class _AttentionRow(TypedDict):
    precision: str
    way: Literal["forward", "both"]
    flop: _PositiveNumber
    times_s: _Times


_Convolution = TypedDict("_Convolution", {"class": str, "precision": str, "flop": _PositiveNumber, "times_s": _Times})


class _CopyRow(TypedDict):
    host: str
    way: str
    bytes: _PositiveNumber
    together: _Natural


class _ExchangeRow(TypedDict):
    op: Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv"]
    ranks: _Natural
    bytes: _PositiveNumber
    times_s: _Times
    cpu_s: NotRequired[_NonNegative]
    beside_s: NotRequired[_Times]
    products_s: NotRequired[_Times]


class _LayerRow(TypedDict):
    type: str
    forward_s: list[_NonNegative]
    backward_s: list[_NonNegative]


class _Layers(TypedDict):
    model: str
    inputs: list[str]
    arguments: list[str]
    batch: _PositiveNumber
    layers: list[_LayerRow]


class _StepRow(TypedDict):
    model: str
    exchange: bool
    times_by_rank_s: _ByRank
    cpu_s: NotRequired[list[_NonNegative]]


class _LaidOut(TypedDict):
    model: str
    inputs: list[str]
    arguments: list[str]
    batch: _PositiveNumber
    ranks: _Natural
    layout: dict[str, Any]
    times_by_rank_s: _ByRank


class _Read(TypedDict):
    way: str
    block_bytes: _PositiveNumber
    threads: _Natural
    times_s: _Times


class _Loading(TypedDict):
    stage: str
    workers: Annotated[int, Field(ge=0)]
    times_s: _Times


_ROWS: Final[Mapping[str, Any]] = {
    "launch": (_LaunchRow,), "memory": (_PassRow,), "gemm": (_Product,), "convolution": (_Convolution,), "attention": (_AttentionRow,),
    "host_copy": (_CopyRow,), "all_reduce": (_ExchangeRow,), "collectives": (_ExchangeRow,), "layers": (_Layers,), "steps": (_StepRow,),
    "layouts": (_LaidOut,),
    "disk": (_Read,), "loading": (_Loading,),
}  # fmt: skip
"""Keys that the rows of each probe must have for a fit; additional keys are kept but not read."""
