"""How long do the links of a layout need for the traffic of one step? A lower bound on the step, with all contention on one link at a time.

A link carries everything that crosses it: messages between stages, messages inside units, and collectives of groups, of all stages on a
node. The rank that holds the first chunk of the model begins each micro-batch and ends it. So its step includes all traffic between the
first forward and the last backward of every other chunk, and it is at least the time in which the link can carry this traffic, plus the
way of the first micro-batch to the link, and of the last one back from it (the head and the tail of a machine in scheduling: Carlier,
"The one-machine sequencing problem", 1982).
Traffic that may lie outside of that step is left out, such as gathers after the optimizer on other stages. Limit: nothing is bounded if
ranks of a stage differ (`sim.training.layouts.unfolded`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sim.parallel.program import PassPart, Program, Receive, Send, Start, Tag, Update, Wait, Work
from sim.parallel.schedule import holder
from sim.training.layouts.group_price import LinkShare
from sim.training.layouts.prices import SHARED
from sim.training.layouts.scene import LayoutScene

MEETING: Final[Tag] = ("norm", 0, 0)
"""What all stages wait for in each step, if gradients are clipped."""


def least_link_time(scene: LayoutScene) -> float:
    """Return a lower bound (s) on the simulated step time of *scene*: the longest time in which a link carries its traffic."""
    if not scene.prices.mesh.is_even:
        return 0.0
    counted = _Counted(scene)
    for stage, program in enumerate(scene.programs):
        counted.add(stage, program)
    counted.spread()
    optimizer, _ = scene.updates[counted.first_stage]
    capacity = scene.prices.capacity
    return optimizer + max((each.seconds(capacity[link]) for link, each in counted.links.items()), default=0.0)


@dataclass
class _LinkTraffic:
    """What crosses one link in a step, in the units of its capacity times seconds."""

    passed: float = 0.0
    """Load of what a micro-batch needs on its way through the chunks."""
    head: float = math.inf
    """Least time (s) from the begin of the step to any of that."""
    tail: float = math.inf
    """Least time (s) from the end of any of that to the optimizer step."""
    grouped: float = 0.0
    """Load of collectives."""
    group_head: float = math.inf
    """The same as *head* for these, which may end just before the optimizer step."""

    def seconds(self, capacity: float) -> float:
        """Return the time (s) from the begin of the step to the optimizer step, at least."""
        passed = self.head + self.passed / capacity + self.tail if self.passed else 0.0
        if not self.grouped:
            return passed
        return max(passed, min(self.head, self.group_head) + (self.passed + self.grouped) / capacity)


@dataclass
class _InsideTraffic:
    """Messages with the same links, as a micro-batch needs them on its way through the chunks."""

    stage: int
    links: Sequence[LinkShare]
    factor: float = 0.0
    """Factor of the loads of *links*."""
    head: float = math.inf
    tail: float = math.inf


class _Counted:
    """The traffic of all stages of *scene* by link, complete after `spread`."""

    def __init__(self, scene: LayoutScene) -> None:
        self.scene = scene
        self.links: dict[str, _LinkTraffic] = defaultdict(_LinkTraffic)
        self._inside: dict[tuple[str, int], _InsideTraffic] = {}
        """Messages inside units, by the nodes of their stage and the identity of their links: units and stages repeat the same few."""
        layout = scene.layout
        self._chunk_of = {unit: chunk for chunk, units in enumerate(layout.chunks) for unit in units}
        self._stage_of = [
            holder(layout.schedule, layout.mesh.stages, layout.mesh.parallel.chunks, chunk)[0] for chunk in range(len(layout.chunks))
        ]
        self.first_stage = self._stage_of[0]
        """The stage that begins and ends each micro-batch."""
        splits = any(isinstance(each, Work) and each.part == "I" for program in scene.programs for each in program)
        self._head, self._forward = self._way("F")
        self._tail, self._backward = self._way("I" if splits else "B")

    def _way(self, part: PassPart) -> tuple[list[float], list[float]]:
        """Return how long one micro-batch takes for *part* through the chunks below each one, and through each chunk itself (s)."""
        own = [self._pass_time(chunk, part) for chunk in range(len(self._stage_of))]
        below = [0.0]
        for (chunk, source), (_, target) in pairwise(enumerate(self._stage_of)):
            ends = (source, target) if part == "F" else (target, source)
            nbytes = self.scene.layout.input_bytes[chunk + 1]
            below.append(below[-1] + own[chunk] + (self.scene.prices.least_send_time(*ends, nbytes) if source != target else 0.0))
        return below, own

    def _pass_time(self, chunk: int, part: PassPart) -> float:
        layout, times = self.scene.layout, self.scene.times[self._stage_of[chunk]]
        units = (unit for unit in layout.chunks[chunk] if part == "F" or layout.units[unit].has_backward)
        return sum(time.compute + time.waits_beside(layout.runs_pairs) for time in (times(unit, part) for unit in units))

    def add(self, stage: int, program: Program) -> None:
        """Add the traffic of *stage* that lies in the step of the first stage."""
        begin, end = self._begin(stage, program), self._end(stage, program)
        update = next(place for place, each in enumerate(program) if type(each) is Update)
        waits = {each.tag: place for place, each in enumerate(program) if type(each) is Wait}
        works, sends, starts = Counter[Work](), Counter[tuple[int, float, int]](), Counter[Start]()
        for place in range(begin, end):
            each = program[place]
            if type(each) is Work:
                works[Work(each.part, each.first, each.last, 0, each.beside)] += 1
            elif type(each) is Send:
                what, chunk, _ = each.tag
                sends[each.stage, each.nbytes, chunk - 1 if what == "activations" else chunk] += 1
            elif (
                type(each) is Start and each.axis not in SHARED and waits.get(each.tag, end) < end and not place < update < waits[each.tag]
            ):
                starts[each._replace(tag=("", 0, 0), predecessor=None)] += 1
        for work, times in works.items():
            self._add_messages(stage, work, times)
        for (target, nbytes, chunk), times in sends.items():
            price = self.scene.prices.send(stage, target, nbytes)
            way = self._head[chunk] + self._forward[chunk], self._tail[chunk] + self._backward[chunk]
            self._add(price.load, times * price.volume, *way)
        first_chunk = min(chunk for chunk, own in enumerate(self._stage_of) if own == stage)
        for start, times in starts.items():
            for message in start.messages:
                price = self.scene.prices.price(stage, start.axis, message.op, message.nbytes)
                for link, load in price.load.items():
                    traffic = self.links[link]
                    traffic.grouped += times * price.volume * load
                    traffic.group_head = min(traffic.group_head, self._head[first_chunk])

    def _begin(self, stage: int, program: Program) -> int:
        """Return the place in *program* from which on everything follows the begin of the first stage's step."""
        if stage == self.first_stage:
            return 0
        return next((place for place, each in enumerate(program) if type(each) is Receive), len(program))

    def _end(self, stage: int, program: Program) -> int:
        """Return the place in *program* up to which everything precedes the end of the first stage's step."""
        if stage == self.first_stage:
            return len(program)
        meeting = Wait(MEETING)
        return 1 + max((place for place, each in enumerate(program) if type(each) is Send or each == meeting), default=-1)

    def _add_messages(self, stage: int, work: Work, times: int) -> None:
        """Add the messages inside the units of *work*, which is done *times* times; its pair has those of both passes."""
        chunk = min(self._chunk_of[work.first], self._chunk_of[work.last], *(self._chunk_of[unit] for unit in work.beside or ()))
        for each in self.scene.times[stage].of(work).exposed_waits:
            for links, factor in each.message_load.outlines if each.seconds > 0.0 else ():
                key = self.scene.prices.nodes_of(stage), id(links)
                passed = self._inside.get(key) or self._inside.setdefault(key, _InsideTraffic(stage, links))
                passed.factor += times * factor
                passed.head, passed.tail = min(passed.head, self._head[chunk]), min(passed.tail, self._tail[chunk])

    def spread(self) -> None:
        """Add the messages inside units to the links that they cross."""
        for each in self._inside.values():
            self._add(self.scene.prices.live_loads(each.stage, each.links), each.factor, each.head, each.tail)

    def _add(self, loads: Mapping[str, float], times: float, head: float, tail: float) -> None:
        for link, load in loads.items():
            traffic = self.links[link]
            traffic.passed += times * load
            traffic.head, traffic.tail = min(traffic.head, head), min(traffic.tail, tail)
