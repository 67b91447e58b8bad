"""Which stalls would Stash's method measure for a job with a layout? Each of its runs is a simulated step; stalls are differences.

A layout cannot run on one GPU, so RUN0 has all ranks, on links that take no time. The twin, two nodes with half the GPUs each, would
place groups differently, so RUN1 has a network that takes no time instead. RUN3 has samples in memory; RUN2 reads them as the job does.
Limits: pipeline bubbles are part of RUN0, because the method has no run without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sim.analysis.attribution import StallComparison, compare_methods
from sim.analysis.differential import Stall, stall_of
from sim.events import Cause
from sim.mesh import LayoutRun
from sim.spec.workload import Workload
from sim.study.layout import LayoutAnswer, layout_answer
from sim.study.layout_whatif import LINKS, rerun_faster
from sim.study.pool import Progress
from sim.study.scenario import Scenario


class Difference(NamedTuple):
    """The two runs whose difference is a stall, and the run of which it is a share."""

    cause: Cause
    before: str
    after: str
    share_of: str


RUN0, RUN1, FULL, RUN3, RUN2 = "run0_no_links", "run1_no_network", "run1_synthetic", "run3_in_memory", "run2_read"
DIFFERENCES: Final[Mapping[str, Difference]] = {
    "interconnect": Difference(Cause.INTERCONNECT, RUN0, RUN1, RUN1),
    "network": Difference(Cause.NETWORK, RUN1, FULL, RUN1),
    "prep": Difference(Cause.PREP, FULL, RUN3, RUN3),
    "fetch": Difference(Cause.FETCH, RUN3, RUN2, RUN2),
}
"""Each stall of Stash with its two runs and its base (`sim.analysis.differential`)."""


@dataclass(frozen=True)
class LayoutProfile:
    """The runs of the method, and the stalls derived from them (seconds per step)."""

    answer: LayoutAnswer
    """The job as it is: RUN2."""
    runs: Mapping[str, LayoutRun]
    stalls: Mapping[str, Stall]
    comparisons: Mapping[str, StallComparison]
    """Each stall by subtraction and by direct attribution, and why the two differ."""

    def stall_causes(self, name: str) -> dict[Cause, float]:
        """Return the composition of the stall *name* by direct attribution: seconds by cause."""
        before, after = (self.runs[run].stalls for run in DIFFERENCES[name][1:3])
        return {cause: after[cause] - before[cause] for cause in after}


def layout_profile(scenario: Scenario, progress: Progress | None = None) -> LayoutProfile:
    """Return the result of Stash's method for *scenario*, which has a layout. Raise SpecError listing the problems."""
    answer = layout_answer(scenario)
    real = answer.run
    synthetic, in_memory = _read(real.workload, loader="synthetic"), _read(real.workload, stream=None)
    simulations: dict[str, Callable[[], LayoutRun]] = {
        RUN0: lambda: rerun_faster(real, LINKS, workload=synthetic),
        RUN1: lambda: rerun_faster(real, ["network"], workload=synthetic),
        FULL: lambda: rerun_faster(real, [], workload=synthetic),
        RUN3: lambda: rerun_faster(real, ["disk"], workload=in_memory),
        RUN2: lambda: real,
    }
    runs = {}
    for name, run in simulations.items():
        runs[name] = run()
        if progress is not None:
            progress(len(runs), len(simulations))
    stalls = {
        name: stall_of(runs[each.after].step_time - runs[each.before].step_time, runs[each.share_of].step_time)
        for name, each in DIFFERENCES.items()
    }
    both = {name: compare_methods(each.cause, runs[each.before].stalls, runs[each.after].stalls) for name, each in DIFFERENCES.items()}
    return LayoutProfile(answer, runs, stalls, both)


def _read(workload: Workload, **changes: object) -> Workload:
    return workload.model_copy(update={"input": workload.input.model_copy(update=changes)})
