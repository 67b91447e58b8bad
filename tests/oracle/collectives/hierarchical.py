"""What does each rank send in a hierarchical all-reduce? Shards within the node, and its own shard between nodes.

Three phases: reduce-scatter on a ring within each node of g ranks, all-reduce of each of the g shards on a ring of the N ranks that have
the same place in their nodes, all-gather within each node (Jia et al., arXiv:1807.11205; BlueConnect, Cho et al., MLSys 2019)::

    T = 2(g-1)(S/(g B_i) + l_i) + 2(N-1)(S/(gN B_o) + l_o)

B_i and B_o: bytes/s of a rank's port within the node and between nodes (where g ranks share a NIC, a g-th of it), l: hop latencies. Level i
of s_i members, of which s_1 .. s_i share a shard's bytes, adds 2(s_i - 1)(S/(s_1 .. s_i B_i) + l_i). Phases are not pipelined. Every group
has the same number of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.oracle.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed
from tests.oracle.collectives.tree import nodes_of


def hierarchical_wire_bytes(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """Return the bytes that each rank sends within its node, and to other nodes."""
    return 2 * (per_node - 1) / per_node * nbytes, 2 * (nodes - 1) / nodes * nbytes / per_node


def hierarchical_all_reduce(ranks: Sequence[int], nbytes: float, per_node: int, *groups: int) -> list[Transfer]:
    """Return the all-reduce of *nbytes*; the *per_node* ranks of one node stand together in *ranks*.

    *groups* are levels above: so many nodes a rack, racks a row .., whose members stand together as well. Chunk
    ``place * rest + c`` is part c of the shard that the rank at *place* in its node takes to the others.
    """
    check_collective(ranks, nbytes)
    rest = len(ranks)
    for size in (per_node, *groups):
        rest = nodes_of(rest, size)
    transfers: list[Transfer] = []
    _add_level(transfers, [(ranks, 0)], nbytes, (per_node, *groups))
    return transfers


def _add_level(transfers: list[Transfer], teams: Sequence[tuple[Sequence[int], int]], nbytes: float, sizes: Sequence[int]) -> None:
    """Append the all-reduces of *teams* side by side, each of *nbytes* in as many chunks as it has ranks, from its first chunk on."""
    if not sizes:
        _add_phase(transfers, [(ring_all_reduce(ranks, nbytes), [[first + part] for part in range(len(ranks))]) for ranks, first in teams])
        return
    size, above = sizes[0], len(teams[0][0]) // sizes[0]
    shards = [[range(first + place * above, first + (place + 1) * above) for place in range(size)] for _, first in teams]
    blocks = [[ranks[start : start + size] for start in range(0, len(ranks), size)] for ranks, _ in teams]
    inside = [(block, own) for team, own in zip(blocks, shards, strict=True) for block in team]
    _add_phase(transfers, [(ring_reduce_scatter(block, nbytes), own) for block, own in inside])
    across = [
        ([block[place] for block in team], own[place].start) for team, own in zip(blocks, shards, strict=True) for place in range(size)
    ]
    _add_level(transfers, across, nbytes / size, sizes[1:])
    _add_phase(transfers, [(ring_all_gather(block, nbytes), own) for block, own in inside])


def _add_phase(transfers: list[Transfer], rings: Iterable[tuple[Sequence[Transfer], Sequence[Sequence[int]]]]) -> None:
    """Append concurrent *rings*, each with a map from its chunks to the schedule's, to start after earlier transfers of their ranks."""
    over = _last_arrivals(transfers)
    for ring, meaning in rings:
        first = len(transfers)
        for transfer in ring:
            chunks = tuple(part for chunk in transfer.chunks for part in meaning[chunk])
            inside = tuple(number + first for number in transfer.after)
            before = (over[end] for end in (transfer.src, transfer.dst) if end in over)
            transfers.append(transfer._replace(chunks=chunks, after=inside or tuple(before)))


def _last_arrivals(transfers: Sequence[Transfer]) -> dict[int, int]:
    """Return the last transfer to each rank; each hears from one neighbor per phase, so that it is the last to arrive."""
    return {transfer.dst: number for number, transfer in enumerate(transfers)}


class Level(NamedTuple):
    """*size* groups of the level below (or ranks) that meet on rings: a rank's port in bytes/s, and the latency of a hop (s)."""

    size: int
    bandwidth: float
    latency: float


def hierarchical_all_reduce_time(nbytes: float, *levels: Level) -> float:
    """Return the seconds of the all-reduce of *nbytes* over *levels*, ranks of a node first."""
    time, shard = 0.0, nbytes
    for size, bandwidth, latency in levels:
        check_timed(size, nbytes, bandwidth, latency)
        shard /= size
        time += 2 * (size - 1) * (shard / bandwidth + latency)
    return time
