"""Is a sweep's document its rows? Oracles: rows by hand, influence worked out on paper."""

from __future__ import annotations

from typing import Any

import pytest

from sim.events import STALLS
from sim.report.sweep import MOST, influence, sweep_document
from sim.study.scenario import Scenario


def row(rate: float, problem: str = "", **fields: str) -> dict[str, Any]:
    stalls = {f"{cause.value}_s": 0.0 for cause in STALLS} | {"compute_s": 1 / rate}
    figures = {"step_time_s": 1 / rate, "throughput_samples_per_s": rate, "epoch_time_s": 100 / rate, "cost_per_epoch_usd": None, **stalls}
    return {**fields, **({} if problem else figures), "problem": problem}


def document(rows: list[dict[str, Any]], *varied: str) -> dict[str, Any]:
    return sweep_document(Scenario("hw", "wl", ("a=1",), nodes=2), rows, varied, len(rows), {"hw": "f00"})


def test_numbers_are_read_out_of_values_with_units() -> None:
    contents = document([row(5.0, nic="12.5 Gbps", stack="apex", batch="-3e2")], "nic", "stack", "batch")["rows"][0]
    assert contents["numbers"] == {"nic": 12.5, "batch": -300.0}
    assert contents["point"] == {"nic": "12.5 Gbps", "stack": "apex", "batch": "-3e2"}
    assert contents["stalls_s"]["compute"] == 0.2 and contents["step_time_s"] == 0.2


def test_what_cannot_run_stands_apart() -> None:
    contents = document([row(5.0, nic="1"), row(5.0, "too large", nic="2")], "nic")
    assert [len(contents[key]) for key in ("rows", "left_out")] == [1, 1] and contents["left_out"][0]["problem"] == "too large"
    assert contents["given"] == ["nodes=2", "a=1"]


def test_a_long_sweep_is_thinned_evenly() -> None:
    rows = [row(1.0 + place, nic=str(place)) for place in range(3 * MOST)]
    contents = document(rows, "nic")
    assert contents["points"] == 3 * MOST and len(contents["rows"]) == MOST
    assert [shown_row["numbers"]["nic"] for shown_row in contents["rows"][:3]] == [0, 3, 6]


def test_influence_is_of_means_over_the_other_fields() -> None:
    """By hand: nic 1 gives 10 and 20, nic 2 gives 30 and 40: 35 over 15; batch a gives 20, batch b 30 in the mean."""
    rows = [row(rate, nic=nic, batch=batch) for rate, nic, batch in ((10, "1", "a"), (20, "1", "b"), (30, "2", "a"), (40, "2", "b"))]
    factors = document(rows, "nic", "batch")["influence"]
    assert factors == {"nic": pytest.approx(35 / 15), "batch": pytest.approx(30 / 20)}


def test_nothing_is_said_where_the_other_fields_differ_as_well() -> None:
    """Of points drawn at random, or where some of a grid cannot run, a field's values do not stand at the same points."""
    rows = document([row(10, nic="1", batch="a"), row(20, nic="2", batch="b"), row(1, "cannot", nic="2", batch="a")], "nic", "batch")
    assert rows["influence"] == {"nic": None, "batch": None}
    assert influence([], "nic") is None
