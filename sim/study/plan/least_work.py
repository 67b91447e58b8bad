"""How fast can a cluster be at most? The GPU time that a step takes at least in any layout, per GPU model and speed of the host's cores.

A whole layer of the whole batch is the most efficient product: layouts divide layers and batches into smaller ones, wait for messages and
recompute. So the least compute of a step in one micro-batch on one GPU of unlimited memory (`floor`), divided by the number of GPUs, is a
lower bound for every cluster of them. Only experts are more efficient apart: a rank that has few of them hardly sorts tokens. So groups of
ranks with one GPU each, between which experts are divided, are bounded as well. Without a layout, a GPU also waits for its host's launches,
which depend on the host. All this takes some 100 ms per GPU model, 400 ms with experts, where bounds of all layouts of a cluster take
seconds. Limit: tiles and waves of a product may favor a part of a layer, by less than `MARGIN`, as a test checks for dense and expert
models on GPUs of the catalog.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sim.cluster.build import with_nodes
from sim.mesh import worker_node
from sim.spec.library import load_hardware
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.plan.floor import Setting
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import bounds
from sim.study.plan.space import LayoutCandidate, divisors
from sim.study.scenario import Scenario, sorted_overrides

MARGIN: Final = 0.02
"""Share by which parts of a layer or of a batch may be more efficient than the whole: at most 0.8% in the test's bounds."""


class LeastWork:
    """Lower bounds of the steps of *scenario*, which has a global batch, on any number of nodes of any machine."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._by_gpu: dict[tuple[str, float], float] = {}
        """By the contents of a GPU, and the speed of its host's cores at launching."""

    def step_time(self, name: str, nodes: int) -> float:
        """Return the least seconds of a step on *nodes* nodes of the machine *name*; 0 if unknown, as for jobs that cannot run there."""
        try:
            node = worker_node(load_hardware(name, sorted_overrides(self._scenario)[0]).spec)
            key = node.gpu.model_dump_json(), node.host.cpu.launching
            if key not in self._by_gpu:
                self._by_gpu[key] = _gpu_time(replace(self._scenario, hardware=name))
        except SpecError:
            return 0.0
        return (1.0 - MARGIN) * self._by_gpu[key] / (node.gpu_count * nodes)

    def step_time_of(self, document: Mapping[str, Any]) -> float:
        """Return the seconds of the step of *document*."""
        step: float = document["step_time_s"]
        return step


def _gpu_time(scenario: Scenario) -> float:
    """Return the least GPU seconds of a step on any number of GPUs of unlimited memory; 0 if no layout is possible there."""
    plan = prepare_plan(PlanQuestion(scenario, nodes=(1,), gpus=1))
    least = min((_setting_time(setting, each, plan.global_batch) for setting, each in plan.layouts if each), default=math.inf)
    return least if math.isfinite(least) else 0.0


def _setting_time(setting: Setting, layouts: Sequence[LayoutCandidate], samples: int) -> float:
    """Return the least GPU seconds of a step of *samples* in any of *layouts*, which are of one GPU, or in their expert groups."""
    least = float(bounds(setting, layouts, math.inf).compute.min())
    for ranks in _expert_groups(setting.workload):
        batch = math.ceil(samples / ranks)
        group = replace(setting, hardware=with_nodes(setting.hardware, ranks))
        in_group = [
            each._replace(nodes=ranks, expert=ranks, data=ranks, shard=shard, batch=batch, micro_batches=1)
            for each in layouts
            for shard in dict.fromkeys((each.shard, *(("parameters",) if ranks > 1 else ())))
        ]
        least = min(least, float(bounds(group, list(dict.fromkeys(in_group)), math.inf).compute.min()) * samples / batch)
    return least


def _expert_groups(workload: Workload) -> tuple[int, ...]:
    """Return the sizes of expert groups that the stack of *workload* may form: 1 without experts."""
    options, experts = workload.training.stack.mesh, max((layer.groups for layer in workload.model.layers), default=1)
    return divisors(max(1, experts)) if options is not None and "expert" in options.axes else (1,)
