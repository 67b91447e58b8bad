"""What comes out when fields vary? One row a point, computed on all cores or on a cluster, kept as it comes, never computed twice.

Each finished point is appended as one JSON line to a journal beside the result (``sweep.csv.journal``), with a fingerprint of the
question; a sweep that was killed reads it and goes on, dropping a last line that was cut off. When all points are there the table
is written whole and the journal removed, so an interrupted sweep ends with the same file as an uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from sim import __version__
from sim.spec.elsewhere import as_written, read_files
from sim.spec.library import fingerprint
from sim.spec.shelf import standing
from sim.spec.yaml import SpecError
from sim.study.cluster import each_on_cluster, pack
from sim.study.pool import each
from sim.study.scenario import Scenario, prepare
from sim.study.space import Point

Figures = Mapping[str, Any]
"""The row of one run: figures by column."""
Runner = Callable[[Scenario], Figures]


class Done(NamedTuple):
    """How far a sweep is."""

    points: int
    of: int
    kept: int
    """Points that an earlier, interrupted sweep had computed."""


def at(scenario: Scenario, point: Point) -> Scenario:
    """Return *scenario* with the fields of *point* set; ``nodes``, ``gpus``, ``batch`` and other options may vary too."""
    options = {key: _option(key, value) for key, value in point if key in OPTIONS}
    overrides = tuple(f"{key}={value}" for key, value in point if key not in OPTIONS)
    return replace(scenario, overrides=(*scenario.overrides, *overrides), **options)


OPTIONS: Mapping[str, type[int] | type[str]] = {
    "nodes": int, "gpus": int, "batch": int, "global_batch": int, "precision": str, "stack": str, "placement": str, "hardware": str,
    "workload": str,
}  # fmt: skip
"""Names that vary an option of the run, not a field of a description."""


def _option(key: str, value: str) -> Any:
    kind = OPTIONS[key]
    try:
        return kind(value)
    except ValueError:
        raise SpecError(f"--vary {key}={value}: a whole number is due") from None


def sweep(
    scenario: Scenario,
    points: Sequence[Point],
    run: Runner,
    journal: Path | None = None,
    processes: int | None = None,
    progress: Callable[[Done], None] | None = None,
    cluster: str | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each of *points*: its fields, then the figures of *run*; a point that cannot run has ``problem`` instead.

    With a *journal* file, points of an interrupted sweep of the same question are taken from there, and new ones added to it.
    Up to *processes* processes of this machine compute them, or the workers of the dask scheduler at the address *cluster*.
    Raise SpecError where the first point is bad input.
    """
    with read_files() as read:
        prepare(at(scenario, points[0]))  # a name that is wrong is wrong at every point
    keys = [fingerprint([asdict(at(scenario, point)), __version__]) for point in points]
    known = dict(_read(journal)) if journal else {}
    missing = [(key, at(scenario, point)) for key, point in dict(zip(keys, points, strict=True)).items() if key not in known]
    kept = len(set(keys)) - len(missing)
    question = partial(_figures, run, uuid4().hex)
    if cluster is None or not missing:
        found = each(question, missing, processes)
    else:
        found = each_on_cluster(cluster, question, missing, pack(read | _read_by(scenario, points)))
    with _Journal(journal) as note:
        for count, (key, figures) in enumerate(found, start=1):
            known[key] = figures
            note(key, figures)
            if progress is not None:
                progress(Done(kept + count, len(set(keys)), kept))
    return [{**dict(point), **known[key]} for key, point in zip(keys, points, strict=True)]


def _figures(run: Runner, sweep: str, task: tuple[str, Scenario]) -> tuple[str, dict[str, Any]]:
    """Answer one point of *sweep*: a process that answers several takes descriptions not to change meanwhile."""
    key, scenario = task
    try:
        with standing(sweep):
            return key, {**run(scenario), "problem": ""}
    except SpecError as error:
        return key, {"problem": as_written(str(error))}


def _read_by(scenario: Scenario, points: Sequence[Point]) -> set[Path]:
    """Return the files that some of *points* read because of a value that may name one, each such value once."""
    first = dict(points[0])
    values = dict.fromkeys((key, value) for point in points for key, value in point if not value[:1].isdigit() and first[key] != value)
    with read_files() as read:
        for key, value in values:
            with suppress(SpecError):
                prepare(at(scenario, tuple({**first, key: value}.items())))
    return read


def _read(journal: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the finished points of *journal*; a line that a kill cut off is no point."""
    if not journal.exists():
        return
    for line in journal.read_bytes().splitlines():
        try:
            entry = json.loads(line)
            yield entry["key"], entry["figures"]
        except (ValueError, TypeError, KeyError):
            continue


class _Journal:
    """The journal while it grows; each line has left this process before the next point counts."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> Callable[[str, Figures], None]:
        if self._path is None:
            return lambda key, figures: None
        try:
            self._file = self._path.open("ab")
        except OSError as error:
            raise SpecError(f"{self._path}: cannot be written: {error.strerror}") from None
        if self._path.stat().st_size:
            self._file.write(b"\n")  # ends a line that a kill may have cut off
        return self._note

    def _note(self, key: str, figures: Figures) -> None:
        self._file.write(json.dumps({"key": key, "figures": figures}).encode() + b"\n")
        self._file.flush()

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._file.close()
            if not self._path.stat().st_size:  # nothing came of it
                self._path.unlink()
