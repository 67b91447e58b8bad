"""Which nodes does a job have at a given time? Spot nodes are revoked at the end of their lifetimes and may be replaced.

The module handles all courses of `sim.analysis.course` at once, with one row per course and one column per node. If the job waits for
replacements (no `ElasticRules`), a revoked node is back when its replacement arrives, and the wait counts as a wait for a spare. Otherwise
the node is away until it joins, and the job goes on with the remaining nodes at their speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.analysis.transient import CrowdLives, Lives

Array = NDArray[np.float64]
RowNumbers = NDArray[np.intp]


@dataclass(frozen=True)
class ElasticRules:
    """How a job goes on with fewer nodes."""

    speeds: tuple[float, ...]
    """Speed with 1, 2, ... nodes, relative to all nodes; 0 means that the job waits for more nodes."""
    replaces_nodes: bool = True
    """Whether a replacement joins for each revoked node; otherwise all nodes are rented again once none is left."""
    restarts: bool = True
    """Whether all nodes go back to the last checkpoint when a node goes or joins, as synchronous workers do."""
    restarts_with_chief: bool = False
    """Whether all nodes go back to the last checkpoint when the first node rejoins, as TensorFlow's workers do with their chief."""


class Crew:
    """The nodes of courses in progress."""

    def __init__(
        self, nodes: int, trials: int, lives: Lives | None, rules: ElasticRules | None, replacement: float, random: np.random.Generator
    ) -> None:
        together = lives is None or isinstance(lives, CrowdLives)
        self.nodes, self.lives, self.rules, self.random = nodes, lives, rules, random
        self.replacement = 0.0 if together else replacement
        """Time (s) until the next life of a revoked node begins; others live on meanwhile."""
        shape = (trials, 1 if together else nodes)
        self.leave_times = np.full(shape, np.inf) if lives is None else lives.draws(trials * shape[1], random).reshape(shape)
        """Time at which each node is revoked, or the next of all nodes."""
        self.join_times = np.full(shape, np.inf)
        """Time at which each missing node rejoins."""
        self.is_missing = np.zeros(shape, dtype=np.bool_)
        self.node_seconds = np.zeros(trials)
        """Node-seconds of nodes that were present."""
        self.rented_nodes = np.zeros(trials)
        """Number of nodes that were rented as replacements."""
        self.speeds = np.concatenate(([0.0], rules.speeds)) if rules else np.ones(nodes + 1)

    def next_times(self, a: RowNumbers) -> tuple[Array, Array]:
        """Return when the next node of each course *a* is revoked, and when the next one joins."""
        return self.leave_times[a].min(axis=1), self.join_times[a].min(axis=1)

    def node_counts(self, a: RowNumbers) -> NDArray[np.intp]:
        """Return the number of nodes that each course *a* has."""
        if self.rules is None:  # a replacement takes the place of a node as it goes
            return np.full(a.size, self.nodes)
        return np.asarray(self.nodes - self.is_missing[a].sum(axis=1))

    def speed(self, a: RowNumbers) -> Array:
        """Return the speed of each course *a*, relative to the speed with all nodes."""
        return np.asarray(self.speeds[self.node_counts(a)])

    def revoke(self, b: RowNumbers, life: Array) -> None:
        """Revoke the next node of the courses *b*; if the job waits, a replacement with a *life* (s, one per course) follows it."""
        if not b.size:
            return
        node = self.leave_times[b].argmin(axis=1)
        if self.rules is None:
            self.leave_times[b, node] += self.replacement + life[b]
            return
        back = self.leave_times[b, node] + self.replacement
        self.leave_times[b, node] = np.inf
        self.is_missing[b, node] = True
        if self.rules.replaces_nodes:
            self.join_times[b, node] = back
            self.rented_nodes[b] += 1
            return
        empty = self.is_missing[b].all(axis=1)
        self.join_times[b[empty]] = back[empty][:, None]
        self.rented_nodes[b[empty]] += self.nodes

    def skip_revocation(self, b: RowNumbers, life: Array) -> None:
        """Skip the next revocation of the courses *b*: the node stays until its replacement, with that *life*, would be revoked."""
        if not b.size:
            return
        self.leave_times[b, self.leave_times[b].argmin(axis=1)] += self.replacement + life[b]

    def join(self, b: RowNumbers, life: Array) -> NDArray[np.bool_]:
        """Let the next node join the courses *b* for a *life* (s, one per course); return in which courses it is the first node."""
        if not b.size:
            return np.zeros(0, dtype=np.bool_)
        node = self.join_times[b].argmin(axis=1)
        self.leave_times[b, node] = self.join_times[b, node] + life[b]
        self.join_times[b, node] = np.inf
        self.is_missing[b, node] = False
        return np.asarray(node == 0)
