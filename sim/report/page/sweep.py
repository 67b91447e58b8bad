"""How is a sweep shown on a page? The best points and the most influential field in words, throughput over each field, and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sim.report.page.bars import ERROR_BARS, bar, bar_scale, named_bars, p90_error, stall_key, stall_pieces
from sim.report.page.basis import basis
from sim.report.page.chart import ChartAxis, ChartPoint, axis, chart, linear_axis, with_errors_up
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, bullets, details, join, section, step, table, tag, tiles
from sim.report.page.words import as_money, as_number, as_percent, as_plain, as_rate, as_time
from sim.study.descriptions import Descriptions
from sim.units import pluralized, rate_text

_BARS = 40
"""Maximum number of points whose steps are drawn."""
_LINES = 12
"""Maximum number of combinations of the other fields for which a field's points are joined by lines."""
_ROWS = 500
"""Maximum number of points in the table; the file of the sweep has all."""
_NAMED = 2
"""Maximum number of equal points that are all named."""
_LOGARITHMIC = 8.0
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""
_MATTERS = 1.01
"""Influence up to which a field has no noticeable effect: half of the noise of repeated measurements (2-4%)."""


def sweep_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a sweep's *document*, with the inputs of its first point from *descriptions*."""
    figures = Figures(document, "sweep")
    rows = figures.each("rows")
    title = f"{document['workload']} on {document['hardware']}: {pluralized(document['points'], 'point')}"
    set_up = f"varied: {', '.join(document['varied'])}{_fixed(document)}"
    hero = outcome(title, verdict_of(document), set_up, _tiles(figures))
    parts = [part for place, key in enumerate(document["varied"]) if (part := _over(rows, key, place))]
    parts += [_steps(rows), _table(rows, document["varied"])] if rows else []
    parts += [_left_out(document["left_out"])] if document["left_out"] else []
    parts += basis(figures, descriptions)
    return page(title, "sweep", hero, parts, {"sweep": document})


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return in words the fastest and the cheapest point, and the most influential field."""
    rows = document["rows"]
    if not rows:
        return "None of the points can run."
    fastest, rate = _best(rows, "throughput_samples_per_s", as_rate, max)
    sentence = f"Fastest: {_points(fastest, len(rows))}, {rate}."
    priced = [row for row in rows if row["cost_per_epoch_usd"] is not None]
    cheapest, cost = _best(priced, "cost_per_epoch_usd", as_money, min) if priced else (fastest, "")
    if not any(row is other for row in cheapest for other in fastest):
        sentence += f" Cheapest: {_points(cheapest, len(rows))}, {cost} per epoch."
    influence = {key: times for key, times in document["influence"].items() if times is not None}
    most = max(influence, key=lambda key: influence[key], default=None)
    if most is None or len(influence) < 2:
        return sentence
    return (
        f"{sentence} {most.rpartition('.')[2].replace('_', ' ').capitalize()} has the largest effect."
        if influence[most] > _MATTERS
        else f"{sentence} No field has a noticeable effect."
    )


def _best(
    rows: Sequence[Mapping[str, Any]], figure: str, write: Callable[[float], str], best: Callable[[Iterable[float]], float]
) -> tuple[list[Mapping[str, Any]], str]:
    """Return those of *rows* whose *figure* is the *best* one as it is shown, and that figure as text."""
    shown = write(best(row[figure] for row in rows))
    return [row for row in rows if write(row[figure]) == shown], shown


def _points(rows: Sequence[Mapping[str, Any]], of: int) -> str:
    """Return the labels of *rows*, some of all *of* points, which are equal; of many, one and their number."""
    if len(rows) <= _NAMED:
        return " and ".join(point_label(row) for row in rows)
    return f"{'all' if len(rows) == of else ''} {len(rows):,} equal points, such as {point_label(rows[0])}".strip()


def point_label(row: Mapping[str, Any]) -> str:
    """Return the varied fields of *row* as text, each with the last part of its key."""
    return ", ".join(f"{key.rpartition('.')[2]} {text}" for key, text in row["point"].items())


def _fixed(document: Mapping[str, Any]) -> str:
    shown = f"; {'; '.join(document['given'])}" if document["given"] else ""
    count = len(document["rows"]) + len(document["left_out"])
    return shown if count == document["points"] else f"{shown}; {count} evenly spaced points are shown"


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [("Points", figures.format("points", as_number), None)]
    for key, times in figures.value("influence").items():
        if times is not None:
            rows.append((key, figures.format(f"influence/{step(key)}", lambda times: f"{times:.2f}x"), "from worst to best value"))
    return tiles(rows)


def _over(rows: Sequence[Figures], key: str, place: int) -> PagePart | None:
    """Return the chart of throughput over the field *key*; None if its values are not numbers, or if there is only one."""
    numbered = [row for row in rows if key in row.value("numbers")]
    values = {row.value(f"numbers/{step(key)}") for row in numbered}
    if len(values) < 2 or len(numbered) < len(rows):
        return None
    highest = as_rate(max(row.value("throughput_samples_per_s") for row in numbered))
    best = [row for row in numbered if as_rate(row.value("throughput_samples_per_s")) == highest]
    groups = _grouped(numbered, key)
    ends = {group[-1].base_path for group in groups} if 1 < len(groups) <= _LINES else set()
    points = [
        ChartPoint(
            row.value(f"numbers/{step(key)}"), row.value("throughput_samples_per_s"), _others(row, key), _says(row),
            (row.marked(f"numbers/{step(key)}"), row.marked("throughput_samples_per_s")), row in best, row.base_path in ends,
            error_up=p90_error(row) if row is best[0] or row.base_path in ends else 0.0,
        )
        for row in numbered
    ]  # fmt: skip
    unit = numbered[0].value(f"point/{step(key)}").partition(" ")[2]
    title = f"{key} ({unit})" if unit else key
    across = _axis(title, values, as_plain)
    up = _axis("samples per second", with_errors_up(points), as_plain)
    drawn = tag("figure", chart(points, across, up, f"Samples per second by {key}", _lines(numbered, key)))
    ident = f"over-{place}"
    return PagePart(ident, key.rpartition(".")[2], section(ident, f"Throughput by {key}", drawn, lead=_lead(numbered, key, len(best))))


def _others(row: Figures, key: str) -> str:
    """Return the varied fields of *row* except *key*, which name its line."""
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in row.value("point").items() if name != key)


def _lead(rows: Sequence[Figures], key: str, fastest: int) -> str:
    others = [name for name in rows[0].value("point") if name != key]
    joined = f". Each line is one value of {', '.join(others)}" if others and 1 < len(_grouped(rows, key)) <= _LINES else ""
    with_errors = any(p90_error(row) for row in rows)
    orange, barred = (
        ("the fastest point", "that point") if fastest == 1 else (f"the {fastest} fastest points, which are equal", "one of them")
    )
    errors = f" Error bars, on {barred} and the last one of each line: 90% of similar predictions were within them." if with_errors else ""
    return f"Samples per second of all GPUs{joined}. Orange: {orange}.{errors}"


def _grouped(rows: Sequence[Figures], key: str) -> list[list[Figures]]:
    """Return *rows* in groups that differ only in *key*, each sorted by *key*."""

    def others(row: Figures) -> tuple[str, ...]:
        return tuple(text for name, text in row.value("point").items() if name != key)

    groups = [list(group) for _, group in groupby(sorted(rows, key=others), key=others)]
    return [sorted(group, key=lambda row: float(row.value(f"numbers/{step(key)}"))) for group in groups]


def _lines(rows: Sequence[Figures], key: str) -> list[tuple[str, list[tuple[float, float]]]]:
    groups = _grouped(rows, key)
    if len(groups) > _LINES:
        return []
    corners = [[(row.value(f"numbers/{step(key)}"), row.value("throughput_samples_per_s")) for row in group] for group in groups]
    return [("ideal", line) for line in corners if len(line) > 1]


def _axis(title: str, values: Iterable[float], write: Any) -> ChartAxis:
    numbers = list(values)
    logarithmic = min(numbers) > 0 and max(numbers) > _LOGARITHMIC * min(numbers)
    return axis(title, numbers, write) if logarithmic else linear_axis(title, numbers, write)


def _says(row: Figures) -> str:
    fields = "\n".join(f"{key} {text}" for key, text in row.value("point").items())
    cost = row.value("cost_per_epoch_usd")
    money = f"\n{as_money(cost)} per epoch" if cost is not None else ""
    return f"{fields}\n{as_rate(row.value('throughput_samples_per_s'))}\na step takes {as_time(row.value('step_time_s'))}{money}"


def _steps(rows: Sequence[Figures]) -> PagePart:
    stride = -(-len(rows) // _BARS)
    chosen = rows[::stride]
    scale = bar_scale(chosen, "step_time_s")
    drawn: list[tuple[Child, Html, Child]] = [
        (point_label(row.value("")), bar(row, stall_pieces(row), "step_time_s", scale, p90_error(row)), row.format("step_time_s", as_time))
        for row in chosen
    ]
    bars = tag("div", named_bars(drawn, "Step time by cause, at each point"), class_="short long")
    lead = "Warm steps." + (f" {len(chosen)} evenly spaced points." if stride > 1 else "")
    lead += f" {ERROR_BARS}" if any(p90_error(row) for row in chosen) else ""
    return PagePart("steps", "Step time", section("steps", "Step time by cause", tag("figure", bars), stall_key(*chosen), lead=lead))


def _table(rows: Sequence[Figures], varied: Sequence[str]) -> PagePart:
    cells: list[list[Child]] = [
        [
            *(row.value(f"point/{step(key)}") for key in varied), row.format("step_time_s", as_time),
            row.format("throughput_samples_per_s", rate_text), row.share("stalls_s/compute", "step_time_s"),
            row.format("epoch_time_s", as_time), row.format("cost_per_epoch_usd", as_money),
            join(row.format("expected_error/median", as_percent) if row.value("expected_error") else "-", _flag(row)),
        ]
        for row in rows[:_ROWS]
    ]  # fmt: skip
    head = [
        *((key, False) for key in varied),
        *((title, True) for title in ("step", "samples/s", "compute", "epoch", "cost per epoch", "expected error")),
    ]
    lead = f"The first {_ROWS} points; the file has all." if len(rows) > _ROWS else "Click a header to sort."
    return PagePart("table", "Table", section("table", "All figures", table(head, cells, "Points", "sortable"), lead=lead))


def _flag(row: Figures) -> Html | None:
    """Return the mark of a point whose layout has a feature that no measured run has."""
    features = row.value("not_validated")
    return tag("span", " not validated", class_="flag", title=features) if features else None


def _left_out(failed: Sequence[Mapping[str, Any]]) -> PagePart:
    listed = bullets(f"{point_label(row)}: {row['problem']}" for row in failed)
    shown = listed if len(failed) <= _BARS else details(f"{len(failed)} points", listed)
    return PagePart("left-out", "Cannot run", section("left-out", "Points that cannot run", shown))
