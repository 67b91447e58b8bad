"""Runs whose pages are looked at, each simulated once for all tests."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sim.report.document import run_document
from sim.report.page.run import run_page
from sim.study.scenario import Answer, Scenario, answer

CASES = {
    "exchange": Scenario("p3.8xlarge", "vgg11", nodes=2),
    "one GPU": Scenario("p3.2xlarge", "alexnet"),
    "several jobs": Scenario("p3.16xlarge", "resnet18-and-vgg16"),
    "NVSwitch": Scenario("p4d.24xlarge", "resnet50", nodes=2, precision="amp_fp16"),
    "servers": Scenario("cm-dare-p100", "resnet50", stack="tf-parameter-server"),
    "drawn": Scenario("p3.8xlarge", "resnet50", ("training.noise.draw=true", "dataset.samples=40000")),
    "tokens": Scenario("p4d.24xlarge", "gpt3-125m"),
    "slow disk": Scenario("p3.16xlarge", "alexnet", ("node.host.memory=16 GiB",)),
}


@cache
def case_answer(case: str) -> Answer:
    return answer(CASES[case], thorough=case in ("exchange", "one GPU"), keep_rates=True)


@cache
def document(case: str) -> dict[str, Any]:
    own = case_answer(case)
    made: dict[str, Any] = json.loads(json.dumps(run_document(own.run, own.inputs, own.warnings, own.bottlenecks)))
    return made


@cache
def html(case: str) -> str:
    return run_page(case_answer(case).run, document(case), case_answer(case).bottlenecks)
