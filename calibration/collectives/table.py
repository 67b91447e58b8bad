"""Which collectives does somebody else's table have? Records in our schema, notes on what was translated, and the rows that were not read.

Columns, operations and networks may have the names of other tables, sizes and times may have units, and GPUs may be counted over all
nodes instead of per node. A row that names an unknown machine, or that lacks something, is listed with its reason; all others are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

from calibration.collectives.nccl_tests import is_nccl_tests, nccl_tests_rows
from calibration.collectives.records import COLUMNS, NETWORKS, OPTIONAL_COLUMNS, CollectiveRecord, plan_of, record_of
from calibration.run_words import NAMES_OF_COLUMNS, plain_name
from sim.spec.algorithms import minor_release
from sim.spec.catalog import all_names
from sim.spec.strict import csv_lines, csv_rows, decode, read_bytes
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl.constants import constants_of
from sim.training.collectives.price.collective_plan import Op
from sim.units import UnitError, parse

_TOTAL: Final = "gpus"
_OTHER_NAMES: Final[Mapping[str, str]] = {
    **NAMES_OF_COLUMNS,
    "operation": "op", "collective": "op", "size": "bytes", "size_bytes": "bytes", "message_bytes": "bytes", "n_gpus": _TOTAL,
    "num_gpus": _TOTAL, "world_size": _TOTAL, "ranks": _TOTAL, "nccl_version": "nccl", "transport": "network",
    "interconnect": "network", "algo": "algorithm", "proto": "protocol",
}  # fmt: skip
_UNITS_OF_TIME: Final[Mapping[str, float]] = {
    **dict.fromkeys(("time_us", "latency_us", "avg_time_us"), 1e-6), **dict.fromkeys(("time_ms", "latency_ms", "avg_time_ms"), 1e-3),
    **dict.fromkeys(("seconds", "latency_s"), 1.0),
}  # fmt: skip
_NETWORK_WORDS: Final[Mapping[str, str]] = {
    r"nv(link|switch).*|nvl\d+": "nvlink", r"xgmi|infinity ?fabric.*": "xgmi", r"pcie.*|pci express.*": "pcie",
    r"(ib|infiniband)\b.*|([nhexf]dr)\d*.*": "infiniband", r"roce.*": "roce", r"(aws )?efa.*": "efa",
    r"(cray |hpe )?slingshot.*": "slingshot", r"tcp.*|ethernet.*|sockets?": "tcp",
}  # fmt: skip
_INSIDE: Final = ("nvlink", "xgmi", "pcie")
"""Networks inside a node; a rack whose GPUs NVLink connects is one node."""
_NEWEST: Final = "2.30"
"""Rules for tables that do not state NCCL's version, and for other libraries that follow NCCL's, such as RCCL."""
_KNOWN_NAMES: Final[Mapping[str, str]] = {re.sub(r"[^a-z]", "", op): op for op in get_args(Op)} | {
    "p2p": "send_recv",
    "sendreceive": "send_recv",
}


class UnpredictedRow(NamedTuple):
    """A row that cannot be predicted: its file and line, a description of the measurement, and the reason."""

    where: str
    row: str
    reason: str


class CollectiveTable(NamedTuple):
    """The rows of a table that can be predicted, notes on what was translated or ignored, and the other rows with their reasons."""

    records: tuple[CollectiveRecord, ...]
    notes: tuple[str, ...]
    skipped: tuple[UnpredictedRow, ...]


def read_table(path: Path, hardware: str = "") -> CollectiveTable:
    """Return the rows of *path*: a table, or an output of nccl-tests on *hardware*.

    Raise SpecError if a column is missing, if there are no rows, or if *hardware* is missing or does not apply.
    """
    text = decode(read_bytes(path), str(path), "save the table as CSV in UTF-8")
    if is_nccl_tests(text):
        rows = nccl_tests_rows(path, text, hardware)
    elif hardware:
        raise SpecError(f"--hardware {hardware}: is for outputs of nccl-tests; the column 'hardware' of {path} names the machines")
    else:
        rows = list(csv_rows(csv_lines(path), str(path)))
    header = rows[0][1] if rows else []
    where = f"{path}:{rows[0][0] if rows else 1}"
    names = [_column(name, header) for name in header]
    if twice := next((name for name in names if name in (*COLUMNS, _TOTAL) and names.count(name) > 1), None):
        raise SpecError(f"{where}: column '{twice}' appears twice")
    present = {"time_s" if name in _UNITS_OF_TIME else name for name in names} | ({"gpus_per_node"} if _TOTAL in names else set())
    if missing := [name for name in COLUMNS if name not in present and name not in OPTIONAL_COLUMNS]:
        raise SpecError(
            f"{where}: expected the columns {', '.join(COLUMNS)}; {', '.join(missing)} missing; or pass the output of nccl-tests"
        )
    notes = [f"{where}: column '{mine}' was read as {name}" for mine, name in zip(header, names, strict=True) if mine != name]
    ignored = [name for name in names if name not in (*COLUMNS, _TOTAL, *_UNITS_OF_TIME)]
    notes += [f"{where}: column '{name}' is not part of a record and is ignored" for name in ignored]
    if len(rows) < 2:
        raise SpecError(f"{path}: has no rows below its header")
    notes += [f"{where}: {note}" for note in _nccl_notes(names, [cells for _, cells in rows[1:]])]
    records: list[CollectiveRecord] = []
    skipped: list[UnpredictedRow] = []
    for number, cells in rows[1:]:
        row = dict(zip(names, cells, strict=False))
        try:
            if len(cells) > len(header):
                raise SpecError(f"{len(cells)} values for {len(header)} columns; put values that contain a comma in quotes")
            records.append(_predictable(path, number, _translated(row)))
        except SpecError as error:
            reason = str(error).removeprefix(f"{path}:{number}: ")
            skipped.append(UnpredictedRow(f"{path}:{number}", f"{row.get('op', '?')} on {row.get('hardware', '?')}", reason))
    return CollectiveTable(tuple(records), tuple(notes), tuple(skipped))


def _nccl_notes(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a note on each release of NCCL in *rows* that has no rules of its own."""
    if "nccl" not in names:
        return [f"no column 'nccl': the rules of {_NEWEST}"]
    releases = dict.fromkeys(row[names.index("nccl")].strip() for row in rows if len(row) == len(names))
    stated = {text: f"nccl '{text}'" if text else "a blank nccl" for text in releases if nccl_rules(text) != text}
    return [f"{name} follows the rules of {nccl_rules(text)}" for text, name in stated.items()]


def _column(name: str, header: Sequence[str]) -> str:
    """Return the column that *name* means; *name* itself if it means none, or one that *header* has."""
    plain = name.strip().lower().replace(" ", "_")
    other = _OTHER_NAMES.get(plain, plain)
    understood = other in (*COLUMNS, _TOTAL, *_UNITS_OF_TIME)
    return other if understood and (other == name or other not in header) else name


def _translated(row: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of *row* in the words, units and columns of records. Raise SpecError if its GPUs do not divide over its nodes."""
    cells = {name: cell.strip() for name, cell in row.items()}
    for name, factor in _UNITS_OF_TIME.items():
        if cells.get(name) and not cells.get("time_s"):
            cells["time_s"] = _scaled(cells[name], factor)
    nodes, total = cells.get("nodes", ""), cells.get(_TOTAL, "")
    if total and not cells.get("gpus_per_node") and nodes.isdigit() and total.isdigit() and int(nodes):
        if int(total) % int(nodes):
            raise SpecError(f"{total} GPUs do not divide evenly over {nodes} nodes")
        cells["gpus_per_node"] = str(int(total) // int(nodes))
    words: dict[str, Callable[[str], str]] = {"op": _op, "network": network_meant, "hardware": _hardware}
    words |= {"bytes": lambda text: _quantity(text, "size"), "time_s": lambda text: _quantity(text, "time")}
    cells |= {name: meant(cells[name]) for name, meant in words.items() if cells.get(name)}
    cells["nccl"] = nccl_rules(cells.get("nccl", ""))
    return {name: cells.get(name) or OPTIONAL_COLUMNS.get(name, "") for name in COLUMNS}


def _scaled(cell: str, factor: float) -> str:
    """Return the number in *cell* times *factor*; text that is no number is unchanged."""
    try:
        return repr(float(cell.replace(",", "")) * factor)
    except ValueError:
        return cell


def _quantity(text: str, dimension: str) -> str:
    """Return the number of bytes or seconds in *text*, which may have a unit or grouped digits; other text is unchanged."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return text.replace(",", "")
    try:
        value = parse(text, dimension)
    except UnitError:
        return text
    return f"{value:.0f}" if value == int(value) else repr(value)


def _op(text: str) -> str:
    """Return the operation that *text*, such as ``AllReduce`` or ``all_reduce_perf``, means; *text* itself if it means none."""
    return _KNOWN_NAMES.get(re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("nccl").removesuffix("_perf")), text)


def nccl_rules(text: str) -> str:
    """Return the version whose rules stand for the release *text* (``2.18.5``, ``NCCL 22902``, blank); *text* itself if it is none."""
    if not text or "rccl" in text.lower():
        return _NEWEST
    return text if minor_release(text) is None else constants_of(text).name


def network_meant(text: str) -> str:
    """Return the kind of network that *text*, such as ``InfiniBand HDR``, means; *text* itself if it means none."""
    plain = text.lower()
    return plain if plain in NETWORKS else next((kind for words, kind in _NETWORK_WORDS.items() if re.fullmatch(words, plain)), text)


def _hardware(text: str) -> str:
    """Return the machine of the catalog that differs from *text* in spelling only; *text* itself if there is none."""
    names = all_names("hardware")
    same = {str(name) for name in names if plain_name(name) == plain_name(text)}
    return same.pop() if text not in names and len(same) == 1 else text


def _predictable(path: Path, line: int, cells: Mapping[str, str]) -> CollectiveRecord:
    """Return the record in *cells*. Raise SpecError if it is invalid, or if there is no such job on its machine."""
    record = record_of(path, line, COLUMNS, [cells[name] for name in COLUMNS])
    if record.nodes * record.gpus_per_node < 2:
        raise SpecError("one GPU alone exchanges nothing; give the GPUs of all nodes as gpus, or of each as gpus_per_node")
    layout = plan_of(record.hardware, record.nodes, record.gpus_per_node, record.tuning).layout
    if record.nodes > 1 and record.network in _INSIDE:
        between = [name for name in NETWORKS if name not in _INSIDE]
        raise SpecError(f"network {record.network} is inside a node, but nodes is {record.nodes}; write one of {', '.join(between)}")
    if record.nodes == 1 and record.network not in _INSIDE and not layout.isolated:
        raise SpecError(f"network {record.network} is between nodes, but nodes is 1; write one of {', '.join(_INSIDE)}")
    return record
