"""How long do the messages of a layout take at least, in bounds of all layouts at once? Those between stages, and gathers of weights.

Each is priced once for all layouts that place their groups in the same way, from its bytes, without lowering programs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from sim.parallel.lower.layouts import Layout
from sim.parallel.lower.wrapped import WrapSequence
from sim.parallel.mesh import GroupAxis
from sim.spec.workload import Workload
from sim.training.layouts.prices import LayoutPrices

_GATHERED: Final[Sequence[tuple[GroupAxis, bool]]] = (("shard", False), ("expert_data", True))
"""Axes of the groups that gather weights, and whether these are those of experts."""


class SendRows(NamedTuple):
    """Seconds of the messages between consecutive chunks of a layout, for each pair of them (0 on one stage)."""

    alone: NDArray[numpy.float64]
    """One message without contention, in the quicker direction."""
    on_links: NDArray[numpy.float64]
    """All messages of a micro-batch on the busiest of the links of which this pair is the first to send over them; 0 if there is none."""
    held: NDArray[numpy.float64]
    """Messages of a micro-batch after which each stage waits until they are sent."""


def send_rows(layout: Layout, prices: LayoutPrices, stage_of: Sequence[int], nbytes: float, holds: bool) -> SendRows:
    """Return the seconds of messages of *nbytes* between consecutive chunks, which the stages *stage_of* hold.

    *holds*: stages wait for each of their sends, unless sockets buffer them. *layout* has the same mesh, with any chunks.
    """
    alone, on_links, held = numpy.zeros(len(stage_of) - 1), numpy.zeros(len(stage_of) - 1), numpy.zeros(layout.mesh.stages)
    if not nbytes:
        return SendRows(alone, on_links, held)
    busy, first = defaultdict[str, float](float), dict[str, int]()
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, ends in enumerate(pairwise(stage_of)):
        pairs[ends].append(number)
    for ends, numbers in pairs.items():
        if ends[0] == ends[1]:
            continue
        there, back = (prices.least_send_time(*way, nbytes) for way in (ends, ends[::-1]))
        alone[numbers] = min(there, back)
        if holds and prices.sockets is None:
            held[ends[0]] += len(numbers) * there
            held[ends[1]] += len(numbers) * back
        for way in (ends, ends[::-1]) if layout.mesh.is_even else ():
            price = prices.send(*way, nbytes)
            for link, load in price.load.items():
                busy[link] += len(numbers) * load * price.volume / prices.capacity[link]
                first[link] = min(first.get(link, numbers[0]), numbers[0])
    for link, seconds in busy.items():
        on_links[first[link]] = max(on_links[first[link]], seconds)
    return SendRows(alone, on_links, held)


def least_sent(workload: Workload, layout: Layout) -> float:
    """Return the least bytes of a message between two stages, wherever a stage may begin; 0 if the layout has one stage."""
    if len(layout.chunks) == 1 or not layout.chunks[1]:
        return 0.0
    starts = [0, *accumulate(len(unit.pieces) for unit in layout.units)][:-1]
    received = [workload.model.layers[start].received_bytes for start in starts]
    own = received[layout.chunks[1][0]]
    return layout.input_bytes[1] * min(received[1:]) / own if own else 0.0


def gather_time(layout: Layout, prices: LayoutPrices) -> float:
    """Return the seconds in which the only stage of *layout* gathers all weights once: gathers of one group take turns."""
    taken, wraps = [0.0], WrapSequence(layout, layout.chunks[0]).wraps
    for axis, experts in _GATHERED:
        if layout.mesh.group_size(axis) > 1:
            sizes = Counter(layout.gathered_width * sum(layout.elements(unit, experts=experts) for unit in wrap) for wrap in wraps)
            taken.append(sum(count * prices.least_time(0, axis, "all_gather", size) for size, count in sizes.items() if size))
    return max(taken)
