"""How is a table of collectives shown on a page? Bandwidth and time over size, and NCCL's choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim.report.collective import axes_text
from sim.report.collective_error import band_of
from sim.report.page.bars import ERROR_BARS
from sim.report.page.basis import basis
from sim.report.page.chart import ChartAxis, ChartPoint, axis, chart, linear_axis, with_errors_up
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, section, table, tag, tiles
from sim.report.page.words import as_bandwidth, as_memory, as_number, as_percent, as_time
from sim.spec.algorithms import not_nccls
from sim.study.descriptions import Descriptions
from sim.units import pluralized

_TICKS = 8
"""Maximum number of sizes that an axis writes."""


def collective_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a *document* of collectives by size, with its machine from *descriptions*."""
    figures = Figures(document, "collective")
    rows = figures.each("rows")
    title = f"{document['op']} on {document['hardware']}"
    set_up = f"{pluralized(document['gpus'], 'GPU')} on {pluralized(document['nodes'], 'node')}; {_concurrent_text(document.get('group'))}"
    hero = outcome(title, verdict_of(rows), set_up, _tiles(figures, rows))
    lead = "Bus bandwidth is comparable to link bandwidth: size / time, times the bytes that every rank must send per byte."
    parts = [
        _over_size(figures, rows, ("bandwidth", "Bandwidth", "Bus bandwidth"), "busbw_bytes_per_s", as_bandwidth, lead),
        _over_size(
            figures, rows, ("time", "Time", "Time"), "time_s", as_time, "Small sizes are bound by latency, large ones by the links."
        ),
        *([_links(figures.subfigures("group"))] if "group" in document else []),
        _table(rows),
        *basis(figures, descriptions),
    ]
    return page(title, "collective", hero, parts, {"collective": document})


def _concurrent_text(group: Mapping[str, Any] | None) -> str:
    """Return what runs at the same time, in words."""
    if group is None:
        return "in isolation: nothing else runs"
    return (
        f"one of {pluralized(group['groups'], 'concurrent group')} '{group['name']}' of {axes_text(group['axes'])} (stage {group['stage']})"
    )


def _links(figures: Figures) -> PagePart:
    """Return the part on the links that groups of a mesh share."""
    uses = figures.each("links")
    cells: list[list[Child]] = [
        [
            use.value("busiest"), use.format("links", as_number), "all" if use.value("groups") is None else use.format("groups", as_number),
            use.format("busy", as_percent),
        ]
        for use in uses
    ]  # fmt: skip
    head = [("busiest link", False), ("similar links", True), ("groups on it", True), ("busy", True)]
    lead = "On the first node of the stage and between nodes, during the transfer of the largest size."
    return PagePart("links", "Links", section("links", "Links that groups share", table(head, cells, "Links"), lead=lead))


def verdict_of(rows: Sequence[Figures]) -> str:
    """Return a sentence on the highest bandwidth, the size from which half of it is reached, and what bounds it."""
    best = max(rows, key=lambda row: row.value("busbw_bytes_per_s"))
    reached = best.value("busbw_bytes_per_s")
    half = next(row for row in rows if row.value("busbw_bytes_per_s") >= reached / 2)
    sentence = f"Bus bandwidth reaches {as_bandwidth(reached)} at {as_memory(best.value('bytes'))}"
    more = f", half of it at {as_memory(half.value('bytes'))}" if half.value("bytes") < best.value("bytes") else ""
    return f"{sentence}{more}, bound by {best.value('bottleneck')}."


def _tiles(figures: Figures, rows: Sequence[Figures]) -> Html:
    small, large = rows[0], rows[-1]
    best = max(rows, key=lambda row: row.value("busbw_bytes_per_s"))
    halves = figures.value("bisection_bytes_per_s") is not None
    shown: list[tuple[str, Child, Child]] = [
        (f"Time of {as_memory(row.value('bytes'))}", row.format("time_s", as_time), f"{row.value('algorithm')} {row.value('protocol')}")
        for row in ((small, large) if len(rows) > 1 else (small,))
    ]
    shown.append(("Bus bandwidth", best.format("busbw_bytes_per_s", as_bandwidth), "maximum"))
    shown.append(("Channels", best.format("channels", as_number), "at the maximum"))
    if figures.value("expected_error"):
        last = len(figures.value("expected_error")["bands"]) - 1
        error = figures.subfigures(f"expected_error/bands/{last}")
        shown.append(("Expected error", error.format("median", as_percent), f"median of measured runs, {error.value('band')}"))
    if halves:
        shown.append(("Bisection bandwidth", figures.format("bisection_bytes_per_s", as_bandwidth), "between halves, each way"))
    return tiles(shown)


def size_axis(rows: Sequence[Figures]) -> ChartAxis:
    """Return an axis that writes some of the sizes of *rows*, evenly selected."""
    sizes = [float(row.value("bytes")) for row in rows]
    stride = -(-len(sizes) // _TICKS)
    return replace(axis("size", sizes, as_memory), own=tuple(sizes[::stride]))


def _over_size(figures: Figures, rows: Sequence[Figures], names: tuple[str, str, str], key: str, write: Any, lead: str) -> PagePart:
    """Return the part on the figure *key* of *rows* over size; *names* are its anchor, its name in the navigation, and its title."""
    errors = {band["band"]: band["p90"] for band in (figures.value("expected_error") or {"bands": []})["bands"]}
    chosen = [f"{row.value('algorithm')} {row.value('protocol')}" for row in rows]
    points = [
        ChartPoint(
            float(row.value("bytes")), row.value(key), how,
            f"{as_memory(row.value('bytes'))}\n{write(row.value(key))}\n{how}, {pluralized(row.value('channels'), 'channel')}\n"
            f"bound by {row.value('bottleneck')}",
            (row.marked("bytes"), row.marked(key)), is_labeled=how not in chosen[max(0, place - 1) : place],
            error_up=errors.get(band_of(row.value("bytes")), 0.0) if row.value("algorithm") not in not_nccls() else 0.0,
        )
        for place, (row, how) in enumerate(zip(rows, chosen, strict=True))
    ]  # fmt: skip
    line = [("front", [(point.x, point.y) for point in points])] if len(points) > 1 else []
    values = with_errors_up(points)
    up = axis("time", values, write) if key == "time_s" else linear_axis("bus bandwidth", [0.0, *values], write)
    drawn = chart(points, size_axis(rows), up, f"{names[2]} by size", line)
    caption = tag(
        "figcaption",
        f"Algorithm and protocol are shown where they change.{f' {ERROR_BARS}' if any(point.error_up for point in points) else ''}",
    )
    return PagePart(names[0], names[1], section(names[0], names[2], tag("figure", drawn, caption), lead=lead))


def _table(rows: Sequence[Figures]) -> PagePart:
    grouped = "by_itself_s" in rows[0].value("")
    cells: list[list[Child]] = [
        [
            row.format("bytes", as_memory), row.format("time_s", as_time), *([row.format("by_itself_s", as_time)] if grouped else []),
            row.format("algbw_bytes_per_s", as_bandwidth), row.format("busbw_bytes_per_s", as_bandwidth), row.value("algorithm"),
            row.value("protocol"), row.format("channels", as_number), row.value("bottleneck"),
        ]
        for row in rows
    ]  # fmt: skip
    head = [
        ("size", True), ("time", True), *([("isolated", True)] if grouped else []), ("algbw", True), ("busbw", True), ("algorithm", False),
        ("protocol", False), ("channels", True), ("bottleneck", False),
    ]  # fmt: skip
    return PagePart("table", "Table", section("table", "All figures", table(head, cells, "Sizes", "sortable")))
