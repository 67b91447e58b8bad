"""Over how many channels, and with which protocol, does NCCL send from one rank to another?

NCCL opens 2 channels to a peer per NVLink of the path, or 2 over PCIe or a NIC (1 if the channels of all ranks would be too many). The
minimum over all pairs applies to every pair (NVIDIA/nccl `src/graph/paths.cc`). The number of channels of a message grows with its size,
and inside a node it uses LL up to 16 KiB per channel (`src/enqueue.cc`). A channel serves 8 partners at a time (`src/include/device.h`).
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
"""Operations without an NCCL algorithm, and their algorithm names here: frameworks and NCCL itself build them from sends."""


@lru_cache(maxsize=256)
def peer_channels(layout: JobLayout) -> int:
    """Return the number of channels that NCCL opens to a peer, a power of two."""
    if layout.nodes > 1:
        few = nccl.P2P_CHANNELS * layout.ranks <= nccl.P2P_SENDS_OF_A_CHANNEL * send_pool(layout)
        return min(nccl.P2P_CHANNELS if few else 1, send_pool(layout))
    return min(_power_of_two(nccl.P2P_CHANNELS * _links(layout)), send_pool(layout))


@lru_cache(maxsize=256)
def send_pool(layout: JobLayout) -> int:
    """Return the number of channels available for sends: all ring channels that NCCL connects, rounded up to a power of two."""
    connected = TunerCase("all_reduce", 1.0, machine_of(layout, NCCL_2_30.name), NCCL_2_30).all_channels
    return min(_power_of_two(connected), NCCL_2_30.max_channels)


def send_channels(layout: JobLayout, nbytes: float) -> int:
    """Return the number of channels of a message of *nbytes*."""
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

    Connections between nodes that only send and receive share a buffer, which supports only Simple (NVIDIA/nccl src/transport/net.cc).
    """
    if layout.nodes > 1:
        return "Simple"
    few = nbytes <= nccl.P2P_LL_BYTES * send_channels(layout, nbytes)
    return "LL" if constants_of(version).sends_ll and few else "Simple"


def partners_at_once(layout: JobLayout) -> int:
    """Return the number of partners to which a rank sends, and from which it receives, at the same time."""
    return nccl.P2P_PARTNERS_OF_A_CHANNEL * max(1, send_pool(layout) // peer_channels(layout))


def _links(layout: JobLayout) -> int:
    """Return the minimum number of NVLinks between any two GPUs of the node, or 1 if a pair has none."""
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
