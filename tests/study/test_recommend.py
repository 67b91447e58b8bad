"""Oracle: brute force over every machine, number of nodes and market, with the total written out."""

from __future__ import annotations

import pytest

from sim.analysis.whole_job import START_UP, Plan
from sim.documents import document
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.study.compare import Row, compare
from sim.study.recommend import Budget, recommend
from sim.study.scenario import Scenario

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
            found.append((total, total * rate * row.document["nodes"], row.hardware, row.document["nodes"], market))
    return found


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
