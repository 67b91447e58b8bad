"""How long is a step of many equal turns? Most are left out of the simulation, once it repeats, and count as the last one before them.

In the steady state of a layout, each turn (`sim.parallel.turns`) takes the same time on all stages: a max-plus system becomes periodic
(Baccelli et al., "Synchronization and Linearity", section 3.7). Where a stage leaves out turns, all that grows from turn to turn without
an effect on the next ones grows as much as in the turns left out: how far its host is ahead, how far its slowest rank is behind, and what
it has computed. The result counts only if, in each step, the three turns before that place take the same time on all stages, instruction
by instruction; if operations of groups that are under way there are as far as one turn before; and if neither host nor loader fall behind.
Where all stages meet in each step, the first one is short and must end like the second (`warm_up`).
Limits: the log does not cover the turns that were left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from sim.cluster.clock import SimProcess
from sim.parallel.lower.layouts import Layout, program
from sim.parallel.turns import Turns, turns_of
from sim.training.layouts.play import play
from sim.training.layouts.progress import GroupProgress, progress_of
from sim.training.layouts.run import Simulation, Stage
from sim.training.layouts.scene import LayoutScene, PlayedLayout, StageStep
from sim.training.layouts.slowest import Lateness
from sim.training.layouts.warm_up import WarmedStage, left_out_at_first, play_after_short_step, step_repeats

_SAME: Final = 1e-10
"""Tolerance, as a share of a turn, for the difference between the times of two turns."""
_FEW: Final = (6, 12, 24, 48)
"""Turns that are simulated: filling and draining take one to two each, and three are compared; with backlogs, it takes more to settle."""
_COMPARED: Final = 2
"""Turns by which a program is longer than another, to find its turns."""
_WORTH: Final = 0.5
"""Maximum share of a step's micro-batches that is simulated before all of them are, if turns are not equal."""


def play_steadily(scene: LayoutScene, notice: Callable[[], None] = lambda: None) -> PlayedLayout:
    """Return the result of `play`, with an accuracy of 1e-6 (most: 1e-11); with many micro-batches, the log has fewer of them.

    *notice* is called before all of them are simulated.
    """
    few = play_turns(scene)
    if few is not None:
        return few
    notice()
    return play_after_short_step(scene) or play(scene)


def play_turns(scene: LayoutScene) -> PlayedLayout | None:
    """Return the result of `play`, without most turns in the log; None if the step has too few turns, or they are not seen to be equal."""
    layout = scene.layout
    if layout.own_passes is not None:
        return None
    each, tried = layout.mesh.stages, 0
    for count in _FEW:
        micro_batches = count * each + layout.micro_batches % each
        tried += micro_batches
        turns = turns_by_stage(layout, micro_batches) if tried <= _WORTH * layout.micro_batches else None
        if turns is None:
            return None
        watched = _Watched(turns, left_out_at_first(scene, micro_batches) if scene.stages_meet and not scene.noise.draws else range(0))
        few = replace(scene, programs=[of_stage.program for of_stage in turns])
        try:
            played = play(few, steps=2 if watched.left_out else 0, make_stage=watched.make_stage)
        except _NotSteady as raised:
            raised.__traceback__ = None  # its frames refer to events that refer to it, which only the garbage collector would free
            continue
        if watched.is_steady:
            return replace(played, left_out=layout.micro_batches - micro_batches)
    return None


def turns_by_stage(layout: Layout, micro_batches: int) -> list[Turns] | None:
    """Return the turns that steps of *layout* have in addition to *micro_batches*, for each stage; None if a program has none.

    Two turns more show how a program grows; that those of further ones are the same is not read from the program of the whole step, which
    takes longer to write than its turns to simulate (a test compares the two).
    """
    each = layout.mesh.stages
    short, longer = (replace(layout, micro_batches=micro_batches + more * each) for more in (0, _COMPARED))
    turns = []
    for stage in range(each):
        of_stage = turns_of(program(longer, stage), program(short, stage), each, _COMPARED)
        if of_stage is None:
            return None
        turns.append(of_stage._replace(left_out=(layout.micro_batches - micro_batches) // each))
    return turns


class _NotSteady(Exception):
    """The turns of a step are not equal."""


class _TurnState(NamedTuple):
    """The state of a stage between two turns, besides what its instructions show."""

    time: float
    """The present (s)."""
    host: float
    """How far (s) the host is behind the GPU; negative if it has launched the next work already."""
    lateness: Lateness
    worked: float
    """Seconds of compute in this step."""
    loader: tuple[float, ...]
    waits: int
    """Number of waits in the log."""
    exposed: dict[str, float]
    progress: GroupProgress | None
    """How far operations of groups are; None if turns have none."""


class _Watched:
    """Simulations of one scene that leave out *turns* (by stage), and in the first step all of *left_out*, if these are any."""

    def __init__(self, turns: list[Turns], left_out: range) -> None:
        self.turns = turns
        self.left_out = left_out
        self.stages: dict[Simulation, list[_TurningStage]] = {}

    def make_stage(self, simulation: Simulation, stage: int, number: int) -> Stage:
        """Return a stage, or a rank of it, that leaves out turns."""
        made = _TurningStage(simulation, stage, number, self.turns[stage], self.left_out)
        self.stages.setdefault(simulation, []).append(made)
        return made

    @property
    def is_steady(self) -> bool:
        """Return whether the turns around those left out are equal on all stages, in each step of each simulation."""
        for stages in self.stages.values():
            times_of = [stage.turn_times for stage in stages if stage.turn_times]
            if not all(max(times) - min(times) <= _SAME * max(times) for times in zip(*times_of, strict=True)):
                return False
            if self.left_out and not step_repeats(stages):
                return False
        return True


class _TurningStage(WarmedStage):
    """One stage, or a rank of it, that leaves out *turns*, and in its first step the micro-batches *left_out*."""

    def __init__(self, simulation: Simulation, stage: int, number: int, turns: Turns, left_out: range) -> None:
        super().__init__(simulation, stage, number, left_out)
        self.turns = turns
        self.each = simulation.scene.layout.mesh.stages
        """Micro-batches of a turn."""
        self.last_turns: list[tuple[_TurnState, _TurnState]] = []
        """Beginning and end of the turn before those left out, in each step."""

    @property
    def turn_times(self) -> list[float]:
        """Return the time (s) of a turn in each step."""
        return [last.time - first.time for first, last in self.last_turns]

    def run_whole(self) -> SimProcess:
        """Run one step, without the turns that are left out. Raise _NotSteady if they may differ from those before."""
        self.clock, turns = [], self.turns
        yield from self.play(0, turns.end - turns.length)
        first = self._turn_state(0)
        yield from self.play(turns.end - turns.length, turns.end)
        last = self._turn_state(1)
        self.last_turns.append((first, last))
        if not (self._repeats() and self._nothing_binds(first, last) and self._operations_repeat(first, last)):
            raise _NotSteady
        self._leave_out(first, last)
        yield from self.play(turns.end, len(self.program))

    def _turn_state(self, turn: int) -> _TurnState:
        """Return the state at the beginning (0) or at the end (1) of the turn before those left out."""
        kernels, now = self.kernels, self.env.now
        return _TurnState(
            time=now,
            host=kernels.host - now,
            lateness=kernels.slowest.lateness(),
            worked=kernels.worked_in_step,
            loader=self.loader.leads(now) if self.loader is not None else (),
            waits=len(self.account.log.waits),
            exposed=dict(self.account.exposed[-1]),
            progress=progress_of(kernels, self.meetings, turn * self.each) if self.turns.communicates else None,
        )

    def _nothing_binds(self, first: _TurnState, last: _TurnState) -> bool:
        """Return whether nothing that changes from turn to turn will have an effect after more of them."""
        within = _SAME * (last.time - first.time)
        if self.loader is not None and self.turns.loads:
            keeps_pace = bool(first.loader) and all(abs(a - b) <= within for a, b in zip(first.loader, last.loader, strict=True))
            if not keeps_pace:
                return False
        return last.host <= first.host + within

    def _operations_repeat(self, first: _TurnState, last: _TurnState) -> bool:
        """Return whether operations of groups are as far as a turn before; none may be under way if turns start none."""
        if first.progress is None or last.progress is None:
            return self.kernels.waiting == 0 and self.meetings.only_messages_left()
        return last.progress.equals(first.progress, _SAME * (last.time - first.time))

    def _leave_out(self, first: _TurnState, last: _TurnState) -> None:
        """Change what grows from turn to turn by as much as in the turns left out, each like the one from *first* to *last*."""
        kernels, left_out = self.kernels, self.turns.left_out
        kernels.host += left_out * (last.host - first.host)
        kernels.floor -= left_out * (last.time - first.time)  # a time in the past
        kernels.worked_in_step += left_out * (last.worked - first.worked)
        (behind, sooner), before = last.lateness, first.lateness
        kernels.slowest.set_lateness(
            Lateness(behind + left_out * (behind - before.behind), max(0.0, sooner + left_out * (sooner - before.sooner)))
        )

    def _repeats(self) -> bool:
        """Return whether each instruction of the three last turns took place one turn after that in the turn before."""
        begin, end, length = self.turns.begin, self.turns.end, self.turns.length
        turn = self.turn_times[-1]
        pairs = zip(self.clock[begin : end - length], self.clock[begin + length : end], strict=True)
        return all(abs(after - before - turn) <= _SAME * turn for before, after in pairs)

    def step_times(self) -> list[float]:
        """Return the time (s) of each step, with the turns that were left out."""
        left_out, played = self.turns.left_out, super().step_times()
        short = len(played) - len(self.turn_times)  # steps that left out no turns
        return [*played[:short], *(time + left_out * turn for time, turn in zip(played[short:], self.turn_times, strict=True))]

    def last_step(self) -> StageStep:
        """Return the last step by cause and resource, with the turns that were left out; the mean of many if steps are drawn."""
        step, left_out, count = super().last_step(), self.turns.left_out, self.averaged_steps
        stalls, resources, exposed = dict(step.stalls), dict(step.resources), dict(step.exposed)
        for first, last in self.last_turns[-count:]:
            for wait in self.account.log.waits[first.waits : last.waits]:
                if wait.rank == self.account.index:
                    seconds = left_out * (wait.t1 - wait.t0) / count
                    stalls[wait.cause] += seconds
                    resources[wait.cause, wait.resource] += seconds
            for group in exposed:
                exposed[group] += left_out * (last.exposed[group] - first.exposed[group]) / count
        time = step.time + left_out * sum(self.turn_times[-count:]) / count
        return replace(step, time=time, stalls=stalls, resources=resources, exposed=exposed)
