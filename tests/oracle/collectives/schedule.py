"""What is a collective, before anyone sends a byte? A list of transfers with their order, proven right by replaying sets.

Chunk c of rank r holds a set of contributions. A transfer that reduces adds the sender's set to the receiver's; one that copies
replaces it. `replay` plays a schedule in the order its dependences demand and nothing else: it refuses a schedule in which two
transfers could race for a chunk, or in which a contribution would be added twice. A switch or a server takes part under its own number;
it holds nothing at first, and if it sums contributions of several senders in any order it is a *reducer*.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from sim.training.collectives.price.own import Transfer

Holdings = dict[tuple[int, int], frozenset[int]]
"""Contributions (rank numbers) held by each (rank, chunk)."""


_Use = Literal["read", "write", "add"]

_PEACEFUL = {("read", "read"), ("add", "add")}
"""Uses of one chunk that need no order."""


class ScheduleError(ValueError):
    """A schedule that could give a wrong result."""


def replay(
    transfers: Sequence[Transfer],
    ranks: Sequence[int],
    chunks: int,
    start: Mapping[tuple[int, int], frozenset[int]] | None = None,
    reducers: Collection[int] = (),
) -> Holdings:
    """Return what every rank holds at the end; at first each rank holds its own contribution to every chunk, or *start*.

    At *reducers* (tree ranks with a buffer per child, switches, servers) additions to one chunk need no order among themselves.
    Raise ScheduleError for a dependence on a later transfer, a race, or a contribution that is added twice.
    """
    held: Holdings = {(rank, chunk): frozenset([rank]) for rank in ranks for chunk in range(chunks)} if start is None else dict(start)
    before = _happened_before(transfers)
    touched: dict[tuple[int, int], list[tuple[int, _Use]]] = {}
    for number, transfer in enumerate(transfers):
        arriving: _Use = "add" if transfer.reduce_bytes and transfer.dst in reducers else "write"
        for chunk in transfer.chunks:
            _claim(touched, (transfer.src, chunk), number, "read", before)
            _claim(touched, (transfer.dst, chunk), number, arriving, before)
            held[transfer.dst, chunk] = _arrived(transfer, chunk, held, number)
    return held


def _happened_before(transfers: Sequence[Transfer]) -> list[int]:
    """Return for each transfer the set (as bits) of those that have surely arrived before it starts."""
    before: list[int] = []
    last: dict[tuple[int, int, int], int] = {}
    for number, transfer in enumerate(transfers):
        arrived = 0
        stream = (transfer.src, transfer.dst, transfer.channel)
        earlier = last.get(stream)
        for needed in transfer.after if earlier is None else (*transfer.after, earlier):
            if not 0 <= needed < number:
                raise ScheduleError(f"transfer {number} waits for transfer {needed}, which does not come before it")
            arrived |= before[needed] | 1 << needed
        before.append(arrived)
        last[stream] = number
    return before


def _claim(
    touched: dict[tuple[int, int], list[tuple[int, _Use]]], place: tuple[int, int], number: int, use: _Use, before: Sequence[int]
) -> None:
    for other, other_use in touched.setdefault(place, []):
        if (use, other_use) not in _PEACEFUL and other != number and not before[number] >> other & 1:
            raise ScheduleError(f"transfers {other} and {number} race for chunk {place[1]} of rank {place[0]}")
    touched[place].append((number, use))


def _arrived(transfer: Transfer, chunk: int, held: Holdings, number: int) -> frozenset[int]:
    sent = held.get((transfer.src, chunk), frozenset())
    if not transfer.reduce_bytes:
        return sent
    own = held.get((transfer.dst, chunk), frozenset())
    if own & sent:
        raise ScheduleError(f"transfer {number} adds the contribution of ranks {sorted(own & sent)} to chunk {chunk} twice")
    return own | sent


def check_collective(ranks: Sequence[int], nbytes: float, pieces: int = 1) -> int:
    """Return the number of *ranks*; raise ValueError unless they differ, there are bytes to move, and there is a piece to cut them in."""
    if not ranks or len(set(ranks)) != len(ranks):
        raise ValueError(f"a collective names each of its ranks once: {list(ranks)}")
    _check_payload(nbytes, pieces)
    return len(ranks)


def _check_payload(nbytes: float, pieces: int) -> None:
    if not 0 < nbytes < math.inf:
        raise ValueError(f"a collective moves more than 0 bytes and no endless number, not {nbytes}")
    if pieces < 1:
        raise ValueError(f"a collective is cut into at least one piece, not {pieces}")


def check_timed(n: int, nbytes: float, bandwidth: float, latency: float, pieces: int = 1) -> None:
    """Raise ValueError unless *n* >= 1 ranks can move *nbytes* at *bandwidth* (bytes/s) over hops of *latency* (s)."""
    _check_payload(nbytes, pieces)
    if n < 1:
        raise ValueError(f"a collective has at least one rank, not {n}")
    if not bandwidth > 0 or not 0 <= latency < math.inf:
        raise ValueError(f"a link has a bandwidth above zero and a latency of zero or more: {bandwidth} bytes/s, {latency} s")


def pipeline_time(hops: int, pieces: int, occupancy: float, latency: float) -> float:
    """Return the seconds until the last of *pieces* has passed *hops* that keep each for *occupancy* and deliver it *latency* later.

    A piece spends ``occupancy + latency`` on each hop, and the last one starts ``pieces - 1`` occupancies after the first.
    """
    return (pieces + hops - 1) * occupancy + hops * latency if hops else 0.0
