"""Are prices reported with their date, region and source? Oracle: the description of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sim.analysis.cost import Market
from sim.cli import main
from sim.report.prices import day_cell, price_lines, price_rows
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError


def test_rows_are_those_of_the_description() -> None:
    machine = load_hardware("p3.8xlarge").spec
    price = machine.groups[0].price
    assert price is not None and price.on_demand is not None and price.spot is not None and isinstance(price.source, Mapping)
    on_demand, spot = price_rows(machine, ("on_demand", "spot"))
    assert (on_demand["node_usd_per_h"], spot["node_usd_per_h"]) == (3600 * price.on_demand, 3600 * price.spot)
    assert (on_demand["date"], spot["date"]) == (price.date, price.spot_date) and price.date != price.spot_date
    assert (on_demand["source"], spot["source"]) == (price.source["*"], price.source["spot"])
    assert on_demand["region"] == spot["region"] == price.region


def test_a_price_copied_from_another_machine_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the answer, in what check says and in the source; not if it has been replaced."""
    path = tmp_path / "ours.yaml"
    path.write_text("extends: p3.8xlarge\nnode: {nic: {bandwidth: 5 Gbps}}\n")
    note = "price and region are copied from p3.8xlarge (us-east-1), which ours changes (--set price.on_demand='10 USD/h')"
    run = ["run", str(path), "resnet50", "--batch", "4", "--fast"]
    assert main(["check", str(path)]) == 0 and f"ours.yaml: {note}\n" in capsys.readouterr().out
    assert main(run) == 0 and f"    - {note}\n" in capsys.readouterr().out
    assert main([*run, "--set", "price.on_demand=10 USD/h"]) == 0 and "copied" not in capsys.readouterr().out
    (row,) = price_rows(load_hardware(str(path)).spec)
    assert row["source"].startswith("price of p3.8xlarge: aws/")
    assert main(["check", "p3.8xlarge", "2x-p3.8xlarge"]) == 0 and "copied" not in capsys.readouterr().out


def test_a_machine_without_a_price_has_no_row() -> None:
    assert price_rows(load_hardware("dgx-2").spec) == []


def test_machines_of_one_list_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSIM_TODAY", "2026-10-18")
    rows = [row for name in ("p3.2xlarge", "p3.8xlarge") for row in price_rows(load_hardware(name).spec)]
    (line,) = price_lines(rows)
    assert line.startswith("Prices on demand (us-east-1, 2026-07-20): p3.2xlarge, p3.8xlarge; ") and line.endswith(rows[0]["source"])
    monkeypatch.setenv("STALLSIM_TODAY", "2026-10-19")
    assert price_lines(rows)[0].startswith("Prices on demand (us-east-1, 2026-07-20, more than 90 days old): ")
    monkeypatch.setenv("STALLSIM_TODAY", "2026-07-18")
    assert price_lines(rows)[0].startswith("Prices on demand (us-east-1, 2026-07-20, in the future): ")
    assert day_cell("2026-07-20") == "2026-07-20, in the future" and day_cell("2026-07-19") == "2026-07-19"
    monkeypatch.setenv("STALLSIM_TODAY", "soon")
    with pytest.raises(SpecError, match="soon is not a date"):
        price_lines(rows)
    monkeypatch.delenv("STALLSIM_TODAY")
    (many,) = price_lines([{**rows[0], "hardware": name} for name in "abcdef"])
    assert ": a, b, c, d and 2 more; " in many


@pytest.mark.parametrize("market", ["on_demand", "spot"])
def test_the_line_of_a_written_price_names_its_option_and_no_day(market: Market, capsys: pytest.CaptureFixture[str]) -> None:
    key, command = f"price.{market}", ["run", "p4d.24xlarge", "resnet50", "--batch", "4", "--market", market.replace("_", "-")]
    assert main([*command, "--set", f"{key}=5 USD/h"]) == 0
    assert f"price: $5.00/h ($0.62 per GPU), {market.replace('_', '-')} (us-east-1, --set {key})\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "each"),
    [
        (["resnet50", "--placement", "8"], "($1.00 per GPU)"),
        (["resnet50", "--placement", "2"], "($4.00 per GPU used)"),
        (["gpt2", "--tp", "2", "--gpus", "2"], "($4.00 per GPU used)"),
        (["resnet50", "--placement", "1"], ""),
    ],
    ids=["whole node", "two of eight", "layout on two of eight", "one"],
)
def test_gpus_that_are_paid_for_but_idle_do_not_look_dear(command: list[str], each: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p4d.24xlarge", *command, "--batch", "4", "--set", "price.on_demand=8 USD/h"]) == 0
    assert f"price: $8.00/h{' ' * bool(each)}{each}, on-demand" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "days", "sources"),
    [
        ([], ("2026-07-20", "2026-04-02"), (False, False)),
        (["price.spot=5 USD/h"], ("2026-07-20", ""), (False, True)),
        (["price.on_demand=5 USD/h"], ("", "2026-04-02"), (True, False)),
        (["price.spot=5 USD/h", "price.on_demand=5 USD/h"], ("", ""), (True, True)),
        (["price.spot=5 USD/h", "price.spot_date=2026-11"], ("2026-07-20", "2026-11"), (False, True)),
    ],
)
def test_a_price_that_is_written_has_no_day_of_the_old_one(said: list[str], days: tuple[str, str], sources: tuple[bool, bool]) -> None:
    """What was not written keeps its day and source."""
    price = load_hardware("p4d.24xlarge", said).spec.groups[0].price
    assert price is not None
    assert (price.date, price.day_of_spot) == days
    assert isinstance(price.source, dict)
    price_sources = (price.source.get("on_demand"), price.source["spot"])
    assert tuple(source == f"--set price.{market}" for market, source in zip(("on_demand", "spot"), price_sources, strict=True)) == sources


def test_a_price_without_a_day_is_told_to_be_undated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text('extends: p3.2xlarge\nprice: {on_demand: 10 USD/h, source: "our contract"}\n')
    assert main(["run", str(path), "alexnet", "--fast"]) == 0
    assert "price: $10.00/h, on-demand (undated)\n" in capsys.readouterr().out
    (line,) = price_lines(price_rows(load_hardware(str(path)).spec))
    assert line == "Prices on demand (undated): ours; our contract" and day_cell("") == "undated"


def test_a_date_to_come_is_marked_by_check_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither refuses it: only a clock says that it is wrong. What is no date both refuse."""
    path = tmp_path / "mine.yaml"
    for day, code, says in (("2099-01-01", 0, ("is after today", "2099-01-01, in the future")), ("soon", 2, ("'soon' is not a date",) * 2)):
        path.write_text(f"extends: p3.2xlarge\nprice: {{on_demand: 10 USD/h, date: {day}}}\n")
        for words, told in zip((["check"], ["run"]), says, strict=True):
            assert main([*words, str(path), *(["alexnet", "--fast"] if words == ["run"] else [])]) == code
            assert told in "".join(capsys.readouterr())
