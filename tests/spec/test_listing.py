"""Oracle: the figures written in the toy documents, and filters judged by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec import catalog, listing
from sim.spec.listing import HARDWARE, WORKLOADS, export_row, select
from sim.spec.yaml import SpecError


@pytest.fixture
def shelves(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy library as the only catalog, with a cluster and a machine without a price."""
    servers = "{node: {extends: toy, gpu_count: 0}, role: server, price: {on_demand: 3 USD/h, date: 2026-07-20}}"
    (library / "hardware/two.yaml").write_text(f"name: two\ngroups: [{{node: toy, count: 3}}, {servers}]\n")
    (library / "hardware/priceless.yaml").write_text("extends: toy\nname: priceless\nprice: null\nnode: {nic: {count: 4}}\n")
    monkeypatch.setattr(catalog, "roots", lambda: [library])
    return library


def test_hardware_has_a_row_per_file(shelves: Path) -> None:
    rows, problems = listing.hardware_rows()
    assert problems == []
    toy = {"name": "toy", "provider": "nobody", "nodes": 1, "gpus": 2, "gpu": "Toy-GPU", "gpu_memory": 16.0 * 2**30, "nic": 3.125e9}
    unpriced = dict.fromkeys(("spot", "region", "priced", "spot_priced"))
    unpriced |= dict.fromkeys(f"cheapest{spot}{what}" for spot in ("", "_spot") for what in ("", "_region", "_of"))
    by_name = {row["name"]: row for row in rows}
    assert by_name["toy"] == {**toy, **unpriced, "price": pytest.approx(3 / 3600), "priced": "2026-07-20"}
    assert by_name["two"] == {
        **toy,
        "name": "two",
        "provider": "",
        "nodes": 4,
        "gpus": 6,
        "price": pytest.approx(12 / 3600),
        **unpriced,
        "priced": "2026-07-20",
    }
    assert by_name["priceless"] == {**toy, "name": "priceless", "nic": 12.5e9, "price": None, **unpriced}


def test_workloads_have_a_row_per_file_without_reading_layers(shelves: Path) -> None:
    path = shelves / "workloads/models/toy-net.yaml"
    path.write_text(path.read_text().replace("{name: one", "] {"))
    [row], problems = listing.workload_rows()
    assert [row[column.name] for column in WORKLOADS] == ["toy-job", "toy-net", 110, "pictures", 32, "fp32", "plain"]
    assert problems == []


def test_a_broken_file_does_not_hide_the_others(shelves: Path) -> None:
    (shelves / "hardware/broken.yaml").write_text("name: [")
    rows, problems = listing.hardware_rows()
    assert {row["name"] for row in rows} == {"toy", "two", "priceless"}
    assert problems == [f"{shelves}/hardware/broken.yaml:1:8: not valid YAML: did not find expected node content"]


def test_numbers_are_exported_with_their_unit(shelves: Path) -> None:
    [row] = select(listing.hardware_rows()[0], ["name=toy"], HARDWARE)
    assert export_row(row, HARDWARE) == {
        "name": "toy", "provider": "nobody", "nodes": 1, "gpus": 2, "gpu": "Toy-GPU",
        "gpu_memory_bytes": 16.0 * 2**30, "nic_bytes_per_s": 3.125e9, "price_usd_per_h": pytest.approx(3),
        "spot_usd_per_h": None, "price_region": None, "prices_of": "2026-07-20", "spot_price_of": None,
    }  # fmt: skip


def test_cells_are_written_for_people(shelves: Path) -> None:
    rows = {row["name"]: row for row in listing.hardware_rows()[0]}
    shown = [column.format(rows["priceless"][column.name]) for column in HARDWARE]
    assert shown == ["priceless", "nobody", "1", "2", "Toy-GPU", "16 GiB", "100 Gbps", "-", "-", "-", "-", "-"]
    assert WORKLOADS[2].format(1_234_567) == "1,234,567"


FILTERS = {
    "gpus=2": {"toy", "priceless"},
    "gpus == 2": {"toy", "priceless"},
    "gpus!=2": {"two"},
    "gpus>2": {"two"},
    "gpus>=2": {"toy", "two", "priceless"},
    "gpus<6": {"toy", "priceless"},
    "gpus<=6": {"toy", "two", "priceless"},
    "gpus=3..8": {"two"},
    "gpus=2..6": {"toy", "two", "priceless"},
    "gpus!=3..8": {"toy", "priceless"},
    "price=3 USD/h..12 USD/h": {"toy", "two"},
    "price!=3 USD/h..4 USD/h": {"two", "priceless"},
    "name=T*": {"toy", "two"},
    "name!=toy": {"two", "priceless"},
    "gpu=TOY-gpu": {"toy", "two", "priceless"},
    "gpu=toy": {"toy", "two", "priceless"},
    "gpu!=toy": set(),
    "gpu=to": set(),
    "name=toy": {"toy"},
    "provider=nobody": {"toy", "priceless"},
    "nic=25Gbps": {"toy", "two"},
    "nic>3.2 GB/s": {"priceless"},
    "gpu_memory>=16 GiB": {"toy", "two", "priceless"},
    "price<4 USD/h": {"toy"},
    "price!=3 USD/h": {"two", "priceless"},
    "price_usd_per_h=12": {"two"},
    "nic_bytes_per_s<=3125000000": {"toy", "two"},
}


@pytest.mark.parametrize("text", FILTERS)
def test_filters_choose_rows(text: str, shelves: Path) -> None:
    assert {str(row["name"]) for row in select(listing.hardware_rows()[0], [text], HARDWARE)} == FILTERS[text]


def test_all_filters_must_hold(shelves: Path) -> None:
    rows = select(listing.hardware_rows()[0], ["gpus=2", "price<4 USD/h"], HARDWARE)
    assert [row["name"] for row in rows] == ["toy"]


def test_whole_words_count_only_where_no_value_is_met_whole() -> None:
    """Judged by hand: V100 is the first word of two; L4 is a value of its own, so L40S and L4-24GB are others."""
    rows: list[listing.Row] = [{"gpu": name} for name in ("V100-SXM2-16GB", "V100-PCIe-16GB", "L4", "L40S", "L4-24GB")]
    columns = (listing.Column("gpu", "GPU"),)
    assert [row["gpu"] for row in select(rows, ["gpu=v100"], columns)] == ["V100-SXM2-16GB", "V100-PCIe-16GB"]
    assert [row["gpu"] for row in select(rows, ["gpu=l4"], columns)] == ["L4"]
    assert [row["gpu"] for row in select(rows, ["gpu=16GB"], columns)] == ["V100-SXM2-16GB", "V100-PCIe-16GB"]
    assert select(rows, ["gpu=V10"], columns) == []
    assert [row["gpu"] for row in select(rows, ["gpu=L4,L40S"], columns)] == ["L4", "L40S"]
    assert [row["gpu"] for row in select(rows, ["gpu!=L4,L40S"], columns)] == ["V100-SXM2-16GB", "V100-PCIe-16GB", "L4-24GB"]


def test_a_misspelled_text_in_a_list_is_an_error(shelves: Path) -> None:
    """It would silently leave out what was meant, such as all machines of a provider; on its own, the caller says that nothing is left."""
    rows = listing.hardware_rows()[0]
    with pytest.raises(SpecError, match=r"^--where name=toy,priceles: no row matches name=priceles; did you mean priceless\?$"):
        select(rows, ["name=toy,priceles"], HARDWARE)
    assert len(select(rows, ["name!=toy,priceles"], HARDWARE)) == 2
    assert len(select(rows, ["gpus=2,3"], HARDWARE)) == 2


MESSAGES = {
    "gpus": "--where gpus: write NAME=VALUE, for example provider=... or nodes=8; also with != < <= > >=",
    "gpus=": "--where gpus=: write NAME=VALUE, for example provider=... or nodes=8; also with != < <= > >=",
    "gpuss=8": "--where gpuss=8: no column 'gpuss'; did you mean 'gpus'?",
    "zzz=8": "--where zzz=8: no column 'zzz'; columns: name, provider, nodes, gpus, gpu, gpu_memory, nic, price, spot, "
    "region, priced, spot_priced",
    "gpus=many": "--where gpus=many: 'many' is not a number",
    "gpus=1-8": "--where gpus=1-8: '1-8' is not a number; write a range as gpus=1..8",
    "gpus=1..many": "--where gpus=1..many: 'many' is not a number",
    "gpus=8..1": "--where gpus=8..1: the range ends before it begins; write gpus=1..8",
    "gpu>v": "--where gpu>v: gpu is text; write gpu=v or gpu!=v",
    "price<10": "--where price<10: '10' has no unit; write for example '24.48 USD/h' (units: USD/h, USD/s)",
    "price<3 GB": "--where price<3 GB: 'GB' is a unit of size, expected a price; write for example '24.48 USD/h' (units: USD/h, USD/s)",
}


@pytest.mark.parametrize("text", MESSAGES)
def test_filters_that_make_no_sense(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        select([], [text], HARDWARE)
    assert str(caught.value) == MESSAGES[text]


def test_a_price_without_a_date_says_so() -> None:
    columns = {column.name: column for column in HARDWARE}
    assert [columns["priced"].format(value) for value in ("", None, "2026-07")] == ["undated", "-", "2026-07"]
    assert columns["provider"].format("") == ""


def test_every_file_of_the_catalog_has_a_row() -> None:
    for folder, rows_of in (("hardware", listing.hardware_rows), ("workloads", listing.workload_rows)):
        rows, problems = rows_of()
        assert problems == []
        assert len(rows) == len(catalog.catalog(folder))
