"""Which other machine would be faster or cheaper? The job of a choice on machines of the catalogue, redrawn while results arrive.

Machines that may be on the Pareto front are simulated first, in the order of lower bounds of their time and cost, which take little time.
As soon as simulated machines beat the bounds of all others, the front is complete; the rest of the table follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sim.documents import document
from sim.report.comparison import comparison_document, objectives
from sim.report.page.comparison import comparison_parts
from sim.report.page.markup import join
from sim.spec import memo
from sim.spec.library import load_hardware
from sim.spec.listing import Row
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, compare, front
from sim.study.computing import Computing
from sim.study.least_epoch import LeastEpoch, least_epoch
from sim.study.scenario import Scenario
from sim.terminal import program
from sim.ui.choice import AMONG, Choice, comparison_command, on_other_machines, quote_words
from sim.ui.view import View

_BETWEEN: Final = 0.4
"""Minimum seconds between two updates of the chart while machines are simulated."""
_DRAWING: Final = 0.1
"""Maximum share of the time that is spent on such updates."""
_SHOWN: Final = ("money", "table", "left-out")
"""Parts of a comparison's page that are shown."""
PEERS: Final = {"size": "rentable, same number of GPUs", "priced": "all rentable machines", "none": "none"}


def machines_of(choice: Choice, rows: Iterable[Row]) -> list[str]:
    """Return the machines of the catalogue *rows* that *choice* is compared with, its own first. Raise SpecError for an unknown *among*."""
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
    return sum(group.count * group.node.gpu_count for group in load_hardware(own).spec.groups if group.role == "worker")


def machine_views(choice: Choice, names: Sequence[str]) -> Iterator[View | None]:
    """Yield the page's view of the machines *names* for the job of *choice*, repeatedly while they are simulated.

    None means that a machine is done and nothing is drawn. Raise SpecError if the choice itself is invalid for every machine.
    """
    scenario, (own, *others) = on_other_machines(choice), names
    rows = {own: _row(scenario, own)}
    yield _view(choice, names, rows, not others)
    bounds: dict[str, LeastEpoch | None] = {}
    for name in others:
        bounds[name] = least_epoch(replace(scenario, hardware=name))
        yield None
    pending, complete, shown = in_order(bounds), not others, 1
    drawn, drawing = time.monotonic(), 0.0
    while pending:
        name = next((name for name in pending if _may_be_on_front(bounds[name], rows.values())), pending[0])
        pending.remove(name)
        rows[name] = _row(scenario, name)
        completes = not complete and not any(_may_be_on_front(bounds[other], rows.values()) for other in pending)
        complete = complete or completes
        if completes or (pending and time.monotonic() - drawn > max(_BETWEEN, drawing / _DRAWING)):
            began = time.monotonic()
            yield _view(choice, names, rows, complete)
            drawn, shown = time.monotonic(), len(rows)
            drawing = drawn - began
        else:
            yield None
    if shown < len(rows):
        yield _view(choice, names, rows, complete)


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


def _may_be_on_front(bound: LeastEpoch | None, rows: Iterable[ComparedMachine]) -> bool:
    """Return whether no machine of *rows* beats *bound* in time and in cost; False for a machine without a price."""
    if bound is None or bound.cost is None:
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


def _row(scenario: Scenario, name: str) -> ComparedMachine:
    """Return the row of the machine *name*; kept while descriptions do not change, as a slider often returns."""

    def computed() -> ComparedMachine:
        (row,) = compare(scenario, [name], document, nodes=[scenario.nodes] if scenario.nodes else [], computing=Computing(1))
        return row

    return memo.get_or_make((_row, repr(scenario), name), computed)


def _view(choice: Choice, names: Sequence[str], rows: Mapping[str, ComparedMachine], complete: bool) -> View:
    listed = [rows[name] for name in names if name in rows]
    document: dict[str, Any] = comparison_document(choice.get("workload"), listed)
    verdict, parts = comparison_parts(document)
    return {
        "done": len(rows),
        "of": len(names),
        "complete": complete,
        "html": join(*(part.html for part in parts if part.ident in _SHOWN)),
        "verdict": verdict,
        "command": f"{program()} {quote_words(comparison_command(choice, names))}",
    }
