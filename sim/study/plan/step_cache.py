"""Which layouts were simulated before? A journal keeps the steps of a plan, so that an interrupted plan can resume.

It keeps the time of a step by stage, cause and group of GPUs, under a fingerprint of the machine, the workload and the layout. It does
not keep the event log, which no table of a plan needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim import __version__
from sim.events import Cause, EventLog
from sim.parallel.own_schedule import own_passes
from sim.spec.library import fingerprint
from sim.spec.yaml import SpecError
from sim.study.journal import Journal, RowFigures
from sim.study.plan.floor import Setting
from sim.study.plan.space import LayoutCandidate
from sim.training.layouts.scene import PlayedLayout, StageStep


class JournalError(SpecError):
    """Raised if a journal cannot be read or written, which is no fault of the layout."""


class StepCache:
    """Steps of layouts in *journal*."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._settings: dict[int, str] = {}
        self.found = 0
        """Number of layouts that were read instead of simulated again."""

    def has(self, setting: Setting, candidate: LayoutCandidate) -> bool:
        """Return whether the step of *candidate* is in the journal."""
        return self._key(setting, candidate) in self._journal

    def get_or_play(self, setting: Setting, candidate: LayoutCandidate, play: Callable[[], PlayedLayout]) -> PlayedLayout:
        """Return the step of *candidate*, from the journal or simulated by *play*. Raise JournalError if the journal fails."""
        try:
            if self.has(setting, candidate):
                self.found += 1
                return played_of(self._journal[self._key(setting, candidate)])
        except SpecError as error:
            raise JournalError(error.problems) from None
        played = play()
        self.keep(setting, candidate, played)
        return played

    def keep(self, setting: Setting, candidate: LayoutCandidate, played: PlayedLayout) -> None:
        """Add the step of *candidate* to the journal. Raise JournalError if the journal fails."""
        try:
            self._journal.note(self._key(setting, candidate), figures_of(played))
        except SpecError as error:
            raise JournalError(error.problems) from None

    def _key(self, setting: Setting, candidate: LayoutCandidate) -> str:
        if id(setting) not in self._settings:
            described = [each.model_dump(mode="json") for each in (setting.hardware, setting.workload)]
            self._settings[id(setting)] = fingerprint([__version__, setting.gpus_per_node, *described])
        mesh = setting.workload.training.stack.mesh
        ahead = mesh is not None and mesh.sends_ahead
        own = own_passes(candidate.schedule, candidate.pipeline, candidate.chunks, candidate.micro_batches, ahead)
        passes = [] if own is None else [own.waits_for_sends, own.programs]  # a name alone does not identify what a user's schedule runs
        return fingerprint([self._settings[id(setting)], list(candidate), *passes])


def figures_of(played: PlayedLayout) -> RowFigures:
    """Return the figures of *played* that are kept."""
    return {
        "stages": [
            {
                "time": stage.time,
                "stalls": {cause.value: seconds for cause, seconds in stage.stalls.items()},
                "resources": [[cause.value, name, seconds] for (cause, name), seconds in stage.resources.items()],
                "exposed": dict(stage.exposed),
                "begin": stage.begin,
                "end": stage.end,
            }
            for stage in played.stages
        ]
    }


def played_of(figures: Mapping[str, Any]) -> PlayedLayout:
    """Return the step from its kept *figures*."""
    stages = tuple(
        StageStep(
            stage["time"],
            {Cause(name): seconds for name, seconds in stage["stalls"].items()},
            {(Cause(cause), name): seconds for cause, name, seconds in stage["resources"]},
            stage["exposed"],
            stage["begin"],
            stage["end"],
        )
        for stage in figures["stages"]
    )
    return PlayedLayout(stages, EventLog(lambda: 0.0))
