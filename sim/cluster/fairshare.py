"""How fast does each activity run when several share links? Weighted max-min fairness by progressive filling.

All rates rise together, each in proportion to its weight, until a link is full or an activity reaches its own cap. The activities
limited by that link or cap keep their rate; the others continue to rise. An activity that crosses a link *u* times (a ring with *u*
hops over it) loads it with *u* times its rate, so a ring hop and a copy on one link get half each. See Bertsekas and Gallager, Data
Networks, section 6.5.2; SimGrid's ``maxmin`` solver is the oracle of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SLACK = 1e-12  # relative difference below which two levels are equal


class Flow(NamedTuple):
    """The demand of one activity: its load on each link per unit of its rate, its weight, and its maximum rate (units/s)."""

    usage: Mapping[str, float]
    weight: float = 1.0
    cap: float = math.inf


class FlowShare(NamedTuple):
    """The share of one activity: a rate (units/s), and the link that limits it ("" if its own cap does)."""

    rate: float
    bottleneck: str


_NOTHING = FlowShare(0.0, "")


def max_min_rates(flows: Sequence[Flow], capacity: Mapping[str, float]) -> list[FlowShare]:
    """Return the share of each of *flows* on links of the given *capacity* (same units/s as the rates times the usage)."""
    if len(flows) == 1:
        return [_alone(flows[0], capacity)]
    shares = [_NOTHING] * len(flows)
    left = {link: capacity[link] for flow in flows for link in flow.usage}
    active = list(range(len(flows)))
    level = 0.0
    while active:
        level, full = _rise(level, [flows[index] for index in active], left)
        rising = []
        for index in active:
            usage, weight, cap = flows[index]
            rate = cap if cap <= level * weight * (1 + _SLACK) else level * weight
            bottleneck = next((link for link, use in usage.items() if link in full and use > 0), "") if full else ""
            if rate != cap and not bottleneck:
                rising.append(index)
                continue
            shares[index] = FlowShare(rate, bottleneck)
            for link, use in usage.items():
                left[link] -= use * rate
        active = rising
    return shares


def _alone(flow: Flow, capacity: Mapping[str, float]) -> FlowShare:
    """Return the share of a *flow* in isolation; this is the most frequent case, and needs no iteration."""
    usage, weight, cap = flow
    level, by_link = cap / weight, False
    for link, use in usage.items():
        if capacity[link] < level * (use * weight) * (1 - _SLACK):
            level, by_link = capacity[link] / (use * weight), True
    rate = cap if cap <= level * weight * (1 + _SLACK) else level * weight
    if not by_link:
        return FlowShare(rate, "")
    return FlowShare(rate, next(link for link, use in usage.items() if use > 0 and capacity[link] <= level * (use * weight) * (1 + _SLACK)))


def _rise(level: float, flows: Sequence[Flow], left: Mapping[str, float]) -> tuple[float, set[str]]:
    """Return the level (rate per weight) up to which *flows* can rise together from *level*, and the links that are full there."""
    highest = math.inf
    demand: dict[str, float] = {}  # summed again each round: subtracting very unequal weights would leave rounding errors
    for usage, weight, cap in flows:
        if cap < highest * weight:
            highest = cap / weight
        for link, use in usage.items():
            if use > 0:
                demand[link] = demand.get(link, 0.0) + use * weight
    by_link = False
    for link, load in demand.items():
        if left[link] < highest * load * (1 - _SLACK):
            highest, by_link = left[link] / load, True
    highest = max(highest, level)  # rounding errors may put it slightly below the old level
    if not by_link:
        return highest, set()
    return highest, {link for link, load in demand.items() if left[link] <= highest * load * (1 + _SLACK)}
