"""How is the bandwidth bound of parameter servers shown on a page? The need of each placement over model size, and what ports carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, axis, chart
from sim.report.page.collective import size_axis
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, join, section, table, tag, tiles
from sim.report.page.words import as_bandwidth, as_memory, as_time
from sim.report.server_bound import MEANINGS
from sim.study.descriptions import Descriptions
from sim.units import pluralized


def bound_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of the *document* of a bandwidth bound, with its machine from *descriptions*."""
    figures = Figures(document, "collective")
    rows = figures.each("rows")
    title = f"parameter servers on {document['hardware']}"
    set_up = f"{pluralized(document['workers'], 'worker node')}; a step computes for {as_time(document['compute_time_s'])}"
    hero = outcome(title, verdict_of(rows), set_up, _tiles(figures))
    return page(title, "collective", hero, [_needed(figures, rows), _table(rows), *basis(figures, descriptions)], {"collective": document})


def verdict_of(rows: Sequence[Figures]) -> str:
    """Return a sentence on the largest model whose exchange hides behind compute, and with which placement."""
    hidden = [row for row in rows if any(row.value("hidden").values())]
    if not hidden:
        return "No placement hides the exchange of any of these sizes: the ports are too slow."
    largest = hidden[-1]
    names = [name for name, fits in largest.value("hidden").items() if fits]
    placements = "any placement" if len(names) == len(MEANINGS) else " or ".join(names)
    larger = "" if largest is rows[-1] else "; the exchange of larger models is exposed"
    return f"The exchange of a model of {as_memory(largest.value('bytes'))} hides behind compute with {placements}{larger}."


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [
        (f"Ports, {name}", figures.format(f"port_bytes_per_s/{name}", as_bandwidth), meaning) for name, meaning in MEANINGS.items()
    ]
    return tiles(rows)


def _needed(figures: Figures, rows: Sequence[Figures]) -> PagePart:
    points = [
        ChartPoint(
            float(row.value("bytes")), row.value(f"needed_bytes_per_s/{name}"), name,
            f"{name}: {meaning}\n{as_memory(row.value('bytes'))}\n{as_bandwidth(row.value(f'needed_bytes_per_s/{name}'))} needed, "
            f"{as_bandwidth(figures.value(f'port_bytes_per_s/{name}'))} available",
            (row.marked("bytes"), row.marked(f"needed_bytes_per_s/{name}")), not row.value(f"hidden/{name}"), row is rows[-1],
        )
        for name, meaning in MEANINGS.items() for row in rows if row.value(f"needed_bytes_per_s/{name}") > 0
    ]  # fmt: skip
    lines = [
        ("front", [(float(row.value("bytes")), row.value(f"needed_bytes_per_s/{name}")) for row in rows])
        for name in MEANINGS if len(rows) > 1 and rows[0].value(f"needed_bytes_per_s/{name}") > 0
    ]  # fmt: skip
    up = axis("needed, in and out together", [point.y for point in points], as_bandwidth)
    drawn = chart(points, size_axis(rows), up, "Bandwidth needed by each placement, by model size", lines)
    none = "" if len(points) == len(MEANINGS) * len(rows) else " Placements that need none are not drawn."
    key = tag("figcaption", tag("span", "Orange", class_="flag"), f": more than the ports can carry. Both axes are logarithmic.{none}")
    lead = "Bandwidth that the busiest host needs to hide the exchange behind the compute of a step (arXiv 1805.07891, section 2)."
    return PagePart("needed", "Needed", section("needed", "Bandwidth needed", tag("figure", drawn, key), lead=lead))


def _table(rows: Sequence[Figures]) -> PagePart:
    cells: list[list[Child]] = [[row.format("bytes", as_memory), *(_cell(row, name) for name in MEANINGS)] for row in rows]
    head = [("model", True), *((name, True) for name in MEANINGS)]
    meanings = tag("ul", *(tag("li", tag("b", name), f": {meaning}") for name, meaning in MEANINGS.items()))
    return PagePart(
        "table", "Table", section("table", "All figures", table(head, cells, "Sizes", "sortable"), meanings, lead="* hidden behind compute")
    )


def _cell(row: Figures, name: str) -> Child:
    needed = row.format(f"needed_bytes_per_s/{name}", as_bandwidth)
    return join(needed, " *") if row.value(f"hidden/{name}") else needed
