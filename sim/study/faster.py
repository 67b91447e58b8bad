"""What would a machine be like with one resource k times as fast? Its description with rates times k, and times divided by k.

A scaled resource does the same work in 1/k of the time, at any efficiency: the GPU's efficiency curves, which depend on kernel time, are
scaled along the time axis. Rings, routes and placement do not change, because NCCL chooses by ``bandwidth`` and ``nccl_bandwidth``, while
only the ``efficiency`` of links is scaled. If the workload defines the work (decoding, launches, bytes of a batch), the work is divided
by k. Limits: the results are simulated, but never checked as descriptions; ``pcie`` covers PCIe, host memory and socket links together,
because communication and copies share them; ``copy`` covers only batches, pinning included; ``cpu`` covers the cores' work of preparing
samples and copying for the network, but not launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from sim.causes import CAUSES, Resource
from sim.events import Cause
from sim.spec.hardware import Fabric, Hardware, Link, Node, Transport
from sim.spec.sections import with_fields
from sim.spec.stack import ServerExchange
from sim.spec.transport import CHANNEL_RATES
from sim.spec.workload import Workload
from sim.training.collectives.price.collective_plan import CORES_COPY
from sim.training.input_pipeline import STORAGE_NETWORK
from sim.training.job import Job

INFINITE = 1e6
"""How many times faster a freed resource is: far beyond any remaining bottleneck, without dividing by zero."""


class _Scaling(NamedTuple):
    """Functions that scale a resource: in each node, in each workload, in the fabric."""

    node: Callable[[Node, float], Node] | None = None
    workload: Callable[[Workload, float], Workload] | None = None
    fabric: Callable[[Fabric, float], Fabric] | None = None


def faster(hardware: Hardware, jobs: Sequence[Job], resources: Sequence[Resource], factor: float = INFINITE) -> tuple[Hardware, list[Job]]:
    """Return *hardware* and *jobs* with *resources* *factor* times as fast; a factor below 1 makes them slower."""
    workloads = [job.workload for job in jobs]
    for change in map(_CHANGES.__getitem__, resources):
        if change.node:
            groups = tuple(group.model_copy(update={"node": change.node(group.node, factor)}) for group in hardware.groups)
            hardware = hardware.model_copy(update={"groups": groups})
        if change.fabric:
            hardware = hardware.model_copy(update={"fabric": change.fabric(hardware.fabric, factor)})
        if change.workload:
            workloads = [change.workload(workload, factor) for workload in workloads]
    return hardware, [replace(job, workload=workload) for workload, job in zip(workloads, jobs, strict=True)]


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _link(link: Link, factor: float) -> Link:
    return link.model_copy(update={"efficiency": link.efficiency * factor})


def _transport(transport: Transport, factor: float) -> Transport:
    """Return *transport* with its rates multiplied and its times divided by *factor*; its CPU load does not change."""
    return transport.model_copy(
        update={
            "hop_latency": transport.hop_latency / factor,
            "hop_latency_ll": None if transport.hop_latency_ll is None else transport.hop_latency_ll / factor,
            "rendezvous": transport.rendezvous / factor,
            "launch": transport.launch / factor,
            "simple_start": transport.simple_start / factor,
            **{name: _times(getattr(transport, name), factor) for name in ("flow_cap", *CHANNEL_RATES)},
            "total_efficiency": transport.total_efficiency * factor,
        }
    )


def _disk(node: Node, factor: float) -> Node:
    if node.storage is None:
        return node
    storage, volume = node.storage, node.storage.volume
    rates = ("bandwidth", "baseline_iops", "iops_per_gib", "max_iops", "burst_iops", "burst_credits")
    small = volume.small and volume.small.model_copy(update={"bandwidth": volume.small.bandwidth * factor})
    volume = volume.model_copy(
        update={name: _times(getattr(volume, name), factor) for name in rates} | {"latency": volume.latency / factor, "small": small}
    )
    update = {"volume": volume, "bandwidth": _times(storage.bandwidth, factor), "iops": _times(storage.iops, factor)}
    return node.model_copy(update={"storage": storage.model_copy(update=update)})


def _nvlink(node: Node, factor: float) -> Node:
    if node.nvlink is None:
        return node
    link = _link(node.nvlink.link, factor)
    changed: dict[str, object] = {}
    if node.nvlink_transport is not None:
        changed["nvlink_transport"] = _transport(node.nvlink_transport, factor)
    elif link.transport is not None:
        link = link.model_copy(update={"transport": _transport(link.transport, factor)})
    nvlink = node.nvlink.model_copy(update={"link": link})
    return node.model_copy(update={"topology": node.topology.model_copy(update={"nvlink": nvlink, "bridged": False}), **changed})


def _pcie(node: Node, factor: float) -> Node:
    of_node = node.topology
    topology = of_node.model_copy(
        update={
            "pcie": _link(of_node.pcie, factor),
            "switches": tuple(
                switch.model_copy(update={"link": _link(switch.link, factor)}) if switch.link else switch for switch in of_node.switches
            ),
            "host_bridge_bandwidth": _times(of_node.host_bridge_bandwidth, factor),
            "socket_copy_bandwidth": _times(of_node.socket_copy_bandwidth, factor),
            "host_copy_bandwidth": _times(of_node.host_copy_bandwidth, factor),
        }
    )
    cpu = node.host.cpu
    cpu = cpu.model_copy(update={"memory_bandwidth": cpu.memory_bandwidth * factor, "socket_link": _link(cpu.socket_link, factor)})
    host = node.host.model_copy(update={"cpu": cpu})
    transports = {name: _transport(getattr(node, name), factor) for name in ("peer_transport", "host_transport")}
    return node.model_copy(update={"topology": topology, "host": host, **transports})


def _nic(node: Node, factor: float) -> Node:
    return node.model_copy(update={"nic": node.nic.model_copy(update={"transport": _transport(node.nic.transport, factor)})})


def _fabric(fabric: Fabric, factor: float) -> Fabric:
    """Return *fabric* *factor* times as fast; bandwidths that are ratios of the NICs' scale with the NICs."""
    leaf_spine, dragonfly, torus = fabric.leaf_spine, fabric.dragonfly, fabric.torus
    if leaf_spine:
        leaf_spine = leaf_spine.model_copy(update={"uplink_bandwidth": _times(leaf_spine.uplink_bandwidth, factor)})
    if dragonfly:
        links = ("local_bandwidth", "global_bandwidth")
        dragonfly = dragonfly.model_copy(update={name: getattr(dragonfly, name) * factor for name in links})
    if torus:
        torus = torus.model_copy(update={"link_bandwidth": torus.link_bandwidth * factor})
    core = _times(fabric.core_bandwidth, factor)
    structure = {"leaf_spine": leaf_spine, "dragonfly": dragonfly, "torus": torus}
    return fabric.model_copy(update={"latency": fabric.latency / factor, "core_bandwidth": core, **structure})


def _gpu(node: Node, factor: float) -> Node:
    gpu = node.gpu
    curves = {
        operators: {peak: tuple((time / factor, share) for time, share in curve) for peak, curve in curves.items()}
        for operators, curves in gpu.efficiency.items()
    }
    update: dict[str, object] = {
        "peak": {name: peak * factor for name, peak in gpu.peak.items()},
        "efficiency": curves,
        "memory_bandwidth": gpu.memory_bandwidth * factor,
        "kernel_time": gpu.kernel_time / factor,
    }
    if gpu.kernels is not None:
        kernels = gpu.kernels
        kernel_updates = {
            "split_time": kernels.split_time / factor,
            "exponentials": kernels.exponentials * factor,
            "indexed_elements": kernels.indexed_elements * factor,
            "scan_rate": kernels.scan_rate * factor,
            "delta_rate": kernels.delta_rate * factor,
            "attention": tuple(rate.model_copy(update={"sinks": rate.sinks / factor}) for rate in kernels.attention),
        }
        update["kernels"] = kernels.model_copy(update=kernel_updates)
    return node.model_copy(update={"gpu": gpu.model_copy(update=update)})


def _cores_of_network(node: Node, factor: float) -> Node:
    """Return *node* with cores that copy for the network *factor* times as fast."""
    return node.model_copy(update={"nic": node.nic.model_copy(update={"transport": _copied(node.nic.transport, factor)})})


def _copied(transport: Transport, factor: float) -> Transport:
    return transport.model_copy(update={"cpu_time_per_byte": transport.cpu_time_per_byte / factor})


def _more_uniform(node: Node, factor: float) -> Node:
    """Return *node* with the variation among its GPUs divided by *factor*."""
    gpu, kernels = node.gpu, node.gpu.kernels
    update: dict[str, object] = {"compute_cv": gpu.compute_cv / factor, "persistent_cv": gpu.persistent_cv / factor}
    if kernels:
        update["kernels"] = kernels.model_copy(update={"sustained_cv": kernels.sustained_cv / factor})
    return node.model_copy(update={"gpu": gpu.model_copy(update=update)})


def _dataset(*keys: str) -> Callable[[Workload, float], Workload]:
    """Return a function that divides these per-sample costs by a factor, if the data set has them."""

    def change(workload: Workload, factor: float) -> Workload:
        costs = {key: cost / factor for key in keys if (cost := getattr(workload.dataset, key)) is not None}
        return workload.model_copy(update={"dataset": workload.dataset.model_copy(update=costs)})

    return change


def _training(workload: Workload, **changes: object) -> Workload:
    return workload.with_training(**changes)


def _launch(workload: Workload, factor: float) -> Workload:
    stack = workload.training.stack
    return _training(workload, stack=with_fields(stack, launch_cpu=stack.kernels.launch_cpu / factor))


def _servers(workload: Workload, factor: float) -> Workload:
    """Return *workload* with parameter servers, if it has any, that apply updates *factor* times as fast."""
    stack = workload.training.stack
    if not isinstance(stack.exchange, ServerExchange):
        return workload
    servers = stack.exchange.servers
    update = {"update_cpu": servers.update_cpu / factor, "byte_cpu": servers.byte_cpu / factor}
    return _training(workload, stack=with_fields(stack, servers=servers.model_copy(update=update)))


def _gloo(workload: Workload, change: Callable[[Transport], Transport]) -> Workload:
    """Return *workload* with *change* applied to the transport of Gloo's sockets, if it uses them."""
    stack = workload.training.stack
    if stack.library.gloo_transport is None:
        return workload
    return _training(workload, stack=with_fields(stack, gloo_transport=change(stack.library.gloo_transport)))


def _network(workload: Workload, factor: float) -> Workload:
    return _gloo(_servers(workload, factor), lambda transport: _transport(transport, factor))


def _cores(workload: Workload, factor: float) -> Workload:
    prepared = _dataset("prep", "dali_prep", "dali_gpu_prep")(workload, factor)
    return _gloo(prepared, lambda transport: _copied(transport, factor))


def _noise(workload: Workload, factor: float) -> Workload:
    noise = workload.training.noise
    update = {name: value / factor for name in ("compute_cv", "persistent_cv") if (value := getattr(noise, name)) is not None}
    less_spread = workload.model_copy(
        update={"input": workload.input.model_copy(update={"compute_cv": workload.input.compute_cv / factor})}
    )
    stack = workload.training.stack
    return _training(
        less_spread,
        noise=noise.model_copy(update=update),
        stack=stack.model_copy(update={"length_imbalance": stack.length_imbalance / factor}),
    )


_CHANGES: dict[Resource, _Scaling] = {
    "disk": _Scaling(node=_disk),
    "cpu": _Scaling(_cores_of_network, _cores),
    "decode": _Scaling(workload=_dataset("dali_gpu_time")),
    "copy": _Scaling(workload=_dataset("prepared")),
    "nvlink": _Scaling(node=_nvlink),
    "pcie": _Scaling(node=_pcie),
    "network": _Scaling(_nic, _network, _fabric),
    "launch": _Scaling(workload=_launch),
    "spread": _Scaling(_more_uniform, _noise),
    "gpu": _Scaling(_gpu),
}

_SPED_AT: dict[str, tuple[Resource, ...]] = {
    "memory of other nodes": ("network",),
    STORAGE_NETWORK: ("network",),
    "pin thread": ("copy",),
    "GPU decode": ("decode", "gpu"),
    "loader": (),
    CORES_COPY: ("cpu",),
    "Horovod's cycle": (),
}
"""Resources, as named in a log, that differ from others of the same cause."""


def resources_behind(cause: Cause, resource: str, loader: str) -> tuple[Resource, ...]:
    """Return the resources that shorten time of *cause* at *resource* (as named in a log) in proportion, with this *loader*."""
    if cause is Cause.COPY and loader == "dali_gpu":  # the sample crosses PCIe as it was read
        return ("pcie",)
    if cause is Cause.INTERCONNECT and "nvlink" in resource.lower():
        return ("nvlink",)
    return _SPED_AT.get(resource, CAUSES[cause].faster)
