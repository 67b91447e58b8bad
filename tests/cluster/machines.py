"""Nodes for tests of the link graph, built from the catalog's own parts: which machine has which wires is written here."""

from __future__ import annotations

from functools import cache
from typing import Any

from sim.spec.hardware import Link, Node, Transport
from sim.spec.library import load_part
from sim.spec.stack import Stack

CUBE_MESH = {  # NVIDIA/go-gpuallocator NewDGX1VoltaNode
    "0-1": 1, "0-2": 1, "0-3": 2, "0-4": 2, "1-2": 2, "1-3": 1, "1-5": 2, "2-3": 2,
    "2-6": 1, "3-7": 1, "4-5": 1, "4-6": 1, "4-7": 2, "5-6": 2, "5-7": 1, "6-7": 2,
}  # fmt: skip
PAIRED = [
    {"name": f"plx{k}", "parent": f"socket{k // 2}", "gpus": (2 * k, 2 * k + 1)} for k in range(4)
]  # two GPUs under each switch, two switches under each socket


@cache
def link(name: str) -> Link:
    return load_part(Link, name)


@cache
def transport(name: str) -> Transport:
    return load_part(Transport, name)


def node(gpu_count: int, topology: dict[str, Any], **keys: Any) -> Node:
    """Build a node; *topology* may leave out pcie and source, *keys* are ``nic`` fields and node fields."""
    nic = {"bandwidth": "25 Gbps", "transport": transport("tcp"), "source": "test"} | keys.pop("nic", {})
    cpu = {
        "name": "c",
        "vendor": "intel",
        "clock": "2.7 GHz",
        "speed": 1.0,
        "smt_gain": 1.25,
        "memory_bandwidth": "76.8 GB/s",
        "source": "test",
    }
    described = {
        "gpu": {
            "name": "g", "architecture": "a", "compute_capability": "7.0", "memory": "16 GiB", "memory_bandwidth": "900 GB/s",
            "memory_efficiency": 0.8, "peak": {"fp32": "15 TFLOP/s"}, "efficiency": {}, "kernel_time": "5 us",
            "context_memory": "0.5 GiB", "source": "test",
        },
        "gpu_count": gpu_count,
        "topology": {"pcie": link("pcie3-x16"), "source": "test"} | topology,
        "host": {
            "cpu": cpu | {"socket_link": link("qpi")}, "sockets": len(topology["sockets"]), "physical_cores": 32, "vcpus": 64,
            "memory": "488 GiB", "source": "test",
        },
        "nic": nic,
        "nvlink_transport": transport("nvlink"),
        "peer_transport": transport("pcie-peer"),
        "host_transport": transport("host-staged"),
    }  # fmt: skip
    return Node.model_validate(described | keys)


def nvlink_pairs(pairs: dict[str, int], name: str = "nvlink2") -> dict[str, Any]:
    return {"link": link(name), "pairs": pairs}


def nvswitch(count: int, name: str = "nvlink3") -> dict[str, Any]:
    return {"link": link(name), "switch_links": count}


@cache
def p3_16xlarge() -> Node:
    """DGX-1V wiring, one 25 Gbps NIC on socket 0."""
    return node(8, {"nvlink": nvlink_pairs(CUBE_MESH), "sockets": ({"nics": (0,)}, {}), "switches": PAIRED})


@cache
def dgx_1v() -> Node:
    """DGX-1V wiring, one EDR InfiniBand card under each switch."""
    switches = [switch | {"nics": (k,)} for k, switch in enumerate(PAIRED)]
    nic = {"count": 4, "bandwidth": "100 Gbps", "gpudirect": True, "transport": transport("infiniband")}
    return node(8, {"nvlink": nvlink_pairs(CUBE_MESH), "sockets": ({}, {}), "switches": switches}, nic=nic)


@cache
def p4d() -> Node:
    """Eight A100 on NVSwitch; two GPUs and one 100 Gbps NIC under each switch (aws/aws-ofi-nccl p4d-24xl-topo.xml)."""
    switches = [switch | {"nics": (k,)} for k, switch in enumerate(PAIRED)]
    nic = {"count": 4, "bandwidth": "100 Gbps", "gpudirect": True, "transport": transport("efa")}
    return node(8, {"nvlink": nvswitch(12), "sockets": ({}, {}), "switches": switches}, nic=nic)


@cache
def hgx_h100() -> Node:
    """Eight H100 on NVSwitch, one 400 Gbps NIC per GPU (NVIDIA/nccl issue 1264)."""
    switches = [{"name": f"plx{k}", "parent": f"socket{k // 4}", "gpus": (k,), "nics": (k,)} for k in range(8)]
    nic = {"count": 8, "bandwidth": "400 Gbps", "gpudirect": True, "transport": transport("infiniband")}
    topology = {"nvlink": nvswitch(18, "nvlink4"), "pcie": link("pcie5-x16"), "sockets": ({}, {}), "switches": switches}
    return node(8, topology, nic=nic)


@cache
def p5() -> Node:
    """Eight H100 on NVSwitch, four 100 Gbps cards beside each."""
    switches = [{"name": f"plx{k}", "parent": f"socket{k // 4}", "gpus": (k,), "nics": tuple(range(4 * k, 4 * k + 4))} for k in range(8)]
    nic = {"count": 32, "bandwidth": "100 Gbps", "gpudirect": True, "transport": transport("efa")}
    topology = {"nvlink": nvswitch(18, "nvlink4"), "pcie": link("pcie5-x16"), "sockets": ({}, {}), "switches": switches}
    return node(8, topology, nic=nic)


@cache
def p2_16xlarge() -> Node:
    """Sixteen K80 devices, two per board, eight per socket."""
    switches = [{"name": f"board{k}", "parent": f"socket{k // 4}", "gpus": (2 * k, 2 * k + 1)} for k in range(8)]
    return node(16, {"sockets": ({"nics": (0,)}, {}), "switches": switches, "peer_to_peer": "phb"})


@cache
def two_islands() -> Node:
    """Four V100 of which only 0-1 and 2-3 have NVLink."""
    return node(4, {"nvlink": nvlink_pairs({"0-1": 1, "2-3": 1}), "sockets": ({"gpus": (0, 1, 2, 3), "nics": (0,)},)})


@cache
def on_one_socket(gpus: int, **keys: Any) -> Node:
    """GPUs straight on the ports of one socket, without NVLink."""
    return node(gpus, {"sockets": ({"gpus": tuple(range(gpus)), "nics": (0,)},), "peer_to_peer": keys.pop("peer_to_peer", "pxb")}, **keys)


def stack(**keys: Any) -> Stack:
    """Build a stack of DDP that launches a kernel in 5 us."""
    described = {"name": "s", "strategy": "ddp", "gradient_copy_passes": 4, "optimizer": "fused", "launch_cpu": "5 us", "source": "test"}
    return Stack.model_validate(described | keys)
