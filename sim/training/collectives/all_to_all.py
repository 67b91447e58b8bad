"""What does each rank send when all send to all? One block to every other rank, one partner at a time.

Each of n ranks has a payload of S bytes in n blocks, block j for the rank at position j. In step s = 1..n-1 position p sends its
block to position p + s and receives one from p - s, so that every port sends one block and receives one, and nobody meets two
senders. A rank begins a step when its previous one is over both ways (pairwise exchange: Thakur, Rabenseifner and Gropp,
IJHPCA 19(1), 2005). Each rank sends (n-1)/n of its payload, which is all that has to leave it:

    T = (n - 1) (S/(nB) + l)        port of B bytes/s, hop latency l

NCCL's grouped sends and receives keep several partners in flight and so hide part of the (n-1) l.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.training.collectives.schedule import Transfer, check_collective, check_timed


def all_to_all_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that each of *n* ranks sends when each has *nbytes* to hand out."""
    return (n - 1) / n * nbytes


def all_to_all(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the exchange of *nbytes* per rank; chunk ``p * n + q`` is the block that position p has for position q."""
    n = check_collective(ranks, nbytes)
    transfers: list[Transfer] = []
    for step in range(1, n):
        for place in range(n):
            to = (place + step) % n
            received = () if step == 1 else ((step - 2) * n + (place - step + 1) % n,)
            sent = () if step == 1 else ((step - 2) * n + place,)
            transfers.append(Transfer(ranks[place], ranks[to], nbytes / n, (place * n + to,), (*received, *sent)))
    return transfers


def all_to_all_time(n: int, nbytes: float, bandwidth: float, latency: float) -> float:
    """Return the seconds of the exchange of *nbytes* per rank; one full-duplex port of *bandwidth* (bytes/s), hops of *latency* (s)."""
    check_timed(n, nbytes, bandwidth, latency)
    return (n - 1) * (nbytes / n / bandwidth + latency)
