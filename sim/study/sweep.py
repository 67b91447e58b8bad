"""How do results change when fields vary? One row per point, computed on all cores or on a cluster, and never computed twice.

Each finished point goes to a journal next to the result (`sim.study.journal`), under a fingerprint of the question and of every file
that it reads; a sweep that was killed resumes from there. Rows are read from the journal one by one, in the order of the points, so
a sweep of many points takes little memory, and an interrupted one ends with the same file as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from sim.spec.catalog import suggestions
from sim.spec.elsewhere import read_files, with_user_paths
from sim.spec.library import fingerprint
from sim.spec.memo import caching
from sim.spec.overrides import single_overrides
from sim.spec.yaml import SpecError
from sim.study.arguments import require_power_cap
from sim.study.computing import Computing, compute, question_of
from sim.study.infeasible import Infeasible
from sim.study.jobs_file import jobs_file
from sim.study.journal import Journal, RowFigures
from sim.study.layout_options import FIELDS
from sim.study.order import compute_order
from sim.study.pool import Progress
from sim.study.scenario import OPTION_KEYS, Scenario, prepare
from sim.study.space import Point

Runner = Callable[[Scenario], RowFigures]


class SweepRows:
    """The rows of a sweep in the order of its points: the fields of each, then its figures; each iteration reads them again."""

    def __init__(self, points: Sequence[Point], keys: Sequence[str], figures: Journal) -> None:
        self._points, self._keys, self._figures = points, keys, figures

    def __len__(self) -> int:
        return len(self._points)

    def forget(self) -> None:
        """Remove the file that keeps the points, once the result is written."""
        self._figures.remove()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({**dict(point), **self._figures[key]} for point, key in zip(self._points, self._keys, strict=True))


def scenario_at(scenario: Scenario, point: Point) -> Scenario:
    """Return *scenario* with the fields of *point* set; ``nodes``, ``gpus``, ``batch`` and other options may vary too."""
    options = {key: _option(key, value) for key, value in point if key in OPTIONS}
    overrides = tuple(f"{key}={value}" for key, value in point if key not in OPTIONS)
    return replace(scenario, overrides=(*scenario.overrides, *overrides), **options)


OPTIONS: Mapping[str, type[int] | type[str]] = {
    "nodes": int, "gpus": int, "batch": int, "global_batch": int, "precision": str, "fp8_recipe": str, "stack": str, "placement": str,
    "hardware": str, "workload": str, "seed": int, "power_cap": str,
}  # fmt: skip
"""Names that vary an option of the run, not a field of a description."""


def _option(key: str, value: str) -> Any:
    kind = OPTIONS[key]
    try:
        return kind(value)
    except ValueError:
        raise SpecError(f"--vary {key}={value}: expected a whole number") from None


def sweep(scenario: Scenario, points: Sequence[Point], run: Runner, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of `sweep_rows` as a list."""
    with sweep_rows(scenario, points, run, **options) as rows:
        return list(rows)


@contextmanager
def sweep_rows(
    scenario: Scenario,
    points: Sequence[Point],
    run: Runner,
    journal: Path | None = None,
    processes: int | None = None,
    progress: Progress = lambda done, of: None,
    cluster: str | None = None,
    notice: Callable[[str], None] = lambda text: None,
    alone: bool = False,
) -> Iterator[SweepRows]:
    """Compute *points* and yield their rows: the fields, then the figures of *run*; a point that cannot run has ``problem`` instead.

    With a *journal* file, points of an interrupted sweep of the same question are read from it, and new points are added. With *alone*, a
    journal that holds points of another question is refused.
    Up to *processes* processes of this machine compute the points, or the workers of the dask scheduler at the address *cluster*; *notice*
    gets messages about their problems, and *progress* the number of points done and their total. Raise SpecError if the first point is bad
    input, or if another sweep has the *journal* open.
    """
    _check_keys(points)
    _refuse_given(scenario, [key for key, _ in points[0]])
    require_power_cap(scenario.power_cap)
    if jobs_file(scenario.workload) is not None:
        raise SpecError(f"{scenario.workload}: lists several jobs; expected one workload")
    with read_files() as read, _as_varied(points[0]), suppress(Infeasible):
        prepare(scenario_at(scenario, points[0]))  # a name that is wrong is wrong at every point
    if journal is not None or cluster is not None:
        read |= _read_by(scenario, points)
    question = question_of(asdict(scenario), read)
    keys = [fingerprint([question, point]) for point in points]
    with Journal(journal, of_output=True) as done_before:
        if alone and (others := done_before.others(keys)):
            raise SpecError(
                f"{journal}: holds {others} point{'s' * (others > 1)} of another, unfinished sweep (other points or options, or files "
                "that have changed since); finish that one, write to another file, or discard them with --force"
            )
        missing = {key: point for key, point in zip(keys, points, strict=True) if key not in done_before}
        different, name = len(set(keys)), uuid4().hex
        with caching(name):
            order = compute_order(points if missing else (), partial(scenario_at, scenario))
        tasks = sorted(missing.items(), key=lambda task: order.place(task[1]))
        by = Computing(processes, cluster, done_before, question, read, notice)
        done = compute(partial(_figures, run, name, scenario), tasks, by, order.group_size)
        for count, _ in enumerate(done, start=different - len(missing) + 1):
            progress(count, different)
        yield SweepRows(points, keys, done_before)


def _figures(run: Runner, sweep: str, scenario: Scenario, task: tuple[str, Point]) -> tuple[str, RowFigures]:
    """Compute one point of *sweep*; a process that computes several assumes that descriptions do not change meanwhile."""
    key, point = task
    try:
        with caching(sweep), _as_varied(point):
            return key, {**run(scenario_at(scenario, point)), "problem": ""}
    except SpecError as error:
        return key, {"problem": with_user_paths(str(error))}


@contextmanager
def _as_varied(point: Point) -> Iterator[None]:
    """Make messages about the fields of *point* name them as the user typed them, after ``--vary``."""
    try:
        yield
    except SpecError as error:
        raise SpecError([_renamed(problem, point) for problem in error.problems]) from None


def _renamed(problem: str, point: Point) -> str:
    for key, value in point:
        label = f"--{key.replace('_', '-')} {value}" if key in OPTIONS else f"--set {key}={value}"
        if problem.startswith((f"{label}:", f"{label} ")):
            return f"--vary {key}={value}{problem.removeprefix(label)}"
    return problem


def _check_keys(points: Sequence[Point]) -> None:
    """Raise SpecError for a key that looks like a misspelled option, or for a value that its option cannot have."""
    for key, value in dict.fromkeys(pair for point in points for pair in point):
        if key == "power_cap":
            with _as_varied(((key, value),)):
                require_power_cap(value)
        elif key in OPTIONS:
            _option(key, value)
        elif "." not in key and key not in FIELDS and (near := suggestions(key, list(OPTIONS), most=1)):
            raise SpecError(f"--vary {key}={value}: unknown key '{key}'; did you mean '{near[0]}'?")


def _refuse_given(scenario: Scenario, varied: Sequence[str]) -> None:
    """Raise SpecError if an option or override of *scenario* sets a field that is *varied*, and would be ignored."""
    chosen = {name: getattr(scenario, name) for name in OPTIONS if name not in ("hardware", "workload")}
    given = {
        OPTION_KEYS.get(name, name): f"--{name.replace('_', '-')} {value}"
        for name, value in chosen.items()
        if value is not None and (name, value) != ("seed", 0)
    }
    given |= {f"training.{key}": option.rstrip("=") for option, key, _ in scenario.layout}
    given |= {text.partition("=")[0].strip(): f"--set {text}" for text in single_overrides(scenario.overrides)}
    for key in varied:
        if (other := given.get(OPTION_KEYS.get(key) or FIELDS.get(key, key))) is not None:
            raise SpecError(f"--vary {key} and {other}: write one of the two")


def _read_by(scenario: Scenario, points: Sequence[Point]) -> set[Path]:
    """Return the files that some of *points* read because a value may name a file; each such value is tried once."""
    first = dict(points[0])
    values = dict.fromkeys((key, value) for point in points for key, value in point if not value[:1].isdigit() and first[key] != value)
    with read_files() as read:
        for key, value in values:
            with suppress(SpecError):
                prepare(scenario_at(scenario, tuple({**first, key: value}.items())))
    return read
