"""How fast can a cluster be at most? The GPU time that a step takes at least in any layout, per GPU model.

A whole layer of the whole batch is the most efficient product: layouts divide layers and batches into smaller ones, wait for messages and
recompute. So the least compute of a step on one GPU of unlimited memory (`floor`), also with the whole batch in one micro-batch, divided by
the number of GPUs, is a lower bound for every cluster of them. Kernels of several experts may be slower than that of one, so a cluster with
a GPU for each expert is also bounded by the least compute of such ranks. It takes 50 ms per GPU model, where bounds of all layouts of a
cluster take a second. Limit: tiles and waves of a product may favor a part of a layer, by less than `MARGIN`, as tests check for dense and
expert models on GPUs of the catalog.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from sim.mesh import worker_node
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import bounds
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario, sorted_overrides

MARGIN: Final = 0.02
"""Share by which parts of a layer or of a batch may be more efficient than the whole: at most 0.8% in the test's bounds."""


class LeastWork:
    """Lower bounds of the steps of *scenario*, which has a global batch, on any number of nodes of any machine."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._by_gpu: dict[tuple[str, int], float] = {}

    def step_time(self, name: str, nodes: int) -> float:
        """Return the least seconds of a step on *nodes* nodes of the machine *name*; 0 if unknown, as for jobs that cannot run there."""
        try:
            node = worker_node(load_hardware(name, sorted_overrides(self._scenario)[0]).spec)
            gpus = node.gpu_count * nodes
            alone = self._experts() if 1 < self._experts() <= gpus else 1
            least = min(self._gpu_time(name, node.gpu.model_dump_json(), ranks) for ranks in {1, alone})
        except SpecError:
            return 0.0
        return (1.0 - MARGIN) * least / gpus if math.isfinite(least) else 0.0

    def _experts(self) -> int:
        """Return the number of routed experts; 0 for a dense model."""
        shape = load_workload(self._scenario.workload, sorted_overrides(self._scenario)[1]).spec.model.transformer
        return 0 if shape is None else shape.experts

    def _gpu_time(self, name: str, gpu: str, ranks: int) -> float:
        key = gpu, ranks
        if key not in self._by_gpu:
            self._by_gpu[key] = _gpu_time(replace(self._scenario, hardware=name), ranks)
        return self._by_gpu[key]


def _gpu_time(scenario: Scenario, ranks: int) -> float:
    """Return the least GPU seconds of a step on *ranks* GPUs of unlimited memory, each with its own experts; infinite without a layout."""
    node = worker_node(load_hardware(scenario.hardware, sorted_overrides(scenario)[0]).spec)
    alone = {} if ranks == 1 else {"ep": str(ranks), "pp": "1"}
    try:
        plan = prepare_plan(PlanQuestion(scenario, nodes=(math.ceil(ranks / node.gpu_count),), gpus=ranks, fixed=alone))
    except SpecError:
        if ranks == 1:
            raise
        return math.inf  # no cluster has such a layout
    tried = [(setting, [*each, *dict.fromkeys(map(_in_one_pass, each))]) for setting, each in plan.layouts if each]
    return ranks * min((float(bounds(setting, each, math.inf).compute.min()) for setting, each in tried), default=math.inf)


def _in_one_pass(candidate: LayoutCandidate) -> LayoutCandidate:
    """Return *candidate* with the whole batch in one micro-batch, which no memory holds.

    Weights are read, and gradients added, once for all samples, as ranks that share experts do it together for theirs.
    """
    return candidate._replace(batch=candidate.batch * candidate.micro_batches, micro_batches=1)
