"""Which nodes does a job have at a given time? Spot nodes are revoked at the end of their lifetimes and may be replaced.

The module handles all courses of `sim.analysis.course` at once, with one row per course and one column per node. If the job waits for
replacements (no `ElasticRules`), a revoked node is back when its replacement arrives, and the wait counts as a wait for a spare. Otherwise
the node is away until it joins, and the job goes on with the remaining nodes at their speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.analysis.fleet_law import Array
from sim.analysis.transient import CrowdLives, Lives

RowNumbers = NDArray[np.intp]
"""Numbers of courses: rows of the arrays that describe all of them."""


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


class _Moments:
    """One moment of each node in each course, of which the earliest are looked up often.

    Nodes are in groups of about the square root of their number, and the earliest moment of each group is kept.
    """

    def __init__(self, moments: Array) -> None:
        """Keep *moments*, one row per course and one column per node."""
        trials, nodes = moments.shape
        self.size = math.isqrt(nodes - 1) + 1
        groups = -(-nodes // self.size)
        self.moments = np.full((trials, groups * self.size), np.inf)
        self.moments[:, :nodes] = moments
        self.moments = self.moments.reshape(trials, groups, self.size)
        self.of_groups = self.moments.min(axis=2)

    def earliest(self, a: RowNumbers) -> Array:
        """Return the earliest moment in each course *a*."""
        return np.asarray(self.of_groups[a].min(axis=1))

    def node(self, b: RowNumbers) -> NDArray[np.intp]:
        """Return the node with the earliest moment in each course *b*."""
        group = self.of_groups[b].argmin(axis=1)
        return np.asarray(group * self.size + self.moments[b, group].argmin(axis=1))

    def put(self, b: RowNumbers, node: NDArray[np.intp], moment: Array | float) -> None:
        """Set the *moment* of one *node* in each course *b*."""
        group = node // self.size
        self.moments[b, group, node % self.size] = moment
        self.of_groups[b, group] = self.moments[b, group].min(axis=1)

    def put_all(self, b: RowNumbers, moment: Array, nodes: int) -> None:
        """Set the moment of all *nodes* nodes in each course *b*."""
        if b.size:
            self.moments.reshape(len(self.moments), -1)[b, :nodes] = moment[:, None]
            self.of_groups[b] = moment[:, None]


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
        self.leave_times = _Moments(np.full(shape, np.inf) if lives is None else lives.draws(trials * shape[1], random).reshape(shape))
        """Time at which each node is revoked, or the next of all nodes."""
        self.join_times = _Moments(np.full(shape if rules else (trials, 1), np.inf))
        """Time at which each missing node rejoins."""
        self.back_times = np.zeros(shape)
        """Time at which the replacement of each node that was revoked is there."""
        self.lost_copies = np.zeros(trials, dtype=np.bool_)
        """Whether the last node that was revoked left while a neighbor was away: each holds the copy of the other in its memory."""
        self.missing_counts = np.zeros(trials, dtype=np.intp)
        """Number of missing nodes."""
        self.node_seconds = np.zeros(trials)
        """Node-seconds of nodes that were present."""
        self.rented_nodes = np.zeros(trials)
        """Number of nodes that were rented as replacements."""
        self.speeds = np.concatenate(([0.0], rules.speeds)) if rules else np.ones(nodes + 1)

    def next_times(self, a: RowNumbers) -> tuple[Array, Array]:
        """Return when the next node of each course *a* is revoked, and when the next one joins."""
        return self.leave_times.earliest(a), self.join_times.earliest(a)

    def node_counts(self, a: RowNumbers) -> NDArray[np.intp]:
        """Return the number of nodes that each course *a* has."""
        return np.asarray(self.nodes - self.missing_counts[a])  # without rules, a replacement takes the place of a node as it goes

    def speed(self, a: RowNumbers) -> Array:
        """Return the speed of each course *a*, relative to the speed with all nodes."""
        return np.asarray(self.speeds[self.node_counts(a)])

    def revoke(self, b: RowNumbers, life: Array) -> None:
        """Revoke the next node of the courses *b*; if the job waits, a replacement with a *life* (s, one per course) follows it."""
        if not b.size:
            return
        node, moment = self.leave_times.node(b), self.leave_times.earliest(b)
        back = moment + self.replacement
        neighbors = (node[:, None] + [-1, 1]) % self.back_times.shape[1]
        self.lost_copies[b] = (self.back_times[b[:, None], neighbors] > moment[:, None]).any(axis=1)
        self.back_times[b, node] = back
        if self.rules is None:
            self.leave_times.put(b, node, moment + (self.replacement + life[b]))
            return
        self.leave_times.put(b, node, np.inf)
        self.missing_counts[b] += 1
        if self.rules.replaces_nodes:
            self.join_times.put(b, node, back)
            self.rented_nodes[b] += 1
            return
        empty = self.missing_counts[b] == self.nodes
        self.join_times.put_all(b[empty], back[empty], self.nodes)
        self.rented_nodes[b[empty]] += self.nodes

    def skip_revocation(self, b: RowNumbers, life: Array) -> None:
        """Skip the next revocation of the courses *b*: the node stays until its replacement, with that *life*, would be revoked."""
        if b.size:
            self.leave_times.put(b, self.leave_times.node(b), self.leave_times.earliest(b) + (self.replacement + life[b]))

    def join(self, b: RowNumbers, life: Array) -> NDArray[np.bool_]:
        """Let the next node join the courses *b* for a *life* (s, one per course); return in which courses it is the first node."""
        if not b.size:
            return np.zeros(0, dtype=np.bool_)
        node = self.join_times.node(b)
        self.leave_times.put(b, node, self.join_times.earliest(b) + life[b])
        self.join_times.put(b, node, np.inf)
        self.missing_counts[b] -= 1
        return np.asarray(node == 0)


class CountedCrew(Crew):
    """Many nodes that are revoked at random, and replaced: which of them goes does not matter, so they are counted and not told apart.

    The next revocation is at the rate of the nodes that are present, whatever their ages, and replacements join in the order in which nodes
    went. *lives* are the times between revocations of all nodes together.
    """

    def __init__(
        self, nodes: int, trials: int, lives: CrowdLives, rules: ElasticRules, replacement: float, random: np.random.Generator
    ) -> None:
        if not rules.replaces_nodes or rules.restarts_with_chief:
            raise ValueError("nodes that are not replaced, and the first one of them, must be told apart")
        super().__init__(nodes, trials, lives, rules, replacement, random)
        self.replacement = replacement
        self.next_leave = self.leave_times.earliest(np.arange(trials))
        """Time of the next revocation of a node."""
        self.joins = np.full((trials, 8), np.inf)
        """Times at which missing nodes rejoin, in order, in a ring that begins at `first_join`."""
        self.first_join = np.zeros(trials, dtype=np.intp)

    def next_times(self, a: RowNumbers) -> tuple[Array, Array]:
        """Return when the next node of each course *a* is revoked, and when the next one joins."""
        return self.next_leave[a], self.joins[a, self.first_join[a]]

    def revoke(self, b: RowNumbers, life: Array) -> None:
        """Revoke a node of the courses *b*; *life* (one per course) is the time until the next revocation of all nodes together."""
        moment, missing = self.next_leave[b], self.missing_counts[b]
        present = (self.nodes - 1 - missing) * (self.nodes - 2 - missing) / ((self.nodes - 1) * (self.nodes - 2))  # both neighbors
        self.lost_copies[b] = self.random.random(self.lost_copies.size)[b] >= present
        if (missing == self.joins.shape[1]).any():
            self._lengthen()
        self.joins[b, (self.first_join[b] + missing) % self.joins.shape[1]] = moment + self.replacement
        self.missing_counts[b] += 1
        self.rented_nodes[b] += 1
        self._draw_next(b, moment, life)

    def skip_revocation(self, b: RowNumbers, life: Array) -> None:
        """Skip the next revocation of the courses *b*."""
        self._draw_next(b, self.next_leave[b], life)

    def join(self, b: RowNumbers, life: Array) -> NDArray[np.bool_]:
        """Let the next node join the courses *b*; return that it is the first node in none of them."""
        moment = self.joins[b, self.first_join[b]]
        self.joins[b, self.first_join[b]] = np.inf
        self.first_join[b] = (self.first_join[b] + 1) % self.joins.shape[1]
        self.missing_counts[b] -= 1
        self._draw_next(b, moment, life)
        return np.zeros(b.size, dtype=np.bool_)

    def _draw_next(self, b: RowNumbers, moment: Array, life: Array) -> None:
        """Set the next revocation of the courses *b* after *moment*: at random, so it does not matter when the last one was."""
        with np.errstate(divide="ignore"):
            self.next_leave[b] = moment + life[b] * (self.nodes / self.node_counts(b))

    def _lengthen(self) -> None:
        """Double the length of the ring of each course, which begins at its first join from then on."""
        trials, length = self.joins.shape
        order = (self.first_join[:, None] + np.arange(length)) % length
        self.joins = np.hstack([np.take_along_axis(self.joins, order, axis=1), np.full((trials, length), np.inf)])
        self.first_join[:] = 0


def crew_of(
    nodes: int, trials: int, lives: Lives | None, rules: ElasticRules | None, replacement: float, random: np.random.Generator
) -> Crew:
    """Return the nodes of *trials* courses; those that differ in nothing but their number are counted (`CountedCrew`)."""
    if isinstance(lives, CrowdLives) and rules is not None:
        return CountedCrew(nodes, trials, lives, rules, replacement, random)
    return Crew(nodes, trials, lives, rules, replacement, random)
