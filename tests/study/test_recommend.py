"""Oracle: brute force over every machine, number of nodes and market, with the total written out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import stallsim
from sim.analysis.transient import checkpoint_time, restore_time, survival
from sim.analysis.whole_job import START_UP, JobPlan
from sim.api import recommend as stallsim_recommend
from sim.cli import main
from sim.documents import RentalOptions, document, recommendation
from sim.report.rows import run_row
from sim.report.verdict import first_epoch_sentence
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.lifetimes import Lifetimes
from sim.spec.memo import caching_inside
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, compare
from sim.study.one_batch import at_global_batch, usual_global_batch
from sim.study.ranges import whole_numbers
from sim.study.recommend import Budget, recommend
from sim.study.scenario import Scenario, prepare
from sim.study.transient import SpotJob, draw_courses
from sim.units import show

NAMES = ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p3.8xlarge-two-islands", "dgx-1-v100"]
SCENARIO = Scenario("", "resnet18")
EPOCHS = 10


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """Machines whose runs many tests ask for are read and simulated once."""
    with caching_inside():
        yield


@pytest.fixture(scope="module")
def rows() -> list[ComparedMachine]:
    return compare(SCENARIO, NAMES, document, nodes=[1, 2])


@pytest.fixture(scope="module")
def pair(rows: list[ComparedMachine]) -> list[ComparedMachine]:
    """The two nodes of one GPU whose spot figures are tested, because the best interval is searched for each requested machine."""
    return [row for row in rows if (row.hardware, row.nodes) == ("p3.2xlarge", 2)]


def brute_force(rows: list[ComparedMachine]) -> list[tuple[float, float, str, int, str]]:
    """(total time, cost, hardware, nodes, market) of everything that can be rented."""
    rentals = []
    for row in rows:
        prices = load_hardware(row.hardware).spec.groups[0].price
        if prices is None or row.document is None or row.hardware == "p3.8xlarge-two-islands":
            continue
        total = START_UP + row.document["first_epoch"]["epoch_time_s"] + (EPOCHS - 1) * row.document["epoch_time_s"]
        for market in ("on_demand", "spot"):
            rate = getattr(prices, market)
            nodes = row.document["nodes"]
            time, cost = (total, total * rate * nodes) if market == "on_demand" else on_spot(total - START_UP, rate, nodes)
            rentals.append((time, cost, row.hardware, nodes, market))
    return rentals


def on_spot(work: float, rate: float, nodes: int) -> tuple[float, float]:
    """Mean time and cost where revocations send all back to the beginning, as there are no checkpoints."""
    lives = load_part(Lifetimes, "v100", "hardware/parts/lifetimes")
    unpaid = lives.start_up.provisioning + lives.start_up.staging
    parameters = load_workload("resnet18").spec.model.parameters
    job = SpotJob(
        work, (1.0,) * nodes, survival(lives), "wait", lives.start_up.total, unpaid, lives.replacement, 0.0, parameters * 8 / 57.19e6, rate
    )
    outcomes = draw_courses(job, math.inf, 200)
    return sum(outcome.time for outcome in outcomes) / 200, sum(outcome.cost for outcome in outcomes) / 200


def test_the_catalogue_is_searched_only_where_no_machine_runs(rows: list[ComparedMachine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes longer than the rest, so it must not run if its result is not used."""
    monkeypatch.setattr("sim.study.recommend.nearest_that_runs", lambda *_: "searched")
    job_and_budget = JobPlan(EPOCHS, checkpoints=False), Budget(time=3600)
    assert "searched" not in recommend(SCENARIO, rows, *job_and_budget).notes
    assert recommend(SCENARIO, [replace(row, document=None) for row in rows], *job_and_budget).notes == ["searched"]


@pytest.mark.parametrize("hours", [0.2, 0.5, 1.0, 3.0])
def test_cheapest_within_the_time(rows: list[ComparedMachine], hours: float) -> None:
    advice = recommend(SCENARIO, rows, JobPlan(EPOCHS, checkpoints=False), Budget(time=hours * 3600))
    allowed = [rental for rental in brute_force(rows) if rental[0] <= hours * 3600]
    if not allowed:
        assert advice.best is None
        assert advice.nearest is not None
        assert advice.nearest.job.total == pytest.approx(min(rental[0] for rental in brute_force(rows)))
        return
    cheapest = min(allowed, key=lambda rental: rental[1])
    assert advice.best is not None
    assert (advice.best.hardware, advice.best.nodes, advice.best.market) == cheapest[2:]
    assert advice.best.cost == pytest.approx(cheapest[1])
    assert len([rental for rental in advice.ranked if advice.budget.allows(rental)]) == len(allowed)


@pytest.mark.parametrize("money", [1.0, 3.0, 10.0])
def test_fastest_within_the_money(rows: list[ComparedMachine], money: float) -> None:
    advice = recommend(SCENARIO, rows, JobPlan(EPOCHS, checkpoints=False), Budget(money=money))
    allowed = [rental for rental in brute_force(rows) if rental[1] <= money]
    assert (advice.best is None) == (not allowed)
    if advice.best is not None:
        assert advice.best.job.total == pytest.approx(min(rental[0] for rental in allowed))


@pytest.mark.parametrize("money", [1.0, 3.0, 10.0])
def test_most_epochs_of_a_job_of_given_hours_within_the_money(rows: list[ComparedMachine], money: float) -> None:
    hours, allowed = 0.5, []
    for row in rows:
        prices = load_hardware(row.hardware).spec.groups[0].price
        if prices is None or row.document is None or row.hardware == "p3.8xlarge-two-islands":
            continue
        left = hours * 3600 - START_UP - row.document["first_epoch"]["epoch_time_s"]
        epochs = 1 + left / row.document["epoch_time_s"] if left > 0 else 1 + left / row.document["first_epoch"]["epoch_time_s"]
        if prices.on_demand * hours * 3600 * row.document["nodes"] <= money:
            allowed.append((epochs, row.hardware, row.document["nodes"]))
    plan = JobPlan(None, checkpoints=False, time=hours * 3600)
    advice = recommend(SCENARIO, rows, plan, Budget(money=money), ("on_demand",))
    assert (advice.best is None) == (not allowed)
    if advice.best is not None:
        assert (advice.best.epochs, advice.best.hardware, advice.best.nodes) == (pytest.approx(max(allowed)[0]), *max(allowed)[1:])
        assert advice.best.job.total == pytest.approx(hours * 3600)
    with pytest.raises(SpecError, match="--hours and --budget-hours"):
        recommend(SCENARIO, rows, plan, Budget(time=3600.0))


def test_spot_checkpoints_as_often_as_costs_least(pair: list[ComparedMachine]) -> None:
    """Oracle: every interval of a fine grid, over the same lives."""
    advice = recommend(SCENARIO, pair, JobPlan(200), Budget(money=1e6), ("spot",))
    [candidate] = advice.ranked
    lives, nbytes = load_part(Lifetimes, "v100", "hardware/parts/lifetimes"), 8 * load_workload("resnet18").spec.model.parameters
    work = candidate.document["first_epoch"]["epoch_time_s"] + 199 * candidate.document["epoch_time_s"]
    job = SpotJob(
        work,
        (1.0, 1.0),
        survival(lives),
        "wait",
        lives.start_up.total,
        0.0,
        lives.replacement,
        checkpoint_time(nbytes),
        restore_time(nbytes),
    )
    times = [sum(outcome.time for outcome in draw_courses(job, work / pieces, 200)) / 200 for pieces in (2**power for power in range(12))]
    assert candidate.interval is not None and candidate.interval < work
    assert candidate.job.total <= min(times) * (1 + 1e-9)
    assert candidate.job.total == pytest.approx(min(times), rel=5e-3)
    assert candidate.job.revocations > 0


def test_spot_of_given_hours_does_fewer_epochs(pair: list[ComparedMachine]) -> None:
    """Oracle: the job of as many epochs takes those hours on average."""
    [candidate] = recommend(SCENARIO, pair, JobPlan(None, time=40 * 3600.0), Budget(money=1e6), ("spot",)).ranked
    assert candidate.job.total == pytest.approx(40 * 3600)
    [same] = recommend(SCENARIO, pair, JobPlan(candidate.epochs), Budget(money=1e6), ("spot",)).ranked
    assert same.job.total == pytest.approx(40 * 3600, rel=0.02)
    assert same.cost == pytest.approx(candidate.cost, rel=0.02)


@pytest.mark.parametrize("hours", [0.5, 1.0])
def test_the_runner_up_wins_where_its_price_is_said_to_fall_enough(rows: list[ComparedMachine], hours: float) -> None:
    """Oracle: recommending again, with the runner-up's costs at and beyond the price that is named."""
    budget = Budget(time=hours * 3600)
    advice = recommend(SCENARIO, rows, JobPlan(EPOCHS), budget)
    assert advice.best is not None and advice.runner_up is not None
    fall = float(
        next(note for note in advice.notes if "would be chosen if its price fell by" in note).split("fell by ")[1].removesuffix("%")
    )
    exact = 100 * (1 - advice.best.cost / advice.runner_up.cost)
    assert fall == pytest.approx(exact, rel=0.06)
    for factor, wins in ((1 - (exact - 0.5) / 100, False), (1 - (exact + 0.5) / 100, True)):
        cheaper = replace(advice.runner_up, cost=advice.runner_up.cost * factor)
        assert (min([advice.best, cheaper], key=budget.prefers) is cheaper) is wins


def test_three_nodes_are_found_where_they_are_cheapest() -> None:
    """Oracle: brute force over 1, 2, 3 and 4 nodes, within a time that two miss and three meet."""
    several = compare(SCENARIO, ["p3.8xlarge"], document, nodes=whole_numbers("1..4:4", "--nodes"))
    times = {nodes: time for time, _, _, nodes, market in brute_force(several) if market == "on_demand"}
    between = (times[2] + times[3]) / 2
    advice = recommend(SCENARIO, several, JobPlan(EPOCHS, checkpoints=False), Budget(time=between), ("on_demand",))
    allowed = [rental for rental in brute_force(several) if rental[0] <= between and rental[4] == "on_demand"]
    assert sorted(times) == [1, 2, 3, 4] and advice.best is not None
    assert advice.best.nodes == min(allowed, key=lambda rental: rental[1])[3] == 3
    assert "tried with 1, 2, 3 and 4 nodes; --nodes tries other counts" in advice.notes


def test_it_says_which_numbers_of_nodes_cannot_share_the_batch() -> None:
    several = compare(SCENARIO, ["p3.16xlarge"], document, nodes=[1, 2, 4], global_batch=8)
    advice = recommend(SCENARIO, several, JobPlan(1), Budget(money=1e6), ("on_demand",), global_batch=8)
    assert {candidate.nodes for candidate in advice.ranked} == {1} and not advice.left_out
    assert [
        note
        for note in advice.notes
        if note.startswith("p3.16xlarge: not on 2, 4 nodes: a global batch of 8 does not divide evenly over 16 GPUs")
    ]


def test_a_little_more_money_may_save_much_time(rows: list[ComparedMachine]) -> None:
    budget = Budget(money=1e6)
    advice = recommend(SCENARIO, rows, JobPlan(EPOCHS, checkpoints=False), budget)
    assert advice.best is not None
    near = [rental for rental in brute_force(rows) if rental[0] <= 1.1 * advice.best.job.total]
    cheapest = min(near, key=lambda rental: rental[1])
    said = [note for note in advice.notes if " costs " in note and " less and takes " in note]
    if cheapest[1] > 0.8 * advice.best.cost:
        assert not said
    else:
        assert said[0].startswith(f"{cheapest[2]} (") and f"costs {100 * (1 - cheapest[1] / advice.best.cost):.0f}% less" in said[0]


def test_it_says_whose_spot_prices_are_not_known() -> None:
    mixed = compare(SCENARIO, ["p3.2xlarge", "g4dn.xlarge", "g6e.xlarge"], document)
    assert "spot prices are available only for p3.2xlarge" in recommend(SCENARIO, mixed, JobPlan(1), Budget(money=100.0)).notes
    assert not any("spot price" in note for note in recommend(SCENARIO, mixed, JobPlan(1), Budget(money=100.0), ("on_demand",)).notes)
    assert "no spot price is available for g4dn.xlarge" in recommend(SCENARIO, mixed[:2], JobPlan(1), Budget(money=100.0)).notes


def test_spot_machines_of_unknown_lives_are_no_candidates_unless_a_mean_is_given() -> None:
    """Oracle: with ever longer lives, revocations vanish, and the spot market costs its share of the price on demand."""
    machines = compare(SCENARIO, ["p4d.24xlarge"], document)
    advice = recommend(SCENARIO, machines, JobPlan(EPOCHS), Budget(money=1e6))
    assert [candidate.market for candidate in advice.ranked] == ["on_demand"]
    assert any("p4d.24xlarge: no interruption data for spot machines; --mean-lifetime" in note for note in advice.notes)
    assert "no interruption data" in recommend(SCENARIO, machines, JobPlan(EPOCHS), Budget(money=1e6), ("spot",)).left_out["p4d.24xlarge"]
    times = []
    for mean in ("1 h", "100000 h"):
        given = recommend(SCENARIO, machines, JobPlan(EPOCHS), Budget(money=1e6), mean_lifetime=mean)
        spot, on_demand = sorted(given.ranked, key=lambda candidate: candidate.market != "spot")
        assert not any("no interruption data" in note for note in given.notes)
        times.append(spot.job.total)
    assert times[0] > times[1] == pytest.approx(on_demand.job.total, rel=0.05)
    with pytest.raises(SpecError, match="--mean-lifetime soon"):
        recommend(SCENARIO, machines, JobPlan(EPOCHS), Budget(money=1e6), mean_lifetime="soon")


def test_what_nobody_rents_is_left_out_with_the_reason(rows: list[ComparedMachine]) -> None:
    advice = recommend(SCENARIO, rows, JobPlan(EPOCHS), Budget(time=3600.0))
    assert "hypothetical" in advice.left_out["p3.8xlarge-two-islands"]
    assert "no on-demand or spot price specified" in advice.left_out["dgx-1-v100"]
    with pytest.raises(SpecError, match="one of the two"):
        recommend(SCENARIO, rows, JobPlan(1), Budget())


def test_a_price_that_a_message_suggests_is_taken() -> None:
    """The hint of a machine without a price, typed as it is written, makes the machine a candidate."""
    unpriced = replace(SCENARIO, hardware="", batch=32)
    advice = recommend(unpriced, compare(unpriced, ["dgx-1-v100"], document), JobPlan(1, checkpoints=False), Budget(money=1e6))
    said = advice.left_out["dgx-1-v100"]
    key, _, value = said.partition("--set ")[2].partition(" gives")[0].partition("=")
    priced = replace(unpriced, overrides=(f"{key}={value.strip(chr(39))}",))
    again = recommend(priced, compare(priced, ["dgx-1-v100"], document), JobPlan(1, checkpoints=False), Budget(money=1e6))
    assert again.best is not None and again.best.hardware == "dgx-1-v100"


def test_tokens_that_make_no_sense_are_refused_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.documents.compare", None)
    in_tokens = replace(SCENARIO, hardware="", plan=JobPlan(None, tokens=1e9))
    with pytest.raises(SpecError, match="resnet18 has no token sequences"):
        recommendation(in_tokens, RentalOptions(Budget(money=100.0), ["p3.2xlarge"]))
    with pytest.raises(SpecError, match="one step takes "):
        recommendation(
            replace(in_tokens, workload="llama-3.2-1b", plan=JobPlan(None, tokens=1000)), RentalOptions(Budget(money=100.0), ["p3.2xlarge"])
        )


def test_all_candidates_of_one_job_take_the_same_optimizer_steps() -> None:
    """Oracle: samples per optimizer step, GPUs times batch times passes; what does not divide within 5% is refused."""
    wrong = []
    for name in ("p3.2xlarge", "p3.8xlarge", "p3.16xlarge"):
        for nodes in (1, 2, 3, 7, 8):
            scenario = at_global_batch(replace(SCENARIO, hardware=name, nodes=nodes), 2048)
            contents = document(scenario)
            passes = int(scenario.overrides[-1].partition("=")[2])
            total = contents["gpus"] * contents["batch_per_gpu"] * passes
            if abs(total / 2048 - 1) > 0.05 or contents["batch_per_gpu"] > load_workload("resnet18").spec.training.batch:
                wrong.append((name, nodes, total))
    assert not wrong
    with pytest.raises(SpecError, match="a global batch of 8 does not divide evenly over 24 GPUs; --global-batch sets another"):
        at_global_batch(replace(SCENARIO, hardware="p3.16xlarge", nodes=3), 8)
    own = at_global_batch(replace(SCENARIO, hardware="p3.16xlarge", nodes=4, overrides=("training.batch=16",)), 128)
    assert prepare(own).jobs[0].workload.training.batch == 4  # on 32 GPUs, although the workload says 16
    small = at_global_batch(
        replace(SCENARIO, workload="resnet50", hardware="p2.xlarge", nodes=1, overrides=("node.gpu.memory=6 GiB",)), 640
    )
    contents = document(small)  # the workload's batch of 80 does not fit
    assert contents["batch_per_gpu"] < 80 and contents["batch_per_gpu"] * int(small.overrides[-1].partition("=")[2]) == pytest.approx(
        640, rel=0.05
    )
    assert usual_global_batch(SCENARIO) == 8 * load_workload("resnet18").spec.training.batch
    assert usual_global_batch(SCENARIO, 4) == usual_global_batch(SCENARIO)  # enough for each GPU of four nodes
    decoder = Scenario("", "llama-3.1-8b")  # a sample a GPU: 8 do not divide over two nodes of 8 GPUs
    assert (usual_global_batch(decoder), usual_global_batch(decoder, 4)) == (8, 32)


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
        recommendation(replace(SCENARIO, plan=JobPlan(EPOCHS)), RentalOptions(Budget(money=1e6), ["p3.8xlarge"], spares=1))


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


def test_what_is_as_cheap_is_not_said_to_fall_by_nothing(rows: list[ComparedMachine]) -> None:
    advice = recommend(SCENARIO, [rows[0], rows[0]], JobPlan(EPOCHS), Budget(time=1e6))
    assert any(note.endswith("would be chosen if its price fell by less than 0.1%") for note in advice.notes)
