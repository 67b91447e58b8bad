"""What is a long run, and what is drawn of it? Failures, recoveries, checkpoints and spares of a job in plain numbers; times in seconds.

`sim.analysis.course` draws it; `sim.analysis.renewal` has the closed form for what it holds of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.analysis.crew import Members
from sim.analysis.failure_law import EXPONENTIAL, FailureLaw
from sim.analysis.renewal import Uniform
from sim.analysis.transient import Lives

Array = NDArray[np.float64]

AT_ONCE = Uniform(0.0, 0.0)
"""No time at all."""
LOST = ("detection", "restart", "rework", "checkpoint", "spare_wait", "degraded", "planned")
"""Where time goes that is no kept work."""


MOST_REPEATS = 0.95
"""Share of faults at most that are followed by one more, in the fleet that is drawn worst: with all, they would never end."""
OTHERS = ("correlated", "repeats", "new_fleet", "slow", "planned", "repair")
"""Rates and shares beside the main rate and those of causes, and times of repair."""


@dataclass(frozen=True)
class DrawnCause:
    """A cause of faults: its *share* of them, spans (s), the share that *replaces* its node, and how long it goes unnoticed (s)."""

    name: str
    share: float
    detection: Uniform
    localisation: Uniform
    replaces: float
    silent_for: float = 0.0
    repair: Uniform | None = None
    """Until its node is back, where that is not drawn from the quantiles of the run."""


@dataclass(frozen=True)
class Saving:
    """Checkpoints: work between two (s), time that training waits, time until one is complete, and time to load it (s)."""

    interval: float
    blocking: float
    persist: float
    load: float
    memory_interval: float | None = None
    """Work between copies in the memory of peers; they survive the loss of single nodes. None: there are none."""
    memory_blocking: float = 0.0
    memory_persist: float = 0.0
    """Until a peer has the copy."""
    memory_load: float = 0.0
    """Of the node's own copy."""
    peer_load: float = 0.0
    """Of a peer's, where another node takes the place of one that left."""
    on_nodes: float = 0.0
    """Share of the nodes whose disk has a part of each checkpoint that no store has: it leaves with the node."""


@dataclass(frozen=True)
class LongRun:
    """A job of weeks on *nodes* nodes with *spares* beside them: *work* at full speed (s) and *horizon* (s), whichever ends first."""

    nodes: int
    spares: int
    saving: Saving
    causes: Sequence[DrawnCause]
    rate: tuple[float, float, float]
    """Of unexpected interruptions of the job (1/s): low, value and high; three equal values: the rate is certain."""
    repair: Sequence[tuple[float, float]] = ((0.0, 0.0), (1.0, 0.0))
    """Share of repairs, and the time they take at most (s)."""
    spare: Uniform = AT_ONCE
    restart: float = 0.0
    restart_in_place: float = 0.0
    """Where the node stays."""
    communicators: Uniform = AT_ONCE
    compilation: Uniform = AT_ONCE
    """Of the software, at each start."""
    work: float = math.inf
    horizon: float = math.inf
    shape: float = math.inf
    """Of the gamma distribution of the rates of nodes."""
    repeats: tuple[float, float] = (0.0, 1.0)
    """Share of faults that are followed by one more, and the mean delay (s)."""
    correlated: tuple[float, int, Uniform] = (0.0, 2, AT_ONCE)
    """Rate of events that take several nodes (1/s), how many, and until these return."""
    new_fleet: tuple[float, float] = (0.0, 1.0)
    """Early faults of the job in all, and the mean time until they come (s)."""
    slow: tuple[float, float, float] = (0.0, 1.0, 0.0)
    """Rate of slow episodes (1/s), factor on the step's time, and mean duration (s)."""
    planned: tuple[float, float] = (0.0, 0.0)
    """Rate of planned stops (1/s), and their duration (s)."""
    elastic: tuple[float, ...] = ()
    """Speed with 1, 2, ... nodes missing, relative to all; with more the job waits for a spare, and always where this is empty."""
    repairs: bool = True
    """Whether failed nodes come back; without, a job dies that has no spare left."""
    law: FailureLaw = EXPONENTIAL
    """How the times between first faults scatter."""
    lives: tuple[Lives, float] | None = None
    """How long each node stays until it is revoked, which is the last of ``causes``, and the part of ``rate`` (1/s) that this stands for.
    None: what is revoked is so at random."""
    members: Members | None = None
    """How the job goes on where a node is revoked; None: it waits for a spare, or for the replacement."""
    spreads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of other rates and shares by name (``OTHERS``, or of a cause): the ends of the interval of 95% of fleets, over the middle."""
    start_up: float | None = None
    """Until the job's first start runs (s), compilation apart; None: as a restart in place."""
    striking: float = 1.0
    """Share of the faults and revocations that strike. The others are drawn as well and do nothing: runs that differ in this alone have
    common faults."""


@dataclass(frozen=True)
class Courses:
    """What was drawn: an array of each figure, by course."""

    elapsed: Array
    """Until the end of the job, or until it dies; infinite where it would never end."""
    work: Array
    """Kept work (s at full speed)."""
    interruptions: Array
    """Unexpected ones."""
    stops: Array
    """Planned ones."""
    replaced: Array
    """Nodes that left the job."""
    lost: Mapping[str, Array]
    """Seconds by LOST; with the work they add up to the elapsed time."""
    died: Array
    """When the last spare was gone (s); infinite where the job came to its end, or to its horizon."""
    node_seconds: Array
    """Of the job's own nodes while they were there."""
    requested: Array
    """Nodes that were rented in the place of revoked ones, where the job goes on without them."""
    events: Sequence[tuple[float, str, float]] = field(default_factory=tuple)
    """Of the first course: time, what happened, and the seconds until it works again."""

    @property
    def share(self) -> Array:
        """Return the effective share of each course."""
        return self.work / np.maximum(self.elapsed, 1e-9)


def of_cause(name: str) -> str:
    """Return the name of the share of the cause *name* among ``spreads``."""
    return f"cause {name}"


def of_fleets(normal: Array, low: float, high: float) -> Array:
    """Return what standard *normal* draws are in a log-normal distribution with middle 1, of which 95% lie between *low* and *high*."""
    return np.asarray(np.exp(normal * np.where(normal < 0, -math.log(low) / 1.96, math.log(high) / 1.96)))


def other_rates(run: LongRun, trials: int, seed: np.random.SeedSequence) -> dict[str, Array]:
    """Return the other rates and shares of each course by name, over those of *run*: each fleet has its own, independently."""
    names = [*OTHERS, *(of_cause(cause.name) for cause in run.causes)]
    return {
        name: of_fleets(np.random.default_rng(own).standard_normal(trials), *run.spreads.get(name, (1.0, 1.0)))
        for name, own in zip(names, seed.spawn(len(names)), strict=True)
    }


def first_rates(run: LongRun, trials: int, random: np.random.Generator, others: Mapping[str, Array]) -> Array:
    """Return the rate of first faults of each course (1/s): that of its fleet, of its nodes, less what follows of itself.

    *others*: how the other rates of each course differ from those of *run*.
    """
    revoked = run.lives[1] if run.lives else 0.0
    low, value, high = (rate - revoked for rate in run.rate)
    normal = random.standard_normal(trials)
    rates = np.full(trials, float(value))
    if value > 0 and low < high:
        rates *= of_fleets(normal, low / value, high / value)
    shape = run.shape * run.nodes
    if math.isfinite(shape):
        rates *= random.gamma(shape, 1 / shape, trials)
    again = np.minimum(run.repeats[0] * others["repeats"], MOST_REPEATS)
    return np.asarray(np.maximum(rates - run.correlated[0] * others["correlated"], 0.0) * (1 - again))
