"""Do prices of the user's own stand in the place of the catalog's? Oracle: the same figures written with ``--set``."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import stallsim
from sim.cli import app, main
from sim.spec import extensions
from sim.spec.library import load_hardware
from sim.spec.own_prices import PriceOverride, prices_from_options
from sim.spec.yaml import SpecError
from sim.study.arguments import price_source

RATES = {"p3.16xlarge": 10.0, "p4d.24xlarge": 20.0}
MACHINES = ["p3.16xlarge", "p4d.24xlarge", "p3.8xlarge"]


class Source:
    """A source that answers what it is given."""

    name = "mine"

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, str]] = []

    def price(self, machine: str, provider: str, region: str) -> Any:
        self.asked.append((machine, provider, region))
        if self.answer is not None:
            return self.answer
        return {"on_demand": RATES[machine], "date": "2026-11-01"} if machine in RATES else None


class Failing(Source):
    def price(self, machine: str, provider: str, region: str) -> Any:
        return RATES["none"]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    extensions._given[extensions.PRICE_SOURCES.group].clear()


def test_costs_are_those_of_the_same_price_written_by_hand() -> None:
    source = Source()
    own = stallsim.run("p3.16xlarge", "resnet18", prices=source, epochs=3).document
    written = "{on_demand: 10.0 USD/h, date: 2026-11-01, source: price source mine}"
    by_hand = stallsim.run("p3.16xlarge", "resnet18", overrides={"price": written}, epochs=3).document
    assert own == by_hand
    assert source.asked and set(source.asked) == {("p3.16xlarge", "aws", load_hardware("p3.16xlarge").spec.groups[0].price.region)}  # type: ignore[union-attr]
    assert own["price"]["source"] == "price source mine" and own["price"]["date"] == "2026-11-01"


def test_what_the_source_does_not_know_keeps_its_price() -> None:
    own = stallsim.compare("resnet18", MACHINES, prices=Source()).set_index("hardware")
    plain = stallsim.compare("resnet18", MACHINES).set_index("hardware")
    for machine in MACHINES:
        was = load_hardware(machine).spec.groups[0].price.on_demand * 3600  # type: ignore[union-attr, operator]
        factor = RATES.get(machine, was) / was
        assert own.cost_per_epoch_usd[machine] == pytest.approx(factor * plain.cost_per_epoch_usd[machine], rel=1e-12)


def test_a_price_without_spot_leaves_no_spot_price_of_another_day() -> None:
    extensions.register(extensions.PRICE_SOURCES, Source())
    before, after = (load_hardware("p3.16xlarge", given).spec.groups[0].price for given in ([], [PriceOverride("mine")]))
    assert before is not None and before.spot is not None
    assert after is not None and after.spot is None and after.on_demand == pytest.approx(10 / 3600)


def test_layouts_recommendations_plans_and_weeks_take_it() -> None:
    rate = {"on_demand": 36.0, "spot": 18.0, "date": "2026-11", "source": "a quote"}
    laid = stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"shard": "parameters"}, prices=Source(rate))
    assert laid.document["price"] | {"region": None} == {
        "market": "on_demand", "usd_per_h": pytest.approx(36.0), "date": "2026-11", "region": None, "source": "price source mine: a quote",
    }  # fmt: skip
    rented = stallsim.recommend("resnet18", ["p3.16xlarge"], budget_hours=9, nodes=[1], prices=Source(rate), on_demand=True)
    assert rented.iloc[0]["total_cost_usd"] == pytest.approx(rented.iloc[0]["total_time_s"] * 36 / 3600)
    weeks = stallsim.goodput("hgx-h100", "gpt2-xl", days=2, nodes=2, batch=4, precision="amp_bf16", trials=5, spares=0, prices=Source(rate))
    assert weeks.attrs["cost_usd"] == pytest.approx(2 * 48 * 36)


def test_what_would_help_sweeps_and_spot_take_it_on_the_command_line(tmp_path: Path) -> None:
    rate = {"on_demand": 36.0, "spot": 18.0, "date": "2026-11"}
    price_source(Source(rate))
    few = ["--set", "dataset.samples=20000", "--prices", "mine"]

    def says(*words: str) -> Any:
        said = CliRunner().invoke(app, [*words], catch_exceptions=False)
        return said.stdout

    helped = json.loads(says("whatif", "p3.2xlarge", "resnet18", *few, "--json"))
    assert helped["cost_per_epoch_usd"] == pytest.approx(helped["epoch_time_s"] / 100)
    says("sweep", "p3.2xlarge", "resnet18", *few, "--vary", "nodes=1,2", "-o", str(tmp_path / "grid.csv"))
    rows = list(csv.DictReader((tmp_path / "grid.csv").read_text(encoding="utf-8").splitlines()))
    assert [float(row["cost_per_epoch_usd"]) / float(row["epoch_time_s"]) for row in rows] == pytest.approx([0.01, 0.02])
    spot = json.loads(says("spot", "p3.2xlarge", "resnet18", *few, "--epochs", "1", "--trials", "5", "--mean-lifetime", "20h", "--json"))
    assert {row["market"]: row["node_usd_per_h"] for row in spot["prices"]} == pytest.approx({"on_demand": 36.0, "spot": 18.0})


def test_a_price_that_is_set_wins() -> None:
    document = stallsim.run("p3.16xlarge", "resnet18", prices=Source(), overrides={"price.on_demand": "7 USD/h"}).document
    assert document["price"]["usd_per_h"] == pytest.approx(7.0)


def test_an_object_stays_in_this_process_whatever_the_number_of_processes() -> None:
    names = ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p4d.24xlarge", "g4dn.12xlarge", "p2.8xlarge"]
    table = stallsim.compare("resnet18", names, prices=Source({"on_demand": 1.0, "date": "2026"}), processes=2)
    assert "problem" not in table or table.problem.isna().all()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (12.5, "found 12.5; return a mapping such as {'on_demand': 12.5, 'date': '2026-11-01'}, or None"),
        ({"on_demand": 12.5, "currency": "EUR"}, "unknown key 'currency'; valid keys: on_demand, spot, date, spot_date, region, source"),
        ({"on_demand": 12.5}, "a date is missing; return on_demand or spot, and date"),
        ({"date": "2026-11-01"}, "a price is missing; return on_demand or spot, and date"),
        ({"on_demand": "12.5 USD/h", "date": "2026"}, "on_demand is '12.5 USD/h'; return USD per hour of one node, above 0"),
        ({"on_demand": float("nan"), "date": "2026"}, "on_demand is nan; return USD per hour of one node, above 0"),
        ({"on_demand": 1.0, "spot": -1, "date": "2026"}, "spot is -1; return USD"),
        ({"on_demand": 1.0, "date": "yesterday"}, "date yesterday is not a date; write YYYY-MM-DD, or"),
        ({"on_demand": 1.0, "date": "2026", "source": 4}, "source is 4; return text"),
    ],
)
def test_a_wrong_price_is_refused_in_a_sentence(answer: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("p3.16xlarge", "resnet18", prices=Source(answer))
    assert str(refused.value).startswith(f"prices=mine: p3.16xlarge: {message}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lost", "prices=lost: found 'lost'; none is installed; register one of your own (docs/develop/own-prices.md)"),
        (5, "the price source 5: does not follow PriceSource: it lacks name and price; see docs/develop/own-prices.md for an example"),
        (Failing(), "price source mine: KeyError: 'none'"),
    ],
)
def test_a_source_that_is_not_there_or_fails_is_told_of(source: object, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.compare("resnet18", ["p3.16xlarge"], prices=source)
    assert str(refused.value) == message


def test_a_price_that_is_said_is_that_machines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: with a price, dollars are hours times 1.50; the other machine keeps its own."""
    few = ["--set", "dataset.samples=20000", "--json"]
    as_it_is, said = [], []
    for rows, more in ((as_it_is, []), (said, ["--price", "p3.16xlarge=1.50 USD/h"])):
        assert main(["compare", "resnet18", "p3.16xlarge", "p3.8xlarge", *few, *more]) == 0
        rows += json.loads(capsys.readouterr().out)["rows"]
    before, after = ({row["hardware"]: row for row in rows} for rows in (as_it_is, said))
    assert after["p3.16xlarge"]["cost_per_epoch_usd"] == pytest.approx(1.5 / 3600 * after["p3.16xlarge"]["epoch_time_s"])
    assert after["p3.8xlarge"] | {"pareto": None} == before["p3.8xlarge"] | {"pareto": None}  # which the other's price may change
    table = stallsim.compare("resnet18", ["p3.16xlarge"], prices={"p3.16xlarge": "1.50 USD/h"}, overrides={"dataset.samples": 20000})
    assert table.cost_per_epoch_usd[0] == pytest.approx(after["p3.16xlarge"]["cost_per_epoch_usd"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["12 USD/h"], "--price '12 USD/h': write MACHINE=PRICE, for example p4d.24xlarge='14.90 USD/h'"),
        (["p3.2xlarge=12"], "--price p3.2xlarge: '12' has no unit; write for example '24.48 USD/h'"),
        (["p3.2xlarge=0 USD/h"], "--price p3.2xlarge: 0 USD/h: write more than 0"),
        (["p3.2xlrge=1 USD/h"], "--price p3.2xlrge: is not one of the compared machines; did you mean p3.2xlarge?"),
        (["p3.2xlarge=1 USD/h", "p3.2xlarge=2 USD/h"], "--price p3.2xlarge: found both 1 USD/h and 2 USD/h; write one of the two"),
        (["p3.2xlarge=1 USD/h", "--prices", "mine"], "--prices and --price: write one of the two"),
    ],
)
def test_said_prices_that_are_none_are_told(said: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [option for each in said for option in ((["--price"] if "=" in each or " " in each else []) + [each])]
    assert main(["compare", "resnet18", "p3.2xlarge", *options]) == 2
    assert words in capsys.readouterr().err


def test_the_price_of_a_file_names_its_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "box.yaml"
    path.write_text("extends: p3.2xlarge\nname: my-box\n")
    assert main(["compare", "resnet18", str(path), "--price", f"{path}=1 USD/h"]) == 2
    assert f"--price {path}: is a file; write the name of its machine, my-box" in capsys.readouterr().err


def test_the_price_of_a_rack_is_that_of_all_its_trays() -> None:
    price = prices_from_options(["coreweave-gb200-rack=700 USD/h"])
    (group,) = load_hardware("coreweave-gb200-rack", [PriceOverride(price)]).spec.groups
    assert group.price is not None
    assert group.price.on_demand == pytest.approx(700 / 3600)
