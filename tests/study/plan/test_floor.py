"""What are bounds of many layouts computed from, and how often? Against each layout by itself, and its recurrence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sim.spec.memo import caching_inside
from sim.study.plan import floor
from sim.study.plan.floor import floors
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import PlacedLayout, least_step
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario

EXPERTS = Scenario("hgx-h100", "mixtral-8x7b", stack="megatron-core", global_batch=288)


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> Counter[str]:
    """Count calls of the function *name* of `floor`."""
    calls, function = Counter[str](), getattr(floor, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(floor, name, call)
    return calls


def _share(layout: LayoutCandidate) -> tuple[object, ...]:
    """Return the share of the model, and the ranks that hold it, whatever the micro-batch and the schedule."""
    return *layout.split, layout.pipeline, layout.near, layout.checkpointing


def test_a_share_of_the_model_is_laid_out_once_for_all_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """288 samples have 18 divisors. Oracle: the memory of each layout by itself."""
    ((setting, every),) = prepare_plan(PlanQuestion(EXPERTS, (1,))).layouts
    calls = counted(monkeypatch, "prepare")
    memory = floors(setting, every, most=0.0).memory
    assert len({each.batch for each in every}) == 18
    assert calls["prepare"] == len({_share(each) for each in every}) < len({(_share(each), each.batch) for each in every}) / 5
    for place in range(0, len(every), 401):
        assert floors(setting, [every[place]], most=0.0).memory[0] == pytest.approx(memory[place], rel=1e-12)


def test_passes_are_timed_once_on_equal_gpus_of_any_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the bounds of each number of nodes alone."""
    questions = [PlanQuestion(EXPERTS, (nodes,), fixed={"ep": "8", "recompute": "none"}) for nodes in (4, 2)]
    calls = counted(monkeypatch, "compute_times_of")

    def timed(question: PlanQuestion) -> tuple[list[float], int]:
        ((setting, every),) = prepare_plan(question).layouts
        compute = floors(setting, every).compute.tolist()
        return compute, calls.pop("compute_times_of", 0)

    alone = [timed(question) for question in questions]
    with caching_inside():
        both = [timed(question) for question in questions]
    assert [compute for compute, _ in both] == [compute for compute, _ in alone]
    assert [count for _, count in both] == [alone[0][1], 0]  # whatever fits on two nodes is a share on four


def test_bounds_know_whether_gradients_are_reduced_before_they_are_added() -> None:
    """Oracle: the recurrence. ZeRO-2 adds shards beside compute, others whole gradients.

    With 2,048 micro-batches, bounds of ZeRO-2 were 1.11 times the recurrence.
    """
    scenario = Scenario(
        "hgx-h100", "llama-3.2-1b", ("model.sequence=512",), stack="megatron-deepspeed", precision="bf16", global_batch=2048
    )
    fixed = {"tp": "1", "pp": "1", "cp": "1", "batch": "1", "recompute": "blocks"}
    ((setting, every),) = prepare_plan(PlanQuestion(scenario, (1,), fixed=fixed)).layouts
    assert {each.shard for each in every} == {"none", "optimizer", "gradients", "parameters"}
    compute = dict(zip((each.shard for each in every), floors(setting, every).compute, strict=True))
    assert compute["none"] == compute["optimizer"] > compute["gradients"]
    for candidate, least in zip(every, floors(setting, every).time, strict=True):
        assert least <= least_step(PlacedLayout(setting, candidate), "time").time * (1 + 1e-9), candidate
