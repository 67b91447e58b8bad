"""Oracle: prices times time, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis import cost
from sim.spec.hardware import Group, Hardware, Node
from sim.spec.node_prices import Prices

P3_16XLARGE = {"on_demand": "24.48 USD/h", "spot": "7.344 USD/h", "date": "2022-06-01", "source": "test"}
P3_8XLARGE = {"on_demand": "12.24 USD/h", "date": "2022-06-01", "source": "test"}


def hardware(*groups: tuple[dict[str, Any] | None, int]) -> Hardware:
    """Groups of nodes by price and count; nothing else of a node matters here."""
    made = [
        Group.model_construct(count=count, role="worker", price=None if price is None else Prices.model_validate(price))
        for price, count in groups
    ]
    return Hardware.model_construct(name="h", groups=tuple(made))


def test_an_hour_costs_the_hourly_price() -> None:
    assert cost.cost(hardware((P3_16XLARGE, 1)), 3600.0) == pytest.approx(24.48)
    assert cost.cost(hardware((P3_16XLARGE, 1)), 3600.0, "spot") == pytest.approx(7.344)


def test_nodes_and_groups_add_up() -> None:
    """Two p3.8xlarge and three p3.16xlarge for ten minutes: (2 x 12.24 + 3 x 24.48) / 6."""
    mixed = hardware((P3_8XLARGE, 2), (P3_16XLARGE, 3))
    assert cost.cost(mixed, 600.0) == pytest.approx(16.32)
    assert cost.price(mixed) == pytest.approx(97.92 / 3600)


def test_an_unknown_price_gives_no_cost() -> None:
    """Never a partial sum: one group without a price, or without a spot price, leaves the whole unknown."""
    assert cost.cost(hardware((P3_16XLARGE, 1), (None, 1)), 3600.0) is None
    assert cost.cost(hardware((P3_16XLARGE, 1), (P3_8XLARGE, 1)), 3600.0, "spot") is None


def test_two_halves_of_the_machine_cost_the_whole() -> None:
    """AWS prices p3 per GPU: 2 x p3.8xlarge cost what p3.16xlarge costs."""
    assert cost.price(hardware((P3_8XLARGE, 2))) == pytest.approx(cost.price(hardware((P3_16XLARGE, 1))))


def test_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        cost.cost(hardware((P3_8XLARGE, 1)), -1.0)


def machines(*groups: tuple[float | None, int, int, str]) -> Hardware:
    """Groups by USD/h of a node, count, GPUs of a node and role."""
    made = []
    for price, count, gpus, role in groups:
        priced = {"on_demand": f"{price} USD/h", "date": "2022-06-01", "source": "test"}
        prices = None if price is None else Prices.model_validate(priced)
        made.append(Group.model_construct(count=count, role=role, price=prices, node=Node.model_construct(gpu_count=gpus)))
    return Hardware.model_construct(name="h", groups=tuple(made))


def test_jobs_share_a_node_by_their_gpus() -> None:
    """By hand: 2 of 4 GPUs in use on node 0 at 8 USD/h, all of node 1; node 2 is idle. Together: two nodes."""
    hardware = machines((8.0, 3, 8, "worker"))
    one, other = {0: 2, 1: 3}, {0: 2}
    everyone = {0: 4, 1: 3}
    assert cost.job_price(hardware, one, everyone) == pytest.approx(12 / 3600)
    assert cost.job_price(hardware, other, everyone) == pytest.approx(4 / 3600)


def test_jobs_share_servers_by_their_gpus_in_all() -> None:
    """By hand: 1 of 4 GPUs pays a quarter of two servers at 2 USD/h, and its own node; workers without GPUs count no node."""
    hardware = machines((2.0, 2, 0, "server"), (8.0, 1, 8, "worker"), (6.0, 1, 8, "worker"))
    assert cost.job_price(hardware, {0: 1}, {0: 1, 1: 3}, servers=2) == pytest.approx((1 + 8) / 3600)


def test_servers_that_no_job_uses_are_not_rented() -> None:
    """By hand: one node at 8 USD/h, and none, one or both of two servers at 2 USD/h."""
    hardware = machines((8.0, 1, 8, "worker"), (2.0, 1, 0, "server"), (2.0, 1, 0, "server"))
    paid = [cost.job_price(hardware, {0: 8}, {0: 8}, servers=used) for used in range(3)]
    assert paid == pytest.approx([8 / 3600, 10 / 3600, 12 / 3600])


def test_one_job_pays_for_all_it_uses() -> None:
    """Oracle: the price of the whole machine."""
    hardware = machines((8.0, 2, 8, "worker"), (2.0, 2, 0, "server"))
    assert cost.job_price(hardware, {0: 1, 1: 2}, {0: 1, 1: 2}, servers=2) == pytest.approx(cost.price(hardware))


def test_an_unknown_price_counts_only_where_it_is_shared() -> None:
    hardware = machines((8.0, 1, 8, "worker"), (None, 1, 8, "worker"))
    assert cost.job_price(hardware, {0: 8}, {0: 8}) == pytest.approx(8 / 3600)
    assert cost.job_price(hardware, {1: 8}, {1: 8}) is None
