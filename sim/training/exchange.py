"""How do ranks exchange gradients? One communicator, whose operations every rank comes to in the same order.

`sim.training.step` knows only ``start(rank, instruction, lag)`` and ``wait(rank, tag)``. DDP launches its buckets in order; they run beside
compute. Which operations there are: `sim.parallel.lower.exchange_plan`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.live_gpu import LiveGpu
from sim.events import Cause, EventLog
from sim.parallel.program import Op, Start, Tag
from sim.training.communicator import Communicator, Operation

SimProcess = Generator[simpy.Event, object, None]


class PlaysCollective(Protocol):
    """Plays one collective that leaves *nbytes* on every rank: yields until it is done, and logs what bounded it."""

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play it under *name*; *ident* is its bucket."""
        ...


class Backend(NamedTuple):
    """What plays a job's collectives, *streams* of them side by side, and the tier on which its ranks agree to start one."""

    collective: PlaysCollective
    tier: Cause
    streams: int = 1


class _Operation(Operation):
    """One operation of the exchange while it runs."""

    def __init__(self, env: simpy.Environment, members: int, what: Start) -> None:
        super().__init__(env, members)
        self.what = what


class GradientExchange:
    """One job's gradient exchange between its rank classes; a rank alone has no *backend*."""

    def __init__(
        self, env: simpy.Environment, log: EventLog, ranks: Sequence[int], backend: Backend | None, gpus: Sequence[LiveGpu]
    ) -> None:
        self._env = env
        self._log = log
        self._gpus = [gpu for gpu in gpus if gpu.slows]
        self._ranks = ranks
        self._backend = backend
        self._communicator = Communicator(env, self._play, backend.streams if backend else 1)
        self._beside: set[int] = set()
        """Streams that exchange a bucket now."""
        self.playing: dict[int, tuple[str, float]] = {}
        """The collective in progress on each stream and when it began (s): part of the state that decides what happens next."""
        self.remembers: Callable[[], tuple[float, ...]] = tuple
        """Returns what else decides it: what the collective has learnt from earlier steps."""
        self.made_of: Callable[[], Hashable] = lambda: None
        """Returns everything that decides how the collective plays its operations; None where that is not known."""
        self._coming: deque[_Operation] = deque()
        """Operations to which some ranks have come and others have not."""
        self._come = dict.fromkeys(ranks, 0)
        """How many of those each rank has come to."""
        self._open: dict[int, dict[Tag, _Operation]] = {rank: {} for rank in ranks}
        """Operations that each rank has come to and not waited for."""

    def start(self, rank: int, what: Start, lag: float = 0.0) -> None:
        """Let *rank* come to its next operation; the slowest rank of its class does *lag* seconds from now."""
        place = self._come[rank]
        if place == len(self._coming):
            self._coming.append(_Operation(self._env, len(self._ranks), what))
        operation = self._coming[place]
        if operation.what.tag != what.tag:
            raise RuntimeError(f"rank {rank} starts {what.tag[0]}, but {operation.what.tag[0]} is next")
        self._open[rank][what.tag] = operation
        self._come[rank] += 1
        if operation.arrive(lag):
            self._coming.popleft()
            for other in self._ranks:
                self._come[other] -= 1
            operation.may_begin(what.delay)
            self._communicator.enter(operation)

    def wait(self, rank: int, tag: Tag) -> Iterable[simpy.Event]:
        """Let *rank* wait until the operation *tag*, which it has come to, has ended."""
        operation = self._open[rank].pop(tag)
        return () if operation.over else self._wait(rank, operation)

    def _wait(self, rank: int, operation: Operation) -> SimProcess:
        with self._log.waiting(rank, Cause.GRADIENT):
            yield from operation.until_over()

    def _play(self, operation: _Operation, stream: int) -> SimProcess:
        """Play the collectives of *operation*, one after another, once it may begin."""
        assert self._backend is not None, "ranks that meet nobody come to no operation"
        (name, bucket, _), turn = operation.what.tag, self._env.now
        yield operation.come
        if operation.what.delay > 0:
            begin = max(turn, operation.ready)
            self._log.did(self._ranks[0], "comm", "wait for the cycle", self._backend.tier, begin, "Horovod's cycle", bucket)
        operation.begin = self._env.now
        self._communicating(stream, bucket >= 0)
        for message in operation.what.messages:
            self.playing[stream] = (name, self._env.now)
            yield from self._backend.collective(name, bucket, message.nbytes, message.op)
            del self.playing[stream]
        self._communicating(stream, False)

    def _communicating(self, stream: int, active: bool) -> None:
        """Tell the GPUs whether a collective runs beside their compute, on this stream or another."""
        (self._beside.add if active else self._beside.discard)(stream)
        for gpu in self._gpus:
            gpu.communicating(bool(self._beside))
