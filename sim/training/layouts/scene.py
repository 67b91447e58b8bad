"""What is a simulation of a layout made of, and what does it tell? Programs, times and prices in; steps by stage out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from sim.cluster.checkpoint import Outflow
from sim.events import Cause, EventLog
from sim.parallel.collective_check import check_time
from sim.parallel.lower.layouts import Layout
from sim.parallel.mesh import GroupAxis
from sim.parallel.program import PassPart, Program, Start, Tag
from sim.spec.hardware import Node
from sim.training.layouts.loader import Feed
from sim.training.layouts.noise import LayoutNoise
from sim.training.layouts.prices import LayoutPrices
from sim.training.layouts.times import UnitTimes

GROUPS: Final = ("data", "shard", "tensor", "pipeline", "context", "expert", "norm")
"""Keys of ``exposed_by_group_s``."""
PASSES: Final[Mapping[PassPart, str]] = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}
"""Names of kernels by what they run."""
COPIES: Final = {"weights": "copy of gathered weights", "gradients": "copy of gradients"}
"""Names of the kernels that copy them."""
_WORDS: Final[Mapping[str, str]] = {
    "gather F": "weight gathers",
    "gather B": "weight gathers",
    "gather I": "weight gathers",
    "gather W": "weight gathers",
    "gather U": "weight gathers",
    "weights": "weight gathers",
    "scatter": "gradient reduction",
    "reduce": "gradient reduction",
    "partial": "gradients of norms",
    "reduce norms": "gradients of norms",
    "norm": "gradient norm",
    "tied": "gradient of the tied embedding",
    "activations": "activations between stages",
    "gradients": "gradients between stages",
}


def words(tag: Tag) -> str:
    """Return what an operation is for, in words."""
    return _WORDS.get(tag[0].removesuffix(" experts").removesuffix(" replicas"), tag[0])


@dataclass(frozen=True)
class StageStep:
    """One steady step of the ranks of one stage; where steps are drawn, the mean of many."""

    time: float
    stalls: Mapping[Cause, float]
    """Seconds by cause; sums to ``time``."""
    resources: Mapping[tuple[Cause, str], float]
    exposed: Mapping[str, float]
    """Seconds of compute lost to messages of each kind of group."""
    begin: float
    end: float
    clock: tuple[float, ...] = ()
    """When each instruction of the stage's program was over (s)."""


class Operated(NamedTuple):
    """One operation as it was played."""

    tag: Tag
    begin: float
    stages: tuple[int, ...]
    """Those whose ranks took part, a message's sender first."""
    resource: str
    """As the log names it."""


@dataclass(frozen=True)
class PlayedLayout:
    """What the simulation of a layout tells."""

    stages: tuple[StageStep, ...]
    log: EventLog
    operations: tuple[Operated, ...] = ()
    """Those of the last step, where a rank stands for its stage."""
    exact: bool = True
    """Whether every rank is simulated, or stood for by one that steps as it does."""
    drawn: tuple[float, ...] = ()
    """Seconds of each step, where steps are drawn."""

    @property
    def time(self) -> float:
        """Return the seconds of a step."""
        return max(stage.time for stage in self.stages)


@dataclass(frozen=True, eq=False)
class LayoutScene:
    """Everything a simulation of a layout is made of."""

    layout: Layout
    programs: Sequence[Program]
    times: Sequence[UnitTimes]
    updates: Sequence[tuple[float, float]]
    """GPU seconds and launches of each stage's optimizer."""
    prices: LayoutPrices
    node: Node
    launch_cpu: float
    overlap_slowdown: float
    noise: LayoutNoise
    beside: Callable[[int, int, float], UnitTimes] | None = None
    """Times of a stage's units beside so many thread blocks of collectives, which move so many bytes/s through memory; None: as alone."""
    feed: Feed | None = None
    """What feeds the ranks that begin the model; None: data are ready."""
    outflows: Sequence[Outflow] = ()
    """Parts of checkpoints that each node writes all along."""

    @cached_property
    def meets(self) -> bool:
        """Return whether all stages meet in each step."""
        return any(isinstance(each, Start) and each.axis == "everyone" for each in self.programs[0])

    def check(self, axis: GroupAxis) -> float:
        """Return the host's seconds to compare a collective of *axis* between its ranks, where the stack does."""
        layout = self.layout
        return check_time(layout.mesh.group_size(axis), layout.options.collective_check) if layout.options.collective_check else 0.0
