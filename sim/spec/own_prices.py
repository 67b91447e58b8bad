"""What does a machine cost according to the user? Prices from a user-defined source or an option replace those of the description.

The source is queried for each machine by name, provider and region; a machine that it does not know keeps its price. Prices of single
machines, such as reserved ones, can be given instead (``--price MACHINE=PRICE``). Limit: hardware with several groups keeps its prices.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, cast

from sim.spec.days import first_day
from sim.spec.extensions import PRICE_SOURCES, call_extension, extension
from sim.spec.yaml import SpecError
from sim.units import UnitError, parse, shorten

_KEYS: Final = ("on_demand", "spot", "date", "spot_date", "region", "source")
_AMOUNTS: Final = ("on_demand", "spot")


class PriceSource(Protocol):
    """A source of machine prices; docs/develop/own-prices.md has an example."""

    @property
    def name(self) -> str:
        """Return the name of the source, as in ``--prices NAME``."""

    def price(self, machine: str, provider: str, region: str) -> Mapping[str, object] | None:
        """Return the price of one *machine* (a name of the catalog, or of a file); None if the source does not know it.

        Keys: ``on_demand`` and ``spot`` (USD per hour of one node, or of one tray of a rack; at least one of them), ``date`` (YYYY-MM-DD,
        for both), ``spot_date``, ``region`` and ``source`` (text: where the figures come from).
        """


def prices_from_options(texts: Iterable[str]) -> str:
    """Return the prices in ``--price MACHINE=PRICE`` *texts* as a name for `prices_of`. Raise SpecError for any other text."""
    prices: dict[str, str] = {}
    for text in texts:
        machine, equals, price = (part.strip() for part in text.partition("="))
        if not (machine and equals and price) or ";" in text:
            raise SpecError(
                f"--price {shorten(text)}: write MACHINE=PRICE, for example p4d.24xlarge='14.90 USD/h'; --set price.on_demand='10 USD/h' "
                "sets the price of every machine"
            )
        try:
            amount = parse(price, "price")
        except UnitError as error:
            raise SpecError(f"--price {machine}: {error}") from None
        if not 0 < amount < math.inf:
            raise SpecError(f"--price {machine}: {price}: write more than 0")
        if prices.setdefault(machine, price) != price:
            raise SpecError(f"--price {machine}: found both {prices[machine]} and {price}; write one of the two")
    return "; ".join(f"{machine}={price}" for machine, price in prices.items())


def require_machines(name: str, machines: Mapping[str, str]) -> None:
    """Raise SpecError if *name* contains the price of a machine that is not in *machines*: names, by themselves or by the file typed."""
    compared = list(machines.values())
    for machine in _prices_in(name):
        if machine not in compared and machine in machines:
            raise SpecError(f"--price {machine}: is a file; write the name of its machine, {machines[machine]}")
        if machine not in compared:
            near = difflib.get_close_matches(machine, compared, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise SpecError(f"--price {machine}: is not one of the compared machines{meant}")


def _prices_in(name: str) -> dict[str, str]:
    """Return the price of each machine in *name*, which is a result of `prices_from_options`; empty if it is the name of a source."""
    return dict(text.split("=", 1) for text in name.split("; ")) if "=" in name else {}


class PriceOverride(NamedTuple):
    """An override with the prices of the source *name*, or of a result of `prices_from_options`."""

    name: str


def prices_of(name: str, description: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``price`` block from the source *name* for the machine in *description*; None if the machine keeps its price.

    Raise SpecError for a source that does not exist, or that returns something that is not a price.
    """
    if prices := _prices_in(name):
        return _with_price(prices, description)
    try:
        source = cast(PriceSource, extension(PRICE_SOURCES, name))
    except SpecError as error:
        raise SpecError(f"--prices {name}: {error}") from None
    groups = description.get("groups")
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], Mapping):
        return None
    machine, provider = str(description.get("name", "")), str(description.get("provider", ""))
    now = groups[0].get("price")
    region = str(now.get("region", "")) if isinstance(now, Mapping) else ""
    result = call_extension(PRICE_SOURCES, name, lambda: source.price(machine, provider, region))
    return None if result is None else _checked(result, f"--prices {name}: {machine}", name)


def _with_price(prices: Mapping[str, str], description: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``price`` block of *description* with the on-demand price of its machine in *prices*; None if *prices* has none.

    The price that was asked is that of a node; the block of a rack holds the price of one of its trays.
    """
    groups, machine = description.get("groups"), str(description.get("name", ""))
    if machine not in prices or not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], Mapping):
        return None
    now = groups[0].get("price")
    kept = {key: now[key] for key in ("spot", "region") if key in now} if isinstance(now, Mapping) else {}
    day = {"spot_date": now.get("spot_date", now.get("date", ""))} if "spot" in kept and isinstance(now, Mapping) else {}
    price, trays = prices[machine], groups[0].get("trays", 1)
    if isinstance(trays, int) and trays > 1:
        price = f"{parse(price, 'price') / trays!r} USD/s"
    return {**kept, **day, "on_demand": price, "source": "--price"}


def _checked(result: object, where: str, name: str) -> dict[str, Any]:
    """Return *result*, the result of a price source, as the ``price`` block of a description."""
    if not isinstance(result, Mapping):
        raise SpecError(f"{where}: found {shorten(result)}; return a mapping such as {{'on_demand': 12.5, 'date': '2026-11-01'}}, or None")
    unknown = [key for key in result if key not in _KEYS]
    if unknown:
        raise SpecError(f"{where}: unknown key {shorten(unknown[0])}; valid keys: {', '.join(_KEYS)}")
    amounts = {key: result[key] for key in _AMOUNTS if result.get(key) is not None}
    if not amounts or "date" not in result:
        raise SpecError(f"{where}: {'a date' if amounts else 'a price'} is missing; return on_demand or spot, and date")
    for key, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < math.inf:
            raise SpecError(f"{where}: {key} is {shorten(amount)}; return USD per hour of one node, above 0")
    texts = {key: result[key] for key in _KEYS if key not in _AMOUNTS and result.get(key) is not None}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise SpecError(f"{where}: {key} is {shorten(text)}; return text")
        if key.endswith("date"):
            try:
                first_day(text)
            except SpecError as error:
                raise SpecError(f"{where}: {key} {error}") from None
    told = f"price source {name}"
    source = f"{told}: {texts.pop('source')}" if "source" in texts else told
    return {**{key: f"{float(amount)!r} USD/h" for key, amount in amounts.items()}, **texts, "source": source}
