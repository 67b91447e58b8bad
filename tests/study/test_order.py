"""Oracle: what a NIC, a price and a core can matter to by hand; which process computes what."""

from __future__ import annotations

import os
from functools import partial

import pytest

from sim.spec.memo import caching
from sim.study.order import compute_order
from sim.study.pool import each
from sim.study.scenario import Scenario
from sim.study.space import Point, axis, grid, sobol
from sim.study.sweep import scenario_at

VARIED = ["node.nic.bandwidth=10,40 Gbps", "batch=32,64", "price.on_demand=1,2,3 USD/h", "node.host.cpu.speed=0.8,1"]


def order(axes: list[str], nodes: int = 1) -> tuple[list[Point], int]:
    """Return the points of a grid in the order in which they are computed, and how many in a row share their epochs."""
    points = grid([axis(text) for text in axes])
    with caching(f"order {axes} {nodes}"):
        computed = compute_order(points, partial(scenario_at, Scenario("p3.8xlarge", "resnet18", nodes=nodes)))
    return sorted(points, key=computed.place), computed.group_size


@pytest.mark.parametrize(("nodes", "together"), [(1, 6), (2, 3)])
def test_points_that_share_epochs_follow_each_other(nodes: int, together: int) -> None:
    """By hand: a price decides no time, and a NIC none on one node."""
    points, alike = order(VARIED, nodes)
    matters = {"batch", "node.host.cpu.speed"} | ({"node.nic.bandwidth"} if nodes > 1 else set())
    epochs = [tuple(pair for pair in point if pair[0] in matters) for point in points]
    assert alike == together
    for start in range(0, len(points), together):
        assert len(set(epochs[start : start + together])) == 1
    assert len(set(epochs[::together])) == len(points) / together


def test_other_points_stay_in_their_order() -> None:
    """Where every field matters, where the first point cannot run, and where more points share an epoch than are remembered."""
    for axes in (
        ["batch=32,64", "node.host.cpu.speed=0.8,1"],
        ["batch=100000,64", "price.on_demand=1,2"],
        ["price.on_demand=1..2:999", "batch=8,9"],
    ):
        points, alike = order(axes)
        assert (points, alike) == (grid([axis(text) for text in axes]), 1)


def test_points_of_no_grid_stay_in_their_order() -> None:
    points = sobol([axis("price.on_demand=1..2"), axis("batch=8..64")], 8, 0)
    assert compute_order(points, partial(scenario_at, Scenario("p3.8xlarge", "resnet18"))).group_size == 1
    assert compute_order([], partial(scenario_at, Scenario("p3.8xlarge", "resnet18"))).group_size == 1


def _process(_: int) -> int:
    return os.getpid()


def test_what_shares_work_is_done_by_one_process() -> None:
    """Nine rows of five."""
    processes = list(each(_process, range(45), 2, group_size=5))
    assert all(len(set(processes[start : start + 5])) == 1 for start in range(0, 45, 5))
