"""How is a run with a layout shown on a page? Where a step goes, stages against time, and the memory of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sim.analysis.layout_memory import StageMemory
from sim.causes import BRIEF
from sim.events import LAYOUT_STALLS, Cause, WaitSpan, WorkSpan
from sim.mesh import LayoutRun
from sim.report.energy import epoch_tokens
from sim.report.layouts.layout import MEMORY_USES, layout_name
from sim.report.layouts.memory_error import memory_error_text
from sim.report.page.bars import ERROR_BARS, BarPiece, bar, error_tile, named_bars, p90_error, step_stalls, swatch
from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, axis, chart, linear_axis, with_errors_up
from sim.report.page.colors import USES, fill
from sim.report.page.energy import LEAD, energy, energy_tile
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.goodput import with_failures
from sim.report.page.markup import Child, Figures, Html, join, note_box, section, table, tag, tiles
from sim.report.page.timeline import TimelineSpan, lanes_of
from sim.report.page.whole_job import whole_job
from sim.report.page.words import as_memory, as_money, as_number, as_percent, as_time
from sim.report.trace.excerpt import micro_batches_shown
from sim.report.whole_job import tokens_text
from sim.units import pluralized, rate_text, show

MOST_STAGES: Final = 32
"""Maximum number of stages with a lane of their own."""
MOST_COURSES: Final = 8
"""Maximum number of stages whose memory is drawn against time."""
COLUMNS: Final = 400
"""Number of intervals of a step for which memory is drawn, each with its largest use."""
_SHADES: Final = {
    "forward": "#77aadd", "backward": "#4477aa", "backward of inputs": "#4477aa", "backward of weights": "#225588", "optimizer": "#99aa77",
}  # fmt: skip
_OTHER: Final = "#bbbb99"
"""Shade of work that is not in `_SHADES`."""
_SENT: Final = " between stages"
"""The end of the names of pipeline messages (`sim.training.layouts.scene.describe_tag`)."""


def layout_page(run: LayoutRun | None, document: Mapping[str, Any]) -> str:
    """Return the page of one *run*, whose JSON is *document*; if *run* is None, that of a scaling table."""
    if run is None:
        return _scaling_page(document)
    hero, parts = layout_parts(run, document)
    return page(f"{document['workload']} on {document['hardware']}", "run", hero, parts, {"run": document})


def layout_parts(run: LayoutRun, document: Mapping[str, Any], title: str = "", verdict: str = "") -> tuple[Html, list[PagePart]]:
    """Return the outcome of *run*, whose JSON is *document*, and the parts of its page; *title* and *verdict* replace the run's own."""
    figures = Figures(document, "run")
    machine = f"{document['gpus']} x {run.node.gpu.name} on {pluralized(document['nodes'], 'node')}"
    hero = outcome(
        title or f"{document['workload']} on {document['hardware']}",
        verdict or document["verdict"],
        f"{machine}; {layout_name(document)}; {document['precision']}, {document['stack']}",
        _tiles(figures),
        note_box("Warnings", document["warnings"]),
    )
    parts = [_time(figures), _job(figures), _failures(figures), _stages(run), _memory(figures, run.node.gpu.memory), _energy(figures)]
    return hero, [*(part for part in parts if part), *basis(figures)]


def _job(figures: Figures) -> PagePart | None:
    if not figures.value("whole_job"):
        return None
    lead = "From the start of the machines to the last checkpoint."
    shown = whole_job(figures.subfigures("whole_job"), p90_error(figures))
    return PagePart("job", "The whole job", section("job", "The whole job", shown, lead=lead))


def _failures(figures: Figures) -> PagePart | None:
    drawn = with_failures(figures)
    return PagePart("failures", "With failures", section("failures", "With failures", drawn)) if drawn else None


def _energy(figures: Figures) -> PagePart | None:
    drawn = energy(figures)
    return PagePart("energy", "Energy", section("energy", "Energy", drawn, lead=LEAD)) if drawn else None


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [("Step", figures.format("step_time_s", as_time), None)]
    if figures.value("tokens_per_s") is not None:
        each = join(figures.format("tokens_per_s_per_gpu", as_number), " per GPU")
        rows.append(("Tokens per second", figures.format("tokens_per_s", as_number), each))
    else:
        rows.append(("Samples per second", figures.format("throughput_samples_per_s", rate_text), None))
    if figures.value("model_flops_utilization") is not None:
        rows.append(("Model FLOPS utilization", figures.format("model_flops_utilization", as_percent), "of the dense 16-bit peak"))
    rows.append(("GPU memory", figures.format("gpu_memory_bytes/total", as_memory), figures.value("memory_verdict").replace("_", " ")))
    rows.append(
        (
            "Global batch",
            figures.format("global_batch", as_number),
            f"{figures.value('micro_batches')} micro-batch{'es' * (figures.value('micro_batches') != 1)}",
        )
    )
    cost = figures.format("cost_per_epoch_usd", as_money) if figures.value("cost_per_epoch_usd") is not None else None
    tokens = epoch_tokens(figures.value(""))
    length = None if tokens is None else tokens_text(tokens)
    rows.append(("Epoch", figures.format("epoch_time_s", as_time), join(cost, ", " if cost and length else "", length)))
    rows += error_tile(figures)
    rows += energy_tile(figures)
    if figures.value("whole_job"):
        rows.append(("Whole job", figures.format("whole_job/time_s", as_time), figures.format("whole_job/cost_usd", as_money)))
    return tiles(rows)


def _time(figures: Figures) -> PagePart:
    lead = "A rank's step by what it does or waits for; mean over ranks."
    return PagePart("time", "Where the time goes", section("time", "Where the time goes", *step_stalls(figures, BRIEF), lead=lead))


def _stages(run: LayoutRun) -> PagePart:
    """Return the part with a lane for each stage (work, waits in between, messages in a strip below), then the memory of each."""
    stages = run.played.stages
    begin, end = min(stage.begin for stage in stages), max(stage.end for stage in stages)
    span = TimelineSpan(begin, end, [end])
    shown = range(min(len(stages), MOST_STAGES))
    words = [f"stage {stage}" if len(stages) > 1 else "each rank" for stage in shown]
    names = [tag("div", word, class_="lane-name") for word in words]
    lanes = [tag("div", *_lane(run, stage, span), class_="lane") for stage in shown]
    courses = {stage: course for stage in shown[:MOST_COURSES] if (course := run.memory_over_time(stage))}
    if courses:
        names.append(tag("div", "GPU memory", class_="lane-name title"))
        names += [tag("div", words[stage], class_="lane-name high") for stage in courses]
        lanes.append(tag("div", class_="title"))
        lanes += [tag("div", _course(course, span, run.node.gpu.memory), class_="lane high") for course in courses.values()]
    figure = lanes_of(names, lanes, span, "Stages and their memory over time")
    seen = [mark for stage in shown for mark in _shown(run, stage, span)]
    names_of = dict.fromkeys(mark.name for mark in seen if isinstance(mark, WorkSpan) and mark.stream == "gpu")
    shades = (tag("li", tag("i", class_="swatch", style=f"background:{_SHADES.get(name, _OTHER)}"), name) for name in _in_order(names_of))
    waits = {mark.cause for mark in seen if isinstance(mark, WaitSpan) or mark.stream != "gpu"}
    causes = (tag("li", swatch(cause.value), cause.value) for cause in LAYOUT_STALLS if cause in waits)
    uses = (tag("li", swatch(use), use.replace("_", " ")) for use in MEMORY_USES) if courses else ()
    key = tag("ul", *shades, *causes, *uses, class_="key")
    left_out, every = run.played.left_out, run.layout.micro_batches
    lead = f"One step of {as_time(run.step_time if left_out else end - begin)}: what each stage computes; colored gaps are waits by cause."
    if left_out:
        lead += f" {micro_batches_shown(every - left_out, every)}."
    if len(stages) > 1:
        lead += " The strip below each lane shows what the stage sends to others, by network."
    if courses:
        lead += f" Below: the memory of one GPU by use over time; the full height is its {as_memory(run.node.gpu.memory)}."
    return PagePart("stages", "Stages over time", section("stages", "Stages over time", figure, key, lead=lead))


def _steps(heights: Sequence[float], columns: range) -> str:
    """Return an SVG path through *columns* at their *heights*, with a corner only where the height changes."""
    corners, last = [], ""
    for column in columns:
        height = f"{heights[column]:.1f}"
        if height != last:
            corners.append(f"H{column + (columns.step < 0)}V{height}")
            last = height
    return "".join([*corners, f"H{columns.stop + (columns.step < 0)}"])


def _course(course: Sequence[tuple[float, float, StageMemory]], span: TimelineSpan, memory: float) -> Html:
    """Return the memory of one rank against time: a stacked area for each use; the full height is *memory* bytes or the peak."""
    columns: list[StageMemory | None] = [None] * COLUMNS
    for begin, end, state in course:
        first, last = (int(COLUMNS * (moment - span.start) / (span.end - span.start)) for moment in (begin, end))
        for column in range(max(first, 0), min(max(last, first + 1), COLUMNS)):
            before = columns[column]
            columns[column] = state if before is None or state.total > before.total else before
    full = max(memory, max(state.total for *_, state in course))
    floor = [0.0] * COLUMNS
    areas = []
    for use in MEMORY_USES:
        top = [low + (getattr(state, use) if state else 0.0) for low, state in zip(floor, columns, strict=True)]
        if top != floor:
            up, down = ([100.0 - 100.0 * value / full for value in values] for values in (top, floor))
            outline = f"M0,100{_steps(up, range(COLUMNS))}V100{_steps(down, range(COLUMNS - 1, -1, -1))}Z"
            areas.append(tag("path", d=outline, style=f"fill:var(--{use.replace('_', '-')})"))
        floor = top
    peak = max((state for *_, state in course), key=lambda state: state.total)
    says = "\n".join(f"{use.replace('_', ' ')} {as_memory(getattr(peak, use))}" for use in MEMORY_USES if getattr(peak, use))
    svg = tag("svg", *areas, viewBox=f"0 0 {COLUMNS} 100", preserveAspectRatio="none", aria_hidden="true")
    return tag("div", svg, class_="mark", style="left:0;width:100%", data_tip=f"at most {as_memory(peak.total)}\n{says}")


def _in_order(names: Iterable[str]) -> list[str]:
    """Return *names* of work in the order of a step; those that are not in `_SHADES` come last."""
    order = [*_SHADES]
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _shown(run: LayoutRun, stage: int, span: TimelineSpan) -> list[WorkSpan | WaitSpan]:
    """Return the spans in the lane of *stage*: what it computes, sends to other stages, and waits for."""
    log = run.played.log
    work = [one for one in log.work if one.rank == stage and (one.stream == "gpu" or one.name.endswith(_SENT))]
    waits = [one for one in log.waits if one.rank == stage and one.cause != Cause.COMPUTE]
    marks: list[WorkSpan | WaitSpan] = [*work, *waits]
    return [one for one in marks if one.t1 > span.start and one.t0 < span.end]


def _lane(run: LayoutRun, stage: int, span: TimelineSpan) -> list[Html]:
    return [_wait(one, span) if isinstance(one, WaitSpan) else _work(one, span) for one in _shown(run, stage, span)]


def _wait(wait: WaitSpan, span: TimelineSpan) -> Html:
    says = f"waits: {wait.resource}\n{as_time(wait.t1 - wait.t0)}"
    style = f"{span.place(wait.t0, wait.t1)};{fill(wait.cause.value)};opacity:0.55"
    return tag("div", class_="mark", style=style, data_tip=says)


def _work(work: WorkSpan, span: TimelineSpan) -> Html:
    if work.stream != "gpu":
        says = f"sends {work.resource}\n{as_time(work.t1 - work.t0)}"
        return tag("div", class_="mark sent", style=f"{span.place(work.t0, work.t1)};{fill(work.cause.value)}", data_tip=says)
    number = f"\nmicro-batch {work.ident}" if work.ident >= 0 else ""
    says = f"{work.name}{number}\n{as_time(work.t1 - work.t0)}"
    return tag("div", class_="mark", style=f"{span.place(work.t0, work.t1)};background:{_SHADES.get(work.name, _OTHER)}", data_tip=says)


def _memory(figures: Figures, memory: float) -> PagePart:
    stages: Sequence[Mapping[str, Any]] = figures.value("memory_by_stage")
    rows = []
    for place, stage in enumerate(stages[:MOST_STAGES]):
        own = figures.subfigures(f"memory_by_stage/{place}")
        pieces = [BarPiece(use, use, use.replace("_", " "), show(stage[use], "size")) for use in MEMORY_USES]
        name = f"stage {stage['stage']}" if len(stages) > 1 else "each GPU"
        rows.append((name, bar(own, pieces, "total", max(memory, stage["total"])), own.format("total", as_memory)))
    key = tag("ul", *(tag("li", swatch(use), use.replace("_", " ")) for use in MEMORY_USES if use in USES), class_="key")
    error = memory_error_text(figures.value("memory_expected_error"))
    lead = f"Peak of a step; a full bar is the GPU's {as_memory(memory)}. {error[0].upper()}{error[1:]}."
    return PagePart("memory", "GPU memory", section("memory", "GPU memory", named_bars(rows, "GPU memory by stage"), key, lead=lead))


def _scaling_page(document: Mapping[str, Any]) -> str:
    figures = Figures(document, "run")
    ran = [place for place, row in enumerate(document["runs"]) if "infeasible" not in row]
    sizes = [figures.subfigures(f"runs/{place}") for place in ran]
    first = document["runs"][ran[0]] if ran else document["runs"][0]
    key = "tokens_per_s" if ran and first["tokens_per_s"] is not None else "throughput_samples_per_s"
    columns = {"gpus": as_number, "step_time_s": as_time, key: as_number, "model_flops_utilization": as_percent}
    rows: list[list[Child]] = [[size.format(name, write) for name, write in columns.items()] for size in sizes]
    head = [("GPUs", True), ("step", True), (key.replace("_", " "), True), ("MFU", True)]
    parts = [PagePart("table", "Table", section("table", "All runs", table(head, rows)))]
    if len(sizes) > 1:
        points = [_point(size, key) for size in sizes]
        across = axis("GPUs", [size.value("gpus") for size in sizes], as_number, own=True)
        up = linear_axis(key.replace("_", " "), with_errors_up(points), as_number)
        means = tag("figcaption", ERROR_BARS) if any(point.error_up for point in points) else None
        drawn = tag("figure", chart(points, across, up, "Throughput by GPUs"), means)
        parts.insert(0, PagePart("speed", "Throughput", section("speed", "Throughput", drawn)))
    failed = [f"{row['gpus']} GPUs: {row['infeasible']}" for row in document["runs"] if "infeasible" in row]
    verdict = f"{pluralized(len(sizes), 'layout')} simulated, {len(failed)} cannot run."
    hero = outcome(f"{first['workload']} on {first['hardware']}", verdict, "", note_box("Cannot run", failed))
    return page(f"{first['workload']} on {first['hardware']}", "run", hero, parts, {"run": document})


def _point(size: Figures, key: str) -> ChartPoint:
    name = pluralized(size.value("gpus"), "GPU")
    says = f"{name}\n{as_number(size.value(key))} {key.replace('_', ' ')}"
    marked = (size.marked("gpus"), size.marked(key))
    return ChartPoint(size.value("gpus"), size.value(key), name, says, marked, is_labeled=True, error_up=p90_error(size))
