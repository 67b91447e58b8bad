"""Which prices would a checkout of SkyPilot's catalogue change? Its CSV files are read from a folder; nothing is downloaded.

A file ``<cloud>/vms.csv`` has a row for each zone or region: InstanceType, AcceleratorName, AcceleratorCount, Price and SpotPrice (USD per
hour of the machine), Region, AvailabilityZone. Pitfalls that are handled: GCP lists machines without their GPUs, and accelerators in
separate rows, which are added zone by zone. In some zones its on-demand accelerators have cheaper committed or flex-start rates, so the
most expensive zone counts. A spot price that is not below the on-demand price means that no capacity was left. Placeholders and zeros are
not prices. With other providers, all zones of a region have the same on-demand price. The spot price is the median of the zones.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from sim.spec import library
from sim.spec.catalogue import catalogue
from sim.spec.days import first_day
from sim.spec.hardware import Hardware, Prices
from sim.spec.yaml import SpecError

CLOUDS: Final = ("aws", "azure", "gcp", "lambda", "nebius", "oci")
"""Providers whose instance types have the same names in SkyPilot and in the catalogue."""
PLACEHOLDER: Final = 500.0
"""USD per hour and GPU from which a price is a placeholder."""
HOUR: Final = 3600.0
_COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
_ACCELERATORS: Final = {
    "A100-SXM4-40GB": "A100", "A100-SXM4-80GB": "A100-80GB", "H100-SXM5-80GB": "H100", "H200-SXM-141GB": "H200", "B200-SXM-180GB": "B200",
    "L4": "L4", "T4": "T4", "V100-SXM2-16GB": "V100",
}  # fmt: skip
"""SkyPilot's names of GPUs that GCP sells separately from machines; for the A3 Mega it is H100-MEGA."""


class PriceChange(NamedTuple):
    """New prices of one machine in USD per hour, or None; *path* is its file."""

    name: str
    path: Path
    old: Prices
    on_demand: float | None
    spot: float | None


class _Offer(NamedTuple):
    instance: str
    accelerator: str
    gpus: float
    price: float | None
    spot: float | None
    region: str
    zone: str


def price_changes(folder: Path) -> list[PriceChange]:
    """Return the price changes of the catalogue's machines by the CSV files below *folder*. Raise SpecError if it has no such files."""
    files = {cloud: path for cloud in CLOUDS if (path := _file(folder, cloud)) is not None}
    if not files:
        raise SpecError(f"--refresh {folder}: contains no <cloud>/vms.csv; pass a checkout of SkyPilot's catalog, such as catalogs/v8")
    offers = {cloud: _read(path) for cloud, path in files.items()}
    changed = [change for path in catalogue("hardware").values() if (change := _change(path, offers)) is not None]
    return sorted(changed, key=lambda change: change.name)


def _file(folder: Path, cloud: str) -> Path | None:
    """Return the file of *cloud* below *folder*; if there are several schema versions, the newest one."""
    paths = [folder / cloud / "vms.csv", *folder.glob(f"*/{cloud}/vms.csv"), *folder.glob(f"catalogs/*/{cloud}/vms.csv")]
    numbered = [
        (int(match[1]) if (match := re.fullmatch(r"v(\d+)", path.parent.parent.name)) else 0, path) for path in paths if path.is_file()
    ]
    return max(numbered)[1] if numbered else None


def _read(path: Path) -> list[_Offer]:
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise SpecError(f"{path}:1: no column {', '.join(missing)}; this is not a vms.csv of SkyPilot's catalog")
        return [_offer(cells, path, number) for number, cells in enumerate(reader, start=2)]


def _offer(cells: Mapping[str, str | None], path: Path, line: int) -> _Offer:
    def number(name: str) -> float | None:
        text = (cells[name] or "").strip()
        try:
            return float(text) if text else None
        except ValueError:
            raise SpecError(f"{path}:{line}: {name} is {text!r}; expected a number of USD per hour") from None

    count = number("AcceleratorCount") or 0.0
    return _Offer(
        (cells["InstanceType"] or "").strip().lower(),
        (cells["AcceleratorName"] or "").strip(),
        count,
        _usable(number("Price"), count),
        _usable(number("SpotPrice"), count),
        cells["Region"] or "",
        cells.get("AvailabilityZone") or "",
    )


def _usable(price: float | None, count: float) -> float | None:
    return price if price and price < PLACEHOLDER * max(count, 1.0) else None


def _change(path: Path, offers: Mapping[str, list[_Offer]]) -> PriceChange | None:
    """Return the price change of the machine in *path* by the offers; None if they have no price for it, or the same one."""
    machine = library.load(Hardware, path).spec
    price = machine.groups[0].price
    if len(machine.groups) != 1 or machine.groups[0].count != 1 or price is None or machine.provider not in offers:
        return None
    names = {machine.name, *machine.aliases}
    all_offers = offers[machine.provider]
    matching = [offer for offer in all_offers if offer.instance in names and (not price.region or offer.region in (price.region, ""))]
    if machine.provider == "gcp":
        matching = [_with_gpus(offer, all_offers, machine) for offer in matching]
    on_demand = max((offer.price for offer in matching if offer.price), default=None)
    spots = [offer.spot for offer in matching if offer.spot and (on_demand is None or offer.spot < on_demand)]
    spot = median(spots) if spots else None
    if on_demand is None and spot is None:
        return None
    on_demand = on_demand if on_demand is not None else _per_hour(price.on_demand)
    same = _close(on_demand, _per_hour(price.on_demand)) and _close(spot, _per_hour(price.spot))
    return None if same else PriceChange(machine.name, path, price, on_demand, spot)


def _with_gpus(offer: _Offer, every: Iterable[_Offer], machine: Hardware) -> _Offer:
    """Return GCP's *offer* of a machine plus the price of its GPUs in the same zone; without a price if a part has none."""
    node = machine.groups[0].node
    wanted = "H100-MEGA" if "mega" in machine.name else _ACCELERATORS.get(node.gpu.name, node.gpu.name)
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


def _close(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) < 5e-4 * other)


def rewrite(change: PriceChange, day: str) -> str:
    """Return the text of the machine's file with the new prices, as of *day*. Raise SpecError if it has no ``price`` block of its own."""
    first_day(day)
    text = change.path.read_text(encoding="utf-8")
    match = re.search(r"^price:\n(?:[ ]+.*\n?)+", text, flags=re.MULTILINE)
    if match is None:
        raise SpecError(f"{change.path}: has no price block to rewrite; add one, or edit the file that it extends")
    lines = ["price:"]
    lines += [f"  on_demand: {change.on_demand:.8g} USD/h"] if change.on_demand is not None else []
    lines += [f"  spot: {change.spot:.8g} USD/h"] if change.spot is not None else []
    lines += [f"  date: {day}"] + ([f"  region: {change.old.region}"] if change.old.region else [])
    lines += [f'  source: "skypilot-org/skypilot-catalog, a checkout of {day}"']
    return text[: match.start()] + "\n".join(lines) + "\n" + text[match.end() :]
