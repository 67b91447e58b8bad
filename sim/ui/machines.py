"""Which other machine would be faster or cheaper? The job of a choice on machines of the catalogue, redrawn while results arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sim.documents import document
from sim.report.comparison import comparison_document
from sim.report.page.comparison import comparison_parts
from sim.report.page.markup import join
from sim.spec.library import load_hardware
from sim.spec.listing import Row
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, compare
from sim.study.computing import Computing
from sim.terminal import program
from sim.ui.choice import AMONG, Choice, comparison_command, on_other_machines, quote_words
from sim.ui.view import View

_BETWEEN: Final = 0.4
"""Minimum seconds between two updates of the chart while machines are simulated."""
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


def machine_views(choice: Choice, names: Sequence[str]) -> Iterator[View]:
    """Yield the page's view of the machines *names* for the job of *choice*, repeatedly while they are simulated.

    Raise SpecError if the choice itself is invalid for every machine.
    """
    scenario = on_other_machines(choice)
    counts = [scenario.nodes] if scenario.nodes else []
    rows: list[ComparedMachine] = []
    last_drawn = time.monotonic()
    for name in names:
        rows += compare(scenario, [name], document, nodes=counts, computing=Computing(1))
        if time.monotonic() - last_drawn > _BETWEEN:
            yield _view(choice, names, rows)
            last_drawn = time.monotonic()
    yield _view(choice, names, rows)


def _view(choice: Choice, names: Sequence[str], rows: Sequence[ComparedMachine]) -> View:
    document: dict[str, Any] = comparison_document(choice.get("workload"), rows)
    verdict, parts = comparison_parts(document)
    return {
        "done": len(rows),
        "of": len(names),
        "html": join(*(part.html for part in parts if part.ident in _SHOWN)),
        "verdict": verdict,
        "command": f"{program()} {quote_words(comparison_command(choice, names))}",
    }
