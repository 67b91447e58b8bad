"""Which collectives does somebody else's table have? Records in our schema, notes on what was translated, and the rows that were not read.

Columns, operations and networks may have the names of other tables, sizes and times may have units, and GPUs may be counted over all
nodes instead of per node. A system may be described in words (`systems`) instead of by a machine, and a time by its bandwidth. A row that
names an unknown machine, or that lacks something, is listed with its reason; all others are read.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

from calibration.collectives.nccl_tests import is_nccl_tests, nccl_tests_rows, network_of
from calibration.collectives.records import COLUMNS, NETWORKS, OPTIONAL_COLUMNS, CollectiveRecord, plan_of, plan_on, record_of
from calibration.collectives.systems import SystemWords, described, network_meant_on, set_options, system_meant, transport_meant
from calibration.run_words import NAMES_OF_COLUMNS, plain_column, plain_name
from sim.spec.algorithms import minor_release
from sim.spec.catalog import SUFFIX, all_names
from sim.spec.strict import csv_lines, csv_rows, decode, read_bytes
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl.constants import constants_of
from sim.training.collectives.price.collective_plan import DEFAULT, Op
from sim.units import UnitError, parse

_TOTAL: Final = "gpus"
_OTHER_NAMES: Final[Mapping[str, str]] = {
    **NAMES_OF_COLUMNS,
    "operation": "op", "collective": "op", "node_count": "nodes",
    **dict.fromkeys(("size", "size_b", "size_bytes", "message_bytes"), "bytes"),
    **dict.fromkeys(("gpu_count", "n_gpus", "num_gpus", "ranks", "world_size"), _TOTAL),
    **dict.fromkeys(("nccl_version", "nccl_ver", "nccl_release"), "nccl"),
    "transport": "network", "interconnect": "network", "algo": "algorithm", "proto": "protocol",
    "algo_if_known": "algorithm", "g": "gpus_per_process", "gpus_per_proc": "gpus_per_process",
    **dict.fromkeys(("algbw", "algbw_gbps", "algbw_gb/s", "algo_bandwidth"), "algbw"),
    **dict.fromkeys(("busbw", "busbw_gbps", "busbw_gb/s", "bus_bandwidth"), "busbw"),
}  # fmt: skip
_RATES: Final = ("algbw", "busbw")
"""Bandwidths of nccl-tests in GB/s, from which a missing time follows."""
_WORDS: Final = ("system", "gpu")
"""Columns that describe a machine in words, if no column names it."""
_UNITS_OF_TIME: Final[Mapping[str, float]] = {
    **dict.fromkeys(("time_us", "latency_us", "avg_time_us"), 1e-6), **dict.fromkeys(("time_ms", "latency_ms", "avg_time_ms"), 1e-3),
    **dict.fromkeys(("seconds", "latency_s"), 1.0),
}  # fmt: skip
_UNDERSTOOD: Final = tuple(dict.fromkeys((*COLUMNS, _TOTAL, *_UNITS_OF_TIME, *_RATES, *_WORDS)))
_ALMOST: Final = 0.8
"""Similarity from which a name is that of a column with a wrong letter; ``bites`` and ``bytes`` have 0.8."""
_NETWORK_WORDS: Final[Mapping[str, str]] = {
    r"nv(link|switch).*|nvl\d+": "nvlink", r"xgmi|infinity ?fabric.*": "xgmi", r"pcie.*|pci express.*": "pcie",
}  # fmt: skip
"""Networks inside a node, by the words that mean them; for those between nodes see `transport_meant`."""
_INSIDE: Final = ("nvlink", "xgmi", "pcie")
"""Networks inside a node; a rack whose GPUs NVLink connects is one node."""
_NEWEST: Final = "2.30"
"""Rules for tables that do not state NCCL's version, and for other libraries that follow NCCL's, such as RCCL."""
_KNOWN_NAMES: Final[Mapping[str, str]] = {re.sub(r"[^a-z]", "", op): op for op in get_args(Op)} | {
    "p2p": "send_recv", "sendreceive": "send_recv", "bcast": "broadcast", "all2all": "all_to_all", "a2a": "all_to_all",
}  # fmt: skip


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
    if misnamed := _misnamed(names):
        raise SpecError([f"{where}: {problem}" for problem in misnamed])
    if twice := next((name for name in names if name in (*COLUMNS, _TOTAL) and names.count(name) > 1), None):
        raise SpecError(f"{where}: column '{twice}' appears twice")
    present = {"time_s" if name in (*_UNITS_OF_TIME, *_RATES) else name for name in names}
    present |= {"gpus_per_node"} if _TOTAL in names else set()
    in_words = "hardware" not in names and bool(present & {*_WORDS})
    present |= {"hardware", "network", "nodes"} if in_words else set()
    if missing := [name for name in COLUMNS if name not in present and name not in OPTIONAL_COLUMNS]:
        raise SpecError(
            f"{where}: expected the columns {', '.join(COLUMNS)}; {', '.join(missing)} missing; system or gpu may describe the machine in "
            "place of hardware; or pass the output of nccl-tests"
        )
    notes = [f"{where}: column '{mine}' was read as {name}" for mine, name in zip(header, names, strict=True) if mine != name]
    ignored = [name for name in names if name not in _UNDERSTOOD or (name in _WORDS and name not in COLUMNS and not in_words)]
    notes += [f"{where}: column '{name}' is not part of a record and is ignored" for name in ignored]
    if len(rows) < 2:
        raise SpecError(f"{path}: has no rows below its header")
    notes += [f"{where}: column 'nodes' is missing; GPUs that one node has are on one"] if in_words and "nodes" not in names else []
    records: list[CollectiveRecord] = []
    skipped: list[UnpredictedRow] = []
    told: dict[str, None] = {}
    if "nccl" not in names and not in_words:
        told[f"no column 'nccl': the rules of {_NEWEST}"] = None
    for number, cells in rows[1:]:
        row = dict(zip(names, cells, strict=False))
        try:
            if len(cells) > len(header):
                raise SpecError(f"{len(cells)} values for {len(header)} columns; put values that contain a comma in quotes")
            row_read = _translated(row, in_words or "nccl" in names)
            records.append(_predictable(path, number, row_read))
            told |= dict.fromkeys(row_read.notes)
        except SpecError as error:
            reason = str(error).removeprefix(f"{path}:{number}: ")
            place = row.get("hardware") or row.get("system") or row.get("gpu") or "?"
            skipped.append(UnpredictedRow(f"{path}:{number}", f"{row.get('op', '?')} on {place}", reason))
    return CollectiveTable(tuple(records), (*notes, *(f"{where}: {note}" for note in told)), tuple(skipped))


def _column(name: str, header: Sequence[str]) -> str:
    """Return the column that *name* means; *name* itself if it means none, or one that *header* has."""
    plain = plain_column(re.sub(r"[\s_]*[\[(](.+)[\])]$", r"_\1", name))
    other = _OTHER_NAMES.get(plain, plain)
    return other if other in _UNDERSTOOD and (other == name or other not in header) else name


def _misnamed(names: Sequence[str]) -> list[str]:
    """Return a message for each of *names* that is almost that of a column which the table lacks."""
    present = {_role(name) for name in names}
    near = ((name, difflib.get_close_matches(name.lower(), _UNDERSTOOD, n=1, cutoff=_ALMOST)) for name in names if name not in _UNDERSTOOD)
    return [f"unknown column '{name}'; did you mean '{meant[0]}'?" for name, meant in near if meant and _role(meant[0]) not in present]


def _role(name: str) -> str:
    """Return *name*, or one of the columns that say the same in other units."""
    return "time_s" if name in _UNITS_OF_TIME else _TOTAL if name == "gpus_per_node" else name


class _RowRead(NamedTuple):
    """A row in the words, units and columns of records, the overrides of its machine, and notes on what was understood."""

    cells: Mapping[str, str]
    overrides: tuple[str, ...]
    notes: tuple[str, ...]


def _translated(row: Mapping[str, str], tells_nccl: bool) -> _RowRead:
    """Return what *row* means; if *tells_nccl*, with a note on a release without rules of its own. Raise SpecError if it contradicts."""
    cells = {name: cell.strip() for name, cell in row.items()}
    for name, factor in _UNITS_OF_TIME.items():
        if cells.get(name) and not cells.get("time_s"):
            cells["time_s"] = _scaled(cells[name], factor)
    for name in ("nodes", _TOTAL, "gpus_per_node"):
        cells[name] = re.sub(r"\.0+$", "", cells.get(name, ""))
    nodes, total = cells["nodes"], cells[_TOTAL]
    overrides: tuple[str, ...] = ()
    notes: list[str] = []
    if not cells.get("hardware"):
        cells, overrides, note = _in_words(cells)
        notes.append(note)
    elif total and not cells["gpus_per_node"] and nodes.isdigit() and total.isdigit() and int(nodes):
        if int(total) % int(nodes):
            raise SpecError(f"{total} GPUs do not divide evenly over {nodes} nodes")
        cells["gpus_per_node"] = str(int(total) // int(nodes))
    words: dict[str, Callable[[str], str]] = {"op": _op, "network": network_meant, "hardware": _hardware, "algorithm": _first_word}
    words |= {"bytes": _size, "time_s": lambda text: _quantity(text, "time")}
    told = cells.get("network", "")
    cells |= {name: meant(cells[name]) for name, meant in words.items() if cells.get(name)}
    cells["system"] = cells.get("system") or Path(cells["hardware"]).name.removesuffix(SUFFIX)  # else systems without a name would be one
    if not overrides and told and nodes.isdigit() and int(nodes) > 1:
        overrides = network_meant_on(cells["hardware"], told, int(nodes))
        notes += [f"network '{told}' was read as {' '.join([cells['hardware'], *set_options(overrides)])}"] if overrides else []
    cells["bytes"], cells["time_s"] = _bytes_and_time(cells, row.get("op", "").strip().lower())
    stated = cells.get("nccl", "")
    cells["nccl"] = nccl_rules(stated)
    if tells_nccl and cells["nccl"] != stated:
        notes.append(f"{f'nccl {stated!r}' if stated else 'a blank nccl'} follows the rules of {cells['nccl']}")
    return _RowRead({name: cells.get(name) or OPTIONAL_COLUMNS.get(name, "") for name in COLUMNS}, overrides, tuple(notes))


def _in_words(cells: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...], str]:
    """Return *cells* with the machine, network, NCCL and processes that they describe, overrides of the machine, and a note."""
    nodes = cells["nodes"]
    if nodes and not (nodes.isdigit() and int(nodes)):
        raise SpecError(f"nodes: '{nodes}' is not a whole number of 1 or more")
    total = cells[_TOTAL] or str(int(cells["gpus_per_node"] or 0) * int(nodes or 1) or "")
    if not total.isdigit() or not int(total):
        raise SpecError(f"{_TOTAL}: '{total}' is not a whole number of 1 or more")
    if int(total) < 2:
        raise SpecError("one GPU alone exchanges nothing; give the GPUs of all nodes as gpus, or of each as gpus_per_node")
    system, note = cells.get("system", ""), cells.get("note", "")
    words = SystemWords(system, cells.get("gpu", ""), cells.get("network", ""), note, int(nodes) if nodes else None, int(total))
    meant = system_meant(words)
    node = described(meant.hardware, meant.overrides).groups[0].node
    text = f"{system}; {note}"
    read = {**cells, "hardware": meant.hardware, "nodes": str(meant.nodes), "gpus_per_node": str(meant.gpus_per_node)}
    read["network"] = network_of(node, meant.nodes)
    if read["network"] == "nvlink" and node.nvlink is not None and node.nvlink.switch_links == 0:  # bridges may join pairs only
        carrier = plan_on(meant.hardware, 1, meant.gpus_per_node, DEFAULT, meant.overrides).layout.carrier()
        read["network"] = "nvlink" if carrier == "nvlink" else "pcie"
    read["system"] = system or words.gpu
    read["nccl"] = cells.get("nccl") or _release_in(text)
    for name, pattern in _SETTINGS.items():
        if not cells.get(name) and (stated := re.search(pattern, text, re.IGNORECASE)):
            read[name] = stated.group(1)
    if not cells.get("gpus_per_process") and re.search(r"(single|one)[ -]process(?! per gpu| a gpu| each)", text, re.IGNORECASE):
        read["gpus_per_process"] = read.get("gpus_per_process") or str(meant.gpus_per_node)
    place = f"{meant.nodes} x {meant.gpus_per_node} GPUs over {read['network']}"
    return read, meant.overrides, f"'{' with '.join(filter(None, (system, words.gpu)))}' was read as {place}, {meant.assumed}"


_SETTINGS: Final[Mapping[str, str]] = {
    "algorithm": r"nccl_algo=\"?([\w^]+(?:,[\w^]+)*)", "protocol": r"nccl_proto=\"?([\w^]+(?:,[\w^]+)*)",
    "gpus_per_process": r"(?<!\w)-g[ =]?(\d+)",
}  # fmt: skip
"""Settings in the words of a row."""


def _release_in(text: str) -> str:
    """Return the release of NCCL that *text* states, ``rccl`` if that is the library, or an empty text."""
    stated = re.search(r"(?<![a-z-])nccl[ _-]?[v~]?(2\.\d{1,2}(?:\.\d+)?|2\d{4})(?![\w.]*\d)", text, re.IGNORECASE)
    return stated.group(1) if stated else "rccl" if "rccl" in text.lower() else ""


def _first_word(text: str) -> str:
    return re.split(r"[\s(]", text)[0]


_FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), lambda ranks: (ranks - 1) / ranks),
}
"""Bus bandwidth over algorithm bandwidth (nccl-tests doc/PERFORMANCE.md); 1 for the other operations."""
_ROUNDED: Final = 0.006
"""Largest error of bandwidths that nccl-tests prints, GB/s."""
_CONTRADICTION: Final = 0.05
"""Largest difference between a row's time and its bandwidth beyond rounding: estimate, as for other tables."""
_PER_RANK: Final = ("all_gather", "all_to_all", "gather", "scatter")
"""Operations whose size OSU's benchmarks print for one rank, or for one pair of ranks."""


def _bytes_and_time(cells: Mapping[str, str], printed: str) -> tuple[str, str]:
    """Return the bytes and the seconds in *cells*, of an operation that is *printed* so; a missing time follows from a bandwidth.

    Raise SpecError if they contradict.
    """
    op, seconds = cells.get("op", ""), _number(cells.get("time_s", ""))
    nbytes, nodes, per_node = (_number(cells.get(name, "")) for name in ("bytes", "nodes", "gpus_per_node"))
    algbw, busbw = (_number(cells.get(name, "")) for name in _RATES)
    if not nbytes or not nodes or not per_node or op not in _KNOWN_NAMES.values():
        return cells.get("bytes", ""), cells.get("time_s", "")  # reported where cells are checked
    ranks = int(nodes * per_node)
    if printed.startswith("osu_") and op in _PER_RANK:
        nbytes *= ranks
    factor = _FACTORS[op](ranks) if op in _FACTORS else 1.0
    if algbw and busbw and algbw > 10 * _ROUNDED and not _agree(busbw, algbw * factor):
        raise SpecError(f"busbw is {busbw / algbw:.3g} times algbw, not {factor:.3g} times as with {ranks} GPUs; correct gpus or op")
    rate = algbw or (busbw / factor if busbw else 0.0)
    if seconds and rate > 10 * _ROUNDED and not _agree(rate, nbytes / seconds / 1e9):
        column = "algbw" if algbw else "busbw"
        raise SpecError(
            f"{column} {algbw or busbw:g} contradicts the time: {nbytes:g} bytes in {seconds:g} s have an algbw of "
            f"{nbytes / seconds / 1e9:.4g} GB/s; correct bytes, time or {column}"
        )
    is_missing = re.fullmatch(r"-?|n/?a|nan|none", cells.get("time_s", "").lower()) is not None
    if is_missing and not rate:
        raise SpecError("time is missing; write it, or algbw or busbw in GB/s")
    if is_missing:
        if rate < 10 * _ROUNDED:
            raise SpecError(f"time is missing, and a bandwidth of {rate:g} GB/s is rounded too much to tell it; write the time")
        return f"{nbytes:.0f}", repr(nbytes / rate / 1e9)
    return f"{nbytes:.0f}", cells.get("time_s", "")


def _agree(one: float, other: float) -> bool:
    return abs(one - other) <= 2 * _ROUNDED + _CONTRADICTION * max(one, other)


def _number(text: str) -> float:
    """Return the number in *text*; 0 if there is none."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


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


def _size(text: str) -> str:
    """Return the bytes in *text*; a letter alone counts powers of 1024, as in the options of nccl-tests."""
    bare = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])", text.lower())
    return f"{float(bare.group(1)) * 1024.0 ** ('kmg'.index(bare.group(2)) + 1):.0f}" if bare else _quantity(text, "size")


def _op(text: str) -> str:
    """Return the operation that *text*, such as ``AllReduce`` or ``all_reduce_perf``, means; *text* itself if it means none.

    Raise SpecError for OSU's benchmarks of MPI.
    """
    plain = text.lower()
    if plain.startswith("osu_") and not plain.startswith(("osu_xccl_", "osu_nccl_")):
        raise SpecError(f"op {text}: is OSU's benchmark of MPI, whose algorithms are not NCCL's; osu_xccl_* are of NCCL")
    plain = re.sub(r"^(osu_[xn]ccl_|n?r?ccl_?)|_perf$", "", plain)
    return _KNOWN_NAMES.get(re.sub(r"[^a-z0-9]", "", plain), text)


def nccl_rules(text: str) -> str:
    """Return the version whose rules stand for the release *text* (``2.18.5``, ``NCCL 22902``, blank); *text* itself if it is none."""
    if not text or "rccl" in text.lower():
        return _NEWEST
    return text if minor_release(text) is None else constants_of(text).name


def network_meant(text: str) -> str:
    """Return the kind of network that *text*, such as ``InfiniBand HDR``, means; *text* itself if it means none."""
    plain = text.lower()
    if plain in NETWORKS:
        return plain
    transport = transport_meant(plain) or ""
    named = (kind for words, kind in _NETWORK_WORDS.items() if re.fullmatch(words, plain))
    return next(named, next((kind for kind in NETWORKS if kind in transport), text))


def _hardware(text: str) -> str:
    """Return the machine of the catalog that differs from *text* in spelling only; *text* itself if there is none."""
    names = all_names("hardware")
    same = {str(name) for name in names if plain_name(name) == plain_name(text)}
    return same.pop() if text not in names and len(same) == 1 else text


def _predictable(path: Path, line: int, row: _RowRead) -> CollectiveRecord:
    """Return the record in *row*. Raise SpecError if it is invalid, or if there is no such job on its machine."""
    record = record_of(path, line, COLUMNS, [row.cells[name] for name in COLUMNS])._replace(overrides=row.overrides)
    if record.nodes * record.gpus_per_node < 2:
        raise SpecError("one GPU alone exchanges nothing; give the GPUs of all nodes as gpus, or of each as gpus_per_node")
    plan = plan_of(record)
    plan.choice(record.nbytes, record.op)  # which fails if a setting names no algorithm of this release
    layout = plan.layout
    if record.nodes > 1 and record.network in _INSIDE:
        between = [name for name in NETWORKS if name not in _INSIDE]
        raise SpecError(f"network {record.network} is inside a node, but nodes is {record.nodes}; write one of {', '.join(between)}")
    if record.nodes == 1 and record.network not in _INSIDE and not layout.isolated:
        raise SpecError(f"network {record.network} is between nodes, but nodes is 1; write one of {', '.join(_INSIDE)}")
    return record
