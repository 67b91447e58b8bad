"""What does each rank send when NCCL only sends and receives? Send/recv, gather and scatter; and how NCCL cuts a send.

Send/recv: every rank sends S bytes to the next and receives as many, as nccl-tests measures it. Gather: every rank sends its block of
S/n to the root; scatter: the root sends each its block. At most k partners are in flight at a time, and all share the root's port:

    T = S/B + l        send/recv;        T = (n - 1) S/(nB) + ceil((n - 1) / k) l        gather, scatter

NCCL gives a peer 2 channels per NVLink of the path, 2 over PCIe or a NIC (1 where many ranks would crowd the channels), the fewest of
all pairs for everyone (NVIDIA/nccl `src/graph/paths.cc`); a message takes as many as give each a part of its chunk, and inside a node
LL up to 16 KiB a channel (`src/enqueue.cc`). A channel serves 8 partners at a time (`src/include/device.h`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from sim.training.collectives import nccl_constants as nccl
from sim.training.collectives.layout import Layout
from sim.training.collectives.machine import machine_of
from sim.training.collectives.nccl_constants import NCCL_2_30, constants_of
from sim.training.collectives.nccl_cost import Case
from sim.training.collectives.protocols import kind_of
from sim.training.collectives.schedule import Transfer, check_collective, check_timed

SENDS: Mapping[str, str] = {"all_to_all": "Pairwise", "send_recv": "SendRecv", "gather": "Gather", "scatter": "Scatter"}
"""The operations that NCCL has no algorithm for, and what they are called here: frameworks and NCCL itself make them of sends."""


def send_recv(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the sends of *nbytes* from each of *ranks* to the next, the last to the first; chunk p is that of position p."""
    n = check_collective(ranks, nbytes)
    return [Transfer(ranks[place], ranks[(place + 1) % n], nbytes, (place,)) for place in range(n)] if n > 1 else []


def send_recv_time(n: int, nbytes: float, bandwidth: float, latency: float) -> float:
    """Return the seconds of it; one full-duplex port of *bandwidth* (bytes/s) per rank, hops of *latency* (s)."""
    check_timed(n, nbytes, bandwidth, latency)
    return nbytes / bandwidth + latency if n > 1 else 0.0


def gather(ranks: Sequence[int], nbytes: float, at_once: int = 1) -> list[Transfer]:
    """Return the sends of a block of *nbytes* / n from every rank to the first; chunk p is the block of position p."""
    n = check_collective(ranks, nbytes)
    return [Transfer(ranks[place], ranks[0], nbytes / n, (place,), _round_before(place, at_once)) for place in range(1, n)]


def scatter(ranks: Sequence[int], nbytes: float, at_once: int = 1) -> list[Transfer]:
    """Return the sends of a block of *nbytes* / n from the first rank to every other; chunk p is the block for position p."""
    return [transfer._replace(src=transfer.dst, dst=transfer.src) for transfer in gather(ranks, nbytes, at_once)]


def root_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that a gather brings to its root, or a scatter takes from it, with *nbytes* in all."""
    return (n - 1) / n * nbytes


def gather_time(n: int, nbytes: float, bandwidth: float, latency: float, at_once: int = 1) -> float:
    """Return the seconds of a gather or a scatter of *nbytes*; ports of *bandwidth* (bytes/s), hops of *latency* (s)."""
    check_timed(n, nbytes, bandwidth, latency)
    return root_wire_bytes(n, nbytes) / bandwidth + math.ceil((n - 1) / at_once) * latency


def _round_before(place: int, at_once: int) -> tuple[int, ...]:
    """Return the numbers of the transfers of the round before that of *place*, of which there are *at_once*."""
    first = place - 1 - (place - 1) % at_once
    return tuple(range(max(0, first - at_once), first))


# --- NCCL's rules ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def peer_channels(layout: Layout) -> int:
    """Return the channels that NCCL opens to a peer, a power of two."""
    if layout.nodes > 1:
        few = nccl.P2P_CHANNELS * layout.ranks <= nccl.P2P_SENDS_OF_A_CHANNEL * send_pool(layout)
        return min(nccl.P2P_CHANNELS if few else 1, send_pool(layout))
    return min(_power_of_two(nccl.P2P_CHANNELS * _links(layout)), send_pool(layout))


@lru_cache(maxsize=256)
def send_pool(layout: Layout) -> int:
    """Return the channels that sends are spread over: all that NCCL's search connects for rings, up to a power of two."""
    connected = Case("all_reduce", 1.0, machine_of(layout, NCCL_2_30.name), NCCL_2_30).all_channels
    return min(_power_of_two(connected), NCCL_2_30.max_channels)


def send_channels(layout: Layout, nbytes: float) -> int:
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


def send_protocol(layout: Layout, version: str, nbytes: float) -> str:
    """Return the protocol of a message of *nbytes* under NCCL *version*.

    Connections between nodes that only send and receive share a buffer, which is Simple's (NVIDIA/nccl src/transport/net.cc).
    """
    if layout.nodes > 1:
        return "Simple"
    few = nbytes <= nccl.P2P_LL_BYTES * send_channels(layout, nbytes)
    return "LL" if constants_of(version).sends_ll and few else "Simple"


def partners_at_once(layout: Layout) -> int:
    """Return how many partners a rank sends to, and receives from, side by side."""
    return nccl.P2P_PARTNERS_OF_A_CHANNEL * max(1, send_pool(layout) // peer_channels(layout))


def _links(layout: Layout) -> int:
    """Return the NVLinks between the farthest GPUs of one node, 1 where any two meet otherwise."""
    (part,) = layout.parts
    graph = part.slot.graph
    if graph.switch_links:
        return graph.switch_links
    pairs = [graph.nvlinks(one, other) for one in part.gpus for other in part.gpus if one != other]
    return min(pairs, default=1) or 1


def _chunk(layout: Layout) -> float:
    if layout.nodes > 1:
        return nccl.P2P_CHUNK["network"]
    hops = [hop for part in layout.parts for channel in part.channels.channels for hop in channel.hops]
    return min((nccl.P2P_CHUNK[kind_of(hop.route, hop.tier == "network")] for hop in hops), default=nccl.P2P_CHUNK["pcie"])


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
