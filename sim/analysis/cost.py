"""How much does a duration cost? The price of all rented nodes, times the duration: ``cost = sum(count * price) * duration``.

A job pays for every node on which it has GPUs, for as long as it runs, whether it computes or waits. Jobs that share a node split its
price in proportion to their GPUs on the node. All jobs split the price of servers in proportion to their total GPUs. Workers without
a job, and servers beyond those that jobs use, are not rented. Limits: per-second billing; no start-up time, storage, traffic or
discounts; prices as dated in the hardware file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sim.spec.hardware import Group, Hardware

Market = Literal["on_demand", "spot"]


def price(hardware: Hardware, market: Market = "on_demand") -> float | None:
    """Return the price (USD/s) of all nodes of *hardware* together, or None if a group has no price on that *market*."""
    total = 0.0
    for group in hardware.groups:
        of_node = node_price(group, market)
        if of_node is None:
            return None
        total += group.count * of_node
    return total


def node_price(group: Group, market: Market = "on_demand") -> float | None:
    """Return the price (USD/s) of one node of *group*, or None if it is unknown."""
    if group.price is None:
        return None
    return group.price.on_demand if market == "on_demand" else group.price.spot


def cost(hardware: Hardware, duration: float, market: Market = "on_demand") -> float | None:
    """Return the cost (USD) of *duration* seconds (a step, an epoch, a job) on *hardware*, or None if a price is unknown."""
    if duration < 0:
        raise ValueError(f"a duration of {duration:g} s is negative")
    rate = price(hardware, market)
    return None if rate is None else rate * duration


def job_price(
    hardware: Hardware, mine: Mapping[int, int], everyone: Mapping[int, int], market: Market = "on_demand", servers: int = 0
) -> float | None:
    """Return the price (USD/s) that one job pays, or None if a price that it shares is unknown.

    *mine* maps each node to the job's GPUs on it, *everyone* to the GPUs of all jobs. Nodes are numbered among the workers with GPUs.
    *servers* is the number of hosts of role ``server`` that the jobs use: the first ones.
    """
    total, node = 0.0, 0
    for group in hardware.groups:
        if group.role != "worker" or not group.node.gpu_count:
            continue
        numbers = range(node, node + group.count)
        node += group.count
        share = sum(mine[number] / everyone[number] for number in numbers if number in mine)
        price = node_price(group, market)
        if price is None and share:
            return None
        total += share * (price or 0.0)
    of_servers = servers_price(hardware, servers, market)
    return None if of_servers is None else total + of_servers * sum(mine.values()) / sum(everyone.values())


def servers_price(hardware: Hardware, servers: int, market: Market = "on_demand") -> float | None:
    """Return the price (USD/s) of the first *servers* hosts of role ``server`` together, or None if one is unknown."""
    hosts = [node_price(group, market) for group in hardware.groups if group.role == "server" for _ in range(group.count)][:servers]
    known = [price for price in hosts if price is not None]
    return sum(known) if len(known) == len(hosts) else None
