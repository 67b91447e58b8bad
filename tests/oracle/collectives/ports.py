"""Plays a schedule without events: on streams of fixed rates, or on full-duplex ports that share themselves fairly.

Both follow `Transfer`: a transfer starts when all that it waits for have arrived and the one before it in its stream (source,
destination, channel) has left, leaves at its rate, and arrives a latency later.
"""

from __future__ import annotations

import math
from collections import defaultdict

from sim.cluster.fairshare import Flow, max_min_rates


def paced(transfers, rate, latency):
    """Seconds until all has arrived where *rate* gives the bytes/s of each transfer's stream, and *latency* its seconds."""
    free, arrived = defaultdict(float), []
    for transfer in transfers:
        start = max([free[_stream(transfer)], *(arrived[number] for number in transfer.after)])
        free[_stream(transfer)] = start + transfer.nbytes / rate(transfer)
        arrived.append(free[_stream(transfer)] + latency(transfer))
    return max(arrived, default=0.0)


def port_loads(transfers, rate):
    """Bytes/s that the streams into and out of each end ask for together, if all send at once at *rate*."""
    loads = defaultdict(float)
    for transfer in {_stream(transfer): transfer for transfer in transfers}.values():
        loads[transfer.src, "out"] += rate(transfer)
        loads[transfer.dst, "in"] += rate(transfer)
    return loads


def shared(transfers, bandwidth, latency, wide=()):
    """Seconds until all has arrived where each end has one port of *bandwidth* each way, shared max-min; *wide* ends have no limit."""
    before, last = [], {}
    for number, transfer in enumerate(transfers):
        before.append(last.get(_stream(transfer)))
        last[_stream(transfer)] = number
    waiting, left, left_at, arrival, now = list(range(len(transfers))), {}, {}, {}, 0.0
    while waiting or left:
        for number in list(waiting):
            first = before[number] is None or left_at.get(before[number], math.inf) <= now
            if first and all(arrival.get(needed, math.inf) <= now for needed in transfers[number].after):
                left[number] = transfers[number].nbytes
                waiting.remove(number)
        rates = _rates([transfers[number] for number in left], bandwidth, wide)
        ends = {number: now + left[number] / rate for number, rate in zip(left, rates, strict=True)}
        until = min([*ends.values(), *(at for at in arrival.values() if at > now)])
        for (number, end), rate in zip(ends.items(), rates, strict=True):
            left[number] -= rate * (until - now)
            if end <= until * (1 + 1e-12):
                del left[number]
                left_at[number], arrival[number] = until, until + latency
        now = until
    return max(arrival.values(), default=0.0)


def in_turn(transfers):
    """The same transfers, with those that only copy put after all that reduce: one way a port may share itself between the two."""
    sums = tuple(number for number, transfer in enumerate(transfers) if transfer.reduce_bytes)
    order = [*sums, *(number for number, transfer in enumerate(transfers) if not transfer.reduce_bytes)]
    place = {number: where for where, number in enumerate(order)}
    held = tuple(range(len(sums)))
    return [
        transfers[number]._replace(
            after=(*(place[needed] for needed in transfers[number].after), *(() if transfers[number].reduce_bytes else held))
        )
        for number in order
    ]


def sent(transfers):
    """Bytes that leave each end, by end."""
    total = defaultdict(float)
    for transfer in transfers:
        total[transfer.src] += transfer.nbytes
    return total


def received(transfers):
    """Bytes that reach each end, by end."""
    total = defaultdict(float)
    for transfer in transfers:
        total[transfer.dst] += transfer.nbytes
    return total


def _stream(transfer):
    return transfer.src, transfer.dst, transfer.channel


def _rates(active, bandwidth, wide):
    ports = [[f"{end} {way}" for end, way in ((transfer.src, "out"), (transfer.dst, "in")) if end not in wide] for transfer in active]
    capacity = {port: bandwidth for both in ports for port in both}
    return [share.rate for share in max_min_rates([Flow(dict.fromkeys(both, 1.0)) for both in ports], capacity)]
