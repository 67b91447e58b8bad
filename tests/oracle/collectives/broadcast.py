"""How long does a broadcast, or a reduce, take that a ring passes on in pieces? As long as a pipeline of n - 1 hops.

The first rank sends piece after piece to the second, which passes each on as soon as it has it (`ring_broadcast` of
`tests.oracle.collectives.ring` is the schedule); the hop back to the first stays empty. Every rank but the last sends the payload
once and every rank but the first receives it once, the least any broadcast can do, so with many pieces the time tends to S/B:

    T = (P + n - 2) S/(PB) + (n - 1) l        n ranks, P pieces, S bytes, port of B bytes/s, hop latency l

NCCL broadcasts this way and reduces backwards along it (NVIDIA/nccl `src/device/broadcast.h`, `reduce.h`). A cost per piece beyond its
bytes is not modeled: where there is one, it belongs into the bandwidth, as an efficiency at the piece's size.
"""

from __future__ import annotations

from tests.oracle.collectives.schedule import check_timed, pipeline_time


def broadcast_wire_bytes(n: int, nbytes: float) -> float:
    """Return the bytes that cross each hop of the chain of *n* ranks."""
    return nbytes if n > 1 else 0.0


def broadcast_time(n: int, nbytes: float, bandwidth: float, latency: float, pieces: int = 1) -> float:
    """Return the seconds until the last of *n* ranks has all of *nbytes*; ports of *bandwidth* (bytes/s), hops of *latency* (s)."""
    check_timed(n, nbytes, bandwidth, latency, pieces)
    return pipeline_time(n - 1, pieces, nbytes / pieces / bandwidth, latency)
