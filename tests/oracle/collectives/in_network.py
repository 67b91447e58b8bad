"""What does each host send when the network aggregates? Its payload once up a tree of switches, and the total comes back once.

Each switch adds what its children bring and passes one sum on; the root's total is copied down again (SHARP: Graham et al.,
COMHPC 2016; SwitchML: Sapio et al., NSDI 2021, is a tree of one). Every link carries each piece once each way, so a host sends
S and receives S whatever the number of hosts, half of a ring's bytes; latency grows with the height h of the tree, twice:

    T = (P + 2h - 1) S/(PB) + 2 h l        P pieces, every link of B bytes/s and latency l, the farthest host h hops below the root

Switches sum at line rate and hold any number of pieces; what a real one can hold limits the pieces in flight, not modeled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed, pipeline_time
from tests.oracle.collectives.tree import add_piece, from_root


def switch_tree(ranks: Sequence[int], radix: int) -> dict[int, int]:
    """Return the parents of *ranks* and switches in a tree whose switches have up to *radix* children; switches are -1, -2, ..."""
    _check_radix(radix)
    if min(ranks, default=0) < 0:
        raise ValueError(f"negative numbers are switches: number the ranks {list(ranks)} from 0")
    parents: dict[int, int] = {}
    level, switch = list(ranks), 0
    while len(level) > 1:
        above = [switch - 1 - group for group in range(-(-len(level) // radix))]
        parents |= {child: above[place // radix] for place, child in enumerate(level)}
        level, switch = above, above[-1]
    return parents


def height(n: int, radix: int) -> int:
    """Return the hops from a rank to the root of the `switch_tree` of *n* ranks."""
    _check_radix(radix)
    hops = 0
    while n > 1:
        n, hops = -(-n // radix), hops + 1
    return hops


def in_network_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that each of *n* hosts sends, and as many that it receives."""
    return nbytes if n > 1 else 0.0


def in_network_all_reduce(ranks: Sequence[int], nbytes: float, parents: Mapping[int, int], pieces: int = 1) -> list[Transfer]:
    """Return the all-reduce of *nbytes* in *pieces* up and down the tree *parents*, whose leaves are *ranks* and whose others add up.

    ValueError for a tree with circles or several roots, or one in which a rank is missing or is a parent.
    """
    n = check_collective(ranks, nbytes, pieces)
    if n > 1:
        _check_leaves(ranks, parents)
    transfers: list[Transfer] = []
    for piece in range(pieces) if n > 1 else ():
        add_piece(transfers, parents, nbytes / pieces, piece)
    return transfers


def _check_leaves(ranks: Sequence[int], parents: Mapping[int, int]) -> None:
    from_root(parents)
    missing = [rank for rank in ranks if rank not in parents]
    if missing:
        raise ValueError(f"ranks {missing} hang on no switch: give each a parent in the aggregation tree")
    inner = set(parents.values())
    if inner & set(ranks):
        raise ValueError(f"ranks {sorted(inner & set(ranks))} have children: in the aggregation tree only switches add up")
    idle = sorted(set(parents) - inner - set(ranks))
    if idle:
        raise ValueError(f"{idle} are leaves of the aggregation tree but no ranks: leave out switches without children")


def in_network_all_reduce_time(n: int, nbytes: float, bandwidth: float, latency: float, radix: int, pieces: int = 1) -> float:
    """Return the seconds of the all-reduce of *nbytes* on a `switch_tree` of *n* hosts; links of *bandwidth* (bytes/s), *latency* (s)."""
    check_timed(n, nbytes, bandwidth, latency, pieces)
    return pipeline_time(2 * height(n, radix), pieces, nbytes / pieces / bandwidth, latency)


def _check_radix(radix: int) -> None:
    if radix < 2:
        raise ValueError(f"a switch aggregates at least two children, not {radix}")
