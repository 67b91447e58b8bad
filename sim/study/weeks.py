"""Which weeks does the user ask for, and which long run are they? A run's figures, options and reliability data in, a long run out.

A level of reliability counts nodes of 8 GPUs; smaller nodes fail in proportion. Revocations of spot machines are one more cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sim.analysis.cost import Market, node_price
from sim.analysis.crew import Members
from sim.analysis.energy import named_grid
from sim.analysis.failure_law import EXPONENTIAL, failure_law
from sim.analysis.long_run import Cause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.transient import Exponential, Lives, lifetimes_of, survival
from sim.analysis.whole_job import START_UP
from sim.parallel.lower.exchange_plan import gradient_volume
from sim.spec.hardware import Hardware, Node
from sim.spec.library import load_part
from sim.spec.reliability import Reliability, Restart
from sim.spec.stores import Store
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.units import UnitError, parse

Slowed = Callable[[Store | None], float]
"""Returns the seconds that steps lose while one checkpoint is written to a store, beside them (None: to the nodes' own disks)."""
MODES = ("sync", "async", "tiered")
"""How checkpoints are written: while training waits, beside it, or to memory of peers often and to the store now and then."""
SPARES = 0.05
"""Spares for each node where the user names none: stas00/ml-engineering @744d01e1 advises 5 to 10 % of the nodes."""
MOST_LIVES = 256
"""Nodes up to which the life of each is drawn; of more, what is revoked of all comes at random (Palm and Khinchin's theorem)."""
NOTICED = Uniform(0.0, 30.0)
"""Until a revocation is noticed (s): providers give a notice of 30 s and more, so that the job is told before or when it strikes."""


class Steps(NamedTuple):
    """What is taken of a run: all that weeks of it need to know."""

    hardware: str
    workload: Workload
    node: Node
    nodes: int
    gpus: int
    step_time: float
    samples: float
    """Of one step, all ranks together."""
    stalls: Mapping[str, float]
    """Seconds of a step by cause."""
    usd_per_s: float | None
    """Of one node."""
    provider: str = ""
    region: str | None = None
    market: Market = "on_demand"

    @property
    def traffic(self) -> float:
        """Return the bytes/s of gradients that leave each node; a ring all-reduce moves each twice."""
        return 2 * gradient_volume(self.workload) * (self.nodes - 1) / self.nodes / self.step_time

    @property
    def tokens(self) -> int | None:
        """Return the tokens of a sample, where the model says."""
        return self.workload.sequence


def steps_of(document: Mapping[str, Any], machine: Hardware, workload: Workload) -> Steps:
    """Return what weeks need to know of the run of *workload* on *machine*, given its *document* (or its figures)."""
    group = next(group for group in machine.groups if group.role == "worker" and group.node.gpu_count)
    step = document["step_time_s"]
    market = document["price"]["market"]
    return Steps(
        machine.name, workload, group.node, document["nodes"], document["gpus"], step, document["throughput_samples_per_s"] * step,
        document["stalls_s"], node_price(group, market), machine.provider, (group.price.region or None) if group.price else None, market,
    )  # fmt: skip


@dataclass(frozen=True)
class Weeks:
    """What the user asks for; None leaves it to the program."""

    days: float | None = None
    tokens: float | None = None
    epochs: float | None = None
    level: str = "middle"
    """A file of ``hardware/parts/reliability``."""
    rate: str | None = None
    """Failures of one node, such as ``0.0038 /d``, instead of the level's."""
    mode: str = "async"
    store: str = "object-store"
    """A file of ``hardware/parts/stores``, or ``disk``."""
    interval: str = "auto"
    spares: int | None = None
    repairs: bool = True
    elastic: bool = False
    in_place: bool = False
    """Restart in place, on warm standbys."""
    new_fleet: bool = False
    mean_lifetime: str | None = None
    """Of one spot machine: revocations are one more cause of failures."""
    trials: int = 2000
    region: str | None = None
    seed: int = 0
    law: str = EXPONENTIAL.name
    """How the times between failures scatter: ``exponential``, ``weibull:0.7``, or the name of the user's own."""

    def checked(self) -> None:
        """Raise SpecError for what is wrong whatever the run is, before it is simulated."""
        for option, value in (("--days", self.days), ("--epochs", self.epochs)):
            if value is not None and not 0 < value < math.inf:
                raise SpecError(f"{option} {value:g}: write more than 0")
        given = [option for option, value in (("--days", self.days), ("--tokens", self.tokens), ("--epochs", self.epochs)) if value]
        if len(given) != 1:
            raise SpecError(f"{' and '.join(given) or '--days, --tokens or --epochs'}: write one of the three, for example --days 54")
        if self.mode not in MODES:
            raise SpecError(f"--checkpoint {self.mode}: write one of {', '.join(MODES)}")
        reliability_of(self.level)
        store_of(self.store)
        if self.rate is not None:
            quantity(self.rate, "failure rate", "--failure-rate")
        if self.interval != "auto":
            quantity(self.interval, "time", "--checkpoint-interval")
        if self.mean_lifetime is not None:
            quantity(self.mean_lifetime, "time", "--mean-lifetime")
        if self.region is not None:
            named_grid(self.region)
        failure_law(self.law)


def reliability_of(level: str) -> Reliability:
    """Return the reliability data named *level*. Raise SpecError for a name that is neither of the catalogue nor a file."""
    return load_part(Reliability, level, "hardware/parts/reliability")


def store_of(name: str) -> Store | None:
    """Return the store named *name*; None for the nodes' own disks. Raise SpecError for one that is not there."""
    return None if name == "disk" else load_part(Store, name, "hardware/parts/stores")


def long_run(steps: Steps, weeks: Weeks, reliability: Reliability) -> LongRun:
    """Return the long run of *steps* with the failures of *reliability*; its checkpoints are still to come."""
    nodes = steps.nodes
    size = steps.node.gpu_count / reliability.gpus_per_node
    work, horizon = _length(weeks, steps)
    planned, slow = reliability.planned, reliability.slow
    restart = reliability.in_place if weeks.in_place else reliability.requeue
    rates, revoked = _rates(weeks, reliability, nodes * size), revocations(weeks, steps)
    lives = _lives(weeks, steps, revoked)
    early = reliability.new_fleet.share * steps.node.gpu_count * nodes if weeks.new_fleet else 0.0
    return LongRun(
        nodes,
        spares_of(weeks, nodes),
        Saving(math.inf, 0.0, 0.0, 0.0),
        _causes(weeks, reliability, steps, nodes * size, revoked),
        (rates[0] + revoked, rates[1] + revoked, rates[2] + revoked),
        [(step.share, step.time) for step in reliability.repair],
        Uniform(*reliability.spare),
        restart_time(restart, steps.gpus),
        restart_time(reliability.in_place, steps.gpus),
        Uniform(*reliability.communicators),
        work,
        horizon,
        reliability.spread_of_nodes,
        (reliability.repeats.share, reliability.repeats.after),
        (
            reliability.correlated.rate * nodes * size if nodes >= reliability.correlated.nodes else 0.0,
            reliability.correlated.nodes,
            Uniform(*reliability.correlated.repair),
        ),
        (early, reliability.new_fleet.within),
        (slow.rate * nodes * size, slow.factor, slow.duration),
        (planned.rate, planned.duration),
        1.0 / nodes if weeks.elastic and nodes > 1 else 0.0,
        weeks.repairs,
        failure_law(weeks.law),
        lives,
        _members(nodes) if lives and weeks.elastic and nodes > 1 else None,
    )


def _members(nodes: int) -> Members:
    """Return a job that goes on without revoked replicas, each with its part of the batch; all restart where one goes or joins."""
    return Members(tuple((there + 1) / nodes for there in range(nodes)))


def restart_time(restart: Restart, gpus: int) -> float:
    """Return the seconds until the processes of a job of *gpus* GPUs run again."""
    return max(restart.least, restart.base + restart.per_doubling * math.log2(gpus / 2048))


def _rates(weeks: Weeks, reliability: Reliability, nodes: float) -> tuple[float, float, float]:
    """Return the rate of interruptions of *nodes* nodes of 8 GPUs (1/s): low, value, high; one that the user wrote is certain."""
    rate = reliability.rate
    low, value, high = rate.low, rate.value, rate.high
    if weeks.rate is not None:
        low = value = high = quantity(weeks.rate, "failure rate", "--failure-rate")
    return (nodes * low, nodes * value, nodes * high)


def _causes(weeks: Weeks, reliability: Reliability, steps: Steps, of_eight: float, revoked: float) -> list[Cause]:
    """Return the causes of interruptions; revocations of spot machines are one more."""
    causes = [
        Cause(cause.name, cause.share, Uniform(*cause.detection), Uniform(*cause.localisation), cause.replaces, cause.silent_for)
        for cause in reliability.causes
    ]
    if not revoked:
        return causes
    failing = _rates(weeks, reliability, of_eight)[1]
    rest = failing / (failing + revoked)
    lives = lifetimes_of(steps.node.gpu)
    another = lives.replacement if lives else START_UP
    return [
        *(replace(cause, share=rest * cause.share) for cause in causes),
        Cause("revocation", 1 - rest, NOTICED, Uniform(0.0, 0.0), 1.0, repair=Uniform(another, another)),
    ]


def revocations(weeks: Weeks, steps: Steps) -> float:
    """Return the rate of revocations of the job (1/s): on the spot market, at random, with the mean of measured lives or that given.

    Raise SpecError where nobody measured the lives of machines with this GPU.
    """
    if weeks.mean_lifetime is not None:
        return steps.nodes / quantity(weeks.mean_lifetime, "time", "--mean-lifetime")
    if steps.market != "spot":
        return 0.0
    lives = lifetimes_of(steps.node.gpu)
    if lives is None:
        raise SpecError(
            f"--market spot: nobody measured how long spot machines with {steps.node.gpu.name} live; write --mean-lifetime '20 h'"
        )
    return steps.nodes / survival(lives).mean


def _lives(weeks: Weeks, steps: Steps, revoked: float) -> tuple[Lives, float] | None:
    """Return the lives of spot machines where they were measured, or where each replica's matters.

    None where many machines together are revoked at random anyway.
    """
    lives = lifetimes_of(steps.node.gpu)
    if not revoked or steps.nodes > MOST_LIVES:
        return None
    if weeks.mean_lifetime is not None:
        return (Exponential(steps.nodes / revoked), revoked) if weeks.elastic else None
    if lives is None:
        return None
    return survival(lives), revoked


def quantity(text: str, dimension: str, option: str) -> float:
    """Return *text*, what *option* says, in SI. Raise SpecError where it is no *dimension* above 0."""
    try:
        value = parse(text, dimension)
    except UnitError as error:
        raise SpecError(f"{option} {text}: {error}") from None
    if value <= 0:
        raise SpecError(f"{option} {text}: write more than 0")
    return value


def _length(weeks: Weeks, steps: Steps) -> tuple[float, float]:
    """Return the work (s at full speed) and the horizon (s) that are asked for."""
    if weeks.days is not None:
        return math.inf, 86400.0 * weeks.days
    if weeks.tokens is not None:
        if steps.tokens is None:
            raise SpecError(f"--tokens: {steps.workload.model.name} has no sequence of tokens; write --epochs or --days")
        return weeks.tokens / (steps.samples * steps.tokens) * steps.step_time, math.inf
    return (weeks.epochs or 0.0) * steps.workload.dataset.samples / steps.samples * steps.step_time, math.inf


def spares_of(weeks: Weeks, nodes: int) -> int:
    """Return the spare nodes of *weeks* on *nodes* nodes."""
    return math.ceil(SPARES * nodes) if weeks.spares is None else weeks.spares
