"""How is a plan shown on a page? The best layout in words, the table of the best, time against memory, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sim.report.page.bars import ERROR_BARS, BarPiece, bar, error_tile, named_bars, p90_error, swatch
from sim.report.page.chart import ChartPoint, axis, chart, error_bars, linear_axis, with_errors
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.goodput import with_failures
from sim.report.page.markup import Child, Figures, Html, bullets, command_line, join, note_box, section, table, tag, tiles
from sim.report.page.words import as_carbon, as_energy, as_memory, as_money, as_number, as_percent, as_time
from sim.report.plan import NOT_VALIDATED, PARTS
from sim.report.plan_changes import flip_lines
from sim.units import any_of, rate_text, show

SHOWN: Final = 10
_COLORS: Final = {
    "compute": "compute", "data": "network", "shard": "fetch", "tensor": "interconnect", "pipeline": "pipeline", "context": "copy",
    "expert": "prep", "input": "input", "straggler": "straggler", "launch": "launch",
}  # fmt: skip


def plan_page(document: Mapping[str, Any]) -> str:
    """Return the page of a plan's *document*."""
    figures = Figures(document, "plan")
    count = min(SHOWN, len(document["layouts"]))
    rows = figures.each("layouts")[:count]
    title = f"Layouts of {document['workload']} on {document['hardware']}"
    gpus = any_of([f"{count:,}" for count in document["gpus"]])
    set_up = f"{gpus} GPU{'s' * (gpus != '1')}, global batch {document['global_batch']:,}, objective {document['objective']}"
    hero = outcome(title, document["verdict"], set_up, _tiles(figures, rows[0]), note_box("Warnings", document["warnings"]))
    more = {
        place: figures.subfigures(f"layouts/{place}") for place, row in enumerate(document["layouts"]) if row["pareto"] and place >= count
    }
    parts = [_table(dict(enumerate(rows)) | more), _time(figures, rows), _trade(figures)]
    failing = with_failures(figures)
    parts += [PagePart("failures", "With failures", section("failures", "With failures", failing))] if failing else []
    parts += [_turns(document)] if document["sensitivity"] else []
    assumed = section("assumed", "Assumed", bullets(document["assumptions"]))
    command = section(
        "command", "Run it", tag("pre", command_line(document["layouts"][0]["command"]), tabindex="0", style="white-space:pre-wrap")
    )
    return page(
        title, "plan", hero, [*parts, PagePart("command", "Run it", command), PagePart("assumed", "Assumed", assumed)], {"plan": document}
    )


def _tiles(figures: Figures, best: Figures) -> Html:
    gap = "proven best" if figures.value("complete") else join("gap ", figures.format("gap", as_percent))
    rows: list[tuple[str, Child, Child]] = [
        ("Step", best.format("step_time_s", as_time), join("bound ", best.format("bound_s", as_time))),
        ("Model FLOPS utilization", best.format("model_flops_utilization", as_percent), "of the dense 16-bit peak"),
        ("Memory left", best.format("memory_headroom_bytes", as_memory), best.value("memory_verdict")),
        ("Layouts", figures.format("candidates", as_number), join(figures.format("infeasible", as_number), " cannot fit")),
        ("Simulated", figures.format("simulated", as_number), gap),
        *error_tile(figures),
    ]
    unit = _unit(best)
    rows.insert(1, (f"{unit.capitalize()}s per second and GPU", best.format(f"{unit}s_per_s_per_gpu", rate_text), None))
    if best.value(f"cost_per_{unit}_usd") is not None:
        rows.append((f"Per million {unit}s", best.format(f"cost_per_{unit}_usd", _of_a_million), None))
    if best.value("job_time_s") is not None:
        money = best.format("job_cost_usd", as_money) if best.value("job_cost_usd") is not None else None
        rows.append(("Whole job", best.format("job_time_s", as_time), money))
        if best.value("job_energy_kwh") is not None:
            rows.append(("Energy", best.format("job_energy_kwh", as_energy), join(best.format("job_co2_kg", as_carbon), " CO2")))
    return tiles(rows)


def _unit(row: Figures) -> str:
    """Return the unit of rates and costs: tokens if samples are sequences, else samples."""
    return "sample" if row.value("tokens_per_s_per_gpu") is None else "token"


def _of_a_million(usd: float) -> str:
    return as_money(1e6 * usd)


def _table(rows: Mapping[int, Figures]) -> PagePart:
    """Return the table of *rows*, which are keyed by their index among all layouts."""
    unit = _unit(rows[0])
    priced = [row.value(f"cost_per_{unit}_usd") is not None for row in rows.values()]
    cells: list[list[Child]] = [
        [
            _named(row, place), tag("span", row.value("stack"), class_="kept"), row.format("nodes", as_number),
            row.format("step_time_s", as_time), row.format(f"{unit}s_per_s_per_gpu", rate_text),
            row.format("model_flops_utilization", as_percent), row.format("memory_headroom_bytes", as_memory),
            *([row.format(f"cost_per_{unit}_usd", _of_a_million) if price_known else "-"] if any(priced) else []),
        ]
        for (place, row), price_known in zip(rows.items(), priced, strict=True)
    ]  # fmt: skip
    head = [("layout", False), ("stack", False), ("nodes", True), ("step", True), (f"{unit}s/s/GPU", True), ("MFU", True)]
    head += [("memory left", True), *([(f"per million {unit}s", True)] if any(priced) else [])]
    lead = "Best first; ~ marks layouts within the expected error of the best."
    lead += f" Below them: other layouts that are Pareto-optimal in {_both(rows[0])}." if len(rows) > SHOWN else ""
    return PagePart(
        "table", "Best layouts", section("table", "The best layouts", table(head, cells, "Layouts", "sortable wordy"), lead=lead)
    )


def _named(row: Figures, place: int) -> Html:
    """Return a layout's name, and below it what limits it and why it is not the best."""
    tie = tag("span", " ~", class_="flag", title="within the expected error of the best") if row.value("tie") and place else None
    unproven = (
        tag("span", NOT_VALIDATED, class_="flag", title="; ".join(row.value("not_validated"))) if row.value("not_validated") else None
    )
    reasons = "; ".join(text for text in (row.value("limit"), row.value("why")) if text)
    return join(
        f"{place + 1}. ",
        row.value("name"),
        tie,
        unproven,
        tag("div", reasons, style="font-weight:normal;color:var(--muted);white-space:normal"),
    )


def _time(figures: Figures, rows: list[Figures]) -> PagePart:
    off = p90_error(figures)
    scale = (1 + off) * max(row.value("step_time_s") for row in rows)
    names = [name for name in _COLORS if any(row.value(f"seconds/{name}") > 1e-9 for row in rows)]
    drawn: list[tuple[Child, Html, Child]] = []
    for place, row in enumerate(rows):
        pieces = [BarPiece(f"seconds/{name}", _COLORS[name], name, show(row.value(f"seconds/{name}"), "time")) for name in names]
        drawn.append((f"{place + 1}", bar(row, pieces, "step_time_s", scale, off), row.format("step_time_s", as_time)))
    key = tag("ul", *(tag("li", swatch(_COLORS[name]), PARTS[name]) for name in names), class_="key")
    lead = "Step time of each layout in the table, by its number: compute, and what compute waits for; mean over ranks."
    lead += f" {ERROR_BARS}" if off else ""
    return PagePart("time", "Where the time goes", section("time", "Where the time goes", named_bars(drawn, "Step"), key, lead=lead))


def _trade(figures: Figures) -> PagePart:
    rows = figures.each("layouts")
    off, points = p90_error(figures), []
    for place, row in enumerate(rows):
        time, free = row.value("penalized_step_time_s"), row.value("memory_headroom_bytes") / 2**30
        marked = (row.marked("penalized_step_time_s"), row.marked("memory_headroom_bytes"))
        tight = "" if row.value("memory_verdict") == "fits" else "\nmemory is nearly full: the allocator may retry (included)"
        says = f"{row.value('name')}\n{as_time(time)}, {free:.1f} GiB free{tight}"
        best, front = place == 0, row.value("pareto")
        points.append(ChartPoint(time, free, str(place + 1), says, marked, best, front, best, off if best or front else 0.0))
    across = axis("step time", with_errors(points), as_time)
    up = linear_axis("GiB free", [point.y for point in points], as_number)
    drawn = chart(points, across, up, "Memory left by step time")
    both = _both(rows[0])
    lead = f"All simulated layouts; numbered ones are Pareto-optimal in {both}. Orange: the best"
    lead += f". {error_bars(points)}" if off else "."
    return PagePart("trade", "Time and memory", section("trade", both.capitalize(), tag("figure", drawn), lead=lead))


def _both(row: Figures) -> str:
    """Return the criteria by which layouts are compared: cost is one of them if there is a price."""
    return "time and memory" if row.value("cost_per_step_usd") is None else "time, memory and money"


def _turns(document: Mapping[str, Any]) -> PagePart:
    rows: list[list[Child]] = []
    for turn in document["sensitivity"]:
        time = "-" if turn["step_time_s"] is None else as_time(turn["step_time_s"])
        rows.append(
            [
                turn["change"],
                turn["best"] or turn["problem"],
                "same" if turn["same"] else "tie" if turn["tie"] else "another",
                time,
                "; ".join(flip_lines(turn)) or "-",
            ]
        )
    head = [("change", False), ("best layout", False), ("compared with the plan", False), ("step", True), ("flips", False)]
    return PagePart("changes", "If things change", section("changes", "If things change", table(head, rows, "Changes")))
