"""Which prices do public price lists in a folder contain? SkyPilot's catalog and the price lists of the Karpenter providers, on disk.

Nothing is downloaded. SkyPilot's ``<cloud>/vms.csv`` has a row for each zone or region: InstanceType, AcceleratorName, AcceleratorCount,
Price and SpotPrice (USD per hour of the machine), Region, AvailabilityZone. The Karpenter providers' lists are generated and have the price
of each whole machine by region: Go maps of on-demand prices for AWS and Azure, which say when they were generated, and JSON for GCP, with
spot prices. Placeholders and zeros are not prices. Anything else that is not a finite price of 0 or more is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sim.spec.strict import check_type, csv_lines, csv_number, csv_rows, decode, read_bytes, read_json
from sim.spec.yaml import SpecError

CLOUDS: Final = ("aws", "azure", "do", "gcp", "hyperstack", "lambda", "nebius", "oci", "verda")
"""Providers whose instance types have the same names in SkyPilot and in the catalog."""
PLACEHOLDER: Final = 500.0
"""USD per hour and GPU from which a price is a placeholder."""
SKYPILOT: Final = "skypilot-org/skypilot-catalog"
_COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
_MOST: Final = 16 * 2**20
"""Maximum bytes of one file. The largest public one has 4 MB."""


class Offer(NamedTuple):
    """The prices of one instance type in one zone or region, USD per hour, or None; *instance* is in lower case."""

    instance: str
    accelerator: str
    gpus: float
    price: float | None
    spot: float | None
    region: str
    zone: str
    complete: bool
    """Whether the prices are those of the whole machine, with its GPUs, and have precedence over those of files that are not so."""
    source: str
    day: str = ""
    """Day on which the file was generated; empty if it does not say."""


def offers_in(folder: Path) -> dict[str, list[Offer]]:
    """Return the offers in the files below *folder* by provider. Raise SpecError if there are none, or one is not what it should be."""
    offers: dict[str, list[Offer]] = {}
    for cloud in CLOUDS:
        if priced := [*_skypilot(folder, cloud), *_karpenter(folder, cloud)]:
            offers[cloud] = priced
    if not offers:
        names = ", ".join(f"{repository}'s {name}" for repository, name, _ in _KARPENTER.values())
        raise SpecError(
            f"--refresh {folder}: contains no <cloud>/vms.csv with prices, as SkyPilot's catalog has in catalogs/v8, and none of {names}"
        )
    return offers


# --- SkyPilot --------------------------------------------------------------------------------------------------------


def _skypilot(folder: Path, cloud: str) -> list[Offer]:
    """Return the offers of *cloud* in the file below *folder*; if there are several schema versions, in the newest one."""
    paths = [folder / cloud / "vms.csv", *folder.glob(f"*/{cloud}/vms.csv"), *folder.glob(f"catalogs/*/{cloud}/vms.csv")]
    numbered = [
        (int(match[1]) if (match := re.fullmatch(r"v(\d{1,9})", path.parent.parent.name)) else 0, path) for path in paths if path.is_file()
    ]
    return skypilot_offers(max(numbered)[1]) if numbered else []


def skypilot_offers(path: Path) -> list[Offer]:
    """Return the offers in the ``vms.csv`` *path*. Raise SpecError for anything else."""
    rows = csv_rows(csv_lines(path, _MOST), str(path))
    _, header = next(rows, (1, []))
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise SpecError(f"{path}:1: no column {', '.join(missing)}; this is not a vms.csv of SkyPilot's catalog")
    return [_offer(dict(zip(header, cells, strict=False)), f"{path}:{line}") for line, cells in rows]


def _offer(cells: dict[str, str], where: str) -> Offer:
    def number(name: str) -> float | None:
        return _price(cells[name], f"{where}: {name}") if cells.get(name) else None

    count = number("AcceleratorCount") or 0.0
    price, spot = (_usable(number(name), count) for name in ("Price", "SpotPrice"))
    instance, accelerator, region, zone = (
        cells.get(name, "") for name in ("InstanceType", "AcceleratorName", "Region", "AvailabilityZone")
    )
    return Offer(instance.lower(), accelerator, count, price, spot, region, zone, False, SKYPILOT)


def _price(text: str, where: str) -> float:
    return csv_number(text, where, "a price of 0 or more", lambda value: value >= 0)


def _usable(price: float | None, count: float) -> float | None:
    return price if price and price < PLACEHOLDER * max(count, 1.0) else None


# --- the providers of Karpenter --------------------------------------------------------------------------------------


class _Region(TypedDict):
    on_demand: dict[str, Annotated[float, Field(ge=0)]]
    spot: NotRequired[dict[str, Annotated[float, Field(ge=0)]]]


class _Regions(TypedDict):
    prices: dict[str, _Region]


def generated_offers(path: Path, repository: str = "") -> list[Offer]:
    """Return the offers in the Go file *path*, which is generated for Karpenter. Raise SpecError for anything else."""
    lines = decode(read_bytes(path, _MOST), str(path)).splitlines()
    day = next((match[1] for line in lines if (match := _GENERATED.search(line))), "")
    offers = [
        Offer(instance.lower(), "", 0.0, _usable(_price(price, where), 0.0), None, region, "", True, repository, day)
        for where, region, instance, price in _entries(lines, path)
    ]
    if not offers:
        raise SpecError(f"{path}: holds no prices by region; this is not a price list generated for Karpenter")
    return offers


_GENERATED: Final = re.compile(r"^// generated at (\d{4}-\d\d-\d\d)")
_REGION: Final = re.compile(r'"([^"]+)"\]?\s*(?::|= map\[string\]float64)\s*\{\s*$')
_ENTRY: Final = re.compile(r'"([^"]+)":\s*([^",{}\s]+)')


def _entries(lines: Sequence[str], path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield the place, region, instance type and price of each entry in *lines*."""
    region = ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("//"):
            continue
        if match := _REGION.search(line):
            region = match[1]
        elif region:
            for instance, price in _ENTRY.findall(line):
                yield f"{path}:{number}: {instance}", region, instance, price


def regional_offers(path: Path, repository: str = "") -> list[Offer]:
    """Return the offers in the JSON file *path*, which has on-demand and spot prices by region. Raise SpecError for anything else."""
    lists = check_type(_Regions, read_json(path, most=_MOST), str(path), "this is not a price list of Karpenter's provider for GCP")
    offers = []
    for region, prices in lists["prices"].items():
        for instance, on_demand in prices["on_demand"].items():
            spot = _usable(prices.get("spot", {}).get(instance), 0.0)
            offers.append(Offer(instance.lower(), "", 0.0, _usable(on_demand, 0.0), spot, region, "", True, repository))
    return offers


_KARPENTER: Final[dict[str, tuple[str, str, Callable[[Path, str], list[Offer]]]]] = {
    "aws": ("aws/karpenter-provider-aws", "zz_generated.pricing_aws.go", generated_offers),
    "azure": ("Azure/karpenter-provider-azure", "zz_generated.pricing.go", generated_offers),
    "gcp": ("cloudpilot-ai/karpenter-provider-gcp", "initial-prices.json", regional_offers),
}
"""Repository, file name and reader by provider."""


def _karpenter(folder: Path, cloud: str) -> list[Offer]:
    """Return the offers of *cloud* in Karpenter's price list below *folder*: the file itself, or a checkout of its repository."""
    if cloud not in _KARPENTER:
        return []
    repository, name, read = _KARPENTER[cloud]
    folders = [start / inner for start in (folder, *sorted(folder.glob("*"))) for inner in ("", "pkg/providers/pricing")]
    paths = (inside / name for inside in folders)
    return next((read(path, repository) for path in paths if path.is_file()), [])
