"""How are machines compared on a page? Time against cost with the Pareto front, and where a step goes on each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.comparison import NAMED, AxisQuantity, comparison_axes, failure_lines, machine_count, page_notes, rate_of, time_differs
from sim.report.energy import grid_words
from sim.report.page.bars import SAME_ERROR, bar, named_bars, p90_error, stall_key, stall_pieces
from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, axis, chart, error_bars, with_errors, with_errors_up
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, bullets, join, note_box, section, table, tag
from sim.report.page.words import as_carbon, as_energy, as_memory, as_money, as_number, as_percent, as_plain, as_tenths, as_time
from sim.report.whole_job import length_text
from sim.study.descriptions import Descriptions
from sim.units import all_of, rate_text

_BARS = 60
"""Maximum number of machines whose steps are drawn; the table has all."""


def comparison_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a comparison's *document*, with its inputs from *descriptions*."""
    title = f"{document['workload']} on {machine_count(document['rows'])}"
    verdict, parts = comparison_parts(document)
    parts += basis(Figures(document, "compare"), descriptions)
    return page(title, "comparison", outcome(title, verdict, "", note_box("Notes", page_notes(document))), parts, {"compare": document})


def comparison_parts(document: Mapping[str, Any]) -> tuple[str, list[PagePart]]:
    """Return the verdict of a comparison's *document*, and the parts that show its machines."""
    figures = Figures(document, "compare")
    rows = figures.each("rows")
    parts = [_pareto(rows), _steps(rows), _table(rows)] if rows else []
    return verdict_of(rows), [*parts, *([_left_out(document["left_out"])] if document["left_out"] else [])]


def machine_label(row: Figures) -> str:
    """Return the machine of *row*, with the number of nodes if there are several."""
    nodes = row.value("nodes")
    return str(row.value("hardware")) if nodes == 1 else f"{row.value('hardware')}, {nodes:,} nodes"


def verdict_of(rows: Sequence[Figures]) -> str:
    """Return a sentence on which of *rows* is fastest and which is cheapest, for an epoch or for the whole job."""
    if not rows:
        return "No machine can run it."
    time, cost = _shown(rows)
    sign = -1 if time.path.endswith("epochs") else 1

    def fast_then_cheap(row: Figures) -> tuple[float, float]:
        usd = row.value(cost.path)
        return sign * row.value(time.path), math.inf if usd is None else usd

    fastest = min(rows, key=fast_then_cheap)
    alike = _labels_alike(rows, fastest)
    priced = [row for row in rows if row.value(cost.path) is not None]
    if not priced:
        return f"{alike} fastest: {_words(fastest)}."
    cheapest = min(priced, key=lambda row: row.value(cost.path))
    if _words(cheapest) == _words(fastest):
        return f"{alike} fastest and cheapest: {_words(fastest)}."
    return f"{alike} fastest: {_words(fastest)}. {_labels_alike(rows, cheapest)} cheapest: {_words(cheapest)}."


def _labels_alike(rows: Sequence[Figures], best: Figures) -> str:
    """Return the machine of *best* and those of *rows* with the same shown time and cost, with the verb."""
    labels = [machine_label(best), *(machine_label(row) for row in rows if row is not best and _words(row) == _words(best))]
    return f"{all_of(labels, NAMED)} {'is' if len(labels) == 1 else 'are'}"


def _shown(rows: Sequence[Figures]) -> tuple[AxisQuantity, AxisQuantity]:
    return comparison_axes([row.value("") for row in rows])


def _words(row: Figures) -> str:
    job = row.value("whole_job")
    time, cost = (row.value("epoch_time_s"), row.value("cost_per_epoch_usd")) if job is None else (job["time_s"], job["cost_usd"])
    what = "per epoch" if job is None else f"for {length_text(job)}"
    return f"{as_time(time)}{'' if cost is None else f' and {as_money(cost)}'} {what}"


def _pareto(rows: Sequence[Figures]) -> PagePart:
    time, cost = _shown(rows)
    in_time = not time.path.endswith("epochs")
    points = [
        ChartPoint(
            x, y, machine_label(row), f"{machine_label(row)}\n{_words(row)}\n{_stall(row)}", (row.marked(time.path), row.marked(cost.path)),
            row.value("pareto"), True, row.value("pareto"), p90_error(row), p90_error(row) if in_time else 0.0,
        )
        for row in rows if (x := time.of(row.value(""))) is not None and (y := cost.of(row.value(""))) is not None
    ]  # fmt: skip
    if not points:
        return PagePart("money", "Time and money", section("money", "Time and money", tag("p", "None of these machines has a price.")))
    across, up = axis(time.title, with_errors(points), as_plain), axis(cost.title, with_errors_up(points), as_plain)
    front = sorted((point.x, point.y) for point in points if point.best)
    drawn = chart(points, across, up, "Cost over time", [("front", front)] if len(front) > 1 else [])
    same = f" {SAME_ERROR}" if in_time else ""
    key = tag(
        "figcaption",
        tag("span", "Orange", class_="flag"),
        f": nothing else is both faster and cheaper. {error_bars(points)}{same} Both axes are logarithmic.",
    )
    with_job = row_job(rows) is not None
    lead = f"Each point is a machine, with the time and cost of {'the whole job' if with_job else 'an epoch'}."
    return PagePart("money", "Time and money", section("money", "Time and money", tag("figure", drawn, key), lead=lead))


def row_job(rows: Sequence[Figures]) -> Mapping[str, Any] | None:
    """Return the whole job of the first of *rows* that has one."""
    return next((row.value("whole_job") for row in rows if row.value("whole_job")), None)


def _stall(row: Figures) -> str:
    stalls = {cause: seconds for cause, seconds in row.value("stalls_s").items() if cause != "compute"}
    worst = max(stalls, key=lambda cause: stalls[cause])
    step = row.value("step_time_s")
    return f"{as_percent(row.value('stalls_s/compute') / step)} compute, then {worst} {as_percent(stalls[worst] / step)}"


def _steps(rows: Sequence[Figures]) -> PagePart:
    drawn: list[tuple[Child, Html, Child]] = [
        (machine_label(row), bar(row, stall_pieces(row), "step_time_s", row.value("step_time_s")), row.format("step_time_s", as_time))
        for row in rows[:_BARS]
    ]
    bars = tag("div", named_bars(drawn, "Share of step time by cause, on each machine"), class_="short long")
    lead = "Share of step time by cause; step time at right." + (f" The first {_BARS} machines." if len(rows) > _BARS else "")
    return PagePart("steps", "Step time", section("steps", "Step time by cause", tag("figure", bars), stall_key(*rows[:_BARS]), lead=lead))


def _carbon(row: Figures) -> Child:
    """Return the CO2 of an epoch, with the grid in its tooltip."""
    if not row.value("energy"):
        return "-"
    return tag("span", row.format("energy/co2_per_epoch_kg", as_carbon), title=grid_words(row.value("energy/grid")))


def _table(rows: Sequence[Figures]) -> PagePart:
    """Return the table of *rows*, like `comparison_text` without epochs if the job is a budget of tokens."""
    job = row_job(rows)
    rate, of_rate = rate_of([row.value("") for row in rows])
    in_tokens = job is not None and job["given"] == "tokens"

    def of_epoch(row: Figures) -> list[Child]:
        energy = row.format("energy/kwh_per_epoch", as_energy) if row.value("energy") else "-"
        figures = [row.format("epoch_time_s", as_time), row.format("cost_per_epoch_usd", as_money), energy]
        return [] if in_tokens else [*figures, _carbon(row), row.format("first_epoch_time_s", as_time)]

    cells: list[list[Child]] = [
        [
            join(
                machine_label(row),
                tag("span", " *", class_="flag", title="Pareto-optimal") if row.value("pareto") else None,
                tag("small", f" {row.value('provider')}", class_="quiet") if row.value("provider") else None,
            ),
            row.format("gpus", as_number), row.format("step_time_s", as_time), row.format(rate, rate_text), *of_epoch(row),
            row.format("gpu_memory_bytes", as_memory), row.share("stalls_s/compute", "step_time_s"),
            row.format("expected_error/median", as_percent) if row.value("expected_error") else "-",
        ]
        for row in rows
    ]  # fmt: skip
    epoch = [] if in_tokens else ["epoch", "cost per epoch", "energy", "CO2", "first epoch"]
    titles = ["GPUs", "step", of_rate, *epoch, "GPU memory", "compute", "expected error"]
    if job:
        titles += ["whole job" if time_differs(job) else "epochs done", "cost of whole job"]
        for row, line in zip(rows, cells, strict=True):
            done = row.format("whole_job/time_s", as_time) if time_differs(job) else row.format("whole_job/epochs", as_tenths)
            line += [done, row.format("whole_job/cost_usd", as_money)]
    drawn = table([("hardware", False), *((title, True) for title in titles)], cells, "Machines", "sortable")
    star = join("* Pareto-optimal: nothing is both faster and cheaper. Click a header to sort.")
    return PagePart("table", "Table", section("table", "All figures", drawn, lead=star))


def _left_out(failed: Sequence[Mapping[str, Any]]) -> PagePart:
    listed = bullets(failure_lines(failed))
    return PagePart("left-out", "Cannot run it", section("left-out", "Machines that cannot run it", listed))
