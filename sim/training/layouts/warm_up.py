"""How long is a step of many micro-batches that do not repeat? It is simulated once, after a short step, if it ends as it began.

The state between two steps decides those that follow: which stages are ahead of others, how far hosts and slowest ranks are, what loaders
have built and which operations are under way. A step that ends in the state in which it began is therefore the one that repeats, whatever
came before it, and the step before it need not be a whole one: it has only the first and the last micro-batches.
"""

from __future__ import annotations

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
    layout = scene.layout
    kept = _KEPT * layout.mesh.stages
    left_out = range(kept, layout.micro_batches - kept)
    if len(left_out) < 2 * kept or scene.noise.draws:
        return None
    watched = _ShortThenWhole(left_out)
    played = play(scene, steps=2, make_stage=watched.make_stage)
    return played if watched.step_repeats else None


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
        self.stages: list[_WarmedStage] = []

    def make_stage(self, simulation: Simulation, stage: int, number: int) -> Stage:
        """Return a stage, or a rank of it."""
        if simulation is not self.simulation:
            self.simulation, self.stages = simulation, []
        made = _WarmedStage(simulation, stage, number, self.left_out)
        self.stages.append(made)
        return made

    @property
    def step_repeats(self) -> bool:
        """Return whether the second step ended in the state in which it began."""
        times = [stage.step_times()[-1] for stage in self.stages]
        within = _SAME * max(times)
        return max(times) - min(times) <= within and all(stage.repeats(within) for stage in self.stages)


class _WarmedStage(Stage):
    """One stage, or a rank of it, whose first step leaves out the micro-batches *left_out*."""

    def __init__(self, simulation: Simulation, stage: int, number: int, left_out: range) -> None:
        super().__init__(simulation, stage, number)
        self.left_out = left_out
        self.step_ends: list[_StepEnd] = []
        self.spare = 0.0
        """The shortest time (s) in this step for which a micro-batch was ready before it was taken."""

    def run(self) -> SimProcess:
        """Run one step."""
        self.spare = float("inf")
        if self.step_ends:
            yield from super().run()
        else:
            for at, instruction in enumerate(self.program):
                if micro_batch_of(instruction) not in self.left_out:
                    yield from self.play(at, at + 1)
        self.step_ends.append(self._step_end())

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
        if len(before.loader) != len(after.loader):
            return False
        later = [of_after - of_before for of_before, of_after in zip(before.loader, after.loader, strict=True)]
        never_waits = max((0.0, *later)) < self.spare  # nor would it, had the step begun like this
        loads_alike = never_waits or all(abs(each) <= within for each in later)
        times_alike = abs(after.host - before.host) <= within and abs(after.sooner - before.sooner) <= within
        return loads_alike and times_alike and after.progress.equals(before.progress, within)
