"""How does a job become a running simulation? Builds the ranks of a job on a cluster from its workload and placement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from sim.cluster.build import LiveCluster, Placement, RankClass, Slot
from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.cluster.page_cache import remote_hit_ratio
from sim.cluster.storage import ios_per_sample, most_bandwidth, most_iops, read_rate
from sim.events import Cause, EventLog, LoggedRank
from sim.parallel.program import Start
from sim.spec.hardware import Node
from sim.spec.stack import AsyncParameterServer, Library
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.training.collectives.play.gloo import GlooExecutor, GlooPlan
from sim.training.collectives.play.phase import PhaseExecutor
from sim.training.collectives.play.transfer import TransferExecutor
from sim.training.collectives.price.collective_plan import CollectivePlan, Live, Tuning
from sim.training.exchange import Backend, GradientExchange, PlaysCollective
from sim.training.input_pipeline import (
    CORE_WEIGHT,
    PAGEABLE_SLOWDOWN,
    BatchCost,
    DaliPipeline,
    Inline,
    InputPipeline,
    LoaderSite,
    Synthetic,
    WorkerLoader,
)
from sim.training.own_loader import own_pipeline
from sim.training.pace import Pace, deviations, drawn_paces, mean_pace
from sim.training.sequences import length_variation
from sim.training.server_plan import Sender, ServerPlan
from sim.training.servers import Crowd, ServerExecutor
from sim.training.step import Replica
from sim.training.step_plan import StepPlan, mean_time_to_norm, plan_steps

REFERENCE_GPU_BANDWIDTH = 900e9
"""Memory bandwidth (bytes/s) of the V100, for which data sets state GPU decode times. Other GPUs scale by their memory bandwidth."""

Executor = Callable[[Network, EventLog, int, CollectivePlan, Live], PlaysCollective]
RankWiring = CollectivePlan | ServerPlan
"""How gradients are exchanged: by collectives or through parameter servers."""
EXECUTORS: Mapping[str, Executor] = {"phase": PhaseExecutor, "transfer": TransferExecutor}
"""How collectives are simulated: each as one activity, or every transfer as a separate flow."""


@dataclass(frozen=True)
class Job:
    """One training job: its workload and its GPUs."""

    workload: Workload
    placement: tuple[Placement, ...]
    start: float = 0.0
    """Time (s) at which the job starts."""
    sharers: int = 1
    """Number of jobs, including this one, that share every batch which one of them reads and prepares."""
    groups: tuple[int, ...] = ()
    """Worker group of each part of the placement; empty if all GPUs have the same batch."""

    @cached_property
    def ranks(self) -> int:
        """Return the number of GPUs."""
        return sum(len(part.gpus) for part in self.placement)

    @cached_property
    def samples(self) -> int:
        """Return the number of samples in one step, over all GPUs."""
        training = self.workload.training
        groups = self.groups or (0,) * len(self.placement)
        each = sum(len(part.gpus) * training.for_group(group).batch for part, group in zip(self.placement, groups, strict=True))
        return each * training.gradient_accumulation_steps

    @cached_property
    def _group_workloads(self) -> Mapping[int, Workload]:
        """Return the workload of each worker group."""
        return {
            group: self.workload.model_copy(update={"training": self.workload.training.for_group(group)})
            for group in dict.fromkeys(self.groups)
        }  # fmt: skip

    def workload_in(self, slot: Slot) -> Workload:
        """Return the workload of the GPUs in *slot*, with their own batch."""
        if not self.groups:
            return self.workload
        place = next(place for place, part in enumerate(self.placement) if part.node == slot.first)
        return self._group_workloads[self.groups[place]]

    @property
    def averaged(self) -> Job:
        """Return this job with the mean of all steps instead of randomly drawn steps."""
        training = self.workload.training
        if not training.noise.draw:
            return self
        return replace(self, workload=self.workload.with_training(noise=training.noise.model_copy(update={"draw": False})))

    @property
    def asynchronous(self) -> int:
        """Return the number of ranks that do not wait for each other: all of them, or 0 if the job is synchronous."""
        return self.ranks if isinstance(self.workload.training.stack.exchange, AsyncParameterServer) else 0


def core_time(workload: Workload) -> float:
    """Return the time (s) in which one reference core prepares one sample of *workload* with its loader."""
    dataset = workload.dataset
    return {
        "pytorch": dataset.prep,
        "dali_cpu": dataset.dali_prep if dataset.dali_prep is not None else dataset.prep,
        "dali_gpu": dataset.dali_gpu_prep if dataset.dali_gpu_prep is not None else dataset.prep,
        "synthetic": 0.0,
    }[workload.input.loader]


def batch_cost(
    workload: Workload, node: Node, disk_rate: float, hit_ratio: float, remote_ratio: float = 0.0, sharers: int = 1
) -> BatchCost:
    """Return the demand of one batch on *node*.

    The node's disk reads *disk_rate* bytes/s. Its page cache serves a share of *hit_ratio* of the reads, and those of other nodes serve
    *remote_ratio*. *sharers* jobs take turns at reading and preparing batches that all of them use.
    """
    dataset, loader, batch = workload.dataset, workload.input.loader, workload.training.batch
    latency = node.storage.volume.latency if node.storage else 0.0
    read = 0.0 if loader == "synthetic" else batch * dataset.sample / sharers
    each = latency if dataset.files == "per_sample" else 0.0
    cap = dataset.sample / (each + dataset.sample / disk_rate) if disk_rate > 0 else float("inf")
    on_gpu = loader == "dali_gpu" and dataset.dali_gpu_time is not None
    gpu_time = (dataset.dali_gpu_time or 0.0) * REFERENCE_GPU_BANDWIDTH / node.gpu.memory_bandwidth if on_gpu else 0.0
    copied = dataset.sample if on_gpu else dataset.prepared  # a GPU decoder takes the compressed sample across PCIe
    prep = batch * core_time(workload) / node.host.cpu.speed / sharers
    return BatchCost(read * (1.0 - hit_ratio), cap, prep, batch * copied, batch * gpu_time, read * remote_ratio)


class JobStage(NamedTuple):
    """The cluster during a simulation; *burst* specifies by slot whether the disk still has burst credits."""

    network: Network
    log: EventLog
    cluster: LiveCluster
    burst: Mapping[str, bool]
    executor: str
    seed: int = 0
    lags: Sequence[float] = ()
    """Seconds between building a batch and passing it on, by job (`LoaderSite.lag`); empty: none."""


def iops_link(slot: str) -> str:
    """Return the name of the network link for the IOPS of the disk of *slot*; a separate link represents its bandwidth."""
    return f"{slot}.disk iops"


def add_disks(network: Network, cluster: Sequence[Slot], burst: Mapping[str, bool]) -> None:
    """Add the disk of every slot that has one to *network*; *burst* specifies by slot whether the disk has burst credits."""
    for slot in cluster:
        if slot.node.storage is not None:
            network.add_link(f"{slot.name}.disk", most_bandwidth(slot.node.storage))
            network.add_link(iops_link(slot.name), most_iops(slot.node.storage, burst[slot.name]))


def make_ranks(
    stage: JobStage, number: int, job: Job, wiring: RankWiring | None, hit_ratio: Mapping[str, float], finished_step: Callable[[int], None]
) -> list[Replica]:
    """Return the ranks of *job*, ready to train, with their loaders started. Each rank calls *finished_step* after every step.

    *hit_ratio* is the page cache hit ratio by slot. Raise SpecError if the workload reads real data and a node has no storage.
    """
    workload = job.workload
    classes = [rank_class for rank_class in stage.cluster.classes if rank_class.job == number]
    nodes = [rank_class.slot.node for rank_class in classes]
    machines = [
        (job.workload_in(rank_class.slot), node.gpu, node.host.cpu.launching) for rank_class, node in zip(classes, nodes, strict=True)
    ]
    plans = plan_steps(machines, job.ranks if wiring else 1)
    indices = [_log_rank(stage.log, number, rank_class) for rank_class in classes]
    gpus = [_live_gpu(stage.network, rank_class, workload, plan) for rank_class, plan in zip(classes, plans, strict=True)]
    if isinstance(wiring, ServerPlan):
        exchanges = _server_exchanges(stage, classes, indices, gpus, wiring)
    else:
        exchanges = [_exchange(stage, indices, gpus, plans[0], wiring)] * len(classes)
    lag = stage.lags[number] if stage.lags else 0.0
    ranks = []
    for rank_class, plan, index, gpu, exchange in zip(classes, plans, indices, gpus, exchanges, strict=True):
        pipeline = _loader(_site(stage, index, rank_class, job, hit_ratio.get(rank_class.slot.name, 0.0), lag), workload)
        name = f"{rank_class.slot.node.gpu.name} compute"
        paces = _paces(stage, number, job, rank_class)
        ranks.append(Replica(gpu, name, plan, pipeline, exchange, finished_step, paces))
    return ranks


def _paces(stage: JobStage, number: int, job: Job, rank_class: RankClass) -> Iterator[Pace]:
    """Return the paces of the steps of one class. In an asynchronous job, no rank waits for a slower one."""
    workload, gpu = job.workload_in(rank_class.slot), rank_class.slot.node.gpu
    noise, (persistent, jitter) = workload.training.noise, deviations(workload, gpu)
    if noise.compute_cv is None:
        jitter = math.hypot(jitter, length_variation(workload))
    if noise.draw:
        return drawn_paces(
            1 if job.asynchronous else rank_class.size,
            persistent,
            jitter,
            stage.seed,
            f"{number} {rank_class.slot.name} {rank_class.gpus[0]}",
        )
    return mean_pace(1 if job.asynchronous else job.ranks, persistent, jitter)


def _log_rank(log: EventLog, job: int, rank_class: RankClass) -> int:
    log.ranks.append(LoggedRank(job, len(log.ranks), rank_class.size, rank_class.slot.name, rank_class.gpus))
    return len(log.ranks) - 1


def _gpu_link(rank_class: RankClass) -> str:
    return f"{rank_class.slot.name}.gpu{rank_class.gpus[0]}.job{rank_class.job}"


def _live_gpu(network: Network, rank_class: RankClass, workload: Workload, plan: StepPlan) -> LiveGpu:
    shared = None
    if workload.input.loader == "dali_gpu":
        shared = _gpu_link(rank_class)
        network.add_link(shared, 1.0)
    each = rank_class.slot.node.gpu.host_cores
    cores = {rank_class.cores: float(rank_class.members * each)} if each else {}
    name = f"gpu {rank_class.slot.name}.{rank_class.gpus[0]}"
    weight, slowdown = CORE_WEIGHT if each else 1.0, workload.training.stack.exchange.overlap_slowdown
    return LiveGpu(network, name, slowdown, shared, cores, weight, mean_time_to_norm(workload, plan))


def _exchange(
    stage: JobStage, ranks: Sequence[int], gpus: Sequence[LiveGpu], plan: StepPlan, rings: CollectivePlan | None
) -> GradientExchange:
    """Return the gradient exchange of the ranks; a single rank exchanges nothing."""
    if rings is None:
        exchange = GradientExchange(stage.network.env, stage.log, ranks, None, gpus)
        exchange.cache_key = tuple
        return exchange
    collective = _collective(stage, ranks[0], rings)
    tier = Cause.NETWORK if rings.nodes > 1 else Cause.INTERCONNECT
    exchange = GradientExchange(stage.network.env, stage.log, ranks, Backend(collective, tier, rings.streams), gpus)
    if isinstance(collective, PhaseExecutor):
        messages = [message for each in plan.program if isinstance(each, Start) for message in each.messages]
        exchange.cache_key = lambda: (tier, rings.streams, collective.cache_key(messages))
    return exchange


def _collective(stage: JobStage, rank: int, plan: CollectivePlan) -> PlaysCollective:
    if isinstance(plan, GlooPlan):
        return GlooExecutor(stage.network, stage.log, rank, plan, stage.cluster.live_links)
    return EXECUTORS[stage.executor](stage.network, stage.log, rank, plan, stage.cluster.live_links)


def _server_exchanges(
    stage: JobStage, classes: Sequence[RankClass], ranks: Sequence[int], gpus: Sequence[LiveGpu], servers: ServerPlan
) -> list[GradientExchange]:
    """Return the exchange of each class with the parameter servers: one for all classes if synchronous, otherwise one for each."""

    def exchange(
        members: Sequence[int], member_gpus: Sequence[LiveGpu], senders: Sequence[Sender], crowd: Crowd | None
    ) -> GradientExchange:
        executor = ServerExecutor(stage.network, stage.log, members[0], servers, stage.cluster.live_links, senders, crowd)
        result = GradientExchange(stage.network.env, stage.log, members, Backend(executor, Cause.NETWORK), member_gpus)
        result.backend_state = executor.carried_state
        return result

    if not servers.asynchronous:
        return [exchange(ranks, gpus, servers.everyone, None)] * len(classes)
    return [
        exchange([rank], [gpu], [Sender(rank_class.slot, rank_class.gpus[:1], 1)], _crowd(stage, rank_class, servers))
        for rank, gpu, rank_class in zip(ranks, gpus, classes, strict=True)
    ]


def _crowd(stage: JobStage, rank_class: RankClass, servers: ServerPlan) -> Crowd:
    """Return the workers that one worker of a class represents.

    On links of their own node, only workers of the same node meet, unless the slot also holds a server.
    """
    if any(site.slot is rank_class.slot for site in servers.sites):
        return Crowd(rank_class.size, {})
    others = rank_class.size - 1
    own = (*stage.cluster.live_links[rank_class.slot.name].values(), rank_class.cores)
    return Crowd(rank_class.size, dict.fromkeys(own, (rank_class.members - 1) / others if others else 0.0))


def _site(stage: JobStage, index: int, rank_class: RankClass, job: Job, hit_ratio: float, lag: float) -> LoaderSite:
    workload, node, members = job.workload_in(rank_class.slot), rank_class.slot.node, float(rank_class.members)
    dataset, remote = workload.dataset, remote_hit_ratio(node.page_cache, hit_ratio, len(job.placement))
    disk: dict[str, float] = {}
    disk_rate = 0.0
    if workload.input.loader != "synthetic":
        if node.storage is None:
            raise SpecError(f"loader '{workload.input.loader}' reads real data, but the node describes no storage")
        disk_rate = read_rate(node.storage, dataset, stage.burst[rank_class.slot.name])
        ios = ios_per_sample(node.storage.volume, dataset) / dataset.sample
        disk = {rank_class.disk: members, iops_link(rank_class.slot.name): members * ios}
    live = stage.cluster.live_links[rank_class.slot.name]
    through_nics = _over_nics(rank_class, live, ARRIVING) if disk and node.storage and node.storage.volume.over_network else {}
    slowdown = 1.0 if workload.input.pin_memory or workload.input.loader.startswith("dali") else PAGEABLE_SLOWDOWN
    return LoaderSite(
        network=stage.network,
        log=stage.log,
        rank=index,
        disk=disk | through_nics,
        nics=frozenset(through_nics) - {rank_class.cores},
        cores={rank_class.cores: members},
        pin={rank_class.memory: 2.0 * rank_class.memory_load},  # read and written
        copy={link: load * slowdown for link, load in rank_class.copy.items()},
        gpu={_gpu_link(rank_class): 1.0},
        cost=batch_cost(workload, node, disk_rate, hit_ratio, remote, job.sharers),
        peers=_over_nics(rank_class, live, ARRIVING, LEAVING) if remote else {},
        peer_cap=(node.nic.transport.flow_cap or math.inf) * node.nic.transport.flows,
        lag=lag,
        disk_readers=sum(other.members for other in stage.cluster.classes if other.slot.name == rank_class.slot.name) / rank_class.members,
    )


ARRIVING, LEAVING = "net>nic{}", "nic{}>net"
"""Links of a NIC, by direction."""


def _over_nics(rank_class: RankClass, live: Mapping[str, str], *directions: str) -> dict[str, float]:
    """Return the load of one byte that passes the NICs of a node in each of *directions*, evenly over all NICs.

    Storage over the network: bytes arrive. Memory of other nodes: one arrives, and another leaves for other nodes, from memory, so no disk
    is read. Cores copy all of them through sockets; this node's cores do for others what other nodes' cores do for it. Links between
    switches are not modeled here, nor is DRAM, which carries several times the NICs' rate.
    """
    nic = rank_class.slot.node.nic
    load = {live[link.format(port)]: rank_class.members / nic.count for port in range(nic.count) for link in directions}
    copies = {rank_class.cores: len(directions) * rank_class.members * nic.transport.cpu_time_per_byte}
    return load | {name: amount for name, amount in copies.items() if amount}


def _loader(site: LoaderSite, workload: Workload) -> InputPipeline:
    options = workload.input
    if options.own_loader is not None:
        return own_pipeline(site, options, options.own_loader)
    if options.loader == "synthetic":
        return Synthetic(site)
    if options.loader != "pytorch":
        return DaliPipeline(site, options.num_threads)
    if options.num_workers == 0:
        return Inline(site)
    start = 0.0 if options.persistent_workers else options.worker_start
    return WorkerLoader(site, options.num_workers, options.prefetch_factor, options.pin_memory, start)


def tuning_of(library: Library) -> Tuning:
    """Return the settings of *library* that affect NCCL's choice of algorithm, protocol and channels."""
    return Tuning(library.nccl, library.nccl_algo, library.nccl_proto, library.channels)


def job_slots(number: int, slots: Sequence[Slot]) -> list[tuple[Slot, tuple[int, ...]]]:
    """Return the slots with GPUs that are assigned to job *number*, and those GPUs."""
    return [(slot, gpus) for slot in slots for job, gpus in slot.lent_gpus if job == number]
