"""How is a profile shown on a page? The stalls of Stash's runs, their composition by direct attribution, and what would end them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.causes import MEANINGS
from sim.events import STALLS
from sim.report.attribution import notable_gaps
from sim.report.page.bars import BarPiece, bar, changed_causes, named_bars, stall_key, swatch
from sim.report.page.basis import basis
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, join, section, table, tag, tiles
from sim.report.page.words import as_bandwidth, as_money, as_number, as_percent, as_signed_time, as_time
from sim.report.stash import AGAINST, FORMULAS, RATES, RUNS
from sim.study.descriptions import Descriptions
from sim.units import pluralized, rate_text

_SMALL = 0.5
"""Smallest stall, or cause of one, that is mentioned (percent)."""
_CAUSE = {
    "interconnect": "exchanging gradients inside the machine",
    "prep": "decoding and augmentation", "fetch": "reading from disk in the cold epoch",
}  # fmt: skip


def profile_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a profile's *document*, with its inputs from *descriptions*."""
    figures = Figures(document, "profile")
    title = f"{document['workload']} on {document['hardware']}, Stash profile"
    set_up = (
        f"{pluralized(document['gpus'], 'GPU')} on {pluralized(document['nodes'], 'node')}, "
        f"{pluralized(document['batch_per_gpu'], 'sample')} per GPU, {document['stack']}, {document['steps_per_epoch']:,} steps per epoch"
    )
    hero = outcome(title, verdict_of(document), set_up, _tiles(figures))
    return page(
        title,
        "profile",
        hero,
        [_runs(figures), _stalls(figures), _direct(figures), _data(figures), *basis(figures, descriptions)],
        {"profile": document},
    )


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return in words the machine's largest stall by Stash's formulas, and how much longer two nodes of half the GPUs would take."""
    percents = {name: stall["percent"] for name, stall in document["stash"].items() if stall is not None}
    network = percents.pop("network", 0.0)
    worst = max(percents, key=lambda name: percents[name])
    sentence = "Stash's runs show no significant stall: all take about as long as one GPU on synthetic data."
    if percents[worst] >= _SMALL:
        sentence = f"The largest stall in Stash's runs is {worst}, {percents[worst]:.1f}% of {AGAINST[worst]}: {_CAUSE[worst]}."
    return f"{sentence} Over the network, two nodes of half the GPUs would take {network:.0f}% longer." if network >= _SMALL else sentence


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [
        (
            f"{name.capitalize()} stall",
            figures.format(f"stash/{name}/percent", _percent) if stall else "-",
            join(f"of {AGAINST[name]}; ", figures.format(f"stash/{name}/time_s_per_epoch", as_time), " per epoch") if stall else "no twin",
        )
        for name, stall in figures.value("stash").items()
    ]
    rows.append(("Warm epoch", figures.format("runs/run3_warm/epoch_time_s", as_time), figures.format("cost_per_epoch_usd/warm", as_money)))
    rows.append(("Cold epoch", figures.format("runs/run2_cold/epoch_time_s", as_time), figures.format("cost_per_epoch_usd/cold", as_money)))
    return tiles(rows)


def _percent(value: float) -> str:
    return f"{value:.1f}%"


def _runs(figures: Figures) -> PagePart:
    runs = [name for name in RUNS if figures.value(f"runs/{name}") is not None]
    scale = max(figures.value(f"runs/{name}/step_time_s") for name in runs)
    drawn: list[tuple[Child, Html, Child]] = [
        (RUNS[name], _run_bar(figures, name, scale), figures.format(f"runs/{name}/step_time_s", as_time)) for name in runs
    ]
    chart = tag("figure", tag("div", named_bars(drawn, "Step time of each run"), class_="short long"))
    rows: list[list[Child]] = [
        [
            RUNS[name], join(figures.format(f"runs/{name}/nodes", as_number), f" x {figures.value(f'runs/{name}/hardware')}"),
            figures.format(f"runs/{name}/gpus", as_number), figures.format(f"runs/{name}/step_time_s", as_time),
            figures.format(f"runs/{name}/epoch_time_s", as_time),
        ]
        for name in runs
    ]  # fmt: skip
    head = [("run", False), ("machine", False), ("GPUs", True), ("step", True), ("epoch", True)]
    lead = "The runs of Stash on a rented machine, simulated; each stall is the difference between two runs."
    return PagePart("runs", "Runs", section("runs", "The runs", chart, table(head, rows, "Runs"), lead=lead))


def _run_bar(figures: Figures, name: str, scale: float) -> Html:
    path = f"runs/{name}/step_time_s"
    value = figures.value(path)
    mark = tag(
        "div", class_="mark piece", style=f"width:{100 * value / scale:.4f}%;background:var(--busy)", data_at=figures.place(path),
        data_value=repr(value), data_tip=f"{RUNS[name]}\na step takes {as_time(value)}",
    )  # fmt: skip
    return tag("div", mark, class_="stack")


def _stalls(figures: Figures) -> PagePart:
    least = _SMALL / 100 * figures.value("runs/run1_synthetic/step_time_s")
    rows: list[list[Child]] = [
        [
            name, figures.format(f"stash/{name}/time_s_per_epoch", as_time), figures.format(f"stash/{name}/percent", _percent),
            AGAINST[name], changed_causes(figures, f"made_of_s_per_step/{name}", least),
        ]
        for name, stall in figures.value("stash").items()
        if stall is not None
    ]  # fmt: skip
    head = [("stall", False), ("per epoch", True), ("share", True), ("of", False), ("causes that changed, per step", False)]
    lead = "Stash attributes the whole difference between two runs to one stall. Direct attribution divides it among these causes."
    made = table(head, rows, "Stalls")
    formulas = tag("p", FORMULAS[figures.value("formulas")])
    return PagePart(
        "stalls", "Stalls", section("stalls", "Stash's stalls and their causes", made, formulas, _differences(figures), lead=lead)
    )


def _differences(figures: Figures) -> Html | None:
    """Return a table of why subtraction and direct attribution differ, by cause; None if they agree."""
    apart = figures.value("apart")
    rows: list[list[Child]] = []
    for name in apart["stalls"]:
        for place in notable_gaps(apart, name):
            path = f"apart/stalls/{name}/gaps/{place}"
            cause = figures.value(f"{path}/cause")
            rows.append(
                [
                    name, figures.format(f"apart/stalls/{name}/subtraction_s", as_time),
                    figures.format(f"apart/stalls/{name}/direct_s", as_time),
                    join(swatch(cause), f"{cause} ", figures.format(f"{path}/difference_s", as_signed_time)), figures.value(f"{path}/why"),
                ]
            )  # fmt: skip
    head = [("stall", False), ("by subtraction", True), ("waits", True), ("difference", False), ("reason", False)]
    return table(head, rows, "Why the two methods differ, per step") if rows else None


def _direct(figures: Figures) -> PagePart:
    scale = max(figures.value(f"runs/{name}/step_time_s") for name in ("run2_cold", "run3_warm"))
    drawn: list[tuple[Child, Html, Child]] = []
    for kind, run in (("warm", "run3_warm"), ("cold", "run2_cold")):
        pieces = [
            BarPiece(f"direct_stalls_s/{kind}/{cause.value}", cause.value, cause.value, MEANINGS[cause])
            for cause in STALLS
        ]  # fmt: skip
        drawn.append(
            (f"{kind} epoch", bar(figures, pieces, f"runs/{run}/step_time_s", scale), figures.format(f"runs/{run}/step_time_s", as_time))
        )
    bars = tag("figure", named_bars(drawn, "Step time by cause, in a warm and in a cold epoch"))
    lead = "The same two epochs by direct attribution: a rank's step by what it does or waits for."
    return PagePart("direct", "Direct", section("direct", "Step time by direct attribution", bars, stall_key(), lead=lead))


def _data(figures: Figures) -> PagePart:
    rates = [name for name, value in figures.value("rates_samples_per_s").items() if value is not None]
    rows: list[list[Child]] = [[name, figures.format(f"rates_samples_per_s/{name}", rate_text), RATES[name]] for name in rates]
    drawn = table([("rate", False), ("samples/s", True), ("from", False)], rows, "Rates of the data path")
    lead = "DS-Analyzer's rates, computed from its runs. None is the rate of a cold epoch, whose time is that of RUN2."
    return PagePart(
        "data",
        "Data",
        section("data", "Data: rates and needs", drawn, tag("h3", "To remove the stall"), _needs(figures), lead=lead),
    )


def _needs(figures: Figures) -> Html:
    needs = [
        (path, words, write)
        for path, words, write in (
            ("cores_per_node", "cores on each node, with loader workers for them, hide preparation", as_number),
            ("disk_bytes_per_s", "from the disk of each node hide the cold epoch's reads", as_bandwidth),
            ("cached_fraction", "of the data set in each node's page cache hide later reads", as_percent),
        )
        if figures.value(f"needs/{path}") is not None
    ]
    listed = [tag("li", figures.format(f"needs/{path}", write), f" {words}") for path, words, write in needs]
    if figures.value("burst_credits_end"):
        epoch, later = (
            figures.format(f"burst_credits_end/{key}", write) for key, write in (("epoch", as_number), ("step_time_s", as_time))
        )
        listed.append(tag("li", "Disk reads use burst credits, which run out in epoch ", epoch, "; from then on a step takes ", later))
    if not listed:
        return tag("p", "Nothing: either reading and preparing data keep up with the GPUs, or no amount of a single resource is enough.")
    return tag("ul", *listed)
