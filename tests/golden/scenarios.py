"""Which runs have a golden document? Every scenario of `tests.study.knobs`, whole jobs, jobs side by side, and layouts."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from typing import Any

from sim.study.scenario import Scenario
from tests.study.knobs import SCENARIOS

_FEW = ("dataset.samples=20000", "training.batch=16", "input.loader=synthetic")
_TP = ("--tp", "parallel.tensor", 4)
_PP = ("--pp", "parallel.pipeline", 2)
_H100 = {"hardware": "hgx-h100", "workload": "llama-2-7b", "nodes": 2, "stack": "torchtitan-2.x"}
OTHERS = (
    Scenario("p3.16xlarge", "vgg16"),
    Scenario("p3.16xlarge", "resnet18-and-vgg16"),
    Scenario("p3.16xlarge", "hyperparameter-search", ("node.page_cache.policy=never_evict",)),
    Scenario("p3.8xlarge-two-islands", "resnet50", _FEW, nodes=2),
    Scenario("p3.8xlarge", "resnet50", (*_FEW, "training.gradient_accumulation_steps=4"), nodes=2, exact=True, fold=False),
    Scenario("p3.16xlarge", "resnet50", (*_FEW, "training.noise.compute_cv=0.05"), nodes=2, seed=7),
    Scenario("g4dn.12xlarge", "vgg11", _FEW, nodes=2, stack="gloo-ddp"),
    Scenario("p3.16xlarge", "resnet50", _FEW, nodes=2, stack="horovod-0.21"),
    Scenario("p3.16xlarge", "resnet50", (*_FEW, "training.stack.sync_batch_norm=true"), nodes=2),
    Scenario("p3.16xlarge", "resnet50", ("dataset.samples=20000",), nodes=2, gpus=12, global_batch=768, precision="amp_fp16"),
    Scenario("p4d.24xlarge", "bert-large-seq128", batch="max", market="spot"),
    Scenario(
        **_H100, layout=(_TP, _PP, ("--schedule", "parallel.schedule", "1f1b")), overrides=("training.gradient_accumulation_steps=8",)
    ),
    Scenario(**_H100, layout=(("--tp", "parallel.tensor", 8),)),
    Scenario(**_H100, layout=(("--shard", "parallel.shard", "parameters"), ("--replicate", "parallel.replicate", 2)), batch=1),
)
"""What the knobs' scenarios leave out: reading from disk at full size, jobs that share, islands, accumulation, Gloo, layouts."""


def scenarios() -> dict[str, Scenario]:
    """Return them by the name of their document, which changes with the scenario."""
    return {_name(scenario): scenario for scenario in (*SCENARIOS, *OTHERS)}


def said(scenario: Scenario) -> dict[str, Any]:
    """Return the fields of *scenario* that are not as by default, so that a new field of `Scenario` renames no document."""
    given = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
    plain = {field.name: field.default for field in fields(scenario)}
    return {name: value for name, value in given.items() if value != plain[name]}


def _name(scenario: Scenario) -> str:
    digest = hashlib.sha256(repr(said(scenario)).encode()).hexdigest()[:8]
    return re.sub(r"[^a-z0-9.]+", "-", f"{scenario.hardware}-{scenario.workload}-{digest}".lower())
