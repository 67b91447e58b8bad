"""How much is each link, disk and processor used during the steps that a page shows? Mean, peak, and the share over time.

The values come from the rates that a run kept (`sim.report.trace.excerpt`). Resources that are used identically are simulated once; the
first of them represents all, with their number on a node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sim.report.resources import describe_resource
from sim.report.trace.excerpt import Excerpt
from sim.simulate import Run
from sim.units import show


@dataclass(frozen=True)
class Use:
    """The use of one recorded resource between two times (s); *shares* has its pieces: from, until (s), and share of its capacity."""

    name: str
    description: str
    """Its description."""
    capacity: float
    count: int
    """How many resources of one node are used identically."""
    shares: Sequence[tuple[float, float, float]]

    @property
    def mean(self) -> float:
        """Return the mean share of the capacity in use."""
        length = sum(end - start for start, end, _ in self.shares)
        return sum(share * (end - start) for start, end, share in self.shares) / length if length else 0.0

    @property
    def peak(self) -> float:
        """Return the largest share of the capacity in use."""
        return max((share for _, _, share in self.shares), default=0.0)

    @property
    def label(self) -> str:
        """Return its name for a narrow column: for a link, its two ends."""
        ends = re.search(r"\((.+) to (.+)\)(.*)$", self.description)
        return f"{ends[1]} → {ends[2]}{ends[3]}" if ends else self.description

    @property
    def capacity_in_words(self) -> str:
        """Return the capacity with its unit."""
        if self.name.endswith(".cores"):
            return f"{self.capacity:g} cores"
        if self.name.endswith("iops"):
            return f"{self.capacity:,.0f} IOPS"
        return f"{self.capacity:g}" if ".job" in self.name else show(self.capacity, "bandwidth")


def uses(run: Run, chosen: Excerpt, start: float, end: float) -> dict[str, Use]:
    """Return the use of every resource of *run* between *start* and *end* (s) of *chosen*, by recorded name, most used first."""
    unsorted = []
    for name, steps in chosen.loads.items():
        capacity = run.log.capacity[name]
        ends = [*(time for time, _ in steps[1:]), end]
        shares = [(max(t0, start), min(t1, end), load / capacity) for (t0, load), t1 in zip(steps, ends, strict=True)]
        words, count = describe_resource(run, name)
        words += f" of {name.partition('.')[0]}" if len(run.cluster) > 1 else ""
        unsorted.append(Use(name, words, capacity, count, merge_shares([part for part in shares if part[1] > part[0]])))
    return {use.name: use for use in sorted(unsorted, key=lambda use: (-use.mean, use.name)) if use.peak > 0}


def merge_shares(shares: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Return *shares* with adjacent pieces of equal value joined."""
    kept: list[tuple[float, float, float]] = []
    for start, end, share in shares:
        if kept and abs(kept[-1][2] - share) < 1e-9 and start <= kept[-1][1] + 1e-12:
            kept[-1] = (kept[-1][0], end, share)
        else:
            kept.append((start, end, share))
    return kept


def uses_document(use_of: dict[str, Use]) -> list[dict[str, Any]]:
    """Return the figures of *use_of* as a page embeds them; capacities are in bytes/s, except for cores and I/Os, which are counts."""
    return [
        {"name": use.name, "means": use.description, "alike": use.count, "capacity": use.capacity, "mean": use.mean, "peak": use.peak}
        for use in use_of.values()
    ]


def coarsen(shares: Sequence[tuple[float, float, float]], most: int) -> list[tuple[float, float, float]]:
    """Return *shares* with the shortest pieces averaged into their neighbors until *most* are left, still finer than a screen shows."""
    kept = list(shares)
    while len(kept) > most:
        pairs = list(pairwise(kept))
        place = min(range(len(pairs)), key=lambda at: pairs[at][1][1] - pairs[at][0][0])
        (start, middle, one), (_, end, other) = pairs[place]
        kept[place : place + 2] = [(start, end, (one * (middle - start) + other * (end - middle)) / (end - start))]
    return kept
