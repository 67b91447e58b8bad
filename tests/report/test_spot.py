"""Does a spot job's document say what was drawn? Oracles: quantiles of five courses by hand, texts of the picture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from sim.report.spot import QUANTILES, policy_in_words, slowdown_text, spot_document, spot_plot, spot_text
from sim.study.transient import POLICIES, DrawnCourse

COURSES = [DrawnCourse(3600.0 * hours, cost, revocations, 50.0 * revocations) for hours, cost, revocations in
           ((3, 1.5, 0), (1, 1.0, 0), (2, 1.2, 1), (5, 2.0, 3), (4, 1.6, 1))]  # fmt: skip

DOCUMENT = {
    "workload": "w", "stack": "s", "gpus": 2, "throughput_samples_per_s": 100.0, "assumptions": ["all of it"], "warnings": [], "seed": 0,
    "version": "1", "inputs_sha256": {},
}  # fmt: skip


def answered(on_demand_cost: float | None = 4.0) -> dict[str, Any]:
    job = SimpleNamespace(
        speeds=(50.0, 100.0), work=1000.0, checkpoint=2.0, restore=1.0, start_up=60.0, replacement=30.0, policy="wait"
    )  # fmt: skip
    answer: Any = SimpleNamespace(
        machine=SimpleNamespace(name="toy", groups=()), document=DOCUMENT, job=job, interval=300.0,
        outcomes=COURSES, on_demand_time=3600.0, on_demand_cost=on_demand_cost, notes=["a note"],
    )  # fmt: skip
    return spot_document(answer)


def test_means_and_quantiles_are_those_of_the_courses() -> None:
    document = answered()
    assert document["spot"]["time_s"]["mean"] == pytest.approx(3 * 3600) and document["spot"]["time_s"]["p50"] == 3 * 3600
    assert document["spot"]["cost_usd"]["mean"] == pytest.approx(1.46) and document["saving"] == pytest.approx(1 - 1.46 / 4)
    assert (document["spot"]["revocations"], document["spot"]["lost_s"]) == (1.0, 50.0 / 100)
    assert document["checkpoint"] == {"interval_s": 3.0, "interval_samples": 300.0, "count": 4, "write_s": 2.0, "read_s": 1.0}


def test_the_distribution_rises_from_the_least_to_the_most() -> None:
    """Five courses: a quarter of the way is the second of them, each figure by itself."""
    rows = {row["share"]: (row["time_s"] / 3600, row["cost_usd"]) for row in answered()["distribution"]}
    assert len(rows) == QUANTILES + 1
    assert [rows[share] for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [(1, 1.0), (2, 1.2), (3, 1.5), (4, 1.6), (5, 2.0)]


def test_the_text_compares_with_on_demand() -> None:
    text = spot_text(answered())
    assert "Spot saves 64% of the cost and takes 200% longer." in text and "a note" in text
    assert "Checkpoint every 3 s (4 in total, 2 s each)." in text
    assert "Spot costs 46% more and takes" in spot_text(answered(on_demand_cost=1.0))
    assert "of the cost" not in spot_text(answered(on_demand_cost=None))


def test_one_interruption_is_no_plural() -> None:
    document = answered()
    assert "  1 interruption is expected;" in spot_text(document)
    document["spot"]["revocations"] = 2.04
    assert "  2 interruptions are expected;" in spot_text(document)


def test_words() -> None:
    assert (slowdown_text(3.0, 2.0), slowdown_text(1.0, 2.0)) == ("50% longer", "50% less time")
    assert slowdown_text(100.2, 100.0) == slowdown_text(99.8, 100.0) == "as long"
    assert len({policy_in_words({"policy": policy}) for policy in POLICIES}) == len(POLICIES)


def test_the_picture_has_both_distributions() -> None:
    for cost in (4.0, None):
        svg = ElementTree.fromstring(spot_plot(answered(cost)).svg)
        texts = {"".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert {"hours", "USD", "spot", "on demand", "w on 2 spot toy"} <= texts
