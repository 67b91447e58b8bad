"""What does each rank send in halving-doubling? Half of what it is left with to a partner twice as far, and then all of it back.

In step k = 0..log2(n)-1 the rank at position p meets the one at p XOR 2^k. They split what both still reduce by bit k of the chunk
number: each sends the other's half and adds what it gets to its own. After log2 n halvings position p holds the whole sum of
chunk p; the same steps backwards double what each holds. Gloo's ``allreduce_halving_doubling`` and MPI for powers of two do this
(Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005). The bytes are a ring's, the steps logarithmic:

    T = 2 log2(n) l + 2 (n-1)/n S/B        port of B bytes/s, hop latency l

The largest messages go to the nearest partner, so that few bytes travel far. Only a power of two of ranks can do it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.training.collectives.price.in_turn import rounds_of
from tests.oracle.collectives.schedule import Transfer, check_collective, check_timed


def halving_doubling_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that each of *n* ranks sends."""
    rounds_of(n)
    return 2 * (n - 1) / n * nbytes


def halving_doubling_all_reduce(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the all-reduce of *nbytes* (n chunks) on *ranks*; ValueError unless their number is a power of two."""
    n = check_collective(ranks, nbytes)
    rounds = rounds_of(n)
    bits = [*range(rounds), *reversed(range(rounds))]
    transfers: list[Transfer] = []
    for step, bit in enumerate(bits):
        for place in range(n):
            partner = place ^ 1 << bit
            reducing = step < rounds
            owner = partner if reducing else place  # the receiver goes on summing these chunks, or the sender has their sums
            chunks = tuple(chunk for chunk in range(n) if (chunk ^ owner) % (2 << bit) == 0)
            size = nbytes * len(chunks) / n
            met = [end ^ 1 << bits[step - 1] for end in (place, partner)]  # whom the two ends met before
            after = tuple((step - 1) * n + sender for sender in met) if step else ()
            transfers.append(Transfer(ranks[place], ranks[partner], size, chunks, after, size if reducing else 0.0))
    return transfers


def halving_doubling_time(n: int, nbytes: float, bandwidth: float, latency: float) -> float:
    """Return the seconds of the all-reduce of *nbytes*; one full-duplex port of *bandwidth* (bytes/s) per rank, hops of *latency* (s).

    Step k moves S/2^(k+1) both ways and ends for both partners at once, so the steps add up:
    T = 2 sum over k < log2 n of (S/(2^(k+1) B) + l).
    """
    check_timed(n, nbytes, bandwidth, latency)
    return 2 * rounds_of(n) * latency + halving_doubling_wire_bytes(n, nbytes) / bandwidth
