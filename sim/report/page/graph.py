"""How is a simulated Chakra trace shown on a page? Where the step goes, ranks against time, and communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from sim.causes import GRAPH_MEANINGS
from sim.events import Cause, WaitSpan
from sim.report.page.bars import step_stalls
from sim.report.page.basis import basis
from sim.report.page.colors import fill
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, note_box, section, table, tag, tiles
from sim.report.page.timeline import TimelineSpan, lanes_of
from sim.report.page.words import as_memory, as_number, as_percent, as_time
from sim.study.descriptions import Descriptions
from sim.study.graph import GraphRun
from sim.units import pluralized

MOST_RANKS: Final = 32
"""Maximum number of ranks with a lane of their own."""
MOST_MARKS: Final = 2000
"""Maximum number of marks in one lane; if there are more, the shortest are left out."""
_KERNEL: Final = "#4477aa"


def graph_page(run: GraphRun, document: Mapping[str, Any]) -> str:
    """Return the page of *run*, whose JSON is *document*."""
    figures = Figures(document, "run")
    gpu = run.prices.node(0).gpu.name
    title = f"{document['trace']} on {document['hardware']}"
    set_up = f"{document['gpus']} x {gpu} on {pluralized(document['nodes'], 'node')}; a Chakra execution trace"
    hero = outcome(title, document["verdict"], set_up, _tiles(figures), note_box("Warnings", document["warnings"]))
    parts = [_time(figures), _lanes(run), _communication(figures), _ranks(figures), *basis(figures, Descriptions([run.hardware], []))]
    return page(title, "run", hero, parts, {"run": document})


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [
        ("Step", figures.format("step_time_s", as_time), None),
        ("Compute", figures.share("stalls_s/compute", "step_time_s"), "mean over ranks"),
        ("Ranks", figures.format("gpus", as_number), pluralized(figures.value("nodes"), "node")),
    ]
    if figures.value("communication"):
        rows.append(("Longest exposed", figures.format("communication/0/exposed_s", as_time), figures.value("communication/0/name")))
    return tiles(rows)


def _time(figures: Figures) -> PagePart:
    lead = "Mean over ranks; at any time, a rank either computes or waits for one cause."
    return PagePart("time", "Where the time goes", section("time", "Where the time goes", *step_stalls(figures, GRAPH_MEANINGS), lead=lead))


def _lanes(run: GraphRun) -> PagePart:
    """Return the part with a lane for each rank: kernels against time, with waits in between."""
    span = TimelineSpan(0.0, run.step_time or 1.0, [run.step_time])
    shown = range(min(len(run.ranks), MOST_RANKS))
    kernels: dict[int, list[WaitSpan]] = defaultdict(list)
    for work in run.played.log.work:
        if work.stream == "gpu" and work.rank < MOST_RANKS:
            kernels[work.rank].append(WaitSpan(work.rank, Cause.COMPUTE, work.name, -1, work.t0, work.t1))
    names = [tag("div", f"rank {rank}", class_="lane-name") for rank in shown]
    lanes = []
    for rank in shown:
        marks = [*kernels[rank], *(wait for wait in run.ranks[rank].waits if wait.cause != Cause.COMPUTE)]
        longest = sorted(marks, key=lambda mark: mark.t0 - mark.t1)[:MOST_MARKS]
        lanes.append(tag("div", *(_mark(mark, span) for mark in sorted(longest, key=lambda mark: mark.t0)), class_="lane"))
    figure = lanes_of(names, lanes, span, "Ranks over time")
    more = f" The first {MOST_RANKS} of {len(run.ranks)} ranks." if len(run.ranks) > MOST_RANKS else ""
    lead = f"One step of {as_time(run.step_time)}: blue is compute, other colors are waits by cause.{more}"
    return PagePart("ranks", "Ranks over time", section("ranks", "Ranks over time", figure, lead=lead))


def _mark(mark: WaitSpan, span: TimelineSpan) -> Html:
    place, lasts = span.place(mark.t0, mark.t1), as_time(mark.t1 - mark.t0)
    if mark.cause == Cause.COMPUTE:
        return tag("div", class_="mark", style=f"{place};background:{_KERNEL}", data_tip=f"{mark.resource}\n{lasts}")
    style = f"{place};{fill(mark.cause.value)};opacity:0.55"
    return tag("div", class_="mark", style=style, data_tip=f"waits: {mark.resource}\n{lasts}")


def _communication(figures: Figures) -> PagePart:
    rows: list[list[Child]] = []
    for place in range(len(figures.value("communication"))):
        row = figures.subfigures(f"communication/{place}")
        rows.append(
            [
                row.value("name"), row.format("communicators", as_number), row.format("operations", as_number),
                row.format("bytes", as_memory), row.format("time_s", as_time), row.format("exposed_s", as_time),
            ]
        )  # fmt: skip
    head = [("communication", False), ("communicators", True), ("calls", True), ("bytes", True), ("time", True), ("exposed", True)]
    lead = "Time: all calls of one communicator. Exposed: time for which a rank's GPU is idle because of it, mean over ranks."
    shown = table(head, rows, "Communication", "sortable") if rows else tag("p", "The ranks do not communicate.")
    return PagePart("communication", "Communication", section("communication", "Communication", shown, lead=lead))


def _ranks(figures: Figures) -> PagePart:
    rows: list[list[Child]] = []
    for place in range(len(figures.value("by_rank"))):
        row = figures.subfigures(f"by_rank/{place}")
        busy = row.value("stalls_s/compute") / figures.value("step_time_s") if figures.value("step_time_s") else 0.0
        rows.append(
            [
                row.format("rank", as_number), row.format("operations", as_number), row.format("stalls_s/compute", as_time),
                as_percent(busy), row.format("end_s", as_time),
            ]
        )  # fmt: skip
    head = [("rank", True), ("operations", True), ("compute", True), ("busy", True), ("ends at", True)]
    return PagePart("each", "Each rank", section("each", "Each rank", table(head, rows, "Ranks", "sortable")))
