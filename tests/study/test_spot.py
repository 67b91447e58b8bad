"""Does the whole path, from descriptions to dollars, meet Transient-DL's clusters? Oracle: its table (arXiv 1903.00045).

In: one K80 worker's measured speed (CM-DARE, 4.5892 steps/s), lives of 64 idle machines, prices of other runs. The speeds of more workers
are simulated. Transient-DL's durations hold no start-up, so it is taken off.
"""

from __future__ import annotations

from math import inf

import pytest

from sim.analysis.whole_job import JobPlan, WholeJob
from sim.documents import document
from sim.events import Cause
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer
from sim.study.spot import ExpectedOutcome, SpotAnswer, SpotRequest, expected_outcome, spot
from sim.study.transient import spread
from sim.study.whole_job import course

CLUSTER = ("groups.1.count=1",)


@pytest.fixture(scope="module")
def factor() -> float:
    """What layer times must be multiplied with for one worker to be as fast as measured."""
    alone = answer(Scenario("cm-dare-k80", "resnet32-cifar", CLUSTER, nodes=1, stack="tf-parameter-server")).run.jobs[0].warm
    return 1 + (1 / 4.5892 - alone.step_time) / alone.stalls[Cause.COMPUTE]


def cluster(workers: int, factor: float) -> SpotAnswer:
    sets = (*CLUSTER, f"training.compute_factor={factor!r}")
    scenario = Scenario("cm-dare-k80", "resnet32-cifar", sets, nodes=workers, stack="tf-parameter-server")
    return spot(scenario, SpotRequest(steps=64_000, interval="none", trials=2000), document, processes=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "time", "cost", "on_demand_time", "on_demand_cost"),
    [(2, 7764.5, 1.4108, 7172.4, 3.1656), (4, 3764.9, 1.1567, 3581.2, 3.0191), (8, 1840.5, 1.1145, 1829.9, 3.0126)],
)
def test_clusters_of_transient_dl(
    factor: float, workers: int, time: float, cost: float, on_demand_time: float, on_demand_cost: float
) -> None:
    """Aim: 15%. Reached with 2, 4, 8 workers: spot time 0, +2, +10%, cost -6, +5, +12%; on-demand time -1, +1, +8%, cost 0, +3, +12%.

    Eight workers queue more at the simulated server than they did, and start-up is paid for, which the published costs may leave out.
    """
    spot_answer = cluster(workers, factor)
    mean = spread(spot_answer.outcomes, lambda outcome: outcome.time).mean
    money = spread(spot_answer.outcomes, lambda outcome: outcome.cost).mean
    assert mean - spot_answer.job.start_up == pytest.approx(time, rel=0.15)
    assert money == pytest.approx(cost, rel=0.15)
    assert spot_answer.on_demand_time - 71.97 == pytest.approx(on_demand_time, rel=0.15)
    assert spot_answer.on_demand_cost == pytest.approx(on_demand_cost, rel=0.15)
    if workers == 8:
        assert spot_answer.on_demand_cost is not None
        assert 1 - money / spot_answer.on_demand_cost == pytest.approx(0.63, abs=0.02)


def test_a_price_that_is_given_and_a_mean_lifetime_take_the_place_of_unknown_ones() -> None:
    scenario = Scenario("p4d.24xlarge", "resnet50", ("price.spot=10 USD/h",))
    spot_answer = spot(scenario, SpotRequest(epochs=200, trials=200, mean_lifetime="5 h"), document, processes=1)
    assert spot_answer.job.price == pytest.approx(10 / 3600)
    assert spot_answer.interval < inf
    revocations = spread(spot_answer.outcomes, lambda outcome: outcome.revocations)
    hours = spread(spot_answer.outcomes, lambda outcome: outcome.time).mean / 3600
    assert revocations.mean == pytest.approx(hours / 5, abs=4 * revocations.error + 0.1)


def test_machines_are_paid_for_from_the_request_on_as_in_a_run() -> None:
    """Oracle: price x time, as in the whole job of `run` and in `recommend`; V100s have measured start-ups, and none is revoked here."""
    scenario, request = Scenario("p3.16xlarge", "vgg16"), SpotRequest(epochs=0.005, interval="none", trials=20, mean_lifetime="100000 h")
    spot_answer = spot(scenario, request, document, processes=1)
    assert spot_answer.on_demand_cost == pytest.approx(spot_answer.on_demand_time * 24.48 / 3600)
    for outcome in spot_answer.outcomes:
        assert outcome.revocations == 0 and outcome.cost == pytest.approx(outcome.time * spot_answer.job.price)
    plan = JobPlan(0.005, checkpoints=False, start_up=0.0)
    work = course(plan, spot_answer.document, spot_answer.machine, load_workload("vgg16").spec).parts
    drawn = expected_outcome(spot_answer.machine, load_workload("vgg16").spec, 1, work, False, spot_answer.job.price, 1e9)
    assert drawn is not None and drawn.cost == pytest.approx(drawn.time * spot_answer.job.price)


def test_a_job_with_too_many_revocations_to_draw_is_refused() -> None:
    """Oracle: the days that 10,000 lifetimes of an hour last."""
    request = SpotRequest(epochs=1e9, mean_lifetime="1 h")
    with pytest.raises(SpecError, match=r"--epochs 1e\+09: .* interruptions are expected, but at most 10,000 .* of 416 days or less"):
        spot(Scenario("p3.2xlarge", "resnet18"), request, document)
    with pytest.raises(SpecError, match=r"write a job of 2\.78 h or less"):
        spot(Scenario("p3.2xlarge", "resnet18"), SpotRequest(epochs=10, mean_lifetime="1 s"), document)


def test_a_job_without_checkpoints_that_outlives_all_machines_is_refused() -> None:
    with pytest.raises(SpecError, match="never ends"):
        spot(Scenario("p3.2xlarge", "resnet50", ()), SpotRequest(epochs=500, interval="none", trials=2), document, processes=1)


@pytest.mark.parametrize("nodes", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_means_of_a_long_job_are_those_of_its_part(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the whole job, drawn to its end; a job of 60 years ends as well, in proportion."""
    machine, workload = load_hardware("p3.8xlarge").spec, load_workload("vgg16").spec

    def outcome(work: float) -> ExpectedOutcome:
        job = WholeJob(75.0, work, 0.0, 0.0, 0.0)
        expected = expected_outcome(machine, workload, nodes, job, True, nodes * 4 / 3600, 20 * 3600.0)
        assert expected is not None
        return expected

    part, decades = outcome(3e6 / nodes), outcome(2e9)
    monkeypatch.setattr("sim.study.spot.EXPECTED_REVOCATIONS", 1e9)
    entire = outcome(3e6 / nodes)
    assert (part.time, part.cost) == pytest.approx((entire.time, entire.cost), rel=3e-3)
    assert decades.time / 2e9 == pytest.approx(entire.time / (3e6 / nodes), rel=5e-3)


def test_a_job_whose_checkpoints_no_machine_survives_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: a checkpoint of resnet50 takes 7.8 s, and one in exp(31) pairs of machines lives that long."""
    monkeypatch.setattr("sim.study.transient.draw_courses", lambda *_: pytest.fail("drawn"))
    request = SpotRequest(epochs=0.01, mean_lifetime="0.5 s")
    with pytest.raises(
        SpecError, match=r"machines are revoked every 250 ms on average, .* takes 7.8 s, .*; rent fewer workers, or rent on"
    ):
        spot(Scenario("p3.2xlarge", "resnet50", nodes=2), request, document)
