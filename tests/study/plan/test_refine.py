"""What does it take to refine a layout? It is prepared once, and whether it fits takes few of its micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

from sim.mesh import layout_scene
from sim.study.plan import refine
from sim.study.plan.prepared import MOST, PreparedLayout, PreparedLayouts
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import PlacedLayout, RefinedStep, StepBound, bound_step, fits, simulate_step
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


def test_a_layout_that_is_bounded_and_then_simulated_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is replayed once, too, and both are what a search that has prepared nothing else finds."""
    question = PlanQuestion(Scenario("hgx-h100", "gpt2", stack="megatron-core", global_batch=8), (1,), 2)
    ((setting, candidates),) = prepare_plan(question).layouts
    counted = {"prepare": 0, "memory_by_stage": 0}

    def count(name: str) -> None:
        called = getattr(refine, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return called(*arguments, **named)

        monkeypatch.setattr(refine, name, noted)

    for name in counted:
        count(name)
    placed = PlacedLayout(setting, next(each for each in candidates if each.pipeline == 2))
    bound, step = bound_step(placed, "time", None), simulate_step(placed, None)
    assert counted == {"prepare": 1, "memory_by_stage": 1}
    assert isinstance(bound, StepBound) and step.played is not None and bound.time <= step.played.time * (1 + 1e-9)
    ((other, _),) = prepare_plan(question).layouts
    alone = simulate_step(PlacedLayout(other, placed.candidate), None)
    assert isinstance(alone, RefinedStep) and alone.played is not None
    assert (alone.memory, alone.played.time) == (step.memory, step.played.time)


def test_only_the_last_layouts_are_kept() -> None:
    kept = PreparedLayouts()
    question = PlanQuestion(Scenario("hgx-h100", "gpt2", stack="megatron-core", global_batch=64), (1,))
    ((setting, candidates),) = prepare_plan(question).layouts
    made: list[int] = []

    def get(number: int) -> PreparedLayout:
        def make() -> PreparedLayout:
            made.append(number)
            return PreparedLayout(setting.workload, None)  # type: ignore[arg-type]

        return kept.get_or_make(candidates[0]._replace(batch=number), make)

    first = get(0)
    for number in range(1, MOST):
        get(number)
    assert get(0) is first and len(made) == MOST
    get(MOST)
    get(0)
    get(1)
    assert made == [*range(MOST + 1), 1]
