"""Oracle: the definition of a bottleneck, by hand."""

from __future__ import annotations

from sim.events import Cause
from sim.training.collectives.price.links import limited_rate

OWN, NIC, PCIE = (Cause.NETWORK, "latency"), (Cause.NETWORK, "NIC"), (Cause.INTERCONNECT, "PCIe")


def test_the_link_that_is_full_first_limits() -> None:
    assert limited_rate(10.0, OWN, []) == (10.0, OWN)
    assert limited_rate(10.0, OWN, [(1.0, 12.0, NIC), (1.0, 10.0, PCIE)]) == (10.0, OWN)  # none is full
    assert limited_rate(10.0, OWN, [(1.0, 8.0, NIC), (2.0, 12.0, PCIE)]) == (6.0, PCIE)
