"""How do ranks exchange gradients? One communicator, whose operations every rank comes to in the same order.

`sim.training.step` knows only ``gradient_ready(rank, bucket)``, ``blocking(rank)`` and ``finished(rank)``. DDP launches its buckets in
order; they run beside compute. Which operations there are: `sim.training.exchange_plan`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from itertools import chain, cycle
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.live_gpu import LiveGpu
from sim.events import Cause, EventLog
from sim.training.communicator import Communicator, Operation
from sim.training.operations import Op
from sim.training.operations import Operation as Planned

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


class _Operation(Operation):
    """One operation of the exchange while it runs."""

    def __init__(self, env: simpy.Environment, members: int, plan: Planned) -> None:
        super().__init__(env, members)
        self.plan = plan


class Exchange:
    """One job's gradient exchange between its rank classes; *rounds* are the operations of a step's micro-batches."""

    def __init__(
        self,
        env: simpy.Environment,
        log: EventLog,
        ranks: Sequence[int],
        rounds: Sequence[Sequence[Planned]],
        backend: Backend | None,
        gpus: Sequence[LiveGpu],
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
        self._due = {rank: cycle(chain.from_iterable(rounds)) for rank in ranks}
        """The operations that each rank comes to next."""
        self._coming: deque[_Operation] = deque()
        """Operations to which some ranks have come and others have not."""
        self._come = dict.fromkeys(ranks, 0)
        """How many of those each rank has come to."""
        self._open: dict[int, list[_Operation]] = {rank: [] for rank in ranks}
        """Buckets of this micro-batch that each rank has come to."""

    def gradient_ready(self, rank: int, bucket: int, lag: float = 0.0) -> None:
        """Tell that *rank* has all gradients of *bucket*, the next one; the slowest rank of its class will, *lag* seconds from now."""
        operation = self._arrive(rank, lag)
        if operation.plan.bucket != bucket:
            raise RuntimeError(f"rank {rank} has bucket {bucket} ready, but {operation.plan.name} is next")
        self._open[rank].append(operation)

    def blocking(self, rank: int, lag: float = 0.0) -> SimProcess:
        """Take *rank* through the next operation, which it waits for on the spot."""
        operation = self._arrive(rank, lag)
        with self._log.waiting(rank, Cause.GRADIENT):
            yield from operation.until_over()

    def finished(self, rank: int) -> SimProcess:
        """Wait until every bucket of this micro-batch is reduced; the last is mostly the last to end."""
        if not self._open[rank]:
            return
        with self._log.waiting(rank, Cause.GRADIENT):
            for operation in reversed(self._open[rank]):
                yield from operation.until_over()
        self._open[rank].clear()

    def _arrive(self, rank: int, lag: float) -> _Operation:
        plan, place = next(self._due[rank]), self._come[rank]
        if place == len(self._coming):
            self._coming.append(_Operation(self._env, len(self._ranks), plan))
        operation = self._coming[place]
        self._come[rank] += 1
        if operation.arrive(lag):
            self._coming.popleft()
            for other in self._ranks:
                self._come[other] -= 1
            operation.may_begin(plan.delay)
            self._communicator.enter(operation)
        return operation

    def _play(self, operation: _Operation, stream: int) -> SimProcess:
        """Play the collectives of *operation*, one after another, once it may begin."""
        assert self._backend is not None, "ranks that meet nobody come to no operation"
        plan, turn = operation.plan, self._env.now
        yield operation.come
        if plan.delay > 0:
            begin = max(turn, operation.ready)
            self._log.did(self._ranks[0], "comm", "wait for the cycle", self._backend.tier, begin, "Horovod's cycle", plan.bucket)
        operation.begin = self._env.now
        self._communicating(stream, plan.bucket >= 0)
        for message in plan.messages:
            self.playing[stream] = (plan.name, self._env.now)
            yield from self._backend.collective(plan.name, plan.bucket, message.nbytes, message.op)
            del self.playing[stream]
        self._communicating(stream, False)

    def _communicating(self, stream: int, active: bool) -> None:
        """Tell the GPUs whether a collective runs beside their compute, on this stream or another."""
        (self._beside.add if active else self._beside.discard)(stream)
        for gpu in self._gpus:
            gpu.communicating(bool(self._beside))
