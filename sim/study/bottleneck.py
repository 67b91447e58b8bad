"""What if one resource were infinitely fast? Every run again with a resource freed: what the step gains, and what bounds it then.

The counterfactual behind the one sentence of ``sim run``. A resource is freed in the description: its bandwidth is a million times
what it was and its latencies are zero, or the work on it is gone. Rings, routes and placement stay as they were: NCCL chooses by
``bandwidth`` and ``nccl_bandwidth``, and what is freed is ``efficiency``. Limits: warm epochs only; ``pcie`` is PCIe, host memory and
socket links together, for exchange and copies, as they share them; ``copy`` is the batches alone, pinning included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sim.analysis.bottleneck import RESOURCES, Bottleneck, Resource, foremost
from sim.events import Cause
from sim.simulate import JobRun, Run, simulate
from sim.spec.hardware import Fabric, Gpu, Hardware, Link, Node, Transport
from sim.spec.workload import Noise, Workload
from sim.training.collectives.plan import CORES_COPY
from sim.training.job import Job

FAST = 1e6
"""How many times faster a freed resource is: far beyond any bottleneck that remains, without dividing by zero."""

_BLAMED: dict[Cause, tuple[Resource, ...]] = {
    Cause.FETCH: ("disk",),
    Cause.PREP: ("cpu", "decode"),
    Cause.COPY: ("copy", "pcie"),
    Cause.INTERCONNECT: ("nvlink", "pcie"),
    Cause.NETWORK: ("network",),
    Cause.STRAGGLER: ("spread",),
    Cause.LAUNCH: ("launch",),
}
"""Which resources to free for a stall."""
_WAITED = 0.01
"""Share of the step below which a wait is not worth a run."""


def bottlenecks(run: Run, noteworthy: float = 0.04) -> list[Bottleneck]:
    """Return by job what bounds the warm epochs of *run*; a first resource must save the share *noteworthy* of the step."""
    trials = _Trials(run)
    return [_bottleneck(trials, number, noteworthy) for number in range(len(run.jobs))]


class _Trials:
    """Simulations with resources freed, each run once for all jobs."""

    def __init__(self, run: Run) -> None:
        if any(found.job.workload.training.noise.draw for found in run.jobs):  # compare means, not draws
            run = simulate(run.hardware, [found.job.averaged for found in run.jobs], cold=False)
        self._done: dict[frozenset[Resource], Run] = {frozenset(): run}
        self._base = run

    def run(self, *resources: Resource) -> Run:
        """Return what happens with *resources* freed."""
        key = frozenset(resources)
        if key not in self._done:
            hardware, jobs = free(self._base.hardware, [found.job for found in self._base.jobs], resources)
            self._done[key] = simulate(hardware, jobs, cold=False)
        return self._done[key]

    def step_times(self, number: int, *resources: Resource) -> dict[Resource, float]:
        """Return the warm step (s) of job *number* with *resources* and one more freed, for each that it waits for then."""
        waited = _waited_for(self.run(*resources).jobs[number])
        return {more: self.run(*resources, more).jobs[number].warm.step_time for more in RESOURCES if more in waited - {*resources}}


def _bottleneck(trials: _Trials, number: int, noteworthy: float) -> Bottleneck:
    job = trials.run().jobs[number]
    step, freed = job.warm.step_time, trials.step_times(number)
    others: dict[Resource, float] = {resource: time for resource, time in freed.items() if resource != "gpu"}
    best = foremost(step, others)
    if best is None or step - others[best] < noteworthy * step:
        best = _most_blamed(job, others)  # nothing helps alone: perhaps two bound the step together
        if best is None or step - job.warm.stalls[Cause.COMPUTE] < noteworthy * step:
            return Bottleneck(step, freed)
    return Bottleneck(step, freed, best, trials.step_times(number, best))


def _most_blamed(job: JobRun, freed: Mapping[Resource, float]) -> Resource | None:
    """Return the resource behind the largest direct stall of *job*: of several, the one that saves most when it is *freed*."""
    for cause in sorted(_BLAMED, key=lambda cause: -job.warm.stalls[cause]):
        if tried := [resource for resource in _BLAMED[cause] if resource in freed]:
            return min(tried, key=lambda resource: freed[resource])
    return None


def _waited_for(job: JobRun) -> set[Resource]:
    """Return the resources that *job* may gain by: those it waits for 1 % of the step or more, and its GPUs.

    What nobody waits for gains nothing when it is freed; a run less for each.
    """
    found: set[Resource] = {"gpu"}
    for cause, seconds in job.warm.stalls.items():
        if seconds > _WAITED * job.warm.step_time:
            found.update(_BLAMED.get(cause, ()))
    workload = job.job.workload
    if found & {"disk", "cpu"}:  # a loader overlaps its stages, so that blame of one may hide another
        found |= {"disk", "cpu", "copy"}
    if any(row.resource == CORES_COPY for row in job.warm.resources):
        found.add("cpu")
    if workload.input.loader != "dali_gpu":
        found.discard("decode")
    else:
        found.discard("copy")  # what crosses is the sample as it is read: PCIe stands for it
    if workload.input.loader == "synthetic" or job.hit_ratio >= 1.0:
        found.discard("disk")
    return found


# --- freeing ---------------------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """How a resource is freed: in each node, in the fabric, in each workload."""

    node: Callable[[Node], Node] | None = None
    workload: Callable[[Workload], Workload] | None = None
    fabric: Callable[[Fabric], Fabric] | None = None


def free(hardware: Hardware, jobs: Sequence[Job], resources: Sequence[Resource]) -> tuple[Hardware, list[Job]]:
    """Return *hardware* and *jobs* with *resources* infinitely fast; what is freed fails no check, as none is made."""
    workloads = [job.workload for job in jobs]
    for change in map(_CHANGES.__getitem__, resources):
        if change.node:
            groups = tuple(group.model_copy(update={"node": change.node(group.node)}) for group in hardware.groups)
            hardware = hardware.model_copy(update={"groups": groups})
        if change.fabric:
            hardware = hardware.model_copy(update={"fabric": change.fabric(hardware.fabric)})
        if change.workload:
            workloads = [change.workload(workload) for workload in workloads]
    return hardware, [Job(workload, job.placement, job.start) for workload, job in zip(workloads, jobs, strict=True)]


def _link(link: Link) -> Link:
    return link.model_copy(update={"efficiency": link.efficiency * FAST})


def _transport(transport: Transport) -> Transport:
    """Return *transport* without latency, launch or loss; what it asks of the cores stays."""
    return transport.model_copy(
        update={
            "hop_latency": 0.0,
            "launch": 0.0,
            "efficiency": ((1.0, 1.0),),
            "flow_cap": None,
            "total_efficiency": transport.total_efficiency * FAST,
        }
    )


def _disk(node: Node) -> Node:
    if node.storage is None:
        return node
    volume = node.storage.volume.model_copy(update={"count": int(node.storage.volume.count * FAST), "latency": 0.0})
    return node.model_copy(update={"storage": node.storage.model_copy(update={"volume": volume, "bandwidth": None, "iops": None})})


def _nvlink(node: Node) -> Node:
    if node.topology.nvlink is None:
        return node
    nvlink = node.topology.nvlink.model_copy(update={"link": _link(node.topology.nvlink.link)})
    topology = node.topology.model_copy(update={"nvlink": nvlink})
    return node.model_copy(update={"topology": topology, "nvlink_transport": _transport(node.nvlink_transport)})


def _pcie(node: Node) -> Node:
    switches = tuple(switch.model_copy(update={"link": _link(switch.link)}) if switch.link else switch for switch in node.topology.switches)
    topology = node.topology.model_copy(update={"pcie": _link(node.topology.pcie), "switches": switches, "host_bridge_bandwidth": None})
    cpu = node.host.cpu
    cpu = cpu.model_copy(update={"memory_bandwidth": cpu.memory_bandwidth * FAST, "socket_link": _link(cpu.socket_link)})
    host = node.host.model_copy(update={"cpu": cpu})
    transports = {"peer_transport": _transport(node.peer_transport), "host_transport": _transport(node.host_transport)}
    return node.model_copy(update={"topology": topology, "host": host, **transports})


def _nic(node: Node) -> Node:
    return node.model_copy(update={"nic": node.nic.model_copy(update={"transport": _transport(node.nic.transport)})})


def _fabric(fabric: Fabric) -> Fabric:
    return fabric.model_copy(update={"latency": 0.0, "core_bandwidth": None})


def _gpu(node: Node) -> Node:
    gpu: Gpu = node.gpu.model_copy(
        update={
            "peak": {name: peak * FAST for name, peak in node.gpu.peak.items()},
            "memory_bandwidth": node.gpu.memory_bandwidth * FAST,
            "kernel_time": 0.0,
        }
    )
    return node.model_copy(update={"gpu": gpu})


def _cores_of_network(node: Node) -> Node:
    """Return *node* whose cores copy for the network in no time."""
    transport = node.nic.transport.model_copy(update={"cpu_time_per_byte": 0.0})
    return node.model_copy(update={"nic": node.nic.model_copy(update={"transport": transport})})


def _dataset(*keys: str) -> Callable[[Workload], Workload]:
    """Return what sets these costs of a sample to nothing, where the data set has them."""

    def change(workload: Workload) -> Workload:
        gone = {key: 0.0 for key in keys if getattr(workload.dataset, key) is not None}
        return workload.model_copy(update={"dataset": workload.dataset.model_copy(update=gone)})

    return change


def _training(workload: Workload, **changes: object) -> Workload:
    return workload.model_copy(update={"training": workload.training.model_copy(update=changes)})


def _launch(workload: Workload) -> Workload:
    return _training(workload, stack=workload.training.stack.model_copy(update={"launch_cpu": 0.0}))


def _servers(workload: Workload) -> Workload:
    """Return *workload* whose parameter servers, where it has some, apply updates in no time."""
    stack = workload.training.stack
    if stack.servers is None:
        return workload
    servers = stack.servers.model_copy(update={"update_cpu": 0.0, "byte_cpu": 0.0})
    return _training(workload, stack=stack.model_copy(update={"servers": servers}))


def _gloo(workload: Workload, change: Callable[[Transport], Transport]) -> Workload:
    """Return *workload* with a *change* of what Gloo's sockets carry, where it uses them."""
    stack = workload.training.stack
    if stack.gloo_transport is None:
        return workload
    return _training(workload, stack=stack.model_copy(update={"gloo_transport": change(stack.gloo_transport)}))


def _network(workload: Workload) -> Workload:
    return _gloo(_servers(workload), _transport)


def _cores(workload: Workload) -> Workload:
    prepared = _dataset("prep", "dali_prep", "dali_gpu_prep")(workload)
    return _gloo(prepared, lambda transport: transport.model_copy(update={"cpu_time_per_byte": 0.0}))


_CHANGES: dict[Resource, _Change] = {
    "disk": _Change(node=_disk),
    "cpu": _Change(_cores_of_network, _cores),
    "decode": _Change(workload=_dataset("dali_gpu_time")),
    "copy": _Change(workload=_dataset("prepared")),
    "nvlink": _Change(node=_nvlink),
    "pcie": _Change(node=_pcie),
    "network": _Change(node=_nic, fabric=_fabric, workload=_network),
    "launch": _Change(workload=_launch),
    "spread": _Change(workload=lambda workload: _training(workload, noise=Noise(compute_cv=0.0, persistent_cv=0.0))),
    "gpu": _Change(_gpu, lambda workload: _training(workload, compute_factor=workload.training.compute_factor / FAST)),
}
