"""What hardware did the user describe? GPUs, link graph, host, NIC, disk, fabric and price of one machine or cluster.

Every block of numbers carries a ``source``; a number without a public source says ``estimate (reason)``.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sim.spec.fabric import Dragonfly, LeafSpine, Torus
from sim.spec.fields import (
    Bandwidth,
    Bytes,
    ComputeRate,
    Count,
    Curve,
    Devices,
    Factor,
    Fraction,
    Frequency,
    OperatorClass,
    Peak,
    Power,
    Price,
    Rate,
    Seconds,
    Share,
    Source,
    Spec,
    Whole,
)
from sim.spec.kernels import Kernels
from sim.spec.transport import Link as Link
from sim.spec.transport import Transport as Transport
from sim.units import shorten


class Bridge(Spec):
    """What joins two boards over NVLink where they have connectors for it: *count* links."""

    link: Link
    """Kind of each of its links."""
    count: Count
    """Links between the two boards."""
    source: Source


def _in_digits(value: object) -> object:
    """Return a number such as 8.0, as YAML reads it without quotes, as text."""
    return str(value) if isinstance(value, float) else value


def _capability(text: str) -> str:
    if not re.fullmatch(r"(0|[1-9][0-9]?)\.[0-9]", text):
        raise ValueError(f"found {shorten(text)}; write NVIDIA's two numbers, such as 8.0")
    return text


class Gpu(Spec):
    """One CUDA device (``hardware/parts/gpus``). ``peak`` is dense, without sparsity; tensor figures accumulate in FP32."""

    name: str
    aliases: tuple[str, ...] = ()
    """What others call it, in tables of runs."""
    architecture: str
    """NVIDIA's or AMD's name of it, such as ``Ampere``."""
    compute_capability: Annotated[str, BeforeValidator(_in_digits), AfterValidator(_capability)]
    """NVIDIA's, in quotes: ``"8.0"``; ``"0.0"`` for a processor."""
    memory: Bytes
    """Size of the device's memory."""
    memory_bandwidth: Bandwidth
    """Of the device's memory, by the data sheet."""
    memory_efficiency: Fraction
    """Share of it that element-wise kernels reach."""
    peak: dict[Peak, ComputeRate]
    """Rate of vector units and tensor cores by precision."""
    tensor_core_rate: Fraction = 1.0
    """Share of its tensor cores' own rate that the board lets through, and ``peak`` states: GeForce boards halve products in 16 bits that
    are summed in FP32."""
    efficiency: dict[OperatorClass, dict[Peak, Curve]]
    """Share of ``peak`` an operator class reaches, over the time that one kernel would take at that peak: so GPUs of one architecture
    share curves, whatever their size. Above 1 where Winograd saves work."""
    vector_factor: Factor = 1.0
    """Time of products inside whole networks over that of ``efficiency``'s single kernels: on vector units."""
    tensor_core_factor: Factor = 1.0
    """The same of convolutions and recurrent layers on tensor cores."""
    tensor_core_gemm_factor: Factor = 1.0
    """The same of matrix products and attention on tensor cores."""
    kernel_time: Seconds
    """Least time of one kernel on the device."""
    kernels: Kernels | None = None
    """What kernels of known shape reach, for layers that say theirs; else ``efficiency`` serves."""
    bridge: Bridge | None = None
    """The NVLink bridge that joins two boards, for machines whose topology says ``bridged``."""
    context_memory: Bytes
    """What CUDA, cuDNN and NCCL hold before the first tensor."""
    host_cores: Whole = 0
    """Of a processor that trains itself: the host's cores it is made of, on which loaders and sockets work as well."""
    power: Power | None = None
    """Limit of the board (TDP)."""
    compute_cv: Fraction = 0.0
    """Coefficient of variation of a step's compute time on one device, from step to step."""
    persistent_cv: Fraction = 0.0
    """Coefficient of variation of compute time from device to device."""
    source: Source

    @property
    def dense_16bit(self) -> float:
        """Return the peak of products in 16 bits without sparsity (FLOP/s); 0 where it has no units for them."""
        return self.peak.get("bf16") or self.peak.get("fp16") or 0.0

    @model_validator(mode="after")
    def _falls_back(self) -> Gpu:
        if "fp32" not in self.peak:
            raise ValueError(
                "peak has no fp32, on which everything runs that has no units of its own; write it, for example {fp32: 15.7 TFLOP/s}"
            )
        return self


class Cpu(Spec):
    """One processor model (``hardware/parts/cpus``)."""

    name: str
    vendor: Literal["intel", "amd", "arm"]
    """Decides how copies between sockets go (NCCL's rules)."""
    clock: Frequency
    """For information: what loading costs is measured per core."""
    speed: Factor
    """Speed of one core at decoding and augmenting, relative to the reference core of the data sets (Xeon Gold 5118)."""
    smt_gain: Factor
    """Throughput of a fully loaded core with both hardware threads, relative to one thread."""
    memory_bandwidth: Bandwidth
    """Of one socket."""
    socket_link: Link
    """Between two processors: QPI, UPI, Infinity Fabric."""
    source: Source


class Host(Spec):
    """The processors and DRAM of one node."""

    cpu: Cpu
    """The processor."""
    sockets: Count
    """How many processors."""
    physical_cores: Count
    """Of all processors together."""
    vcpus: Count
    """Hardware threads that the machine may use."""
    memory: Bytes
    """DRAM."""
    source: Source

    @model_validator(mode="after")
    def _threads(self) -> Host:
        if self.vcpus < self.physical_cores:
            raise ValueError(f"vcpus ({self.vcpus}) are hardware threads, at least one per physical core ({self.physical_cores})")
        return self


class Switch(Spec):
    """One PCIe switch and what hangs below it; ``parent`` is ``socketN`` or another switch."""

    name: str
    parent: str
    """``socketN``, or the name of another switch."""
    gpus: tuple[Whole, ...] = ()
    """Numbers of the GPUs below it."""
    nics: tuple[Whole, ...] = ()
    """Numbers of the NICs below it."""
    link: Link | None = None
    """Of the ports and the uplink, where it differs from the node's PCIe."""


class Socket(Spec):
    """What hangs directly off one socket's host bridge."""

    gpus: tuple[Whole, ...] = ()
    """Numbers of the GPUs on its own PCIe ports."""
    nics: tuple[Whole, ...] = ()
    """Numbers of the NICs there."""


class NvLink(Spec):
    """NVLink between pairs (``pairs: {0-1: 2}``), or from every GPU to NVSwitch (``switch_links: 12``)."""

    link: Link
    """Kind of each link."""
    pairs: dict[str, Count] = Field(default_factory=dict)
    """Links between two GPUs, by their numbers."""
    switch_links: Whole = 0
    """Links of each GPU to NVSwitch."""


class Topology(Spec):
    """The link graph of one node."""

    nvlink: NvLink | None = None
    """NVLink between GPUs; none: PCIe only."""
    bridged: bool = False
    """Whether boards are joined in pairs (0-1, 2-3 ...) by the NVLink bridge of their GPU."""
    pcie: Link
    """Of GPUs, NICs and switches."""
    sockets: tuple[Socket, ...]
    """What hangs directly off each processor."""
    switches: tuple[Switch, ...] = ()
    """PCIe switches, each below a socket or another switch."""
    peer_to_peer: Literal["none", "pix", "pxb", "phb", "sys"] = "pxb"
    """Farthest PCIe path on which GPUs may address each other; beyond it copies are staged through host memory."""
    peer_to_peer_of_two: Literal["none", "pix", "pxb", "phb", "sys"] | None = None
    """The same for jobs on at most two GPUs of the node, where NCCL lets those meet farther away, as it does on AMD's processors
    (NVIDIA/nccl src/graph/paths.cc); none: as ``peer_to_peer``."""
    isolated: Literal["none", "host", "nic"] = "none"
    """Whether each GPU's process has a container of its own, so that GPUs of one node have neither NVLink nor peer access to each other:
    what they exchange goes through host memory, or out of a NIC and back in (loopback)."""
    host_bridge_bandwidth: Bandwidth | None = None
    """What one socket's root complex relays in all, where that is known to be less than the sum of its ports."""
    socket_copy_bandwidth: Bandwidth | None = None
    """What GPUs of one socket copy to the memory of another in all, where that is known to be less than the socket link carries."""
    host_copy_bandwidth: Bandwidth | None = None
    """What all copies between GPUs through host memory carry together, where one limit holds for the node: its memory, or the bridge
    at which containers of one host meet."""
    source: Source


class Nic(Spec):
    """The network interfaces of one node; ``bandwidth`` is of each, in each direction."""

    count: Count = 1
    """How many, all equal."""
    bandwidth: Bandwidth
    """Of one, in each direction."""
    transport: Transport
    """What carries messages between nodes, and how well."""
    burst: Bytes = 0.0
    """What passes at once after a pause, where a token bucket sets the rate; counted for messages over sockets (Gloo)."""
    gpudirect: bool = False
    """Whether the cards read and write GPUs' memory without a copy through the host's."""
    gpudirect_level: Literal["pix", "pxb", "phb", "sys"] = "pxb"
    """How far from a GPU the cards still read and write its memory: what NCCL_NET_GDR_LEVEL says; by default PXB
    (NVIDIA/nccl src/graph/paths.cc)."""
    nccl_plugin_latency: Seconds = 0.0
    """What the network plugin tells NCCL of itself, which chooses algorithms by it."""
    source: Source


class SmallVolume(Spec):
    """Volumes up to *size* have this lower ceiling of bandwidth instead."""

    size: Bytes
    """Up to this size a volume counts as small."""
    bandwidth: Bandwidth
    """Ceiling of a small volume."""


class Volume(Spec):
    """One disk or network volume (``hardware/parts/volumes``): size decides rates where the provider sells it so."""

    name: str
    size: Bytes
    """Capacity."""
    bandwidth: Bandwidth
    """Ceiling of one volume."""
    small: SmallVolume | None = None
    """Where small volumes have a lower ceiling (gp2: 128 MiB/s up to 170 GiB)."""
    io_size: Bytes
    """Largest single I/O; a longer read takes several."""
    baseline_iops: Rate
    """I/O operations per second of one volume, before any per GiB."""
    iops_per_gib: float = Field(default=0.0, ge=0)
    """Added per GiB of size above nothing, between ``baseline_iops`` and ``max_iops``."""
    max_iops: Rate
    """Ceiling of one volume."""
    burst_iops: Rate | None = None
    """Rate while burst credits last; only volumes with a lower baseline burst."""
    burst_credits: float = Field(default=0.0, ge=0)
    """I/O operations in a full credit bucket; refills at the baseline rate."""
    latency: Seconds = 0.0
    """Of one read."""
    count: Count = 1
    """Volumes striped together."""
    assumed: bool = False
    """True where the machine has no volume of its own and this one stands in for the user's."""
    source: Source


class Storage(Spec):
    """Where the data set lies, and the ceilings of the node towards it."""

    volume: Volume
    """The disk or network volume."""
    bandwidth: Bandwidth | None = None
    """The node's own ceiling (on AWS: the EBS bandwidth of the instance)."""
    iops: Rate | None = None
    """The node's own ceiling of I/O operations."""
    source: Source


class PageCache(Spec):
    """How the operating system caches the data set."""

    policy: Literal["linux", "lru", "never_evict", "partitioned"] = "linux"
    """never_evict is CoorDL's MinIO; partitioned its cache across servers, which read from each other's memory over the network."""
    memory_share: Fraction = 0.85
    """Share of DRAM that file pages may fill."""
    lru_share: Fraction = 0.5
    """Linux's two-list policy as a mix: this share LRU, the rest never-evict."""
    source: Source = "estimate (Linux's two-list policy lies between LRU and never-evict; memory left after processes and loader buffers)"


class Node(Spec):
    """One machine."""

    gpu: Gpu
    """The kind of its GPUs, which are all equal."""
    gpu_count: Devices
    """How many; 0 for a node that only serves parameters."""
    topology: Topology
    """How GPUs, NICs and processors are linked."""
    host: Host
    """Processors and DRAM."""
    nic: Nic
    """Network interfaces."""
    storage: Storage | None = None
    """Where the data set is read from; none: nothing can be loaded."""
    page_cache: PageCache = PageCache()
    """How files stay in DRAM once they were read."""
    nvlink_transport: Transport | None = None
    """How well messages go inside the node over NVLink; none: as the class of its links (``topology.nvlink.link.transport``) says."""
    peer_transport: Transport
    """The same from GPU to GPU over PCIe."""
    host_transport: Transport
    """The same staged through host memory."""

    @property
    def nvlink(self) -> NvLink | None:
        """Return the NVLinks of the node: those described, or bridges between pairs of boards."""
        if not self.topology.bridged or self.gpu.bridge is None:
            return self.topology.nvlink
        pairs = {f"{gpu}-{gpu + 1}": self.gpu.bridge.count for gpu in range(0, self.gpu_count - 1, 2)}
        return NvLink(link=self.gpu.bridge.link, pairs=pairs)

    @property
    def over_nvlink(self) -> Transport:
        """Return how well messages go over the NVLinks that the node has."""
        if self.nvlink_transport is not None:
            return self.nvlink_transport
        if self.nvlink is None or self.nvlink.link.transport is None:
            raise ValueError("this node has no NVLink, and says nothing of messages over it")
        return self.nvlink.link.transport

    @property
    def transports(self) -> dict[str, Transport]:
        """Return how messages go inside the node, by the field that says so where it is the node's own."""
        over_nvlink = {} if self.nvlink is None else {"nvlink_transport": self.over_nvlink}
        return over_nvlink | {"peer_transport": self.peer_transport, "host_transport": self.host_transport}

    @model_validator(mode="after")
    def _knows_its_nvlinks(self) -> Node:
        if self.nvlink is not None and self.nvlink_transport is None and self.nvlink.link.transport is None:
            raise ValueError(
                f"nvlink_transport: {self.nvlink.link.name} names no class of messages over it; write nvlink_transport: nvlink4, or "
                "another one in hardware/parts/transports"
            )
        return self

    @model_validator(mode="after")
    def _has_the_cores(self) -> Node:
        if self.gpu.host_cores * self.gpu_count > self.host.physical_cores:
            raise ValueError(
                f"gpu.host_cores ({self.gpu.host_cores}) of each of {self.gpu_count} are more than host.physical_cores "
                f"({self.host.physical_cores})"
            )
        return self


class Prices(Spec):
    """What one node costs."""

    on_demand: Price | None = None
    """Of one node."""
    spot: Price | None = None
    """Of one node that may be taken back."""
    date: str = ""
    """Day or month of the prices; empty where it is not known."""
    spot_date: str | None = None
    """Of the spot price, where it is not that of ``date``; empty where it is not known."""
    region: str = ""
    """To which the prices belong."""
    source: Source = "as given, without a source"

    @property
    def day_of_spot(self) -> str:
        """Return the day or month of the spot price; empty where it is not known."""
        return self.date if self.spot_date is None else self.spot_date


class Group(Spec):
    """*count* equal nodes."""

    node: Node
    """The machine that it consists of."""
    count: Count = 1
    """How many of them."""
    role: Literal["worker", "server"] = "worker"
    """server: only for parameter servers."""
    price: Prices | None = None
    """Of one node; none: unknown, so that no costs are shown."""


class Fabric(Spec):
    """The network between nodes: non-blocking behind the NICs, unless a structure is described or ``core_bandwidth`` bounds it all."""

    latency: Seconds = 0.0
    """Added by the switches to each message, beside the transport's own."""
    core_bandwidth: Bandwidth | None = None
    """What crosses between nodes in all, at most; none: as much as the NICs carry."""
    leaf_spine: LeafSpine | None = None
    """Two or three tiers of switches."""
    dragonfly: Dragonfly | None = None
    """Routers in groups."""
    torus: Torus | None = None
    """Nodes linked to their neighbors."""
    rank_order: Literal["by_switch", "scattered"] = "by_switch"
    """Whether a job's nodes are numbered along the structure, so that rings visit it switch by switch, or as it happens."""
    path_efficiency: Share = 1.0
    """Share of the links between switches that flows on hashed paths (ECMP) fill; without a structure each node is below its own switch."""
    in_network_reduction: bool = False
    """Whether the switches between nodes can add up (SHARP), which NCCL's CollNet algorithms use."""
    source: Source = "estimate (cluster placement group: non-blocking between the nodes of one job)"

    @property
    def switches(self) -> LeafSpine | None:
        """Return the leaf switches: those described, or where hashed paths collide and nothing is, one for each node."""
        if self.path_efficiency == 1.0 or self.dragonfly or self.torus:
            return self.leaf_spine
        return self.leaf_spine or LeafSpine(nodes_per_leaf=1)

    @property
    def structured(self) -> bool:
        """Tell whether it matters where below the switches nodes are."""
        return any((self.switches, self.dragonfly, self.torus))


class Hardware(Spec):
    """A machine or cluster that can be rented or built. An instance is one group of one node."""

    name: str
    provider: str = ""
    """Who rents it out: AWS, GCP ...; empty for machines that nobody rents out."""
    description: str = ""
    """One sentence, shown in lists."""
    aliases: tuple[str, ...] = ()
    """Further names by which it is found."""
    note: str = ""
    """A remark, shown with results."""
    source: Source | None = None
    """Where the composition comes from; the parts have sources of their own."""
    hypothetical: bool = False
    """Whether nobody rents or sells it so: it can be simulated and compared, but is not recommended."""
    groups: tuple[Group, ...] = Field(min_length=1)
    """Its nodes, by kind; a single machine is one group of one node."""
    fabric: Fabric = Fabric()
    """The network between nodes."""
