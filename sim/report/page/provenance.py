"""What are the inputs, and where does each number come from? The descriptions' main values with their sources, and their hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sim.analysis.cost import node_price
from sim.cluster.node_links import fabric_link
from sim.report.page.frame import PagePart
from sim.report.page.markup import Child, Figures, Html, details, join, section, step, table, tag
from sim.report.page.words import as_number, as_price
from sim.report.prices import age_text, date_of, day_cell, source_of
from sim.simulate import Run
from sim.spec.days import STALE_DAYS
from sim.spec.hardware import Group
from sim.spec.workload import Workload
from sim.study.recommend import MARKETS
from sim.units import pluralized, show

_SHORT = 150
"""Maximum characters of a source that is not folded."""

_OPEN_PRICES = 12
"""Maximum number of prices that are not folded."""

ProvenanceRow = tuple[str, str, object]
"""The name of an input, its value, and its source: text, or texts by key."""


def provenance(run: Run, number: int, figures: Figures) -> Html:
    """Return the inputs of job *number* of *run* with their sources, and the hashes of all descriptions."""
    return join(sources(_inputs(run, number), "Inputs and their sources"), fingerprints(figures))


def sources(rows: Iterable[ProvenanceRow], caption: str) -> Html:
    """Return *rows* of inputs as a table under *caption*."""
    cells: list[list[Child]] = [[what, value, _source(source)] for what, value, source in rows]
    return table([("input", False), ("value", False), ("source", False)], cells, caption, "sources")


def fingerprints(figures: Figures) -> Html:
    """Return the version and seed that produced the document of *figures*, and the SHA-256 of each description that was read."""
    prints = [
        tag("li", f"{name}: ", tag("code", _text(figures, f"inputs_sha256/{step(name)}")))
        for name in figures.value("inputs_sha256")
    ]  # fmt: skip
    seeded = (", seed ", _text(figures, "seed")) if "seed" in figures.value("") else ()
    same = ". The same descriptions, version and seed give the same figures. SHA-256 of the descriptions:"
    made = tag("p", "Made by stallsim ", _text(figures, "version"), *seeded, same, class_="lead")
    return join(made, tag("ul", *prints))


def prices(figures: Figures) -> list[PagePart]:
    """Return the part on the prices that a document uses, with their date, region and source; empty if there are none."""
    table_of_prices = price_table(figures)
    return [PagePart("prices", "Prices", section("prices", "Prices", table_of_prices, lead=PRICES_LEAD))] if table_of_prices else []


def price_table(figures: Figures) -> Html:
    """Return the ``prices`` of a document, or its one ``price``, which is for all nodes, as a table; empty if it has none."""
    document = figures.value("")
    own = document.get("price")
    rows = [
        [row["hardware"], *_price_cells(row, figures, f"prices/{place}/node_usd_per_h")]
        for place, row in enumerate(document.get("prices", ()))
    ]
    if "prices" not in document and own and own["usd_per_h"] is not None:
        nodes = pluralized(document["nodes"], "node")
        rows = [[f"{document['hardware']}, {nodes}", *_price_cells(own, figures, "price/usd_per_h")]]
    head = [("machine", False), ("market", False), ("price", True), ("region", False), ("date", False), ("source", False)]
    if not rows:
        return Html("")
    drawn = table(head, rows, "Prices and their sources", "sources dated")
    return drawn if len(rows) <= _OPEN_PRICES else details(f"{len(rows):,} prices", drawn)


PRICES_LEAD: Final = (
    f"Price of a node, or of all nodes where their number is given. Dates more than {STALE_DAYS} days ago are marked as old."
)


def _price_cells(row: Mapping[str, Any], figures: Figures, path: str) -> list[Child]:
    return [
        row["market"].replace("_", " "), figures.format(path, as_price), row["region"] or "-", day_cell(row["date"] or ""),
        _source(row["source"]),
    ]  # fmt: skip


def _text(figures: Figures, path: str) -> Html:
    return tag("data", str(figures.value(path)), value=str(figures.value(path)), data_at=figures.place(path))


def _source(source: object) -> Child:
    """Return *source* in full, folded if it is long."""
    text = _source_text(source)
    return text if len(text) <= _SHORT else details(f"{text[:_SHORT].rsplit(' ', 1)[0]} …", text)


def _source_text(source: object) -> str:
    if isinstance(source, Mapping):
        several = {key: str(text) for key, text in source.items()}
        return next(iter(several.values())) if len(several) == 1 else "; ".join(f"{_key(key)}: {text}" for key, text in several.items())
    return str(source) if source else "-"


def _key(key: str) -> str:
    return "everything else" if key == "*" else key


def _inputs(run: Run, number: int) -> Iterator[ProvenanceRow]:
    job = run.jobs[number].job
    nodes = {id(node) for node in run.nodes(number)}
    for group in run.hardware.groups:
        if (group.role == "worker" and id(group.node) in nodes) or len(run.hardware.groups) == 1:
            yield from machine_inputs(group)
            yield from _price(group)
    yield from workload_inputs(job.workload)


def machine_inputs(group: Group) -> Iterator[ProvenanceRow]:
    """Yield the main values of a *group* of equal nodes."""
    node = group.node
    gpu, host, nic = node.gpu, node.host, node.nic
    peaks = ", ".join(f"{name} {show(rate, 'compute rate')}" for name, rate in gpu.peak.items())
    bandwidth = show(gpu.memory_bandwidth, "bandwidth")
    yield f"GPU {gpu.name}", f"{node.gpu_count}; {show(gpu.memory, 'binary size')} at {bandwidth}; {peaks}", gpu.source
    yield "links between GPUs", _wiring(group), node.topology.source
    cpu = f"{host.sockets} x {host.cpu.name}, {host.physical_cores} cores, {host.vcpus} threads, {show(host.memory, 'binary size')}"
    yield "host", cpu, host.source
    yield "processor", f"{host.cpu.speed:g} times the reference core", host.cpu.source
    yield "network", f"{nic.count} x {show(nic.bandwidth, 'bit rate')}, {nic.transport.name}", nic.source
    yield f"transport {nic.transport.name}", f"{show(nic.transport.hop_latency, 'time')} a hop", nic.transport.source
    if node.storage is not None:
        volume = node.storage.volume
        yield f"volume {volume.name}", f"{show(volume.size, 'binary size')}, {show(volume.bandwidth, 'bandwidth')}", volume.source


def _price(group: Group) -> Iterator[ProvenanceRow]:
    price = group.price
    if price is None:
        return
    for market in MARKETS:
        if (rate := node_price(group, market)) is not None:
            written = date_of(price, market)
            where = ", ".join(part for part in (price.region, written, age_text(written)) if part)
            amount = show(rate, "price", 4)
            yield f"price {market.replace('_', ' ')}", f"{amount} ({where})" if where else amount, source_of(price, market)


def _wiring(group: Group) -> str:
    topology = group.node.topology
    words = [f"PCIe: {topology.pcie.name}"]
    if topology.nvlink:
        links = topology.nvlink
        ports = f"{links.switch_links} from every GPU to NVSwitch" if links.switch_links else f"{sum(links.pairs.values())} between pairs"
        words.insert(0, f"{fabric_link(links.link)}s: {links.link.name}, {ports}")
    return "; ".join(words)


def workload_inputs(workload: Workload) -> Iterator[ProvenanceRow]:
    """Yield the main values of *workload*."""
    model, dataset, stack = workload.model, workload.dataset, workload.training.stack
    yield f"model {model.name}", f"{as_number(model.parameters)} parameters, {len(model.layers)} layers", model.source
    size = show(dataset.samples * dataset.sample, "size")
    yield f"data set {dataset.name}", f"{as_number(dataset.samples)} samples, {size}", dataset.source
    yield f"stack {stack.name}", f"{stack.exchange.strategy}, {stack.library.backend}", stack.source
