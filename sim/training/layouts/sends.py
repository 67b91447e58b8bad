"""What does a message from a rank of one stage to its peer in another cost, over NCCL or Gloo, without contention?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from sim.cluster.build import Slot
from sim.cluster.fabric import NodeStreams
from sim.events import Cause
from sim.parallel.mesh import Place
from sim.spec.hardware import Fabric, Transport
from sim.training.collectives.nccl.constants import P2P_CHANNELS
from sim.training.collectives.play.gloo import NIC_LINKS
from sim.training.collectives.price.collective_plan import CORES, CORES_COPY
from sim.training.collectives.price.message import SIMPLE, edge_between, message_price
from sim.training.collectives.price.traffic import FABRIC, Edge
from sim.training.layouts.group_price import GroupPrice, LinkShare, Outline

_BLOCKS: Final = P2P_CHANNELS
"""Thread blocks of one message between two stages."""


class Sends(NamedTuple):
    """Messages between GPUs of nodes equal to *slot*."""

    slot: Slot
    fabric: Fabric
    sockets: Transport | None
    """The transport of sockets if messages go over Gloo; None for NCCL."""

    def outline(self, ends: Sequence[tuple[Place, Place]], nbytes: float) -> Outline:
        """Return the price of sends between *ends*; link names begin with the end of the message to which they belong."""
        edges = [self._edge(*each) for each in ends]
        if self.sockets:
            return self._socket_outline(self.sockets, edges, nbytes)
        load: dict[str, float] = defaultdict(float)
        for edge in edges:
            for (slot, link), amount in edge.load(nbytes, SIMPLE).items():
                if slot != FABRIC:
                    load[f"{slot} {link}"] += amount
        alone = message_price(edges[0], nbytes)
        seconds = alone.launch + nbytes / alone.rate
        limit = alone.cause, alone.limit
        price = GroupPrice(alone.launch, nbytes, alone.rate, {}, seconds, 0.0, *limit, "Send", _BLOCKS, nbytes / seconds)
        return Outline(price, tuple(LinkShare(link, 0.0, limit, amount) for link, amount in load.items()))

    def node_streams(self, source: Place, target: Place, nbytes: float) -> NodeStreams:
        """Return the stream of a message from *source* to *target* on links between nodes."""
        edge = self._edge(source, target)
        if not self.sockets:
            return edge.node_streams(nbytes, SIMPLE)
        return edge.node_streams(math.inf, SIMPLE)._replace(nic_load=self._on_nic(self.sockets), wire_load=1.0)

    def _socket_outline(self, sockets: Transport, edges: Sequence[Edge], nbytes: float) -> Outline:
        """Return the price of sends over Gloo: a notice from the receiver, then the data (gloo/transport/tcp/pair.cc)."""
        between = edges[0].fabric is not None
        one_way = sockets.hop_latency / 2 + (self.fabric.latency if between else 0.0)
        tier = Cause.NETWORK if between else Cause.INTERCONNECT
        load: dict[str, float] = defaultdict(float)
        rates = [(sockets.flow_cap * sockets.flows, f"the flow limit of {sockets.name}")] if sockets.flow_cap else []
        rates += [(1.0 / sockets.cpu_time_per_byte, CORES_COPY)] if sockets.cpu_time_per_byte else []
        for part, hop in (each for edge in edges for each in edge.hops):
            end = part.slot.name
            load[f"{end} {CORES}"] += sockets.cpu_time_per_byte
            for link in hop.links:
                weight = self._on_nic(sockets) if link in NIC_LINKS else 1.0
                load[f"{end} {link}"] += weight
                described = part.slot.graph.links[link]
                rates.append((described.capacity / weight, described.description))
        rate, limit = min(rates)
        moved = max(1.0, nbytes - self.slot.node.nic.burst * between)
        seconds = one_way + moved / rate
        price = GroupPrice(
            sockets.launch, moved, moved / seconds, {}, sockets.launch + seconds, 0.0, tier, limit, "Gloo send", notice=one_way
        )
        return Outline(price, tuple(LinkShare(link, 0.0, (tier, limit), amount) for link, amount in load.items() if amount))

    def _on_nic(self, sockets: Transport) -> float:
        """Return the load on the NIC of a byte over a socket, from the efficiency of the NIC's own transport relative to sockets."""
        return max(1.0, self.slot.node.nic.transport.total_efficiency / sockets.total_efficiency)

    def _edge(self, source: Place, target: Place) -> Edge:
        return edge_between((self.slot, *source), (self.slot, *target), self.fabric)
