"""How is a Chrome trace stored? In one file, or in a folder with a file per rank or stage, with the header of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim import __version__
from sim.spec.whole_file import write_file, write_files
from sim.spec.yaml import SpecError

TraceEvent = dict[str, Any]


def span(category: str, name: str, pid: int, tid: int, t0: float, t1: float, args: dict[str, Any]) -> TraceEvent:
    """Return the event of an activity from *t0* to *t1* (s) in one track."""
    start, length = round(t0 * 1e6, 6), round((t1 - t0) * 1e6, 6)
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args}


def kineto_document(
    rank: int, world_size: int, shows: Mapping[str, Any], events: Sequence[TraceEvent], groups: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the trace of *events* of *rank* (the first, if several) as Kineto's JSON object; *shows* describes what was simulated.

    *groups* are the process groups of *rank*.
    """
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "deviceProperties": [],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size} | _configured(groups),
        "stallsim": {"version": __version__, **shows},
        "traceEvents": events,
    }


def _configured(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"pg_count": len(groups), "pg_config": list(groups)} if groups else {}


def write_traces(
    path: Path, all_ranks: Callable[[], Mapping[str, Any]], parts: Iterable[tuple[str, Mapping[str, Any]]], each: str
) -> list[str]:
    """Write the trace *all_ranks* to *path* (``.json``, ``.json.gz``), or *parts*, by file name, into *path* as a folder.

    Return the names of the files in the folder; empty if *path* is a single file. *each* completes the error message: what each file is
    for. Raise SpecError if writing fails.
    """
    if path.suffix in (".json", ".gz"):
        write_file(path, _encoded(all_ranks(), path.name))
        return []
    if path.suffix:
        raise SpecError(f"{path}: write FILE.json, FILE.json.gz, or the name of a folder for one file {each}")
    files = {name: _encoded(part, name) for name, part in parts}
    write_files(path, files)
    return list(files)


def _encoded(document: Mapping[str, Any], name: str) -> bytes:
    head = json.dumps({key: value for key, value in document.items() if key != "traceEvents"})  # readers search for text with these spaces
    events = json.dumps(document["traceEvents"], separators=(",", ":"))
    text = f'{head[:-1]}, "traceEvents": {events}}}\n'.encode()
    return gzip.compress(text, mtime=0) if name.endswith(".gz") else text
