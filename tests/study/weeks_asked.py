"""A job of weeks that several tests ask about, and its steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from sim.documents import document
from sim.spec.library import load_hardware, load_workload
from sim.spec.parallel import Parallel
from sim.study.goodput import Goodput, simulate_weeks
from sim.study.options import Weeks
from sim.study.scenario import Scenario
from sim.study.weeks import Steps, steps_of

DAY = 86400.0
SCENARIO = Scenario("hgx-h100", "gpt2-xl", nodes=16, batch=4, precision="amp_bf16")


@cache
def steps(nodes: int = 16) -> Steps:
    described = document(replace(SCENARIO, nodes=nodes))
    return steps_of(described, load_hardware("hgx-h100").spec, load_workload("gpt2-xl").spec)


def weeks(**keys: object) -> Goodput:
    return simulate_weeks(steps(), Weeks(**({"days": 20.0, "trials": 60} | keys)), changes=False)  # type: ignore[arg-type]


def laid_out(nodes: int, layout: dict[str, object]) -> Steps:
    workload = steps().workload
    return steps()._replace(nodes=nodes, gpus=8 * nodes, workload=workload.with_training(parallel=Parallel.model_validate(layout)))
