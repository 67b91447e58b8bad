"""What does each rank send when all send to all? One block to every other rank, a few partners at a time.

Each of n ranks has a payload of S bytes in n blocks, block j for the rank at position j. In step s = 1..n-1 position p sends its
block to position p + s and receives one from p - s (pairwise exchange: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005). So many
steps as there are partners *at once* run side by side and share the ports; a rank begins the next ones when all of these are over
both ways. Each rank sends (n-1)/n of its payload, which is all that has to leave it, and as many latencies as rounds remain:

    T = (n - 1) S/(nB) + ceil((n - 1) / k) l        port of B bytes/s, hop latency l, k partners at once

How many NCCL keeps in flight: `sim.training.collectives.price.point_to_point`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed


def all_to_all_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that each of *n* ranks sends when each has *nbytes* to hand out."""
    return (n - 1) / n * nbytes


def all_to_all(ranks: Sequence[int], nbytes: float, at_once: int = 1) -> list[Transfer]:
    """Return the exchange of *nbytes* per rank; chunk ``p * n + q`` is the block that position p has for position q."""
    n = check_collective(ranks, nbytes)
    transfers: list[Transfer] = []
    for step in range(1, n):
        first = step - 1 - (step - 1) % at_once  # steps before this round
        earlier = range(max(0, first - at_once), first)
        for place in range(n):
            to = (place + step) % n
            received = tuple(before * n + (place - before - 1) % n for before in earlier)
            sent = tuple(before * n + place for before in earlier)
            transfers.append(Transfer(ranks[place], ranks[to], nbytes / n, (place * n + to,), (*received, *sent)))
    return transfers


def all_to_all_time(n: int, nbytes: float, bandwidth: float, latency: float, at_once: int = 1) -> float:
    """Return the seconds of the exchange of *nbytes* per rank; one full-duplex port of *bandwidth* (bytes/s), hops of *latency* (s)."""
    check_timed(n, nbytes, bandwidth, latency)
    return (n - 1) * nbytes / n / bandwidth + math.ceil((n - 1) / at_once) * latency
