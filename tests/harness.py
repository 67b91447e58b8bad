"""Toy machines and workloads whose times are written down, so that tests know what a run must take.

The toy GPU computes exactly what its layers say: 10^12 FLOP/s reached fully, and a memory so fast that it never counts. Every
figure is SI. Nothing here reads the catalog.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import simpy

import tests.oracle.collectives.script  # noqa: F401  the transfer executor plays built-in algorithms in tests
from sim.cluster.build import Placement, build, place, slots
from sim.cluster.fabric import job_fabric
from sim.cluster.network import Network
from sim.events import EventLog
from sim.simulate import Run, simulate
from sim.spec.hardware import Hardware, Node, Volume
from sim.spec.layer import Layer
from sim.spec.workload import Workload
from sim.training.collectives.price.collective_plan import CollectivePlan, Tuning, plan_collectives
from sim.training.job import EXECUTORS, REFERENCE_GPU_BANDWIDTH, Job, job_slots

FLOPS = 1e12
MEMORY_BANDWIDTH = 1e21


def size(nbytes: float) -> str:
    return f"{nbytes!r} B"


def rate(bandwidth: float) -> str:
    return f"{bandwidth!r} B/s"


def seconds(time: float) -> str:
    return f"{time!r} s"


# --- machines --------------------------------------------------------------------------------------------------------


def link(bandwidth: float) -> dict[str, Any]:
    return {"name": "wire", "bandwidth": rate(bandwidth), "efficiency": 1.0, "nccl_bandwidth": rate(bandwidth), "source": "test"}


def transport(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"} | keys


def volume(bandwidth: float = 1e15, iops: float = 1e15, **keys: Any) -> Volume:
    """A disk that bursts only if *keys* give ``burst_iops`` and ``burst_credits``."""
    described = {
        "name": "disk", "size": "100 GB", "bandwidth": rate(bandwidth), "io_size": "1 GB", "baseline_iops": f"{iops!r} IOPS",
        "max_iops": f"{iops!r} IOPS", "source": "test",
    }  # fmt: skip
    return Volume.model_validate(described | keys)


def toy_node(
    gpus: int = 4,
    *,
    wiring: str | Mapping[str, int] = "nvswitch",
    nvlink: float = 10e9,
    pcie: float = 10e9,
    nic: float = 1e9,
    nics: int = 1,
    dram: float = 1e15,
    cores: int = 1000,
    memory: float = 1.0,
    disk: Volume | None = None,
    hop_latency: float = 0.0,
    network_latency: float = 0.0,
    launch: float = 0.0,
    efficiency: Any = 1.0,
    peer_to_peer: str = "sys",
    network: Mapping[str, Any] | None = None,
    host: Mapping[str, Any] | None = None,
    compute_cv: float = 0.0,
) -> Node:
    """One socket with one PCIe switch above all GPUs; *wiring* is ``nvswitch``, ``pcie`` or NVLinks by pair (``{"0-1": 1}``).

    *pcie* is every port's and the switch's uplink; the NICs hang off the socket, and what they send is copied through host memory.
    Where GPUs reach one another the stages overlap fully, so that the narrowest link alone counts. *network* and *host* add to the
    transport classes between nodes and through host memory.
    """
    inside = {"hop_latency": seconds(hop_latency), "launch": seconds(launch), "efficiency": efficiency}
    overlapping = {} if peer_to_peer == "none" else {"efficiency": 2.0}
    topology: dict[str, Any] = {
        "pcie": link(pcie),
        "sockets": [{"nics": list(range(nics))}],
        "switches": [{"name": "plx0", "parent": "socket0", "gpus": list(range(gpus))}],
        "peer_to_peer": peer_to_peer,
        "source": "test",
    }
    if wiring == "nvswitch":
        topology["nvlink"] = {"link": link(nvlink), "switch_links": 1}
    elif wiring != "pcie":
        topology["nvlink"] = {"link": link(nvlink), "pairs": dict(wiring)}  # type: ignore[call-overload]
    described: dict[str, Any] = {
        "gpu": {
            "name": "toy", "architecture": "toy", "compute_capability": "7.0", "memory": "1000 GB",
            "memory_bandwidth": rate(MEMORY_BANDWIDTH),
            "memory_efficiency": 1.0, "peak": {"fp32": f"{FLOPS!r} FLOP/s"}, "efficiency": {"gemm": {"fp32": 1.0}},
            "kernel_time": "0 s", "context_memory": "0 B", "compute_cv": compute_cv, "source": "test",
        },
        "gpu_count": gpus,
        "topology": topology,
        "host": {
            "cpu": {
                "name": "toy", "vendor": "amd", "clock": "1 GHz", "speed": 1.0, "smt_gain": 1.0, "memory_bandwidth": rate(dram),
                "socket_link": link(1e15), "source": "test",
            },
            "sockets": 1, "physical_cores": cores, "vcpus": cores, "memory": size(memory), "source": "test",
        },
        "nic": {
            "count": nics, "bandwidth": rate(nic), "source": "test",
            "transport": transport("wire", **{**inside, "hop_latency": seconds(network_latency), "efficiency": 1.0} | dict(network or {})),
        },
        "nvlink_transport": transport("nvlink", **inside),
        "peer_transport": transport("peer", **inside),
        "host_transport": transport("staged", **inside | dict(host or overlapping)),
    }  # fmt: skip
    if disk is not None:
        described["storage"] = {"volume": disk, "source": "test"}
    return Node.model_validate(described)


def cluster(*nodes: Node, count: int = 1, **fabric: Any) -> Hardware:
    """*count* of each of *nodes*, joined by a *fabric*."""
    return Hardware.model_validate({"name": "toys", "groups": [{"node": node, "count": count} for node in nodes], "fabric": fabric})


def machine(gpus: int = 4, nodes: int = 1, **keys: Any) -> Hardware:
    """*nodes* equal toy nodes; *keys* as in `toy_node`."""
    return cluster(toy_node(gpus, **keys), count=nodes)


# --- workloads -------------------------------------------------------------------------------------------------------


def layer(forward: float, backward: float, *elements: int, **keys: Any) -> Layer:
    """A layer that takes these seconds for one sample, with gradient tensors of *elements*."""
    described = {"forward": f"{forward * FLOPS!r} FLOP", "backward": f"{backward * FLOPS!r} FLOP", "gradients": elements}
    return Layer.model_validate({"name": "layer", "op": "gemm"} | described | keys)


def toy_workload(
    layers: Iterable[Layer] = (layer(0.1, 0.2, 1000),),
    *,
    loader: str = "synthetic",
    batch: int = 1,
    samples: int = 400,
    sample: float = 1e6,
    prepared: float = 0.0,
    prep: float = 0.0,
    files: str = "packed",
    gpu_prep: float | None = None,
    buffers: float = 0.0,
    accumulation: int = 1,
    inputs: Mapping[str, Any] | None = None,
    stack: Mapping[str, Any] | None = None,
    noise: float | None = None,
    optimizer: str = "sgd",
) -> Workload:
    """A workload of *layers*; a sample is read (*sample* bytes), prepared (*prep* core-seconds) and copied (*prepared* bytes).

    With *gpu_prep* DALI's GPU takes so many seconds a sample.
    """
    layers = tuple(layers)
    on_v100 = (gpu_prep or 0.0) * MEMORY_BANDWIDTH / REFERENCE_GPU_BANDWIDTH
    parameters = max(1, sum(sum(row.gradients) for row in layers))
    described = {
        "name": "toy",
        "model": {"name": "toy", "parameters": parameters, "input": size(1), "buffers": size(buffers), "layers": layers, "source": "test"},
        "dataset": {
            "name": "toys", "samples": samples, "sample": size(sample), "prepared": size(prepared), "prep": seconds(prep), "files": files,
            "dali_gpu_prep": None if gpu_prep is None else seconds(prep),
            "dali_gpu_time": None if gpu_prep is None else seconds(on_v100), "source": "test",
        },
        "input": {"loader": loader} | dict(inputs or {}),
        "training": {
            "batch": batch, "optimizer": {"name": optimizer}, "gradient_accumulation_steps": accumulation, "noise": {"compute_cv": noise},
            "stack": {
                "name": "toy", "strategy": "ddp", "nccl_algo": "Ring", "nccl_proto": "Simple",
                "gradient_copy_passes": 0.0, "optimizer": "fused", "launch_cpu": "0 s", "source": "test",
            } | dict(stack or {}),
        },
    }  # fmt: skip
    return Workload.model_validate(described)


def run(hardware: Hardware, *workloads: Workload | Job, **keys: Any) -> Run:
    """Simulate *workloads*; one that is not placed takes every GPU."""
    jobs = [given if isinstance(given, Job) else Job(given, place(hardware)) for given in workloads]
    return simulate(hardware, jobs, **keys)


# --- collectives alone and beside others -----------------------------------------------------------------------------


class Rig:
    """A machine on which collectives and copies can be started by hand."""

    def __init__(
        self,
        hardware: Hardware,
        executor: str = "phase",
        placement: Sequence[Placement] | None = None,
        fold: bool = False,
        channels: int | None = None,
        algorithm: str | None = "Ring",
        protocol: str | None = "Simple",
    ) -> None:
        placed = tuple(placement or place(hardware))
        node_slots = slots(hardware, [placed], fold)
        self.env = simpy.Environment()
        self.log = EventLog(lambda: self.env.now, keep_rates=True)
        self.network = Network(self.env, self.log)
        fabric = job_fabric(hardware, [[part.node for part in placed]], 0, fold)
        tuning = Tuning("2.30", algorithm, protocol, channels)
        self.plan: CollectivePlan = plan_collectives(job_slots(0, node_slots), hardware.fabric, tuning, fabric)
        for link, capacity in self.plan.shared_capacities.items():
            self.network.add_link(link, capacity)
        self.built = build(node_slots, {slot.name: self.plan.crossings(slot.name) for slot in node_slots if fold}, fold)
        for link, capacity in self.built.capacity.items():
            self.network.add_link(link, capacity)
        self.all_reduce = EXECUTORS[executor](self.network, self.log, 0, self.plan, self.built.live_links)
        self.ends: dict[str, float] = {}

    def ring(self, name: str, nbytes: float, start: float = 0.0, op: str = "all_reduce") -> None:
        """Start an all-reduce, or another *op*, of *nbytes* at *start*."""
        self.env.process(self._ring(name, nbytes, start, op))

    def _ring(self, name, nbytes, start, op):
        yield self.env.timeout(start)
        yield from self.all_reduce(name, 0, nbytes, op)
        self.ends[name] = self.env.now

    def copy(self, name: str, nbytes: float, links: Sequence[str], node: int = 0, start: float = 0.0) -> None:
        """Start a copy of *nbytes* over physical *links* of *node* at *start*."""
        self.env.process(self._copy(name, nbytes, {self.built.live_links[f"n{node}"][wire]: 1.0 for wire in links}, start))

    def _copy(self, name, nbytes, usage, start):
        yield self.env.timeout(start)
        yield self.network.start(name, nbytes, usage).done
        self.ends[name] = self.env.now


def all_reduce_alone(hardware: Hardware, executor: str, nbytes: float, **keys: Any) -> float:
    """Seconds of one all-reduce of *nbytes* over every GPU."""
    rig = Rig(hardware, executor, **keys)
    rig.ring("ring", nbytes)
    rig.env.run()
    return rig.ends["ring"]


# --- what happened on the links --------------------------------------------------------------------------------------


def loads(log: EventLog) -> dict[str, list[tuple[float, float]]]:
    """Return for each resource its load from each instant on, as (time, load)."""
    rates: dict[int, float] = defaultdict(float)
    usages: dict[int, Mapping[str, float]] = {}
    by_resource: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for time, changes in groupby(log.rates, key=lambda change: change.t):
        touched: set[str] = set()
        for change in changes:
            rates[change.activity] = change.rate
            usages[change.activity] = dict(change.usage)
            touched |= set(usages[change.activity])
        for name in touched:
            by_resource[name].append((time, sum(use[name] * rates[number] for number, use in usages.items() if name in use)))
        for number in [number for number, value in rates.items() if value == 0.0]:
            del rates[number], usages[number]
    return by_resource


def carried(log: EventLog) -> dict[str, float]:
    """Return what each resource has carried: its load summed over time."""
    totals = {}
    for name, steps in loads(log).items():
        times = [time for time, _ in steps]
        totals[name] = sum(load * (end - start) for (start, load), end in zip(steps, times[1:], strict=False))
    return totals
