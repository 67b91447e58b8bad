"""Does a rank that runs alone record what the score needs? Oracles: the units and stages of the described model, and its parameters."""

from __future__ import annotations

import pytest

from calibration.lab.layout_score import layout_workload
from calibration.measure.ddp_steps import RankSteps, StepRequest, spawn
from calibration.measure.division import Division
from calibration.measure.layout_steps import LayoutRequest
from sim.parallel.units import units

pytestmark = [pytest.mark.needs("torch"), pytest.mark.nightly]

WANTED = StepRequest("calibration.measure.decoder:decoder", ("64:int64",), batch=2, steps=2, warmup=1, device="cpu")


def alone(layout: Division, rank: int) -> RankSteps:
    """The steps of one of two ranks."""
    [rank_steps] = spawn(WANTED, 1, program=("calibration.measure.layout_steps", LayoutRequest(layout, 2, rank).text()))
    return rank_steps


@pytest.mark.parametrize("layout", [Division(shard="parameters"), Division(tensor=2)])
def test_each_unit_of_the_described_model_is_timed(layout: Division) -> None:
    steps = alone(layout, 0)
    count = len(units(layout_workload(layout, 2).model))
    assert {*steps.parts} == {f"{part}{number}" for part in "FB" for number in range(count)} | {"update"}
    assert min(steps.parts.values()) > 0.0
    assert steps.parameters == layout_workload(layout, 2).model.parameters


def test_stages_hold_the_model_between_them() -> None:
    layout = Division(pipeline=2, micro_batches=2)
    stages = [alone(layout, rank) for rank in range(2)]
    for rank, one in enumerate(stages):
        assert {*one.parts} == {f"F of stage {rank}", f"B of stage {rank}", "idle", "update"}
    assert sum(one.parameters for one in stages) == layout_workload(layout, 2).model.parameters
