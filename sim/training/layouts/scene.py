"""What are the inputs and outputs of the simulation of a layout? Programs, times and prices in; steps by stage out."""

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
"""Names of kernels by the pass they belong to."""
COPIES: Final = {"weights": "copy of gathered weights", "gradients": "copy of gradients"}
"""Names of copy kernels by what they copy."""
BESIDE: Final = "slower beside collectives"
"""Resource of the additional time of compute while collectives run on the same GPU."""
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


def describe_tag(tag: Tag) -> str:
    """Return the purpose of an operation in words."""
    return _WORDS.get(tag[0].removesuffix(" experts").removesuffix(" replicas"), tag[0])


@dataclass(frozen=True)
class StageStep:
    """One steady step of the ranks of one stage; if steps are drawn, the mean of many."""

    time: float
    stalls: Mapping[Cause, float]
    """Seconds by cause; sums to ``time``."""
    resources: Mapping[tuple[Cause, str], float]
    exposed: Mapping[str, float]
    """Seconds of compute lost to messages of each kind of group."""
    begin: float
    """Time (s) in the log at which the last step began."""
    end: float
    clock: tuple[float, ...] = ()
    """Time (s) at which each instruction of the stage's program finished."""


class PlayedOperation(NamedTuple):
    """One operation of the simulated step."""

    tag: Tag
    begin: float
    stages: tuple[int, ...]
    """Participating stages; for a message, the sender first."""
    resource: str
    """The name of the operation and its limit in the log."""


@dataclass(frozen=True)
class PlayedLayout:
    """The results of the simulation of a layout."""

    stages: tuple[StageStep, ...]
    log: EventLog
    operations: tuple[PlayedOperation, ...] = ()
    """Operations of the last step, if one rank represents each stage."""
    exact: bool = True
    """Whether every rank is simulated, or is represented by a rank with identical steps."""
    left_out: int = 0
    """Number of micro-batches of a step that were not simulated; they count in ``stages``, but log, clock and operations lack them."""
    drawn_times: tuple[float, ...] = ()
    """Time (s) of each step, if steps are drawn."""

    @property
    def time(self) -> float:
        """Return the step time (s)."""
        return max(stage.time for stage in self.stages)


@dataclass(frozen=True, eq=False)
class LayoutScene:
    """The inputs of a simulation of a layout."""

    layout: Layout
    programs: Sequence[Program]
    times: Sequence[UnitTimes]
    updates: Sequence[tuple[float, float]]
    """GPU time (s) and launches of each stage's optimizer."""
    prices: LayoutPrices
    node: Node
    launch_cpu: float
    launch_blocking: bool
    """Whether the host waits for each kernel before it launches the next one."""
    overlap_slowdown: float
    noise: LayoutNoise
    times_beside: Callable[[int, int, float], UnitTimes] | None = None
    """Returns unit times given a stage, the number of thread blocks of collectives, and their bytes/s through memory; None: no effect."""
    feed: Feed | None = None
    """The feed of the ranks of the first stage; None if data are always ready."""
    copy_time: float = 0.0
    """Time (s) for which the ranks of the first stage wait for the copy of a micro-batch to their GPUs."""
    outflows: Sequence[Outflow] = ()
    """Parts of checkpoints that each node writes throughout."""

    @cached_property
    def stages_meet(self) -> bool:
        """Return whether all stages meet in an operation in each step."""
        return any(isinstance(each, Start) and each.axis == "everyone" for each in self.programs[0])

    def check_time(self, axis: GroupAxis) -> float:
        """Return the host time (s) to compare a collective of *axis* between its ranks, or 0 if the stack does not do this."""
        layout = self.layout
        return check_time(layout.mesh.group_size(axis), layout.options.collective_check) if layout.options.collective_check else 0.0
