"""How does one run go from specs to a `Run`? It simulates a cold and a warm epoch, once each, and skips what repeats exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from sim.analysis.stalls import Blame
from sim.cluster import page_cache
from sim.cluster.build import Slot, slots
from sim.cluster.checkpoint import Outflow
from sim.cluster.fabric import UNLIMITED_FABRIC, job_fabric
from sim.cluster.server_traffic import hosts_of, server_fabric
from sim.cluster.storage import Credits, epochs_until_empty
from sim.epoch import Epoch, EpochRun, EpochScene
from sim.events import EventLog
from sim.spec import memo
from sim.spec.hardware import Hardware, Node
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.training.collectives.play.gloo import plan_gloo
from sim.training.collectives.price.collective_plan import plan_collectives
from sim.training.job import EXECUTORS, Job, RankWiring, job_slots, tuning_of
from sim.training.server_plan import plan_servers, serving


class JobRun(NamedTuple):
    """What one job does on the cluster."""

    job: Job
    first: Epoch
    """The cold epoch: nothing cached yet."""
    warm: Epoch
    """A later epoch: the page cache holds as much as it can."""
    hit_ratio: float
    """Hit ratio of the page cache in the warm epoch, mean over nodes."""

    @property
    def throughput(self) -> float:
        """Return the samples per second of all ranks in the warm steady state."""
        return self.job.samples / self.warm.step_time


class CreditsEnd(NamedTuple):
    """When burst credits of a disk run out: in the warm epoch or in a later one, which is not simulated."""

    epoch: int
    """Number of the epoch of the first job; the cold one is 1."""
    step_times: tuple[float, ...]
    """Seconds of a step from then on, by job."""


@dataclass(frozen=True)
class Run:
    """The outcome of one simulation: immutable, and deterministic for given inputs and seed."""

    hardware: Hardware
    jobs: tuple[JobRun, ...]
    cluster: tuple[Slot, ...]
    rings: tuple[RankWiring | None, ...]
    seed: int
    credits_end: CreditsEnd | None = None
    credits: Mapping[str, float] = field(default_factory=dict)
    """Burst credits at the start of the warm epoch, as shares of a full bucket, by role and number of the first node that has them, such as
    ``n4``; without nodes that cannot burst. Slots would have other names if only some of the jobs were simulated."""

    def node(self, job: int = 0) -> Node:
        """Return the first node of *job*."""
        return self.nodes(job)[0]

    def nodes(self, job: int = 0) -> list[Node]:
        """Return one node of each kind that *job* runs on, in order."""
        return list({id(slot.node): slot.node for slot in self.cluster for lent, _ in slot.lent_gpus if lent == job}.values())

    @property
    def log(self) -> EventLog:
        """Return the event log of the warm epoch."""
        return self.jobs[0].warm.log

    @property
    def stalls(self) -> Sequence[Blame]:
        """Return the seconds per step by cause and resource of the first job's warm epoch."""
        return self.jobs[0].warm.resources


def simulate(
    hardware: Hardware,
    jobs: Sequence[Job],
    *,
    exact: bool = False,
    complete: bool = False,
    fold: bool = True,
    keep_rates: bool = False,
    executor: Literal["phase", "transfer"] = "phase",
    cold: bool = True,
    seed: int = 0,
    lags: Sequence[float] = (),
    outflows_of: Callable[[Slot], Sequence[Outflow]] | None = None,
    keep_log: bool = True,
    credits: Mapping[str, float] | None = None,
) -> Run:
    """Simulate *jobs* together on *hardware* and return what happens in a cold and in a warm epoch.

    *exact* simulates every step of an epoch instead of skipping whole periods; *complete* simulates every micro-batch of a step, as *exact*
    does too. Without *fold*, every rank is simulated individually.
    *keep_rates* records every change of rate for link plots. *executor* simulates each all-reduce as one activity (``phase``) or each of
    its transfers as a flow (``transfer``: for user-defined algorithms and small cases, without folding). *seed* is for jobs that draw
    their steps. *lags* are times (s) that finished batches wait before they are passed on, by job, which shifts loaders relative to steps.
    *outflows_of* returns the parts of checkpoints that each node of a slot writes continuously. Without *keep_log*, waits and work are
    discarded after stalls are computed, for studies that keep many runs. Without *cold*, the warm epoch is also used as the first one;
    a cold one is simulated only if it uses burst credits that reads of the warm one need, and not if *credits* tells how full each node's
    bucket is at the start of the warm one (`Run.credits`).
    Raise SpecError if the jobs do not fit the hardware.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor '{executor}': write one of {', '.join(EXECUTORS)}")
    fold = fold and executor == "phase"
    scene, warm_hits = _scene(hardware, jobs, fold)
    checkpoint_writes = [(slot.name, tuple(outflows_of(slot))) for slot in scene.cluster if slot.lent_gpus] if outflows_of else ()
    scene = replace(
        scene,
        exact=exact,
        complete=complete,
        checkpoint_writes=checkpoint_writes,
        keep_rates=keep_rates,
        executor=executor,
        seed=seed,
        lags=lags,
        keep_log=keep_log,
    )
    cold_differs = any(job.start or job.workload.input.loader != "synthetic" for job in jobs)
    reads = any(hit < 1.0 for hits in warm_hits for hit in hits.values())
    drains = credits is None and reads and any(bucket.can_burst for bucket in scene.credits.values())
    first = EpochRun(scene, _uncached(warm_hits), [job.start for job in jobs]).run() if cold_differs and (cold or drains) else None
    volumes = {_first_node(slot): scene.credits[slot.name] for slot in scene.cluster if slot.name in scene.credits}
    for node, share in (credits or {}).items():
        if node in volumes:
            volumes[node].level = share * volumes[node].capacity
    shares = {node: volume.level / volume.capacity for node, volume in volumes.items() if volume.capacity}
    levels = {slot: bucket.level for slot, bucket in scene.credits.items()}
    warm = EpochRun(scene, warm_hits, [0.0 for _ in jobs]).run()
    return Run(
        hardware,
        tuple(
            JobRun(job, early, later, _mean_hits(warm_hits[number], job_slots(number, scene.cluster)))
            for number, (job, early, later) in enumerate(zip(jobs, (cold and first) or warm, warm, strict=True))
        ),
        tuple(scene.cluster),
        tuple(scene.rings),
        seed,
        _credits_end(scene, levels, warm_hits) if cold else None,
        shares,
    )


def epochs_cache_key(hardware: Hardware, jobs: Sequence[Job]) -> Hashable:
    """Return a cache key: everything that decides the two epochs of a run; None if they cannot be cached."""
    scene, warm_hits = _scene(hardware, jobs, fold=True)
    epochs = tuple(EpochRun(scene, hits, [job.start for job in jobs]).cache_key() for hits in (_uncached(warm_hits), warm_hits))
    return None if None in epochs else epochs


def _scene(hardware: Hardware, jobs: Sequence[Job], fold: bool) -> tuple[EpochScene, list[dict[str, float]]]:
    """Return the scene of the epochs of *jobs*, without options, and the page cache's warm hit ratios by job and slot."""
    cluster, rings = _planned(hardware, jobs, fold)
    warm_hits = [_hit_ratios(jobs, job_slots(number, cluster)) for number in range(len(jobs))]
    steps = [steps_per_epoch(job.workload, job.samples) for job in jobs]
    return EpochScene(jobs, cluster, rings, _credits(cluster), steps, fold=fold), warm_hits


def _uncached(hits: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    return [dict.fromkeys(of_job, 0.0) for of_job in hits]


def ring_channels_of(hardware: Hardware, job: Job) -> int | None:
    """Return the number of parallel rings of *job* in isolation on *hardware*; None for one rank, and for parameter servers."""
    if isinstance(job.workload.training.stack.exchange, ServerExchange):
        return None
    _, (plan,) = _planned(hardware, [job], True)
    return plan.channels if plan else None


def _planned(hardware: Hardware, jobs: Sequence[Job], fold: bool) -> tuple[Sequence[Slot], tuple[RankWiring | None, ...]]:
    """Return the slots into which *jobs* divide *hardware*, and the wiring that each job's gradients use."""
    placements, servers = tuple(job.placement for job in jobs), tuple(serving(job.workload) for job in jobs)

    def plan() -> tuple[Sequence[Slot], tuple[RankWiring | None, ...]]:
        cluster = slots(hardware, placements, fold, servers)
        return cluster, tuple(_plan(hardware, jobs, number, cluster, fold) for number in range(len(jobs)))

    stacks = [job.workload.training.stack for job in jobs]
    if any(isinstance(stack.exchange, ServerExchange) or stack.library.gloo_transport for stack in stacks):
        return plan()  # depends on more than the key contains
    return memo.get_or_make((slots, id(hardware), placements, fold, *(tuning_of(stack.library) for stack in stacks)), plan, hardware)


def _plan(hardware: Hardware, jobs: Sequence[Job], number: int, cluster: Sequence[Slot], fold: bool) -> RankWiring | None:
    job, stack = jobs[number], jobs[number].workload.training.stack
    if job.ranks == 1 and not isinstance(stack.exchange, ServerExchange):
        return None
    servers_of = {other: serving(each.workload) for other, each in enumerate(jobs)}
    hosts = {other: hosts_of(hardware, jobs[other].placement, own) for other, own in servers_of.items() if own}
    lists = [[part.node for part in other.placement] for other in jobs]
    of_servers = {}
    for other, own in hosts.items():  # these lists tell groups of nodes apart
        of_servers[other] = len(lists)
        lists += own.node_lists
    if isinstance(stack.exchange, ServerExchange):
        between = server_fabric(hardware, lists, of_servers[number], hosts[number], fold)
        return plan_servers(number, job.workload, cluster, hardware.fabric, between)
    fabric = job_fabric(hardware, lists, number, fold)
    if stack.library.gloo_transport is not None:
        return plan_gloo(job_slots(number, cluster), hardware.fabric, stack.library.gloo_transport, fabric)
    used, tuning = job_slots(number, cluster), tuning_of(stack.library)
    if fabric is not UNLIMITED_FABRIC:
        return plan_collectives(used, hardware.fabric, tuning, fabric)
    slot_keys = tuple((slot.name, slot.count, slot.numbers, slot.graph, gpus) for slot, gpus in used)
    crossed = hardware.fabric if sum(slot.count for slot, _ in used) > 1 else None  # a job on one node crosses no fabric
    return memo.get_or_make((plan_collectives, slot_keys, id(crossed), tuning), lambda: plan_collectives(used, crossed, tuning), crossed)


def steps_per_epoch(workload: Workload, samples: int) -> int:
    """Return the number of optimizer steps of *samples* samples each that cover the data set once."""
    return max(1, math.ceil(workload.dataset.samples / samples))


def _hit_ratios(jobs: Sequence[Job], used: Sequence[tuple[Slot, tuple[int, ...]]]) -> dict[str, float]:
    """Return the page cache's hit ratio in one job's slots; the data sets of all jobs on a node share its cache in proportion to size."""
    nodes = sum(slot.count for slot, _ in used)
    ratios = {}
    for slot, _ in used:
        sizes = {dataset.name: dataset.samples * dataset.sample for dataset in (jobs[job].workload.dataset for job, _ in slot.lent_gpus)}
        cache = slot.node.page_cache
        fraction = page_cache.cached_fraction(page_cache.capacity(slot.node.host.memory, cache), sum(sizes.values()))
        ratios[slot.name] = page_cache.hit_ratio(cache, fraction, nodes)
    return ratios


def _mean_hits(hits: Mapping[str, float], used: Sequence[tuple[Slot, tuple[int, ...]]]) -> float:
    return sum(hits[slot.name] * slot.count for slot, _ in used) / sum(slot.count for slot, _ in used)


def _credits(cluster: Sequence[Slot]) -> dict[str, Credits]:
    """Return the burst credits of each slot's volume; they carry over from the cold epoch to the warm one."""
    return {slot.name: Credits(slot.node.storage.volume) for slot in cluster if slot.node.storage is not None}


def _first_node(slot: Slot) -> str:
    """Return the role and number of the first node of *slot*, which do not depend on the jobs on other nodes."""
    return f"{slot.name[0]}{slot.first}"


def _credits_end(scene: EpochScene, before: Mapping[str, float], hits: Sequence[Mapping[str, float]]) -> CreditsEnd | None:
    """Return when burst credits run out if every epoch uses as many as the warm one, at whose start they were at *before* (by slot)."""
    ends = {slot: epochs_until_empty(before[slot], credits.level) for slot, credits in scene.credits.items()}
    first = min((end for end in ends.values() if end is not None), default=None)
    if first is None:
        return None
    credits = {slot: credits.empty_copy() if ends[slot] == first else credits for slot, credits in scene.credits.items()}
    after = EpochRun(replace(scene, credits=credits), hits, [0.0 for _ in scene.jobs]).run()
    return CreditsEnd(2 + first, tuple(epoch.step_time for epoch in after))
