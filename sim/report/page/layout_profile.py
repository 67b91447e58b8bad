"""How is a profile of a layout shown on a page? The runs and stalls of Stash's method, then the parts of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.mesh import LayoutRun
from sim.report.layouts.layout_profile import RUNS
from sim.report.page.bars import changed_causes
from sim.report.page.frame import PagePart, page
from sim.report.page.layout import layout_parts
from sim.report.page.markup import Child, Figures, section, table, tag
from sim.report.page.words import as_time
from sim.report.stash import SMALLEST_CAUSE


def layout_profile_page(run: LayoutRun, document: Mapping[str, Any]) -> str:
    """Return the page of the profile *document* of *run*."""
    hero, parts = layout_parts(run, document)
    figures = Figures(document, "run")
    title = f"{document['workload']} on {document['hardware']}, Stash profile"
    return page(title, "profile", hero, [_runs(figures), _stalls(figures), *parts], {"run": document})


def _runs(figures: Figures) -> PagePart:
    rows: list[list[Child]] = [[title, figures.format(f"runs/{name}/step_time_s", as_time)] for name, title in RUNS.items()]
    method = tag("ul", *(tag("li", f"{sentence}.") for sentence in figures.value("method")))
    lead = "Each stall is the difference between two runs."
    return PagePart("runs", "Runs", section("runs", "The runs", table([("run", False), ("step", True)], rows, "Runs"), method, lead=lead))


def _stalls(figures: Figures) -> PagePart:
    least = SMALLEST_CAUSE * figures.value("step_time_s")
    rows: list[list[Child]] = [
        [
            name, figures.format(f"stash/{name}/time_s", as_time), figures.format(f"stash/{name}/percent", lambda value: f"{value:.1f}%"),
            RUNS[stall["of"]][:4], figures.format(f"stash/{name}/direct_s", as_time),
            changed_causes(figures, f"stash/{name}/made_of_s", least),
        ]
        for name, stall in figures.value("stash").items()
    ]  # fmt: skip
    head = [("stall", False), ("per step", True), ("share", True), ("of", False), ("waits", True), ("causes that changed", False)]
    lead = "Subtraction attributes the whole difference between two runs to one stall; waits: time for which ranks waited for that cause."
    return PagePart("stash", "Stalls", section("stash", "Stalls by subtraction", table(head, rows, "Stalls"), lead=lead))
