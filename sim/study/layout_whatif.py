"""What would help a job with a layout? Its step with twice and with infinitely much of each resource, and with more micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sim.analysis.bottleneck import Resource
from sim.cluster.build import Placement
from sim.mesh import LayoutRun, run_layout
from sim.study.faster import INFINITE, faster
from sim.study.layout import LayoutAnswer, layout_answer
from sim.study.scenario import Scenario
from sim.training.job import Job

RESOURCES: Final[tuple[Resource, ...]] = ("gpu", "nvlink", "pcie", "network", "disk", "cpu", "launch", "spread")
"""What a layout's step can wait for; copies of samples to the GPU take no time there."""


@dataclass(frozen=True)
class LayoutUpgrade:
    """Seconds of a step with more of one resource."""

    resource: Resource
    twice: float
    infinite: float


@dataclass(frozen=True)
class LayoutWhatIf:
    """The run as it is, and what each resource would bring, best first."""

    answer: LayoutAnswer
    upgrades: tuple[LayoutUpgrade, ...]
    more_micro_batches: float | None
    """Seconds per sample with twice the micro-batches over those now; None without a pipeline."""


def layout_whatif(scenario: Scenario, progress: Callable[[int, int], None] | None = None) -> LayoutWhatIf:
    """Return what more of each resource brings to *scenario*, which has a layout."""
    answer = layout_answer(scenario)
    run = answer.run
    upgrades = []
    for number, resource in enumerate(RESOURCES):
        upgrades.append(LayoutUpgrade(resource, _with_more(run, resource, 2.0), _with_more(run, resource, INFINITE)))
        if progress is not None:
            progress(number + 1, len(RESOURCES))
    upgrades.sort(key=lambda upgrade: (upgrade.twice, upgrade.infinite))
    return LayoutWhatIf(answer, tuple(upgrades), _with_micro_batches(run))


def _with_more(run: LayoutRun, resource: Resource, factor: float) -> float:
    job = Job(run.workload, (Placement(0, tuple(range(run.mesh.gpus_per_node))),))
    hardware, (changed,) = faster(run.hardware, [job], [resource], factor)
    return run_layout(hardware, changed.workload, run.mesh.gpus_per_node).step_time


def _with_micro_batches(run: LayoutRun) -> float | None:
    """Return the time of a sample with twice the micro-batches, over that now."""
    if run.mesh.stages == 1:
        return None
    training = run.workload.training
    more = {"gradient_accumulation_steps": 2 * training.gradient_accumulation_steps}
    workload = run.workload.model_copy(update={"training": training.model_copy(update=more)})
    longer = run_layout(run.hardware, workload, run.mesh.gpus_per_node)
    return run.throughput / longer.throughput


def gains(found: LayoutWhatIf) -> Mapping[Resource, float]:
    """Return by how much twice of each resource raises the throughput, as a share."""
    now = found.answer.run.step_time
    return {upgrade.resource: now / upgrade.twice - 1.0 for upgrade in found.upgrades}
