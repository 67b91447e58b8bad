"""What does each rank send in halving-doubling? Half of what it is left with to a partner twice as far, and then all of it back.

In step k = 0..log2(n)-1 the rank at position p meets the one at p XOR 2^k. They split what both still reduce by bit k of the chunk
number: each sends the other's half and adds what it gets to its own. After log2 n halvings position p holds the whole sum of
chunk p; the same steps backwards double what each holds. Gloo's ``allreduce_halving_doubling`` and MPI for powers of two do this
(Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, section 4.5). The bytes are a ring's, the steps logarithmic:

    T = 2 log2(n) l + 2 (n-1)/n S/B        port of B bytes/s, hop latency l

The largest messages go to the nearest partner, so that few bytes travel far. Only a power of two of ranks can do it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.training.collectives.schedule import Transfer, check_collective, check_timed


def halving_doubling_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that each of *n* ranks sends."""
    _rounds(n)
    return 2 * (n - 1) / n * nbytes


def halving_doubling_all_reduce(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the all-reduce of *nbytes* (n chunks) on *ranks*; ValueError unless their number is a power of two."""
    n = check_collective(ranks, nbytes)
    rounds = _rounds(n)
    transfers: list[Transfer] = []
    for step, bit in enumerate([*range(rounds), *reversed(range(rounds))]):
        reducing = step < rounds
        for place in range(n):
            partner = place ^ 1 << bit
            owner = partner if reducing else place  # whose chunks they are: the receiver sums them, or the sender has summed them
            chunks = tuple(chunk for chunk in range(n) if (chunk ^ owner) % (2 << bit) == 0)
            size = nbytes * len(chunks) / n
            arrived = () if step == 0 else ((step - 1) * n + place, (step - 1) * n + partner)
            after = tuple(_exchange_of(number, ranks, transfers) for number in arrived)
            transfers.append(Transfer(ranks[place], ranks[partner], size, chunks, after, size if reducing else 0.0))
    return transfers
