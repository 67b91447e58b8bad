"""How is a what-if of a layout shown on a page? The step with more of each resource, then the parts of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.mesh import LayoutRun
from sim.report.layouts.layout_whatif import NAMES, effective_rows, notes
from sim.report.page.frame import PagePart, page
from sim.report.page.layout import layout_parts
from sim.report.page.markup import Child, Figures, section, table, tag
from sim.report.page.whatif import NO_UPGRADE, upgrade_sentence
from sim.report.page.words import as_time


def layout_whatif_page(run: LayoutRun, document: Mapping[str, Any]) -> str:
    """Return the page of the what-if *document* of *run*."""
    title = f"{document['workload']} on {document['hardware']}: what if"
    hero, parts = layout_parts(run, document, f"{title}?", _verdict(document))
    return page(title, "what-if", hero, [_ranking(Figures(document, "run")), *parts], {"run": document})


def _verdict(document: Mapping[str, Any]) -> str:
    """Return a sentence on what to improve first: one resource rather than all links if it gains as much."""
    best = max(effective_rows(document), key=lambda row: round(float(row["twice_gain"]), 3), default=None)
    return NO_UPGRADE if best is None else upgrade_sentence(best["resource"], NAMES[best["resource"]], 100 * best["twice_gain"])


def _ranking(figures: Figures) -> PagePart:
    document = figures.value("")
    kept = [row["resource"] for row in effective_rows(document)]
    places = [f"resources/{place}" for place, row in enumerate(document["resources"]) if row["resource"] in kept]
    rows: list[list[Child]] = [_cells(figures.subfigures(place)) for place in [*places, *(["links"] if "links" in kept else [])]]
    titles = ("2x step", "gain", "infinite", "gain")
    drawn = table([("resource", False), *((title, True) for title in titles)], rows, "Effect of faster resources") if rows else None
    rest = [tag("p", line) for line in notes(document)]
    lead = "A step with one resource 2x and infinitely fast, everything else unchanged."
    return PagePart("ranking", "Ranking", section("ranking", "Effect of faster resources", drawn, *rest, lead=lead))


def _cells(row: Figures) -> list[Child]:
    cells: list[Child] = [NAMES[row.value("resource")]]
    for kind in ("twice", "infinite"):
        cells += [row.format(f"{kind}_step_time_s", as_time), row.format(f"{kind}_gain", lambda gain: f"{100 * gain:+.1f}%")]
    return cells
