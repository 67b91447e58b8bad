"""How do many processes search for one layout? They refine layouts ahead of time that the search comes to next.

The search requests one answer at a time, and does not depend on who computes it. An answer that is missing is computed in a wave, together
with those that may be requested next: the layouts with the least bounds, except those that a simulated layout already beats. If the search
never requests an answer, because it found a better layout meanwhile, that answer counts nowhere; its step stays in the journal.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from sim.analysis.layout_memory import StageMemory
from sim.spec.extensions import has_registered
from sim.study.cluster import on_cluster, task_files
from sim.study.journal import RowFigures
from sim.study.options import Objective
from sim.study.plan.floor import Setting
from sim.study.plan.prepared import PreparedLayouts
from sim.study.plan.refine import LEAST, Level, LocalRefiner, LookAhead, PlacedLayout, Refine, RefinedStep, RefineResult, RefineTask
from sim.study.plan.space import LayoutCandidate
from sim.study.plan.step_cache import figures_of, played_of
from sim.study.pool import each, process_count
from sim.training.layouts.prices import PriceBook

START: Final = 1.0
"""Seconds of refining after which processes take over: about the start-up time of two of them, so that a short plan starts none."""
SIMULATIONS, TASKS = 2, 16
"""Maximum simulations and tasks per process in a wave: a bound takes a tenth of the time of a simulation, and fewer of them are wasted."""


class Workers(NamedTuple):
    """Computes waves: a function over many items, on a number of processes."""

    processes: int
    each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
    remote: bool
    """Whether the processes already run, on other machines."""


@contextmanager
def workers(processes: int | None, cluster: str | None, notice: Callable[[str], None]) -> Iterator[Workers | None]:
    """Yield up to *processes* processes of this machine (all cores if None), or those of the dask scheduler at *cluster*; None for one."""
    if cluster is not None:
        with on_cluster(cluster, task_files(()), notice) as (count, run):
            yield Workers(count, run, remote=True)
        return
    count = process_count(processes)
    yield None if count == 1 or has_registered() else Workers(count, partial(_on_processes, count), remote=False)


def _on_processes(processes: int, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    return each(function, items, processes)


def refiner(local: LocalRefiner, crew: Workers | None) -> Refine:
    """Return a function that refines with *crew* in the placed_layout that *local* does."""
    return local if crew is None else _Waves(local, crew)


_TaskName = tuple[int, Level]


class _SentTask(NamedTuple):
    """A task as it is sent to another process."""

    name: _TaskName
    setting: bytes
    candidate: LayoutCandidate


class _Sent(NamedTuple):
    """A simulated step as it is sent back."""

    memory: tuple[StageMemory, ...]
    figures: RowFigures


class _Waves:
    """Answers from waves; tasks in the journal, and the first second of work, are computed in this process."""

    def __init__(self, alone: LocalRefiner, crew: Workers) -> None:
        self._alone, self._crew = alone, crew
        self._results: dict[_TaskName, RefineResult] = {}
        self._settings: dict[int, bytes] = {}
        self._local_seconds = 0.0

    def __call__(self, task: RefineTask, ahead: LookAhead) -> RefineResult:
        if _name(task) not in self._results:
            if self._is_kept(task) or (self._local_seconds < START and not self._crew.remote):
                begin = time.perf_counter()
                answer = self._alone(task, ahead)
                self._local_seconds += time.perf_counter() - begin
                return answer
            self._compute(task, ahead)
        return self._results.pop(_name(task))

    def _is_kept(self, task: RefineTask) -> bool:
        return task.level == LEAST and self._alone.cache is not None and self._alone.cache.has(*task.placed_layout)

    def _compute(self, task: RefineTask, ahead: LookAhead) -> None:
        """Compute a wave that includes *task*, and keep its answers."""
        new = [each for each in ahead(TASKS * self._crew.processes) if _name(each) not in self._results and not self._is_kept(each)]
        later = {each.number for each in [each for each in new if each.level == LEAST][SIMULATIONS * self._crew.processes :]}
        wave = {_name(each): each for each in [task, *new] if each is task or each.number not in later}
        items = [_SentTask(name, self._packed(each.placed_layout.setting), each.placed_layout.candidate) for name, each in wave.items()]
        for name, answer in self._crew.each(partial(_answer, self._alone.objective, self._alone.memory), items):
            if isinstance(answer, _Sent):
                played = played_of(answer.figures)
                answer = RefinedStep(answer.memory, played)
                if self._alone.cache is not None:
                    self._alone.cache.keep(*wave[name].placed_layout, played)
            self._results[name] = answer

    def _packed(self, setting: Setting) -> bytes:
        if id(setting) not in self._settings:
            self._settings[id(setting)] = pickle.dumps(replace(setting, book=PriceBook(), prepared=PreparedLayouts()))
        return self._settings[id(setting)]


def _name(task: RefineTask) -> _TaskName:
    return task.number, task.level


def _answer(objective: Objective, memory: float | None, item: _SentTask) -> tuple[_TaskName, RefineResult | _Sent]:
    """Answer *item* in another process: the step of a layout is sent back as its figures, without the event log."""
    placed_layout = PlacedLayout(_setting(item.setting), item.candidate)
    answer = LocalRefiner(objective, memory)(RefineTask(*item.name, placed_layout), lambda most: [])
    if isinstance(answer, RefinedStep) and answer.played is not None:
        return item.name, _Sent(answer.memory, figures_of(answer.played))
    return item.name, answer


@lru_cache(maxsize=16)
def _setting(packed: bytes) -> Setting:
    """Return the unpickled setting of *packed*, cached so that its layouts share prices."""
    setting: Setting = pickle.loads(packed)
    return setting
