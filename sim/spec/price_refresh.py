"""Which prices would public price lists on disk change? Nothing is downloaded; `sim.spec.price_files` says which lists are read.

Prices of the Karpenter providers have precedence over SkyPilot's, which add spot prices and machines. A list that is older than a price
does not change it, and what no list has keeps its price and date. Pitfalls that are handled: SkyPilot lists GCP's machines without their
GPUs, and accelerators in separate rows, which are added zone by zone. In some zones its on-demand accelerators have cheaper committed or
flex-start rates, so the most expensive zone counts. A spot price that is not below the on-demand price means that no capacity was left.
With other providers, all zones of a region have the same on-demand price. The spot price is the median of the zones. The lowest prices of
any region are refreshed from lists with several regions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, TypeVar

from sim.spec import library
from sim.spec.catalog import catalog
from sim.spec.days import first_day
from sim.spec.hardware import Hardware
from sim.spec.node_prices import CheapestPrices, Prices
from sim.spec.price_files import Offer, offers_in
from sim.spec.yaml import SpecError

HOUR: Final = 3600.0
_ACCELERATORS: Final = {
    "A100-SXM4-40GB": "A100", "A100-SXM4-80GB": "A100-80GB", "H100-SXM5-80GB": "H100", "H200-SXM-141GB": "H200", "B200-SXM-180GB": "B200",
    "L4": "L4", "T4": "T4", "V100-SXM2-16GB": "V100",
}  # fmt: skip
"""SkyPilot's names of GPUs that GCP sells separately from machines; for the A3 Mega it is H100-MEGA."""


class PriceChange(NamedTuple):
    """The *old* and *new* prices of one machine; *path* is its file."""

    name: str
    path: Path
    old: Prices
    new: Prices


class _Quote(NamedTuple):
    """A price in USD per hour, where it is from, and its day; empty if the list does not say."""

    price: float
    source: str
    day: str


def price_changes(folder: Path, day: str = "") -> list[PriceChange]:
    """Return the price changes of the catalog's machines by the price lists below *folder*; *day* is that of lists without a date.

    Raise SpecError if there are no price lists.
    """
    offers = offers_in(folder)
    changed = [change for path in catalog("hardware").values() if (change := _change(path, offers, day)) is not None]
    return sorted(changed, key=lambda change: change.name)


def _change(path: Path, offers: Mapping[str, list[Offer]], day: str) -> PriceChange | None:
    """Return the price change of the machine in *path* by the offers; None if they have no price for it, or the same one."""
    machine = library.load(Hardware, path).spec
    price = machine.groups[0].price
    if len(machine.groups) != 1 or machine.groups[0].count != 1 or price is None or price.copied_from or machine.provider not in offers:
        return None
    names = {machine.name, *machine.aliases}
    all_offers = offers[machine.provider]
    everywhere = [offer for offer in all_offers if offer.instance in names]
    matching = [offer for offer in everywhere if not price.region or offer.region in (price.region, "")]
    if machine.provider == "gcp":
        matching = [offer if offer.complete else _with_gpus(offer, all_offers, machine) for offer in matching]
    on_demand = _quote(matching, lambda offer: offer.price, max, price.date, day)
    most = on_demand.price if on_demand else _per_hour(price.on_demand)
    spot = _quote(matching, lambda offer: offer.spot if offer.spot and (most is None or offer.spot < most) else None, median,
                  price.day_of_spot, day)  # fmt: skip
    comparable = [offer for offer in everywhere if offer.complete or machine.provider != "gcp"]  # of GCP's zones some have other rates
    new = _with_quotes(price, on_demand, spot).model_copy(update={"cheapest": _cheapest(comparable, price.cheapest, day)})
    return None if _amounts(price) == _amounts(new) else PriceChange(machine.name, path, price, new)


def _amounts(price: Prices) -> list[float | None]:
    """Return the prices of *price*, rounded to 3 or 4 digits: sources round them differently."""
    blocks = (price, price.cheapest or CheapestPrices())
    return [None if amount is None else float(f"{amount * HOUR:.4g}") for block in blocks for amount in (block.on_demand, block.spot)]


def _cheapest(offers: Sequence[Offer], old: CheapestPrices | None, day: str) -> CheapestPrices | None:
    """Return the lowest prices of the *offers* in any region; *old* where they are of one region or older than it."""
    before = old or CheapestPrices()
    on_demand = _lowest(offers, lambda offer: offer.price, before.date, day)
    spot = _lowest(offers, lambda offer: offer.spot, before.day_of_spot, day)
    if on_demand is None and spot is None:
        return old
    regions = {"region": on_demand[1] if on_demand else before.region, "spot_region": spot[1] if spot else before.spot_region}
    return _with_quotes(before, on_demand[0] if on_demand else None, spot[0] if spot else None).model_copy(update=regions)


def _lowest(offers: Sequence[Offer], amount: Callable[[Offer], float | None], since: str, day: str) -> tuple[_Quote, str] | None:
    """Return the lowest price of *offers* and its region; None if they are of fewer than two regions, or older than *since*."""
    priced = [(price, offer) for offer in offers if (price := amount(offer))]
    if len({offer.region for _, offer in priced}) < 2:
        return None
    price, offer = min(priced, key=lambda pair: pair[0])
    quote = _quote_from(offer, price, since, day)
    return None if quote is None else (quote, offer.region)


def _quote(
    offers: Sequence[Offer], amount: Callable[[Offer], float | None], choose: Callable[[list[float]], float], since: str, day: str
) -> _Quote | None:
    """Return the price that *choose* takes of the *offers* that have precedence; None if they have none, or it is older than *since*."""
    priced = [(offer, price) for offer in offers if (price := amount(offer))]
    complete = [(offer, price) for offer, price in priced if offer.complete]
    chosen = complete or priced
    if not chosen:
        return None
    return _quote_from(chosen[0][0], choose([price for _, price in chosen]), since, day)


def _quote_from(offer: Offer, price: float, since: str, day: str) -> _Quote | None:
    """Return *price* with the source and day of the list of *offer*; None if that is older than *since*."""
    if offer.day and since and first_day(offer.day) < first_day(since):
        return None
    when = f", generated {offer.day}" if offer.day else f", a checkout of {day}" if day else ""
    return _Quote(price, f"{offer.source}{when}", offer.day or day)


_AnyPrices = TypeVar("_AnyPrices", Prices, CheapestPrices)


def _with_quotes(old: _AnyPrices, on_demand: _Quote | None, spot: _Quote | None) -> _AnyPrices:
    """Return *old* with the prices of the quotes, and their days and sources."""
    sources = old.source if isinstance(old.source, Mapping) else {"*": str(old.source)}
    first = on_demand.source if on_demand else str(sources.get("on_demand", sources.get("*", "")))
    second = spot.source if spot else str(sources.get("spot", sources.get("*", "")))
    has_spot = spot is not None or old.spot is not None
    return old.model_copy(
        update={
            "on_demand": on_demand.price / HOUR if on_demand else old.on_demand,
            "spot": spot.price / HOUR if spot else old.spot,
            "date": on_demand.day if on_demand else old.date,
            "spot_date": (spot.day if spot else old.day_of_spot) if has_spot else None,
            "source": {"*": first, "spot": second} if has_spot and second != first else first,
        }
    )


def _with_gpus(offer: Offer, every: Iterable[Offer], machine: Hardware) -> Offer:
    """Return GCP's *offer* of a machine plus the price of its GPUs in the same zone; without a price if a part has none."""
    node = machine.groups[0].node
    wanted = "H100-MEGA" if machine.name.startswith("a3-mega") else _ACCELERATORS.get(node.gpu.name, node.gpu.name)
    gpus = [other for other in every if not other.instance and other.accelerator == wanted and other.zone == offer.zone]
    gpus = [other for other in gpus if other.region == offer.region and other.gpus == node.gpu_count]
    if offer.accelerator or not gpus:
        return offer if offer.accelerator else offer._replace(price=None, spot=None)
    return offer._replace(price=_sum(offer.price, gpus[0].price), spot=_sum(offer.spot, gpus[0].spot))


def _sum(machine: float | None, gpus: float | None) -> float | None:
    """Return the total price; the machine may have no price of its own if its GPUs include it."""
    return None if gpus is None else (machine or 0.0) + gpus


def _per_hour(price: float | None) -> float | None:
    return None if price is None else price * HOUR


def rewrite(change: PriceChange) -> str:
    """Return the text of the machine's file with the new prices. Raise SpecError if it has no ``price`` block of its own."""
    text = change.path.read_text(encoding="utf-8")
    match = re.search(r"^price:\n(?:[ ]+.*\n?)+", text, flags=re.MULTILINE)
    if match is None:
        raise SpecError(f"{change.path}: has no price block to rewrite; add one, or edit the file that it extends")
    lines = ["price:", *_lines(change.new)]
    if change.new.cheapest is not None:
        lines += ["  cheapest:", *(f"  {line}" for line in _lines(change.new.cheapest))]
    return text[: match.start()] + "\n".join(lines) + "\n" + text[match.end() :]


def _lines(block: Prices | CheapestPrices) -> list[str]:
    """Return *block* as lines of YAML, without the block ``cheapest`` in it."""
    amounts = {"on_demand": block.on_demand, "spot": block.spot}
    lines = [f"  {name}: {amount * HOUR:.8g} USD/h" for name, amount in amounts.items() if amount is not None]
    texts = {"spot_date": block.spot_date if block.spot_date != block.date else None, "date": block.date, "region": block.region}
    texts |= {"spot_region": block.spot_region} if isinstance(block, CheapestPrices) else {}
    lines += [f"  {name}: {_quoted(text) if text.isdigit() else text}" for name, text in texts.items() if text]
    if isinstance(block.source, str):
        return [*lines, f"  source: {_quoted(block.source)}"]
    sources = [f"    {_quoted(key) if key == '*' else key}: {_quoted(str(text))}" for key, text in block.source.items()]
    return [*lines, "  source:", *sources]


def _quoted(text: str) -> str:
    return f'"{text}"'
