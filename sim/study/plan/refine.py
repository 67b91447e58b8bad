"""How long does one layout take, more precisely than its floor? Refined by the recurrence of its program, then by its simulation.

A combination that the engine refuses gives no result. Memory excludes a layout before it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from sim.analysis.layout_memory import StageMemory, memory_by_stage, shorten_layout
from sim.mesh import layout_scene, prepare, worker_node
from sim.parallel.lower.layouts import Layout
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.options import Objective
from sim.study.plan.data_parallel import (
    DataParallelSetting,
    data_parallel_floors,
    replica_memory,
    replicated_layout,
    simulate_replicas,
)
from sim.study.plan.floor import Floors, Setting, floors
from sim.study.plan.objective import scale, site_power
from sim.study.plan.prepared import PreparedLayout
from sim.study.plan.space import LayoutCandidate
from sim.study.plan.step_cache import JournalError, StepCache
from sim.training.layouts.bound import least_time, least_work
from sim.training.layouts.scene import PlayedLayout
from sim.training.layouts.turning import play_steadily

Level = Literal[0, 1]
FLOOR: Final[Level] = 0
"""Level of a layout with only a floor: the recurrence is next."""
LEAST: Final[Level] = 1
"""Level of a layout with a recurrence: the simulation is next."""


class PlacedLayout(NamedTuple):
    """A layout and the cluster it is placed on."""

    setting: Setting
    candidate: LayoutCandidate


class StepBound(NamedTuple):
    """Lower bound of a step."""

    time: float
    """Seconds."""
    value: float
    """The objective."""
    thrashes: bool = False
    """Whether its memory is so full that its allocator frees and retries."""


class RefinedStep(NamedTuple):
    """A layout's memory, and its simulated step if the memory fits."""

    memory: tuple[StageMemory, ...]
    played: PlayedLayout | None

    @property
    def needed_bytes(self) -> float:
        """Return the bytes that its fullest rank takes from the GPU."""
        return max(stage.of_gpu for stage in self.memory)

    def thrashes(self, placed_layout: PlacedLayout) -> bool:
        """Return whether the memory of a GPU of *placed_layout* is so full that its allocator frees and retries."""
        return any(stage.verdict(worker_node(placed_layout.setting.hardware).gpu) == "thrashes" for stage in self.memory)


class RefineTask(NamedTuple):
    """A layout to be refined from its *level* to the next."""

    number: int
    level: Level
    placed_layout: PlacedLayout


RefineResult = StepBound | RefinedStep | None
"""The result of a task: a bound if the layout's memory fits, else its memory; None if the engine refuses the layout."""
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
    cache: StepCache | None = None

    def __call__(self, task: RefineTask, ahead: LookAhead) -> RefineResult:
        """Return the result of *task*."""
        try:
            return (
                bound_step(task.placed_layout, self.objective, self.memory)
                if task.level == FLOOR
                else simulate_step(task.placed_layout, self.memory, self.cache)
            )
        except JournalError:
            raise
        except SpecError:
            return None


def usable_memory(setting: Setting, memory: float | None) -> float:
    """Return the bytes of each GPU that a layout may need: *memory*, or all of the GPU's if that is less."""
    own = worker_node(setting.hardware).gpu.memory
    return own if memory is None else min(own, memory)


def bounds(setting: Setting, candidates: Sequence[LayoutCandidate], most: float) -> Floors:
    """Return lower bounds of memory and time of each of *candidates*; times of those that need more than *most* bytes are infinite."""
    if isinstance(setting, DataParallelSetting):
        return data_parallel_floors(setting, candidates, most)
    return floors(setting, candidates, most)


def bound_step(placed_layout: PlacedLayout, objective: Objective, memory: float | None) -> StepBound | RefinedStep:
    """Return a lower bound of a step of *placed_layout*; only its memory if that exceeds *memory* bytes of a GPU."""
    held = memory_of(placed_layout)
    if held.needed_bytes > usable_memory(placed_layout.setting, memory):
        return held
    return least_step(placed_layout, objective)._replace(thrashes=held.thrashes(placed_layout))


def least_step(placed_layout: PlacedLayout, objective: Objective) -> StepBound:
    """Return a lower bound of a step of *placed_layout*, by its recurrence."""
    setting = placed_layout.setting
    if isinstance(setting, DataParallelSetting):
        (floor,) = data_parallel_floors(setting, [placed_layout.candidate], usable_memory(setting, None)).time
        return StepBound(float(floor), scale(setting, objective) * float(floor))
    workload, layout = workload_and_layout(placed_layout)
    scene = layout_scene(setting.hardware, workload, layout, setting.book)
    seconds = least_time(scene)
    if objective != "energy":
        return StepBound(seconds, scale(setting, objective) * seconds)
    share = min(1.0, least_work(scene) / seconds)  # computing draws the most power: less of it, in a shorter step, uses less energy
    power = min(site_power(setting, shares, workload) for shares in ((share, 1.0 - share, 0.0), (share, 0.0, 1.0 - share)))
    return StepBound(seconds, power * seconds)


def workload_and_layout(placed_layout: PlacedLayout) -> tuple[Workload, Layout]:
    """Return the workload of *placed_layout*, and its layout."""
    prepared = _prepared(placed_layout)
    return prepared.workload, prepared.fresh


def _prepared(placed_layout: PlacedLayout) -> PreparedLayout:
    """Return the workload and the layout of *placed_layout*, which are kept. Raise SpecError if the engine refuses it."""
    setting, candidate = placed_layout

    def make() -> PreparedLayout:
        workload = setting.workload_in(candidate)
        if isinstance(setting, DataParallelSetting):
            return PreparedLayout(workload, replicated_layout(setting, workload))
        return PreparedLayout(workload, prepare(setting.hardware, workload, setting.gpus_per_node, check_deadlock=False))

    return setting.prepared.get_or_make(candidate, make)


def memory_of(placed_layout: PlacedLayout) -> RefinedStep:
    """Return the memory of *placed_layout*, without simulating it. Raise SpecError if the engine refuses it."""
    setting = placed_layout.setting
    if isinstance(setting, DataParallelSetting):
        return RefinedStep(replica_memory(setting, placed_layout.candidate), None)
    prepared = _prepared(placed_layout)
    if prepared.memory is None:
        prepared.memory = memory_by_stage(prepared.fresh, prepared.workload, worker_node(setting.hardware).gpu)
    return RefinedStep(prepared.memory, None)


def fits(placed_layout: PlacedLayout, memory: float | None) -> bool:
    """Return whether *placed_layout* runs and needs at most *memory* bytes of each GPU, without simulating it."""
    try:
        if memory_of(placed_layout).needed_bytes > usable_memory(placed_layout.setting, memory):
            return False
        workload, layout = workload_and_layout(placed_layout)
        if not isinstance(placed_layout.setting, DataParallelSetting):  # what the engine refuses does not depend on how often passes repeat
            layout_scene(placed_layout.setting.hardware, workload, shorten_layout(layout), placed_layout.setting.book)
    except SpecError:
        return False
    return True


def simulate_step(placed_layout: PlacedLayout, memory: float | None, cache: StepCache | None = None) -> RefinedStep:
    """Return the step of *placed_layout*, read from *cache* or simulated; only its memory if that exceeds *memory* bytes of a GPU."""
    setting, held = placed_layout.setting, memory_of(placed_layout)
    if held.needed_bytes > usable_memory(setting, memory):
        return held

    def played() -> PlayedLayout:
        if isinstance(setting, DataParallelSetting):
            return simulate_replicas(setting, placed_layout.candidate)
        workload, layout = workload_and_layout(placed_layout)
        return play_steadily(layout_scene(setting.hardware, workload, layout, setting.book))

    played_layout = played() if cache is None else cache.get_or_play(setting, placed_layout.candidate, played)
    return RefinedStep(held.memory, played_layout)
