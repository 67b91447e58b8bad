"""What does each rank send in a ring? Reduce-scatter, all-gather, both as all-reduce, and a pipelined broadcast or reduce.

The payload is cut into n chunks; in step s the rank at position p sends chunk p - s to the next. After n - 1 reducing steps each
rank holds one whole sum, after n - 1 copying steps all of them: 2(n-1) steps and 2(n-1)/n of the payload over every hop, the least
any all-reduce can send (Patarasu and Yuan, JPDC 69(2), 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.collectives.schedule import Transfer, check_timed


def all_reduce_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that cross each hop of a ring of *n* ranks that all-reduces *nbytes*."""
    return 2 * (n - 1) / n * nbytes


def ring_all_reduce_time(n: int, nbytes: float, bandwidth: float, latency: float) -> float:
    """Return the seconds of an all-reduce of *nbytes*; one full-duplex port of *bandwidth* (bytes/s) per rank, hops of *latency* (s).

    2(n-1) steps, in each of which every rank sends one chunk of S/n and receives another, and no rank can run ahead:
    T = 2(n-1)(S/(nB) + l).
    """
    return 2 * ring_all_gather_time(n, nbytes, bandwidth, latency)


def ring_all_gather_time(n: int, nbytes: float, bandwidth: float, latency: float) -> float:
    """Return the seconds of an all-gather or a reduce-scatter of *nbytes* (in all) on the same: T = (n-1)(S/(nB) + l)."""
    check_timed(n, nbytes, bandwidth, latency)
    return (n - 1) * (nbytes / n / bandwidth + latency)


def ring_all_reduce(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the all-reduce of *nbytes* on the ring *ranks*: every rank ends with every sum."""
    n = _check(ranks, nbytes)
    return _steps(ranks, nbytes / n, reducing=n - 1, copying=n - 1, shift=0)


def ring_reduce_scatter(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the reduce-scatter of *nbytes* (in all): the rank at position p ends with the sum of chunk p."""
    n = _check(ranks, nbytes)
    return _steps(ranks, nbytes / n, reducing=n - 1, copying=0, shift=-1)


def ring_all_gather(ranks: Sequence[int], nbytes: float) -> list[Transfer]:
    """Return the all-gather of *nbytes* (in all): the rank at position p begins with chunk p, and every rank ends with all."""
    n = _check(ranks, nbytes)
    return _steps(ranks, nbytes / n, reducing=0, copying=n - 1, shift=0)


def ring_broadcast(ranks: Sequence[int], nbytes: float, pieces: int = 1) -> list[Transfer]:
    """Return the broadcast of *nbytes* from the first of *ranks* along the ring, in *pieces* that follow one another."""
    n = _check(ranks, nbytes)
    if pieces < 1:
        raise ValueError(f"a broadcast has at least one piece, not {pieces}")
    return [
        Transfer(ranks[hop], ranks[hop + 1], nbytes / pieces, (piece,), () if hop == 0 else (piece * (n - 1) + hop - 1,))
        for piece in range(pieces)
        for hop in range(n - 1)
    ]


def ring_reduce(ranks: Sequence[int], nbytes: float, pieces: int = 1) -> list[Transfer]:
    """Return the sum of *nbytes* at the first of *ranks*: a broadcast played backwards, the last rank beginning each piece."""
    n = _check(ranks, nbytes)
    if pieces < 1:
        raise ValueError(f"a reduce has at least one piece, not {pieces}")
    return [
        Transfer(
            ranks[hop], ranks[hop - 1], nbytes / pieces, (piece,), () if hop == n - 1 else (piece * (n - 1) + n - 2 - hop,), nbytes / pieces
        )
        for piece in range(pieces)
        for hop in range(n - 1, 0, -1)
    ]


def _check(ranks: Sequence[int], nbytes: float) -> int:
    if not ranks or len(set(ranks)) != len(ranks):
        raise ValueError(f"a ring visits each of its ranks once: {list(ranks)}")
    if not nbytes > 0:
        raise ValueError(f"a collective moves more than {nbytes} bytes")
    return len(ranks)


def _steps(ranks: Sequence[int], chunk_bytes: float, reducing: int, copying: int, shift: int) -> list[Transfer]:
    """Return *reducing* steps and then *copying* ones; in step s position p sends chunk p - s + *shift*."""
    n = len(ranks)
    return [
        Transfer(
            ranks[position],
            ranks[(position + 1) % n],
            chunk_bytes,
            ((position - step + shift) % n,),
            () if step == 0 else ((step - 1) * n + (position - 1) % n,),
            chunk_bytes if step < reducing else 0.0,
        )
        for step in range(reducing + copying)
        for position in range(n)
    ]
