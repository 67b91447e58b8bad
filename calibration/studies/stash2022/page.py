"""How is Stash's characterization shown as a web page? Which findings reappear, a map of every stall, and costs, as in the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from calibration.studies.stash2022.study import FAMILIES, InstanceFamily
from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, axis, chart
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, bullets, details, join, section, table, tag, tiles
from sim.report.page.words import as_money, as_number, as_tenths, as_time
from sim.study.descriptions import Descriptions
from sim.units import pluralized


class Measure(NamedTuple):
    """A figure that every case has: its anchor, key, title, unit, format and explanation."""

    ident: str
    key: str
    title: str
    unit: str
    write: Callable[[float], str]
    lead: str


def _integer(value: float) -> str:
    return f"{value:.0f}"


def _cents(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


_MEASURES = (
    Measure("interconnect", "interconnect_stall_percent", "Interconnect stall", "% of RUN1", _integer,
            "Time that the gradient exchange inside the machine adds, in percent of RUN1."),
    Measure("network", "network_slowdown", "Over the network", "times one machine", as_tenths,
            "Step time of two instances over the network, relative to one instance with the same number of GPUs."),
    Measure("prep", "prep_stall_percent", "Prep stall", "% of RUN3", _integer,
            "Time that decoding adds with a warm page cache, in percent of RUN3."),
    Measure("fetch", "fetch_stall_percent", "Fetch stall", "% of RUN2", _integer,
            "Time that reading from disk adds in the cold epoch, in percent of RUN2."),
    Measure("cost", "warm_cost_per_epoch_usd", "Cost of a warm epoch", "USD", _cents, "USD per epoch with a warm page cache."),
)  # fmt: skip


def study_page(document: Mapping[str, Any], read: Descriptions | None = None) -> str:
    """Return the web page of the study's *document*; *read* are the inputs that the study used."""
    figures = Figures(document, "stash2022")
    title = "Stash's characterization of P2 and P3, simulated"
    machines, models = ({row[key] for row in document["rows"]} for key in ("hardware", "model"))
    set_up = (
        f"{pluralized(len(document['rows']), 'case')}: {pluralized(len(models), 'model')} on {pluralized(len(machines), 'machine')}; "
        f"{document['stack']}, {document['precision']}"
    )
    hero = outcome(title, verdict_of(document), set_up, _tiles(figures))
    parts = [_findings(figures), *(_map(figures, measure) for measure in _MEASURES), _micro(figures), _costs(figures)]
    parts += [*([_left_out(document["left_out"])] if document["left_out"] else []), *basis(figures, read)]
    return page(title, "study", hero, parts, {"stash2022": document})


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return a sentence on how many of the published findings reappear."""
    answers = [finding["reappears"] for finding in document["findings"]]
    counts = {answer: answers.count(answer) for answer in dict.fromkeys(("yes", *answers))}
    rest = [f"{count} {answer}" for answer, count in counts.items() if answer != "yes"]
    return f"Of {len(answers)} published findings, {counts['yes']} are reproduced{''.join(f', {words}' for words in rest)}."


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = []
    for measure in _MEASURES[:4]:
        place, row = max(
            ((place, row) for place, row in enumerate(figures.value("rows")) if row[measure.key] is not None),
            key=lambda pair: pair[1][measure.key],
        )
        caption = f"{measure.unit}: {row['model']} at {row['batch_per_gpu']} on {row['hardware']}"
        rows.append((f"{measure.title}, at most", figures.format(f"rows/{place}/{measure.key}", measure.write), caption))
    return tiles(rows)


def _findings(figures: Figures) -> PagePart:
    shown: list[Child] = []
    for finding in figures.value("findings"):
        answer = tag("span", finding["reappears"], class_="flag" if finding["reappears"] != "yes" else None)
        shown += [tag("h3", f"{finding['check']} {finding['published']}: ", answer), bullets(finding["reached"])]
    shown += [tag("h3", "Beyond the abstract"), bullets(figures.value("observations"))]
    lead = "Claims of the paper's abstract (arXiv 2208.14344), and whether the simulation reproduces them, with values and batches."
    return PagePart("findings", "Findings", section("findings", "Published findings", *shown, lead=lead))


# --- maps ------------------------------------------------------------------------------------------------------------


def _map(figures: Figures, measure: Measure) -> PagePart:
    values = [value for row in figures.value("rows") if (value := _cell(row, measure)) is not None]
    shown: list[Child] = []
    for family in FAMILIES:
        if any(row["hardware"] in family.machines for row in figures.value("rows")):
            shown += [tag("h3", family.name), _family(figures, measure, family, max(values))]
    return PagePart(measure.ident, measure.ident.capitalize(), section(measure.ident, measure.title, *shown, lead=measure.lead))


def _cell(row: Mapping[str, Any], measure: Measure) -> float | None:
    """Return the figure of *measure* in *row*; None if there is nothing to exchange."""
    return None if measure.ident == "interconnect" and row["gpus"] == 1 else row[measure.key]


def _family(figures: Figures, measure: Measure, family: InstanceFamily, most: float) -> Html:
    places = {(row["hardware"], row["model"], row["batch_per_gpu"]): place for place, row in enumerate(figures.value("rows"))}
    tried = {model: [batch for batch in batches if _tried(places, family, model, batch)] for model, batches in family.batches.items()}
    cases = [(model, batch) for model, batches in tried.items() for batch in batches]
    body = []
    for machine in family.machines:
        cells = [_shade(figures, measure, places.get((machine, *case)), most) for case in cases]
        if any(cell.startswith("<td data-tip") for cell in cells):
            body.append(tag("tr", tag("th", machine, scope="row"), *cells))
    head = join(
        tag("tr", tag("td", None), *(tag("th", model, scope="colgroup", colspan=len(sizes)) for model, sizes in tried.items() if sizes)),
        tag("tr", tag("th", "samples per GPU", scope="col"), *(tag("th", str(batch), scope="col") for _, batch in cases)),
    )
    caption = f"{measure.title} on {family.name}, {measure.unit}"
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_="heat")
    return tag("div", inner, class_="table marks", tabindex="0", role="group", aria_label=f"{caption}; arrow keys move between cells")


def _tried(places: Mapping[tuple[str, str, int], int], family: InstanceFamily, model: str, batch: int) -> bool:
    return any((machine, model, batch) in places for machine in family.machines)


def _shade(figures: Figures, measure: Measure, place: int | None, most: float) -> Html:
    row = figures.value(f"rows/{place}") if place is not None else {}
    value = _cell(row, measure) if row else None
    if value is None:
        return tag("td")
    tooltip = f"{row['model']} at {row['batch_per_gpu']}\n{row['hardware']}\n{measure.write(value)} {measure.unit}"
    return tag(
        "td", figures.format(f"rows/{place}/{measure.key}", measure.write), data_tip=tooltip, class_="mark",
        style=f"--heat:{50 * value / most if most else 0.0:.1f}%",
    )  # fmt: skip


# --- layers and gradients, costs ---------------------------------------------------------------------------------------


def _micro(figures: Figures) -> PagePart:
    rows = [figures.subfigures(f"micro/{place}") for place in range(len(figures.value("micro")))]
    if not rows:
        return PagePart("layers", "", section("layers", "Layers and gradients", tag("p", "The micro study was left out.")))
    drawn = [
        tag("figure", _scatter(rows, key, title, scale))
        for key, title, scale in (("gradient_tensors", "gradient tensors", 1.0), ("gradient_bytes", "MB of gradients", 1e6))
    ]
    names = {row.value("nodes"): row.value("hardware") for row in rows}
    caption = tag("p", tag("span", "Orange", class_="flag"), f": {names[max(names)]}, over the network; the others: {names[min(names)]}.")
    cells: list[list[Child]] = [
        [
            row.value("model"), row.value("hardware"), row.format("gradient_tensors", as_number), row.format("gradient_bytes", _megabytes),
            row.format("communication_s_per_step", as_time), row.format("communication_stall_percent", as_tenths),
        ]
        for row in rows
    ]  # fmt: skip
    head = [
        ("network", False), ("machine", False), ("tensors", True), ("gradients", True), ("communication adds", True), ("% of RUN1", True),
    ]  # fmt: skip
    networks = table(head, cells, "Micro study", "sortable")
    batch = rows[0].value("batch_per_gpu")
    lead = f"Time that communication adds to a step of {batch} samples per GPU, by the number of tensors and bytes exchanged."
    shown = section("layers", "Layers and gradients", *drawn, caption, details("All networks", networks), lead=lead)
    return PagePart("layers", "Layers", shown)


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _scatter(rows: Sequence[Figures], key: str, title: str, scale: float) -> Html:
    most = max(row.value("nodes") for row in rows)
    points = [
        ChartPoint(
            row.value(key) / scale, 1e3 * row.value("communication_s_per_step"), row.value("model"),
            f"{row.value('model')}\n{row.value('hardware')}\n{row.value('gradient_tensors')} tensors, "
            f"{_megabytes(row.value('gradient_bytes'))}\n{as_time(row.value('communication_s_per_step'))} per step",
            (row.marked(key), row.marked("communication_s_per_step")), row.value("nodes") == most, "_" not in row.value("model"),
        )
        for row in rows
    ]  # fmt: skip
    plain = "{:g}".format
    across = axis(title, [point.x for point in points], plain)
    up = axis("ms that communication adds", [point.y for point in points], plain)
    return chart(points, across, up, f"Time that communication adds to a step, over {title}")


def _costs(figures: Figures) -> PagePart:
    cases: dict[tuple[str, int], list[Figures]] = {}
    for place, row in enumerate(figures.value("rows")):
        if not row["hypothetical"]:
            cases.setdefault((row["model"], row["batch_per_gpu"]), []).append(figures.subfigures(f"rows/{place}"))
    cells: list[list[Child]] = []
    for (model, batch), rows in cases.items():
        cheapest = min(rows, key=lambda row: row.value("warm_cost_per_epoch_usd"))
        fastest = min(rows, key=lambda row: row.value("warm_epoch_time_s"))
        cells.append([model, str(batch), *(cell for row in (cheapest, fastest) for cell in _chosen(row))])
    head = [
        ("model", False), ("samples per GPU", True), ("cheapest", False), ("cost per epoch", True), ("takes", True), ("fastest", False),
        ("cost per epoch", True), ("takes", True),
    ]  # fmt: skip
    lead = "Rentable machines, by a warm epoch."
    drawn = section("cheapest", "Cheapest and fastest", table(head, cells, "Cheapest and fastest machines", "sortable"), lead=lead)
    return PagePart("cheapest", "Cheapest", drawn)


def _chosen(row: Figures) -> list[Child]:
    return [row.value("hardware"), row.format("warm_cost_per_epoch_usd", as_money), row.format("warm_epoch_time_s", as_time)]


def _left_out(failed: Sequence[str]) -> PagePart:
    return PagePart("left-out", "Cannot run", section("left-out", "Cases that cannot run", bullets(failed)))
