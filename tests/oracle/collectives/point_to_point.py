"""What does each rank send when NCCL only sends and receives? Send/recv, gather and scatter.

Send/recv: every rank sends S bytes to the next and receives as many, as nccl-tests measures it. Gather: every rank sends its block of
S/n to the root; scatter: the root sends each its block. At most k partners are in flight at a time, and all share the root's port:

    T = S/B + l        send/recv;        T = (n - 1) S/(nB) + ceil((n - 1) / k) l        gather, scatter
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.training.collectives.price.own import Transfer
from tests.oracle.collectives.schedule import check_collective, check_timed


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
