"""Which links does a byte cross between two devices of a node? Fixed shortest routes on the node's directed link graph.

Vertices are ``gpu0..``, the switches by name, ``nvswitch``, ``socket0..`` and ``nic0..``; links are named ``gpu0>gpu3``, ``gpu0>plx0``,
``socket0>socket1``, ``nic0>net``. A socket's DRAM (``dram0``) is a link, too. So are, if the node specifies their bandwidth, a socket's
root complex (``bridge0``), copies by GPUs to another socket's memory (``copies0to1``), and all copies through host memory (``copies``).
All of these except ``copies0to1`` are shared by both directions. Path classes are NCCL's (`src/graph/topo.h`). GPUs access each other
directly up to ``topology.peer_to_peer``, if their driver lets them (``gpu.pcie_peers``); else bytes pass through host memory in two
copies (`Route.stages`), as do bytes for a NIC without GPUDirect. Background: docs/model/links.md.
Not modeled: NVLink relays between two GPUs through a third one (NCCL's NVB), the extra copies of a kernel TCP stack in DRAM, and NUMA
placement of pinned memory (a GPU's buffers are on its own socket).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from sim.cluster.node_links import NodeLink, links_of, parents_of
from sim.spec.hardware import Node, Transport
from sim.spec.identity import IdentityKey, content

PathClass = Literal["NVL", "NVS", "PIX", "PXB", "PXN", "PHB", "SYS"]

PATH_CLASSES: tuple[PathClass, ...] = ("NVL", "NVS", "PIX", "PXB", "PXN", "PHB", "SYS")
"""Closest first. ``PXN`` is a path over NVLink to a GPU that relays to a NIC near it."""
INTEL_RELAY = 6 / 5
"""Bytes on PCIe per byte that an Intel processor relays from GPU to GPU: it splits them into packets of 64 bytes (NVIDIA/nccl
src/graph/topo.h, ``INTEL_P2P_OVERHEAD``, for paths of class PHB: search.cc)."""


@dataclass(frozen=True)
class Route:
    """The links of one transfer. *stages* run in series; every byte crosses a link that is named twice two times."""

    stages: tuple[tuple[str, ...], ...]
    path_class: PathClass
    transport: Transport
    staged: bool = False
    """Whether the bytes are stored in host memory on the way."""
    copies: Transport | None = None
    """The transport whose efficiency determines how far stages overlap, if it is not *transport* (which is then the network's)."""
    relayed: bool = False
    """Whether an Intel processor relays the bytes from GPU to GPU; each byte then counts as `INTEL_RELAY` bytes on PCIe."""

    @cached_property
    def links(self) -> tuple[str, ...]:
        """Return the links of all stages, in order."""
        return tuple(link for stage in self.stages for link in stage)


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """The link graph of one node, and its fixed routes. Equal descriptions share one object, so it compares by identity."""

    node: Node
    links: Mapping[str, NodeLink]
    parents: Mapping[str, str]
    """The switch or socket above each GPU, NIC and switch."""
    _routes: dict[tuple[str, str], Route] = field(default_factory=dict, repr=False)
    _classes: dict[tuple[str, str], PathClass] = field(default_factory=dict, repr=False)
    _near: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def ancestors(self, device: str) -> tuple[str, ...]:
        """Return the switches above *device*, nearest first, and finally its socket."""
        chain = []
        while device in self.parents:
            device = self.parents[device]
            chain.append(device)
        return tuple(chain)

    def socket_of(self, device: str) -> str:
        """Return the socket whose host bridge *device* is attached to, directly or through switches."""
        return self.ancestors(device)[-1]

    def memory_of(self, gpu: int) -> str:
        """Return the DRAM link of the socket of *gpu*."""
        return _memory(self.socket_of(f"gpu{gpu}"))

    def nvlinks(self, src: int, dst: int) -> int:
        """Return the number of NVLinks directly from GPU *src* to GPU *dst*; 0 between isolated containers."""
        nvlink = self.node.nvlink
        if nvlink is None or self.isolated:
            return 0
        return nvlink.pairs.get(f"{src}-{dst}", 0) or nvlink.pairs.get(f"{dst}-{src}", 0)

    @property
    def switch_links(self) -> int:
        """Return the number of NVLinks from every GPU to NVSwitch; 0 between isolated containers."""
        nvlink = self.node.nvlink
        return nvlink.switch_links if nvlink and not self.isolated else 0

    @property
    def isolated(self) -> bool:
        """Return whether each GPU has a container of its own."""
        return self.node.topology.isolated != "none"

    def pcie_class(self, one: str, other: str) -> PathClass:
        """Return the class of the PCIe path between two devices (``gpu0``, ``nic0``)."""
        key = (one, other)
        if key not in self._classes:
            self._classes[key] = self._pcie_class(one, other)
        return self._classes[key]

    def _pcie_class(self, one: str, other: str) -> PathClass:
        up, down = self._pcie_climb(one, other)
        if up[-1] != down[-1]:
            return "SYS"
        if up[-1].startswith("socket"):
            return "PHB"
        return "PIX" if len(up) == len(down) == 1 else "PXB"

    def isolated_rate(self, route: Route) -> float:
        """Return the rate (bytes/s) of *route* in isolation: stages add in series, 1/rate = 1/first + 1/second."""
        return 1 / sum(1 / min(self.links[link].capacity for link in stage) for stage in route.stages)

    def route(self, src: int, dst: int) -> Route:
        """Return the fixed route from GPU *src* to GPU *dst*."""
        key = (f"gpu{src}", f"gpu{dst}")
        if key not in self._routes:
            self._routes[key] = self._gpu_route(src, dst)
        return self._routes[key]

    def host_to_device(self, gpu: int) -> Route:
        """Return the route of a copy from the DRAM of the GPU's own socket."""
        return Route((self._from_memory(f"gpu{gpu}", self.socket_of(f"gpu{gpu}")),), "PHB", self.node.host_transport)

    def device_to_host(self, gpu: int) -> Route:
        """Return the route of a copy to the DRAM of the GPU's own socket."""
        return Route((self._to_memory(f"gpu{gpu}", self.socket_of(f"gpu{gpu}")),), "PHB", self.node.host_transport)

    def relay_to(self, gpu: int, nic: int, relays: Sequence[int]) -> int | None:
        """Return which of *relays* passes on what *gpu* sends through *nic*; None if it sends that itself.

        It is a GPU that NVSwitches connect to *gpu*, with a direct path to *nic* that does not cross the processor, where *gpu* has none
        (NVIDIA/nccl src/graph/paths.cc, ncclTopoComputePaths: PXN).
        """
        if not self.switch_links or _is_within(self.pcie_class(f"gpu{gpu}", f"nic{nic}"), "pxb"):
            return None
        classes = {other: self._gpudirect(f"gpu{other}", f"nic{nic}") for other in relays if other != gpu}
        return next((other for other, (path_class, direct) in classes.items() if direct and _is_within(path_class, "pxb")), None)

    def to_nic(self, gpu: int, nic: int, relays: Sequence[int] = ()) -> Route:
        """Return the route from *gpu* out of the node through *nic*: direct, or through a copy in host memory that the NIC reads.

        One of *relays* passes the bytes on if `relay_to` says so.
        """
        source, port = f"gpu{gpu}", f"nic{nic}"
        relay = self.relay_to(gpu, nic, relays)
        if relay is not None:
            over_nvlink = self.route(gpu, relay).links
            return Route(((*over_nvlink, *self._pcie_path(f"gpu{relay}", port), f"{port}>net"),), "PXN", self.node.nic.transport)
        path_class, direct = self._gpudirect(source, port)
        if direct:
            return Route(((*self._pcie_path(source, port), f"{port}>net"),), path_class, self.node.nic.transport)
        home = self.socket_of(source)
        stages = (self._to_memory(source, home), (*self._from_memory(port, home), f"{port}>net"))
        return Route(stages, path_class, self.node.nic.transport, staged=True, copies=self.node.host_transport)

    def from_nic(self, nic: int, gpu: int) -> Route:
        """Return the route from the network through *nic* to *gpu*."""
        port, target = f"nic{nic}", f"gpu{gpu}"
        path_class, direct = self._gpudirect(port, target)
        if direct:
            return Route(((f"net>{port}", *self._pcie_path(port, target)),), path_class, self.node.nic.transport)
        home = self.socket_of(target)
        stages = ((f"net>{port}", *self._to_memory(port, home)), self._from_memory(target, home))
        return Route(stages, path_class, self.node.nic.transport, staged=True, copies=self.node.host_transport)

    def memory_to_network(self, nic: int) -> tuple[str, ...]:
        """Return the links from the DRAM of the NIC's own socket out of the node."""
        port = f"nic{nic}"
        return (*self._from_memory(port, self.socket_of(port)), f"{port}>net")

    def memory_from_network(self, nic: int) -> tuple[str, ...]:
        """Return the links from the network into the DRAM of the NIC's own socket."""
        port = f"nic{nic}"
        return (f"net>{port}", *self._to_memory(port, self.socket_of(port)))

    def near_nics(self, gpu: int) -> list[int]:
        """Return the NICs with the closest PCIe path to *gpu*."""
        if gpu not in self._near:
            classes = [PATH_CLASSES.index(self.pcie_class(f"gpu{gpu}", f"nic{nic}")) for nic in range(self.node.nic.count)]
            nearest = min(classes, default=0)
            self._near[gpu] = [nic for nic, distance in enumerate(classes) if distance == nearest]
        return self._near[gpu]

    def nearest_nic(self, gpu: int, turn: int = 0) -> int:
        """Return a NIC with the closest PCIe path to *gpu*; of several, GPUs and a GPU's channels (*turn*) use them in rotation."""
        near = self.near_nics(gpu)
        return near[(gpu + turn) % len(near)]

    def loopback(self, src: int, dst: int, turn: int = 0) -> Route:
        """Return the route from GPU *src* out through one NIC and back in to GPU *dst*; channels (*turn*) use NICs in rotation.

        A copy to host memory ends before the NIC reads it; everything after it is assumed to be pipelined.
        """
        out, into = self.to_nic(src, self.nearest_nic(src, turn)), self.from_nic(self.nearest_nic(dst, turn), dst)
        if out.staged:
            stages: tuple[tuple[str, ...], ...] = (out.stages[0], (*out.stages[1], *into.links))
        elif into.staged:
            stages = ((*out.links, *into.stages[0]), into.stages[1])
        else:
            stages = ((*out.links, *into.links),)
        return Route(stages, "SYS", self.node.nic.transport, out.staged or into.staged, out.copies or into.copies)

    # --- paths ---------------------------------------------------------------------------------------------------

    def _gpu_route(self, src: int, dst: int) -> Route:
        if src == dst:
            raise ValueError(f"no route leads from GPU {src} to itself")
        source, target = f"gpu{src}", f"gpu{dst}"
        if self.switch_links:
            return Route(((f"{source}>nvswitch", f"nvswitch>{target}"),), "NVS", self.node.over_nvlink)
        if self.nvlinks(src, dst):
            return Route(((f"{source}>{target}",),), "NVL", self.node.over_nvlink)
        if self.node.topology.isolated == "nic":
            return self.loopback(src, dst)
        path_class = self.pcie_class(source, target)
        if self._is_peer(path_class) and not self.isolated:
            relayed = path_class == "PHB" and self.node.host.cpu.vendor == "intel"
            return Route((self._pcie_path(source, target),), path_class, self.node.peer_transport, relayed=relayed)
        home = self.socket_of(target)
        stages = (self._to_memory(source, home) + self._copies(source, home), self._from_memory(target, home))
        return Route(stages, path_class, self.node.host_transport, staged=True)

    def _is_peer(self, path_class: PathClass) -> bool:
        farthest = self.node.topology.peer_to_peer
        return self.node.gpu.pcie_peers and farthest != "none" and _is_within(path_class, farthest)

    def _gpudirect(self, one: str, other: str) -> tuple[PathClass, bool]:
        path_class, nic = self.pcie_class(one, other), self.node.nic
        return path_class, nic.gpudirect and _is_within(path_class, nic.gpudirect_level)

    def _pcie_climb(self, one: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the switches and sockets above each of two devices, up to the first that they share (or their sockets)."""
        up, down = self.ancestors(one), self.ancestors(other)
        shared = next((name for name in up if name in down), None)
        if shared is None:
            return up, down
        return up[: up.index(shared) + 1], down[: down.index(shared) + 1]

    def _pcie_path(self, src: str, dst: str) -> tuple[str, ...]:
        up, down = self._pcie_climb(src, dst)
        return (*_climb(src, up), *self._between(up[-1], down[-1]), *_descend(dst, down))

    def _to_memory(self, device: str, socket: str) -> tuple[str, ...]:
        chain = self.ancestors(device)
        return (*_climb(device, chain), *self._between(chain[-1], socket), _memory(socket))

    def _from_memory(self, device: str, socket: str) -> tuple[str, ...]:
        chain = self.ancestors(device)
        return (_memory(socket), *self._between(socket, chain[-1]), *_descend(device, chain))

    def _between(self, top: str, other: str) -> tuple[str, ...]:
        """Return the host bridges and the socket link between the tops of two chains."""
        if top == other:
            return self._bridge(top)
        return (*self._bridge(top), f"{top}>{other}", *self._bridge(other))

    def _copies(self, device: str, socket: str) -> tuple[str, ...]:
        """Return the links that limit copies from *device* to the memory of *socket*, beyond the links on its path."""
        name = f"copies{self.socket_of(device).removeprefix('socket')}to{socket.removeprefix('socket')}"
        return tuple(link for link in ("copies", name) if link in self.links)

    def _bridge(self, top: str) -> tuple[str, ...]:
        name = top.replace("socket", "bridge")
        return (name,) if top.startswith("socket") and name in self.links else ()


def node_graph(node: Node) -> NodeGraph:
    """Return the link graph of *node*, shared by all nodes with equal wiring. Raise TopologyError if a device is not attached.

    The GPU's rates, CPU speed, memory and storage are not part of the wiring: `NodeGraph.node` may differ from *node* in these.
    """
    gpu = node.gpu
    blocks = ((node, _NOT_WIRED), (node.host, _NOT_WIRED_OF_HOST), (node.host.cpu, _NOT_WIRED_OF_CPU))
    wiring = [content(value) for block, excluded in blocks for name, value in block.__dict__.items() if name not in excluded]
    return _cached_graph(IdentityKey((gpu.compute_capability, gpu.pcie_peers, content(gpu.bridge), *wiring), node))


_NOT_WIRED = frozenset({"gpu", "host", "storage", "page_cache"})
_NOT_WIRED_OF_HOST = frozenset({"cpu", "memory"})
_NOT_WIRED_OF_CPU = frozenset({"speed", "launch_speed", "smt_gain", "assumed"})


@lru_cache(maxsize=64)
def _cached_graph(same: IdentityKey) -> NodeGraph:
    (node,) = same.held
    parents = parents_of(node)
    return NodeGraph(node, {link.name: link for link in links_of(node, parents)}, parents)


def _is_within(path_class: PathClass, level: str) -> bool:
    """Return whether a path is at most as far as NCCL's *level* (``pxb``)."""
    return PATH_CLASSES.index(path_class) <= [name.lower() for name in PATH_CLASSES].index(level)


def _climb(device: str, chain: tuple[str, ...]) -> list[str]:
    return [f"{below}>{above}" for below, above in zip((device, *chain), chain, strict=False)]


def _descend(device: str, chain: tuple[str, ...]) -> list[str]:
    return [f"{above}>{below}" for below, above in zip((device, *chain), chain, strict=False)][::-1]


def _memory(socket: str) -> str:
    return socket.replace("socket", "dram")
