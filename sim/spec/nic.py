"""Which network interfaces does a node have, and what does their plug-in tell NCCL?"""

from typing import Literal

from sim.spec.fields import Bandwidth, Bytes, Count, Latency, Source, Spec
from sim.spec.transport import Transport


class Nic(Spec):
    """The network interfaces of one node."""

    count: Count = 1
    """Number of interfaces; all are equal."""
    bandwidth: Bandwidth
    """Bandwidth of one interface in each direction."""
    transport: Transport
    """Transport that carries messages between nodes."""
    burst: Bytes = 0.0
    """Bytes that pass immediately after a pause, if a token bucket limits the rate. Applies only to messages over sockets (Gloo)."""
    gpudirect: bool = False
    """Whether the NICs access GPU memory directly (GPUDirect RDMA), without a copy through host memory."""
    gpudirect_level: Literal["pix", "pxb", "phb", "sys"] = "pxb"
    """Most distant path between a GPU and a NIC on which GPUDirect is used, as in NCCL_NET_GDR_LEVEL; NCCL's default is PXB
    (NVIDIA/nccl src/graph/paths.cc)."""
    nccl_plugin_latency: Latency = 0.0
    """Latency that the network plugin reports to NCCL, which NCCL uses to choose algorithms; it is not part of any simulated time."""
    nccl_algorithms: tuple[Literal["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"], ...] = ()
    """NCCL_ALGO that the network plugin or its documented setup sets for jobs on several nodes if the stack sets none; empty: NCCL
    chooses."""
    nccl_protocols: tuple[Literal["LL", "LL128", "Simple"], ...] = ()
    """The same for NCCL_PROTO. Plugins whose networks do not keep bytes in order allow only ``Simple``."""
    source: Source
