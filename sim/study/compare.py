"""Which machine trains this workload fastest, and which at the lowest cost? One row per machine, and the Pareto front of both.

Every machine is simulated separately; one that cannot run the workload keeps its row, with the reason. A row is on the front unless
another is at least as good in epoch time and cost, and better in one. A machine without a price neither is on the front nor beats others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

from sim.check import require
from sim.spec import memo
from sim.spec.elsewhere import with_user_paths
from sim.spec.library import fingerprint, load_hardware, load_workload
from sim.spec.listing import HARDWARE, hardware_rows, select, without_match
from sim.spec.own_prices import require_machines
from sim.spec.yaml import SpecError
from sim.study.computing import ALL_CORES, Computing, Task, compute
from sim.study.infeasible import Infeasible
from sim.study.jobs_file import jobs_file
from sim.study.journal import Journal, RowFigures
from sim.study.one_batch import at_global_batch
from sim.study.pool import Progress, process_count
from sim.study.scenario import Scenario, sorted_overrides
from sim.units import and_also

Item = TypeVar("Item")
_LISTED: Final = "'python -m sim list hardware' shows all machines"
_ABOUT_NODES: Final = re.compile(r"\s*nodes\b")
RunDocument = Mapping[str, Any]
MakesDocument = Callable[[Scenario], RunDocument]
"""Turns a scenario into the document of its run (see `sim.documents`)."""
MachinePoint = tuple[str, int | None]
"""A machine and its number of nodes; None: the number in its description."""
ALONE, EACH, ON_CLUSTER = 4, 16, 256
"""Numbers of machines that are simulated before others are excluded: by one process, by each of several, and by a cluster."""


@dataclass(frozen=True)
class ComparedMachine:
    """One machine: the document of its run, or why there is none."""

    hardware: str
    nodes: int | None
    """As requested; None means the number in the description."""
    document: RunDocument | None
    problem: str = ""
    provider: str = ""
    """The provider that rents it out; empty if there is none."""
    least_step: float | None = None
    """Lower bound of the seconds of a step, if no layout was simulated because others are better than that; otherwise None."""
    memory_remedy: str | None = None
    """`Shortage.remedy` if GPU memory is too small for data parallelism; otherwise None."""


class ExclusionRule(Protocol):
    """Decides which machines need no plan, because those that are planned beat a lower bound of theirs."""

    def in_order(self, points: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return machines with their numbers of nodes in the order in which to plan them."""

    def is_bounded(self, point: tuple[str, int]) -> bool:
        """Return whether a machine with a number of nodes may be excluded."""

    def expected(self, points: Iterable[tuple[str, int]]) -> int:
        """Return how many machines with their numbers of nodes will probably be planned."""

    def excludes(self, point: tuple[str, int]) -> bool:
        """Return whether a machine with a number of nodes needs no plan, or its row no place."""

    def cutoff(self, point: tuple[str, int]) -> float:
        """Return the seconds of a step at which the search of a machine ends: others beat it, or come first."""

    def note(self, rows: Iterable[ComparedMachine]) -> None:
        """Take *rows* into account."""


def machines(names: Sequence[str], where: Sequence[str]) -> list[str]:
    """Return the machines in *names*, each once, or all single machines of the catalog, filtered by the conditions *where*.

    Clusters of the catalog are included only if a condition is about ``nodes``: beside one of 1,152 GPUs, nothing else matters. Raise
    SpecError if nothing is left, or for a name or file that describes no machine.
    """
    if names and not where:
        require([problem for name in names for problem in _problems(name)])
        return list(dict.fromkeys(names))
    rows, _ = hardware_rows()
    listed = {str(row["name"]) for row in rows}
    unknown = next((name for name in names if name not in listed), None)
    if unknown:
        raise SpecError(f"--where: {unknown} is not in the catalog; write names that `python -m sim list` shows, or paths without --where")
    selected = select(rows, where, HARDWARE)
    if not names and not any(_ABOUT_NODES.match(condition) for condition in where):
        clusters, selected = selected, [row for row in selected if row["nodes"] == 1]
        if clusters and not selected:
            raise SpecError(f"--where {' --where '.join(where)}: only clusters match, such as {clusters[0]['name']}; name them")
    matching = [str(row["name"]) for row in selected]
    kept = [name for name in names if name in matching] if names else matching
    if not kept:
        if matching:
            raise SpecError(f"--where {' --where '.join(where)}: none of the named machines matches; name others, or leave it out")
        raise SpecError(f"--where: {and_also(without_match(rows, where, HARDWARE), _LISTED)}")
    return kept


def require_priced(prices: str, names: Sequence[str]) -> None:
    """Raise SpecError if *prices* contain a machine that is not among *names*, which may be files."""
    require_machines(
        prices, {name: load_hardware(name).spec.name if PurePath(name).suffix in (".yaml", ".yml") else name for name in names}
    )


def _problems(name: str) -> Sequence[str]:
    """Return why *name* describes no machine; empty if it does."""
    try:
        load_hardware(name)
    except SpecError as error:
        return error.problems
    return ()


def compare(
    scenario: Scenario,
    hardware: Sequence[str],
    documents: MakesDocument,
    *,
    nodes: Sequence[int] = (),
    global_batch: int | None = None,
    computing: Computing = ALL_CORES,
    progress: Progress | None = None,
    exclusion: ExclusionRule | None = None,
) -> list[ComparedMachine]:
    """Return a row for each of *hardware* and each number of *nodes*, in that order; *progress* gets the number done and the total.

    With *global_batch*, each machine trains on that many samples per optimizer step (`sim.study.one_batch`). There are no rows for what
    *exclusion*, for which *nodes* are written, excludes; most of that is not simulated.

    Raise SpecError if the question is wrong for every machine: the workload, an option, or a key that none of them has.
    """
    _require_sense(scenario, hardware)
    points = [replace(scenario, hardware=name, nodes=count) for name in hardware for count in (nodes or (None,))]
    keys = [fingerprint([computing.question, "compared", global_batch, asdict(point)]) for point in points]
    tasks, row_of = list(zip(keys, points, strict=True)), partial(_row, documents, global_batch)
    if exclusion is None:
        return machine_rows(row_of, tasks, computing, progress)
    by_point = {(point.hardware, point.nodes or 1): task for point, task in zip(points, tasks, strict=True)}
    return _rows_not_excluded(row_of, by_point, computing, progress, exclusion)


def _rows_not_excluded(
    row_of: Callable[[Scenario], ComparedMachine],
    tasks: Mapping[tuple[str, int], Task[Scenario]],
    computing: Computing,
    progress: Progress | None,
    exclusion: ExclusionRule,
) -> list[ComparedMachine]:
    """Return the rows of *tasks*, by machine and nodes, that *exclusion* does not exclude; few others are simulated."""
    rows: dict[tuple[str, int], ComparedMachine] = {}
    left = [point for point in tasks if exclusion.is_bounded(point)]
    some, memo_name, at_once = [point for point in tasks if point not in set(left)], uuid4().hex, _at_once(computing)
    while some or left:
        if progress is not None:
            progress(len(rows), len(rows) + len(some) + exclusion.expected(left))
        rows.update(zip(some, machine_rows(row_of, [tasks[point] for point in some], computing, None, memo_name), strict=True))
        exclusion.note(rows[point] for point in some)
        ordered = exclusion.in_order(point for point in left if not exclusion.excludes(point))
        some, left = ordered[:at_once], ordered[at_once:]
    return [rows[point] for point in tasks if point in rows and not exclusion.excludes(point)]


def _at_once(computing: Computing) -> int:
    """Return how many machines are simulated before others are excluded."""
    if computing.cluster is not None:
        return ON_CLUSTER
    processes = process_count(computing.processes)
    return ALONE if processes == 1 else EACH * processes


def machine_rows(
    row_of: Callable[[Item], ComparedMachine],
    tasks: Sequence[Task[Item]],
    computing: Computing,
    progress: Progress | None = None,
    memo_name: str = "",
) -> list[ComparedMachine]:
    """Return the row of each of *tasks*, in order: from the journal of *computing*, or computed. Raise SpecError if that fails.

    Processes reuse what they read for an earlier call with the same *memo_name*.
    """
    computing = computing if computing.journal is not None else replace(computing, journal=Journal(None))
    assert computing.journal is not None
    missing = [task for task in dict(tasks).items() if task[0] not in computing.journal]
    if missing and progress is not None:
        progress(len(tasks) - len(missing), len(tasks))  # the first row may take minutes
    figures_of = partial(_figures, row_of, memo_name or uuid4().hex)
    for done, _ in enumerate(compute(figures_of, missing, computing), start=len(tasks) - len(missing) + 1):
        if progress is not None:
            progress(done, len(tasks))
    keys = (key if key in computing.journal else _of_bound(key) for key, _ in tasks)
    return [ComparedMachine(**computing.journal[key]) for key in keys]


def bounds_kept(keys: Iterable[str], computing: Computing) -> list[ComparedMachine]:
    """Return the rows with only a bound that the journal of *computing* has for the tasks of *keys*: another question needs their plans."""
    journal = computing.journal
    return [] if journal is None else [ComparedMachine(**journal[bound]) for bound in map(_of_bound, keys) if bound in journal]


def _of_bound(key: str) -> str:
    return f"{key} bound"


def _figures(row_of: Callable[[Item], ComparedMachine], rows: str, task: Task[Item]) -> tuple[str, RowFigures]:
    """Compute one row of *rows*, a name; a process that computes several assumes that descriptions do not change meanwhile."""
    key, item = task
    with nullcontext() if memo.is_open() else memo.caching(rows):
        row = row_of(item)
    return key if row.least_step is None else _of_bound(key), {**vars(row), "problem": with_user_paths(row.problem)}


def _require_sense(scenario: Scenario, hardware: Sequence[str]) -> None:
    for_hardware, for_workload = sorted_overrides(scenario)
    if jobs_file(scenario.workload) is not None:
        raise SpecError(f"{scenario.workload}: lists several jobs; expected one workload")
    load_workload(scenario.workload, for_workload)
    problem = None
    for name in hardware if for_hardware else ():
        try:
            load_hardware(name, for_hardware)
            return
        except SpecError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _row(documents: MakesDocument, global_batch: int | None, scenario: Scenario) -> ComparedMachine:
    try:
        question = scenario if global_batch is None else at_global_batch(scenario, global_batch)
        return ComparedMachine(
            scenario.hardware, scenario.nodes, documents(question), provider=load_hardware(scenario.hardware).spec.provider
        )
    except SpecError as error:
        shortage = error.shortage if isinstance(error, Infeasible) else None
        return ComparedMachine(scenario.hardware, scenario.nodes, None, str(error), memory_remedy=shortage.remedy if shortage else None)


def front(points: Iterable[tuple[float, float | None]]) -> list[bool]:
    """Return for each (time, cost) whether no other point is at least as good in both and better in one; False without a cost."""
    pairs = list(points)
    priced = [(time, cost) for time, cost in pairs if cost is not None]

    def beaten(time: float, cost: float) -> bool:
        return any(t <= time and c <= cost and (t < time or c < cost) for t, c in priced)

    return [cost is not None and not beaten(time, cost) for time, cost in pairs]
