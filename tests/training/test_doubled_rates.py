"""Do all times halve where all rates double and all times of the descriptions halve? Oracle: dimensional analysis.

A step is a function of times and rates alone, so that its own time must halve too. What keeps it from doing so are constants that the
descriptions do not contain: NCCL's tables (µs and GB/s), by which it chooses algorithms, protocols and channels, and the rate at which one
thread pins memory. The tests name them: with those doubled as well, every step halves to the last digits; without, only NCCL's choice
may differ.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from sim.simulate import Run, simulate
from sim.spec.fields import Dimension
from sim.spec.hardware import Gpu
from sim.study.faster import faster
from sim.study.scenario import Scenario, prepare
from sim.training import input_pipeline
from sim.training.collectives.nccl import cost, search, threshold

_TIMES, _RATES = {"time", "time per byte"}, {"bandwidth", "bit rate", "compute rate", "rate"}
_PER_SECOND = {"indexed_elements", "exponentials", "scan_rate", "delta_rate"}
"""Rates that are written without a unit."""
_WORKLOAD = ("cpu", "launch")
"""Resources whose work the workload describes; the others are the hardware's."""

CASES = {
    "one node of NVLink pairs": Scenario("p3.16xlarge", "vgg16"),
    "trees and rings between nodes": Scenario("p3.16xlarge", "resnet50", nodes=2),
    "a slow network": Scenario("p3.8xlarge", "alexnet", nodes=2),
    "PCIe: the choice differs": Scenario("p2.8xlarge", "resnet18"),
    "GPUs that decode": Scenario("dgx-a100", "resnet50", ("input.loader=dali_gpu",)),
    "sockets": Scenario("g4dn.12xlarge", "bert-base-seq128", nodes=4),
    "EFA": Scenario("p4d.24xlarge", "bert-large-seq384", nodes=4),
    "NVSwitch reductions: the choice differs": Scenario("hgx-h100", "gpt2-xl", nodes=8),
    "small buckets: the choice differs": Scenario("cm-dare-p100", "resnet15-cifar"),
    "xGMI": Scenario("cray-ex235a", "resnet50", nodes=2),
}


def _dimension(annotation: object) -> str | None:
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, Dimension):
            return part.name
    return next((name for part in get_args(annotation) if (name := _dimension(part))), None)


def _doubled(value: Any, dimension: str | None = None) -> Any:
    """Return *value* with every rate in it doubled and every time halved."""
    if isinstance(value, BaseModel):
        update = {}
        for name, field in type(value).model_fields.items():
            own = next((part.name for part in field.metadata if isinstance(part, Dimension)), None)
            rate = "rate" if name in _PER_SECOND else None
            update[name] = _doubled(getattr(value, name), rate or own or _dimension(field.annotation))
        if isinstance(value, Gpu):  # curves over the time of a kernel
            update["efficiency"] = {
                operators: {peak: tuple((time / 2, share) for time, share in curve) for peak, curve in curves.items()}
                for operators, curves in value.efficiency.items()
            }
        return value.model_copy(update=update)
    if isinstance(value, Mapping):
        return {key: _doubled(each, dimension) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_doubled(each, dimension) for each in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value / 2 if dimension in _TIMES else value * 2 if dimension in _RATES else value
    return value


def _ratio(slow: Run, fast: Run) -> tuple[float, float]:
    """Return how many times as fast the warm and the first epoch's steps of *fast* are."""
    own, others = slow.jobs[0], fast.jobs[0]
    return own.warm.step_time / others.warm.step_time, own.first.step_time / others.first.step_time


def _ratio_when_doubled(scenario: Scenario, patch: pytest.MonkeyPatch, *, nccl: bool = False) -> tuple[float, float]:
    """Return the ratio of steps with the rates of descriptions and of the pinning thread doubled; with *nccl* its tables too."""
    question = prepare(scenario)
    slow = simulate(question.hardware, question.jobs)
    _, jobs = faster(question.hardware, question.jobs, _WORKLOAD, 2.0)
    patch.setattr(input_pipeline, "PIN_BANDWIDTH", 2 * input_pipeline.PIN_BANDWIDTH)
    if nccl:
        for module, name, factor in _NCCL_UNITS:
            patch.setattr(module, name, getattr(module, name) * factor)
    _forget()
    try:
        return _ratio(slow, simulate(_doubled(question.hardware), jobs))
    finally:
        _forget()


def _forget() -> None:
    """Clear what collectives have cached, whose keys do not contain the units of NCCL's tables."""
    for module in [module for name, module in sys.modules.items() if name.startswith("sim.training.collectives")]:
        for value in vars(module).values():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()


_NCCL_UNITS = (
    (cost, "GB", 2.0),
    (search, "GB", 2.0),
    (search, "_ROUNDING", 2.0),
    (threshold, "RING_BANDWIDTH", 2.0),
    (cost, "MICROSECOND", 0.5),
    (threshold, "MICROSECOND", 0.5),
)
"""The units in which all of NCCL's tables are written, and what is written without them."""


@pytest.mark.parametrize("name", CASES)
def test_with_nccls_tables_every_step_halves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ratio_when_doubled(CASES[name], monkeypatch, nccl=True) == pytest.approx((2.0, 2.0), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_without_them_only_nccls_choice_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ratio = _ratio_when_doubled(CASES[name], monkeypatch)
    assert (ratio != pytest.approx((2.0, 2.0), rel=1e-5)) == name.endswith("differs")


def test_a_choice_that_is_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("training.stack.nccl_algo=Ring", "training.stack.nccl_proto=Simple")
    scenario = replace(CASES["small buckets: the choice differs"], overrides=chosen)
    assert _ratio_when_doubled(scenario, monkeypatch) == pytest.approx((2.0, 2.0), rel=1e-9)


def test_faster_gpus_do_all_their_work_faster() -> None:
    """A GPU alone, with chunked scans, attention and products, takes half as long at twice its speed."""
    scenario = Scenario("gpu_1x_b200_sxm6", "nemotron-h-4b", ("input.loader=synthetic",), batch=1, stack="torch-2.x-ddp")
    question = prepare(scenario)
    twice = faster(question.hardware, question.jobs, ("gpu", "launch", "pcie"), 2.0)
    assert _ratio(simulate(question.hardware, question.jobs), simulate(*twice)) == pytest.approx((2.0, 2.0), rel=1e-9)
