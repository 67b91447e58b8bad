"""What does each rank send in a hierarchical all-reduce? Shards within the node, and its own shard between nodes.

Three phases: reduce-scatter on a ring within each node of g ranks, all-reduce of each of the g shards on a ring of the N ranks that
have the same place in their nodes, all-gather within each node. Only 2(N-1)/N of S/g leaves a rank's node, over N - 1 hops a
lap rather than gN - 1 (Jia et al., arXiv:1807.11205; BlueConnect, Cho et al., MLSys 2019). A rank starts a phase when
its part of the one before is over:

    T = 2(g-1)(S/(g B_i) + l_i) + 2(N-1)(S/(gN B_o) + l_o)

B_i and B_o: bytes/s of a rank's port within the node and between nodes (where g ranks share a NIC, a g-th of it), l: hop latencies.
With one bandwidth the bytes take 2(n-1)/n S/B, a flat ring's time. Phases are not pipelined. Every node has the same number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.training.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from sim.training.collectives.schedule import Transfer, check_collective, check_timed
from sim.training.collectives.tree import nodes_of


def hierarchical_wire_bytes(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """Return the bytes that each rank sends within its node, and to other nodes."""
    return 2 * (per_node - 1) / per_node * nbytes, 2 * (nodes - 1) / nodes * nbytes / per_node


def hierarchical_all_reduce(ranks: Sequence[int], nbytes: float, per_node: int) -> list[Transfer]:
    """Return the all-reduce of *nbytes*; the *per_node* ranks of one node stand together in *ranks*.

    Chunk ``place * nodes + c`` is part c of the shard that the rank at *place* in its node takes to the other nodes.
    """
    count = nodes_of(check_collective(ranks, nbytes), per_node)
    nodes = [ranks[first : first + per_node] for first in range(0, len(ranks), per_node)]
    shards = [range(place * count, (place + 1) * count) for place in range(per_node)]
    transfers: list[Transfer] = []
    _add_phase(transfers, [(ring_reduce_scatter(node, nbytes), shards) for node in nodes])
    across = [[node[place] for node in nodes] for place in range(per_node)]
    parts = [[[chunk] for chunk in shard] for shard in shards]
    _add_phase(transfers, [(ring_all_reduce(ring, nbytes / per_node), part) for ring, part in zip(across, parts, strict=True)])
    _add_phase(transfers, [(ring_all_gather(node, nbytes), shards) for node in nodes])
    return transfers


def _add_phase(transfers: list[Transfer], rings: Iterable[tuple[Sequence[Transfer], Sequence[Sequence[int]]]]) -> None:
    """Append *rings* that run side by side, each with the chunks that its own stand for, after what their ranks did before."""
    over = _last_arrivals(transfers)
    for ring, meaning in rings:
        first = len(transfers)
        for transfer in ring:
            chunks = tuple(part for chunk in transfer.chunks for part in meaning[chunk])
            inside = tuple(number + first for number in transfer.after)
            before = (over[end] for end in (transfer.src, transfer.dst) if end in over)
            transfers.append(transfer._replace(chunks=chunks, after=inside or tuple(before)))


def _last_arrivals(transfers: Sequence[Transfer]) -> dict[int, int]:
    """Return the last transfer to each rank; each hears from one neighbour per phase, so that it is the last to arrive."""
    return {transfer.dst: number for number, transfer in enumerate(transfers)}


def hierarchical_all_reduce_time(
    n: int, nbytes: float, per_node: int, intra_bandwidth: float, intra_latency: float, inter_bandwidth: float, inter_latency: float
) -> float:
    """Return the seconds of the all-reduce of *nbytes* on *n* ranks; ports of each rank in bytes/s, latencies of a hop in s."""
    check_timed(n, nbytes, intra_bandwidth, intra_latency)
    check_timed(n, nbytes, inter_bandwidth, inter_latency)
    nodes = nodes_of(n, per_node)
    within, between = hierarchical_wire_bytes(nodes, per_node, nbytes)
    return within / intra_bandwidth + between / inter_bandwidth + 2 * (per_node - 1) * intra_latency + 2 * (nodes - 1) * inter_latency
