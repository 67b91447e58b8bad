"""How do ranks exchange gradients? Through one communicator, whose operations every rank enters in the same order.

`sim.training.step` uses only ``start(rank, instruction, lag)`` and ``wait(rank, tag)``. DDP launches its buckets in order, and they overlap
with compute. `sim.parallel.lower.exchange_plan` determines the operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.clock import SimProcess
from sim.cluster.live_gpu import LiveGpu
from sim.events import Cause, EventLog
from sim.parallel.program import Op, Start, Tag
from sim.training.communicator import Communicator, Operation


class PlaysCollective(Protocol):
    """Plays one collective that leaves *nbytes* on every rank: yields until it is done, and logs what bounded it."""

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play the collective and log it under *name*; *ident* is the number of its bucket."""
        ...


class Backend(NamedTuple):
    """What plays a job's collectives, up to *streams* at once; *tier* is the cause logged for waits for Horovod's cycle."""

    collective: PlaysCollective
    tier: Cause
    streams: int = 1


class _ExchangeOperation(Operation):
    """One operation of the exchange while it runs."""

    def __init__(self, env: simpy.Environment, members: int, instruction: Start) -> None:
        super().__init__(env, members)
        self.instruction = instruction


class GradientExchange:
    """The gradient exchange of one job, between its rank classes. A job with a single rank has no *backend*."""

    def __init__(
        self, env: simpy.Environment, log: EventLog, ranks: Sequence[int], backend: Backend | None, gpus: Sequence[LiveGpu]
    ) -> None:
        self._env = env
        self._log = log
        self._gpus = [gpu for gpu in gpus if gpu.slows]
        self._ranks = ranks
        self._backend = backend
        self._communicator = Communicator(env, self._play, backend.streams if backend else 1)
        self._exchanging: set[int] = set()
        """Streams that are exchanging a bucket now."""
        self.collectives_in_progress: dict[int, tuple[str, float]] = {}
        """The collective in progress on each stream and when it began (s); part of the simulation state that determines what follows."""
        self.backend_state: Callable[[], tuple[float, ...]] = tuple
        """Returns the rest of that state: what the backend carries over from earlier steps."""
        self.cache_key: Callable[[], Hashable] = lambda: None
        """Returns a cache key with everything that affects how operations are played, or None if there is no such key."""
        self._incomplete: deque[_ExchangeOperation] = deque()
        """Operations at which some ranks, but not all, have arrived."""
        self._arrivals = dict.fromkeys(ranks, 0)
        """The number of these operations at which each rank has arrived."""
        self._open: dict[int, dict[Tag, _ExchangeOperation]] = {rank: {} for rank in ranks}
        """Operations that each rank has started and not yet waited for."""

    def close(self) -> None:
        """Forget what plays operations, which refers back to this exchange."""
        self._communicator.close()

    def start(self, rank: int, what: Start, lag: float = 0.0) -> None:
        """Register that *rank* arrives at its next operation, *what*. The slowest rank of its class arrives *lag* seconds from now."""
        place = self._arrivals[rank]
        if place == len(self._incomplete):
            self._incomplete.append(_ExchangeOperation(self._env, len(self._ranks), what))
        operation = self._incomplete[place]
        if operation.instruction.tag != what.tag:
            raise RuntimeError(f"rank {rank} starts {what.tag[0]}, but {operation.instruction.tag[0]} is next")
        self._open[rank][what.tag] = operation
        self._arrivals[rank] += 1
        if operation.arrive(lag):
            self._incomplete.popleft()
            for other in self._ranks:
                self._arrivals[other] -= 1
            operation.allow_begin(what.delay)
            self._communicator.enter(operation)

    def wait(self, rank: int, tag: Tag) -> Iterable[simpy.Event]:
        """Make *rank* wait until the operation *tag*, which it has started, has ended."""
        operation = self._open[rank].pop(tag)
        return () if operation.is_over else self._wait(rank, operation)

    def _wait(self, rank: int, operation: Operation) -> SimProcess:
        with self._log.waiting(rank, Cause.GRADIENT):
            yield from operation.until_over()

    def _play(self, operation: _ExchangeOperation, stream: int) -> SimProcess:
        """Play the collectives of *operation* in order, once it may begin."""
        assert self._backend is not None, "ranks that do not communicate have no operations"
        (name, bucket, _), turn = operation.instruction.tag, self._env.now
        yield operation.all_ready
        if operation.instruction.delay > 0:
            begin = max(turn, operation.ready)
            self._log.add_work(self._ranks[0], "comm", "wait for the cycle", self._backend.tier, begin, "Horovod's cycle", bucket)
        operation.begin = self._env.now
        self._communicating(stream, bucket >= 0)
        for message in operation.instruction.messages:
            self.collectives_in_progress[stream] = (name, self._env.now)
            yield from self._backend.collective(name, bucket, message.nbytes, message.op)
            del self.collectives_in_progress[stream]
        self._communicating(stream, False)

    def _communicating(self, stream: int, active: bool) -> None:
        """Tell the GPUs whether a collective overlaps with their compute, on this stream or another."""
        (self._exchanging.add if active else self._exchanging.discard)(stream)
        for gpu in self._gpus:
            gpu.set_communicating(bool(self._exchanging))
