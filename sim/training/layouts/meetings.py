"""When do operations among the ranks of a layout, and messages between its stages, happen? All of them while they run, with who meets."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, cast

import simpy

from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.parallel.program import Start, Tag
from sim.training.communicator import Communicator, HeldPiece, Operation, carried
from sim.training.layouts.group_price import GroupPrice
from sim.training.layouts.kernels import StageKernels
from sim.training.layouts.prices import SHARED
from sim.training.layouts.scene import LayoutScene, words

SimProcess = Generator[simpy.Event, object, None]
MeetingKey = tuple[object, ...]
SLOWEST: Final = (Cause.STRAGGLER, "slowest data-parallel rank")


class Meeting(Operation):
    """One operation of a group class, or a message between stages, beside the compute of *kernels*."""

    def __init__(self, env: simpy.Environment, tag: Tag, price: GroupPrice, members: int, kernels: Sequence[StageKernels]) -> None:
        super().__init__(env, members)
        self.tag = tag
        self.price = price
        self.kernels = kernels
        self.more: tuple[GroupPrice, ...] = ()
        """What follows the first of its collectives."""
        self.asked = math.nan
        """When the receiver of a message asked for it (s)."""
        self.notice_behind: list[Meeting] = []
        """Messages that go before the receiver's notice."""
        self.target = -1
        """The stage that a message goes to."""
        self.late = SLOWEST
        """What comes between the last member and its slowest rank."""
        self.last = -1
        """The stage of the last member of a group that has come."""
        self.launched = False
        """Whether its kernel is on the GPU from then on that its turn comes, also while it waits for slower ranks."""

    def met(self, start: float) -> float:
        """Return when the last member had come, for one that waits from *start* until now."""
        return min(max(start, self.arrived), self.env.now)

    def blamed(self, start: float, stage: int = -1, late: float = 0.0) -> Iterator[HeldPiece]:
        """Yield why compute of *stage* (-1: one that no member of a message is of) waited for it from *start* until now.

        The slowest rank has *late* seconds of that less to wait: so much sooner it would have been over without it.
        """
        now, came, what = self.env.now, self.met(start), words(self.tag)
        missed = SLOWEST if self.last == stage >= 0 else (Cause.PIPELINE, "other stages")  # who was still at work
        yield HeldPiece(*missed, start, came)
        ready = min(max(came, self.ready, came + late if self.late is SLOWEST else came), now)
        yield HeldPiece(*self.late, came, ready)
        begin = min(max(ready, self.begin), now)
        yield HeldPiece(self.price.cause, f"{what}: behind other operations", ready, begin)  # in its queue
        for cause, resource, t0, t1 in self.pieces:
            yield HeldPiece(cause, f"{what}: {resource}", max(t0, begin), min(t1, now))


class Meetings:
    """All operations of one simulation, by what names them."""

    def __init__(self, scene: LayoutScene, network: Network, log: EventLog) -> None:
        self.scene = scene
        self.env = network.env
        self.known: dict[MeetingKey, Meeting] = {}
        self.kernels: list[StageKernels] = []
        """Those of each stage, or rank."""
        self.meets = scene.layout.meets
        """Whether a message begins when its receiver asks for it; else it has asked before."""
        self._network = network
        self._log = log
        self._communicators: dict[MeetingKey, Communicator[Meeting]] = {}
        self._linked: set[int] = set()
        self.played: deque[list[Meeting]] = deque(maxlen=2)
        """Those of the last steps that all stages have ended: the last one may begin before the one before has ended."""
        self._of_step: dict[int, list[MeetingKey]] = defaultdict(list)
        self._done: Counter[int] = Counter()

    @cached_property
    def shared(self) -> Mapping[Tag, int]:
        """Return how many stages come to each operation of several."""
        starts = (each for program in self.scene.programs for each in program if isinstance(each, Start))
        return Counter(start.tag for start in starts if start.axis in SHARED)

    def named(self, key: MeetingKey, tag: Tag, price: GroupPrice, members: int, kernels: Sequence[StageKernels]) -> Meeting:
        """Return the operation called *key*, new where nobody has named it yet."""
        if key not in self.known:
            self.link(price)
            self.known[key] = Meeting(self.env, tag, price, members, kernels)
            self._of_step[cast(int, key[0])].append(key)
        return self.known[key]

    def ended(self, step: int) -> None:
        """Note that one stage has ended *step*, which is forgotten once all have."""
        self._done[step] += 1
        if self._done[step] == self._stages:
            forgotten = [self.known.pop(key) for key in self._of_step.pop(step, ())]
            self.played.append(list(dict.fromkeys(forgotten)))

    @cached_property
    def _stages(self) -> int:
        """Return the stages, or ranks, that are simulated."""
        return len(set(map(id, self.kernels)))

    def also(self, key: MeetingKey, meeting: Meeting) -> None:
        """Let *meeting* be called *key* as well."""
        if key not in self.known:
            self._of_step[cast(int, key[0])].append(key)
        self.known[key] = meeting

    def message(self, key: MeetingKey, tag: Tag, price: GroupPrice, source: int, target: int) -> Meeting:
        """Return the message called *key* from *source* to *target*; one that nobody asks for begins with its sender."""
        message = self.named(key, tag, price, 2 if self.meets else 1, [self.kernels[source], self.kernels[target]])
        message.target = target
        return message

    def communicator(self, key: MeetingKey) -> Communicator[Meeting]:
        """Return the communicator called *key*."""
        if key not in self._communicators:
            self._communicators[key] = Communicator(self.env, self._turn)
        return self._communicators[key]

    def play(self, meeting: Meeting) -> SimProcess:
        """Let *meeting* happen on the network, beside the compute of its stages."""
        price, what = meeting.price, words(meeting.tag)
        meeting.begin = self.env.now
        for kernels in meeting.kernels:
            kernels.communicates(1, price)
        for each in (price, *meeting.more):
            yield from carried(self._network, meeting, each.fluid, meeting.tag[0], self.scene.prices.descriptions)
        for kernels in meeting.kernels:
            kernels.communicates(-1, price)
        first = meeting.kernels[0].account.index
        self._log.did(first, "comm", what, price.cause, meeting.begin, f"{what}: {price.limit}", -1, price.volume)

    def link(self, price: GroupPrice) -> None:
        """Make sure that the network has every link that *price* loads."""
        if id(price) in self._linked:
            return
        self._linked.add(id(price))  # prices live as long as the scene
        for name in price.load:
            if name not in self._network.capacity:
                self._network.add_link(name, self.scene.prices.capacity[name])

    def _turn(self, meeting: Meeting, _: int) -> SimProcess:
        """Play *meeting*, whose turn has come, once it may begin."""
        early = meeting.launched and not meeting.come.processed  # its blocks wait on the GPU for slower ranks
        for kernels in meeting.kernels if early else ():
            kernels.awaits(1, meeting.price)
        if not meeting.come.processed:
            yield meeting.come
        for kernels in meeting.kernels if early else ():
            kernels.awaits(-1, meeting.price)
        yield from self.play(meeting)
