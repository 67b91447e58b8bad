"""What hardware did the user describe? GPUs, link graph, host, NIC, disk, fabric and price of one machine or cluster.

Every block of numbers has a ``source``. The source of a number without a public reference is ``estimate (reason)``.
"""

import re
from typing import Annotated, Final, Literal, Self

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
    Label,
    Latency,
    OperatorClass,
    Peak,
    Power,
    Rate,
    Seconds,
    Share,
    Source,
    Spec,
    Trays,
    Whole,
)
from sim.spec.kernels import Kernels
from sim.spec.nic import Nic as Nic
from sim.spec.node_prices import Prices
from sim.spec.transport import Link as Link
from sim.spec.transport import Transport as Transport
from sim.spec.trays import joined_node, joined_prices
from sim.units import shorten


class Bridge(Spec):
    """An NVLink bridge: *count* NVLinks between two boards that have connectors for it."""

    link: Link
    """Type of each link."""
    count: Count
    """Number of links between the two boards."""
    source: Source


def _in_digits(value: object) -> object:
    """Return a number such as 8.0 as text; YAML reads it as a number if it is not quoted."""
    return str(value) if isinstance(value, int | float) else value


def _capability(text: str) -> str:
    if not re.fullmatch(r"(0|[1-9][0-9]?)\.[0-9]", text):
        raise ValueError(f"found {shorten(text)}; write major.minor, such as 8.0")
    return text


class Gpu(Spec):
    """One CUDA device (``hardware/parts/gpus``). ``peak`` is dense (no sparsity); tensor-core rates are with FP32 accumulation."""

    name: Label
    aliases: tuple[str, ...] = ()
    """Other names of this GPU that are used in tables of runs."""
    architecture: str
    """The vendor's architecture name, such as ``Ampere``."""
    compute_capability: Annotated[str, BeforeValidator(_in_digits), AfterValidator(_capability)]
    """NVIDIA's compute capability, in quotes: ``"8.0"``; ``"0.0"`` for a processor."""
    memory: Bytes
    """Size of the device memory."""
    memory_bandwidth: Bandwidth
    """Peak bandwidth of the device memory, from the data sheet."""
    memory_efficiency: Fraction
    """Fraction of ``memory_bandwidth`` that element-wise kernels reach."""
    peak: dict[Peak, ComputeRate]
    """Peak rate of the vector units and tensor cores for each data type."""
    tensor_core_rate: Fraction = 1.0
    """Fraction of the tensor cores' native rate that the board allows; ``peak`` is the rate with this limit. GeForce boards run 16-bit
    products with FP32 accumulation at half rate."""
    efficiency: dict[OperatorClass, dict[Peak, Curve]]
    """Fraction of ``peak`` that each class of operators reaches, as a function of the time that one kernel would take at peak. Over this
    time, GPUs of one architecture share curves whatever their size. Values above 1 are possible: Winograd convolutions save arithmetic."""
    vector_factor: Factor = 1.0
    """Time of products on vector units (FP32) inside a whole network, relative to the isolated kernels that ``efficiency`` describes."""
    tensor_core_factor: Factor = 1.0
    """The same ratio for convolutions and recurrent layers on tensor cores."""
    tensor_core_gemm_factor: Factor = 1.0
    """The same ratio for matrix products and attention on tensor cores."""
    kernel_time: Latency
    """Minimum time of one kernel on the device, added to each kernel."""
    kernels: Kernels | None = None
    """Kernel model for layers that specify their shapes; without it, ``efficiency`` is used for all layers."""
    pcie_peers: bool = True
    """Whether the vendor's driver lets GPUs of this kind access each other's memory over PCIe. If not, copies without NVLink are staged
    through host memory, whatever ``topology.peer_to_peer`` allows."""
    bridge: Bridge | None = None
    """The NVLink bridge that connects two boards; used if a machine's topology is ``bridged``."""
    context_memory: Bytes
    """Device memory that CUDA, cuDNN and NCCL occupy before the first tensor is allocated."""
    host_cores: Whole = 0
    """For a processor used as the training device: the number of host cores it consists of. Loaders and sockets share these cores.
    0 for GPUs."""
    power: Power | None = None
    """Power limit of the board (TDP)."""
    compute_cv: Fraction = 0.0
    """Coefficient of variation of the compute time from step to step on one device."""
    persistent_cv: Fraction = 0.0
    """Coefficient of variation of the mean compute time from device to device."""
    source: Source

    @property
    def dense_16bit(self) -> float:
        """Return the dense peak of 16-bit products (FLOP/s); 0 if the GPU has no units for them."""
        return self.peak.get("bf16") or self.peak.get("fp16") or 0.0

    @model_validator(mode="after")
    def _require_fp32(self) -> Self:
        if "fp32" not in self.peak:
            raise ValueError(
                "peak has no fp32, the fallback for every precision without units of its own; add it, for example {fp32: 15.7 TFLOP/s}"
            )
        return self


LAYOUT_HOST_SPEED: Final = 1.75
"""Speed of the processors for which the host times of a stack's ``mesh`` hold: servers with H100s (Xeon Platinum 8480C), on whose steps and
launches they rest."""


class Cpu(Spec):
    """One processor model (``hardware/parts/cpus``)."""

    name: Label
    vendor: Literal["intel", "amd", "arm"]
    """Vendor of the processor. It decides the path of copies between sockets (NCCL's rules)."""
    clock: Frequency
    """Clock frequency, for information only: loading costs are measured per core."""
    speed: Factor
    """Speed of one core at decoding and augmenting samples, relative to the reference core of the data sets (Xeon Gold 5118)."""
    launch_speed: Factor | None = None
    """Speed of one core at running a framework's host code, which launches kernels, on the same scale, if it was measured. None: as
    ``speed``."""
    smt_gain: Factor
    """Throughput of a fully loaded core with both hardware threads, relative to one thread."""
    memory_bandwidth: Bandwidth
    """Memory bandwidth of one socket."""
    socket_link: Link
    """Link between two sockets: QPI, UPI or Infinity Fabric."""
    assumed: bool = False
    """True if the machine's own processor is not known and this one is a placeholder."""
    source: Source

    @property
    def launching(self) -> float:
        """Return the speed of one core at launching kernels, relative to the reference core."""
        return self.launch_speed or self.speed

    @property
    def host_factor(self) -> float:
        """Return by how much longer than on `LAYOUT_HOST_SPEED` the host code of layouts takes; 1 if launches were not measured."""
        return LAYOUT_HOST_SPEED / self.launch_speed if self.launch_speed else 1.0


class Host(Spec):
    """The processors and DRAM of one node."""

    cpu: Cpu
    """The processor model."""
    sockets: Count
    """Number of processors."""
    physical_cores: Count
    """Physical cores of all processors together."""
    vcpus: Count
    """Hardware threads available to the machine; at least ``physical_cores``."""
    memory: Bytes
    """Size of the DRAM."""
    source: Source

    @model_validator(mode="after")
    def _threads(self) -> Self:
        if self.vcpus < self.physical_cores:
            raise ValueError(f"vcpus ({self.vcpus}) are hardware threads, at least one per physical core ({self.physical_cores})")
        return self


class Switch(Spec):
    """One PCIe switch and the devices below it."""

    name: Label
    parent: str
    """The device above the switch: ``socketN``, or the name of another switch."""
    gpus: tuple[Whole, ...] = ()
    """Numbers of the GPUs below it."""
    nics: tuple[Whole, ...] = ()
    """Numbers of the NICs below it."""
    link: Link | None = None
    """Link type of its ports and uplink; none: the node's ``pcie``."""


class Socket(Spec):
    """The devices attached directly to the host bridge of one socket."""

    gpus: tuple[Whole, ...] = ()
    """Numbers of the GPUs on the socket's own PCIe ports."""
    nics: tuple[Whole, ...] = ()
    """Numbers of the NICs on the socket's own PCIe ports."""


class NvLink(Spec):
    """NVLink between pairs of GPUs (``pairs: {0-1: 2}``), or from every GPU to NVSwitch (``switch_links: 12``)."""

    link: Link
    """Type of each link."""
    pairs: dict[str, Count] = Field(default_factory=dict)
    """Number of links between two GPUs, for each pair of GPU numbers."""
    switch_links: Whole = 0
    """Number of links from each GPU to NVSwitch; 0: no NVSwitch."""


class Topology(Spec):
    """The link graph of one node."""

    nvlink: NvLink | None = None
    """NVLink between the GPUs; none: PCIe only, or the bridges of ``bridged``."""
    bridged: bool = False
    """Whether boards are connected in pairs (0-1, 2-3 ...) by the NVLink ``bridge`` of their GPU."""
    pcie: Link
    """PCIe link of the GPUs, NICs and switches."""
    sockets: tuple[Socket, ...]
    """The devices attached directly to each processor socket."""
    switches: tuple[Switch, ...] = ()
    """PCIe switches, each below a socket or another switch."""
    peer_to_peer: Literal["none", "pix", "pxb", "phb", "sys"] = "pxb"
    """Most distant PCIe path over which GPUs may access each other directly (NCCL's path types). Beyond it, copies are staged through
    host memory."""
    peer_to_peer_of_two: Literal["none", "pix", "pxb", "phb", "sys"] | None = None
    """The same limit for jobs on at most two GPUs of the node: on AMD processors, NCCL allows two GPUs a more distant path
    (NVIDIA/nccl src/graph/paths.cc). None: ``peer_to_peer``."""
    isolated: Literal["none", "host", "nic"] = "none"
    """Set this if each GPU's process runs in its own container, so that GPUs of one node have neither NVLink nor peer access to each
    other. host: they exchange data through host memory; nic: out of a NIC and back in (loopback)."""
    host_bridge_bandwidth: Bandwidth | None = None
    """Total bandwidth that the root complex of one socket can relay; set it if it is lower than the sum of its ports. None: no limit."""
    socket_copy_bandwidth: Bandwidth | None = None
    """Total bandwidth of copies from GPUs of one socket to the memory of another; set it if it is lower than the bandwidth of the socket
    link. None: no limit."""
    host_copy_bandwidth: Bandwidth | None = None
    """Total bandwidth of all copies between GPUs through host memory, if one limit applies to the whole node, such as its memory or the
    bridge between containers of one host. None: no limit."""
    source: Source


class SmallVolume(Spec):
    """A lower bandwidth limit for volumes of up to *size*."""

    size: Bytes
    """Largest size of a volume to which this limit applies."""
    bandwidth: Bandwidth
    """Bandwidth limit of such a volume."""


class Volume(Spec):
    """One disk or network volume (``hardware/parts/volumes``). Some providers tie IOPS and bandwidth to its size."""

    name: Label
    size: Bytes
    """Capacity of one volume."""
    bandwidth: Bandwidth
    """Bandwidth limit of one volume."""
    small: SmallVolume | None = None
    """A lower bandwidth limit for small volumes (gp2: 128 MiB/s up to 170 GiB); none: ``bandwidth`` applies to all sizes."""
    io_size: Bytes
    """Largest single I/O operation; a longer read takes several."""
    baseline_iops: Rate
    """Minimum baseline of I/O operations per second of one volume, whatever its size."""
    iops_per_gib: float = Field(default=0.0, ge=0)
    """Baseline I/O operations per second for each GiB of size; the product is limited to ``baseline_iops`` below and ``max_iops`` above."""
    max_iops: Rate
    """Maximum baseline of I/O operations per second of one volume."""
    burst_iops: Rate | None = None
    """I/O operations per second while burst credits last; none: the volume does not burst. Has no effect if the baseline is higher."""
    burst_credits: float = Field(default=0.0, ge=0)
    """I/O operations in a full credit bucket, which refills at the baseline rate."""
    latency: Seconds = 0.0
    """Latency of one read."""
    count: Count = 1
    """Number of volumes striped together."""
    over_network: bool = False
    """Whether reads arrive through the node's NICs and compete with gradients there, as from a file server (NFS) or an object store.
    Volumes with a connection of their own (Amazon EBS) do not."""
    assumed: bool = False
    """True if the machine comes without a volume and this one is a placeholder for the user's."""
    source: Source


class Storage(Spec):
    """Where the data set is stored, and the node's own limits for reading it."""

    volume: Volume
    """The disk or network volume."""
    bandwidth: Bandwidth | None = None
    """The node's own bandwidth limit (on AWS, the EBS bandwidth of the instance); none: no limit."""
    iops: Rate | None = None
    """The node's own limit of I/O operations per second; none: no limit."""
    source: Source


class PageCache(Spec):
    """How the operating system caches the data set."""

    policy: Literal["linux", "lru", "never_evict", "partitioned"] = "linux"
    """Cache policy. linux: a mix of LRU and never-evict (``lru_share``); never_evict: CoorDL's MinIO; partitioned: CoorDL's cache across
    servers, which read from each other's memory over the network."""
    memory_share: Fraction = 0.85
    """Fraction of DRAM that file pages may fill."""
    lru_share: Fraction = 0.5
    """Weight of LRU in the ``linux`` policy, which models Linux's two-list policy as a mix of LRU and never-evict."""
    source: Source = "estimate (Linux's two-list policy lies between LRU and never-evict; memory left after processes and loader buffers)"


class Node(Spec):
    """One machine."""

    gpu: Gpu
    """The GPU model. All GPUs of a node are equal."""
    gpu_count: Devices
    """Number of GPUs; 0 for a node that is only a parameter server."""
    topology: Topology
    """How GPUs, NICs and processors are connected."""
    host: Host
    """Processors and DRAM."""
    nic: Nic
    """Network interfaces."""
    storage: Storage | None = None
    """Where the data set is read from; none: nothing can be loaded."""
    page_cache: PageCache = PageCache()
    """How the operating system caches files in DRAM."""
    nvlink_transport: Transport | None = None
    """Transport of messages over NVLink inside the node; none: the transport of the link type (``topology.nvlink.link.transport``)."""
    peer_transport: Transport
    """Transport of messages directly between GPUs over PCIe."""
    host_transport: Transport
    """Transport of messages that are staged through host memory."""

    @property
    def nvlink(self) -> NvLink | None:
        """Return the NVLinks of the node: those of the topology, or the bridges between pairs of boards if it is ``bridged``."""
        if not self.topology.bridged or self.gpu.bridge is None:
            return self.topology.nvlink
        pairs = {f"{gpu}-{gpu + 1}": self.gpu.bridge.count for gpu in range(0, self.gpu_count - 1, 2)}
        return NvLink(link=self.gpu.bridge.link, pairs=pairs)

    @property
    def over_nvlink(self) -> Transport:
        """Return the transport of messages over NVLink. Raise ValueError if neither the node nor its link type specifies one."""
        if self.nvlink_transport is not None:
            return self.nvlink_transport
        if self.nvlink is None or self.nvlink.link.transport is None:
            raise ValueError("this node has no NVLink and no transport for messages over NVLink")
        return self.nvlink.link.transport

    @property
    def transports(self) -> dict[str, Transport]:
        """Return the transports inside the node, keyed by the node's field that can set them."""
        over_nvlink = {} if self.nvlink is None else {"nvlink_transport": self.over_nvlink}
        return over_nvlink | {"peer_transport": self.peer_transport, "host_transport": self.host_transport}

    @model_validator(mode="after")
    def _require_nvlink_transport(self) -> Self:
        if self.nvlink is not None and self.nvlink_transport is None and self.nvlink.link.transport is None:
            raise ValueError(
                f"nvlink_transport: {self.nvlink.link.name} has no default transport; write nvlink_transport: nvlink4, or another one in "
                "hardware/parts/transports"
            )
        return self

    @model_validator(mode="after")
    def _check_cores(self) -> Self:
        if self.gpu.host_cores * self.gpu_count > self.host.physical_cores:
            raise ValueError(
                f"gpu.host_cores ({self.gpu.host_cores}) for each of {self.gpu_count} GPUs exceeds host.physical_cores "
                f"({self.host.physical_cores})"
            )
        return self


class Group(Spec):
    """*count* equal nodes."""

    node: Node
    """Description of each node."""
    count: Count = 1
    """Number of nodes."""
    role: Literal["worker", "server"] = "worker"
    """worker: trains the model; server: only runs parameter servers."""
    price: Prices | None = None
    """Price of one node (with ``trays``: of one tray); none: unknown, so no costs are shown."""
    trays: Trays = 1
    """Number of such machines that NVLink joins into one node (an NVL72 rack has 18 trays); their GPUs, processors, NICs, disks and prices
    are added up. A node that has been loaded holds the sums, and 1 here."""

    @model_validator(mode="after")
    def _join_trays(self) -> Self:
        if self.trays == 1:
            return self
        price = None if self.price is None else joined_prices(self.price, self.trays)
        return self.model_copy(update={"node": joined_node(self.node, self.trays), "price": price, "trays": 1})


class Fabric(Spec):
    """The network between nodes. It is non-blocking beyond the NICs, unless a structure or ``core_bandwidth`` is given."""

    latency: Latency = 0.0
    """Latency that the switches add to each message, in addition to the transport's own."""
    core_bandwidth: Bandwidth | None = None
    """Upper limit of the total traffic between nodes; none: limited only by the NICs."""
    leaf_spine: LeafSpine | None = None
    """Two or three tiers of switches."""
    dragonfly: Dragonfly | None = None
    """Groups of routers (a dragonfly network)."""
    torus: Torus | None = None
    """Nodes connected directly to their neighbors in a grid."""
    rank_order: Literal["by_switch", "scattered"] = "by_switch"
    """by_switch: a job's nodes are numbered along the structure, so that rings visit one switch after another. scattered: in any order."""
    path_efficiency: Share = 1.0
    """Fraction of the bandwidth between switches that flows on hashed paths (ECMP) can use. If no structure is given, each node is treated
    as being below its own leaf switch."""
    in_network_reduction: bool = False
    """Whether the switches between nodes can reduce data in the network (SHARP), which NCCL's CollNet algorithms use."""
    source: Source = "estimate (cluster placement group: non-blocking between the nodes of one job)"

    @property
    def switches(self) -> LeafSpine | None:
        """Return the leaf switches: as described, or one for each node if hashed paths collide and no structure is described."""
        if self.path_efficiency == 1.0 or self.dragonfly or self.torus:
            return self.leaf_spine
        return self.leaf_spine or LeafSpine(nodes_per_leaf=1)

    @property
    def has_structure(self) -> bool:
        """Return whether the placement of nodes below the switches matters."""
        return any((self.switches, self.dragonfly, self.torus))


class Hardware(Spec):
    """A machine or cluster that can be rented or built. An instance is one group of one node."""

    name: Label
    provider: str = ""
    """The provider that rents it out: AWS, GCP ...; empty if it cannot be rented."""
    description: str = ""
    """One sentence, shown in lists."""
    aliases: tuple[str, ...] = ()
    """Other names by which it can be referred to."""
    note: str = ""
    """A remark, shown with results."""
    source: Source | None = None
    """Source of the composition; the parts have their own sources."""
    hypothetical: bool = False
    """True if this configuration cannot be rented or bought: it can be simulated and compared, but is never recommended."""
    groups: tuple[Group, ...] = Field(min_length=1)
    """Its nodes, one group for each kind; a single machine is one group of one node."""
    fabric: Fabric = Fabric()
    """The network between nodes."""

    @property
    def worker_groups(self) -> tuple[Group, ...]:
        """The groups of workers with GPUs, without groups that have no nodes in a job's part of a cluster."""
        return tuple([group for group in self.groups if group.role == "worker" and group.node.gpu_count and group.count])

    @property
    def first_workers(self) -> Group:
        """The first group of workers with GPUs; the first group if there is none."""
        return next(iter(self.worker_groups), self.groups[0])

    @property
    def worker_nodes(self) -> int:
        """The number of nodes of all workers."""
        return sum(group.count for group in self.groups if group.role == "worker")

    @property
    def worker_gpus(self) -> int:
        """The number of GPUs of all workers."""
        return sum(group.count * group.node.gpu_count for group in self.groups if group.role == "worker")
