"""What does a search compute once for a layout that it refines twice? Its workload, its layout and its memory.

A layout is bounded first, and may be simulated after other layouts have been bounded, so those of the last `MOST` are kept. Programs are
not, because those of many micro-batches are large: `sim.parallel.lower.layouts` keeps as many instructions as fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sim.analysis.layout_memory import StageMemory
from sim.parallel.lower.layouts import Layout
from sim.spec.workload import Workload
from sim.study.plan.space import LayoutCandidate

MOST: Final = 1024
"""Maximum number of layouts of a setting that are kept: a few kilobytes each, and a search of 10,000 layouts refines some hundreds."""


@dataclass
class PreparedLayout:
    """A layout of a setting, with the workload that runs in it."""

    workload: Workload
    layout: Layout
    memory: tuple[StageMemory, ...] | None = None
    """The memory of each stage, once it is computed."""

    @property
    def fresh(self) -> Layout:
        """Return the layout without the programs that were lowered from it."""
        return replace(self.layout)


@dataclass(eq=False)
class PreparedLayouts:
    """The layouts of one setting that were prepared last."""

    _kept: OrderedDict[LayoutCandidate, PreparedLayout] = field(default_factory=OrderedDict)

    def get_or_make(self, candidate: LayoutCandidate, make: Callable[[], PreparedLayout]) -> PreparedLayout:
        """Return what was prepared for *candidate*, or what *make* returns, which is then kept."""
        kept = self._kept.get(candidate)
        if kept is None:
            kept = self._kept[candidate] = make()
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(candidate)
        return kept
