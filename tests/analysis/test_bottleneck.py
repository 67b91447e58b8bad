"""Which resource is named? Oracles: step times written down, and what they save by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.bottleneck import RESOURCES, SAME, Bottleneck, largest_saving


def test_what_saves_most_comes_first_and_nothing_where_nothing_saves() -> None:
    assert largest_saving(1.0, {"disk": 0.9, "network": 0.4, "launch": 0.8}) == "network"
    assert largest_saving(1.0, {"disk": 1.0, "network": 1.2}) is None
    assert largest_saving(1.0, {}) is None


def test_of_equal_savings_the_narrower_resource_is_named() -> None:
    """Half a per cent is equal: copies run over PCIe, so both save the same where copies are all that waits."""
    assert largest_saving(1.0, {"pcie": 0.5, "copy": 0.504}) == "copy"
    assert largest_saving(1.0, {"pcie": 0.5, "copy": 0.506}) == "pcie"
    assert largest_saving(1.0, {"pcie": 0.5, "copy": 0.506}, scale=10.0) == "copy"


@given(st.dictionaries(st.sampled_from(RESOURCES), st.floats(0.01, 2.0)))
def test_the_foremost_saves_as_much_as_any_up_to_rounding(freed: dict) -> None:
    """Each of ten resources in turn may give up half a per cent to an earlier one."""
    best, least = largest_saving(1.0, freed), min(freed.values(), default=1.0)
    if best is None:
        assert least >= 1.0
    else:
        assert freed[best] < 1.0 and freed[best] <= least + len(RESOURCES) * SAME


def test_shares_are_of_the_step_as_it_is() -> None:
    bottleneck = Bottleneck(2.0, {"disk": 0.5, "network": 1.5}, "disk", {"network": 0.4, "gpu": 0.1}, without_broadcast=1.8)
    assert bottleneck.saved("disk") == 0.75 and bottleneck.saved("network") == 0.25
    assert bottleneck.saved_broadcast == pytest.approx(0.1)
    assert (bottleneck.next_limit, bottleneck.second) == ("gpu", "network")
    assert bottleneck.saved_by_both == pytest.approx(0.8)


def test_gpus_limit_a_freed_job_where_they_save_as_much_as_anything() -> None:
    """Behind the network the loader is next: whatever else is freed saves the same little."""
    bottleneck = Bottleneck(2.0, {"network": 1.3, "gpu": 1.7}, "network", {"copy": 1.29, "spread": 1.29, "gpu": 1.29})
    assert (bottleneck.next_limit, bottleneck.second) == ("gpu", "copy")
    assert Bottleneck(2.0, {"network": 1.3}, "network", {"disk": 1.0, "gpu": 1.29}).next_limit == "disk"


def test_without_a_first_there_is_no_second() -> None:
    bottleneck = Bottleneck(1.0, {"gpu": 0.1})
    assert (bottleneck.next_limit, bottleneck.second, bottleneck.saved_by_both, bottleneck.saved_broadcast) == (None, None, 0.0, 0.0)
