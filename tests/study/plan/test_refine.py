"""What does it take to tell whether a layout fits? Not the program of each of its micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

from sim.mesh import layout_scene
from sim.study.plan import refine
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import PlacedLayout, fits, simulate_step
from sim.study.scenario import Scenario

BATCH = 2048


def test_whether_a_layout_fits_takes_few_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout fits whose simulation finds its memory to be enough; one GPU runs its many micro-batches one after another."""
    prepared = prepare_plan(PlanQuestion(Scenario("hgx-h100", "gpt2", stack="torchtitan-2.x", global_batch=BATCH), (1,), 2))
    (setting, candidates), *_ = prepared.layouts
    lowered: list[int] = []

    def noted(*arguments: Any) -> Any:
        scene = layout_scene(*arguments)
        lowered.append(max(map(len, scene.programs)))
        return scene

    many = [PlacedLayout(setting, each) for each in candidates if each.micro_batches >= BATCH // 4][:3]
    assert many
    monkeypatch.setattr(refine, "layout_scene", noted)
    for placed in many:
        assert fits(placed, None)
        assert lowered.pop() < placed.candidate.micro_batches
    assert simulate_step(many[0], None).played is not None
