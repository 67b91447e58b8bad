"""Are results of long runs reported in suitable units, with the date of the price? Oracle: the document behind the text."""

from __future__ import annotations

import json

import pytest

import stallsim
from sim.cli import main
from sim.report.goodput import goodput_document, goodput_text
from sim.report.power_error import energy_intervals
from sim.report.weeks_energy import energy_error_text
from tests.study.weeks_asked import steps, weeks

SMALL = ["goodput", "p3.2xlarge", "resnet50", "--epochs", "1", "--fast", "--trials", "20"]


def test_small_jobs_are_told_in_small_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(SMALL) == 0
    rows = {line.strip().split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert float(rows["CO2, kg"][2]) == pytest.approx(document["co2_kg"], rel=0.1) and document["co2_kg"] > 0
    assert float(rows["energy, kWh"][2]) == pytest.approx(document["energy_kwh"], rel=0.1)
    assert float(rows["hours"][1]) == pytest.approx(24 * document["days"], rel=0.01)
    assert float(rows["cost, USD"][2]) == pytest.approx(document["cost_usd"], rel=0.01)
    assert rows["kept work"][2:4] == [f"{document['work_s'] / 3600:.2f}", "h"]


@pytest.mark.parametrize("command", [SMALL, ["run", "p3.2xlarge", "resnet50", "--fast"]])
def test_a_cost_is_told_with_the_day_of_its_price(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--json"]) == 0
    price = json.loads(capsys.readouterr().out)["price"]
    assert main(command) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if "price: $" in line)
    assert f"${price['usd_per_h']:.2f}/h, on-demand ({price['region']}, {price['date']}" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, ["waits for a checkpoint on the node's disk after each epoch, so it can take longer than with them"]),
        ({"evaluation": 0.5, "checkpoints": False}, ["evaluates after each epoch, which these figures leave out, so it can take longer"]),
        ({"checkpoints": False}, []),
    ],
)
def test_a_whole_job_that_is_longer_without_failures_is_explained(options: dict[str, object], says: list[str]) -> None:
    """Oracle: its own parts, of which the weeks have no checkpoints after epochs and no evaluation."""
    document = stallsim.run("p3.16xlarge", "vgg16", nodes=2, epochs=90, with_failures=True, **options).document
    notes = [note for note in document["with_failures"]["notes"] if "the whole job without failures" in note]
    assert len(notes) == len(says) and all(words in note for words, note in zip(says, notes, strict=True))
    longer = document["whole_job"]["time_s"] > 86400 * document["with_failures"]["days"]
    assert longer == bool(says)


def test_a_formula_outside_its_range_is_no_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    """Fifty faults a day on 16 nodes, each of which costs more than half an hour: Meta's formula would be below zero."""
    command = ["goodput", "hgx-h100", "gpt2-xl", "--nodes", "16", "--days", "2", "--failure-rate", "50 /d", "--trials", "20", "--fast"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "Meta's formula does not hold" in said and ": -" not in said.partition("Meta's formula")[2].partition("\n")[0]


def test_the_error_of_the_energy_is_told_beside_the_spread_of_runs() -> None:
    """Oracle: intervals of the ratios alone; a job of given days is as long as it is, so its step's error does not count."""
    given, done = (goodput_document(weeks(spares=16, **length)) for length in ({}, {"days": None, "epochs": 40.0}))
    for document, errors_of in ((given, ["power", "PUE"]), (done, ["power", "step", "PUE"])):
        spread = document["energy"]["with_errors"]
        assert spread["errors_of"] == errors_of
        ratios = energy_intervals(
            steps().power_error, document["expected_error"], document["energy"]["grid"], given_time=document is given
        )  # fmt: skip
        assert ratios is not None
        for key, of_ratio, predicted in (("energy_kwh", "energy", document["energy_kwh"]), ("co2_kg", "co2", document["co2_kg"])):
            (low, high), (inner_low, inner_high) = spread[key]["interval95"], spread[key]["interval50"]
            assert low < inner_low < inner_high < high
            assert [low / predicted, high / predicted] == pytest.approx(ratios[of_ratio]["interval95"], rel=0.06)  # runs differ by little
        assert "Energy: 95% between" in goodput_text(document)
    assert "unknown" in energy_error_text(given | {"energy": given["energy"] | {"with_errors": None}})


def test_a_default_of_spares_that_is_rounded_up_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One spare of two nodes is half of them; 1 of 20 nodes is exactly 5%."""
    job = ["gpt2-xl", "--batch", "4", "--days", "3", "--trials", "4", "--fast"]
    for nodes, says in (("2", "1 spare node, 5% of the nodes, rounded up (--spares)"), ("20", "1 spare node, 5% of the nodes (--spares)")):
        assert main(["goodput", "hgx-h100", *job, "--nodes", nodes]) == 0
        assert says in capsys.readouterr().out
    priced = ["--set", "price.on_demand=10 USD/h", "--nodes"]
    for nodes, says in (("4", "rounded up and 20% of the cost (--spares"), ("20", "1 spare node, 5% of the nodes (--spares")):
        assert main(["goodput", "hgx-h100", *job, *priced, nodes]) == 0
        assert says in capsys.readouterr().out


def test_slower_steps_are_mentioned_where_they_matter() -> None:
    """Of 300 ms that a checkpoint costs, 30 ms of slower steps are shown, and 3 ns are not."""
    document = goodput_document(weeks())
    for slowed, shown in ((0.03, True), (3e-9, False)):
        text = goodput_text(document | {"checkpoint": document["checkpoint"] | {"blocking_s": 0.3, "slowed_s": slowed}})
        assert ("of it from slower steps" in text) == shown


def test_revoked_machines_at_the_price_on_demand_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["goodput", "p3.16xlarge", "resnet50", "--nodes", "2", "--epochs", "1", "--trials", "4", "--fast", "--mean-lifetime", "20 h"]
    for market, told in (([], True), (["--market", "spot"], False)):
        assert main([*job, *market]) == 0
        assert ("they are paid at the price on demand (--market spot takes that of spot machines)" in capsys.readouterr().out) == told
