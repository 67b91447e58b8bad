"""When does what several ranks do together begin, and what held it back? Operations, and the communicators that play them in turn.

An operation begins when the last of its members has come, the slowest rank of each has, its turn has come and a stream is free. NCCL's
communicators have one stream, so that every earlier operation has ended; Gloo's have two. Ranks of one class come as one member.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import simpy

from sim.cluster.network import Activity, Network, fire
from sim.events import Cause

SimProcess = Generator[simpy.Event, object, None]
Meanings = Mapping[str, tuple[Cause, str]]
"""What it means that a link, by its live name, holds an operation back."""


class HeldPiece(NamedTuple):
    """What held an operation back from *t0* to *t1* (s)."""

    cause: Cause
    resource: str
    t0: float
    t1: float


class Operation:
    """Something that *members* do together: how many are still to come, when the last has come, when it began and what held it back."""

    def __init__(self, env: simpy.Environment, members: int) -> None:
        self.env = env
        self.missing = members
        self.arrived = math.nan
        """When the last member that has come did (s)."""
        self.ready = 0.0
        """When the slowest rank of the members that have come has."""
        self.come = env.event()
        """Happens when it may begin, but for its turn."""
        self.begin = math.nan
        self.over = False
        self.ended = math.nan
        self.pieces: tuple[HeldPiece, ...] = ()
        self._awaited: simpy.Event | None = None

    def arrive(self, lag: float = 0.0) -> bool:
        """Count one member in, whose slowest rank comes *lag* seconds from now; tell whether it is the last."""
        self.arrived = now = self.env.now
        if now + lag > self.ready:
            self.ready = now + lag
        self.missing -= 1
        return not self.missing

    def may_begin(self, delay: float = 0.0) -> None:
        """Let it begin *delay* seconds after the slowest rank has come, when its turn comes."""
        fire(self.env, self.come, self.ready + delay - self.env.now)

    def until_over(self) -> SimProcess:
        """Wait until it has ended; of most nobody waits for the end."""
        if not self.over:
            if self._awaited is None:
                self._awaited = self.env.event()
            yield self._awaited

    def end(self) -> None:
        """Note that it has ended."""
        self.over, self.ended = True, self.env.now
        if self._awaited is not None:
            self._awaited.succeed()


Played = TypeVar("Played", bound=Operation)


class Communicator(Generic[Played]):
    """Operations one after another, in the order in which they are entered, or as many side by side as there are *streams*.

    *play* takes an operation whose turn has come, and the number of its stream, from there to its end.
    """

    def __init__(self, env: simpy.Environment, play: Callable[[Played, int], SimProcess], streams: int = 1) -> None:
        self._env = env
        self._play = play
        self._queue: deque[Played] = deque()
        self._asleep: list[simpy.Event] = []
        """What wakes each stream that has nothing to play."""
        self._unused = list(range(streams))

    def enter(self, operation: Played) -> None:
        """Let *operation* be played when its turn comes."""
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


class Fluid(NamedTuple):
    """What one operation costs as one fluid activity."""

    launch: float
    """Seconds before anything moves."""
    volume: float
    cap: float
    """Units per second when nothing else runs."""
    load: Mapping[str, float]
    """Per unit, by live link."""
    cause: Cause
    limit: str
    """What bounds it when nothing else runs."""

    @property
    def alone(self) -> float:
        """Return the seconds it takes when nothing else runs."""
        return self.launch + self.volume / self.cap


def carried(network: Network, operation: Operation, price: Fluid, name: str, meanings: Meanings) -> Generator[simpy.Event, Any, None]:
    """Let *operation*, or what comes next of it, happen on *network*, and write down what held it back, moment by moment."""
    begin = network.env.now
    yield network.env.timeout(price.launch)
    activity = network.start(name, price.volume, price.load, cap=price.cap)
    yield activity.done
    operation.pieces += tuple(_pieces(begin, network.env.now, price, activity, meanings))


def _pieces(begin: float, end: float, price: Fluid, activity: Activity, meanings: Meanings) -> Generator[HeldPiece, None, None]:
    own = price.cause, price.limit
    if len(activity.history) < 2 and not activity.bottleneck:
        yield HeldPiece(*own, begin, end)
        return
    for link, _, until in activity.bound(end):
        yield HeldPiece(*meanings.get(link, own), begin, until)
        begin = until
