"""How is AccPar's study shown as a web page? Speedups of every network and strategy, means, and why they differ from the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.studies.accpar.document import WIRE_TITLES, verdict_of
from calibration.studies.accpar.strategies import COMPARED
from sim.report.page.basis import basis
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, bullets, section, table, tiles
from sim.report.page.words import as_tenths, as_time


def accpar_page(document: Mapping[str, Any]) -> str:
    """Return the web page of the study's *document*."""
    figures = Figures(document, "accpar")
    title = "AccPar on different boards, simulated"
    places = {(mean["wires"], mean["strategy"]): place for place, mean in enumerate(document["means"])}
    rows: list[tuple[str, Child, Child]] = [
        (f"AccPar, {named}", figures.format(f"means/{places[wires, 'AccPar']}/geometric", as_tenths), "geometric mean of speed-ups")
        for wires, named in WIRE_TITLES.items()
    ]
    hero = outcome(title, verdict_of(document), f"{document['hardware']}, {document['global_batch']} samples per step", tiles(rows))
    parts = [_gains(figures, wires, named) for wires, named in WIRE_TITLES.items()]
    parts.append(PagePart("differs", "What differs", section("differs", "Where this differs from the paper", bullets(document["differs"]))))
    return page(title, "study", hero, [*parts, *basis(figures, None)], {"accpar": document})


def _gains(figures: Figures, wires: str, named: str) -> PagePart:
    places = {(row["model"], row["strategy"]): place for place, row in enumerate(figures.value("rows")) if row["wires"] == wires}
    cells: list[list[Child]] = []
    for model in dict.fromkeys(model for model, _ in places):
        step = figures.format(f"rows/{places[model, 'data parallel']}/step_time_s", as_time)
        cells.append([model, step, *(figures.format(f"rows/{places[model, name]}/speedup", as_tenths) for name in COMPARED)])
    head = [("network", False), ("data parallel", True), *((name, True) for name in COMPARED)]
    shown = section(wires, named.capitalize(), table(head, cells, f"Times faster than data parallelism: {named}", "sortable"))
    return PagePart(wires, named.capitalize(), shown)
