"""What is a lower bound on the step time of a layout? Its programs as a recurrence, without contention and without SimPy; links alone.

Every instruction starts as soon as what it waits for has ended, operations keep the order of their queues, and each takes the time without
traffic of other operations. All of this is monotone (max and plus). The simulated step, in which operations share links and slow compute,
is therefore never shorter. If all stages meet in each step (gradient clipping), the step from one meeting to the next is exact; otherwise,
the smallest advance of any stage in a step bounds the cycle time from below (Collatz-Wielandt).
On slow links, contention takes most of a step, so the time in which each link carries its traffic is a bound of its own (`link_bound`),
and so is the time in which it carries gathers and reductions before and after the work of stages (`phase_bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sim.cluster.gpu import memory_time
from sim.parallel.program import Copy, Instruction, Load, PassPart, Program, Receive, Send, Start, Tag, Update, Wait, Work, works_before_use
from sim.training.layouts.link_bound import MEETING, least_link_time
from sim.training.layouts.phase_bound import least_phased_time
from sim.training.layouts.prices import SHARED
from sim.training.layouts.scene import LayoutScene
from sim.training.layouts.times import copy_time

_Passed = tuple[tuple[tuple[float, float, float, bool], ...], float, float]
"""Bursts of a pass (GPU time, host time, time of the first launch, whether the host waits before), total GPU time, and exposed time."""
_WorkKey = tuple[PassPart, int, int, tuple[int, int] | None]
"""The fields of a work that determine its time: all but the micro-batch."""
_STEPS: Final = 3
"""Number of steps that are run if stages do not all meet."""


def least_time(scene: LayoutScene) -> float:
    """Return a lower bound (s) on the simulated step time of *scene*."""
    return max(_least_cycle(scene), least_link_time(scene), least_phased_time(scene))


def _least_cycle(scene: LayoutScene) -> float:
    """Return the step time (s) of *scene* without contention, or less."""
    programs = [list(program) for program in scene.programs]
    if all(Wait(MEETING) in program for program in programs):
        ends = [len(program) - program[::-1].index(Wait(MEETING)) for program in programs]  # a host may wait for it, too, just before
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


def least_work(scene: LayoutScene) -> float:
    """Return the GPU time (s) of a step of *scene* without slowdown by communication, averaged over stages."""
    recurrence = _Recurrence(scene)
    recurrence.run([list(program) for program in scene.programs])
    return sum(rank.worked_in_step for rank in recurrence.ranks) / len(recurrence.ranks)


@dataclass(eq=False)
class _BoundRank:
    """The ranks of one stage: the times (s) at which their compute (*now*) and their host have finished everything so far."""

    now: float = 0.0
    host: float = 0.0
    floor: float = 0.0
    """Earliest time (s) at which the host continues after the current work, because it waits for memory to be freed."""
    place: int = 0
    behind: float = 0.0
    """Time (s) by which the slowest rank is behind."""
    worked_in_step: float = 0.0
    queues: dict[str, float] = field(default_factory=dict)
    """Time (s) at which each communicator has finished everything so far."""
    ends: dict[Tag, float] = field(default_factory=dict)
    """End (s) of each operation of this step."""
    sending: list[Tag] = field(default_factory=list)
    """Messages to other stages for which compute waits before it continues."""
    sent_ahead: list[Tag] = field(default_factory=list)
    """Messages for which compute waits at the next message that holds it, or before the optimizer."""

    def continued(self, now: float, over: float) -> float:
        """Return when compute that waits from *now* until *over* continues, and let the slowest rank catch up meanwhile.

        While the ranks of a stage wait for a message from another stage, the slowest one does not catch up: it waits, too. But it may have
        caught up before, in a wait that traffic of other operations made longer, so that this does not hold for a lower bound.
        """
        self.behind = max(0.0, self.behind - max(0.0, over - now))
        return max(now, over)

    def hold(self) -> None:
        """Make compute wait for everything sent so far."""
        self.sending += self.sent_ahead
        self.sent_ahead = []


class _Recurrence:
    """The recurrence of all stages. Each advances until it needs a time that has not been computed yet."""

    def __init__(self, scene: LayoutScene, before: bool = False) -> None:
        self.scene = scene
        self.ranks = [_BoundRank(host=float("-inf") if before else 0.0) for _ in scene.programs]
        self.arrivals: dict[Tag, list[tuple[float, float]]] = {}
        """For operations across stages: when each stage has arrived, and how much later its slowest rank does."""
        self.shared: dict[Tag, float] = {}
        self.sent: dict[Tag, float] = {}
        self.over: dict[Tag, float] = {}
        """Time (s) at which each message between stages has arrived."""
        self.shared_queues: dict[str, float] = {}
        self.expected: dict[Tag, int] = {}
        for program in scene.programs:
            for each in program:
                if type(each) is Start and each.axis in SHARED:
                    self.expected[each.tag] = self.expected.get(each.tag, 0) + 1
        self.works: list[dict[_WorkKey, _Passed]] = [{} for _ in scene.programs]
        self.meets = scene.layout.has_rendezvous
        self.overlaps = scene.layout.options.pipeline_overlap and not self.meets
        self.sends: dict[tuple[int, int, float], float] = {}

    def next_step(self) -> None:
        """Clear the operations of the step. Its results are read back, so hosts launch nothing of the next step before its end."""
        self.arrivals, self.shared, self.sent, self.over = {}, {}, {}, {}
        for rank in self.ranks:
            rank.host = max(rank.host, rank.now)
            rank.worked_in_step, rank.ends, rank.sending, rank.sent_ahead = 0.0, {}, [], []

    def run(self, programs: Sequence[Program | list[Instruction]]) -> None:
        """Run all stages until the end of their *programs*."""
        for rank in self.ranks:
            rank.place = 0
        waiting = list(range(len(programs)))
        while waiting:
            before = [self.ranks[stage].place for stage in waiting]
            for stage in waiting:
                self._advance(stage, programs[stage])
            if before == [self.ranks[stage].place for stage in waiting]:
                raise RuntimeError(f"stages {waiting} deadlock: they wait for each other")
            waiting = [stage for stage in waiting if self.ranks[stage].place < len(programs[stage])]

    def _advance(self, stage: int, program: Sequence[Instruction]) -> None:
        """Run *stage* until its next instruction waits for a time that has not been computed yet."""
        rank = self.ranks[stage]
        place, end, now = rank.place, len(program), rank.now
        while place < end:
            instruction = program[place]
            kind = type(instruction)  # called once, as plans run this loop millions of times; mypy narrows no instruction by it
            if kind is Work or kind is Copy or kind is Update:
                if kind is not Copy and (rank.sending or rank.sent_ahead):
                    over = self._sent(rank, kind is Update)
                    if over is None:
                        break
                    now = rank.continued(now, over)
                now = self._compute(rank, stage, instruction, now)
            elif kind is Receive:
                over = self._received(instruction, stage, now)  # type: ignore[arg-type]
                if over is None:
                    break
                now = rank.continued(now, over)
            elif kind is Send:
                self._sends(rank, stage, instruction, now)  # type: ignore[arg-type]
            elif kind is Start:
                self._start(rank, stage, instruction, now, program, place)  # type: ignore[arg-type]
            elif kind is Wait:
                over = self._awaited(rank, instruction.tag, now)  # type: ignore[union-attr, arg-type]
                if over is None:
                    break
                now = over
            elif kind is Load:
                now += self.scene.copy_time
            place += 1
        rank.place, rank.now = place, now

    def _awaited(self, rank: _BoundRank, tag: Tag, now: float) -> float | None:
        """Return when compute that waits for the operation *tag* from *now* on continues, or None if this is not computed yet."""
        over = rank.ends.get(tag)
        over = self.shared.get(tag) if over is None else over
        return None if over is None else rank.continued(now, over)

    def _compute(self, rank: _BoundRank, stage: int, instruction: Instruction, now: float) -> float:
        """Return the end of the work, copy or update *instruction*; the host launches each kernel before it runs."""
        if type(instruction) is Work:
            key = instruction.part, instruction.first, instruction.last, instruction.beside
            bursts, compute, tail = self.works[stage].get(key) or self._work(stage, instruction, key)
        elif type(instruction) is Copy:
            time, cpu, tail = copy_time(instruction, self.scene.times[stage].gpu), self.scene.launch_cpu, 0.0
            compute, bursts = time.compute, ((time.compute, cpu, cpu, False),)
        else:
            compute, launches = self.scene.updates[stage]
            now += 0.0 if self.scene.stages_meet else self.scene.noise.mean.all * rank.worked_in_step
            bursts, tail = ((compute, launches * self.scene.launch_cpu, min(1.0, launches) * self.scene.launch_cpu, False),), 0.0
        host = rank.host
        blocking = self.scene.launch_blocking
        for seconds, launching, first, drained in bursts:
            if drained or blocking:
                host = max(host, now)
            now = max(now, host + (launching if blocking else first)) + seconds
            host += launching
            now = max(now, host)
        rank.host = max(host, rank.floor)
        rank.behind += self.scene.noise.mean.data * compute
        rank.worked_in_step += compute
        return now + tail

    def _work(self, stage: int, work: Work, key: _WorkKey) -> _Passed:
        time = self.scene.times[stage].of(work)
        tail = self.scene.noise.mean.inside * time.compute + sum(each.seconds for each in time.exposed_waits if each.seconds > 0)
        cpu = self.scene.launch_cpu
        bursts = tuple((each.compute, each.launch_time(cpu), min(1.0, each.launches) * cpu, each.waits_for_gpu) for each in time.bursts)
        self.works[stage][key] = (bursts, time.compute, tail)
        return self.works[stage][key]

    # --- messages between stages ----------------------------------------------------------------------------------

    def _sends(self, rank: _BoundRank, stage: int, send: Send, now: float) -> None:
        self.sent[send.tag] = now
        if not self.meets:
            self.over[send.tag] = now + self._send(stage, send.stage, send.nbytes)
        if not self.overlaps:
            rank.sent_ahead.append(send.tag)
            if send.holds:
                rank.hold()

    def _sent(self, rank: _BoundRank, all_of_it: bool) -> float | None:
        """Return when the sends that hold compute (all sends if *all_of_it*) are complete, or None if one has not been requested yet."""
        if all_of_it:
            rank.hold()
        if any(tag not in self.over for tag in rank.sending):
            return None
        if self.scene.prices.sockets is not None:  # a socket buffers messages
            rank.sending = []
            return 0.0
        latest = max((self.over[tag] for tag in rank.sending), default=0.0)
        rank.sending = []
        return latest

    def _received(self, receive: Receive, stage: int, now: float) -> float | None:
        """Return when a message has arrived, or None if it has not been sent yet."""
        if receive.tag not in self.over:
            sent = self.sent.get(receive.tag)
            if sent is None:
                return None
            notice = self.scene.prices.send(receive.stage, stage, receive.nbytes).notice
            self.over[receive.tag] = max(sent, now + notice) + self._send(receive.stage, stage, receive.nbytes)
        return self.over[receive.tag]

    def _send(self, source: int, target: int, nbytes: float) -> float:
        key = source, target, nbytes
        if key not in self.sends:
            self.sends[key] = self.scene.prices.least_send_time(*key)
        return self.sends[key]

    # --- groups ---------------------------------------------------------------------------------------------------

    def _start(self, rank: _BoundRank, stage: int, start: Start, now: float, program: Sequence[Instruction], place: int) -> None:
        shared, spread, prices = start.axis in SHARED, self.scene.noise.mean, self.scene.prices
        late = rank.behind + (spread.all * rank.worked_in_step if start.axis == "everyone" else 0.0)
        if start.prefetch:
            times, cpu = self.scene.times[stage], self.scene.launch_cpu
            works = works_before_use(program, place)
            launching = sum(times.span(work.first, work.last, work.part).launch_time(cpu) for work in works)
            late = max(late, rank.host + launching - now)
            rank.floor = now if start.is_limited else rank.floor
        check = self.scene.check_time(start.axis)
        if check:
            rank.host += check
            late = max(late, rank.host - now)
        seconds = prices.least_time(0 if shared else stage, start.axis, start.op, start.nbytes)
        if not shared:
            ready = now + late + memory_time(start.copied_bytes, self.scene.times[stage].gpu)
            begin = max(ready, rank.queues.get(start.communicator, 0.0))
            if start.predecessor is not None:
                begin = max(begin, rank.ends[start.predecessor])
            rank.queues[start.communicator] = rank.ends[start.tag] = begin + seconds
            return
        came = self.arrivals.setdefault(start.tag, [])
        came.append((now, late))
        if len(came) == self.expected[start.tag]:
            begin = max(max(each + late for each, late in came), self.shared_queues.get(start.communicator, 0.0))
            self.shared_queues[start.communicator] = self.shared[start.tag] = begin + seconds
