"""Which files make up a Chakra trace of several ranks? Files with the same name, numbered from 0: ``name.0.et``, ``name.1.et``, ...

A trace is given as ``name.et``, as one of its files, as ``name.{rank}.et``, or as a folder that contains one trace and is not the name of
a workload. Groups of ranks are in ``comm_group.json`` next to the files, in ASTRA-sim's format: ``{"1": [0, 1], "2": [2, 3]}``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from sim.spec.catalog import catalog
from sim.spec.foreign.chakra_wire import Malformed, TraceNode, messages
from sim.spec.strict import read_json, read_packed, unpacked
from sim.spec.yaml import SpecError

MAX_BYTES: Final = 512 * 2**20
"""Maximum size of the trace of one rank."""
_GROUPS_HINT: Final = 'expected communicators with their ranks, such as {"1": [0, 1]}'
GROUPS_FILE: Final = "comm_group.json"
_ENDINGS: Final = (".et", ".et.gz", ".et.json")
_RANK: Final = re.compile(r"^(?P<name>.*)\.(?P<rank>\d+)(?P<ending>\.et(?:\.gz|\.json)?|\.json)$")


class TraceFiles(NamedTuple):
    """The nodes of each rank in their order, and the files they are from."""

    name: str
    paths: tuple[Path, ...]
    ranks: tuple[list[TraceNode], ...]
    groups: Mapping[str, tuple[int, ...]]
    """Ranks of each communicator in the file of groups, by name."""
    sha256: str


def trace_paths(text: str) -> tuple[str, dict[int, Path]] | None:
    """Return the name of the trace given as *text*, and its files by rank; None if *text* is not a trace.

    Raise SpecError for a folder with several traces.
    """
    path = Path(text)
    if "{rank}" in path.name:
        return text.replace("{rank}", "N"), _numbered_files(path.parent, *path.name.split("{rank}", 1))
    if path.is_dir():
        return _of_folder(path) if text.strip() and text not in catalog("workloads") else None
    if path.name.endswith(_ENDINGS) and path.is_file():
        match = _RANK.match(path.name)
        return (
            (str(path), {0: path}) if match is None else (match["name"], _numbered_files(path.parent, f"{match['name']}.", match["ending"]))
        )
    if not path.name.endswith(".et"):
        return None
    stem = path.name.removesuffix(".et")
    return stem, next((files for ending in _ENDINGS if (files := _numbered_files(path.parent, f"{stem}.", ending))), {})


def _numbered_files(folder: Path, before: str, after: str) -> dict[int, Path]:
    """Return the files of *folder* with a rank between *before* and *after*."""
    numbered = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
    matches = ((numbered.fullmatch(path.name), path) for path in _files(folder))
    return {int(match[1]): path for match, path in matches if match}


def _files(folder: Path) -> list[Path]:
    """Return the contents of *folder*; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _of_folder(folder: Path) -> tuple[str, dict[int, Path]] | None:
    traces: dict[tuple[str, str], dict[int, Path]] = defaultdict(dict)
    for path in _files(folder):
        match = _RANK.match(path.name)
        if match and match["ending"] in _ENDINGS:
            traces[match["name"], match["ending"]][int(match["rank"])] = path
    if not traces:
        return None
    if len(traces) > 1:
        names = ", ".join(sorted({name for name, _ in traces})[:5])
        raise SpecError(f"{folder}: holds several traces ({names}); name one, such as {folder / next(iter(traces))[0]}.et")
    ((name, _), files) = next(iter(traces.items()))
    return name, files


def read_trace(text: str, groups: Path | None = None) -> TraceFiles:
    """Read the trace given as *text*; *groups* is the file with its communicators (default: ``comm_group.json`` next to it, if any).

    Raise SpecError, with the file, if that fails.
    """
    files = trace_paths(text)
    if files is None or not files[1]:
        raise SpecError(f"{text}: no such trace; expected files named {text.removesuffix('.et')}.0.et and so on, one per rank")
    name, by_rank = files
    missing = next((rank for rank in range(len(by_rank)) if rank not in by_rank), None)
    if missing is not None:
        last = max(by_rank)
        raise SpecError(
            f"{by_rank[last]}: belongs to rank {last}, but rank {missing} is missing; ranks must be numbered from 0 without gaps"
        )
    paths = tuple(by_rank[rank] for rank in range(len(by_rank)))
    default_groups = paths[0].parent / GROUPS_FILE
    source = groups or (default_groups if default_groups.is_file() else None)
    digest = sha256()
    ranks = tuple(_read(path, digest.update) for path in paths)
    return TraceFiles(name, paths, ranks, read_groups(source, len(paths)) if source else {}, digest.hexdigest())


def _read(path: Path, note: Callable[[bytes], None]) -> list[TraceNode]:
    """Return the nodes of *path* and pass its bytes to *note*. Raise SpecError if that fails."""
    data = read_packed(path, MAX_BYTES)
    note(data)
    try:
        return messages(unpacked(path, data, MAX_BYTES))
    except Malformed as error:
        raise SpecError(f"{path}: {error}") from None


def read_groups(path: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """Return the communicators in *path* by name. Raise SpecError if it is not a valid file, or has a rank outside of *ranks*."""
    value = read_json(path, _GROUPS_HINT)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: {_GROUPS_HINT}")
    for name, members in value.items():
        if not isinstance(members, list) or not members or any(type(rank) is not int for rank in members):
            raise SpecError(f"{path}: communicator {name}: expected a list of ranks, such as [0, 1]")
        wrong = next((rank for rank in members if not 0 <= rank < ranks), None)
        if wrong is not None:
            raise SpecError(f"{path}: communicator {name}: rank {wrong}, but the trace has ranks 0 to {ranks - 1}")
        if len(set(members)) < len(members):
            raise SpecError(f"{path}: communicator {name}: a rank appears twice; list each rank once")
    return {name: tuple(members) for name, members in value.items()}
