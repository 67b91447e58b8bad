"""Oracle: brute force over every machine, number of nodes and market, with the total written out."""

from __future__ import annotations

import math

import pytest

from sim.analysis.transient import survival
from sim.analysis.whole_job import START_UP, Plan
from sim.documents import document
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.lifetimes import Lifetimes
from sim.spec.yaml import SpecError
from sim.study.compare import Row, compare
from sim.study.recommend import Budget, recommend
from sim.study.scenario import Scenario
from sim.study.transient import SpotJob, courses

NAMES = ["p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p3.8xlarge-two-islands", "dgx-1-v100"]
ASKED = Scenario("", "resnet18")
EPOCHS = 10


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare(ASKED, NAMES, document, nodes=[1, 2])


def brute_force(rows: list[Row]) -> list[tuple[float, float, str, int, str]]:
    """(total time, cost, hardware, nodes, market) of everything that can be rented."""
    found = []
    for row in rows:
        prices = load_hardware(row.hardware).spec.groups[0].price
        if prices is None or row.document is None or row.hardware == "p3.8xlarge-two-islands":
            continue
        total = START_UP + row.document["first_epoch"]["epoch_time_s"] + (EPOCHS - 1) * row.document["epoch_time_s"]
        for market in ("on_demand", "spot"):
            rate = getattr(prices, market)
            nodes = row.document["nodes"]
            time, cost = (total, total * rate * nodes) if market == "on_demand" else on_spot(total - START_UP, rate, nodes)
            found.append((time, cost, row.hardware, nodes, market))
    return found


def on_spot(work: float, rate: float, nodes: int) -> tuple[float, float]:
    """Mean time and cost where revocations send all back to the beginning, as there are no checkpoints."""
    known = load_part(Lifetimes, "v100", "hardware/parts/lifetimes")
    unpaid = known.start_up.provisioning + known.start_up.staging
    parameters = load_workload("resnet18").spec.model.parameters
    job = SpotJob(
        work, (1.0,) * nodes, survival(known), "wait", known.start_up.total, unpaid, known.replacement, 0.0, parameters * 8 / 57.19e6, rate
    )
    outcomes = courses(job, math.inf, 200)
    return sum(outcome.time for outcome in outcomes) / 200, sum(outcome.cost for outcome in outcomes) / 200


@pytest.mark.parametrize("hours", [0.2, 0.5, 1.0, 3.0])
def test_cheapest_within_the_time(rows: list[Row], hours: float) -> None:
    found = recommend(ASKED, rows, Plan(EPOCHS, checkpoints=False), Budget(time=hours * 3600))
    allowed = [known for known in brute_force(rows) if known[0] <= hours * 3600]
    if not allowed:
        assert found.best is None
        assert found.nearest is not None
        assert found.nearest.job.total == pytest.approx(min(known[0] for known in brute_force(rows)))
        return
    cheapest = min(allowed, key=lambda known: known[1])
    assert found.best is not None
    assert (found.best.hardware, found.best.nodes, found.best.market) == cheapest[2:]
    assert found.best.cost == pytest.approx(cheapest[1])
    assert len([known for known in found.ranked if found.budget.allows(known)]) == len(allowed)


@pytest.mark.parametrize("money", [1.0, 3.0, 10.0])
def test_fastest_within_the_money(rows: list[Row], money: float) -> None:
    found = recommend(ASKED, rows, Plan(EPOCHS, checkpoints=False), Budget(money=money))
    allowed = [known for known in brute_force(rows) if known[1] <= money]
    assert (found.best is None) == (not allowed)
    if found.best is not None:
        assert found.best.job.total == pytest.approx(min(known[0] for known in allowed))


def test_what_nobody_rents_is_left_out_with_the_reason(rows: list[Row]) -> None:
    found = recommend(ASKED, rows, Plan(EPOCHS), Budget(time=3600.0))
    assert "hypothetical" in found.left_out["p3.8xlarge-two-islands"]
    assert "no price" in found.left_out["dgx-1-v100"]
    with pytest.raises(SpecError, match="one of the two"):
        recommend(ASKED, rows, Plan(1), Budget())
