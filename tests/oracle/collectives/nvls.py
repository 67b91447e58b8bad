"""What does each GPU send when NVSwitches reduce? Its payload once, and one sum of its own back for everyone.

GPU k of n owns shard k: it loads the shard through the switch, which adds the others' parts (``multimem.ld_reduce``), and stores the sum
to a multicast address, which the switch copies to all (``multimem.st``): n + 1 shards sent, as many received (NVIDIA, Hot Chips 34, 2022;
Klenk et al., ISCA 2020). Either stores wait for all loads, or both run side by side (P pieces, port of B bytes/s, l between GPU and
switch)::

    T = min(2 (1 + 1/(nP)) S/B,  (1 + 3/P) (n+1)/n S/B) + 4 l

Ports shared fairly between the two take no longer, and with few pieces up to 30% less. The switches of a node are one reducer here. Loads
(channel 0) and stores (channel 1) do not wait for one another. Whoever chooses the algorithm knows whether the switch can.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed, pipeline_time

SWITCH = -1
"""The number under which the NVSwitches take part."""


def nvls_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that each of *n* GPUs sends to the switches, and as many that it receives."""
    return (n + 1) / n * nbytes if n > 1 else 0.0


def nvls_all_reduce(ranks: Sequence[int], nbytes: float, pieces: int = 1) -> list[Transfer]:
    """Return the all-reduce of *nbytes* through the reducer `SWITCH`; chunk ``piece * n + k`` is shard k of a piece."""
    n = check_collective(ranks, nbytes, pieces)
    if SWITCH in ranks:
        raise ValueError(f"{SWITCH} is the switch: number the ranks otherwise")
    transfers: list[Transfer] = []
    for piece in range(pieces) if n > 1 else ():
        _add_piece(transfers, ranks, nbytes / pieces, range(piece * n, (piece + 1) * n))
    return transfers


def _add_piece(transfers: list[Transfer], ranks: Sequence[int], nbytes: float, shards: Sequence[int]) -> None:
    n, first = len(ranks), len(transfers)
    shard = nbytes / n
    loads, sums, stores = (tuple(range(first + part * n, first + (part + 1) * n)) for part in range(3))
    transfers += [Transfer(rank, SWITCH, nbytes, tuple(shards), (), nbytes) for rank in ranks]
    transfers += [Transfer(SWITCH, rank, shard, (own,), loads) for rank, own in zip(ranks, shards, strict=True)]
    transfers += [Transfer(rank, SWITCH, shard, (own,), (got,), 0.0, 1) for rank, own, got in zip(ranks, shards, sums, strict=True)]
    transfers += [Transfer(SWITCH, rank, nbytes, tuple(shards), stores, 0.0, 1) for rank in ranks]


def nvls_all_reduce_time(n: int, nbytes: float, bandwidth: float, latency: float, pieces: int = 1) -> float:
    """Return the seconds of the all-reduce of *nbytes* on *n* GPUs with *bandwidth* (bytes/s) to the switches, *latency* (s) from them."""
    check_timed(n, nbytes, bandwidth, latency, pieces)
    if n == 1:
        return 0.0
    in_turn = 2 * (1 + 1 / n / pieces) * nbytes / bandwidth + 4 * latency
    return min(in_turn, pipeline_time(4, pieces, nvls_wire_bytes(n, nbytes) / pieces / bandwidth, latency))
