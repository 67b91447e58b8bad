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


class _Step:
    """The operations of one step: how many rank classes are still to come to each, and which have ended."""

    def __init__(self, env: simpy.Environment, operations: int, classes: int) -> None:
        self.missing = [classes] * operations
        self.ready = [env.event() for _ in range(operations)]
        self.done = [env.event() for _ in range(operations)]
        self.following: _Step | None = None

    def arrive(self, index: int) -> None:
        """Count one class in at the operation *index*."""
        self.missing[index] -= 1
        if self.missing[index] == 0:
            self.ready[index].succeed()


class Exchange:
    """One job's gradient exchange between its rank classes; *blocking* and *buckets* give each operation's bytes."""

    def __init__(
        self,
        env: simpy.Environment,
        log: EventLog,
        ranks: Sequence[int],
        blocking: Sequence[tuple[str, float]],
        buckets: Sequence[float],
        collective: Collective | None,
        gpus: Sequence[LiveGpu],
    ) -> None:
        self._env = env
        self._log = log
        self._operations = [*blocking, *((f"bucket {index}", nbytes) for index, nbytes in enumerate(buckets))]
        self._first_bucket = len(blocking)
        self._gpus = gpus
        self.current: tuple[str, float] | None = None
        """The operation in progress and when it began (s): part of the state that decides what happens next."""
        first = _Step(env, len(self._operations), len(ranks))
        self._at = dict.fromkeys(ranks, first)
        """The step that each rank is in: one may have left a step that another has still to finish."""
        if collective is not None and self._operations:
            env.process(self._stream(first, collective))

    @property
    def blocks(self) -> bool:
        """Tell whether ranks meet between forward and backward."""
        return self._first_bucket > 0

    def gradient_ready(self, rank: int, bucket: int, lag: float = 0.0) -> None:
        """Tell that *rank* has all gradients of *bucket*; the slowest rank of its class will, *lag* seconds from now."""
        self._arrive(rank, self._first_bucket + bucket, lag)

    def blocking(self, rank: int, lag: float = 0.0) -> SimProcess:
        """Take *rank* through the operations that stand between forward and backward, one after another."""
        step = self._at[rank]
        for index in range(self._first_bucket):
            self._arrive(rank, index, lag if index == 0 else 0.0)
            with self._log.waiting(rank, Cause.GRADIENT):
                yield step.done[index]

    def finished(self, rank: int) -> SimProcess:
        """Wait until every bucket of this step is reduced."""
        step = self._at[rank]
        if len(self._operations) > self._first_bucket:
            with self._log.waiting(rank, Cause.GRADIENT):
                yield step.done[-1]
        self._at[rank] = self._after(step)

    def _arrive(self, rank: int, index: int, lag: float) -> None:
        step = self._at[rank]
        if lag > 0:
            self._env.timeout(lag).callbacks.append(lambda _: step.arrive(index))
        else:
            step.arrive(index)

    def _after(self, step: _Step) -> _Step:
        if step.following is None:
            step.following = _Step(self._env, len(self._operations), len(self._at))
        return step.following

    def _stream(self, step: _Step, collective: Collective) -> SimProcess:
        while True:
            for index, (name, nbytes) in enumerate(self._operations):
                yield step.ready[index]
                self.current = (name, self._env.now)
                self._communicating(index >= self._first_bucket)
                yield from collective(name, index - self._first_bucket, nbytes)
                self._communicating(False)
                self.current = None
                step.done[index].succeed()
            step = self._after(step)

    def _communicating(self, active: bool) -> None:
        """Tell the GPUs whether a collective runs beside their compute."""
        for gpu in self._gpus:
            gpu.communicating(active)
