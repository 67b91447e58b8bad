"""Is a lower bound below what is simulated, and does it say what cannot run? Against whole runs on machines of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sim.documents import document
from sim.spec.memo import caching
from sim.spec.yaml import SpecError
from sim.study.least_epoch import least_epoch
from sim.study.scenario import Scenario

MACHINES: Sequence[str] = ("p2.8xlarge", "p3.16xlarge", "g5.48xlarge", "gpu_8x_a100", "p5.48xlarge", "bm.gpu.mi355x.8", "a4-highgpu-8g")
SCENARIOS = (
    Scenario("", "resnet50"),
    Scenario("", "resnet50", ("input.loader=synthetic", "training.gradient_accumulation_steps=2")),
    Scenario("", "resnet50", ("input.num_workers=1",), batch=8),
    Scenario("", "vgg16", ("input.num_workers=0",), nodes=2, market="spot"),
    Scenario("", "resnet18", ("training.stack.servers.placement=colocated",), batch=4, stack="tf-parameter-server"),
    Scenario("", "llama-3.2-1b", ("training.parallel.shard=parameters", "training.activation_checkpointing=blocks")),
    Scenario("", "llama-3.2-1b", ("training.parallel.pipeline=4", "training.gradient_accumulation_steps=8"), precision="bf16"),
    Scenario("", "llama-3.2-1b", ("training.parallel.tensor=2", "training.parallel.shard=optimizer"), nodes=2),
)


@pytest.mark.parametrize("question", SCENARIOS, ids=lambda each: f"{each.workload} {' '.join(each.overrides)} {each.stack or ''}")
def test_bounds_are_below_the_run(question: Scenario) -> None:
    """Oracle: the simulator; nothing runs that is said not to."""
    wrong, ran = [], 0
    with caching("bounds"):
        for name in MACHINES:
            scenario = replace(question, hardware=name)
            bound = least_epoch(scenario)
            try:
                run = document(scenario)
            except SpecError:
                continue
            ran += 1
            time, cost = run["epoch_time_s"], run["cost_per_epoch_usd"]
            if bound is None or not 0 < bound.time <= time or (bound.cost is None) != (cost is None) or (bound.cost or 0) > (cost or 0):
                wrong.append((name, bound, time, cost))
    assert not wrong
    assert ran >= 2


def test_what_cannot_run_has_no_bound() -> None:
    assert least_epoch(Scenario("p3.16xlarge", "llama-3.1-8b")) is None
    assert least_epoch(Scenario("no-machine", "resnet50")) is None
    drawn = least_epoch(Scenario("p3.16xlarge", "resnet50", ("training.noise.draw=true",)))
    assert drawn is not None
    assert drawn.time == 0.0, "drawn steps may be faster than the mean"
