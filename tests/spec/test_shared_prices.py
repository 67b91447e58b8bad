"""Do the catalog's prices follow the shared table of prices? Oracle: its newest usable rows, read here; no price is written down.

Not usable, by its notes (prices_and_shapes.md): a spot price that is not below the on-demand price, and the price of a machine without a
date where the provider has a dated price for each of its GPUs.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from sim.spec import library
from sim.spec.catalog import catalog
from sim.spec.hardware import Hardware
from sim.spec.node_prices import Prices

TABLE = Path(__file__).resolve().parents[3] / "shared" / "facts" / "gpu_prices.csv"
pytestmark = pytest.mark.skipif(not TABLE.is_file(), reason="../shared is not beside this checkout")

Row = dict[str, str]
OLD = "2022-23"
"""Day of spot prices that the table does not have, of another snapshot; they are marked as old."""


UNNAMED = ("coreweave", "runpod")
"""Providers whose machines have no names in the table: their rows are found by GPU."""
ACCELERATORS = {
    "B200-SXM-180GB": "B200", "B300-SXM-288GB": "B300", "GB200-186GB": "GB200", "H100-SXM5-80GB": "H100-SXM", "H200-SXM-141GB": "H200-SXM",
}  # fmt: skip
"""The table's names of GPUs."""


def table() -> list[Row]:
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def row_of(machine: Hardware, rows: list[Row]) -> Row | None:
    """Return the newest usable row of *machine*; a price for each GPU times its GPUs, where there is no newer one of the whole."""
    names = {name.lower() for name in (machine.name, *machine.aliases)}
    own = next((row for row in rows if row["cloud"] == machine.provider and row["instance_type"].lower() in names), None)
    if own is None and machine.provider not in UNNAMED:
        return None
    node = machine.groups[0].node
    gpu = own["accelerator"] if own else ACCELERATORS.get(node.gpu.name)
    dated = [
        row for row in rows if (row["cloud"], row["accelerator"]) == (machine.provider, gpu) and row["on_demand_date"]
        and "community" not in row["instance_type"] and (own is None or "(per GPU" in row["instance_type"])
    ]  # fmt: skip
    if not dated or (own and own["on_demand_date"]):
        return own
    newest = max(dated, key=lambda row: row["on_demand_date"])
    times = node.gpu_count / int(newest["accelerator_count"])
    return newest | {"on_demand_usd_per_h": str(times * float(newest["on_demand_usd_per_h"])), "min_on_demand_any_region": ""}


def listed() -> list[tuple[str, Prices, Row]]:
    """Return the machines of the catalog that the table has, each with its price and its row."""
    rows, machines = table(), []
    for path in catalog("hardware").values():
        machine = library.load(Hardware, path).spec
        row, price = row_of(machine, rows), machine.groups[0].price
        if row is not None and price is not None and machine.groups[0].count == 1:
            machines.append((machine.name, price, row))
    return machines


def number(text: str) -> float | None:
    return float(text) if text else None


def per_hour(price: float | None) -> Any:
    return None if price is None else pytest.approx(3600 * price, rel=1e-5)


def day(row: Row, column: str) -> str:
    """Return the day in *column*; if the table has none, what it says of the snapshot: its year, or the month after which it was made."""
    since = re.search(r"undated, (?:after )?(\d{4}(?:-\d\d)*)", row["snapshot_date"])
    return row[column] or (since[1] if since else "")


def test_every_machine_of_the_table_has_its_prices_days_and_region() -> None:
    machines = listed()
    assert len(machines) > 100
    wrong = {}
    for name, price, row in machines:
        on_demand, spot = number(row["on_demand_usd_per_h"]), number(row["spot_usd_per_h"])
        usable = spot if spot is not None and (on_demand is None or spot < on_demand) else None
        expected = {
            "region": "" if "one price" in row["region"] else row["region"],
            "on demand": (on_demand, day(row, "on_demand_date") if on_demand else None),
            "spot": (usable, day(row, "spot_date") if usable else None),
        }
        given = {
            "region": price.region,
            "on demand": (per_hour(price.on_demand), price.date if price.on_demand else None),
            "spot": (per_hour(price.spot), price.day_of_spot if price.spot else None),
        }
        if usable is None and price.day_of_spot == OLD:
            expected.pop("spot"), given.pop("spot")
        if given != expected:
            wrong[name] = (given, expected)
    assert not wrong


def test_no_price_of_a_machine_in_the_table_is_an_estimate() -> None:
    assert not [name for name, price, _ in listed() if "estimate" in str(price.source)]


def test_the_lowest_price_of_any_region_is_the_table_s() -> None:
    """Not shown where the provider has one price for all regions, nor for prices for each GPU."""
    wrong = {}
    for name, price, row in listed():
        lowest = [number(row[column]) for column in ("min_on_demand_any_region", "min_spot_any_region")]
        on_demand = number(row["on_demand_usd_per_h"])
        if lowest[1] is not None and on_demand is not None and lowest[1] >= on_demand:
            lowest[1] = None
        if "one price" in row["region"] or "(per GPU" in row["instance_type"] or row["cloud"] in UNNAMED:
            lowest = [None, None]
        block = price.cheapest
        given = [per_hour(block.on_demand), per_hour(block.spot)] if block else [None, None]
        if given != lowest or (block and not ((block.date or not price.date) and block.source)):
            wrong[name] = (given, lowest)
        if block and block.on_demand and price.on_demand and block.on_demand == price.on_demand:
            assert block.region == price.region, name
    assert not wrong


def test_providers_of_the_table_with_known_machines_are_in_the_catalog() -> None:
    """The others have no machine whose processors, memory and kind of GPU the shared facts state."""
    providers = {library.load(Hardware, path).spec.provider for path in catalog("hardware").values()}
    assert {row["cloud"] for row in table()} - providers == {"akash", "crusoe", "ovhcloud", "paperspace", "vast"}
