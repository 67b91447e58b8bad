"""Which node replaces one that leaves, and how long does the job wait? A ready spare, the repaired node, or none, with fewer replicas.

The module handles all courses of `sim.analysis.course` at once, with one row per course. A failed node is repaired and then becomes a
spare. An elastic job does not wait while whole replicas are left: it runs at their speed until the node is back.

Limits: spares are identical; nodes fail while the job waits, too; a job that waits does not resume earlier with fewer replicas when another
missing node returns first.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim.analysis.crew import RowNumbers
from sim.analysis.fleet_law import Array
from sim.analysis.long_run import LongRun


class Spares:
    """The spare nodes and the missing nodes of courses in progress."""

    def __init__(self, run: LongRun, trials: int) -> None:
        self.run = run
        self.pool = np.zeros((trials, run.spares))
        """Time at which each spare is ready."""
        self.turn = np.zeros(trials, dtype=np.intp)
        """Counter that selects the spare to try next."""
        self.missing = np.zeros((trials, len(run.elastic)))
        """Return times of the nodes that an elastic job runs without."""
        self.last_return = np.zeros(trials)
        """The latest of these times; from then on, a course has all its nodes."""
        self.began, self.complete = np.zeros(trials), np.zeros(trials)
        """When the last wait begins and ends; a further node that leaves before it ends does not shorten it."""
        self.steps = np.diff((1.0, *run.elastic))
        """Change of speed with each additional missing node."""

    def wait(
        self, b: RowNumbers, several: NDArray[np.bool_], single: NDArray[np.bool_], detected: Array, repair: Array, together: Array
    ) -> Array:
        """Return how long (s) the courses *b* wait for replacements of nodes that leave at *detected*; infinite if there is none.

        In courses with *single*, one node leaves and is back after *repair*; with *several*, several nodes leave and are back after
        *together*.
        """
        wait = np.zeros(b.size)
        alone = np.flatnonzero(single)
        if alone.size:
            wait[alone] = self._wait_for_one(b[alone], detected[alone], repair[alone])
        if self.run.spares:
            self.turn[b] += 1
        for place in np.flatnonzero(several):
            wait[place] = self._wait_for_several(b[place], float(detected[place]), float(together[place]))
        wait = self._go_without(b, wait, detected, several) if self.run.elastic else wait
        wait = np.maximum(wait, self.complete[b] - np.maximum(self.began[b], detected))
        ends = np.isfinite(wait)
        self.began[b[ends]], self.complete[b[ends]] = detected[ends], detected[ends] + wait[ends]
        return wait

    def _wait_for_one(self, b: RowNumbers, detected: Array, repair: Array) -> Array:
        """Return how long each of the courses *b* waits for a spare or, if it is back first, for the node that leaves."""
        if not self.run.spares:
            return repair
        back = detected + repair
        slot, ready = self._next_spare(b, detected)
        taken = np.maximum(ready, detected) <= back
        self.pool[b[taken], slot[taken]] = back[taken]
        return np.where(taken, np.maximum(ready - detected, 0.0), repair)

    def _next_spare(self, b: RowNumbers, moment: Array) -> tuple[RowNumbers, Array]:
        """Return a spare of each course *b* that is ready at *moment*, or else the one that is ready first, and the time it is ready."""
        slot = self.turn[b] % self.run.spares
        ready = self.pool[b, slot]
        late = np.flatnonzero(ready > moment)
        if late.size:
            pool = self.pool[b[late]]
            slot[late] = pool.argmin(axis=1)
            ready[late] = pool[np.arange(late.size), slot[late]]
        return slot, ready

    def _wait_for_several(self, course: np.intp, moment: float, back: float) -> float:
        """Return how long *course* waits for several nodes at once: 0 if enough spares are ready, else until all nodes return."""
        count, pool = self.run.correlated[1], self.pool[course]
        chosen = np.argsort(pool)[:count]
        back = back if self.run.repairs else math.inf
        if chosen.size < count or pool[chosen[-1]] > moment:
            return back
        pool[chosen] = moment + back
        return 0.0

    def _go_without(self, b: RowNumbers, wait: Array, moment: Array, several: NDArray[np.bool_]) -> Array:
        """Return *wait*, set to 0 for courses that go on without the nodes, and record until when the nodes are missing."""
        left = np.where(several, self.run.correlated[1], 1)
        waiting = np.flatnonzero(wait > 0)
        if not waiting.size:
            return wait
        out = (self.missing[b[waiting]] > moment[waiting, None]).sum(axis=1)
        free = waiting[out + left[waiting] <= len(self.run.elastic)]
        for place in free:
            slots = np.argsort(self.missing[b[place]])[: left[place]]
            self.missing[b[place], slots] = moment[place] + wait[place]
        self.last_return[b[free]] = np.maximum(self.last_return[b[free]], moment[free] + wait[free])
        wait[free] = 0.0
        return wait

    def absent(self, a: RowNumbers, since: Array, length: Array) -> Array:
        """Return the node-seconds missing from the courses *a* during *length* seconds from *since*."""
        absent = np.zeros(a.size)
        some = np.flatnonzero(self.last_return[a] > since)
        if not some.size:
            return absent
        absent[some] = np.clip(self.missing[a[some]] - since[some, None], 0.0, length[some, None]).sum(axis=1)
        return absent

    def speed(self, a: RowNumbers, since: Array, length: Array) -> Array:
        """Return the mean speed of the courses *a* during *length* seconds from *since*, with the replicas that are complete."""
        speed = np.ones(a.size)
        some = np.flatnonzero((self.last_return[a] > since) & (length > 0))
        if not some.size:
            return speed
        span = length[some]
        missed = np.sort(np.clip(self.missing[a[some]] - since[some, None], 0.0, span[:, None]), axis=1)[:, ::-1]
        speed[some] += (missed * self.steps).sum(axis=1) / span
        return speed
