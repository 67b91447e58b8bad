"""How is a what-if shown on a page? The best upgrade in words, then the step with more of each resource, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sim.causes import Resource
from sim.report.page.bars import ERROR_BARS, error_bar, error_tile, named_bars, p90_error
from sim.report.page.basis import basis
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, join, note_box, section, table, tag, tiles
from sim.report.page.words import as_money, as_price, as_time
from sim.report.whatif import LABELS, NAMES, has_effect, ineffective_lines, longer_first_epoch, machine_lines
from sim.study.descriptions import Descriptions
from sim.units import pluralized

NO_UPGRADE = "No resource makes the step more than 0.1% faster, even if it were infinitely fast."
"""The verdict if nothing helps."""
_FILLS = {"twice": "var(--busy)", "infinite": "var(--accent)"}


def whatif_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a what-if's *document*, with its inputs from *descriptions*."""
    figures = Figures(document, "whatif")
    rows = [figures.subfigures(f"resources/{place}") for place, row in enumerate(document["resources"]) if has_effect(row)]
    nodes, gpus = document["nodes"], document["gpus"]
    set_up = (
        f"{pluralized(gpus, 'GPU')} on {pluralized(nodes, 'node')}, {pluralized(document['batch_per_gpu'], 'sample')} per GPU, "
        f"{document['precision']}, {document['stack']}"
    )
    title = f"{document['workload']} on {document['hardware']}: what if?"
    hero = outcome(title, verdict_of(figures, rows), set_up, _tiles(figures), note_box("Warnings", document["warnings"]))
    parts = [_ranking(figures, rows)]
    parts += [*([_worth(rows)] if rows else []), *basis(figures, descriptions)]
    return page(f"{document['workload']} on {document['hardware']}: what if", "what-if", hero, parts, {"whatif": document})


def verdict_of(figures: Figures, rows: Sequence[Figures]) -> str:
    """Return a sentence on what to improve first."""
    if not rows:
        return NO_UPGRADE
    best = rows[0]
    gain, rise = best.value("twice/throughput_gain_percent"), best.value("twice/break_even_price_usd_per_h")
    return upgrade_sentence(best.value("resource"), NAMES[best.value("resource")], gain, rise)


def upgrade_sentence(resource: Resource | Literal["links"], name: str, gain: float, rise: float | None = None) -> str:
    """Return that *resource*, called *name*, is worth most: twice its speed gives *gain* percent more throughput.

    *rise* is the price in USD/h up to which that pays, None if there is none.
    """
    if gain < 1.0:
        return f"No single upgrade helps much: the best, 2x {name}, gives +{gain:.1f}% throughput."
    price_text = f", worth paying up to {as_price(rise)}" if rise is not None else ""
    return f"{_faster(resource, name)} most: 2x speed gives +{gain:.0f}% throughput{price_text}."


def _faster(resource: Resource | Literal["links"], name: str) -> str:
    """Return the beginning of a sentence on a faster *resource*, up to the verb."""
    if resource == "spread":
        return "Less step-time variation between ranks helps"
    if resource == "links":
        return "Making all links faster at once helps"
    article = "A faster" if resource in ("cpu", "disk", "network") else "Faster"
    return f"{article} {name} help{'' if name.endswith('s') else 's'}"


def _tiles(figures: Figures) -> Html:
    longer = longer_first_epoch(figures.value(""))
    first = figures.format("first_epoch_time_s", as_time) if longer else None
    return tiles([
        ("Step", figures.format("step_time_s", as_time), None),
        ("Epoch", figures.format("epoch_time_s", as_time), join("first: ", first) if first else None),
        ("Cost per epoch", figures.format("cost_per_epoch_usd", as_money), None),
        ("Price", figures.format("price_usd_per_h", as_price), None),
        *error_tile(figures),
    ])  # fmt: skip


def _ranking(figures: Figures, rows: Sequence[Figures]) -> PagePart:
    now = figures.value("step_time_s")
    off = p90_error(figures)
    scale = max([now, *((1 + off) * row.value(f"{kind}/step_time_s") for row in rows for kind in _FILLS)])
    drawn: list[tuple[Child, Html, Child]] = []
    for row in rows:
        for kind, fill in _FILLS.items():
            name = NAMES[row.value("resource")] if kind == "twice" else ""
            drawn.append((name, _bar(row, kind, fill, scale, now, off), row.format(f"{kind}/step_time_s", as_time)))
    chart = (
        tag("figure", tag("div", named_bars(drawn, "Step time with more of each resource"), class_="short"), _key(figures))
        if rows
        else None
    )
    machines = {"faster_machines": figures.value("faster_machines")}
    rest = [tag("p", line) for line in (*machine_lines(machines), *ineffective_lines(figures.value("resources")))]
    lead = "Warm step with one resource 2x and infinitely fast, everything else unchanged."
    lead += f" {ERROR_BARS}" if rows and off else ""
    return PagePart("ranking", "Ranking", section("ranking", "Effect of faster resources", chart, *rest, lead=lead))


def _bar(row: Figures, kind: str, fill: str, scale: float, now: float, off: float) -> Html:
    path = f"{kind}/step_time_s"
    value, gain = row.value(path), row.value(f"{kind}/throughput_gain_percent")
    says = f"{NAMES[row.value('resource')]} {LABELS[kind]}\na step takes {as_time(value)}\n{gain:+.1f}% throughput"
    mark = tag(
        "div", class_="mark piece", style=f"width:{100 * value / scale:.4f}%;background:{fill}", data_at=row.place(path),
        data_value=repr(value), data_tip=says,
    )  # fmt: skip
    line = tag("i", class_="line-at", style=f"left:{100 * now / scale:.4f}%")
    return tag("div", tag("div", mark, class_="stack"), line, error_bar(value, scale, off), class_="whole erring" if off else "whole")


def _key(figures: Figures) -> Html:
    items = [
        join(tag("span", class_="swatch", style=f"background:{fill}", aria_hidden="true"), LABELS[kind]) for kind, fill in _FILLS.items()
    ]
    items.append(join("dashed: current, ", figures.format("step_time_s", as_time)))
    return tag("ul", *(tag("li", item) for item in items), class_="key")


def _worth(rows: Sequence[Figures]) -> PagePart:
    cells: list[list[Child]] = [
        [
            NAMES[row.value("resource")], row.format("twice/step_time_s", as_time), _gain(row, "twice"),
            row.format("twice/cost_per_epoch_usd", as_money), row.format("twice/break_even_price_usd_per_h", as_price),
            _gain(row, "infinite"), row.format("critical_path_s", as_time) if row.value("critical_path_s") > 0 else "-",
            row.format("shadow_price_s_per_percent", as_time) if row.value("shadow_price_s_per_percent") > 0 else "-", _enough(row),
        ]
        for row in rows
    ]  # fmt: skip
    titles = ["2x step", "gain", "cost per epoch", "breaks even at", "infinite", "on critical path", "saved per +1%", "enough at"]
    drawn = table([("resource", False), *((title, True) for title in titles)], cells, "Value of upgrades", "sortable")
    lead = (
        "Breaks even at: price of all nodes at which an epoch costs the same as now. Enough at: beyond this factor further upgrades gain "
        "<1%. On critical path: time per step that is not overlapped."
    )
    return PagePart("worth", "Value", section("worth", "Value of upgrades", drawn, lead=lead))


def _gain(row: Figures, kind: str) -> Html:
    return row.format(f"{kind}/throughput_gain_percent", lambda percent: f"{percent:+.1f}%")


def _enough(row: Figures) -> Child:
    value = row.value("enough_factor")
    return "never" if value is None else "now" if value == 1.0 else row.format("enough_factor", lambda times: f"{times:.2f}x")
