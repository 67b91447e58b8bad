"""Which nodes does a job have at a time? Nodes of spot machines that are revoked at the end of their lives, and what takes their place.

All courses of `sim.analysis.course` at once: a row for each course, a column for each node. Where the job waits (no `Members`), a node is
there again once its replacement is, and the wait is a spare's; else it is away until it joins, and the others go on at their speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.analysis.transient import Lives

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Members:
    """A job that goes on with fewer nodes."""

    speeds: tuple[float, ...]
    """With 1, 2, ... nodes, relative to all; 0: the job waits for more."""
    replaced: bool = True
    """Whether a replacement joins; else all are rented again once nobody is left."""
    restarts: bool = True
    """Whether all go back to the last checkpoint where a node goes or joins, as workers in step do."""
    chief: bool = False
    """Whether all go back to it where the first node joins again, as TensorFlow's workers do with their chief."""


class Crew:
    """The nodes of courses on their way."""

    def __init__(
        self, nodes: int, trials: int, lives: Lives | None, members: Members | None, replacement: float, random: np.random.Generator
    ) -> None:
        self.nodes, self.lives, self.members, self.replacement, self.random = nodes, lives, members, replacement, random
        shape = (trials, nodes if lives else 1)
        self.leaves = np.full(shape, np.inf) if lives is None else lives.draws(trials * nodes, random).reshape(shape)
        """When each node is revoked."""
        self.joins = np.full(shape, np.inf)
        """When each that is away is there again."""
        self.away = np.zeros(shape, dtype=np.bool_)
        self.node_seconds = np.zeros(trials)
        """Of nodes that were there."""
        self.requested = np.zeros(trials)
        """Nodes that were rented in the place of others."""
        self.speeds = np.concatenate(([0.0], members.speeds)) if members else np.ones(nodes + 1)

    def due(self, a: Rows) -> tuple[Array, Array]:
        """Return when the next node of each course *a* goes, and when the next joins."""
        return self.leaves[a].min(axis=1), self.joins[a].min(axis=1)

    def there(self, a: Rows) -> NDArray[np.intp]:
        """Return the nodes that each course *a* has."""
        return np.asarray(self.nodes - self.away[a].sum(axis=1))

    def speed(self, a: Rows) -> Array:
        """Return the speed of each course *a*, relative to that with all nodes."""
        return np.asarray(self.speeds[self.there(a)])

    def went(self, b: Rows, life: Array) -> None:
        """Take the next node from the courses *b*; where the job waits, one with a *life* (s, of every course) follows it."""
        node = self.leaves[b].argmin(axis=1)
        if self.members is None:
            self.leaves[b, node] += self.replacement + life[b]
            return
        back = self.leaves[b, node] + self.replacement
        self.leaves[b, node] = np.inf
        self.away[b, node] = True
        if self.members.replaced:
            self.joins[b, node] = back
            self.requested[b] += 1
            return
        empty = self.away[b].all(axis=1)
        self.joins[b[empty]] = back[empty][:, None]
        self.requested[b[empty]] += self.nodes

    def stayed(self, b: Rows, life: Array) -> None:
        """Keep the next node of the courses *b* where it would go, until the next in its place would, which had that *life*."""
        self.leaves[b, self.leaves[b].argmin(axis=1)] += self.replacement + life[b]

    def joined(self, b: Rows, life: Array) -> NDArray[np.bool_]:
        """Let the next node join the courses *b* for a *life* (s, of every course), and tell where it is the first node."""
        node = self.joins[b].argmin(axis=1)
        self.leaves[b, node] = self.joins[b, node] + life[b]
        self.joins[b, node] = np.inf
        self.away[b, node] = False
        return np.asarray(node == 0)
