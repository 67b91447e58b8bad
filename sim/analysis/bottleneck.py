"""Which resource bounds a job? The one whose freeing saves most of the step, and the one that would bound it next.

Pure: what was simulated with which resource freed (made infinitely fast, `sim.study.bottleneck`) goes in. Direct attribution
(`sim.analysis.stalls`) tells whom a rank waits for; it does not tell what would help, as another resource may be next at once. Both
are shown: the stall table is direct, the sentence counterfactual. Compute is no candidate for the first place, as every job
computes: what is wanted is what keeps the GPUs from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Resource = Literal["disk", "cpu", "decode", "copy", "nvlink", "pcie", "network", "launch", "spread", "gpu"]

RESOURCES: tuple[Resource, ...] = ("disk", "cpu", "decode", "copy", "nvlink", "network", "pcie", "launch", "spread", "gpu")
"""Narrower ones first: of two that save the same, the first is named (copies run over PCIe, but only they)."""

SAME = 0.005
"""Savings that differ by less of the step are the same: a fifth of the least noise of repeated measurements (2-4%)."""

TIE = 0.1
"""Share of the step below which a resource that is freed by itself saves so little that the next one binds nearly as much."""

SECOND = 0.04
"""Half of the share of the step that both must save: the noise of repeated measurements is 2-4%."""


@dataclass(frozen=True)
class Bottleneck:
    """What one job's warm step (s) takes as it is, and with resources freed."""

    step_time: float
    freed: Mapping[Resource, float]
    """Step time with one resource freed, of those that the job uses."""
    first: Resource | None = None
    """The resource to free first; None where the job waits for nothing but its GPUs."""
    then: Mapping[Resource, float] | None = None
    """Step time with *first* and one more resource freed."""
    without_broadcast: float | None = None
    """Step time where buffers are not broadcast; None where nobody waits for that."""
    behind: Resource | None = None
    """What the job would wait for with its GPUs freed, where it waits for nothing now."""
    doubled: float | None = None
    """Step time with twice as much of both of `tied`."""
    phases: tuple[float, ...] = ()
    """Step times where the loaders' work falls into other moments of the step; none where no loader works ahead."""

    @property
    def saved_broadcast(self) -> float:
        """Return the share of the step that is saved where buffers are not broadcast."""
        return 1.0 - self.without_broadcast / self.step_time if self.without_broadcast is not None else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """Return the least and the greatest step time (s) over all moments that were tried."""
        times = (self.step_time, *self.phases)
        return min(times), max(times)

    def saved(self, resource: Resource) -> float:
        """Return the share of the step that freeing *resource* saves."""
        return 1.0 - self.freed[resource] / self.step_time

    @property
    def following(self) -> Resource | None:
        """Return what bounds the job once *first* is freed, its GPUs where they save as much as anything; None where nothing helps."""
        if not self.first or not self.then:
            return None
        next_bound = foremost(self.freed[self.first], self.then, self.step_time)
        if next_bound is None or self.then.get("gpu", math.inf) > self.then[next_bound] + SAME * self.step_time:
            return next_bound
        return "gpu"

    @property
    def second(self) -> Resource | None:
        """Return the resource, other than compute, that saves most beside *first*."""
        if not self.first or not self.then:
            return None
        others: dict[Resource, float] = {resource: step for resource, step in self.then.items() if resource != "gpu"}
        return foremost(self.freed[self.first], others, self.step_time)

    @property
    def saved_by_both(self) -> float:
        """Return the share of the step that freeing *first* and *second* saves together."""
        return 1.0 - self.then[self.second] / self.step_time if self.then and self.second else 0.0

    @property
    def tied(self) -> tuple[Resource, Resource] | None:
        """Return two resources that bound the step within `TIE` of each other: one alone saves less than that, both twice as much or more.

        Where the job waits for nothing but its GPUs, these and what they would wait for next.
        """
        if self.first is None:
            return ("gpu", self.behind) if self.behind and self.saved("gpu") < TIE else None
        second, alone = self.second, self.saved(self.first)
        return (self.first, second) if second and alone < TIE and self.saved_by_both > 2 * max(alone, SECOND) else None

    @property
    def saved_by_doubling(self) -> float | None:
        """Return the share of the step that twice as much of both of `tied` saves; None where nothing ties."""
        return None if self.doubled is None else 1.0 - self.doubled / self.step_time


def foremost(step_time: float, freed: Mapping[Resource, float], scale: float | None = None) -> Resource | None:
    """Return the resource in *freed* that saves most of *step_time*; of equal savings (to 0.5% of *scale*) the first of `RESOURCES`."""
    best: Resource | None = None
    most = 0.0
    for resource in RESOURCES:
        saved = step_time - freed.get(resource, step_time)
        if saved > most + SAME * (scale or step_time) * (best is not None):
            best, most = resource, saved
    return best
