"""What does each rank send in a double binary tree? Half of the payload up and down each of two trees, piece after piece.

Every rank with two children in one tree is a leaf of the other (Sanders, Speck and Traeff, Parallel Computing 35(12), 2009). The trees
are NCCL's (`src/graph/trees.cc`); inside a node a chain hangs under the rank that the tree spans (`src/graph/connect.cc`, *per_node*
here). With c_o = min(N - 1, 2) S/(2P B_o) between N nodes, c_i = S/(P B_i) inside a node of g ranks, and h = ceil(log2 N)::

    T = 2 [(g - 1)(c_i + l_i) + h (c_o + l_o) + (P - 1) max(c_i, c_o)]

Ports shared fairly between both ways take no longer, and with few pieces up to a third less (three nodes: half). NCCL's tuner counts
floor(log2 N) hops. What each piece costs beyond its bytes stands in B, at the size of a piece (a transport's ``efficiency``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sim.training.collectives.price.layout import depth
from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed

Parents = dict[int, int]
"""The parent of everyone but the root."""


def binary_tree(n: int) -> Parents:
    """Return NCCL's binary tree on 0..n-1 with root 0: odd numbers are leaves, even ones stand between their halves."""
    parents: Parents = {}
    for place in range(1, n):
        bit = place & -place
        up = (place ^ bit) | bit << 1
        parents[place] = up if up < n else place ^ bit
    return parents


def double_binary_tree(n: int) -> tuple[Parents, Parents]:
    """Return the binary tree on 0..n-1 and its complement: mirrored for even *n*, shifted by one for odd."""
    first = binary_tree(n)
    if n % 2:
        return first, {(place + 1) % n: (up + 1) % n for place, up in first.items()}
    return first, {n - 1 - place: n - 1 - up for place, up in first.items()}


def tree_all_reduce(ranks: Sequence[int], nbytes: float, pieces: int = 1, per_node: int = 1) -> list[Transfer]:
    """Return the all-reduce of *nbytes* on two trees, *pieces* each; the *per_node* ranks of one node stand together in *ranks*.

    Chunk ``2 * piece + tree`` and channel ``tree``. A rank sums its children's parts in whichever order they come.
    """
    nodes = nodes_of(check_collective(ranks, nbytes, pieces), per_node)
    transfers: list[Transfer] = []
    trees = [_with_chains(tree, ranks, per_node) for tree in double_binary_tree(nodes)]
    for piece in range(pieces):
        for number, parents in enumerate(trees):
            add_piece(transfers, parents, nbytes / pieces / 2, 2 * piece + number, number)
    return transfers


def add_piece(transfers: list[Transfer], parents: Mapping[int, int], nbytes: float, chunk: int, channel: int = 0) -> None:
    """Append the rise of one piece of *nbytes* from the leaves of a tree to its root, and the way of the total back."""
    arrived: dict[int, list[int]] = defaultdict(list)
    falling = from_root(parents)
    for place in reversed(falling):
        arrived[parents[place]].append(len(transfers))
        transfers.append(Transfer(place, parents[place], nbytes, (chunk,), tuple(arrived[place]), nbytes, channel))
    for place in falling:
        after = tuple(arrived[parents[place]])
        arrived[place] = [len(transfers)]
        transfers.append(Transfer(parents[place], place, nbytes, (chunk,), after, 0.0, channel))


def from_root(parents: Mapping[int, int]) -> list[int]:
    """Return everyone but the root in order of distance from it; ValueError unless all hang on one root."""
    distance = {place: _distance(place, parents) for place in parents}
    if len({up for up in parents.values() if up not in parents}) > 1:
        raise ValueError("a reduction tree has one root: some of its ranks never meet the others")
    return sorted(parents, key=distance.__getitem__)


def tree_wire_bytes(nodes: int, nbytes: float) -> float:
    """Return the bytes that the busiest of *nodes* ports between the trees' nodes sends, and as many that it receives."""
    return min(nodes, 4) * nbytes / 2 if nodes > 1 else 0.0


def chain_wire_bytes(per_node: int, nbytes: float) -> float:
    """Return the bytes that the busiest rank sends within its node of *per_node* ranks, and as many that it receives."""
    return min(per_node - 1, 2) * nbytes


def tree_all_reduce_time(
    n: int,
    nbytes: float,
    bandwidth: float,
    latency: float,
    pieces: int = 1,
    per_node: int = 1,
    intra_bandwidth: float = float("inf"),
    intra_latency: float = 0.0,
) -> float:
    """Return the seconds of the all-reduce of *nbytes* on *n* ranks, in *pieces* per tree.

    *bandwidth* and *latency* are those of a node's full-duplex port and of a hop between nodes, the *intra* ones of a rank's port
    and of a hop within a node of *per_node* ranks; bytes/s and s.
    """
    check_timed(n, nbytes, bandwidth, latency, pieces)
    check_timed(n, nbytes, intra_bandwidth, intra_latency, pieces)
    nodes = nodes_of(n, per_node)
    between = min(nodes - 1, 2) * nbytes / 2 / pieces / bandwidth
    within = nbytes / pieces / intra_bandwidth if per_node > 1 else 0.0
    first = (per_node - 1) * (within + intra_latency) + depth(nodes) * (between + latency)
    return 2 * (first + (pieces - 1) * max(within, between))


def nodes_of(n: int, per_node: int) -> int:
    """Return on how many nodes of *per_node* ranks *n* ranks stand; ValueError where nodes would differ."""
    if per_node < 1 or n % per_node:
        raise ValueError(f"{n} ranks do not fill nodes of {per_node}: every node needs the same number of ranks, or take a ring")
    return n // per_node


def _with_chains(tree: Parents, ranks: Sequence[int], per_node: int) -> Parents:
    """Return *tree* between the first ranks of all nodes, with each node's other ranks in a chain below the first."""
    parents = {ranks[place * per_node]: ranks[up * per_node] for place, up in tree.items()}
    return parents | {ranks[place]: ranks[place - 1] for place in range(len(ranks)) if place % per_node}


def _distance(place: int, parents: Mapping[int, int]) -> int:
    hops = 0
    while place in parents:
        place, hops = parents[place], hops + 1
        if hops > len(parents):
            raise ValueError("a reduction tree has no circles: follow the parents and they must end at a root")
    return hops
