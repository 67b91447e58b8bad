"""How fast does each activity run when several share links? Weighted max-min fairness by progressive filling.

All rates rise together, each in proportion to its weight, until a link is full or an activity reaches its own cap; whoever is
held by that link or cap keeps its rate, the rest go on. An activity that crosses a link *u* times (a ring with *u* hops over
it) loads it with *u* times its rate, so a ring hop and a copy on one link get half each. See Bertsekas and Gallager, Data
Networks, section 6.5.2; SimGrid's ``maxmin`` solver is the oracle of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SLACK = 1e-12


class Flow(NamedTuple):
    """What one activity asks: load per unit of its rate on each link, its weight, and the most it can use (units/s)."""

    usage: Mapping[str, float]
    weight: float = 1.0
    cap: float = math.inf


class Share(NamedTuple):
    """What it gets: a rate (units/s), and the link that holds it back ("" where its own cap does)."""

    rate: float
    bottleneck: str


def max_min_rates(flows: Sequence[Flow], capacity: Mapping[str, float]) -> list[Share]:
    """Return the share of each of *flows* on links of the given *capacity* (same units/s as the rates times the usage)."""
    shares: list[Share | None] = [None] * len(flows)
    left = {link: capacity[link] for flow in flows for link in flow.usage}
    active = dict.fromkeys(range(len(flows)))
    while active:
        demand: dict[str, float] = {}
        for index in active:
            flow = flows[index]
            for link, use in flow.usage.items():
                demand[link] = demand.get(link, 0.0) + use * flow.weight
        level = min((flows[index].cap / flows[index].weight for index in active), default=math.inf)
        tightest = ""
        for link, load in demand.items():
            if load > 0 and left[link] / load < level * (1 - _SLACK):
                level, tightest = max(left[link], 0.0) / load, link
        full = {link for link, load in demand.items() if load > 0 and left[link] <= level * load * (1 + _SLACK)} if tightest else set()
        frozen = [index for index in active if _held(flows[index], level, full)]
        for index in frozen or list(active):
            flow = flows[index]
            rate = flow.cap if flow.cap <= level * flow.weight * (1 + _SLACK) else level * flow.weight
            shares[index] = Share(rate, next((link for link in flow.usage if link in full), ""))
            for link, use in flow.usage.items():
                left[link] -= use * rate
            del active[index]
    return [share for share in shares if share is not None]


def _held(flow: Flow, level: float, full: set[str]) -> bool:
    return flow.cap <= level * flow.weight * (1 + _SLACK) or any(link in full and use > 0 for link, use in flow.usage.items())
