"""When does an operation of several ranks begin, and what limited it? Operations, and the communicators that play them in order.

An operation begins when all its members have arrived, including the slowest rank of each; all earlier operations of its communicator have
begun; and a stream is free. NCCL communicators have one stream, so earlier operations must also have ended. Gloo communicators have two.
All ranks of a class arrive as one member.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Generic, NamedTuple, TypeVar

import simpy

from sim.cluster.clock import SimProcess
from sim.cluster.network import Activity, Network, schedule_once
from sim.events import Cause

LinkCauses = Mapping[str, tuple[Cause, str]]
"""Maps the live name of a link to the cause and the description to report when that link limits an operation."""


class LimitPiece(NamedTuple):
    """What limited an operation from *t0* to *t1* (s)."""

    cause: Cause
    resource: str
    t0: float
    t1: float


class Operation:
    """An operation of *members*: how many have yet to arrive, when the last one arrived, when the operation began and what limited it."""

    def __init__(self, env: simpy.Environment, members: int) -> None:
        self.env = env
        self.missing_members = members
        self.last_arrival = math.nan
        """Time (s) at which the latest member so far arrived."""
        self.ready = 0.0
        """Time (s) at which the slowest rank of the members so far arrives."""
        self.all_ready = env.event()
        """Fires when all members are ready; the operation then begins as soon as its turn comes."""
        self.begin = math.nan
        self.is_over = False
        self.end_time = math.nan
        self.pieces: tuple[LimitPiece, ...] = ()
        self._awaited: simpy.Event | None = None

    def arrive(self, lag: float = 0.0) -> bool:
        """Register the arrival of one member, and return whether it is the last. Its slowest rank arrives *lag* seconds from now."""
        self.last_arrival = now = self.env.now
        if now + lag > self.ready:
            self.ready = now + lag
        self.missing_members -= 1
        return not self.missing_members

    def allow_begin(self, delay: float = 0.0) -> None:
        """Allow the operation to begin *delay* seconds after the slowest rank has arrived, once its turn comes."""
        schedule_once(self.env, self.all_ready, self.ready + delay - self.env.now)

    def until_over(self) -> SimProcess:
        """Wait until the operation has ended. Its event is created on demand, because most operations are never waited for."""
        if not self.is_over:
            if self._awaited is None:
                self._awaited = self.env.event()
            yield self._awaited

    def end(self) -> None:
        """Mark the operation as ended."""
        self.is_over, self.end_time = True, self.env.now
        if self._awaited is not None:
            self._awaited.succeed()


Played = TypeVar("Played", bound=Operation)


class Communicator(Generic[Played]):
    """A queue of operations, played in the order in which they are entered: up to one at a time on each of the *streams*.

    *play* is called with an operation when its turn comes, and with the number of its stream; it plays the operation until it ends.
    """

    def __init__(self, env: simpy.Environment, play: Callable[[Played, int], SimProcess], streams: int = 1) -> None:
        self._env = env
        self._play = play
        self._queue: deque[Played] = deque()
        self._asleep: list[simpy.Event] = []
        """One event for each idle stream, which wakes it."""
        self._unused = list(range(streams))

    def close(self) -> None:
        """Forget *play*, which usually refers to the owner of this communicator; no operation can be played any more."""
        del self._play

    def enter(self, operation: Played) -> None:
        """Add *operation* to the queue, to be played when its turn comes."""
        self._queue.append(operation)
        if self._asleep:
            self._asleep.pop().succeed()
        elif self._unused:
            self._env.process(self._stream(self._unused.pop()))

    def _stream(self, number: int) -> SimProcess:
        while True:
            while self._queue:
                operation = self._queue.popleft()
                yield from self._play(operation, number)
                operation.end()
            wake = self._env.event()
            self._asleep.append(wake)
            yield wake


class FluidCost(NamedTuple):
    """The cost of an operation that is played as one fluid activity."""

    launch: float
    """Seconds before any data moves."""
    volume: float
    cap: float
    """Rate (units/s) without contention."""
    load: Mapping[str, float]
    """Load per unit of volume, by the live name of the link."""
    cause: Cause
    limit: str
    """What bounds the operation without contention."""

    @property
    def uncontended_time(self) -> float:
        """Return the time (s) without contention."""
        return self.launch + self.volume / self.cap


def play_on_network(network: Network, operation: Operation, price: FluidCost, name: str, limit_causes: LinkCauses) -> SimProcess:
    """Play *operation*, or its next part, on *network*, and record over time what limited it."""
    begin = network.env.now
    yield network.env.timeout(price.launch)
    activity = network.start(name, price.volume, price.load, cap=price.cap)
    yield activity.done
    operation.pieces += tuple(_pieces(begin, network.env.now, price, activity, limit_causes))


def _pieces(begin: float, end: float, price: FluidCost, activity: Activity, meanings: LinkCauses) -> Generator[LimitPiece, None, None]:
    own = price.cause, price.limit
    if len(activity.history) < 2 and not activity.bottleneck:
        yield LimitPiece(*own, begin, end)
        return
    for link, _, until in activity.bottlenecks(end):
        yield LimitPiece(*meanings.get(link, own), begin, until)
        begin = until
