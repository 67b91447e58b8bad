"""Which weeks does the user request, and which long run are they? From a run's figures, options and reliability data to a long run.

Rates of failures are per node of 8 GPUs; smaller nodes fail in proportion. Revocations of spot machines are one more cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from sim.analysis.bursts import Bursts, burst_rates
from sim.analysis.cost import Market, node_price, servers_price
from sim.analysis.crew import ElasticRules
from sim.analysis.energy import named_grid
from sim.analysis.failure_law import failure_law
from sim.analysis.fleet_law import FleetInterval
from sim.analysis.long_run import ZERO_TIME, DrawnCause, LongRun, Saving, cause_key
from sim.analysis.renewal import Uniform
from sim.analysis.transient import CrowdLives, ExponentialLives, Lives, Survival, lifetimes_of, survival
from sim.analysis.utilization import model_flops_utilization
from sim.analysis.whole_job import START_UP
from sim.spec.catalog import UnknownName
from sim.spec.hardware import Hardware, Node
from sim.spec.library import load_part
from sim.spec.reliability import Reliability, Restart
from sim.spec.stack import StackKernels
from sim.spec.stores import Store
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.arguments import (
    checkpoint_interval_of,
    mean_lifetime_of,
    quantity,
    require_flag,
    require_number,
    require_power_cap,
    require_text,
    require_whole,
)
from sim.study.job_length import require_length
from sim.study.options import MODES, Weeks, arguments_of
from sim.study.whole_job import filling_times
from sim.units import and_also, show_tokens

Slowed = Callable[[Store | None], float]
"""Returns the seconds that steps lose while one checkpoint is written to a store during them (None: to the nodes' own disks)."""
SPARES = 0.05
"""Spares per node if the user specifies none: stas00/ml-engineering @744d01e1 advises 5 to 10 % of the nodes."""
MOST_MISSING = 64
"""Maximum number of missing nodes with which an elastic job continues; with more it waits."""
MOST_SPARES, MOST_TRIALS = 100_000, 1_000_000
"""Upper limits: more of either takes gigabytes of memory, and no job needs that many."""
MOST_LIVES = 256
"""Maximum number of nodes whose random lifetimes are drawn one by one: the revocations of more nodes are a Poisson process at the rate of
those that are present. Nodes with measured lifetimes, which reach their age limit together, are always drawn."""
NOTICED = Uniform(0.0, 30.0)
"""Time until a revocation is noticed (s): providers give at least 30 s of notice, so the job knows before it strikes or when it does."""


class StepStretch(NamedTuple):
    """A part of pre-training: the time of its steps, in steps of the run itself, and the samples and tokens that they train on."""

    own_steps: float
    samples: float
    tokens: float


class Steps(NamedTuple):
    """The figures of a run that a simulation of weeks needs."""

    hardware: str
    workload: Workload
    node: Node
    nodes: int
    gpus: int
    step_time: float
    samples: float
    """Samples of one step, over all ranks."""
    stalls: Mapping[str, float]
    """Seconds of a step by cause."""
    usd_per_s: float | None
    """Price of one node, the mean over all nodes."""
    provider: str = ""
    region: str | None = None
    market: Market = "on_demand"
    others: Sequence[tuple[Node, int]] = ()
    """Kinds of nodes other than ``node``, and how many there are of each."""
    parts: Sequence[StepStretch] = ()
    """All parts of the job in order, if batch or sequence change during it."""
    epoch_factor: float = 1.0
    """Time of an epoch, including the wait for its first batch, relative to the time of its steps."""
    cold: Sequence[float] = ()
    """Seconds that each of the first epochs takes longer than later ones, because not all that it reads is cached."""
    servers_usd_per_s: float = 0.0
    """Price of all parameter servers together."""
    expected_error: Mapping[str, Any] | None = None
    """Expected error of the step, as in a run's document; None if it is unknown."""
    power_error: Mapping[str, Any] | None = None
    """Expected error of the power, as in a run's document; None if it is unknown."""
    at_speed: Callable[[float], Steps] | None = None
    """Returns the steps with GPUs that compute at a share of their speed, simulated again; None if that is not possible."""

    @property
    def kinds(self) -> list[tuple[Node, int]]:
        """Return every kind of node, and how many there are of each."""
        return [(self.node, self.nodes - sum(count for _, count in self.others)), *self.others]

    @property
    def replica_gpus(self) -> int:
        """Return the GPUs of one replica, all of which must be available to compute its part of the batch.

        Optimizer states and weights that are sharded over all data-parallel ranks are resharded when a job restarts on fewer of them;
        with HSDP each replica holds all of them.
        """
        parallel = self.workload.training.parallel
        if parallel.replicate > 1:
            return self.gpus // parallel.replicate
        experts = math.ceil(parallel.expert / (parallel.tensor * parallel.context))  # data ranks that share the experts
        return parallel.model_ranks * max(1, experts)

    @property
    def model_flops_utilization(self) -> float | None:
        """Return the share of the GPUs' 16-bit peak that is used for the model's FLOP; None if either is unknown."""
        gpus = [(node.gpu, count * self.gpus / self.nodes) for node, count in self.kinds]
        return model_flops_utilization(self.workload.model.layers, self.samples / self.step_time, gpus)

    @property
    def pace(self) -> float:
        """Return the samples per second of undisturbed training, over whole epochs."""
        return self.samples / (self.step_time * self.epoch_factor)

    def time_of(self, samples: float) -> float:
        """Return the seconds of undisturbed training on the first *samples*, including the extra time of the `cold` epochs."""
        epochs = samples / self.workload.dataset.samples
        return samples / self.pace + sum(more * min(1.0, max(0.0, epochs - before)) for before, more in enumerate(self.cold))

    @property
    def tokens(self) -> float | None:
        """Return the mean tokens per sample, if the model specifies them."""
        return self.workload.tokens_per_sample


def steps_of(document: Mapping[str, Any], machine: Hardware, workload: Workload) -> Steps:
    """Return the steps of the run of *workload* on *machine*, given its *document* (or its figures)."""
    used, left = [], document["nodes"]
    for group in machine.groups:
        if group.role == "worker" and group.node.gpu_count and left:
            used.append((group, min(group.count, left)))
            left -= used[-1][1]
    first, step, market = used[0][0], document["step_time_s"], document["price"]["market"]
    prices = [(node_price(group, market), count) for group, count in used]
    priced = [price * count / document["nodes"] for price, count in prices if price is not None]
    servers = servers_price(machine, workload.training.stack.server_hosts, market)
    price = sum(priced) if len(priced) == len(prices) and servers is not None else None
    epoch, parts = document.get("epoch_time_s"), _stretches(document)
    cold: list[float] = []
    if epoch is not None and not parts:
        cold = [each - epoch for each in (document["first_epoch"]["epoch_time_s"], *filling_times(document, machine, workload))]
    return Steps(
        machine.name, workload, first.node, document["nodes"], document["gpus"], step, document["throughput_samples_per_s"] * step,
        document["stalls_s"], price, machine.provider, (first.price.region or None) if first.price else None, market,
        [(group.node, count) for group, count in used[1:] if group.node != first.node], parts,
        1.0 if epoch is None else epoch * document["throughput_samples_per_s"] / workload.dataset.samples, cold, servers or 0.0,
        document.get("expected_error"), (document.get("energy") or {}).get("expected_error"),
    )  # fmt: skip


def _stretches(document: Mapping[str, Any]) -> list[StepStretch]:
    """Return the parts of pre-training in the *document* of a run; empty if it has none."""
    parts = (document.get("pretraining") or {"parts": ()})["parts"]
    return [
        StepStretch(
            part["time_s"] / document["step_time_s"],
            part["tokens"] * part["global_batch"] / (part["tokens_per_s"] * part["step_time_s"]),
            part["tokens"],
        )
        for part in parts
    ]


def check_weeks(weeks: Weeks) -> None:
    """Raise SpecError for *weeks* whose options are wrong for any run, before one is simulated."""
    _check_types(weeks)
    for option, value in (("--days", weeks.days), ("--epochs", weeks.epochs)):
        require_length(option, value)
    given = [option for option, value in (("--days", weeks.days), ("--tokens", weeks.tokens), ("--epochs", weeks.epochs)) if value]
    if len(given) != 1:
        raise SpecError(f"{' and '.join(given) or '--days, --tokens or --epochs'}: write one of the three, for example --days 54")
    counts = (("spares", weeks.spares, 0, MOST_SPARES), ("trials", weeks.trials, 2, MOST_TRIALS), ("seed", weeks.seed, 0, math.inf))
    for name, number, least, most in counts:
        require_whole(name, number)
        if number is not None and not least <= number <= most:
            raise SpecError(f"--{name} {number}: write {f'{least} or more' if number < least else f'{most:,} or less'}")
    if weeks.mode not in MODES:
        raise SpecError(f"--checkpoint {weeks.mode}: write one of {', '.join(MODES)}")
    reliability_of(weeks.level)
    store_of(weeks.store)
    if weeks.rate is not None:
        quantity(weeks.rate, "failure rate", "--failure-rate", zero=True)
    if weeks.interval != "auto":
        checkpoint_interval_of(weeks.interval)
    if weeks.mean_lifetime is not None:
        mean_lifetime_of(weeks.mean_lifetime)
    require_power_cap(weeks.power_cap)
    if weeks.region is not None:
        named_grid(weeks.region)
    failure_law(weeks.law)


def _check_types(weeks: Weeks) -> None:
    """Raise SpecError for values of *weeks* of the wrong type, which Python callers may pass."""
    for name in ("days", "tokens", "epochs"):
        require_number(name, getattr(weeks, name))
    argument_by_name = {name: argument for argument, name in arguments_of(Weeks).items()}
    for name in ("level", "mode", "store", "law"):
        require_text(argument_by_name[name], getattr(weeks, name))
    for name in ("repairs", "elastic", "in_place", "new_fleet"):
        require_flag(argument_by_name[name], getattr(weeks, name))


def with_reliability(weeks: Weeks, level: str | None) -> Weeks:
    """Return *weeks* with the failure rates of *level*; None leaves them as they are."""
    return weeks if level is None else replace(weeks, level=level)


def reliability_of(level: str) -> Reliability:
    """Return the reliability data named *level*. Raise SpecError for a name that is neither in the catalog nor a file."""
    with _named_by("--reliability", level):
        return load_part(Reliability, level)


def store_of(name: str) -> Store | None:
    """Return the store named *name*; None for the nodes' own disks. Raise SpecError if there is no such store."""
    with _named_by("--store", name, "disk is the disk of each node"):
        return None if name == "disk" else load_part(Store, name)


@contextmanager
def _named_by(option: str, name: str, more: str = "") -> Iterator[None]:
    """Name *option*, and *more* that it takes, if *name* is unknown; problems in a file name the file."""
    try:
        yield
    except UnknownName as error:
        raise SpecError(f"{option} {name}: {and_also(str(error), more)}") from None


def long_run(steps: Steps, weeks: Weeks, reliability: Reliability) -> LongRun:
    """Return the long run of *steps* with the failures of *reliability*; its checkpoints are set later."""
    nodes = steps.nodes
    size = steps.node.gpu_count / reliability.gpus_per_node
    work, horizon = _length(weeks, steps)
    planned, slow = reliability.planned, reliability.slow
    restart = reliability.in_place if weeks.in_place else reliability.requeue
    rates, revoked = _rates(weeks, reliability, nodes * size), revocations(weeks, steps)
    level_rate = nodes * size * reliability.rate.value
    correlated_rate = reliability.correlated.rate * nodes * size * (rates[1] / level_rate)  # the same share of a rate from the user
    lives = _lives(weeks, steps, revoked)
    another = rents_another(weeks, steps)
    early = reliability.new_fleet.share * steps.node.gpu_count * nodes if weeks.new_fleet else 0.0
    run = LongRun(
        nodes,
        spares_of(weeks, steps),
        Saving(math.inf, 0.0, 0.0, 0.0),
        _causes(weeks, reliability, steps, nodes * size, revoked),
        (rates[0] + revoked, rates[1] + revoked, rates[2] + revoked),
        [(0.0, START_UP), (1.0, START_UP)] if another else [(step.share, step.time) for step in reliability.repair],
        Uniform(*reliability.spare),
        restart_time(restart, steps.gpus),
        restart_time(reliability.in_place, steps.gpus),
        Uniform(*reliability.communicators),
        compilation_of(steps.workload.training.stack.kernels),
        work,
        horizon,
        reliability.spread_of_nodes,
        (reliability.repeats.share, reliability.repeats.after),
        (
            correlated_rate if nodes >= reliability.correlated.nodes else 0.0,
            reliability.correlated.nodes,
            Uniform(START_UP, START_UP) if another else Uniform(*reliability.correlated.repair),
        ),
        (early, reliability.new_fleet.within),
        (slow.rate * nodes * size, slow.factor, slow.duration),
        (planned.rate * min(1.0, nodes * size / planned.nodes), planned.duration),
        tuple(speed for speed in _speeds(steps)[-2::-1] if speed > 0)[:MOST_MISSING] if weeks.elastic else (),
        weeks.repairs,
        failure_law(weeks.law),
        lives,
        ElasticRules(_speeds(steps)) if lives and weeks.elastic else None,
        _spreads(reliability, another),
        START_UP,
        degrees_of_freedom=reliability.rate.degrees_of_freedom or math.inf,
    )
    run = replace(run, bursts=bursts_of(run))
    return _undisturbed(run) if not any(rates) else run


def bursts_of(run: LongRun, share: float = 1.0) -> Bursts | None:
    """Return the rates of bursts of revocations of *run*, of which a *share* strikes; None if they strike at random."""
    if run.lives is None or not isinstance(run.lives[0], Survival):
        return None
    away = (run.causes[-1].repair or ZERO_TIME).mean
    restart = max(away, run.spare.mean) + run.restart if run.elastic_rules is None else away + run.restart_in_place
    recovery = restart + run.communicators.mean + run.compilation.mean
    return burst_rates(run.lives[0], run.nodes, min(run.horizon, run.work), away, recovery, share)


def _spreads(reliability: Reliability, another: bool) -> dict[str, FleetInterval]:
    """Return the intervals of *reliability* relative to their middles; not for the main rate, nor for repairs if *another* is rented."""
    rates = [("correlated", reliability.correlated), ("slow", reliability.slow), ("planned", reliability.planned)]
    shares = [("repeats", reliability.repeats), ("new_fleet", reliability.new_fleet)]
    middles = [
        *((name, one.rate, one.interval, one.degrees_of_freedom) for name, one in rates),
        *((name, one.share, one.interval, one.degrees_of_freedom) for name, one in shares),
        ("repair", 1.0, None if another else reliability.repair_interval, None),
        *((cause_key(cause.name), cause.share, cause.interval, cause.degrees_of_freedom) for cause in reliability.causes),
    ]
    return {
        name: FleetInterval(interval[0] / middle, interval[1] / middle, degrees or math.inf)
        for name, middle, interval, degrees in middles
        if interval is not None
    }


def _undisturbed(run: LongRun) -> LongRun:
    """Return *run* on nodes that never fail: also without slow nodes, planned stops and compilation at the start (as in `run`)."""
    return replace(run, correlated=(0.0, *run.correlated[1:]), slow=(0.0, 1.0, 0.0), planned=(0.0, 0.0), compilation=Uniform(0.0, 0.0))


def _speeds(steps: Steps) -> tuple[float, ...]:
    """Return the speed on 1, 2, ... nodes relative to all nodes: by the number of complete replicas, each with its part of the batch.

    Raise SpecError for a job that cannot continue without one of its nodes.
    """
    nodes, replica = steps.nodes, steps.replica_gpus
    replicas = [(available + 1) * steps.gpus // nodes // replica for available in range(nodes)]
    if nodes == 1 or not replicas[-2]:
        held = "one node" if nodes == 1 else f"one replica on {nodes} nodes"
        raise SpecError(
            f"--elastic: the job has only {held} and cannot continue without part of it; leave --elastic out, or use more replicas"
        )
    return tuple(count / replicas[-1] for count in replicas)


def restart_time(restart: Restart, gpus: int) -> float:
    """Return the seconds until the processes of a job of *gpus* GPUs run again."""
    return max(restart.least, restart.base + restart.per_doubling * math.log2(gpus / 2048))


def compilation_of(kernels: StackKernels) -> Uniform:
    """Return how long a job compiles at each start, with *kernels* of its stack; capturing CUDA graphs counts if it has any."""
    (low, high), captured = kernels.compilation, kernels.capture if kernels.cuda_graphs else (0.0, 0.0)
    return Uniform(low + captured[0], high + captured[1])


def _rates(weeks: Weeks, reliability: Reliability, nodes: float) -> tuple[float, float, float]:
    """Return the rate of interruptions of *nodes* nodes of 8 GPUs (1/s): low, value, high; all equal if the user specified it."""
    rate = reliability.rate
    low, value, high = rate.low, rate.value, rate.high
    if weeks.rate is not None:
        low = value = high = quantity(weeks.rate, "failure rate", "--failure-rate", zero=True)
    return (nodes * low, nodes * value, nodes * high)


def _causes(weeks: Weeks, reliability: Reliability, steps: Steps, of_eight: float, revoked: float) -> list[DrawnCause]:
    """Return the causes of interruptions; revocations of spot machines are one more."""
    timeout = steps.workload.training.stack.library.collective_timeout
    causes = [
        DrawnCause(
            cause.name, cause.share, Uniform(*cause.detection) if timeout is None or not cause.timed_out else Uniform(timeout, timeout),
            Uniform(*cause.localization), cause.replaces, cause.silent_for,
        )
        for cause in reliability.causes
    ]  # fmt: skip
    if not revoked:
        return causes
    failing = _rates(weeks, reliability, of_eight)[1]
    rest = failing / (failing + revoked)
    lives = lifetimes_of(steps.node.gpu)
    another = lives.replacement if lives else START_UP
    return [
        *(replace(cause, share=rest * cause.share) for cause in causes),
        DrawnCause("revocation", 1 - rest, NOTICED, Uniform(0.0, 0.0), 1.0, repair=Uniform(another, another)),
    ]


def revocations(weeks: Weeks, steps: Steps) -> float:
    """Return the rate of revocations of the job (1/s): by the specified mean lifetime, or on the spot market by the measured mean.

    Raise SpecError if the lifetimes of machines with this GPU are needed, but unmeasured.
    """
    if weeks.mean_lifetime is not None:
        return steps.nodes / mean_lifetime_of(weeks.mean_lifetime)
    if steps.market != "spot":
        return 0.0
    lives = lifetimes_of(steps.node.gpu)
    if lives is None:
        raise SpecError(
            f"--market spot: no interruption data for spot machines with {steps.node.gpu.name}; write --mean-lifetime '20 h', an option "
            "of `goodput`, `recommend` and `spot`"
        )
    return steps.nodes / survival(lives).mean


def _lives(weeks: Weeks, steps: Steps, revoked: float) -> tuple[Lives, float] | None:
    """Return the lifetimes of spot machines and the rate of revocations, or None if there are no revocations.

    Of many machines revoked at random, these are the times between the revocations of all. Unlike failures, revocations do not differ
    between fleets or repeat.
    """
    if not revoked:
        return None
    if weeks.mean_lifetime is not None:
        together = steps.nodes > MOST_LIVES
        return CrowdLives(1 / revoked) if together else ExponentialLives(steps.nodes / revoked), revoked
    lives = lifetimes_of(steps.node.gpu)
    return None if lives is None else (survival(lives), revoked)


def _length(weeks: Weeks, steps: Steps) -> tuple[float, float]:
    """Return the requested work (s at full speed) and horizon (s)."""
    if weeks.days is not None:
        return math.inf, 86400.0 * weeks.days
    if weeks.tokens is not None:
        if steps.tokens is None:
            raise SpecError(f"--tokens: {steps.workload.model.name} has no token sequences; write --epochs or --days")
        if weeks.tokens < steps.samples * steps.tokens:
            raise SpecError(
                f"--tokens {show_tokens(weeks.tokens)}: one step takes {steps.samples * steps.tokens:,.0f}; write at least that many"
            )
        if steps.parts:
            return math.fsum(part.own_steps for part in steps.parts) * steps.step_time, math.inf
        return steps.time_of(weeks.tokens // steps.tokens), math.inf  # whole sequences
    return steps.time_of((weeks.epochs or 0.0) * steps.workload.dataset.samples), math.inf


def spares_of(weeks: Weeks, steps: Steps) -> int:
    """Return the spare nodes of *weeks* of *steps*: none on one node, or if another is rented for each that fails."""
    if weeks.spares is not None:
        return weeks.spares
    return 0 if steps.nodes == 1 or rents_another(weeks, steps) else math.ceil(SPARES * steps.nodes)


def rents_another(weeks: Weeks, steps: Steps) -> bool:
    """Return whether a failed node is returned and another rented: for a rented job too small for a spare, unless spares are specified.

    Machines with a price and without a provider are the user's own: nobody replaces them.
    """
    rented = steps.usd_per_s is not None and bool(steps.provider)
    return rented and weeks.spares is None and weeks.repairs and SPARES * steps.nodes < 1
