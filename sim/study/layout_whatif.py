"""What would help a job with a layout? Its step with each resource twice and infinitely as fast, and with more micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sim.causes import Resource
from sim.cluster.build import Placement
from sim.mesh import LayoutRun, run_layout
from sim.spec.workload import Workload
from sim.study.faster import INFINITE, faster
from sim.study.layout import LayoutAnswer, layout_answer
from sim.study.pool import Progress
from sim.study.scenario import Scenario
from sim.training.job import Job

RESOURCES: Final[tuple[Resource, ...]] = ("gpu", "nvlink", "pcie", "network", "disk", "cpu", "copy", "launch", "spread")
"""Resources that a layout's step can wait for."""
LINKS: Final[tuple[Resource, ...]] = ("nvlink", "pcie", "network")
"""The resources that carry messages."""


@dataclass(frozen=True)
class LayoutUpgrade:
    """Seconds of a step with more of one resource, or of all links at once."""

    resource: Resource | Literal["links"]
    twice: float
    infinite: float


@dataclass(frozen=True)
class LayoutWhatIf:
    """The run as it is, and the effect of more of each resource, best first."""

    answer: LayoutAnswer
    upgrades: tuple[LayoutUpgrade, ...]
    links: LayoutUpgrade
    """More of all links at once: a ring that is bound equally by NVLink and NICs gains nothing from either alone."""
    more_micro_batches: float | None
    """Seconds per sample with twice the micro-batches, relative to now; None without a pipeline."""


def layout_whatif(scenario: Scenario, progress: Progress | None = None) -> LayoutWhatIf:
    """Return the effect of more of each resource on *scenario*, which has a layout."""
    answer = layout_answer(scenario)
    run = answer.run
    upgrades = []
    for number, resource in enumerate(RESOURCES):
        upgrades.append(LayoutUpgrade(resource, *_with_more(run, resource)))
        if progress is not None:
            progress(number + 1, len(RESOURCES) + 1)
    upgrades.sort(key=lambda upgrade: (upgrade.twice, upgrade.infinite))
    return LayoutWhatIf(answer, tuple(upgrades), LayoutUpgrade("links", *_with_more(run, *LINKS)), _with_micro_batches(run))


def _with_more(run: LayoutRun, *resources: Resource) -> tuple[float, float]:
    """Return seconds of a step with twice and with infinitely much of *resources*."""
    twice, infinite = (rerun_faster(run, resources, factor).step_time for factor in (2.0, INFINITE))
    return twice, infinite


def rerun_faster(run: LayoutRun, resources: Sequence[Resource], factor: float = INFINITE, workload: Workload | None = None) -> LayoutRun:
    """Repeat *run* with *resources* *factor* times as fast, and with another *workload* if given."""
    job = Job(workload or run.workload, (Placement(0, tuple(range(run.mesh.gpus_per_node))),))
    hardware, (changed,) = faster(run.hardware, [job], resources, factor)
    return run_layout(hardware, changed.workload, run.mesh.gpus_per_node)


def _with_micro_batches(run: LayoutRun) -> float | None:
    """Return the time per sample with twice the micro-batches, relative to now."""
    if run.mesh.stages == 1:
        return None
    training = run.workload.training
    more = {"gradient_accumulation_steps": 2 * training.gradient_accumulation_steps}
    workload = run.workload.with_training(**more)
    longer = run_layout(run.hardware, workload, run.mesh.gpus_per_node)
    return run.throughput / longer.throughput
