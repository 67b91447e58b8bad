"""What does a duration cost? The price of all nodes that are rented, times the time: ``cost = sum(count * price) * duration``.

Every node that a job has GPUs on is paid for whole, as long as the job runs, whether it computes or waits; jobs that share a node
share its price by the GPUs they have there, and all jobs share the price of servers by the GPUs they have in all. Workers without
any job are not rented. Limits: per-second billing; no start-up time, storage, traffic or discounts; prices as dated in the
hardware file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sim.spec.hardware import Group, Hardware

Market = Literal["on_demand", "spot"]


def price(hardware: Hardware, market: Market = "on_demand") -> float | None:
    """Return USD/s of all nodes of *hardware* together, or None where a group has no price on that *market*."""
    total = 0.0
    for group in hardware.groups:
        of_node = node_price(group, market)
        if of_node is None:
            return None
        total += group.count * of_node
    return total


def node_price(group: Group, market: Market = "on_demand") -> float | None:
    """Return USD/s of one node of *group*, or None where its price is unknown."""
    if group.price is None:
        return None
    return group.price.on_demand if market == "on_demand" else group.price.spot


def cost(hardware: Hardware, duration: float, market: Market = "on_demand") -> float | None:
    """Return USD for *duration* seconds (a step, an epoch, a job) on *hardware*, or None where a price is unknown."""
    if duration < 0:
        raise ValueError(f"a duration of {duration:g} s is negative")
    rate = price(hardware, market)
    return None if rate is None else rate * duration


def job_price(hardware: Hardware, mine: Mapping[int, int], everyone: Mapping[int, int], market: Market = "on_demand") -> float | None:
    """Return USD/s that one job pays, or None where a price it shares is unknown.

    *mine* are the GPUs it has and *everyone* those of all jobs, by number of the node among the workers that have GPUs.
    """
    total, node = 0.0, 0
    share_of_servers = sum(mine.values()) / sum(everyone.values())
    for group in hardware.groups:
        numbers = range(0)
        if group.role == "worker" and group.node.gpu_count:
            numbers = range(node, node + group.count)
            node += group.count
        share = sum(mine[number] / everyone[number] for number in numbers if number in mine) if numbers else group.count * share_of_servers
        price = node_price(group, market)
        if price is None and share:
            return None
        total += share * (price or 0.0)
    return total
