"""What does a job cost on the spot market, including revocations? From a machine and a workload to drawn courses, and on-demand cost.

Speeds are simulated with all workers and, if the job continues with fewer, also with fewer. Lifetimes, start-up and checkpoints are those
of `sim.analysis.transient`. A worker is one machine: a revocation takes all its GPUs. A checkpoint holds weights and optimizer state and
goes to cloud storage, because the disk is lost with the machine. Epochs in which page caches fill lower the mean speed of the whole job.
Machines are paid for from the request on, as in the whole job of `run`.
Limits: those of `sim.study.transient`; the page caches of replacements are as full as the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import NamedTuple

from sim.analysis.cost import node_price, servers_price
from sim.analysis.transient import ExponentialLives, Lives, cloud_checkpoint_time, lifetimes_of, restore_time, survival
from sim.analysis.whole_job import START_UP, JobPlan, WholeJob
from sim.cluster.build import with_nodes
from sim.spec.hardware import Group, Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.lifetimes import Lifetimes
from sim.spec.stack import AsyncParameterServer
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.arguments import checkpoint_interval_of, mean_lifetime_of
from sim.study.compare import MakesDocument, RunDocument, compare
from sim.study.computing import Computing
from sim.study.rent import price_of_nodes
from sim.study.scenario import Scenario, sorted_overrides
from sim.study.transient import POLICIES, DrawnCourse, SpotJob, SpotPolicy, best_interval, draw_courses, spread, undisturbed_time
from sim.study.whole_job import checkpoint_bytes, course
from sim.units import rounded, show

ALL_SPEEDS = 8
"""Up to this many workers, every number of survivors is simulated; with more, this many numbers in even ratios, interpolated linearly."""
MOST_REVOCATIONS = 10_000
"""Maximum expected number of revocations of one course."""
SEARCH_TRIALS = 200
"""Courses drawn for each checkpoint interval that is tried."""
EXPECTED_TRIALS = 200
"""Courses drawn for the expected time and cost of one candidate among many."""
EXPECTED_REVOCATIONS = 20
"""Of a longer job, a part with this many expected revocations is drawn for its means: 4,000 of them in `EXPECTED_TRIALS` courses."""


@dataclass(frozen=True)
class SpotRequest:
    """The requested work: *epochs*, or *steps* (of one worker's batch if workers are asynchronous, else of all workers)."""

    epochs: float | None = None
    steps: float | None = None
    interval: str = "auto"
    """Work between checkpoints, as time at full speed: auto, none, or a time such as ``10 min``."""
    policy: str | None = None
    """One of POLICIES; None: shrink if workers are asynchronous, else wait."""
    trials: int = 1000
    mean_lifetime: str | None = None
    """A time; lifetimes are drawn from an exponential distribution with this mean instead of the measured one."""


@dataclass(frozen=True)
class SpotAnswer:
    """A job on spot machines, drawn many times, and the same job on demand."""

    machine: Hardware
    document: RunDocument
    """Document of the undisturbed run on all workers."""
    job: SpotJob
    interval: float
    """Samples between checkpoints; infinite: only the result is saved."""
    outcomes: Sequence[DrawnCourse]
    on_demand_time: float
    on_demand_cost: float | None
    notes: Sequence[str]


def spot(scenario: Scenario, request: SpotRequest, documents: MakesDocument, processes: int | None = None) -> SpotAnswer:
    """Return time and cost of *request* on the spot machines of *scenario*. Raise SpecError if their lifetimes or price are unknown."""
    for_hardware, for_workload = sorted_overrides(scenario)
    machine = load_hardware(scenario.hardware, for_hardware).spec
    machine = with_nodes(machine, scenario.nodes) if scenario.nodes is not None else machine
    workload = load_workload(scenario.workload, for_workload).spec
    group = _workers(machine)
    policy = _policy(request, workload)
    lives, measured, notes = _lives(machine, group, request)
    spot_price = node_price(group, "spot")
    if spot_price is None:
        place = f"groups.{machine.groups.index(group)}.price" if len(machine.groups) > 1 else "price"
        raise SpecError(f"{machine.name}: has no spot price; add one, for example --set {place}.spot='1.50 USD/h'")
    servers = servers_price(machine, workload.training.stack.server_hosts)
    if servers is None:
        raise SpecError(f"{machine.name}: the on-demand servers have no price; add one with --set groups.N.price")
    rows = compare(scenario, [scenario.hardware], documents, nodes=_counts(group.count, policy), computing=Computing(processes))
    failed = next((row.problem for row in rows if row.document is None), None)
    if failed is not None:
        raise SpecError(failed)
    documented = [row.document for row in rows if row.document is not None]
    nbytes, samples = checkpoint_bytes(workload), _samples(request, workload, documented[-1])
    slower = _mean_pace(samples, documented[-1], machine, workload) / documented[-1]["throughput_samples_per_s"]
    job = SpotJob(
        samples,
        tuple(slower * speed for speed in _speeds(group.count, documented)),
        lives,
        policy,
        measured.start_up.total if measured else START_UP,
        measured.replacement if measured else START_UP,
        cloud_checkpoint_time(nbytes),
        restore_time(nbytes),
        spot_price,
        servers,
        in_step=not isinstance(workload.training.stack.exchange, AsyncParameterServer),
    )
    _require_drawable(request, job)
    interval = _interval(request, job, scenario.seed)
    outcomes = draw_courses(job, interval, request.trials, scenario.seed)
    if any(outcome.time == inf for outcome in outcomes):
        raise SpecError(
            f"--checkpoint-interval {request.interval}: machines are revoked before the first checkpoint, so the job never ends; write auto"
        )
    time, cost = _on_demand(job, measured, price_of_nodes(machine, workload, group.count))
    if job.in_step and policy != "wait":
        notes.append(
            "workers are synchronous: when one leaves or joins, all restart from the last checkpoint; with fewer workers, steps are smaller"
        )
    return SpotAnswer(machine, documented[-1], job, interval, outcomes, time, cost, notes)


def _workers(machine: Hardware) -> Group:
    groups = [group for group in machine.groups if group.role == "worker"]
    if len(groups) != 1:
        raise SpecError(f"{machine.name}: has {len(groups)} groups of workers; interruptions are simulated for one group only")
    return groups[0]


def _policy(wanted: SpotRequest, workload: Workload) -> SpotPolicy:
    stack = workload.training.stack
    name = wanted.policy or ("shrink" if isinstance(stack.exchange, AsyncParameterServer) else "wait")
    policy = next((policy_named for policy_named in POLICIES if policy_named == name), None)
    if policy is None:
        raise SpecError(f"--policy {name}: write one of {', '.join(POLICIES)}")
    return policy


def _lives(machine: Hardware, group: Group, wanted: SpotRequest) -> tuple[Lives, Lifetimes | None, list[str]]:
    measured = lifetimes_of(group.node.gpu)
    if wanted.mean_lifetime is not None:
        return ExponentialLives(mean_lifetime_of(wanted.mean_lifetime)), measured, ["revocations occur at random, with the specified mean"]
    if measured is None:
        raise SpecError(
            f"{machine.name}: no interruption data for spot machines with {group.node.gpu.name}; add a mean, for example "
            "--mean-lifetime 20h"
        )
    watched = len(measured.revoked) + measured.survived
    notes = [f"interruptions from {watched} {measured.name.upper()} VMs on {measured.provider.upper()} ({measured.date})"]
    if machine.provider != measured.provider:
        notes.append(f"no interruption data for {(machine.provider or 'this provider').upper()}; --mean-lifetime replaces these")
    return survival(measured), measured, notes


def _counts(workers: int, policy: SpotPolicy) -> list[int]:
    """Return the numbers of workers to simulate; the last is all of them."""
    if policy == "wait":
        return [workers]
    if workers <= ALL_SPEEDS:
        return list(range(1, workers + 1))
    return sorted({round(workers ** (place / (ALL_SPEEDS - 1))) for place in range(ALL_SPEEDS)})


def _speeds(workers: int, documents: Sequence[RunDocument]) -> tuple[float, ...]:
    """Return samples/s with 1 to *workers* workers alive, interpolated linearly between simulated numbers."""
    import numpy as np

    counts = [document["nodes"] for document in documents]
    speeds = [document["throughput_samples_per_s"] for document in documents]
    return tuple(float(speed) for speed in np.interp(range(1, workers + 1), counts, speeds))


def _mean_pace(samples: float, document: RunDocument, machine: Hardware, workload: Workload) -> float:
    """Return the mean samples/s of *samples* on all workers, with the epochs in which page caches fill, as in the whole job of `run`."""
    plan = JobPlan(samples / workload.dataset.samples, checkpoints=False, start_up=0.0)
    return samples / course(plan, document, machine, workload).parts.total


def _samples(wanted: SpotRequest, workload: Workload, document: RunDocument) -> float:
    if (wanted.epochs is None) == (wanted.steps is None):
        raise SpecError("--epochs or --steps: write one of the two, for example --epochs 90")
    if wanted.epochs is not None:
        return float(wanted.epochs * workload.dataset.samples)
    batch: float = document["batch_per_gpu"] * workload.training.gradient_accumulation_steps
    workers: int = 1 if isinstance(workload.training.stack.exchange, AsyncParameterServer) else document["gpus"]
    return (wanted.steps or 0.0) * batch * workers


def _require_drawable(wanted: SpotRequest, job: SpotJob) -> None:
    """Raise SpecError for a job that is too long to draw revocation by revocation."""
    rate = len(job.speeds) / job.lives.mean
    expected = rate * undisturbed_time(job)
    if expected > MOST_REVOCATIONS:
        longest = MOST_REVOCATIONS / rate
        length = f"{floor(longest / 86400):,} days" if longest > 2 * 86400 else show(longest, "time")
        option = f"--steps {wanted.steps:g}" if wanted.epochs is None else f"--epochs {wanted.epochs:g}"
        raise SpecError(
            f"{option}: {rounded(expected)} interruptions are expected, but at most {MOST_REVOCATIONS:,} can be simulated; write a job of "
            f"{length} or less"
        )


def _interval(wanted: SpotRequest, job: SpotJob, seed: int) -> float:
    if wanted.interval == "auto":
        return best_interval(job, min(wanted.trials, SEARCH_TRIALS), seed)
    if wanted.interval == "none":
        return inf
    return checkpoint_interval_of(wanted.interval) * job.speeds[-1]


def _on_demand(job: SpotJob, measured: Lifetimes | None, rate: float | None) -> tuple[float, float | None]:
    """Return time and cost of the job on machines at *rate* (USD/s) that are never revoked; only its result is saved."""
    time = undisturbed_time(replace(job, start_up=measured.on_demand_start_up.total if measured else START_UP))
    return time, None if rate is None else rate * time


class ExpectedOutcome(NamedTuple):
    """Mean time and cost of a job on spot machines."""

    time: float
    cost: float
    interval: float
    """Seconds of work between checkpoints; infinite if only the result is saved."""
    checkpoints: float
    """Seconds to write all of them."""
    start_up: float


def expected_outcome(
    machine: Hardware, workload: Workload, nodes: int, job_parts: WholeJob, saves: bool, rate: float, mean_lifetime: float | None = None
) -> ExpectedOutcome | None:
    """Return mean time and cost of the job *job_parts* on *nodes* spot machines that cost *rate* (USD/s) together.

    As in `spot` without servers, all wait for a replacement and go back to the last checkpoint, with the interval that takes the least
    time; if the job does not *save*, they go back to the beginning. Lifetimes are drawn with *mean_lifetime* (s) if given, else from
    measured ones. Return None if there are no data on them, and infinite values if the job would not end.
    """
    measured = lifetimes_of(machine.first_workers.node.gpu)
    if mean_lifetime is not None:
        lives: Lives = ExponentialLives(mean_lifetime)
    elif measured is not None:
        lives = survival(measured)
    else:
        return None
    nbytes = checkpoint_bytes(workload)
    work = job_parts.total - job_parts.start_up - job_parts.checkpoints
    drawn_work = min(work, EXPECTED_REVOCATIONS * lives.mean / nodes) if saves else work
    job = SpotJob(
        drawn_work,
        (1.0,) * nodes,
        lives,
        "wait",
        measured.start_up.total if measured else START_UP,
        measured.replacement if measured else START_UP,
        cloud_checkpoint_time(nbytes) if saves else 0.0,
        restore_time(nbytes),
        rate / nodes,
    )
    try:
        interval = best_interval(job, SEARCH_TRIALS) if saves else inf
    except SpecError:  # revocations come faster than checkpoints
        return ExpectedOutcome(inf, inf, inf, 0.0, job.start_up)
    outcomes = draw_courses(job, interval, EXPECTED_TRIALS)
    time, cost = (spread(outcomes, of).mean for of in (lambda drawn: drawn.time, lambda drawn: drawn.cost))
    scale = work / drawn_work  # the parts of a long job are alike, except for its start
    started = (job.start_up, nodes * job.start_up * job.price)
    time, cost = (start + scale * (mean - start) for start, mean in zip(started, (time, cost), strict=True))
    return ExpectedOutcome(time, cost, interval, max(1, ceil(work / interval)) * job.checkpoint, job.start_up)
