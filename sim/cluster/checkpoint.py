"""How long does a checkpoint take to write and to load? It is simulated as copies over a node's links and flows into a store.

All nodes are equal, so one node is simulated, with the load of all nodes on the store. Each writer copies its part from the GPU to host
memory, while training waits. From there it writes the part to the shared store, through its nearest NIC, or to the node's own disk. This
write blocks training (synchronous) or shares each NIC with the traffic of training (asynchronous). Copies to the memory of peers cross
the NICs of both nodes: each node sends its parts to a second node, and stores the parts of a third.

Either every node reads all it needs from the store, or all nodes together read each part once and forward it to those that need it
(ByteCheckpoint, arXiv 2407.20143: no redundant loading; Megatron Core: ``ckpt_fully_parallel_load``).

Limits: serialization on the CPU takes no time; a store does not burst above its sustained bandwidth; the network between nodes and store
is never the bottleneck.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sim.cluster.clock import Clock
from sim.cluster.network import Activity, Network, all_done
from sim.cluster.storage import most_bandwidth
from sim.cluster.topology import node_graph
from sim.events import EventLog
from sim.spec.hardware import Node
from sim.spec.stores import Store

_STORE, _DISK = "store", "disk"


class CheckpointTimes(NamedTuple):
    """Times of one checkpoint in seconds, each in isolation."""

    copy_time: float
    """From device to host."""
    write_time: float
    """From host to the store, including the start-up time of the store."""
    load_time: float
    """From the store to all devices."""
    copy_back_time: float
    """From the node's own host memory to all devices."""
    traffic_share: float
    """Share of its traffic that training achieves while a checkpoint is written at the same time."""
    to_peer_time: float
    """From host memory to the host memory of a peer, during training."""
    from_peer_time: float
    """From the host memory of a peer to all devices of a node that replaces another."""


class NodeReads(NamedTuple):
    """What a node needs before its GPUs resume: *nbytes*, in equal pieces by *readers* GPUs; each GPU ends up with *bytes_per_gpu*."""

    nbytes: float
    readers: int
    bytes_per_gpu: float
    shared_bytes: float | None = None
    """Bytes of all nodes, each part once, if the nodes read them together and forward them; None: each node reads all it needs."""

    def from_store(self, nodes: int) -> float:
        """Return the bytes that one of *nodes* nodes reads from a store."""
        return self.nbytes if self.shared_bytes is None else min(self.nbytes, self.shared_bytes / nodes)


class CheckpointParts(NamedTuple):
    """A checkpoint in *writers* parts of *nbytes* each, on *nodes* nodes of *gpus* GPUs; training sends *traffic* (bytes/s) per node."""

    nbytes: float
    writers: int
    nodes: int
    gpus: int
    traffic: float = 0.0
    most_per_node: int = 0
    """Number of writers on the node that has the most; 0: they are spread evenly."""
    own_reads: NodeReads | None = None
    """What each node reads; None: its own parts, each by the GPU that wrote it."""

    @property
    def total(self) -> float:
        """Return the bytes of all parts."""
        return self.nbytes * self.writers

    @property
    def per_node(self) -> int:
        """Return the number of writers on the node that has the most."""
        return self.most_per_node or min(self.gpus, math.ceil(self.writers / self.nodes))

    @property
    def writing_nodes(self) -> float:
        """Return the number of writing nodes, with nodes that have fewer writers counted as fractions."""
        return self.writers / self.per_node

    @property
    def reads(self) -> NodeReads:
        """Return what each node reads before its GPUs resume."""
        return self.own_reads or NodeReads(self.nbytes * self.per_node, self.per_node, self.nbytes)


def checkpoint_times(node: Node, parts: CheckpointParts, store: Store | None) -> CheckpointTimes:
    """Return the times of a checkpoint in *parts* to *store*, or (None) to each node's own disk. Raise ValueError if it has no disk."""
    writers = range(parts.per_node)
    copied = _transfer_time(node, {f"gpu{gpu}": node_graph(node).device_to_host(gpu).links for gpu in writers}, parts.nbytes, {})[0]
    caps = {} if store is None or store.per_writer is None else {"cap": store.per_writer}
    out = {f"gpu{gpu}": (*_links_out(node, gpu, store), _STORE if store else _DISK) for gpu in writers}
    written, share = _transfer_time(node, out, parts.nbytes, caps, _shared_resource(node, store, parts.writing_nodes), parts.traffic)
    reads = parts.reads
    read = {f"gpu{gpu}": (*_links_in(node, gpu, store), _STORE if store else _DISK) for gpu in range(reads.readers)}
    nbytes = reads.from_store(parts.nodes) if store else reads.nbytes
    arrived = _transfer_time(node, read, nbytes / reads.readers, caps, _shared_resource(node, store, float(parts.nodes)))[0]
    back = {f"gpu{gpu}": node_graph(node).host_to_device(gpu).links for gpu in range(parts.gpus)}
    copied_back = _transfer_time(node, back, reads.bytes_per_gpu, {})[0]
    start = store.start if store else 0.0
    to_peer = peer_time(node, parts)
    forwarded = _peers(node, parts, reads.readers, reads.nbytes / reads.readers)
    arrived += forwarded if nbytes < reads.nbytes else 0.0
    return CheckpointTimes(copied, start + written, start + arrived + copied_back, copied_back, share, to_peer, forwarded + copied_back)


def peer_time(node: Node, parts: CheckpointParts, limit: float | None = None) -> float:
    """Return the time (s) from host memory to the host memory of a peer, if each writer sends at most *limit* bytes/s (None: no limit)."""
    return _peers(node, parts, parts.per_node, parts.nbytes, parts.traffic, limit)


def _peers(node: Node, parts: CheckpointParts, pieces: int, nbytes: float, traffic: float = 0.0, limit: float | None = None) -> float:
    """Return the time (s) for each node to receive *pieces* of *nbytes* each from another, during training *traffic* (bytes/s).

    All nodes send and receive equally, so one node represents both ends. A single node has no peer; its time is 0. *limit*: the maximum
    bytes/s of a piece.
    """
    if parts.nodes == 1:
        return 0.0
    graph = node_graph(node)
    nics = {gpu: graph.nearest_nic(gpu) for gpu in range(pieces)}
    routes = {f"gpu{gpu}": (*graph.memory_to_network(nic), *graph.memory_from_network(nic)) for gpu, nic in nics.items()}
    return _transfer_time(node, routes, nbytes, {} if limit is None else {"cap": limit}, traffic=traffic)[0]


def memory_of_peers(node: Node, nodes: int) -> Store:
    """Return the host memory of peers as a store with the combined NIC bandwidth of all *nodes*."""
    bandwidth = nodes * node.nic.count * node.nic.bandwidth
    return Store.model_construct(name="memory of peers", bandwidth=bandwidth, source="NICs of the nodes")  # fields are in SI already


class Outflow(NamedTuple):
    """A part of a checkpoint on its way from host memory to a store: the links of its node that it crosses, and its maximum bytes/s."""

    links: tuple[str, ...]
    cap: float


def outflows(node: Node, parts: CheckpointParts, store: Store | None) -> list[Outflow]:
    """Return the flows of one node's parts to *store*, each limited to its share of the store; none if there is no store."""
    if store is None or parts.nbytes <= 0:
        return []
    cap = min(store.per_writer or math.inf, store.bandwidth / parts.writers)
    return [Outflow(_links_out(node, gpu, store), cap) for gpu in range(min(parts.per_node, node.gpu_count))]


class CheckpointWrites:
    """Parts of checkpoints that are written continuously, along with everything else on a network."""

    NAME = "checkpoint"
    _FOR_EVER = 1e18
    """Volume in bytes that no flow finishes."""

    def __init__(self, network: Network, flows: Sequence[Outflow], live: Callable[[str], str]) -> None:
        """Start *flows* on *network*; *live* maps a link of the node to the live link that represents it and equal ones."""
        counts_by_links: dict[tuple[str, ...], Counter[Outflow]] = {}
        for flow in flows:
            counts_by_links.setdefault(tuple(map(live, flow.links)), Counter())[flow] += 1
        for links, counts in counts_by_links.items():  # a live link represents several equal links; take the load of the busiest
            flow, count = max(counts.items(), key=lambda item: item[1])
            for _ in range(count):
                network.start(self.NAME, self._FOR_EVER, {link: float(links.count(link)) for link in links}, cap=flow.cap)


def _links_out(node: Node, gpu: int, store: Store | None) -> tuple[str, ...]:
    graph = node_graph(node)
    return graph.memory_to_network(graph.nearest_nic(gpu)) if store is not None else ()


def _links_in(node: Node, gpu: int, store: Store | None) -> tuple[str, ...]:
    graph = node_graph(node)
    return graph.memory_from_network(graph.nearest_nic(gpu)) if store is not None else ()


def _shared_resource(node: Node, store: Store | None, nodes: float) -> dict[str, tuple[float, float]]:
    """Return the capacity of the store or the disk, and the load on it per byte of the simulated node."""
    if store is not None:
        return {_STORE: (store.bandwidth, max(nodes, 1.0))}
    if node.storage is None:
        raise ValueError("the node has no disk")
    return {_DISK: (most_bandwidth(node.storage), 1.0)}


def _transfer_time(
    node: Node,
    routes: Mapping[str, tuple[str, ...]],
    nbytes: float,
    caps: Mapping[str, float],
    shared: Mapping[str, tuple[float, float]] | None = None,
    traffic: float = 0.0,
) -> tuple[float, float]:
    """Return the seconds to move *nbytes* over each of *routes*, and the share of its *traffic* that training achieves meanwhile."""
    if nbytes <= 0:
        return 0.0, 1.0
    clock = Clock()
    log = EventLog(lambda: clock.now)
    network = Network(clock, log)
    for name, link in node_graph(node).links.items():
        network.add_link(name, link.capacity)
    loads = {}
    for name, (capacity, load) in (shared or {}).items():
        network.add_link(name, capacity)
        loads[name] = load
    training = _training(network, node, traffic)
    copies = [
        network.start(name, nbytes, {link: loads.get(link, 0.0) or float(links.count(link)) for link in links}, **caps)
        for name, links in routes.items()
    ]
    clock.run_to(all_done(clock, copies))
    if not training:
        return clock.now, 1.0
    moved = sum(volume - flow.volume_left(clock.now) for flow, volume in training)
    return clock.now, min(1.0, moved / (traffic * clock.now))


def _training(network: Network, node: Node, traffic: float) -> list[tuple[Activity, float]]:
    """Start the *traffic* (bytes/s) of training, spread over the NICs of *node*; return the flows and their volumes."""
    graph, count = node_graph(node), node.nic.count
    volume = 1e18
    return [
        (network.start(f"training{nic}", volume, dict.fromkeys(graph.memory_to_network(nic), 1.0), cap=traffic / count), volume)
        for nic in range(count if traffic > 0 else 0)
    ]
