"""Which links does an operation of all groups of an axis use, how many groups share each link, and how busy is it?

Links of one kind, such as all NICs of a node, are reported as one row, for the busiest.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Op
from sim.training.collectives.price.message import OUT
from sim.training.collectives.price.table import LinkUse
from sim.training.layouts.group_price import GroupPrice
from sim.training.layouts.prices import LayoutPrices


def links_of_groups(prices: LayoutPrices, stage: int, axis: GroupAxis, op: Op, nbytes: float) -> list[LinkUse]:
    """Return the links that *op* on *nbytes* uses on the first node of *stage* and between nodes."""
    sharing = Counter(link for _, plan, own in prices.plans(stage, axis) for slot, link in plan.cost(nbytes, op).load if slot == own)
    return _uses(prices, prices.nodes_of(stage), prices.price(stage, axis, op, nbytes), sharing)


def links_of_sends(prices: LayoutPrices, source: int, target: int, nbytes: float) -> list[LinkUse]:
    """Return the links that sends of *nbytes* from stage *source* to *target* use on the first node of *source* and between nodes."""
    sent = [prices.one_send(ends, nbytes).links for ends in prices.send_pairs(source, target)]
    sharing = Counter(link.name.removeprefix(f"{OUT} ") for links in sent for link in links if link.name.startswith(OUT))
    return _uses(prices, prices.nodes_of(source), prices.send(source, target, nbytes), sharing)


def _uses(prices: LayoutPrices, nodes: str, price: GroupPrice, sharing: Mapping[str, int]) -> list[LinkUse]:
    """Return the links of *nodes* or the machine that *price* loads, by kind, the busiest first."""
    rate = price.volume / (price.uncontended_time - price.launch)
    kinds: dict[str, list[LinkUse]] = defaultdict(list)
    for live, amount in price.load.items():
        own = live.removeprefix(f"{nodes}.")
        if own == live and not prices.of_machine(live):
            continue  # link of another stage's nodes
        tier, described = prices.descriptions[live]
        use = LinkUse(described, tier, 1, sharing.get(own), amount * rate / prices.capacity[live])
        kinds[re.sub(r"\d+", "", described)].append(use)
    rows = [max(uses, key=lambda use: use.busy)._replace(links=len({use.busiest for use in uses})) for uses in kinds.values()]
    return sorted(rows, key=lambda use: -use.busy)
