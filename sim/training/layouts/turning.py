"""How long is a step of many equal turns? Most are left out of the simulation, once it repeats, and count as the last one before them.

In the steady state of a pipeline, each turn (`sim.parallel.turns`) takes the same time on all stages: a max-plus system becomes periodic
(Baccelli et al., "Synchronization and Linearity", section 3.7). Where a stage leaves out turns, all that grows from turn to turn without
an effect on the next ones grows as much as in the turns left out: how far its host is ahead, how far its slowest rank is behind, and what
it has computed. The result counts only if the three turns before that place take the same time on all stages, instruction by instruction;
if no operation of a group is under way; and if neither host nor loader fall behind.
Limits: the log does not cover the turns that were left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from sim.parallel.lower.layouts import program
from sim.parallel.turns import Turns, turns_of
from sim.training.layouts.play import play_stages, plays_stages
from sim.training.layouts.run import SimProcess, Simulation, Stage
from sim.training.layouts.scene import LayoutScene, PlayedLayout, StageStep
from sim.training.layouts.slowest import Lateness

_SAME: Final = 1e-10
"""Tolerance, as a share of a turn, for the difference between the times of two turns."""
_FEW: Final = (6, 12)
"""Turns that are simulated: filling and draining take one to two each, and three are compared; with backlogs, it takes more to settle."""
_WORTH: Final = 0.5
"""Maximum share of a step's micro-batches that is simulated before all of them are, if turns are not equal."""


def play_turns(scene: LayoutScene) -> PlayedLayout | None:
    """Return the result of `play`, without most turns in the log; None if the step has too few turns, or they are not seen to be equal."""
    layout = scene.layout
    if scene.noise.draws or scene.outflows or layout.own_passes is not None or not plays_stages(scene):
        return None
    each, tried = layout.mesh.stages, 0
    for count in _FEW:
        micro_batches = count * each + layout.micro_batches % each
        tried += micro_batches
        turns = _turns(scene, micro_batches) if tried <= _WORTH * layout.micro_batches else None
        if turns is None:
            return None
        watched = _Watched(turns)
        played = play_stages(replace(scene, programs=[of_stage.program for of_stage in turns]), simulate=watched.simulate)
        if watched.is_steady:
            return played
    return None


def _turns(scene: LayoutScene, micro_batches: int) -> list[Turns] | None:
    """Return the turns of each stage in a step of *micro_batches* with unchanged times; None if a program has none."""
    layout = replace(scene.layout, micro_batches=micro_batches)
    each = layout.mesh.stages
    left_out = (scene.layout.micro_batches - micro_batches) // each
    turns = []
    for stage, of_step in enumerate(scene.programs):
        of_stage = turns_of(of_step, program(layout, stage), each, left_out)
        if of_stage is None:
            return None
        turns.append(of_stage)
    return turns


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


class _Turning(Simulation):
    """The simulation of a scene whose programs leave out turns."""

    def __init__(self, scene: LayoutScene, steps: int, starved: bool, turns: list[Turns]) -> None:
        self.turns = turns
        super().__init__(scene, steps, keep_rates=False, starved=starved)

    def create_stages(self) -> list[Stage]:
        """Return the stages."""
        self.turning_stages = [_TurningStage(self, number, turns) for number, turns in enumerate(self.turns)]
        return list(self.turning_stages)

    @property
    def is_steady(self) -> bool:
        """Return whether the turns around those left out are equal, in each step and on all stages."""
        if not all(stage.is_steady for stage in self.turning_stages):
            return False
        by_step = zip(*(stage.turn_times for stage in self.turning_stages), strict=True)
        return all(max(times) - min(times) <= _SAME * max(times) for times in by_step)


class _Watched:
    """Simulations of one scene that leave out *turns*."""

    def __init__(self, turns: list[Turns]) -> None:
        self.turns = turns
        self.simulations: list[_Turning] = []

    def simulate(self, scene: LayoutScene, steps: int, _: bool, starved: bool) -> Simulation:
        """Return a simulation of *scene*."""
        self.simulations.append(_Turning(scene, steps, starved, self.turns))
        return self.simulations[-1]

    @property
    def is_steady(self) -> bool:
        """Return whether all of the simulations repeated where they left out turns."""
        return all(each.is_steady for each in self.simulations)


class _TurningStage(Stage):
    """One stage that leaves out *turns*."""

    def __init__(self, simulation: Simulation, number: int, turns: Turns) -> None:
        super().__init__(simulation, number, number)
        self.turns = turns
        self.turn_times: list[float] = []
        """Time (s) of a turn in each step."""
        self.is_steady = True
        """Whether the turns around those left out were equal in each step so far."""

    def run(self) -> SimProcess:
        """Run one step, without the turns that are left out."""
        self.clock, turns = [], self.turns
        yield from self.play(0, turns.end - turns.length)
        first = self._turn_state()
        yield from self.play(turns.end - turns.length, turns.end)
        last = self._turn_state()
        self.last_turn = first, last
        self.turn_times.append(last.time - first.time)
        self.is_steady = self.is_steady and self._repeats() and self._nothing_binds(first, last)
        self._leave_out(first, last)
        yield from self.play(turns.end, len(self.program))

    def _turn_state(self) -> _TurnState:
        kernels, now = self.kernels, self.env.now
        leads = self.loader.leads(now) if self.loader is not None else ()
        worked, exposed = kernels.worked_in_step, dict(self.account.exposed[-1])
        return _TurnState(now, kernels.host - now, kernels.slowest.lateness(), worked, leads, len(self.account.log.waits), exposed)

    def _nothing_binds(self, first: _TurnState, last: _TurnState) -> bool:
        """Return whether nothing that changes from turn to turn will have an effect after more of them."""
        within = _SAME * (last.time - first.time)
        if self.loader is not None and self.turns.loads:
            keeps_pace = bool(first.loader) and all(abs(a - b) <= within for a, b in zip(first.loader, last.loader, strict=True))
            if not keeps_pace:
                return False
        return last.host <= first.host + within and self.kernels.waiting == 0 and self.meetings.only_messages_left()

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

    def last_step(self) -> StageStep:
        """Return the last step by cause and resource, with the turns that were left out."""
        step, (first, last), left_out = super().last_step(), self.last_turn, self.turns.left_out
        stalls, resources = dict(step.stalls), dict(step.resources)
        for wait in self.account.log.waits[first.waits : last.waits]:
            if wait.rank == self.account.index:
                seconds = left_out * (wait.t1 - wait.t0)
                stalls[wait.cause] += seconds
                resources[wait.cause, wait.resource] += seconds
        exposed = {group: seconds + left_out * (last.exposed[group] - first.exposed[group]) for group, seconds in step.exposed.items()}
        time = step.time + left_out * (last.time - first.time)
        return replace(step, time=time, stalls=stalls, resources=resources, exposed=exposed, end=step.begin + time, clock=())
