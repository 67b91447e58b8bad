"""How long does one step of a layout take at least? Its programs as a recurrence, without contention and without SimPy.

Every instruction starts as soon as what it waits for is over, operations keep the order of their queues, and each takes the time that it
takes with nothing foreign beside it. All of this is monotone (max and plus), so the simulated step, in which operations share links and
compute slows beside them, is never shorter. Where all stages meet in each step (gradient clipping) the step from one meeting to the next
is exact; elsewhere the least advance of any stage bounds the cycle time from below (Collatz-Wielandt).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sim.parallel.program import Instruction, Program, Receive, Send, Start, Tag, Update, Wait, Work
from sim.training.layouts.run import SHARED, Scene

_MEETING: Final[Tag] = ("norm", 0, 0)
_STEPS: Final = 3
"""Steps that are tried where stages never all meet."""


def least_time(scene: Scene) -> float:
    """Return seconds that no simulation of *scene* goes below."""
    programs = [list(program) for program in scene.programs]
    if scene.layout.clips:
        ends = [program.index(Wait(_MEETING)) + 1 for program in programs]
        recurrence = _Recurrence(scene, before=True)
        recurrence.run([program[end:] for program, end in zip(programs, ends, strict=True)])
        recurrence.next_step()
        recurrence.run([program[:end] for program, end in zip(programs, ends, strict=True)])
        return max(rank.now for rank in recurrence.ranks)
    recurrence = _Recurrence(scene)
    best, done = 0.0, [0.0] * len(programs)
    for _ in range(_STEPS if len(programs) > 1 else 1):
        recurrence.run(programs)
        recurrence.next_step()
        best = max(best, min(rank.now - before for rank, before in zip(recurrence.ranks, done, strict=True)))
        done = [rank.now for rank in recurrence.ranks]
    return best


@dataclass(eq=False)
class _Rank:
    """The ranks of one stage: when their compute and their host are done with all so far."""

    now: float = 0.0
    host: float = 0.0
    place: int = 0
    worked: float = 0.0
    worked_in_step: float = 0.0
    queues: dict[str, float] = field(default_factory=dict)
    """When each communicator has played everything so far."""
    ends: dict[Tag, float] = field(default_factory=dict)
    """When each of this step's operations is over."""


class _Recurrence:
    """All stages, each run as far as what it needs is known."""

    def __init__(self, scene: Scene, before: bool = False) -> None:
        self.scene = scene
        self.ranks = [_Rank(host=float("-inf") if before else 0.0) for _ in scene.programs]
        self.arrivals: dict[Tag, list[tuple[float, float]]] = {}
        """Of operations across stages: when each stage has come, and how much later its slowest rank."""
        self.shared: dict[Tag, float] = {}
        self.sent: dict[Tag, float] = {}
        self.shared_queues: dict[str, float] = {}
        self.expected: dict[Tag, int] = {}
        for program in scene.programs:
            for each in program:
                if type(each) is Start and each.axis in SHARED:
                    self.expected[each.tag] = self.expected.get(each.tag, 0) + 1
        self.works: list[dict[tuple[str, int, int], tuple[float, float, float]]] = [{} for _ in scene.programs]
        self.sends: dict[tuple[int, int], float] = {}

    def next_step(self) -> None:
        """Forget the operations of the step; results of it are read back, so that hosts launch nothing ahead of it."""
        self.arrivals, self.shared, self.sent = {}, {}, {}
        for rank in self.ranks:
            rank.host = max(rank.host, rank.now)
            rank.worked_in_step, rank.ends = 0.0, {}

    def run(self, programs: Sequence[Program | list[Instruction]]) -> None:
        """Run all stages to the ends of *programs*."""
        for rank in self.ranks:
            rank.place = 0
        waiting = list(range(len(programs)))
        while waiting:
            before = [self.ranks[stage].place for stage in waiting]
            for stage in waiting:
                self._advance(stage, programs[stage])
            if before == [self.ranks[stage].place for stage in waiting]:
                raise RuntimeError(f"stages {waiting} wait for each other for ever")
            waiting = [stage for stage in waiting if self.ranks[stage].place < len(programs[stage])]

    def _advance(self, stage: int, program: Sequence[Instruction]) -> None:  # noqa: C901  one loop, since it runs a million times
        """Run *stage* until what its next instruction waits for is not known yet."""
        rank, works, overlaps = self.ranks[stage], self.works[stage], self.scene.layout.options.pipeline_overlap
        boundary = self.scene.layout.boundary
        place, end, now, host = rank.place, len(program), rank.now, rank.host
        while place < end:
            instruction = program[place]
            kind = type(instruction)
            if kind is Work:
                key = (instruction.part, instruction.first, instruction.last)  # type: ignore[union-attr]
                times = works.get(key) or self._work(stage, key)
                compute, launches, tail = times
                host += launches
                now += compute
                if compute and host > now:
                    now = host
                now += tail
                rank.worked += compute
                rank.worked_in_step += compute
            elif kind is Receive:
                tag = instruction.tag  # type: ignore[union-attr]
                sent = self.sent.get(tag)
                if sent is None:
                    break
                begin = sent if overlaps else max(sent, now)
                now = max(now, begin + self._send(instruction.stage, stage, boundary))  # type: ignore[union-attr]
            elif kind is Send:
                self.sent[instruction.tag] = now  # type: ignore[union-attr]
            elif kind is Start:
                self._start(rank, stage, instruction, now)  # type: ignore[arg-type]
            elif kind is Wait:
                tag = instruction.tag  # type: ignore[union-attr]
                over = rank.ends.get(tag)
                if over is None:
                    over = self.shared.get(tag)
                    if over is None:
                        break
                now = max(now, over)
            elif kind is Update:
                seconds, launched = self.scene.updates[stage]
                host += launched * self.scene.launch_cpu
                now = max(now + seconds, host)
                rank.worked += seconds
                rank.worked_in_step += seconds
            place += 1
        rank.place, rank.now, rank.host = place, now, host

    def _work(self, stage: int, key: tuple[str, int, int]) -> tuple[float, float, float]:
        """Return seconds of compute, of launching, and of what nothing hides, of work on units of the model."""
        part, first, last = key
        time = self.scene.times[stage].span(first, last, part)  # type: ignore[arg-type]
        tail = self.scene.spread.tensor * time.compute + sum(each.seconds for each in time.exposed if each.seconds > 0)
        self.works[stage][key] = (time.compute, time.launches * self.scene.launch_cpu, tail)
        return self.works[stage][key]

    def _send(self, source: int, target: int, nbytes: float) -> float:
        if (source, target) not in self.sends:
            self.sends[source, target] = self.scene.prices.send(source, target, nbytes).alone
        return self.sends[source, target]

    def _start(self, rank: _Rank, stage: int, start: Start, now: float) -> None:
        shared, spread, prices = start.axis in SHARED, self.scene.spread, self.scene.prices
        if start.axis == "everyone":
            late = spread.all * rank.worked_in_step
        else:
            late, rank.worked = spread.data * rank.worked, 0.0
        seconds = prices.outlined(0 if shared else stage, start.axis, start.op, start.nbytes).alone
        if not shared:
            begin = max(now + late, rank.queues.get(start.communicator, 0.0))
            rank.queues[start.communicator] = rank.ends[start.tag] = begin + seconds
            return
        came = self.arrivals.setdefault(start.tag, [])
        came.append((now, late))
        if len(came) == self.expected[start.tag]:  # the stage that comes last brings its delay; which one that is may differ
            begin = max(max(each for each, _ in came) + min(late for _, late in came), self.shared_queues.get(start.communicator, 0.0))
            self.shared_queues[start.communicator] = self.shared[start.tag] = begin + seconds
