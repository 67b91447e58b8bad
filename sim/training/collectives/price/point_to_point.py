"""Over how many channels, and with which protocol, does NCCL send from one rank to another?

NCCL gives a peer 2 channels per NVLink of the path, 2 over PCIe or a NIC (1 where many ranks would crowd the channels), the fewest of
all pairs for everyone (NVIDIA/nccl `src/graph/paths.cc`); a message takes as many as give each a part of its chunk, and inside a node
LL up to 16 KiB a channel (`src/enqueue.cc`). A channel serves 8 partners at a time (`src/include/device.h`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.nccl.constants import NCCL_2_30, constants_of
from sim.training.collectives.nccl.cost import TunerCase
from sim.training.collectives.nccl.protocols import kind_of
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.machine import machine_of

SENDS: Mapping[str, str] = {"all_to_all": "Pairwise", "send_recv": "SendRecv", "gather": "Gather", "scatter": "Scatter"}
"""The operations that NCCL has no algorithm for, and what they are called here: frameworks and NCCL itself make them of sends."""


@lru_cache(maxsize=256)
def peer_channels(layout: JobLayout) -> int:
    """Return the channels that NCCL opens to a peer, a power of two."""
    if layout.nodes > 1:
        few = nccl.P2P_CHANNELS * layout.ranks <= nccl.P2P_SENDS_OF_A_CHANNEL * send_pool(layout)
        return min(nccl.P2P_CHANNELS if few else 1, send_pool(layout))
    return min(_power_of_two(nccl.P2P_CHANNELS * _links(layout)), send_pool(layout))


@lru_cache(maxsize=256)
def send_pool(layout: JobLayout) -> int:
    """Return the channels that sends are spread over: all that NCCL's search connects for rings, up to a power of two."""
    connected = TunerCase("all_reduce", 1.0, machine_of(layout, NCCL_2_30.name), NCCL_2_30).all_channels
    return min(_power_of_two(connected), NCCL_2_30.max_channels)


def send_channels(layout: JobLayout, nbytes: float) -> int:
    """Return the channels that a message of *nbytes* takes."""
    most, several = peer_channels(layout), min(layout.nodes, 2)
    fewest = most
    while fewest > 1 and fewest * layout.ranks > send_pool(layout):
        fewest //= 2
    chunk = _chunk(layout)
    least, largest = nccl.P2P_LEAST_PART[several] * chunk, nccl.P2P_MOST_PART[several] * chunk
    count = max(1, min(fewest, math.ceil(nbytes / least)))
    while nbytes / count > largest and count <= most // 2:
        count *= 2
    return count


def send_protocol(layout: JobLayout, version: str, nbytes: float) -> str:
    """Return the protocol of a message of *nbytes* under NCCL *version*.

    Connections between nodes that only send and receive share a buffer, which is Simple's (NVIDIA/nccl src/transport/net.cc).
    """
    if layout.nodes > 1:
        return "Simple"
    few = nbytes <= nccl.P2P_LL_BYTES * send_channels(layout, nbytes)
    return "LL" if constants_of(version).sends_ll and few else "Simple"


def partners_at_once(layout: JobLayout) -> int:
    """Return how many partners a rank sends to, and receives from, side by side."""
    return nccl.P2P_PARTNERS_OF_A_CHANNEL * max(1, send_pool(layout) // peer_channels(layout))


def _links(layout: JobLayout) -> int:
    """Return the NVLinks between the farthest GPUs of one node, 1 where any two meet otherwise."""
    (part,) = layout.parts
    graph = part.slot.graph
    if graph.switch_links:
        return graph.switch_links
    pairs = [graph.nvlinks(one, other) for one in part.gpus for other in part.gpus if one != other]
    return min(pairs, default=1) or 1


def _chunk(layout: JobLayout) -> float:
    if layout.nodes > 1:
        return nccl.P2P_CHUNK["network"]
    hops = [hop for part in layout.parts for channel in part.channels.channels for hop in channel.hops]
    return min((nccl.P2P_CHUNK[kind_of(hop.route, hop.tier == "network")] for hop in hops), default=nccl.P2P_CHUNK["pcie"])


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
