"""Which sizes does a scaling table run, and what of those that cannot? Oracles: products by hand, single runs."""

from __future__ import annotations

import pytest

from sim.spec.yaml import SpecError
from sim.study.scaling import answers, scaling
from sim.study.scenario import Scenario, answer

ALEXNET = Scenario("p3.2xlarge", "alexnet", ("dataset.samples=20000",))


def test_one_list_may_be_long() -> None:
    assert [(scenario.nodes, scenario.gpus) for scenario in scaling(ALEXNET, [1, 2], [])] == [(1, None), (2, None)]
    assert [(scenario.nodes, scenario.gpus) for scenario in scaling(ALEXNET, [2], [2, 4])] == [(2, 2), (2, 4)]
    assert scaling(ALEXNET, [], []) == [ALEXNET]
    with pytest.raises(SpecError, match="varies --nodes or --gpus, not both at once"):
        scaling(ALEXNET, [1, 2], [1, 2])


def test_points_are_single_runs() -> None:
    points = answers(scaling(ALEXNET, [1, 2], []))
    for point, nodes in zip(points, (1, 2), strict=True):
        alone = answer(Scenario("p3.2xlarge", "alexnet", ("dataset.samples=20000",), nodes=nodes)).run
        assert point.run is not None and point.run.jobs[0].warm.step_time == alone.jobs[0].warm.step_time


def test_a_size_that_cannot_run_says_why_and_the_others_go_on() -> None:
    said: list[tuple[int, int]] = []
    points = answers(
        scaling(Scenario("p3.8xlarge", "alexnet", ("dataset.samples=20000",)), [], [4, 5]),
        progress=lambda done, of: said.append((done, of)),
    )
    assert [point.run is not None for point in points] == [True, False]
    assert (points[1].gpus == 5 and points[1].brief in points[1].problem) or points[1].brief
    assert said == [(1, 2), (2, 2)]


def test_one_alone_that_cannot_run_is_an_error() -> None:
    with pytest.raises(SpecError, match="5"):
        answers(scaling(Scenario("p3.8xlarge", "alexnet"), [], [5]))
