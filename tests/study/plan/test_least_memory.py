"""Is the least memory of a layout never above what its replayed step needs, and close to it where backward recomputes blocks?"""

from __future__ import annotations

import random

import pytest

from sim.spec.yaml import SpecError
from sim.study.plan.floor import floors
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import PlacedLayout, memory_of
from sim.study.scenario import Scenario
from tests.study.plan.planned import ANY_SCHEDULE, WRAPPED

PAIRS = ("training.stack.mesh.paired_schedules=[1f1b, interleaved_1f1b, dualpipev]",)
QUESTIONS = {
    "experts": PlanQuestion(Scenario("coreweave-hgx-b200", "mixtral-8x7b", global_batch=256), (2,)),
    "dense": PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", global_batch=64), (2,), allowed=frozenset({"fp8", "selective"})),
    "schedules": PlanQuestion(
        Scenario("hgx-h100", "mixtral-8x7b", ANY_SCHEDULE, global_batch=64),
        (2,),
        allowed=frozenset({"zero_bubble", "gpipe", "selective", "no_sequence"}),
    ),
    "pairs": PlanQuestion(
        Scenario("hgx-h100", "deepseek-v2-lite", ANY_SCHEDULE + PAIRS, stack="megatron-core", global_batch=64),
        (2,),
        allowed=frozenset({"zero_bubble", "gpipe", "selective"}),
    ),
    "wraps": PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", WRAPPED, stack="torchtitan-2.x", global_batch=64), (2,)),
    "adapters": PlanQuestion(Scenario("hgx-h100", "llama-3.2-1b", ("model.lora={rank: 16}",), global_batch=32), (1,)),
    "zero": PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", stack="megatron-deepspeed", global_batch=64), (2,)),
    "nanotron": PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", stack="nanotron", global_batch=64), (2,)),
    "fsdp1": PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", stack="torch-fsdp1", global_batch=64), (2,)),
    "hybrid": PlanQuestion(Scenario("hgx-h100", "nemotron-h-56b", global_batch=64), (2,)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_least_memory_is_not_above_what_is_needed(name: str) -> None:
    """Oracle: each layout's replay of its step."""
    draw, compared, above = random.Random(name), 0, []
    for setting, every in prepare_plan(QUESTIONS[name]).layouts:
        chosen = draw.sample(list(every), min(40, len(every)))
        try:
            least = floors(setting, chosen, most=0.0).memory
        except (SpecError, AttributeError):  # the engine refuses all; plain data parallelism has no floors of this kind
            continue
        for candidate, memory in zip(chosen, least, strict=True):
            try:
                needed = memory_of(PlacedLayout(setting, candidate)).needed_bytes
            except SpecError:
                continue
            compared += 1
            if memory > needed * (1 + 1e-9):
                above.append((candidate, memory, needed))
    assert compared
    assert not above, above[:3]


@pytest.mark.parametrize(
    ("stack", "fixed", "share"),
    [
        ("megatron-core", {"pp": "2", "checkpointing": "blocks", "schedule": "1f1b"}, 0.9),  # a recomputed block, beside all inputs
        ("torchtitan-2.x", {"pp": "2", "schedule": "interleaved_1f1b", "virtual_stages": "4", "checkpointing": "none"}, 0.88),
    ],
)  # fmt: skip
def test_the_least_memory_is_close(stack: str, fixed: dict[str, str], share: float) -> None:
    """Oracle: the replay of each step. In the second case, gradients of all chunks wait for the last micro-batch."""
    question = PlanQuestion(Scenario("coreweave-hgx-b200", "mixtral-8x7b", stack=stack, global_batch=256), (2,), fixed=fixed)
    ((setting, every),) = prepare_plan(question).layouts
    chosen = random.Random(3).sample(list(every), min(100, len(every)))
    ratios = []
    for candidate, memory in zip(chosen, floors(setting, chosen, most=0.0).memory, strict=True):
        if memory < setting.hardware.first_workers.node.gpu.memory:
            ratios.append(memory / memory_of(PlacedLayout(setting, candidate)).needed_bytes)
    assert len(ratios) >= 5
    assert sorted(ratios)[len(ratios) // 2] >= share, sorted(ratios)
