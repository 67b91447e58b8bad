"""How is a recommendation shown on a page? What to rent in words, how certain that is, and every candidate by time and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.comparison import group_by_text
from sim.report.energy import grid_words
from sim.report.page.bars import ERROR_BARS, SAME_ERROR, bar_scale, named_bars, p90_error
from sim.report.page.basis import basis
from sim.report.page.chart import ChartAxis, ChartPoint, axis, chart, error_bars, with_errors, with_errors_up
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, bullets, details, join, note_box, section, table, tag, tiles
from sim.report.page.whole_job import parts_bar, parts_key
from sim.report.page.words import as_carbon, as_energy, as_money, as_number, as_percent, as_time
from sim.report.recommendation import notes_by_machine, nothing_to_rent, time_axis
from sim.report.whole_job import length_text
from sim.study.compare import front
from sim.study.descriptions import Descriptions
from sim.units import dollars

_BARS = 12
"""Maximum number of candidates whose time is drawn by part; the table has all."""
_LONG = 5.0
"""Only candidates that take at most this many times as long as the first are drawn: longer bars would squeeze all others."""
_NAMED = 25
"""Number of the best candidates that may have their name in the chart, in addition to those on the front."""
_ROWS = 25
"""Number of the best candidates in the open table; a folded one has all."""


def recommendation_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a recommendation's *document*, with its inputs from *descriptions*."""
    figures = Figures(document, "recommend")
    rows = figures.each("candidates")
    chosen = next((figures.subfigures(name) for name in ("best", "nearest") if document[name] is not None), None)
    notes_title = "Certainty, and what would change the answer" if document["best"] else "Notes"
    shown, title = _tiles(figures, chosen) if chosen else None, f"What to rent for {document['workload']}"
    hero = outcome(title, verdict_of(document), "", shown, note_box(notes_title, notes_by_machine(document)))
    parts = [_money(figures, rows), _parts(rows), _table(rows)] if rows else []
    parts += [*([_left_out(document["left_out"])] if document["left_out"] else []), *basis(figures, descriptions)]
    return page(title, "recommendation", hero, parts, {"recommend": document})


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return a sentence on what to rent, or on what is nearest to the budget."""
    best, near = document["best"], document["nearest"]
    if best:
        return f"Rent {_named(best)}: {_taken(best)} for {_length(document, best)}."
    if near:
        return f"Nothing meets {_limit(document)}. Closest is {_named(near)}: {_taken(near)} for {_length(document, near)}."
    return nothing_to_rent(document)


def _named(candidate: Mapping[str, Any]) -> str:
    nodes, qualifiers = candidate["nodes"], [*filter(None, [candidate.get("provider")]), candidate["market"].replace("_", " ")]
    return f"{f'{nodes} x ' if nodes > 1 else ''}{candidate['hardware']} ({', '.join(qualifiers)})"


def _taken(candidate: Mapping[str, Any]) -> str:
    return f"{as_time(candidate['total_time_s'])} and {as_money(candidate['total_cost_usd'])}"


def _length(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Return the length of the job on *candidate*, in tokens if these were requested, else in epochs."""
    return length_text({**candidate, **({"tokens": tokens} if (tokens := document["job"].get("tokens")) else {})})


def _limit(document: Mapping[str, Any]) -> str:
    time, money = document["budget"]["time_s"], document["budget"]["money_usd"]
    return as_time(time) if time is not None else f"${dollars(money)}"


def _tiles(figures: Figures, chosen: Figures) -> Html:
    in_time = figures.value("budget/time_s") is not None
    path, write = ("time_s", as_time) if in_time else ("money_usd", as_money)
    over = "total_time_s" if in_time else "total_cost_usd"
    used = chosen.value(over) / figures.value(f"budget/{path}")
    error = chosen.value("expected_error")
    rows: list[tuple[str, Child, Child]] = [
        ("Whole job", chosen.format("total_time_s", as_time), _length(figures.value(""), chosen.value(""))),
        ("Costs", chosen.format("total_cost_usd", as_money), chosen.value("market").replace("_", " ")),
        ("Budget", figures.format(f"budget/{path}", write), f"{as_percent(used)} {'used' if used <= 1 else 'needed'}"),
        ("GPUs", chosen.format("gpus", as_number), join("on ", chosen.format("nodes", as_number), f" x {chosen.value('hardware')}")),
        ("Step", chosen.format("step_time_s", as_time), _saved(chosen)),
        ("Energy", chosen.format("energy_kwh", as_energy), _carbon(chosen)),
        ("Expected error", chosen.format("expected_error/median", as_percent) if error else "unknown", _error(chosen, error)),
    ]
    return tiles(rows)


def _carbon(chosen: Figures) -> Child:
    return join(chosen.format("co2_kg", as_carbon), f" CO2 ({grid_words(chosen.value('grid'))})") if chosen.value("grid") else None


def _saved(chosen: Figures) -> Child:
    interval = chosen.value("spot_checkpoint_interval_s")
    return join("a checkpoint every ", chosen.format("spot_checkpoint_interval_s", as_time)) if interval else None


def _error(chosen: Figures, error: Mapping[str, Any] | None) -> Child:
    return join("median; one in ten above ", chosen.format("expected_error/p90", as_percent)) if error else "no similar run was measured"


def _money(figures: Figures, rows: Sequence[Figures]) -> PagePart:
    by_time = figures.value("job/time_s") is not None
    keys = ("epochs", -1.0) if by_time else ("total_time_s", 1.0)
    on_front = front((keys[1] * row.value(keys[0]), row.value("total_cost_usd")) for row in rows)
    title, scale = ("epochs done", 1.0) if by_time else time_axis([row.value("total_time_s") for row in rows])
    lengths = [_length(figures.value(""), row.value("")) for row in rows]
    each = enumerate(zip(rows, lengths, on_front, strict=True))
    points = [_point(row, place, length, by_time, scale, first) for place, (row, length, first) in each]
    seconds, money = figures.value("budget/time_s"), figures.value("budget/money_usd")
    time = None if seconds is None else seconds / scale
    times = [*with_errors(points), *([time] if time is not None and not by_time else [])]
    usd = [*with_errors_up(points), *([money] if money is not None else [])]
    across, up = axis(title, times, _plain), axis("USD, whole job", usd, _plain)
    budget = [] if by_time and money is None else [("ideal", _budget(time, money, across, up))]
    line = sorted((point.x, point.y) for point in points if point.best)
    lines = [*budget, *([("front", line)] if len(line) > 1 else [])]
    drawn = chart(points, across, up, "Cost over time of the whole job, by candidate", lines)
    beaten = f"nothing else {'does more and costs less' if by_time else 'is both faster and cheaper'}. "
    chosen = "Ringed: the recommendation. " if figures.value("best") is not None else ""
    orange = join(tag("span", "Orange", class_="flag"), f": {beaten}{chosen}")
    dashed = "Dashed: the budget. " if budget else ""
    caption = tag(
        "figcaption",
        orange,
        f"{dashed}Logarithmic axes; spot and on-demand are separate points. {error_bars(points)}{'' if by_time else f' {SAME_ERROR}'}",
    )
    lead = f"Each point is a machine, number of nodes and market, with the time and cost of {figures.value('workload')}."
    return PagePart("money", "Time and money", section("money", "Time and money", tag("figure", drawn, caption), lead=lead))


def _point(row: Figures, place: int, length: str, by_time: bool, scale: float, first: bool) -> ChartPoint:
    own = {key: row.value(key) for key in ("hardware", "nodes", "market", "total_time_s", "total_cost_usd", "epochs")}
    across = "epochs" if by_time else "total_time_s"
    met = "within the budget" if row.value("within_budget") else "misses the budget"
    marked = (row.marked(across), row.marked("total_cost_usd"))
    says = f"{_named(own)}\n{_taken(own)} for {length}\n{met}"
    chosen = place == 0 and row.value("within_budget")
    return ChartPoint(
        own[across] / scale, own["total_cost_usd"], _named(own), says, marked, best=first, is_labeled=first or chosen or place < _NAMED,
        has_priority=chosen, error=p90_error(row), error_up=0.0 if by_time else p90_error(row), is_chosen=chosen,
    )  # fmt: skip


def _budget(time: float | None, money: float | None, across: ChartAxis, up: ChartAxis) -> list[tuple[float, float]]:
    if time is not None:
        return [(time, up.low), (time, up.high)]
    return [(across.low, money or across.low), (across.high, money or across.low)]


def _plain(value: float) -> str:
    return f"{value:,.4g}"


def _parts(rows: Sequence[Figures]) -> PagePart:
    longest = _LONG * rows[0].value("total_time_s")
    shown = [row for row in rows if row.value("total_time_s") <= longest][:_BARS]
    scale = bar_scale(shown, "total_time_s")
    drawn: list[tuple[Child, Html, Child]] = [
        (_name_of(row), parts_bar(row, "total_time_s", scale, p90_error(row)), row.format("total_time_s", as_time)) for row in shown
    ]
    lead = "The whole job: startup, epochs, evaluation, checkpoints, and interruptions of spot machines."
    lead += f" The first {len(shown)} candidates that take at most {_LONG:g} times as long as the first." if len(rows) > len(shown) else ""
    lead += f" {ERROR_BARS}" if any(p90_error(row) for row in shown) else ""
    bars = tag("figure", named_bars(drawn, "Time of the whole job, by candidate"), class_="long")
    return PagePart("parts", "Where the time goes", section("parts", "Where the time goes", bars, parts_key(list(shown)), lead=lead))


def _name_of(row: Figures) -> str:
    return _named({key: row.value(key) for key in ("hardware", "nodes", "market")})


def _table(rows: Sequence[Figures]) -> PagePart:
    cells: list[list[Child]] = [
        [
            join(
                row.value("hardware"),
                tag("span", " *", class_="flag", title="within the budget") if row.value("within_budget") else None,
                tag("small", f" {row.value('provider')}", class_="quiet") if row.value("provider") else None,
            ),
            row.format("nodes", as_number), row.format("gpus", as_number), row.value("market").replace("_", " "),
            row.format("epochs", _plain), row.format("total_time_s", as_time), row.format("total_cost_usd", as_money),
            row.format("step_time_s", as_time),
            row.format("expected_error/median", as_percent) if row.value("expected_error") else "-",
        ]
        for row in rows
    ]  # fmt: skip
    head = [
        ("hardware", False), ("nodes", True), ("GPUs", True), ("market", False), ("epochs", True), ("whole job", True),
        ("costs", True), ("step", True), ("expected error", True),
    ]  # fmt: skip
    shown = [table(head, cells[:_ROWS], "Candidates", "sortable")]
    if len(rows) > _ROWS:
        shown.append(details(f"All {len(rows):,} candidates", table(head, cells, "All candidates", "sortable")))
    lead = "Best first. * within the budget. Click a header to sort."
    return PagePart("table", "Candidates", section("table", "Candidates", *shown, lead=lead))


def _left_out(failed: Mapping[str, str]) -> PagePart:
    return PagePart(
        "left-out",
        "Left out",
        section(
            "left-out",
            "Machines left out",
            bullets(group_by_text(failed.items(), len(failed))),
        ),
    )
