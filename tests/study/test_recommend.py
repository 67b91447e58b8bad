"""Which machine is cheapest or fastest? Oracle: brute force over every machine, number of nodes and market, with the total written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sim.analysis.transient import cloud_checkpoint_time, restore_time, survival
from sim.analysis.whole_job import START_UP, JobPlan
from sim.documents import RentalOptions, document, recommendation
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

SCENARIO = Scenario("", "resnet18")
EPOCHS = 10
NAMES = ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p3.8xlarge-two-islands", "dgx-1-v100"]


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
    lives = load_part(Lifetimes, "v100")
    parameters = load_workload("resnet18").spec.model.parameters
    job = SpotJob(
        work, (1.0,) * nodes, survival(lives), "wait", lives.start_up.total, lives.replacement, 0.0, parameters * 8 / 57.19e6, rate
    )
    outcomes = draw_courses(job, math.inf, 200)
    return sum(outcome.time for outcome in outcomes) / 200, sum(outcome.cost for outcome in outcomes) / 200


def test_the_catalog_is_searched_only_where_no_machine_runs(rows: list[ComparedMachine], monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Oracle: every interval of a fine grid, over the same lives; work in one or two pieces never ends."""
    advice = recommend(SCENARIO, pair, JobPlan(200), Budget(money=1e6), ("spot",))
    [candidate] = advice.ranked
    lives, nbytes = load_part(Lifetimes, "v100"), 8 * load_workload("resnet18").spec.model.parameters
    work = candidate.document["first_epoch"]["epoch_time_s"] + 199 * candidate.document["epoch_time_s"]
    job = SpotJob(
        work,
        (1.0, 1.0),
        survival(lives),
        "wait",
        lives.start_up.total,
        lives.replacement,
        cloud_checkpoint_time(nbytes),
        restore_time(nbytes),
    )
    grid = [work / 2**power for power in range(2, 12)]
    times = [sum(outcome.time for outcome in draw_courses(job, interval, 200)) / 200 for interval in grid]
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


def test_a_machine_that_runs_on_several_nodes_only_is_named_once() -> None:
    """By hand: what follows the number of nodes is the reason, which began with the machine's name again."""
    several = compare(SCENARIO, ["p3.16xlarge"], document, nodes=[2], global_batch=16)
    alone = replace(several[0], nodes=1, document=None, problem="p3.16xlarge: it does not fit")
    advice = recommend(SCENARIO, [*several, alone], JobPlan(1), Budget(money=1e6), ("on_demand",), global_batch=16)
    assert "p3.16xlarge: not on 1 node: it does not fit" in advice.notes


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
    assert "of the machines compared, only p3.2xlarge has a spot price" in recommend(SCENARIO, mixed, JobPlan(1), Budget(money=100.0)).notes
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


def test_what_is_as_cheap_is_not_said_to_fall_by_nothing(rows: list[ComparedMachine]) -> None:
    advice = recommend(SCENARIO, [rows[0], rows[0]], JobPlan(EPOCHS), Budget(time=1e6))
    assert any(note.endswith("would be chosen if its price fell by less than 0.1%") for note in advice.notes)


def test_global_batches_that_do_not_divide_are_told() -> None:
    """Oracle: 640 samples on 24 GPUs are 27 each, 648 together."""
    scenario = replace(SCENARIO, workload="resnet50", plan=JobPlan(90))
    told, _ = recommendation(scenario, RentalOptions(Budget(money=1e4), ["p3.16xlarge"], nodes=(1, 3)))
    [note] = [note for note in told["notes"] if "global batch of 640" in note]
    assert "640 to 648 where GPUs do not divide it" in note
