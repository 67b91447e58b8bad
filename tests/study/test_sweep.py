"""Oracle: runs one by one; an uninterrupted sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.documents import row
from sim.spec.yaml import SpecError
from sim.study.pool import each
from sim.study.scenario import Scenario
from sim.study.space import axis, grid
from sim.study.sweep import Done, at, sweep

BASE = Scenario("p3.8xlarge", "resnet18")
POINTS = grid([axis("node.nic.bandwidth=10,40 Gbps"), axis("batch=32,64")])


class Counting:
    """A run that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[Scenario] = []

    def __call__(self, scenario: Scenario) -> dict[str, Any]:
        self.asked.append(scenario)
        return {"step_time_s": float(len(scenario.overrides)), "batch": scenario.batch}


def test_rows_are_those_of_runs_one_by_one() -> None:
    found = sweep(BASE, POINTS, row)
    for point, known in zip(POINTS, found, strict=True):
        alone = row(at(BASE, point))
        assert {key: known[key] for key in alone} == alone
        assert known["problem"] == ""


@pytest.mark.parametrize(
    "axes",
    [
        ["node.gpu=K80,V100-SXM2-16GB", "node.nic.bandwidth=10,100 Gbps", "nodes=1,2,16"],
        ["training.stack=torch-1.13-ddp,gloo-ddp,horovod-0.21", "training.noise.draw=false,true", "dataset.samples=500,90000"],
        ["workload=resnet18,alexnet", "hardware=p2.xlarge,p3.8xlarge", "input.num_workers=1,4"],
    ],
)
def test_what_a_sweep_remembers_changes_no_row(axes: list[str]) -> None:
    """Oracle: runs one by one, to the last digit, whatever has been read, planned and priced for other points before."""
    points = grid([axis(text) for text in axes])
    for order in (points, points[::-1]):
        for point, known in zip(order, sweep(BASE, order, row, processes=1), strict=True):
            alone = row(at(BASE, point))
            assert {key: known[key] for key in alone} == alone


def test_another_sweep_reads_what_has_changed_since(tmp_path: Path) -> None:
    """By hand: twice the price in the file, twice the cost."""
    path, costs = tmp_path / "mine.yaml", []
    for price in (1, 2):
        path.write_text(f"extends: p3.2xlarge\nname: mine\nprice: {{on_demand: {price} USD/h, source: test}}\n")
        costs.append(sweep(Scenario(str(path), "resnet18"), grid([axis("batch=16")]), row, processes=1)[0]["cost_per_epoch_usd"])
    assert costs[1] == pytest.approx(2 * costs[0], rel=1e-12)


def test_several_processes_give_the_same_rows_in_the_same_order() -> None:
    points = grid([axis("batch=16,24,32,40,48,64")])
    assert sweep(BASE, points, row, processes=2) == sweep(BASE, points, row, processes=1)


def test_a_killed_sweep_goes_on_and_computes_nothing_twice(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.journal"
    whole = sweep(BASE, POINTS, Counting(), journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][: len(lines[2]) // 2])  # what kill -9 in the middle of a line leaves
    again, told = Counting(), []
    assert sweep(BASE, POINTS, again, journal, progress=told.append) == whole
    assert len(again.asked) == 2
    assert told[-1] == Done(4, 4, 2)
    third = Counting()
    assert sweep(BASE, POINTS, third, journal) == whole
    assert not third.asked


def test_a_journal_of_another_question_is_not_used(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.journal"
    sweep(BASE, POINTS, Counting(), journal)
    other = Counting()
    sweep(Scenario("p3.16xlarge", "resnet18"), POINTS, other, journal)
    assert len(other.asked) == len(POINTS)


def test_a_point_that_cannot_run_keeps_its_row() -> None:
    found = sweep(BASE, grid([axis("batch=32,100000")]), row)
    assert found[0]["problem"] == ""
    assert "GPU memory" in found[1]["problem"]


def test_options_must_be_numbers_where_numbers_are_due() -> None:
    with pytest.raises(SpecError, match="whole number"):
        at(BASE, (("nodes", "two"),))


def test_journal_lines_are_json(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.journal"
    sweep(BASE, POINTS[:1], Counting(), journal)
    assert set(json.loads(journal.read_text())) == {"key", "figures"}


def test_pool_refuses_no_processes() -> None:
    with pytest.raises(SpecError, match="1 or more"):
        list(each(str, [1, 2], 0))
