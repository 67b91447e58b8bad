"""At which prices? Each with its market, day, region and source, as a document has them, and in lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.analysis.cost import Market, node_price
from sim.spec.days import STALE, stale
from sim.spec.hardware import Hardware, Prices

_NAMED = 4
"""Machines named in a line of text; the document has all."""


def price_rows(hardware: Hardware, markets: Sequence[Market] = ("on_demand",)) -> list[dict[str, Any]]:
    """Return a row for each price of *hardware* that is known on *markets*: USD/h of one node of each group."""
    rows = []
    for group in hardware.groups:
        for market in markets:
            rate = node_price(group, market)
            if rate is not None and group.price is not None:
                rows.append(price_row(hardware.name, market, 3600 * rate, group.price))
    return rows


def price_row(hardware: str, market: Market, usd_per_h: float, prices: Prices) -> dict[str, Any]:
    """Return one row: *usd_per_h* is of one node."""
    date, source = dated(prices, market), source_of(prices, market)
    return {
        "hardware": hardware, "market": market, "node_usd_per_h": usd_per_h, "date": date, "region": prices.region or None,
        "source": source,
    }  # fmt: skip


def dated(prices: Prices, market: Market) -> str:
    """Return the day of the price on *market*."""
    return prices.day_of_spot if market == "spot" else prices.date


def source_of(prices: Prices, market: Market) -> str:
    """Return where the price on *market* is from."""
    source = prices.source
    return str(source.get(market, source.get("*", ""))) if isinstance(source, Mapping) else str(source)


def day_cell(written: str) -> str:
    """Return the date of a price as tables show it; old ones are marked."""
    return f"{written}, old" if stale(written) else written


def price_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return *rows* in words, machines of the same market, region, day and source together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        old = f"more than {STALE} days old" if stale(row["date"]) else ""
        where = ", ".join(part for part in (row["region"], row["date"], old) if part)
        key = f"{row['market'].replace('_', ' ')}{f' ({where})' if where else ''}", row["source"]
        alike.setdefault(key, []).append(row["hardware"])
    return [f"Prices {market}: {_few(list(dict.fromkeys(names)))}; {source}" for (market, source), names in alike.items()]


def paid_text(price: Mapping[str, Any] | None) -> list[str]:
    """Return in a line what all nodes of a run cost an hour, on which market, and of which day and region that *price* is, if any."""
    if price is None or price["usd_per_h"] is None:
        return []
    old = f"more than {STALE} days old" if price["date"] and stale(price["date"]) else ""
    of_user = price["source"] if not price["date"] and str(price["source"]).startswith("--") else ""
    where = ", ".join(part for part in (price["region"], price["date"], old, of_user) if part)
    return [f"price: ${price['usd_per_h']:,.2f} an hour, {price['market'].replace('_', '-')}{f' ({where})' if where else ''}"]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
