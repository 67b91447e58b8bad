"""How long does one pass of Gloo's segmented ring take? Each segment asks leave before it is sent; two are under way at a time.

A ring's bytes are cut into segments of at most 1 MiB, at least two for each rank, and every rank passes on ``segments`` of them
(facebookincubator/gloo, gloo/allreduce.cc): it posts the receive and the send of segment i when segment i-2 has come in. The sender may
begin once the notice of the posted receive has reached it (gloo/transport/tcp/pair.cc, NOTIFY_RECV_READY), so with ``s`` the seconds of
one segment on the wire and ``o`` those of anything one way, a ring whose wire is busy takes ``segments * s + 2 o``, and one that waits for
notices ``s + 2 o`` for every two segments. Between two ranks one connection serves both directions, so a notice stands in line behind
the data that its rank sent before. Equal ranks: all do the same at the same time.

A gather cuts each rank's part in two, and posts each send before its receive (gloo/allgather.cc). Between two ranks that come more than a
notice apart, as computing ranks do, the later one has leave at once, so that its own notices stand behind its data: three halves, not two.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LARGEST: Final = 2**20
"""Bytes of a segment at the most (gloo/allreduce.h, kMaxSegmentSize)."""
IN_FLIGHT: Final = 2


class Segments(NamedTuple):
    """How a ring cuts a message: each rank passes *passed* segments of *nbytes* on in one pass."""

    passed: int
    nbytes: float


def cut(nbytes: float, ranks: int) -> Segments:
    """Return how *nbytes*, of all ranks together, are cut."""
    largest = max(1.0, min(math.ceil(nbytes / (IN_FLIGHT * ranks)), LARGEST))
    each = max(IN_FLIGHT, math.ceil(math.ceil(nbytes / largest) / ranks))
    return Segments(each * (ranks - 1), nbytes / (each * ranks))


def gather_time(nbytes: float, ranks: int, rate: float, one_way: float, burst: float = 0.0) -> float:
    """Return the seconds in which the last of *ranks* to come has gathered *nbytes*, of all ranks together, at *rate* bytes/s.

    Between two ranks the line of the earlier one has been at rest and lets *burst* bytes through at once.
    """
    half = nbytes / ranks / IN_FLIGHT / rate
    if ranks == 2:
        return IN_FLIGHT * half + max(0.0, half - burst / rate) + 2 * one_way
    return pass_time(IN_FLIGHT * (ranks - 1), half, one_way, one_line=False)


def pass_time(count: int, wire: float, one_way: float, one_line: bool) -> float:
    """Return the seconds in which every rank passes *count* segments on, each *wire* seconds long; notices and data take *one_way*.

    *one_line*: notices stand in line behind data, as between two ranks.
    """
    allowed: list[float] = []  # when the notice has come
    sent: list[float] = []
    for segment in range(count):
        posted = sent[segment - IN_FLIGHT] + one_way if segment >= IN_FLIGHT else 0.0
        before = (sent[other] for other in range(max(0, segment - IN_FLIGHT), segment) if one_line and allowed[other] <= posted)
        allowed.append(max([posted, *before]) + one_way)
        sent.append(max(allowed[-1], sent[-1] if sent else 0.0) + wire)
    return sent[-1] + one_way
