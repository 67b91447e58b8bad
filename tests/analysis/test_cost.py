"""Oracle: prices times time, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis import cost
from sim.spec.hardware import Group, Hardware, Prices

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
