"""How do ranks exchange gradients? Operations in a fixed order on one communication stream, each starting at the slowest rank.

`sim.training.step` knows only ``gradient_ready(rank, bucket)``, ``blocking(rank, name)`` and ``finished(rank)``. An operation
starts when every rank has arrived at it and every earlier one has ended, as NCCL's in-order stream and DDP's in-order bucket
launch demand; it runs beside compute.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

import simpy

from sim.cluster.gpu import LiveGpu
from sim.events import Cause, EventLog

SimProcess = Generator[simpy.Event, object, None]


class Collective(Protocol):
    """Plays one all-reduce of *nbytes*: yields until it is done, and logs what bounded it."""

    def __call__(self, name: str, ident: int, nbytes: float) -> SimProcess:
        """Play it under *name*; *ident* is its bucket."""
        ...


class Exchange:
    """One job's gradient exchange between *classes* rank classes; *blocking* and *buckets* give each operation's bytes."""

    def __init__(
        self,
        env: simpy.Environment,
        log: EventLog,
        classes: int,
        blocking: Sequence[tuple[str, float]],
        buckets: Sequence[float],
        collective: Collective | None,
        gpus: Sequence[LiveGpu],
    ) -> None:
        self._env = env
        self._log = log
        self._classes = classes
        self._operations = [*blocking, *((f"bucket {index}", nbytes) for index, nbytes in enumerate(buckets))]
        self._first_bucket = len(blocking)
        self._gpus = gpus
        self.current: tuple[str, float] | None = None
        """The operation in progress and when it began (s): part of the state that decides what happens next."""
        self._begin_step()
        if collective is not None:
            env.process(self._stream(collective))

    @property
    def blocks(self) -> bool:
        """Tell whether ranks meet between forward and backward."""
        return self._first_bucket > 0

    def gradient_ready(self, rank: int, bucket: int, lag: float = 0.0) -> None:
        """Tell that *rank* has all gradients of *bucket*; the slowest rank of its class will, *lag* seconds from now."""
        self._arrive(self._first_bucket + bucket, lag)

    def blocking(self, rank: int, lag: float = 0.0) -> SimProcess:
        """Take *rank* through the operations that stand between forward and backward, one after another."""
        for index in range(self._first_bucket):
            done = self._done[index]
            self._arrive(index, lag if index == 0 else 0.0)
            with self._log.waiting(rank, Cause.GRADIENT):
                yield done

    def finished(self, rank: int) -> SimProcess:
        """Wait until every bucket of this step is reduced."""
        if len(self._operations) > self._first_bucket:
            done = self._done[-1]
            with self._log.waiting(rank, Cause.GRADIENT):
                yield done

    def _arrive(self, index: int, lag: float) -> None:
        if lag > 0:
            self._env.timeout(lag).callbacks.append(lambda _: self._arrive(index, 0.0))
            return
        self._missing[index] -= 1
        if self._missing[index] == 0:
            self._ready[index].succeed()

    def _begin_step(self) -> None:
        self._ready = [self._env.event() for _ in self._operations]
        self._done = [self._env.event() for _ in self._operations]
        self._missing = [self._classes] * len(self._operations)

    def _stream(self, collective: Collective) -> SimProcess:
        while self._operations:
            ready, done = self._ready, self._done
            for index, (name, nbytes) in enumerate(self._operations):
                yield ready[index]
                self.current = (name, self._env.now)
                self._communicating(index >= self._first_bucket)
                yield from collective(name, index - self._first_bucket, nbytes)
                self._communicating(False)
                self.current = None
                if index == len(self._operations) - 1:
                    self._begin_step()
                done[index].succeed()

    def _communicating(self, active: bool) -> None:
        """Tell the GPUs whether a collective runs beside their compute."""
        for gpu in self._gpus:
            gpu.communicating(active)
