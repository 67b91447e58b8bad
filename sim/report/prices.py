"""Which prices does a result use? Each with its market, date, region and source, as rows of a document and as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.analysis.cost import Market, node_price
from sim.spec.days import STALE_DAYS, is_future, is_stale
from sim.spec.hardware import Hardware
from sim.spec.node_prices import Prices
from sim.units import dollars

_NAMED = 4
"""Maximum number of machines named in a line of text; the document has all."""


def price_rows(hardware: Hardware, markets: Sequence[Market] = ("on_demand",)) -> list[dict[str, Any]]:
    """Return a row for each price that *hardware* has on *markets*: USD/h of one node of each group."""
    rows = []
    for group in hardware.groups:
        for market in markets:
            rate = node_price(group, market)
            if rate is not None and group.price is not None:
                rows.append(price_row(hardware.name, market, 3600 * rate, group.price))
    return rows


def price_row(hardware: str, market: Market, usd_per_h: float, prices: Prices) -> dict[str, Any]:
    """Return the row of one price; *usd_per_h* is that of one node."""
    date, source = date_of(prices, market), source_of(prices, market)
    return {
        "hardware": hardware, "market": market, "node_usd_per_h": usd_per_h, "date": date, "region": prices.region or None,
        "source": source,
    }  # fmt: skip


def date_of(prices: Prices, market: Market) -> str:
    """Return the date of the price on *market*."""
    return prices.day_of_spot if market == "spot" else prices.date


def source_of(prices: Prices, market: Market) -> str:
    """Return the source of the price on *market*, and the machine from which it was copied, if any."""
    source = prices.source
    text = str(source.get(market, source.get("*", ""))) if isinstance(source, Mapping) else str(source)
    return f"price of {prices.copied_from}: {text}" if prices.copied_from else text


def market_assumptions(market: Market) -> list[str]:
    """Return the assumption behind spot prices, if *market* is spot."""
    return ["spot prices without interruptions (python -m sim spot simulates them)"] if market == "spot" else []


def missing_price(hardware: Hardware, market: Market, price: float | None) -> list[str]:
    """Return a warning if *hardware* has no *price* on the requested spot market."""
    if market == "on_demand" or price is not None:
        return []
    return [f"no spot price for {hardware.name}; set one, for example --set price.spot='1.50 USD/h'"]


def prices_of_runs(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the price of each machine in the *documents* of runs, of which each has a ``price`` for all its nodes or none."""
    priced = {row["hardware"]: row for row in documents if row["price"] and row["price"]["usd_per_h"] is not None}
    return [
        {"hardware": name, "market": row["price"]["market"], "node_usd_per_h": row["price"]["usd_per_h"] / row["nodes"]}
        | {key: row["price"][key] for key in ("date", "region", "source")}
        for name, row in priced.items()
    ]


def day_cell(written: str) -> str:
    """Return the date of a price for a table; old dates and those to come are marked, and a missing one is told."""
    if not written:
        return "undated"
    return f"{written}, old" if is_stale(written) else f"{written}, in the future" if is_future(written) else written


def age_text(written: str) -> str:
    """Return a remark on a price with the date *written* if it is old or to come; empty for others."""
    return f"more than {STALE_DAYS} days old" if is_stale(written) else "in the future" if is_future(written) else ""


def price_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return *rows* as lines of text, one for all machines of the same market, region, date and source."""
    machines_of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        where = ", ".join(part for part in (row["region"], _day_text(row), age_text(row["date"])) if part)
        key = f"{row['market'].replace('_', ' ')}{f' ({where})' if where else ''}", row["source"]
        machines_of.setdefault(key, []).append(row["hardware"])
    return [f"Prices {market}: {_few(list(dict.fromkeys(names)))}; {source}" for (market, source), names in machines_of.items()]


def _day_text(price: Mapping[str, Any]) -> str:
    """Return the date of *price*; 'undated' if it has none, and empty if the user wrote it in an option."""
    return str(price["date"]) or ("" if str(price["source"]).startswith("--") else "undated")


def paid_text(price: Mapping[str, Any] | None, gpus: int = 0, idle: bool = False) -> list[str]:
    """Return a line with the hourly price of all nodes of a run, its market, region and date; no line if there is no *price*.

    If the run has several *gpus*, the line has the price of one as well, by which a price that was not meant for a whole node is noticed;
    *idle*: whether other GPUs of these nodes, which are paid for as well, have no job.
    """
    if price is None or price["usd_per_h"] is None:
        return []
    of_user = price["source"] if not price["date"] and str(price["source"]).startswith("--") else ""
    where = ", ".join(part for part in (price["region"], _day_text(price), age_text(price["date"]), of_user) if part)
    each = f" (${dollars(price['usd_per_h'] / gpus)} per GPU{' used' * idle})" if gpus > 1 else ""
    return [f"price: ${dollars(price['usd_per_h'])}/h{each}, {price['market'].replace('_', '-')}{f' ({where})' if where else ''}"]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
