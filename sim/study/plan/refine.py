"""How long does one layout take, more precisely than its floor? Refined by the recurrence of its program, then by its simulation.

A combination that the engine refuses gives no result. Memory excludes a layout before it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from sim.analysis.layout_memory import StageMemory, memory_by_stage
from sim.mesh import layout_scene, prepare, worker_node
from sim.parallel.lower.layouts import Layout
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.plan.floor import Setting
from sim.study.plan.objective import Objective, scale, site_power
from sim.study.plan.space import LayoutCandidate
from sim.study.plan.step_cache import JournalError, StepCache
from sim.training.layouts.bound import least_time, least_work
from sim.training.layouts.scene import PlayedLayout
from sim.training.layouts.steady import play_steadily

Level = Literal[0, 1]
FLOOR: Final[Level] = 0
"""Level of a layout with only a floor: the recurrence is next."""
LEAST: Final[Level] = 1
"""Level of a layout with a recurrence: the simulation is next."""


class LayoutWay(NamedTuple):
    """A layout and the cluster it is placed on."""

    setting: Setting
    candidate: LayoutCandidate


class Bound(NamedTuple):
    """Lower bound of a step."""

    time: float
    """Seconds."""
    value: float
    """The objective."""


class Step(NamedTuple):
    """A layout's memory, and its simulated step if the memory fits."""

    memory: tuple[StageMemory, ...]
    played: PlayedLayout | None

    @property
    def needed(self) -> float:
        """Return the bytes that its fullest rank takes from the GPU."""
        return max(map(needed_bytes, self.memory))

    def thrashes(self, way: LayoutWay) -> bool:
        """Return whether the memory of a GPU of *way* is so full that its allocator frees and retries."""
        return any(stage.verdict(worker_node(way.setting.hardware).gpu) == "thrashes" for stage in self.memory)


class RefineTask(NamedTuple):
    """A layout to be refined from its *level* to the next."""

    number: int
    level: Level
    way: LayoutWay


RefineResult = Bound | Step | None
"""The result of a task; None if the engine refuses the layout."""
LookAhead = Callable[[int], list[RefineTask]]
"""Returns up to that many tasks that may be requested next, the likeliest first."""


class Refine(Protocol):
    """Answers tasks of a search."""

    def __call__(self, task: RefineTask, ahead: LookAhead) -> RefineResult:
        """Return the result of *task*; *ahead* returns tasks that may come next. Raise JournalError if a journal fails."""


@dataclass(frozen=True)
class LocalRefiner:
    """Answers each task when it is requested, in this process."""

    objective: Objective
    memory: float | None
    """Maximum bytes of each GPU that a layout may need; None: all."""
    kept: StepCache | None = None

    def __call__(self, task: RefineTask, ahead: LookAhead) -> RefineResult:
        """Return the result of *task*."""
        try:
            return least(task.way, self.objective) if task.level == FLOOR else simulated(task.way, self.memory, self.kept)
        except JournalError:
            raise
        except SpecError:
            return None


def usable(setting: Setting, memory: float | None) -> float:
    """Return the bytes of each GPU that a layout may need: *memory*, or all of the GPU's if that is less."""
    own = worker_node(setting.hardware).gpu.memory
    return own if memory is None else min(own, memory)


def least(way: LayoutWay, objective: Objective) -> Bound:
    """Return a lower bound of a step of *way*, by its recurrence."""
    workload, layout = laid_out(way)
    setting = way.setting
    scene = layout_scene(setting.hardware, workload, layout, setting.book)
    seconds = least_time(scene)
    if objective != "energy":
        return Bound(seconds, scale(setting, objective) * seconds)
    share = min(1.0, least_work(scene) / seconds)  # computing draws the most power: less of it, in a shorter step, uses less energy
    power = min(site_power(setting, shares, workload) for shares in ((share, 1.0 - share, 0.0), (share, 0.0, 1.0 - share)))
    return Bound(seconds, power * seconds)


def laid_out(way: LayoutWay) -> tuple[Workload, Layout]:
    """Return the workload of *way*, and its layout."""
    workload = way.setting.laid(way.candidate)
    return workload, prepare(way.setting.hardware, workload, way.setting.gpus_per_node, ends=False)


def memory_of(way: LayoutWay) -> Step:
    """Return the memory of *way*, without simulating it. Raise SpecError if the engine refuses it."""
    workload, layout = laid_out(way)
    return Step(memory_by_stage(layout, workload, worker_node(way.setting.hardware).gpu), None)


def fits(way: LayoutWay, memory: float | None) -> bool:
    """Return whether *way* runs and needs at most *memory* bytes of each GPU, without simulating it."""
    try:
        if memory_of(way).needed > usable(way.setting, memory):
            return False
        workload, layout = laid_out(way)
        layout_scene(way.setting.hardware, workload, layout, way.setting.book)
    except SpecError:
        return False
    return True


def simulated(way: LayoutWay, memory: float | None, kept: StepCache | None = None) -> Step:
    """Return the step of *way*, read from *kept* or simulated; only its memory if that exceeds *memory* bytes of a GPU."""
    setting = way.setting
    workload, layout = laid_out(way)
    held = memory_by_stage(layout, workload, worker_node(setting.hardware).gpu)
    if Step(held, None).needed > usable(setting, memory):
        return Step(held, None)

    def played() -> PlayedLayout:
        return play_steadily(layout_scene(setting.hardware, workload, layout, setting.book))

    return Step(held, played() if kept is None else kept.played(setting, way.candidate, played))


def needed_bytes(stage: StageMemory) -> float:
    """Return the bytes that a rank of *stage* takes from its GPU."""
    return stage.reserved + stage.communication_buffers + stage.context
