"""How long is a step of many micro-batches that do not repeat? It is simulated once, after a short step, if it ends as it began.

The state between two steps decides those that follow: which stages are ahead of others, how far hosts and slowest ranks are, what loaders
have built and which operations are under way. A step that ends in the state in which it began is therefore the one that repeats, whatever
came before it, and the step before it need not be a whole one: it has only the first and the last micro-batches. Where all stages meet
before the optimizer, little else of a step is left after it, so one micro-batch at each end is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sim.cluster.clock import SimProcess
from sim.parallel.program import Load, micro_batch_of
from sim.training.layouts.play import play
from sim.training.layouts.progress import GroupProgress, progress_of
from sim.training.layouts.run import Simulation, Stage
from sim.training.layouts.scene import LayoutScene, PlayedLayout

_SAME: Final = 1e-10
"""Tolerance, as a share of a step, for the difference between the states before and after it."""
_KEPT: Final = 3
"""Micro-batches for each stage, at each end of the short step: one to fill or drain the pipeline, the others to settle."""


def play_after_short_step(scene: LayoutScene) -> PlayedLayout | None:
    """Return the result of `play`, from one whole step; None if there are few micro-batches, or the step does not end as it began."""
    left_out = left_out_at_first(scene, scene.layout.micro_batches)
    if not left_out or scene.noise.draws:
        return None
    watched = _ShortThenWhole(left_out)
    played = play(scene, steps=2, make_stage=watched.make_stage)
    return played if watched.step_repeats else None


def left_out_at_first(scene: LayoutScene, micro_batches: int) -> range:
    """Return which of *micro_batches* of *scene* a short first step leaves out; none if too few are left out to be worth it."""
    kept = 1 if scene.stages_meet else _KEPT * scene.layout.mesh.stages
    left_out = range(kept, micro_batches - kept)
    if scene.feed is not None and micro_batches + 2 * kept < scene.feed.ahead + scene.feed.workers:
        return range(0)  # loaders would still have micro-batches that they built before
    return left_out if len(left_out) >= 2 * kept else range(0)


class _StepEnd(NamedTuple):
    """The state of a stage between two steps."""

    host: float
    """How far (s) the host has launched work ahead of the present."""
    sooner: float
    """What the slowest rank has gained (s), for which the others have not made up."""
    loader: tuple[float, ...]
    progress: GroupProgress


class _ShortThenWhole:
    """The stages of the last simulation of a scene; their first step leaves out some micro-batches."""

    def __init__(self, left_out: range) -> None:
        self.left_out = left_out
        self.simulation: Simulation | None = None
        self.stages: list[WarmedStage] = []

    def make_stage(self, simulation: Simulation, stage: int, number: int) -> Stage:
        """Return a stage, or a rank of it."""
        if simulation is not self.simulation:
            self.simulation, self.stages = simulation, []
        made = WarmedStage(simulation, stage, number, self.left_out)
        self.stages.append(made)
        return made

    @property
    def step_repeats(self) -> bool:
        """Return whether the second step ended in the state in which it began."""
        return step_repeats(self.stages)


def step_repeats(stages: Sequence[WarmedStage]) -> bool:
    """Return whether the last step of *stages*, the stages of one simulation, ended in the state in which it began."""
    times = [stage.step_times()[-1] for stage in stages]
    within = _SAME * max(times)
    return max(times) - min(times) <= within and all(stage.repeats(within) for stage in stages)


class WarmedStage(Stage):
    """One stage, or a rank of it, whose first step leaves out the micro-batches *left_out*."""

    def __init__(self, simulation: Simulation, stage: int, number: int, left_out: range) -> None:
        super().__init__(simulation, stage, number)
        self.left_out = left_out
        self.step_ends: list[_StepEnd] = []
        self.spare = 0.0
        """The shortest time (s) in this step for which a micro-batch was ready before it was taken."""
        self.begin = self.end = 0.0
        """Times (s) at which this step began and ended."""
        self.taken_before = 0
        """Micro-batches that were taken before this step."""

    def run(self) -> SimProcess:
        """Run one step."""
        self.spare, self.begin = float("inf"), self.env.now
        self.taken_before = len(self.loader.take_times) if self.loader is not None else 0
        if self.step_ends or not self.left_out:
            yield from self.run_whole()
        else:
            for at, instruction in enumerate(self.program):
                if micro_batch_of(instruction) not in self.left_out:
                    yield from self.play(at, at + 1)
        self.step_ends.append(self._step_end())
        self.end = self.env.now

    def run_whole(self) -> SimProcess:
        """Run one step with all micro-batches."""
        yield from super().run()

    def _load(self, load: Load, at: int) -> SimProcess:
        yield from super()._load(load, at)
        if self.loader is not None:
            self.spare = min(self.spare, self.env.now - self.loader.ready)

    def _step_end(self) -> _StepEnd:
        kernels, now = self.kernels, self.env.now
        return _StepEnd(
            host=max(0.0, kernels.host - now),
            sooner=kernels.slowest.lateness().sooner,
            loader=self.loader.leads(now) if self.loader is not None else (),
            progress=progress_of(kernels, self.meetings),
        )

    def repeats(self, within: float) -> bool:
        """Return whether the last step ended in the state in which it began, if times may differ by *within* seconds."""
        before, after = self.step_ends
        times_alike = abs(after.host - before.host) <= within and abs(after.sooner - before.sooner) <= within
        return times_alike and after.progress.equals(before.progress, within) and self._loads_alike(within)

    def _loads_alike(self, within: float) -> bool:
        """Return whether the next step would get its micro-batches as the last one did."""
        if self.loader is None or not self.loader.take_times:  # a stage that loads nothing
            return True
        before, after = (end.loader for end in self.step_ends)
        if not after:  # what it built before the first step is not used up
            return False
        if len(before) == len(after) and all(abs(a - b) <= within for a, b in zip(before, after, strict=True)):
            return True
        if self.spare <= within:  # it waited
            return False
        length, again = self.end - self.begin, self.loader.copy()
        for taken in self.loader.take_times[self.taken_before :]:
            ready, _ = again.next(taken + length)
            if ready > taken + length:
                return False
        later = again.leads(self.end + length)
        return all(a <= b + within for a, b in zip(later, after, strict=True))
