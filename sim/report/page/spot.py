"""How is a job on spot machines shown on a page? Savings and delay in words, the spread of time and cost, and the simulated run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, chart, linear_axis, turning_points
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, join, note_box, section, table, tag, tiles
from sim.report.page.words import as_money, as_number, as_percent, as_plain, as_rate, as_time
from sim.report.spot import policy_in_words, slowdown_text
from sim.study.descriptions import Descriptions
from sim.units import pluralized, rate_text

_SPREADS = (("time_s", 3600.0, "hours", as_time), ("cost_usd", 1.0, "USD", as_money))
_UNLIKE = 1e-3
"""Relative spread of a figure up to which its distribution counts as a single value."""


def spot_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a spot job's *document*, with its inputs from *descriptions*."""
    figures = Figures(document, "spot")
    title = f"{document['workload']} on {document['workers']} spot {document['hardware']}"
    set_up = f"{pluralized(document['gpus'], 'GPU')}, {document['stack']}; {document['trials']:,} simulated runs"
    hero = outcome(title, verdict_of(document), set_up, _tiles(figures), note_box("Assumed", document["notes"]))
    parts = [_spread(figures), _course(figures), *basis(figures, descriptions)]
    return page(title, "spot", hero, parts, {"spot": document})


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return a sentence on the savings of the spot market, and how much longer the job takes."""
    time, cost = document["spot"]["time_s"]["mean"], document["spot"]["cost_usd"]["mean"]
    if document["saving"] is None:
        return f"On spot machines it takes {as_time(time)} and {as_money(cost)} on average; there is no on-demand price."
    saved = f"{'saves' if document['saving'] >= 0 else 'costs'} {100 * abs(document['saving']):.0f}%"
    more = " of the cost" if document["saving"] >= 0 else " more"
    return f"Spot {saved}{more} and takes {slowdown_text(time, document['on_demand']['time_s'])}."


def _tiles(figures: Figures) -> Html:
    error = figures.value("spot/cost_usd/error_of_mean")
    priced = figures.value("on_demand/cost_usd") is not None
    demand = join(figures.format("on_demand/cost_usd", as_money), " on demand") if priced else None
    rows: list[tuple[str, Child, Child]] = [
        ("Time, mean", figures.format("spot/time_s/mean", as_time), join(figures.format("on_demand/time_s", as_time), " on demand")),
        ("Cost, mean", figures.format("spot/cost_usd/mean", as_money), demand),
        ("Interruptions", figures.format("spot/revocations", _few), join(figures.format("spot/lost_s", as_time), " of repeated work")),
        (
            "Checkpoint every",
            figures.format("checkpoint/interval_s", as_time),
            join(figures.format("checkpoint/count", as_number), " in total"),
        ),
        ("Samples per second", figures.format("throughput_samples_per_s", rate_text), "with all workers"),
        (
            "Error of the mean",
            f"± {196 * error / figures.value('spot/cost_usd/mean'):.2g}%" if error is not None else "-",
            "95% interval",
        ),
    ]
    return tiles(rows)


def _few(value: float) -> str:
    return f"{value:.2g}"


def _spread(spot: Figures) -> PagePart:
    drawn = [curve for key, scale, unit, write in _SPREADS if (curve := _chart(spot, key, scale, unit, write)) is not None]
    rows: list[list[Child]] = [
        [name, *(spot.format(f"spot/{key}/{path}", write) for key, _, _, write in _SPREADS)]
        for name, path in (
            ("mean", "mean"), ("median", "p50"), ("90% within", "p90"), ("95% from", "low_95"), ("to", "high_95"),
        )
    ]  # fmt: skip
    rows.append(["without interruptions", spot.format("spot/undisturbed_time_s", as_time), "-"])
    rows.append(["on demand", spot.format("on_demand/time_s", as_time), spot.format("on_demand/cost_usd", as_money)])
    figures = table([("", False), ("time", True), ("cost", True)], rows, "Time and cost", "narrow")
    same = None if drawn else tag("p", "All simulated runs take the same time: none is interrupted.")
    lead = f"{spot.value('trials'):,} simulated runs with random machine lifetimes: the share within a time and within a cost."
    return PagePart("spread", "Time and money", section("spread", "Distribution of time and money", *drawn, same, figures, lead=lead))


def _chart(figures: Figures, key: str, scale: float, unit: str, write: Any) -> Html | None:
    """Return a chart of the share of simulated runs that stay within each value of *key*; None if all are equal."""
    quantiles = figures.value("distribution")
    points = []
    for place, quantile in enumerate(quantiles):
        at = (figures.marked(f"distribution/{place}/{key}"), figures.marked(f"distribution/{place}/share"))
        says = f"{write(quantile[key])}\n{as_percent(quantile['share'])} of the simulated runs stay within it"
        points.append(ChartPoint(quantile[key] / scale, 100 * quantile["share"], "", says, at))
    demand = figures.value(f"on_demand/{key}")
    values = [point.x for point in points]
    if max(values) - min(values) <= _UNLIKE * max(values):
        return None
    shown = [*values, demand / scale] if demand is not None else values
    across, up = linear_axis(unit, shown, as_plain), linear_axis("% of simulated runs", [0.0, 100.0], as_plain)
    lines = [("front", [(point.x, point.y) for point in points])]
    lines += [("ideal", [(demand / scale, up.low), (demand / scale, up.high)])] if demand is not None else []
    caption = tag("figcaption", f"Dashed: on demand, {write(demand)}.") if demand is not None else None
    return tag(
        "figure", chart(turning_points(points), across, up, f"Share of simulated runs within a {key.partition('_')[0]}", lines), caption
    )


def _course(figures: Figures) -> PagePart:
    rows: list[list[Child]] = [
        ["workers", figures.format("workers", as_number)],
        ["startup of a machine", figures.format("start_up_s", as_time)],
        ["time until a replacement runs", figures.format("replacement_s", as_time)],
        ["checkpoint write time", figures.format("checkpoint/write_s", as_time)],
        ["checkpoint read time", figures.format("checkpoint/read_s", as_time)],
        ["samples between checkpoints", figures.format("checkpoint/interval_samples", as_number)],
        ["samples of the whole job", figures.format("work_samples", as_number)],
        ["speed with all workers", figures.format("throughput_samples_per_s", as_rate)],
    ]
    drawn = table([("", False), ("", True)], rows, "A run", "narrow")
    lead = f"After an interruption: {policy_in_words(figures.document)}"
    return PagePart("course", "A run", section("course", "Inputs of a simulated run", drawn, lead=lead))
