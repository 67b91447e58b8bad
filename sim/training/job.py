"""How does one job come alive on a cluster? From workload and placement to ranks that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sim.cluster.build import Built, Placement, RankClass, Slot
from sim.cluster.gpu import LiveGpu
from sim.cluster.network import Network
from sim.cluster.storage import read_rate
from sim.events import EventLog
from sim.events import Rank as LoggedRank
from sim.spec.hardware import Node
from sim.spec.workload import Workload
from sim.training.collectives.phase import PhaseExecutor, RingPlan
from sim.training.exchange import Exchange
from sim.training.input_pipeline import (
    PAGEABLE_SLOWDOWN,
    BatchCost,
    DaliPipeline,
    Inline,
    InputPipeline,
    Site,
    Synthetic,
    WorkerLoader,
)
from sim.training.spread import expected_maximum
from sim.training.step import Rank
from sim.training.step_plan import StepPlan, plan_step

SCALAR_BYTES = 4.0
REFERENCE_GPU_BANDWIDTH = 900e9
"""Memory bandwidth (bytes/s) of the V100 on which data sets state their GPU decode time; other GPUs scale with theirs."""


@dataclass(frozen=True)
class Job:
    """One training job: what it trains and which GPUs it has."""

    workload: Workload
    placement: tuple[Placement, ...]
    start: float = 0.0
    """Time (s) at which the job starts."""

    @property
    def ranks(self) -> int:
        """Return the number of GPUs."""
        return sum(len(part.gpus) for part in self.placement)


def batch_cost(workload: Workload, node: Node, disk_rate: float, hit_ratio: float) -> BatchCost:
    """Return what one batch asks of *node* whose disk gives *disk_rate* bytes/s and whose cache holds *hit_ratio* of the reads."""
    dataset, loader, batch = workload.dataset, workload.input.loader, workload.training.batch
    latency = node.storage.volume.latency if node.storage else 0.0
    misses = 0.0 if loader == "synthetic" else batch * dataset.sample * (1.0 - hit_ratio)
    each = latency if dataset.files == "per_sample" else 0.0
    cap = dataset.sample / (each + dataset.sample / disk_rate) if disk_rate > 0 else float("inf")
    core_time = {
        "pytorch": dataset.prep,
        "dali_cpu": dataset.dali_prep if dataset.dali_prep is not None else dataset.prep,
        "dali_gpu": dataset.dali_gpu_prep if dataset.dali_gpu_prep is not None else dataset.prep,
        "synthetic": 0.0,
    }[loader]
    on_gpu = loader == "dali_gpu" and dataset.dali_gpu_time is not None
    gpu_time = (dataset.dali_gpu_time or 0.0) * REFERENCE_GPU_BANDWIDTH / node.gpu.memory_bandwidth if on_gpu else 0.0
    copied = dataset.sample if on_gpu else dataset.prepared  # a GPU decoder takes the compressed sample across PCIe
    return BatchCost(misses, cap, batch * core_time / node.host.cpu.speed, batch * copied, batch * gpu_time)


def start_job(
    number: int,
    job: Job,
    network: Network,
    log: EventLog,
    built: Built,
    rings: RingPlan | None,
    hit_ratio: Mapping[str, float],
    burst: Mapping[str, bool],
    steps: int,
    finished_step: Callable[[int, int], None],
) -> list[Rank]:
    """Make *job*'s ranks and start them; each takes *steps* steps and tells *finished_step* after each.

    *hit_ratio* is the page cache's, by slot; *burst* whether its disk still has burst credits, by slot.
    """
    classes = [found for found in built.classes if found.job == number]
    workload = job.workload
    plans = [plan_step(workload, found.slot.node.gpu, found.slot.node.host.cpu.speed, job.ranks > 1) for found in classes]
    indices = [_log_rank(log, number, found) for found in classes]
    gpus = [_live_gpu(network, found, workload) for found in classes]

    def communicating(active: bool) -> None:
        for gpu in gpus:
            gpu.communicating(active)

    exchange = _exchange(network, log, workload, indices, plans[0], rings, communicating)
    ranks = []
    for found, plan, index, gpu in zip(classes, plans, indices, gpus, strict=True):
        site = _site(network, log, index, found, workload, hit_ratio.get(found.slot.name, 0.0), burst.get(found.slot.name, False))
        pipeline = _loader(site, workload, steps * plan.micro_batches)
        name = f"{found.slot.node.gpu.name} compute"
        ranks.append(Rank(index, log, network, gpu, name, plan, pipeline, exchange, finished_step, _lag(job, found)))
    for rank in ranks:
        network.env.process(_delayed(network, job.start, rank, steps))
    return ranks


def _delayed(network: Network, start: float, rank: Rank, steps: int):  # type: ignore[no-untyped-def]
    if start > 0:
        yield network.env.timeout(start)
    yield from rank.train(steps)


def _lag(job: Job, found: RankClass) -> float:
    noise = job.workload.training.noise.compute_cv
    return expected_maximum(job.ranks) * (found.slot.node.gpu.compute_cv if noise is None else noise)


def _log_rank(log: EventLog, job: int, found: RankClass) -> int:
    log.ranks.append(LoggedRank(job, len(log.ranks), found.size, found.slot.name, found.gpus))
    return len(log.ranks) - 1


def _gpu_link(found: RankClass) -> str:
    return f"{found.slot.name}.gpu{found.gpus[0]}.job{found.job}"


def _live_gpu(network: Network, found: RankClass, workload: Workload) -> LiveGpu:
    shared = None
    if workload.input.loader == "dali_gpu":
        shared = _gpu_link(found)
        network.add_link(shared, 1.0)
    return LiveGpu(network, f"gpu {found.slot.name}.{found.gpus[0]}", workload.training.stack.overlap_slowdown, shared)


def _exchange(
    network: Network,
    log: EventLog,
    workload: Workload,
    ranks: Sequence[int],
    plan: StepPlan,
    rings: RingPlan | None,
    communicating: Callable[[bool], None],
) -> Exchange:
    stack = workload.training.stack
    if rings is None:
        return Exchange(network.env, log, ranks, [], [], _never, communicating)
    blocking = [(f"scalar {index}", SCALAR_BYTES) for index in range(stack.blocking_scalar_all_reduces)]
    if stack.broadcast_buffers and workload.model.buffers > 0:
        # a broadcast moves each byte over every hop once, an all-reduce 2(n-1)/n times
        blocking.insert(0, ("broadcast buffers", workload.model.buffers * rings.ranks / (2.0 * (rings.ranks - 1))))
    return Exchange(network.env, log, ranks, blocking, plan.buckets, PhaseExecutor(network, log, ranks[0], rings), communicating)


def _never(name: str, ident: int, nbytes: float):  # type: ignore[no-untyped-def]
    yield from ()


def _site(
    network: Network, log: EventLog, index: int, found: RankClass, workload: Workload, hit_ratio: float, burst: bool
) -> Site:
    node, members = found.slot.node, float(found.members)
    disk_rate = 0.0
    if node.storage is not None and workload.input.loader != "synthetic":
        disk_rate = read_rate(node.storage, workload.dataset, burst)
        if found.disk not in network.capacity:
            network.add_link(found.disk, disk_rate)
    slowdown = 1.0 if workload.input.pin_memory or workload.input.loader.startswith("dali") else PAGEABLE_SLOWDOWN
    return Site(
        network=network,
        log=log,
        rank=index,
        disk={found.disk: members},
        cores={found.cores: members},
        pin={found.memory: 2.0 * found.memory_load},  # read and written
        copy={link: load * slowdown for link, load in found.copy.items()},
        gpu={_gpu_link(found): 1.0},
        cost=batch_cost(workload, node, disk_rate, hit_ratio),
    )


def _loader(site: Site, workload: Workload, batches: int) -> InputPipeline:
    options = workload.input
    if options.loader == "synthetic":
        return Synthetic(site)
    if options.loader != "pytorch":
        return DaliPipeline(site, batches, options.num_threads)
    if options.num_workers == 0:
        return Inline(site)
    start = 0.0 if options.persistent_workers else options.worker_start
    return WorkerLoader(site, batches, options.num_workers, options.prefetch_factor, options.pin_memory, start)


def job_slots(number: int, slots: Sequence[Slot]) -> list[tuple[Slot, tuple[int, ...]]]:
    """Return the slots that lend GPUs to job *number*, with those GPUs."""
    return [(slot, gpus) for slot in slots for job, gpus in slot.lent if job == number]
