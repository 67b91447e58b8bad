"""Are the figures of a recommendation those of the other commands? Power caps, failures, carbon, layouts. Oracle: the other commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import stallsim
from sim.analysis.whole_job import JobPlan
from sim.api import recommend as stallsim_recommend
from sim.cli import main
from sim.documents import RentalOptions, recommendation
from sim.report.rows import run_row
from sim.report.verdict import first_epoch_sentence
from sim.spec.memo import caching_inside
from sim.spec.yaml import SpecError
from sim.study.recommend import Budget
from sim.study.scenario import Scenario
from sim.units import show


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """Machines whose runs many tests ask for are read and simulated once."""
    with caching_inside():
        yield


def _printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*command, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_failures_are_those_of_run_and_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `run --with-failures` and `goodput` of the same job: the same drawn share, and time and cost but for the cold first epoch."""
    job = ["--epochs", "90", "--global-batch", "640"]
    weeks = _printed(["run", "p3.8xlarge", "resnet50", "--nodes", "2", *job, "--fast", "--with-failures"], capsys)["with_failures"]
    alone = _printed(["goodput", "p3.8xlarge", "resnet50", "--nodes", "2", *job, "--fast"], capsys)
    command = ["recommend", "resnet50", "p3.8xlarge", "--nodes", "2", *job, "--budget-hours", "48", "--with-failures"]
    candidates = _printed(command, capsys)["candidates"]
    on_demand, spot = (next(each for each in candidates if each["market"] == market) for market in ("on_demand", "spot"))
    assert on_demand["effective_share"] == weeks["effective_share"] == alone["effective_share"]
    assert on_demand["total_time_s"] == pytest.approx(86400 * weeks["days"], rel=2e-3)
    assert on_demand["total_cost_usd"] == pytest.approx(weeks["cost_usd"], rel=2e-3) == alone["cost_usd"]
    assert on_demand["energy_kwh"] == pytest.approx(weeks["energy_kwh"], rel=2e-3) and on_demand["grid"] == weeks["energy"]["grid"]
    assert spot["parts_s"]["failures"] > on_demand["parts_s"]["failures"] and spot["parts_s"]["revocations"] == 0
    revoked = _printed(["goodput", "p3.8xlarge", "resnet50", "--nodes", "2", *job, "--fast", "--market", "spot"], capsys)
    assert spot["effective_share"] == revoked["effective_share"]
    often = _printed([*command, "--reliability", "high"], capsys)
    assert next(each for each in often["candidates"] if each["market"] == "on_demand")["effective_share"] < weeks["effective_share"]
    assert any("at failure rate 'high'" in note for note in often["notes"])


def test_a_small_job_pays_for_no_idle_spare_unless_it_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the job of nodes that never fail costs nearly as much, and one spare of one node doubles that."""
    command = ["recommend", "resnet50", "p3.8xlarge", "--nodes", "1", "--epochs", "90", "--global-batch", "640", "--budget-hours", "48"]
    never, fails, spare = (
        _printed([*command, "--on-demand", *more], capsys) for more in ([], ["--with-failures"], ["--with-failures", "--spares", "1"])
    )
    plain, own, two = (printed["candidates"][0]["total_cost_usd"] for printed in (never, fails, spare))
    assert abs(own / plain - 1.0) < 0.01 and 1.97 < two / own < 2.01
    watched = _printed(["goodput", "p3.8xlarge", "resnet50", "--epochs", "90", "--fast", "--batch", "64"], capsys)["energy"]["node_power_w"]
    more = spare["candidates"][0]["energy_kwh"] / fails["candidates"][0]["energy_kwh"]
    assert more == pytest.approx(1 + watched["idle"] / watched["working"], rel=0.1)  # a spare waits, and draws for it
    assert "a failed machine is replaced within 1.25 min" in fails["notes"][0] and "1 spare node" in spare["notes"][0]
    with pytest.raises(SpecError, match="add --with-failures"):
        recommendation(Scenario("", "resnet18", plan=JobPlan(10)), RentalOptions(Budget(money=1e6), ["p3.8xlarge"], spares=1))


def test_failures_of_a_planned_layout_are_those_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `plan --with-failures`; its best may be better by the gap that the shorter search left."""
    sets = ["--set", "price.on_demand=20 USD/h", "--set", "node.gpu.memory=16 GiB", "--global-batch", "8", "--tokens", "10B"]
    planned = _printed(["plan", "hgx-h100", "llama-3.2-1b", *sets, "--with-failures", "--jobs", "1"], capsys)
    command = ["recommend", "llama-3.2-1b", "hgx-h100", "--nodes", "1", *sets, "--budget-hours", "5000", "--with-failures", "--jobs", "1"]
    best = _printed(command, capsys)["best"]
    weeks = planned["with_failures"]
    assert best["effective_share"] == pytest.approx(weeks["effective_share"], abs=1e-3)
    assert 86400 * weeks["days"] * (1 - 1e-3) <= best["total_time_s"] <= 86400 * weeks["days"] / (1 - best["layout_gap"]) * (1 + 1e-3)


def test_a_power_cap_is_told_of_each_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `run --power-cap` on the same machine."""
    run = _printed(["run", "p3.8xlarge", "resnet50", "--fast", "--power-cap", "200 W", "--global-batch", "256"], capsys)["energy"][
        "power_cap"
    ]
    rows = _printed(["compare", "resnet50", "p3.8xlarge", "--power-cap", "200 W", "--global-batch", "256"], capsys)["rows"]
    words = ["recommend", "resnet50", "p3.8xlarge", "--nodes", "1", "--power-cap", "200 W", "--global-batch", "256", "--budget-hours", "9"]
    candidates = _printed(words, capsys)["candidates"]
    assert run["step_time_s"] > run["step_time_without_s"]
    assert rows[0]["power_cap"] == run and all(each["power_cap"] == run for each in candidates)
    assert rows[0]["step_time_s"] == run["step_time_s"] and all(each["step_time_s"] == run["step_time_s"] for each in candidates)
    assert rows[0]["energy"]["energy_per_sample_j"] == pytest.approx(run["energy_per_sample_j"])


_LAYOUT = ["--nodes", "2", "--tp", "2", "--shard", "optimizer", "--batch", "1"]


@pytest.mark.parametrize(
    ("machine", "workload", "cap", "options"),
    [("p3.8xlarge", "resnet50", "200 W", ["--epochs", "3"]), ("hgx-h100", "llama-3.2-1b", "400 W", ["--tokens", "1B", *_LAYOUT])],
)
def test_a_run_under_a_power_cap_has_the_figures_of_a_comparison(
    machine: str, workload: str, cap: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the row of `compare`; the same names, and the same steps in text and Python."""
    capped = [*options, "--power-cap", cap]
    plain = _printed(["run", machine, workload, "--fast", *options], capsys)
    run = _printed(["run", machine, workload, "--fast", "--store", "object-store", *capped], capsys)
    row = _printed(["compare", workload, machine, *capped], capsys)["rows"][0]
    for name in ("step_time_s", "throughput_samples_per_s", "epoch_time_s", "stalls_s", "whole_job"):
        assert run[name] == row[name] != plain[name], name
    assert row["energy"].items() <= run["energy"].items() and run["energy"]["power_cap"] == row["power_cap"]
    assert run["checkpoint"]["step_time_beside_s"] >= run["step_time_s"] and run["checkpoint"]["cost_s"] >= run["checkpoint"]["blocking_s"]
    assert "without the power limit" in run["assumptions"][-1]
    assert main(["run", machine, workload, "--fast", *capped]) == 0
    assert f"step {show(run['step_time_s'], 'time')} " in capsys.readouterr().out


def test_the_first_epoch_in_a_verdict_is_the_one_under_the_power_cap(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the figures of the document, which differ with and without the cap."""
    command = ["run", "p3.8xlarge", "resnet50", "--fast", "--set", "node.storage.volume.bandwidth=100 MB/s"]
    sentences = []
    for cap in ([], ["--power-cap", "200 W"]):
        run = _printed([*command, *cap], capsys)
        sentences.append(first_epoch_sentence(run["first_epoch"]["epoch_time_s"], run["epoch_time_s"]))
        assert sentences[-1] and run["verdict"].endswith(sentences[-1])
        assert run["verdict"].startswith("Without the power limit: ") == bool(cap)  # its shares are of the step without the limit
    assert sentences[0] != sentences[1]
    assert not _printed([*command, "--power-cap", "900 W"], capsys)["verdict"].startswith("Without")  # which limits nothing


def test_steps_in_python_are_those_under_a_power_cap() -> None:
    """Oracle: the step of the figures of the cap itself."""
    alone = stallsim.run("p3.8xlarge", "resnet50", power_cap="200 W")
    laid = stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"shard": "parameters"}, power_cap="400 W")
    for result in (alone, laid):
        assert (
            result.step_time
            == result.document["energy"]["power_cap"]["step_time_s"]
            > result.document["energy"]["power_cap"]["step_time_without_s"]
        )
        assert result.throughput == result.document["throughput_samples_per_s"]


def test_checkpoints_of_a_layout_take_the_same_time_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: each of two nodes writes half to its own disk."""
    job = ["--tokens", "10B", *_LAYOUT, "--set", "price.on_demand=10 USD/h", "--set", "node.storage.volume=gp2"]
    run = _printed(["run", "hgx-h100", "llama-3.2-1b", *job], capsys)["whole_job"]["parts_s"]["checkpoints"]
    row = _printed(["compare", "llama-3.2-1b", "hgx-h100", *job], capsys)["rows"][0]["whole_job"]["parts_s"]["checkpoints"]
    command = ["recommend", "llama-3.2-1b", "hgx-h100", *job, "--on-demand", "--budget-hours", "9999"]
    assert run == row == _printed(command, capsys)["candidates"][0]["parts_s"]["checkpoints"] > 0


def test_carbon_is_of_a_named_grid_and_year(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the grid of the run itself, in the documents, in words, and in a row of a table."""
    run = _printed(["run", "p3.8xlarge", "resnet50", "--fast"], capsys)
    grid = run["energy"]["grid"]
    said = f"{1000 * grid['kg_per_kwh']:.0f} g/kWh, us-east-1, {grid['year']}"
    compared = ["compare", "resnet50", "p3.8xlarge"]
    command = ["recommend", "resnet50", "p3.8xlarge", "--nodes", "1", "--budget-hours", "9"]
    assert _printed(compared, capsys)["rows"][0]["energy"]["grid"] == _printed(command, capsys)["best"]["grid"] == grid
    for words in (compared, command):
        assert main(words) == 0 and said in capsys.readouterr().out
    assert run_row(run)["co2_of"] == said


@pytest.mark.parametrize("words", [["resnet50", "p3.8xlarge", "--global-batch", "256"], ["llama-3.2-1b", "hgx-h100", "--tp", "2"]])
def test_a_power_cap_that_never_binds_changes_no_figure(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the same command without one, jobs of epochs and of hours."""
    for length in (["--epochs", "3"], ["--hours", "20"]):
        plain, capped = (_printed(["compare", *words, *length, *more], capsys)["rows"][0] for more in ([], ["--power-cap", "3 kW"]))
        assert capped.pop("power_cap") and plain.pop("power_cap") is None
        for row in (plain, capped):
            row |= {"parts_s": row["whole_job"].pop("parts_s"), "grid": row["energy"].pop("grid")}
        assert plain.keys() == capped.keys()
        exact = ("price", "expected_error", "grid")
        for name, value in plain.items():
            assert capped[name] == (pytest.approx(value) if isinstance(value, dict | float) and name not in exact else value), name


@pytest.mark.nightly
def test_rankings_are_those_of_limited_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `run --power-cap` on each machine."""
    alike = ["--set", "price.on_demand=20 USD/h", "--precision", "amp_fp16"]
    names, cap = ["dgx-a100", "dgx-1-v100"], ["--power-cap", "160 W"]
    command = ["compare", "resnet50", *names, "--batch", "64", *alike]
    plain, capped = (_printed([*command, *more], capsys)["rows"] for more in ([], cap))
    alone = {
        name: _printed(["run", name, "resnet50", "--batch", "64", *alike, *cap], capsys)["energy"]["power_cap"]["step_time_s"]
        for name in names
    }
    assert {row["hardware"]: row["step_time_s"] for row in capped} == pytest.approx(alone)
    job = ["--nodes", "1", "--batch", "64", "--epochs", "9", "--on-demand", "--budget-hours", "90", *alike]
    before, after = (_printed(["recommend", "resnet50", *names, *job, *more], capsys)["candidates"] for more in ([], cap))
    for ranked in (capped, after):
        times = [row.get("epoch_time_s", row.get("total_time_s")) for row in ranked]
        assert times == sorted(times)
    ratio = {row["hardware"]: row["total_time_s"] for row in after}["dgx-a100"] / {row["hardware"]: row["total_time_s"] for row in before}[
        "dgx-a100"
    ]
    assert ratio > 1.05 and plain[0]["step_time_s"] < capped[0]["step_time_s"]


RENT = [
    "recommend",
    "llama-3.2-1b",
    "p4d.24xlarge",
    "--tokens",
    "1B",
    "--budget-usd",
    "1e6",
    "--nodes",
    "1..2",
    "--jobs",
    "1",
    "-q",
    "--json",
]


@pytest.mark.parametrize(("options", "fields", "keywords"), [
    (
        ["--tp", "2", "--shard", "parameters"], {"parallel.tensor": 2, "parallel.shard": "parameters"},
        {"parallel": {"tp": 2, "shard": "parameters"}},
    ),
    (
        ["--parallel", "pp=2", "--micro-batches", "4"], {"parallel.pipeline": 2, "gradient_accumulation_steps": 4},
        {"parallel": {"pp": 2}, "micro_batches": 4},
    ),
])  # fmt: skip
def test_layout_options_are_fields_of_the_workload(
    options: list[str], fields: dict[str, Any], keywords: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Written as --set, by the options of other commands, or in Python, it is one question."""
    documents = []
    for given in (options, [word for key, value in fields.items() for word in ("--set", f"training.{key}={value}")]):
        assert main([*RENT, *given]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    shown, written = ({key: document[key] for key in ("best", "candidates")} for document in documents)
    assert shown == written and shown["best"]["layout"]
    frame = stallsim_recommend("llama-3.2-1b", ["p4d.24xlarge"], tokens="1B", budget_usd=1e6, nodes=[1, 2], **keywords)
    assert frame.attrs["best"] == shown["best"] and len(frame) == len(shown["candidates"])


@pytest.mark.parametrize(("given", "note"), [
    (["--micro-batches", "16"], "the global batch is 64, as follows from --micro-batches 16; use --global-batch N instead to set another"),
    (["--batch", "2"], "the global batch is 8, as follows from --batch 2; use --global-batch N instead to set another"),
])  # fmt: skip
def test_a_written_batch_or_number_of_micro_batches_is_kept(given: list[str], note: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `run` of the same layout takes as long; 4 replicas of tensor 2 x batch x micro-batches."""
    job = ["--nodes", "1", "--tp", "2", "--shard", "optimizer", "--tokens", "1B", *given]
    run = _printed(["run", "hgx-h100", "llama-3.2-1b", *job], capsys)
    rented = _printed(
        ["recommend", "llama-3.2-1b", "hgx-h100", *job, "--set", "price.on_demand=20 USD/h", "--budget-usd", "1e6", "--jobs", "1"], capsys
    )
    assert rented["best"]["parts_s"]["first_epoch"] == pytest.approx(run["whole_job"]["parts_s"]["first_epoch"])
    assert note in rented["notes"]
    assert main(["recommend", "llama-3.2-1b", "hgx-h100", *job, "--global-batch", "8", "--budget-usd", "1e6"]) != 0
    assert f"{' '.join(given)} and --global-batch: write one of the two" in capsys.readouterr().err
