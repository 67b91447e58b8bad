"""Which resource bounds a job? The resource that shortens the step most when it is freed, and the resource that bounds the job next.

The functions are pure. Their input is step times simulated with a resource freed (made infinitely fast, `sim.study.bottleneck`). Direct
attribution (`sim.analysis.stalls`) shows what a rank waits for, but not what would help, because another resource may become the
limit at once. Reports show both: the stall table is direct, the sentence below it is counterfactual. Compute is not a candidate for the
first bottleneck: every job computes, and the question is what keeps the GPUs from computing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sim.causes import Resource

RESOURCES: tuple[Resource, ...] = ("disk", "cpu", "decode", "copy", "nvlink", "network", "pcie", "launch", "spread", "gpu")
"""More specific resources first: of two with equal savings, the first is named (``copy`` covers only part of the traffic on PCIe)."""

SAME = 0.005
"""Savings that differ by less than this share of the step are equal: a quarter of the lowest noise of repeated measurements (2-4%)."""

TIE = 0.1
"""If freeing one resource in isolation saves less than this share of the step, the next resource binds nearly as much."""

SECOND = 0.04
"""Two tied resources must together save more than twice this share of the step: repeated measurements have a noise of 2-4%."""


@dataclass(frozen=True)
class Bottleneck:
    """The warm step time (s) of one job as it is, and with resources freed."""

    step_time: float
    freed_times: Mapping[Resource, float]
    """Step time with one resource freed, for each resource that the job may wait for."""
    first: Resource | None = None
    """The resource to free first; None if the job waits only for its GPUs."""
    second_freed_times: Mapping[Resource, float] | None = None
    """Step time with *first* and one more resource freed."""
    without_broadcast: float | None = None
    """Step time without the broadcast of buffers; None if no rank waits noticeably for the broadcast."""
    limit_behind_gpus: Resource | None = None
    """The resource that the job would wait for with its GPUs freed, if it waits only for them now."""
    doubled_time: float | None = None
    """Step time with both resources of `tied` twice as fast."""
    more_workers: tuple[int, float] | None = None
    """A number of loader workers per GPU for which the machine has cores, and the step time with it; None if *first* is not the CPU."""
    phases: tuple[float, ...] = ()
    """Step times with the loaders' work shifted to other moments of the step; empty if no loader works ahead."""

    @property
    def saved_broadcast(self) -> float:
        """Return the share of the step that is saved by not broadcasting buffers."""
        return 1.0 - self.without_broadcast / self.step_time if self.without_broadcast is not None else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """Return the shortest and the longest step time (s) over all simulated shifts of the loaders' work."""
        times = (self.step_time, *self.phases)
        return min(times), max(times)

    def saved(self, resource: Resource) -> float:
        """Return the share of the step that freeing *resource* saves."""
        return 1.0 - self.freed_times[resource] / self.step_time

    @property
    def next_limit(self) -> Resource | None:
        """Return what bounds the job once *first* is freed: its GPUs if they save as much as any resource; None if nothing helps."""
        if not self.first or not self.second_freed_times:
            return None
        next_bound = largest_saving(self.freed_times[self.first], self.second_freed_times, self.step_time)
        if next_bound is None or self.second_freed_times.get("gpu", math.inf) > self.second_freed_times[next_bound] + SAME * self.step_time:
            return next_bound
        return "gpu"

    @property
    def second(self) -> Resource | None:
        """Return the resource, other than compute, that saves most in addition to *first*."""
        if not self.first or not self.second_freed_times:
            return None
        others: dict[Resource, float] = {resource: step for resource, step in self.second_freed_times.items() if resource != "gpu"}
        return largest_saving(self.freed_times[self.first], others, self.step_time)

    @property
    def saved_by_both(self) -> float:
        """Return the share of the step that freeing *first* and *second* saves together."""
        return 1.0 - self.second_freed_times[self.second] / self.step_time if self.second_freed_times and self.second else 0.0

    @property
    def tied(self) -> tuple[Resource, Resource] | None:
        """Return two resources that bound the step together: freeing *first* alone saves less than `TIE`, freeing both over twice that.

        If the job waits only for its GPUs, these are the GPUs and the resource that the job would wait for next.
        """
        if self.first is None:
            return ("gpu", self.limit_behind_gpus) if self.limit_behind_gpus and self.saved("gpu") < TIE else None
        second, alone = self.second, self.saved(self.first)
        return (self.first, second) if second and alone < TIE and self.saved_by_both > 2 * max(alone, SECOND) else None

    @property
    def saved_by_doubling(self) -> float | None:
        """Return the share of the step saved if both resources of `tied` are twice as fast; None without a tie."""
        return None if self.doubled_time is None else 1.0 - self.doubled_time / self.step_time


def largest_saving(step_time: float, freed_times: Mapping[Resource, float], scale: float | None = None) -> Resource | None:
    """Return the resource whose entry in *freed_times* is smallest: of equal ones (to `SAME` of *scale*), the first in `RESOURCES`.

    Return None if freeing no resource shortens *step_time*.
    """
    best: Resource | None = None
    most = 0.0
    for resource in RESOURCES:
        saved = step_time - freed_times.get(resource, step_time)
        if saved > most + SAME * (scale or step_time) * (best is not None):
            best, most = resource, saved
    return best
