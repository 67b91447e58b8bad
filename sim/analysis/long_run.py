"""What describes a long run, and what does a simulation of it return? Failures, recoveries, checkpoints and spares as plain numbers.

All times are in seconds. `sim.analysis.course` simulates long runs; `sim.analysis.renewal` has the closed form for the cases that have one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.analysis.bursts import Bursts
from sim.analysis.crew import ElasticRules
from sim.analysis.failure_law import EXPONENTIAL, FailureLaw
from sim.analysis.fleet_law import Array, FleetInterval, fleet_factors
from sim.analysis.renewal import Uniform
from sim.analysis.transient import Lives

ZERO_TIME = Uniform(0.0, 0.0)
"""Zero time."""
LOST_CATEGORIES = ("detection", "restart", "rework", "checkpoint", "spare_wait", "degraded", "planned")
"""Categories of time that is not kept work."""


MOST_REPEATS = 0.95
"""Upper limit of the share of faults that are followed by a repeat, in any drawn fleet: at a share of 1, repeats would never end."""
OTHERS = ("correlated", "repeats", "new_fleet", "slow", "planned", "repair")
"""Names of the rates, shares and repair times that each fleet draws, apart from the main rate and the shares of causes."""


@dataclass(frozen=True)
class DrawnCause:
    """A cause of faults: its *share* of all faults, time spans (s), and the share of its faults that *replaces* the node.

    *silent_for*: how long (s) silent corruption stays unnoticed; 0 for other causes.
    """

    name: str
    share: float
    detection: Uniform
    localization: Uniform
    replaces: float
    silent_for: float = 0.0
    repair: Uniform | None = None
    """Time until its node is back; None: drawn from the quantiles of the run."""


@dataclass(frozen=True)
class Saving:
    """Checkpoints: work between two checkpoints, time that training waits, time until one is complete, and time to load it (all in s)."""

    interval: float
    blocking: float
    persist: float
    load: float
    memory_interval: float | None = None
    """Work between copies to the memory of peers, which survive the loss of single nodes. None: no such copies."""
    memory_blocking: float = 0.0
    memory_persist: float = 0.0
    """Time until a peer has the copy."""
    memory_load: float = 0.0
    """Time to load the node's own copy."""
    peer_load: float = 0.0
    """Time to load the copy of a peer, if another node replaces one that left."""
    on_nodes: float = 0.0
    """Share of the nodes that have a part of each checkpoint only on their own disk; the part is lost when the node leaves."""


@dataclass(frozen=True)
class LongRun:
    """A job of weeks on *nodes* nodes plus *spares*; it ends after *work* (s at full speed) or at *horizon* (s), whichever comes first."""

    nodes: int
    spares: int
    saving: Saving
    causes: Sequence[DrawnCause]
    rate: tuple[float, float, float]
    """Rate of unexpected interruptions of the job (1/s): low, value and high; three equal values if the rate is certain."""
    repair: Sequence[tuple[float, float]] = ((0.0, 0.0), (1.0, 0.0))
    """Quantiles of the repair time: pairs of the share of repairs and their maximum time (s)."""
    spare: Uniform = ZERO_TIME
    restart: float = 0.0
    restart_in_place: float = 0.0
    """Restart time if the node stays in the job."""
    communicators: Uniform = ZERO_TIME
    compilation: Uniform = ZERO_TIME
    """Time of compilation at each start."""
    work: float = math.inf
    horizon: float = math.inf
    shape: float = math.inf
    """Shape of the gamma distribution of the failure rates of nodes."""
    repeats: tuple[float, float] = (0.0, 1.0)
    """Share of faults that are followed by a repeat, and the mean delay (s)."""
    correlated: tuple[float, int, Uniform] = (0.0, 2, ZERO_TIME)
    """Rate of events that take down several nodes (1/s), the number of nodes, and the time until they return."""
    new_fleet: tuple[float, float] = (0.0, 1.0)
    """Expected total number of early faults of the job, and the mean time until they occur (s)."""
    slow: tuple[float, float, float] = (0.0, 1.0, 0.0)
    """Rate of slow episodes (1/s), factor on the step's time, and mean duration (s)."""
    planned: tuple[float, float] = (0.0, 0.0)
    """Rate of planned stops (1/s), and their duration (s)."""
    elastic: tuple[float, ...] = ()
    """Speed with 1, 2, ... nodes missing, relative to full speed; with more missing (or if empty, with any) the job waits for a spare."""
    repairs: bool = True
    """Whether failed nodes come back; if not, a job without a spare left dies."""
    law: FailureLaw = EXPONENTIAL
    """Distribution of the times between first faults."""
    lives: tuple[Lives, float] | None = None
    """Distribution of the time until a node is revoked (revocation is the last of ``causes``), and the part of ``rate`` (1/s) that
    it replaces. None: revocations strike at random, like other faults."""
    elastic_rules: ElasticRules | None = None
    """How the job goes on when a node is revoked; None: it waits for a spare or for the replacement."""
    spreads: Mapping[str, FleetInterval] = field(default_factory=dict)
    """Interval of 95% of fleets of other rates and shares by name (in ``OTHERS``, or `cause_key`)."""
    start_up: float | None = None
    """Time until the first start of the job runs (s), without compilation; None: as long as a restart in place."""
    strike_share: float = 1.0
    """Share of faults and revocations that strike. The others are drawn as well but have no effect, so runs that differ only in this share
    have the same faults."""
    degrees_of_freedom: float = math.inf
    """Degrees of freedom of the spread of ``rate`` between fleets; infinite if it is log-normal."""
    bursts: Bursts | None = None
    """Rates of bursts of revocations, if nodes are revoked together (`sim.analysis.bursts`). None: they are revoked at random."""

    @property
    def separate_rate(self) -> float:
        """Return the rate of interruptions (1/s) that closed forms take, with a burst of revocations as one of them."""
        return self.rate[1] if self.bursts is None or self.lives is None else self.rate[1] - self.lives[1] + self.bursts.rate


@dataclass(frozen=True)
class Courses:
    """Results of the simulated courses: one array per figure, with one value per course."""

    elapsed: Array
    """Time (s) until the job ends or dies; infinite if it would never end."""
    work: Array
    """Kept work (s at full speed)."""
    interruptions: Array
    """Number of unexpected interruptions."""
    stops: Array
    """Number of planned stops."""
    replaced_nodes: Array
    """Number of nodes that left the job."""
    lost: Mapping[str, Array]
    """Lost seconds by category (``LOST_CATEGORIES``); with the work they sum to the elapsed time."""
    death_times: Array
    """Time (s) at which the job died without a spare; infinite if it reached its end or its horizon."""
    node_seconds: Array
    """Node-seconds of the job's own nodes while they were present."""
    rented_nodes: Array
    """Number of nodes rented to replace revoked ones, if the job goes on without them."""
    events: Sequence[tuple[float, str, float]] = field(default_factory=tuple)
    """Events of the course with the median failure rate: time, name of the event, and the seconds until the job works again."""

    @property
    def share(self) -> Array:
        """Return the effective share (kept work over elapsed time) of each course."""
        return self.work / np.maximum(self.elapsed, 1e-9)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Return which courses reach the end of the job: they neither die nor take infinitely long."""
        return np.isfinite(self.elapsed) & ~np.isfinite(self.death_times)

    def only(self, which: NDArray[np.bool_]) -> Courses:
        """Return the courses in *which*."""
        arrays: dict[str, Any] = {name: value[which] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays, lost={name: seconds[which] for name, seconds in self.lost.items()})


def cause_key(name: str) -> str:
    """Return the key in ``spreads`` for the share of the cause *name*."""
    return f"cause {name}"


def other_rates(run: LongRun, trials: int, seed: np.random.SeedSequence) -> dict[str, Array]:
    """Return the factors on the other rates and shares of *run* for each course, by name; each fleet draws its own, independently."""
    names = [*OTHERS, *(cause_key(cause.name) for cause in run.causes)]
    return {
        name: fleet_factors(np.random.default_rng(own).standard_normal(trials), run.spreads.get(name, FleetInterval(1.0, 1.0)))
        for name, own in zip(names, seed.spawn(len(names)), strict=True)
    }


def first_rates(run: LongRun, trials: int, random: np.random.Generator, others: Mapping[str, Array]) -> Array:
    """Return the rate of first faults (1/s) of each course, drawn for its fleet and nodes, less correlated events and repeats.

    *others*: factors on the other rates of *run* for each course (`other_rates`).
    """
    revoked = run.lives[1] if run.lives else 0.0
    low, value, high = (rate - revoked for rate in run.rate)
    normal = random.standard_normal(trials)
    rates = np.full(trials, float(value))
    if value > 0 and low < high:
        rates *= fleet_factors(normal, FleetInterval(low / value, high / value, run.degrees_of_freedom))
    shape = run.shape * run.nodes
    if math.isfinite(shape):
        rates *= random.gamma(shape, 1 / shape, trials)
    again = np.minimum(run.repeats[0] * others["repeats"], MOST_REPEATS)
    return np.asarray(np.maximum(rates - run.correlated[0] * others["correlated"], 0.0) * (1 - again))
