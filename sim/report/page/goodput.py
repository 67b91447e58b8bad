"""How are weeks of training shown on a page? The useful share, where the rest goes, one simulated run over time, and the spread of many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.analysis.long_run import LOST_CATEGORIES
from sim.report.energy import grid_words, power_cap_text
from sim.report.goodput import NAMES, as_points, base_text, died_text, rate_words, signed_points
from sim.report.page.bars import BarPiece, bar, named_bars, swatch
from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, chart, linear_axis, turning_points
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, join, note_box, section, table, tag, tiles
from sim.report.page.words import (
    as_bandwidth,
    as_carbon,
    as_energy,
    as_expected,
    as_memory,
    as_money,
    as_number,
    as_percent,
    as_plain,
    as_precise_percent,
    as_time,
)
from sim.report.weeks_energy import energy_error_text
from sim.report.whole_job import days_text
from sim.study.descriptions import Descriptions
from sim.study.goodput import DAY
from sim.units import pluralized, show

_SHOWN = (
    ("effective_share", "effective share", lambda value: f"{100 * value:.1f}%"),
    ("ettr", "ETTR, as Meta defines it", lambda value: f"{100 * value:.1f}%"),
    ("goodput", "goodput, as Google's library counts it", lambda value: f"{100 * value:.1f}%"),
    ("days", "duration", lambda value: days_text(value, 2)),
    ("interruptions", "interruptions", as_expected),
    ("cost_usd", "cost", as_money),
    ("energy_kwh", "energy", as_energy),
    ("co2_kg", "CO2", as_carbon),
)


def goodput_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of the *document* of a long run, with its inputs from *descriptions*."""
    figures = Figures(document, "goodput")
    title = f"{document['workload']} on {pluralized(document['nodes'], 'node')} of {document['hardware']}, with failures"
    set_up = f"{pluralized(document['gpus'], 'GPU')}, {pluralized(document['spares'], 'spare node')}; {document['trials']:,} simulated runs"
    hero = outcome(title, _verdict(document), set_up, _tiles(figures), note_box("Assumed", document["notes"]))
    parts = [_losses(figures), _timeline(figures), _spread(figures), _checkpoints(figures), _energy(figures), _changes(figures)]
    parts += basis(figures, descriptions)
    return page(title, "goodput", hero, [part for part in parts if part.html], {"goodput": document})


def with_failures(figures: Figures) -> Html:
    """Return the outcome of the job in *figures* with failures; empty if failures were not requested."""
    if not figures.value("").get("with_failures"):
        return Html("")
    weeks = figures.subfigures("with_failures")
    return join(tag("p", _verdict(weeks.value(""))), _lost(weeks), _figures_table(weeks), note_box("Assumed", weeks.value("notes")))


def _verdict(document: Mapping[str, Any]) -> str:
    most = max(LOST_CATEGORIES, key=lambda name: document["lost_s"][name])
    lost = 100 * document["lost_s"][most] / document["elapsed_s"]
    return (
        f"{100 * document['effective_share']:.1f}% of the time is useful work; {as_expected(document['interruptions'])} interruptions "
        f"are expected in {days_text(document['days'])}, and the largest loss is {NAMES[most]} ({lost:.1f}%). {died_text(document)}"
    ).rstrip()


def _tiles(figures: Figures) -> Html:
    low, high = (f"{100 * value:.1f}" for value in figures.value("interval95/effective_share"))
    rate = rate_words(figures.value("reliability"))
    rows: list[tuple[str, Child, Child]] = [
        ("Effective share", figures.format("effective_share", as_precise_percent), f"95% of runs: {low} to {high}%"),
        ("Interruptions", figures.format("interruptions", as_expected), _replaced(figures)),
        ("Duration", figures.format("days", days_text), None),
        ("Cost", figures.format("cost_usd", as_money), "no price" if figures.value("cost_usd") is None else "spares included"),
        ("Energy", figures.format("energy_kwh", as_energy), join(figures.format("co2_kg", as_carbon), " CO2")),
        (
            "Closed form",
            figures.format("closed_form/effective_share", as_precise_percent),
            f"at {rate}, spares always ready",
        ),
    ]
    if figures.value("energy_per_sample_j") is not None:
        per_token = figures.value("energy_per_token_j") is not None
        key, name = ("energy_per_token_j", "token") if per_token else ("energy_per_sample_j", "sample")
        rows.append((f"Energy per {name}", figures.format(key, lambda joules: show(joules, "energy")), "whole job, per unit of kept work"))
    if figures.value("model_flops_utilization"):
        rows.append(("MFU of a step", figures.format("model_flops_utilization", as_percent), "not part of the effective share"))
    return tiles(rows)


def _replaced(figures: Figures) -> Html:
    return join(figures.format("replaced_nodes", as_expected), " nodes replaced")


def _losses(figures: Figures) -> PagePart:
    lead = "Means over all simulated runs; they add up to the total time. MFU is part of the kept work and is counted once."
    return PagePart("lost", "Where the time goes", section("lost", "Where the time goes", _lost(figures), lead=lead))


def _lost(figures: Figures) -> Html:
    pieces = [BarPiece("work_s", "later_epochs", "kept work", "kept work")]
    pieces += [BarPiece(f"lost_s/{name}", name, name.replace("_", " "), NAMES[name]) for name in LOST_CATEGORIES]
    rows: list[list[Child]] = [
        [join(swatch(piece.color), piece.tooltip), figures.format(piece.path, as_time), figures.share(piece.path, "elapsed_s", 2)]
        for piece in pieces
    ]
    mean = named_bars([("mean run", bar(figures, pieces, "elapsed_s", figures.value("elapsed_s")), "")], "Where the time goes")
    lost = sum(figures.value("lost_s").values())
    lost_rows = [("lost time", bar(figures, pieces[1:], "elapsed_s", lost), "")] if lost else []
    more = named_bars(lost_rows, "Lost time") if lost_rows else None
    titles = [("", False), ("time", True), ("share", True)]
    return join(mean, more, table(titles, rows, "Time of the mean run"))


def _timeline(figures: Figures) -> PagePart:
    events = figures.value("timeline")
    if len(events) < 2:
        return PagePart("timeline", "", Html(""))
    points = [
        ChartPoint(
            event["time_s"] / DAY, event["recovery_s"] / 60, "",
            f"{event['what']}\nafter {event['time_s'] / DAY:.2f} d: {as_time(event['recovery_s'])}",
            (figures.marked(f"timeline/{place}/time_s"), figures.marked(f"timeline/{place}/recovery_s")),
        )
        for place, event in enumerate(events)
    ]  # fmt: skip
    across = linear_axis("day", [point.x for point in points], as_plain)
    up = linear_axis("minutes until training resumes", [0.0, *(point.y for point in points)], as_plain)
    drawn = tag("figure", chart(points, across, up, "Interruptions and planned stops of one simulated run"))
    lead = (
        "Each point is an interruption or planned stop of the run with the median failure rate: its cause, and how long training stopped."
    )
    return PagePart("timeline", "One run", section("timeline", "One simulated run, day by day", drawn, lead=lead))


def _spread(figures: Figures) -> PagePart:
    steps = figures.value("distribution")
    points = [
        ChartPoint(
            100 * step["effective_share"], 100 * step["share"], "",
            f"{100 * step['effective_share']:.1f}%\n{as_precise_percent(step['share'])} of the simulated runs are below",
            (figures.marked(f"distribution/{place}/effective_share"), figures.marked(f"distribution/{place}/share")),
        )
        for place, step in enumerate(steps)
    ]  # fmt: skip
    values = [point.x for point in points]
    drawn = None
    if max(values) > min(values):
        across, up = linear_axis("effective share, %", values, as_plain), linear_axis("% of simulated runs", [0.0, 100.0], as_plain)
        drawn = tag(
            "figure",
            chart(
                turning_points(points),
                across,
                up,
                "Share of simulated runs below an effective share",
                [("front", [(point.x, point.y) for point in points])],
            ),
        )
    lead = "The intervals include both the differences in failure rate between fleets and the luck of a single run."
    return PagePart("spread", "Distribution", section("spread", "Distribution of runs", drawn, _figures_table(figures), lead=lead))


def _figures_table(figures: Figures) -> Html:
    rows: list[list[Child]] = [
        [name, figures.format(key, write), *(_ends(figures, interval, key, write) for interval in ("interval50", "interval95"))]
        for key, name, write in _SHOWN
        if figures.value(key) is not None
    ]
    return table([("", False), ("mean", True), ("50% interval", True), ("95% interval", True)], rows, "Figures of the job")


def _ends(figures: Figures, interval: str, key: str, write: Any) -> Html:
    return join(figures.format(f"{interval}/{key}/0", write), " to ", figures.format(f"{interval}/{key}/1", write))


def _checkpoints(figures: Figures) -> PagePart:
    rows: list[list[Child]] = [
        ["bytes", figures.format("checkpoint/bytes", as_memory)],
        ["writers", figures.format("checkpoint/writers", as_number)],
        ["training time lost", figures.format("checkpoint/blocking_s", as_time)],
        ["due to slower steps", figures.format("checkpoint/slowed_s", as_time)],
        ["complete after", figures.format("checkpoint/persist_s", as_time)],
        ["load time", figures.format("checkpoint/load_s", as_time)],
        ["interval, in training time", figures.format("checkpoint/interval_s/used", as_time)],
        ["best interval", figures.format("checkpoint/interval_s/exact", as_time)],
        ["Young (1974)", figures.format("checkpoint/interval_s/young", as_time)],
        ["Daly (2006)", figures.format("checkpoint/interval_s/daly", as_time)],
    ]
    if figures.value("checkpoint/write_limit_bytes_per_s") is not None:
        rows.insert(2, ["rate of each, limited to spare the steps", figures.format("checkpoint/write_limit_bytes_per_s", as_bandwidth)])
    if figures.value("checkpoint/interval_s/shortest") is not None:
        rows.append(["shortest interval used", figures.format("checkpoint/interval_s/shortest", as_time)])
    if figures.value("checkpoint/memory") is not None:
        rows += [
            ["interval of copies to peers", figures.format("checkpoint/memory_interval_s", as_time)],
            ["training time lost per copy", figures.format("checkpoint/memory/blocking_s", as_time)],
            ["copy complete after", figures.format("checkpoint/memory/persist_s", as_time)],
            ["load time from a peer", figures.format("checkpoint/memory/load_from_peer_s", as_time)],
        ]
    saved = figures.value("checkpoint")
    lead = f"{saved['mode']}, to {saved['store']}; simulated on the links of a node and the store, alongside the training traffic."
    return PagePart(
        "checkpoints",
        "Checkpoints",
        section("checkpoints", "Checkpoints", table([("", False), ("", True)], rows, "A checkpoint", "narrow"), lead=lead),
    )


_POWER = {"working": "node while training", "waiting": "while saving, or before a fault is noticed", "idle": "while waiting or restarting"}


def _energy(figures: Figures) -> PagePart:
    """Return the part on the power of a node by what the job does, and on the grid of the CO2."""
    if figures.value("energy_kwh") is None:
        return PagePart("energy", "", Html(""))
    grid, cap = figures.value("energy/grid"), figures.value("energy/power_cap")
    rows: list[list[Child]] = [
        [name, figures.format(f"energy/node_power_w/{state}", lambda watts: show(watts, "power"))] for state, name in _POWER.items()
    ]
    rows += [["energy of the job", figures.format("energy_kwh", as_energy)], ["CO2 of the job", figures.format("co2_kg", as_carbon)]]
    drawn = table([("", False), ("", True)], rows, "Energy and carbon", "narrow")
    unknown = " (the region is unknown)" if grid["assumed"] else ""
    below = (
        f"{energy_error_text(figures.value(''))} PUE {figures.value('energy/pue'):g}; spares are idle. CO2 at {grid_words(grid)}{unknown}; "
        f"{grid['source']}."
    )
    lead = f"{power_cap_text(cap)}, without failures." if cap else "Node power depends on what the job does (--power-cap limits it)."
    return PagePart("energy", "Energy", section("energy", "Energy and carbon", drawn, tag("p", below), lead=lead))


def _changes(figures: Figures) -> PagePart:
    changes = figures.value("sensitivities")
    if not changes:
        return PagePart("changes", "", Html(""))
    rows: list[list[Child]] = [
        [
            change["change"],
            figures.format(f"sensitivities/{place}/gain_points", signed_points),
            figures.format(f"sensitivities/{place}/gain_standard_error_points", as_points),
            figures.format(f"sensitivities/{place}/closed_form_gain_points", signed_points),
        ]
        for place, change in enumerate(changes)
        if place
    ]
    drawn = table(
        [("one change at a time", False), ("percentage points of effective share", True), ("standard error", True), ("closed form", True)],
        rows,
        "Effect of one change",
    )
    base = base_text(figures.document)
    seconds = figures.value("sensitivities_over_s")
    over = "the whole job" if seconds >= 0.99 * figures.value("work_s") else as_time(seconds)
    lead = (
        f"{base[:1].upper()}{base[1:]}{'. ' if base else ''}All use the same faults, over {over}, each with its own best checkpoint "
        "interval. A gain below its standard error may be chance. The closed form does not include waiting for spares, planned stops, "
        "slow nodes or repeated faults. A run that dies counts as zero from then on."
    )
    return PagePart("changes", "What would help", section("changes", "What would help", drawn, lead=lead))
