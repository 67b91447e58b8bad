"""How do ranks exchange gradients? Operations in a fixed order on one communication stream, each starting at the slowest rank.

`sim.training.step` knows only ``gradient_ready(rank, bucket)``, ``blocking(rank)`` and ``finished(rank)``. An operation starts when
every rank has arrived at it, its delay (Horovod's cycle) is over and a stream is free: NCCL has one, so that every earlier one has ended,
Gloo two. DDP launches its buckets in order. They run beside compute. Which operations there are: `sim.training.exchange_plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import fire
from sim.events import Cause, EventLog
from sim.training.operations import Op, Operation

SimProcess = Generator[simpy.Event, object, None]


class Collective(Protocol):
    """Plays one collective that leaves *nbytes* on every rank: yields until it is done, and logs what bounded it."""

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play it under *name*; *ident* is its bucket."""
        ...


class Backend(NamedTuple):
    """What plays a job's collectives, *streams* of them side by side, and the tier on which its ranks agree to start one."""

    collective: Collective
    tier: Cause
    streams: int = 1


class _Round:
    """The operations of one micro-batch: how many rank classes are still to come to each, and which may start or have ended."""

    def __init__(self, env: simpy.Environment, number: int, operations: Sequence[Operation], classes: int) -> None:
        self._env = env
        self.number = number
        self.operations = operations
        self.last = max((index for index, operation in enumerate(operations) if operation.bucket >= 0), default=-1)
        self.missing = [classes] * len(operations)
        self.arrived = [0.0] * len(operations)
        self.ready = [env.event() for _ in operations]
        self.ended = [False] * len(operations)
        self._awaited: dict[int, simpy.Event] = {}
        self.following: _Round | None = None

    def arrive(self, index: int, lag: float) -> None:
        """Count one class in at the operation *index*, whose slowest rank comes *lag* seconds from now."""
        now = self._env.now
        self.arrived[index] = max(self.arrived[index], now + lag)
        self.missing[index] -= 1
        if self.missing[index] == 0:
            fire(self._env, self.ready[index], self.arrived[index] + self.operations[index].delay - now)

    def until(self, index: int) -> SimProcess:
        """Wait until the operation *index* has ended; of most nobody waits for the end."""
        if not self.ended[index]:
            yield self._awaited.setdefault(index, self._env.event())

    def until_all(self) -> SimProcess:
        """Wait until every bucket has been exchanged; the last is mostly the last to end."""
        yield from self.until(self.last)
        for index in range(self.last):
            yield from self.until(index)

    def end(self, index: int) -> None:
        """Note that the operation *index* has ended."""
        self.ended[index] = True
        if index in self._awaited:
            self._awaited[index].succeed()


class Exchange:
    """One job's gradient exchange between its rank classes; *rounds* are the operations of a step's micro-batches."""

    def __init__(
        self,
        env: simpy.Environment,
        log: EventLog,
        ranks: Sequence[int],
        rounds: Sequence[Sequence[Operation]],
        backend: Backend | None,
        gpus: Sequence[LiveGpu],
    ) -> None:
        self._env = env
        self._log = log
        self._rounds = rounds
        self._gpus = [gpu for gpu in gpus if gpu.slows]
        self._ranks = ranks
        self._beside: set[int] = set()
        """Streams that exchange a bucket now."""
        self.playing: dict[int, tuple[str, float]] = {}
        """The collective in progress on each stream and when it began (s): part of the state that decides what happens next."""
        self.remembers: Callable[[], tuple[float, ...]] = tuple
        """Returns what else decides it: what the collective has learnt from earlier steps."""
        self.made_of: Callable[[], Hashable] = lambda: None
        """Returns everything that decides how the collective plays its operations; None where that is not known."""
        first = _Round(env, 0, rounds[0], len(ranks))
        self._at = dict.fromkeys(ranks, first)
        """The round that each rank is in: one may have left a round that another has still to finish."""
        self._next = dict.fromkeys(ranks, 0)
        """The operation of that round that each rank comes to next."""
        if backend is not None and any(rounds):
            queue = self._queue(first)
            for stream in range(backend.streams):
                env.process(self._stream(stream, queue, backend))

    def gradient_ready(self, rank: int, bucket: int, lag: float = 0.0) -> None:
        """Tell that *rank* has all gradients of *bucket*, the next one; the slowest rank of its class will, *lag* seconds from now."""
        round_, index = self._arrive(rank, lag)
        if round_.operations[index].bucket != bucket:
            raise RuntimeError(f"rank {rank} has bucket {bucket} ready, but {round_.operations[index].name} is next")

    def blocking(self, rank: int, lag: float = 0.0) -> SimProcess:
        """Take *rank* through the next operation, which it waits for on the spot."""
        round_, index = self._arrive(rank, lag)
        with self._log.waiting(rank, Cause.GRADIENT):
            yield from round_.until(index)

    def finished(self, rank: int) -> SimProcess:
        """Wait until every bucket of this micro-batch is reduced."""
        round_ = self._at[rank]
        if round_.last >= 0:
            with self._log.waiting(rank, Cause.GRADIENT):
                yield from round_.until_all()
        self._at[rank], self._next[rank] = self._after(round_), 0

    def _arrive(self, rank: int, lag: float) -> tuple[_Round, int]:
        round_, index = self._at[rank], self._next[rank]
        self._next[rank] += 1
        round_.arrive(index, lag)
        return round_, index

    def _after(self, round_: _Round) -> _Round:
        if round_.following is None:
            number = (round_.number + 1) % len(self._rounds)
            round_.following = _Round(self._env, number, self._rounds[number], len(self._at))
        return round_.following

    def _queue(self, round_: _Round) -> Iterator[tuple[_Round, int]]:
        """Yield every operation of this round and of those after it, in order."""
        while True:
            yield from ((round_, index) for index in range(len(round_.operations)))
            round_ = self._after(round_)

    def _stream(self, stream: int, queue: Iterator[tuple[_Round, int]], backend: Backend) -> SimProcess:
        """Play whatever comes next in *queue*, which all streams share."""
        for round_, index in queue:
            operation, idle_since = round_.operations[index], self._env.now
            yield round_.ready[index]
            if operation.delay > 0:
                begin = max(idle_since, round_.arrived[index])
                self._log.did(self._ranks[0], "comm", "wait for the cycle", backend.tier, begin, "Horovod's cycle", operation.bucket)
            yield from self._play(stream, operation, backend.collective)
            round_.end(index)

    def _play(self, stream: int, operation: Operation, collective: Collective) -> SimProcess:
        """Play the collectives of one operation, one after another."""
        self._communicating(stream, operation.bucket >= 0)
        for message in operation.messages:
            self.playing[stream] = (operation.name, self._env.now)
            yield from collective(operation.name, operation.bucket, message.nbytes, message.op)
            del self.playing[stream]
        self._communicating(stream, False)

    def _communicating(self, stream: int, active: bool) -> None:
        """Tell the GPUs whether a collective runs beside their compute, on this stream or another."""
        (self._beside.add if active else self._beside.discard)(stream)
        for gpu in self._gpus:
            gpu.communicating(bool(self._beside))
