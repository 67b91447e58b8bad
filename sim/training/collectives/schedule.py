"""What is a collective, before anyone sends a byte? A list of transfers with their order, proven right by replaying sets.

Chunk c of rank r holds a set of contributions. A transfer that reduces adds the sender's set to the receiver's; one that copies
replaces it. `replay` plays a schedule in the order its dependences demand and nothing else: it refuses a schedule in which two
transfers could race for a chunk, or in which a contribution would be added twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Holdings = dict[tuple[int, int], frozenset[int]]
"""Contributions (rank numbers) held by each (rank, chunk)."""


class Transfer(NamedTuple):
    """*src* sends *nbytes* (the *chunks*) to *dst*, once the transfers numbered in *after* have arrived.

    The *dst* reduces ``reduce_bytes`` of them into its own; 0 means that they replace its own. Transfers between one pair of
    ranks leave and arrive in list order, one at a time.
    """

    src: int
    dst: int
    nbytes: float
    chunks: tuple[int, ...]
    after: tuple[int, ...] = ()
    reduce_bytes: float = 0.0


class ScheduleError(ValueError):
    """A schedule that could give a wrong result."""


def replay(
    transfers: Sequence[Transfer], ranks: Sequence[int], chunks: int, start: Mapping[tuple[int, int], frozenset[int]] | None = None
) -> Holdings:
    """Return what every rank holds at the end; at first each rank holds its own contribution to every chunk, or *start*.

    Raise ScheduleError for a dependence on a later transfer, a race, or a contribution that is added twice.
    """
    held: Holdings = {(rank, chunk): frozenset([rank]) for rank in ranks for chunk in range(chunks)} if start is None else dict(start)
    before = _happened_before(transfers)
    touched: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for number, transfer in enumerate(transfers):
        for chunk in transfer.chunks:
            _claim(touched, (transfer.src, chunk), number, False, before)
            _claim(touched, (transfer.dst, chunk), number, True, before)
            held[transfer.dst, chunk] = _arrived(transfer, chunk, held, number)
    return held


def _happened_before(transfers: Sequence[Transfer]) -> list[int]:
    """Return for each transfer the set (as bits) of those that have surely arrived before it starts."""
    before: list[int] = []
    last: dict[tuple[int, int], int] = {}
    for number, transfer in enumerate(transfers):
        known = 0
        earlier = last.get((transfer.src, transfer.dst))
        for needed in transfer.after if earlier is None else (*transfer.after, earlier):
            if not 0 <= needed < number:
                raise ScheduleError(f"transfer {number} waits for transfer {needed}, which does not come before it")
            known |= before[needed] | 1 << needed
        before.append(known)
        last[transfer.src, transfer.dst] = number
    return before


def _claim(
    touched: dict[tuple[int, int], list[tuple[int, bool]]], place: tuple[int, int], number: int, writes: bool, before: Sequence[int]
) -> None:
    for other, other_writes in touched.setdefault(place, []):
        if (writes or other_writes) and other != number and not before[number] >> other & 1:
            raise ScheduleError(f"transfers {other} and {number} race for chunk {place[1]} of rank {place[0]}")
    touched[place].append((number, writes))


def _arrived(transfer: Transfer, chunk: int, held: Holdings, number: int) -> frozenset[int]:
    sent = held.get((transfer.src, chunk), frozenset())
    if not transfer.reduce_bytes:
        return sent
    own = held[transfer.dst, chunk]
    if own & sent:
        raise ScheduleError(f"transfer {number} adds the contribution of ranks {sorted(own & sent)} to chunk {chunk} twice")
    return own | sent
