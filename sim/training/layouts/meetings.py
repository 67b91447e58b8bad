"""When do operations of a layout's ranks, and messages between its stages, take place? The operations in progress and their members."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, cast

import simpy

from sim.cluster.clock import SimProcess
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.parallel.program import Start, Tag
from sim.spec.identity import IdentityCache
from sim.training.communicator import Communicator, LimitPiece, Operation, play_on_network
from sim.training.layouts.group_price import GroupPrice
from sim.training.layouts.prices import SHARED
from sim.training.layouts.scene import LayoutScene, describe_tag
from sim.training.layouts.stage_compute import StageKernels

MeetingKey = tuple[object, ...]
SLOWEST: Final = (Cause.STRAGGLER, "slowest data-parallel rank")


class Meeting(Operation):
    """One operation of a group class, or a message between stages, that overlaps with the compute of *kernels*."""

    def __init__(self, env: simpy.Environment, tag: Tag, price: GroupPrice, members: int, kernels: Sequence[StageKernels]) -> None:
        super().__init__(env, members)
        self.tag = tag
        self.price = price
        self.kernels = kernels
        self.more_prices: tuple[GroupPrice, ...] = ()
        """Prices of the collectives after the first."""
        self.request_time = math.nan
        """Time (s) at which the receiver of a message requested it."""
        self.notice_behind: list[Meeting] = []
        """Messages behind which the receiver's notice queues."""
        self.target = -1
        """The receiving stage of a message."""
        self.lag_cause = SLOWEST
        """The cause of the time between the arrival of the last member and of its slowest rank."""
        self.last = -1
        """The stage of the last member so far that has arrived at a group's operation."""
        self.launched = False
        """Whether its kernel occupies the GPU from its turn on, even while it waits for slower ranks."""

    def arrival_time(self, start: float) -> float:
        """Return when the last member arrived, limited to the wait from *start* until now."""
        return min(max(start, self.last_arrival), self.env.now)

    def wait_pieces(self, start: float, stage: int = -1, late: float = 0.0) -> Iterator[LimitPiece]:
        """Yield the causes of the wait of *stage*'s compute from *start* until now (-1: for messages, which have no last member).

        The wait of the slowest rank is *late* seconds shorter; without its lateness, the operation would have ended that much earlier.
        """
        now, came, what = self.env.now, self.arrival_time(start), describe_tag(self.tag)
        missed = SLOWEST if self.last == stage >= 0 else (Cause.PIPELINE, "other stages")  # who had not arrived
        yield LimitPiece(*missed, start, came)
        ready = min(max(came, self.ready, came + late if self.lag_cause is SLOWEST else came), now)
        late_for = (self.price.cause, f"{what}: until its sender knows that it is wanted") if self.target >= 0 else self.lag_cause
        yield LimitPiece(*late_for, came, ready)
        begin = min(max(ready, self.begin), now)
        yield LimitPiece(self.price.cause, f"{what}: behind other operations", ready, begin)  # in the communicator's queue
        for cause, resource, t0, t1 in self.pieces:
            yield LimitPiece(cause, f"{what}: {resource}", max(t0, begin), min(t1, now))


class Meetings:
    """All operations of one simulation, by key."""

    def __init__(self, scene: LayoutScene, network: Network, log: EventLog) -> None:
        self.scene = scene
        self.env = network.env
        self.by_key: dict[MeetingKey, Meeting] = {}
        self.kernels: list[StageKernels] = []
        """Kernels of each stage, or rank."""
        self.has_rendezvous = scene.layout.has_rendezvous
        """Whether a message begins only when its receiver requests it; otherwise, it counts as already requested."""
        self._network = network
        self._log = log
        self._communicators: dict[MeetingKey, Communicator[Meeting]] = {}
        self._linked = IdentityCache[None]()
        self.played: deque[list[Meeting]] = deque(maxlen=2)
        """Operations of the last two steps that all stages have ended; a step may begin before the previous one ends everywhere."""
        self._of_step: dict[int, list[MeetingKey]] = defaultdict(list)
        self._done: Counter[int] = Counter()

    @cached_property
    def stage_counts(self) -> Mapping[Tag, int]:
        """Return the number of stages that take part in each operation across stages."""
        starts = (each for program in self.scene.programs for each in program if isinstance(each, Start))
        return Counter(start.tag for start in starts if start.axis in SHARED)

    def get_or_create(self, key: MeetingKey, tag: Tag, price: GroupPrice, members: int, kernels: Sequence[StageKernels]) -> Meeting:
        """Return the operation with the key *key*, and create it if it does not exist."""
        if key not in self.by_key:
            self.link(price)
            self.by_key[key] = Meeting(self.env, tag, price, members, kernels)
            self._of_step[cast(int, key[0])].append(key)
        return self.by_key[key]

    def end_step(self, step: int) -> None:
        """Register that one stage has ended *step*; once all have, the step's operations are removed."""
        self._done[step] += 1
        if self._done[step] == self._stages:
            forgotten = [self.by_key.pop(key) for key in self._of_step.pop(step, ())]
            self.played.append(list(dict.fromkeys(forgotten)))

    @cached_property
    def _stages(self) -> int:
        """Return the number of simulated stages, or ranks."""
        return len(set(map(id, self.kernels)))

    def only_messages_left(self) -> bool:
        """Return whether all operations of groups that have been entered so far have ended."""
        return all(meeting.is_over or meeting.target >= 0 for meeting in self.by_key.values())

    def add_key(self, key: MeetingKey, meeting: Meeting) -> None:
        """Register *meeting* under *key* as well."""
        if key not in self.by_key:
            self._of_step[cast(int, key[0])].append(key)
        self.by_key[key] = meeting

    def message(self, key: MeetingKey, tag: Tag, price: GroupPrice, source: int, target: int) -> Meeting:
        """Return the message *key* from *source* to *target*. Unless receivers request messages, it begins when its sender arrives."""
        message = self.get_or_create(key, tag, price, 2 if self.has_rendezvous else 1, [self.kernels[source], self.kernels[target]])
        message.target = target
        return message

    def communicator(self, key: MeetingKey) -> Communicator[Meeting]:
        """Return the communicator with the key *key*."""
        if key not in self._communicators:
            self._communicators[key] = Communicator(self.env, self._turn)
        return self._communicators[key]

    def close(self) -> None:
        """Forget the communicators, which refer back to this object."""
        self._communicators.clear()

    def play(self, meeting: Meeting) -> SimProcess:
        """Play *meeting* on the network, overlapping with the compute of its stages."""
        price, what = meeting.price, describe_tag(meeting.tag)
        meeting.begin = self.env.now
        for kernels in meeting.kernels:
            kernels.count_operation(1, price)
        for each in (price, *meeting.more_prices):
            yield from play_on_network(self._network, meeting, each.fluid, meeting.tag[0], self.scene.prices.descriptions)
        for kernels in meeting.kernels:
            kernels.count_operation(-1, price)
        first = meeting.kernels[0].account.index
        self._log.add_work(first, "comm", what, price.cause, meeting.begin, f"{what}: {price.limit}", -1, price.volume)

    def link(self, price: GroupPrice) -> None:
        """Add the links that *price* loads to the network, if missing."""
        self._linked.get_or_make(price, self._add_links)

    def _add_links(self, price: GroupPrice) -> None:
        for name in price.load:
            if name not in self._network.capacity:
                self._network.add_link(name, self.scene.prices.capacity[name])

    def _turn(self, meeting: Meeting, _: int) -> SimProcess:
        """Play *meeting*, whose turn has come, once it may begin."""
        early = meeting.launched and not meeting.all_ready.processed  # its blocks wait on the GPU for slower ranks
        for kernels in meeting.kernels if early else ():
            kernels.count_waiting(1, meeting.price)
        if not meeting.all_ready.processed:
            yield meeting.all_ready
        for kernels in meeting.kernels if early else ():
            kernels.count_waiting(-1, meeting.price)
        yield from self.play(meeting)
