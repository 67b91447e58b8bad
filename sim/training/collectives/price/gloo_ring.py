"""How long does one pass of Gloo's segmented ring take? Each segment waits for the receiver's notice; two are in flight at a time.

A ring's bytes are cut into segments of at most 1 MiB, at least two per rank; every rank passes on ``segments`` of them
(facebookincubator/gloo, gloo/allreduce.cc). It posts the receive and the send of segment i when segment i-2 has arrived. The sender may
begin once the notice of the posted receive has reached it (gloo/transport/tcp/pair.cc, NOTIFY_RECV_READY). With ``s`` the time of a segment
on the wire and ``o`` the one-way latency, a ring with a busy wire takes ``segments * s + 2 o``; one that waits for notices takes
``s + 2 o`` for every two segments. Between two ranks, one connection serves both directions, so a notice queues behind the data that its
rank sent before. All ranks are equal and do the same at the same time.
A gather cuts each rank's part in two, and posts each send before its receive (gloo/allgather.cc). If two ranks arrive more than a notice
apart, as computing ranks do, the later one may send at once, and its notices queue behind its data: three halves instead of two.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LARGEST: Final = 2**20
"""Maximum bytes of a segment (gloo/allreduce.h, kMaxSegmentSize)."""
IN_FLIGHT: Final = 2


class Segments(NamedTuple):
    """How a ring cuts a message: in one pass, each rank passes on *per_pass* segments of *nbytes*."""

    per_pass: int
    nbytes: float


def cut_segments(nbytes: float, ranks: int) -> Segments:
    """Return how *nbytes*, the total of all ranks, are cut into segments."""
    largest = max(1.0, min(math.ceil(nbytes / (IN_FLIGHT * ranks)), LARGEST))
    each = max(IN_FLIGHT, math.ceil(math.ceil(nbytes / largest) / ranks))
    return Segments(each * (ranks - 1), nbytes / (each * ranks))


def gather_time(nbytes: float, ranks: int, rate: float, one_way: float, burst: float = 0.0) -> float:
    """Return the time (s) in which the last of *ranks* to arrive has gathered *nbytes*, the total of all ranks, at *rate* bytes/s.

    Between two ranks, the line of the earlier one has been idle and lets *burst* bytes through at once.
    """
    half = nbytes / ranks / IN_FLIGHT / rate
    if ranks == 2:
        return IN_FLIGHT * half + max(0.0, half - burst / rate) + 2 * one_way
    return segments_time(IN_FLIGHT * (ranks - 1), half, one_way, one_line=False)


def segments_time(count: int, wire: float, one_way: float, one_line: bool) -> float:
    """Return the time (s) in which every rank passes on *count* segments, each *wire* seconds long; the one-way latency is *one_way*.

    *one_line*: notices queue behind data, as between two ranks.
    """
    allowed: list[float] = []  # when the notice has arrived
    sent: list[float] = []
    for segment in range(count):
        posted = sent[segment - IN_FLIGHT] + one_way if segment >= IN_FLIGHT else 0.0
        blocking = (sent[other] for other in range(max(0, segment - IN_FLIGHT), segment) if one_line and allowed[other] <= posted)
        allowed.append(max([posted, *blocking]) + one_way)
        sent.append(max(allowed[-1], sent[-1] if sent else 0.0) + wire)
    return sent[-1] + one_way
