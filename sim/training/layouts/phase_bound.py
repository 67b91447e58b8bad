"""How long is a step in which links carry gathers, stages then compute, and links then carry reductions? A lower bound.

Groups of several stages share the links of a node. Where weights are gathered before the first forward and gradients are reduced after
the last backward, nothing hides these phases, and what precedes and follows a stage's own operation does not depend on the other stages.
On each link, the last of the gathers ends once the link has carried all of them. A path of programs leads from its stage to each
reduction: through its own work, through messages, and through the work of the stage that reduces. The reductions that are not reached
before some time are carried after it. So the step takes at least the gathers, the shortest of these paths, and the reductions, one after
the other (heads and tails of a machine in scheduling, as in `link_bound`). Stages meet in each step, which bounds the phases on both sides.
Limits: nothing is bounded if stages do not meet (no gradient clipping), or if ranks of a stage differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Instruction, Message, Receive, Send, Start, Tag, Update, Wait, Work
from sim.parallel.schedule import holder
from sim.training.layouts.link_bound import MEETING
from sim.training.layouts.prices import SHARED
from sim.training.layouts.scene import LayoutScene


class _Gather(NamedTuple):
    """An operation that ends before its stage's first backward."""

    stage: int
    start: int
    """Place in the program."""
    wait: int


class _Reduction(NamedTuple):
    """An operation that begins after its stage's last forward."""

    stage: int
    start: int


_GroupOperation = tuple[int, GroupAxis, tuple[Message, ...]]
"""The stage, axis and messages of an operation."""


def least_phased_time(scene: LayoutScene) -> float:
    """Return a lower bound (s) on the simulated step time of *scene*: gathers, work and reductions of the busiest link in turn."""
    if not scene.prices.mesh.is_even or not all(Wait(MEETING) in program for program in scene.programs):
        return 0.0
    stages = _StageCycles(scene)
    gathers, reductions = list[tuple[_GroupOperation, _Gather]](), list[tuple[_GroupOperation, _Reduction]]()
    for stage in stages.each:
        for start, wait in stage.operations:
            kind = _kind(stage, start)
            if wait < stage.first_backward:
                gathers.append((kind, _Gather(stage.number, start, wait)))
            elif start > stage.last_forward:
                reductions.append((kind, _Reduction(stage.number, start)))
    least = 0.0
    for seconds in _unlike_links(scene, dict.fromkeys(kind for kind, _ in (*gathers, *reductions))):
        carried = [(each, seconds[kind]) for kind, each in gathers if kind in seconds]
        least = max(least, stages.in_turn(carried, [(each, seconds[kind]) for kind, each in reductions if kind in seconds]))
    return least


def _kind(stage: _StageCycle, start: int) -> _GroupOperation:
    """Return what determines the links that carry the operation which starts at that place of *stage*, and for how long."""
    each = stage.program[start]
    assert isinstance(each, Start)
    return stage.number, each.axis, each.messages


def _unlike_links(scene: LayoutScene, kinds: Iterable[_GroupOperation]) -> list[dict[_GroupOperation, float]]:
    """Return the seconds in which a link carries an operation of each of *kinds*, once for all links on which these are equal.

    Most of the links of a node carry the same as others: a ring has one from each GPU to the next.
    """
    of_link: dict[str, list[tuple[_GroupOperation, float]]] = defaultdict(list)
    for kind in kinds:
        stage, axis, messages = kind
        carried: dict[str, float] = defaultdict(float)
        for message in messages:
            price = scene.prices.price(stage, axis, message.op, message.nbytes)
            for link, load in price.load.items():
                carried[link] += load * price.volume / scene.prices.capacity[link]
        for link, seconds in carried.items():
            of_link[link].append((kind, seconds))
    return [dict(seconds) for seconds in dict.fromkeys(map(tuple, of_link.values()))]


@dataclass(frozen=True, eq=False)
class _StageCycle:
    """The program of a stage from one meeting of all stages to the next, and the work (s) before each of its places."""

    number: int
    program: Sequence[Instruction]
    worked: Sequence[float]

    @cached_property
    def operations(self) -> list[tuple[int, int]]:
        """Return the places at which operations of the stage's groups start, and at which the stage waits for them."""
        waits = {each.tag: place for place, each in enumerate(self.program) if type(each) is Wait}
        starts = ((place, each) for place, each in enumerate(self.program) if type(each) is Start and each.axis not in SHARED)
        return [(place, waits[each.tag]) for place, each in starts if waits.get(each.tag, -1) > place]

    @cached_property
    def first_backward(self) -> int:
        """Return the place of the first backward pass."""
        return next((place for place, each in enumerate(self.program) if type(each) is Work and each.part != "F"), len(self.program))

    @cached_property
    def last_forward(self) -> int:
        """Return the place of the last forward pass, -1 if there is none."""
        return max((place for place, each in enumerate(self.program) if type(each) is Work and each.part == "F"), default=-1)

    @cached_property
    def sends(self) -> list[tuple[int, Tag]]:
        """Return the places and tags of messages to other stages."""
        return [(place, each.tag) for place, each in enumerate(self.program) if type(each) is Send]

    @cached_property
    def receipts(self) -> Mapping[Tag, int]:
        """Return the places of messages from other stages, by their tags."""
        return {each.tag: place for place, each in enumerate(self.program) if type(each) is Receive}


class _StageCycles:
    """The stages of *scene*, and paths between them."""

    def __init__(self, scene: LayoutScene) -> None:
        layout = scene.layout
        self._chunks = range(len(layout.chunks))
        self._holder = [holder(layout.schedule, layout.mesh.stages, layout.mesh.parallel.chunks, chunk)[0] for chunk in self._chunks]
        self._paths: dict[tuple[int, int, int, int], float] = {}
        self.each: list[_StageCycle] = []
        for number, program in enumerate(scene.programs):
            meeting = program.index(Wait(MEETING)) + 1
            cycle, worked, times = (*program[meeting:], *program[:meeting]), [0.0], dict[tuple[object, ...], float]()
            for one in cycle:
                now = worked[-1]
                if type(one) is Work:
                    work = one.part, one.first, one.last, one.beside
                    if work not in times:
                        time = scene.times[number].of(one)
                        times[work] = time.compute + time.waits
                    now += times[work]
                elif type(one) is Update:
                    now += scene.updates[number][0]
                worked.append(now)
            self.each.append(_StageCycle(number, cycle, worked))

    def in_turn(self, gathers: Sequence[tuple[_Gather, float]], reductions: Sequence[tuple[_Reduction, float]]) -> float:
        """Return the time (s) from a meeting to the next, at least, given what one link carries, each for some seconds."""
        last: dict[int, int] = {}
        for gather, _ in gathers:
            last[gather.stage] = max(gather.wait, last.get(gather.stage, 0))
        head = min((self.each[each.stage].worked[each.start] for each, _ in gathers), default=0.0)
        gathered = head + sum(seconds for _, seconds in gathers)
        begins = []
        for each, seconds in reductions:
            alone = self.each[each.stage].worked[each.start]
            path = min((self._path(stage, wait, each.stage, each.start) for stage, wait in last.items()), default=-inf)
            begins.append((max(alone, gathered + path), seconds))
        reduced, least = 0.0, gathered
        for begin, seconds in sorted(begins, reverse=True):
            reduced += seconds
            least = max(least, begin + reduced)
        return least

    def _path(self, source: int, wait: int, target: int, start: int) -> float:
        """Return `_longest_path` of these places, cached: the links of a node carry the same operations."""
        ends = source, wait, target, start
        if ends not in self._paths:
            self._paths[ends] = self._longest_path(*ends)
        return self._paths[ends]

    def _longest_path(self, source: int, wait: int, target: int, start: int) -> float:
        """Return the time (s) from the place *wait* of stage *source* to the place *start* of stage *target*, at least.

        It is minus infinity if no message is known to lead from one to the other.
        """
        first, last = self.each[source], self.each[target]
        if source == target:
            return last.worked[start] - first.worked[wait] if wait < start else -inf
        after = [(place, tag) for place, tag in first.sends if place > wait]
        longest = -inf
        for messages in (after, reversed(after)):  # the first message that arrives in time, and the last one
            for place, tag in messages:
                arrival = self._receipt(last, tag)
                if arrival is not None and arrival < start:
                    longest = max(longest, first.worked[place] - first.worked[wait] + last.worked[start] - last.worked[arrival])
                    break
        return longest

    def _receipt(self, stage: _StageCycle, tag: Tag) -> int | None:
        """Return the place at which *stage* receives what follows from the message *tag* for the same micro-batch; None if it does not."""
        what, chunk, micro_batch = tag
        forward = self._chunks[chunk:] if what == "activations" else ()
        backward = reversed(self._chunks if what == "activations" else self._chunks[: chunk + 1])
        tags = [("activations", each, micro_batch) for each in forward] + [("gradients", each, micro_batch) for each in backward]
        return next((stage.receipts[each] for each in tags if self._holder[each[1]] == stage.number and each in stage.receipts), None)
