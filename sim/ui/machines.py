"""Which other machine would be faster or cheaper? The job of a choice on machines of the catalog, redrawn while results arrive.

Machines that may be on the Pareto front are simulated first, in the order of lower bounds of their time and cost, which take little time.
As soon as simulated machines beat the bounds of all others, the front is complete; the rest of the table follows. Worker processes share
the machines (`MachineSearch`), and results are kept, as a slider often returns.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Protocol

from sim.analysis.cost import price
from sim.documents import document
from sim.report.comparison import comparison_document, objectives, page_notes
from sim.report.layouts.layout import layout_document
from sim.report.page.comparison import comparison_parts
from sim.report.page.markup import join, note_box
from sim.spec.library import load_hardware
from sim.spec.listing import Row
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, compare, front
from sim.study.computing import Computing
from sim.study.least_epoch import LeastEpoch, least_epoch
from sim.study.plan.machines import MachinePlanning, is_planned, with_planned_layouts
from sim.study.scenario import Scenario, loaded_hardware
from sim.terminal import program
from sim.ui.choice import AMONG, Choice, comparison_command, on_other_machines, quote_words
from sim.ui.view import View

_BETWEEN: Final = 0.4
"""Minimum seconds between two updates of the chart while machines are simulated."""
_DRAWING: Final = 0.1
"""Maximum share of the time that is spent on such updates."""
_SHOWN: Final = ("money", "table", "left-out")
"""Parts of a comparison's page that are shown."""
_AT_ONCE: Final = 6
"""Machines whose bounds are one task: few, so that all workers finish at about the same time."""
_KEPT: Final = 100
"""Questions whose results are kept: fifty machines of one take about 1 MB."""
PEERS: Final = {"size": "rentable, same number of GPUs", "priced": "all rentable machines", "none": "none"}

WorkMessage = tuple[Literal["said", "refused", "done"], Any]


TaskKind = Literal["bound", "row"]
MachineResults = dict[str, ComparedMachine | LeastEpoch | None]
"""The rows of machines, or bounds of their epochs."""


class MachineTask(NamedTuple):
    """What a worker computes at a time: bounds of *names*, or the row of one."""

    kind: TaskKind
    names: tuple[str, ...]


class AnswersTasks(Protocol):
    """Runs one task of `sim.ui.work` at a time; closing the iterator cancels it."""

    def answers(self, task: str, *arguments: Any) -> AsyncGenerator[WorkMessage, None]:
        """Yield the messages of *task*."""
        ...


def machines_of(choice: Choice, rows: Iterable[Row]) -> list[str]:
    """Return the machines of the catalog *rows* that *choice* is compared with, its own first. Raise SpecError for an unknown *among*."""
    among, own = choice.get(AMONG), choice.get("hardware")
    if among not in PEERS:
        raise SpecError(f"{AMONG} {among}: write one of {', '.join(PEERS)}")
    if among == "none":
        return []
    listed = list(rows)
    rentable = [row for row in listed if row["spot" if choice.get("market") == "spot" else "price"] is not None and row["nodes"] == 1]
    if among == "size":
        gpus = next((row["gpus"] for row in listed if row["name"] == own), None) or _gpus_of(own)
        rentable = [row for row in rentable if row["gpus"] == gpus]
    return [own, *(str(row["name"]) for row in rentable if row["name"] != own)]


def _gpus_of(own: str) -> int:
    """Return the number of GPUs in the description *own*, a file. Raise SpecError if it is not a description."""
    return load_hardware(own).spec.worker_gpus


# --- what workers compute -----------------------------------------------------------------------------------------------


def machine_results(choice: Choice, kind: TaskKind, names: Sequence[str]) -> Iterator[MachineResults | None]:
    """Yield the results of one task of *kind* for the job of *choice* on the machines *names*; None meanwhile.

    Raise SpecError if the choice itself is invalid for every machine.
    """
    scenario = on_other_machines(choice)
    results: MachineResults = {}
    for name in names:
        results[name] = _row(scenario, name) if kind == "row" else _bound(scenario, name)
        yield None
    yield results


def _row(scenario: Scenario, name: str) -> ComparedMachine:
    rows = compare(scenario, [name], document, nodes=[scenario.nodes] if scenario.nodes else [], computing=Computing(1))
    (row,) = with_planned_layouts(scenario, rows, MachinePlanning(layout_document, computing=Computing(1)))
    # the values of all fields of its descriptions are most of a document, and a comparison shows none
    return row if row.document is None else replace(row, document={key: row.document[key] for key in row.document if key != "inputs"})


def _bound(scenario: Scenario, name: str) -> LeastEpoch | None:
    """Return the bound of an epoch of *scenario* on the machine *name*: 0 where it needs a layout, as nothing is known of that."""
    on_machine = replace(scenario, hardware=name)
    if (least := least_epoch(on_machine)) is not None or not is_planned(scenario):
        return least
    try:
        rate = price(loaded_hardware(on_machine).spec, scenario.market)
    except SpecError:
        return None
    return LeastEpoch(0.0, None if rate is None else 0.0)


# --- what is computed next ----------------------------------------------------------------------------------------------


@dataclass
class MachineSearch:
    """The order in which the rows of the machines *names*, the chosen one first, are computed by several workers.

    Bounds of all machines come first, then rows of machines that may be on the Pareto front. *bounds* and *rows* may have been computed
    before.
    """

    names: Sequence[str]
    gpus: Mapping[str, str] = field(default_factory=dict)
    """The GPU of each machine. Bounds of machines with equal GPUs share work."""
    bounds: dict[str, LeastEpoch | None] = field(default_factory=dict)
    rows: dict[str, ComparedMachine] = field(default_factory=dict)
    _under_way: set[str] = field(default_factory=set)
    _order: list[str] = field(default_factory=list)

    @property
    def known(self) -> list[ComparedMachine]:
        """Return the rows so far, in the order of the machines."""
        return [self.rows[name] for name in self.names if name in self.rows]

    @property
    def front_is_complete(self) -> bool:
        """Return whether no machine without a row may be on the front."""
        left = [name for name in self.names if name not in self.rows]
        return all(name in self.bounds for name in left) and not self._wanted(left)

    def next_task(self) -> MachineTask | None:
        """Return what an idle worker should compute next; None if there is nothing at the moment."""
        task = self._next_task()
        self._under_way.update(task.names if task else ())
        return task

    def note(self, task: MachineTask, results: MachineResults) -> None:
        """Note the *results* of *task*."""
        self._under_way.difference_update(task.names)
        for name, result in results.items():
            if isinstance(result, ComparedMachine):
                self.rows[name] = result
            else:
                self.bounds[name] = result

    def _next_task(self) -> MachineTask | None:
        free = [name for name in self.names if name not in self.rows and name not in self._under_way]
        if free and free[0] == self.names[0]:
            return MachineTask("row", (free[0],))
        if unbounded := [name for name in free if name not in self.bounds]:
            return MachineTask("bound", tuple(sorted(unbounded, key=lambda name: self.gpus.get(name, ""))[:_AT_ONCE]))
        if any(name not in self.bounds and name not in self.rows for name in self.names[1:]):
            return None  # other workers compute the last bounds
        self._order = self._order or in_order({name: self.bounds[name] for name in self.names if name in self.bounds})
        free = [name for name in self._order if name in free]
        name = next(iter([*self._wanted(free), *free]), None)
        return None if name is None else MachineTask("row", (name,))

    def _wanted(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that may be on the front: machines with a price that no row beats, given their bounds."""
        rows = self.known
        return [name for name in names if (bound := self.bounds[name]) is not None and _may_be_on_front(bound, rows)]


def in_order(bounds: Mapping[str, LeastEpoch | None]) -> list[str]:
    """Return the machines of *bounds* by the front of these, then by the front of what is left, and so on; the others last.

    The others are machines without a price, which are not on the front, and those that cannot run the job.
    """
    left, order = [name for name in bounds if _priced(bounds[name])], list[str]()
    while left:
        points = [bound for name in left if (bound := bounds[name]) is not None]
        best = [name for name, on_front in zip(left, front(points), strict=True) if on_front]
        order += sorted(best, key=lambda name: bounds[name] or (0.0, 0.0))
        left = [name for name in left if name not in best]
    return [*order, *(name for name in bounds if not _priced(bounds[name]))]


def _priced(bound: LeastEpoch | None) -> bool:
    return bound is not None and bound.cost is not None


def _may_be_on_front(bound: LeastEpoch, rows: Iterable[ComparedMachine]) -> bool:
    """Return whether no machine of *rows* beats *bound* in time and in cost; False for a machine without a price."""
    if bound.cost is None:
        return False
    for row in rows:
        if row.document is None:
            continue
        job = row.document["whole_job"]
        if job is not None and job["given"] == "time":
            return True  # a machine's cost is that of the time, whatever its epochs take
        taken, cost = objectives(row.document)
        least_cost = bound.cost * (job["epochs"] if job is not None else 1.0)
        if cost is not None and taken <= bound.time and cost <= least_cost and (taken < bound.time or cost < least_cost):
            return False
    return True


# --- a request ----------------------------------------------------------------------------------------------------------


class KeptResults:
    """Bounds and rows by question, as a slider often returns. The least recently used are dropped."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[dict[str, LeastEpoch | None], dict[str, ComparedMachine]]] = OrderedDict()

    def of(self, question: Hashable) -> tuple[dict[str, LeastEpoch | None], dict[str, ComparedMachine]]:
        """Return the bounds and rows of *question* by machine, to be added to."""
        self._kept.setdefault(question, ({}, {}))
        self._kept.move_to_end(question)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[question]


async def machine_views(
    choice: Choice, names: Sequence[str], gpus: Mapping[str, str], team: Sequence[AnswersTasks], kept: KeptResults, files: str = ""
) -> AsyncGenerator[View, None]:
    """Yield the page's view of the machines *names* for the job of *choice*, repeatedly while *team* computes them.

    *gpus* is the GPU of each machine, *files* changes with every file of the user that the choice consists of. Raise SpecError if the
    choice itself is invalid for every machine.
    """
    scenario = on_other_machines(choice)
    search = MachineSearch(names, gpus, *kept.of((files, repr(scenario))))
    idle, running = list(range(len(team))), dict[asyncio.Task[MachineResults], tuple[int, MachineTask]]()
    drawn, drawing, shown, refused = -1.0, 0.0, (0, False), MachineResults()
    try:
        while True:
            for worker in idle.copy():
                if (task := search.next_task()) is not None:
                    idle.remove(worker)
                    running[asyncio.create_task(_results(team[worker], choice, task))] = worker, task
            began, state = time.monotonic(), (len(search.known), search.front_is_complete)
            news = state[1] != shown[1] or began - drawn > max(_BETWEEN, drawing / _DRAWING) or not running
            if names[0] in search.rows and state != shown and news:
                yield _view(choice, names, search.known, state[1])
                drawn, shown = time.monotonic(), state
                drawing = drawn - began
            if not running:
                return
            for done in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                worker, task = running.pop(done)
                idle.append(worker)
                try:
                    search.note(task, done.result())
                except SpecError as error:
                    if names[0] in task.names:
                        raise
                    refused |= {name: ComparedMachine(name, scenario.nodes, None, str(error)) for name in task.names}
                    search.note(task, refused)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for name in refused:
            search.rows.pop(name, None)  # it is computed again the next time


async def _results(worker: AnswersTasks, choice: Choice, task: MachineTask) -> MachineResults:
    """Return the answer of *worker* to *task*. Raise SpecError if it is refused."""
    async with aclosing(worker.answers("machines", choice, *task)) as messages:
        async for kind, payload in messages:
            if kind == "said":
                results: MachineResults = payload
                return results
            raise SpecError(payload)
    raise SpecError("internal error: a process ended without an answer")


def _view(choice: Choice, names: Sequence[str], rows: Sequence[ComparedMachine], complete: bool) -> View:
    document: dict[str, Any] = comparison_document(choice.get("workload"), rows)
    verdict, parts = comparison_parts(document)
    return {
        "done": len(rows),
        "of": len(names),
        "complete": complete,
        "html": join(*(part.html for part in parts if part.ident in _SHOWN), note_box("Notes", page_notes(document))),
        "verdict": verdict,
        "command": f"{program()} {quote_words(comparison_command(choice, names))}",
    }
