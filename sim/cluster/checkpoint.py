"""How long does a checkpoint take to write and to load? Copies over the links of a node and flows into a store, simulated.

All nodes are alike and are simulated as one, with the share of the store that all take together. Writers copy their part from the GPU
to host memory (training waits), and write it from there to a store that all share, through the NIC nearest to them, or to the node's own
disk: while training waits (synchronous), or beside its traffic (asynchronous), which keeps its part of each NIC. Copies in the memory of
peers cross the NICs of both: each node sends its parts to another one, and holds those of a third.

Limits: serialization on the processor is free; every node reads all it needs from the store, whatever others have read; a store has no
burst above what it sustains; the network between nodes and store does not bind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sim.cluster.clock import Clock
from sim.cluster.network import Activity, Network, together
from sim.cluster.storage import most_bandwidth
from sim.cluster.topology import node_graph
from sim.events import EventLog
from sim.spec.hardware import Node
from sim.spec.stores import Store

_STORE, _DISK = "store", "disk"


class Checkpoint(NamedTuple):
    """What one checkpoint takes: times in seconds, each by itself."""

    copied: float
    """From device to host."""
    written: float
    """From host to the store, the start of the store included."""
    loaded: float
    """From the store to all devices."""
    copied_back: float
    """From the node's own host memory to all devices."""
    traffic_share: float
    """Share of its traffic that training keeps while a checkpoint is written beside it."""
    to_peer: float
    """From host memory to that of a peer, beside training."""
    from_peer: float
    """From the host memory of a peer to all devices of the node that takes another's place."""


class NodeReads(NamedTuple):
    """What a node reads before its GPUs go on: *nbytes* of a checkpoint, in equal pieces by *readers* of them; *of_gpu* bytes each has."""

    nbytes: float
    readers: int
    of_gpu: float


class Parts(NamedTuple):
    """A checkpoint in *writers* parts of *nbytes* each, on *nodes* nodes with *gpus* GPUs each; *traffic* (bytes/s) leaves each node."""

    nbytes: float
    writers: int
    nodes: int
    gpus: int
    traffic: float = 0.0
    most: int = 0
    """Writers on the node that has most; 0: they are spread evenly."""
    own_reads: NodeReads | None = None
    """None: the node's own parts, each by the GPU that wrote it."""

    @property
    def total(self) -> float:
        """Return the bytes of all parts."""
        return self.nbytes * self.writers

    @property
    def per_node(self) -> int:
        """Return the writers on the node that has most."""
        return self.most or min(self.gpus, math.ceil(self.writers / self.nodes))

    @property
    def writing_nodes(self) -> float:
        """Return the nodes that write, counting those with fewer writers in part."""
        return self.writers / self.per_node

    @property
    def reads(self) -> NodeReads:
        """Return what each node reads before its GPUs go on."""
        return self.own_reads or NodeReads(self.nbytes * self.per_node, self.per_node, self.nbytes)


def checkpoint(node: Node, parts: Parts, store: Store | None) -> Checkpoint:
    """Return what a checkpoint in *parts* takes to *store*, or to each writer's own disk. Raise ValueError for a node without a disk."""
    writers = range(parts.per_node)
    copied = _timed(node, {f"gpu{gpu}": node_graph(node).device_to_host(gpu).links for gpu in writers}, parts.nbytes, {})[0]
    caps = {} if store is None or store.per_writer is None else {"cap": store.per_writer}
    out = {f"gpu{gpu}": (*_way_out(node, gpu, store), _STORE if store else _DISK) for gpu in writers}
    written, kept = _timed(node, out, parts.nbytes, caps, _shared(node, parts, store, parts.writing_nodes), parts.traffic)
    reads = parts.reads
    read = {f"gpu{gpu}": (*_way_in(node, gpu, store), _STORE if store else _DISK) for gpu in range(reads.readers)}
    arrived = _timed(node, read, reads.nbytes / reads.readers, caps, _shared(node, parts, store, float(parts.nodes)))[0]
    back = {f"gpu{gpu}": node_graph(node).host_to_device(gpu).links for gpu in range(parts.gpus)}
    copied_back = _timed(node, back, reads.of_gpu, {})[0]
    start = store.start if store else 0.0
    to_peer = _peers(node, parts, parts.per_node, parts.nbytes, parts.traffic)
    from_peer = _peers(node, parts, reads.readers, reads.nbytes / reads.readers) + copied_back
    return Checkpoint(copied, start + written, start + arrived + copied_back, copied_back, kept, to_peer, from_peer)


def _peers(node: Node, parts: Parts, pieces: int, nbytes: float, traffic: float = 0.0) -> float:
    """Return the seconds until each node has the *pieces* of another, of *nbytes* each, beside the *traffic* (bytes/s) of training.

    All nodes send and receive alike, so that one stands for both ends. A node without others has no peer.
    """
    if parts.nodes == 1:
        return 0.0
    graph = node_graph(node)
    nics = {gpu: graph.nearest_nic(gpu) for gpu in range(pieces)}
    routes = {f"gpu{gpu}": (*graph.memory_to_network(nic), *graph.memory_from_network(nic)) for gpu, nic in nics.items()}
    return _timed(node, routes, nbytes, {}, traffic=traffic)[0]


def memory_of_peers(node: Node, nodes: int) -> Store:
    """Return the memory of the other of *nodes* as a store that takes what the NICs carry."""
    bandwidth = nodes * node.nic.count * node.nic.bandwidth
    return Store.model_construct(name="memory of peers", bandwidth=bandwidth, source="NICs of the nodes")  # fields are in SI already


class Outflow(NamedTuple):
    """A part of a checkpoint on its way from host memory to a store: the links of its node that it crosses, and bytes/s at most."""

    links: tuple[str, ...]
    cap: float


def outflows(node: Node, parts: Parts, store: Store | None) -> list[Outflow]:
    """Return how the parts of one node leave it, each with its share of the *store*; nothing leaves for the node's own disk."""
    if store is None or parts.nbytes <= 0:
        return []
    cap = min(store.per_writer or math.inf, store.bandwidth / parts.writers)
    return [Outflow(_way_out(node, gpu, store), cap) for gpu in range(parts.per_node)]


class CheckpointWrites:
    """Parts of checkpoints that are written all along, beside whatever else a network carries."""

    NAME = "checkpoint"
    _FOR_EVER = 1e18
    """Bytes that no flow gets through."""

    def __init__(self, network: Network, flows: Sequence[Outflow], live: Callable[[str], str]) -> None:
        """Start *flows* on *network*, where *live* names the link that stands for one of a node and others like it."""
        most: dict[tuple[str, ...], Counter[Outflow]] = {}
        for flow in flows:
            most.setdefault(tuple(map(live, flow.links)), Counter())[flow] += 1
        for links, alike in most.items():  # a live link is one of those that it stands for, the one that carries most
            flow, count = max(alike.items(), key=lambda item: item[1])
            for _ in range(count):
                network.start(self.NAME, self._FOR_EVER, {link: float(links.count(link)) for link in links}, cap=flow.cap)


def _way_out(node: Node, gpu: int, store: Store | None) -> tuple[str, ...]:
    graph = node_graph(node)
    return graph.memory_to_network(graph.nearest_nic(gpu)) if store is not None else ()


def _way_in(node: Node, gpu: int, store: Store | None) -> tuple[str, ...]:
    graph = node_graph(node)
    return graph.memory_from_network(graph.nearest_nic(gpu)) if store is not None else ()


def _shared(node: Node, parts: Parts, store: Store | None, nodes: float) -> dict[str, tuple[float, float]]:
    """Return the capacity of the store or the disk, and the load of a byte of one node on it."""
    if store is not None:
        return {_STORE: (store.bandwidth, max(nodes, 1.0))}
    if node.storage is None:
        raise ValueError("the node has no disk")
    return {_DISK: (most_bandwidth(node.storage), 1.0)}


def _timed(
    node: Node,
    routes: Mapping[str, tuple[str, ...]],
    nbytes: float,
    caps: Mapping[str, float],
    shared: Mapping[str, tuple[float, float]] | None = None,
    traffic: float = 0.0,
) -> tuple[float, float]:
    """Return the seconds until *nbytes* have gone over each of *routes*, and the share of its *traffic* that training keeps beside."""
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
    beside = _training(network, node, traffic)
    copies = [
        network.start(name, nbytes, {link: loads.get(link, 0.0) or float(links.count(link)) for link in links}, **caps)
        for name, links in routes.items()
    ]
    clock.run_to(together(clock, copies))
    if not beside:
        return clock.now, 1.0
    moved = sum(volume - flow.left(clock.now) for flow, volume in beside)
    return clock.now, min(1.0, moved / (traffic * clock.now))


def _training(network: Network, node: Node, traffic: float) -> list[tuple[Activity, float]]:
    """Start the *traffic* (bytes/s) of training, spread over the NICs of *node*; return the flows and their volumes."""
    graph, count = node_graph(node), node.nic.count
    volume = 1e18
    return [
        (network.start(f"training{nic}", volume, dict.fromkeys(graph.memory_to_network(nic), 1.0), cap=traffic / count), volume)
        for nic in range(count if traffic > 0 else 0)
    ]
