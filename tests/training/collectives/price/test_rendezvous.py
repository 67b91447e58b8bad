"""What asking before sending adds. Oracle: the same machine without a limit, and one exchange a hop between nodes, counted by hand."""

from __future__ import annotations

import pytest

from sim.training.collectives.price.rendezvous import rendezvous
from tests.harness import Rig, machine

ASKS = {"eager": "4097 B", "rendezvous": "7 us"}


def added(toys_of, op, algorithm, protocol, nbytes, channels=1):
    """Seconds that a limit adds."""
    times = [
        Rig(toys_of({"hop_latency": "10 us", **more}), fold=True).plan.cost_of(nbytes, algorithm, protocol, channels, op).uncontended_time
        for more in (ASKS, {})
    ]
    return times[0] - times[1]


def two(network):
    return machine(2, 2, nic=1e9, network=network)


@pytest.mark.parametrize(
    ("op", "algorithm", "protocol", "nbytes", "hops"),
    [
        ("all_reduce", "Ring", "LL", 4 * 2048, 0.0),  # 2 KiB to each of four ranks, twice that with flags
        ("all_reduce", "Ring", "LL", 4 * 2056, 6 * 2 / 4),  # six steps around a ring with two hops between nodes of four
        ("all_gather", "Ring", "Simple", 4 * 4097, 0.0),
        ("all_gather", "Ring", "Simple", 4 * 4104, 3 * 2 / 4),
        ("broadcast", "Ring", "Simple", 1e6, 1.0),
        ("all_reduce", "Tree", "LL", 2048, 0.0),
        ("all_reduce", "Tree", "LL", 4096, 2.0),  # up and down
        ("all_reduce", "Tree", "Simple", 1e6, 2.0),
        ("all_to_all", "Pairwise", "Simple", 1e6, 1.0),
        ("send_recv", "SendRecv", "Simple", 4000, 0.0),
        ("send_recv", "SendRecv", "Simple", 4104, 1.0),
    ],
)
def test_each_hop_between_nodes_asks_once_for_what_is_not_eager(op, algorithm, protocol, nbytes, hops):
    assert added(two, op, algorithm, protocol, nbytes) == pytest.approx(hops * 7e-6, abs=1e-12)


def test_channels_share_the_bytes_of_a_message():
    assert added(two, "all_reduce", "Tree", "LL", 4096, channels=2) == 0.0


def test_a_deeper_tree_asks_more_often_and_one_node_never():
    """Nine nodes are four hops deep, two are one: eight exchanges, and two."""
    nine = added(lambda network: machine(1, 9, nic=1e9, network=network), "all_reduce", "Tree", "Simple", 1e6)
    assert nine == pytest.approx(8 * 7e-6, abs=1e-12)
    alone = Rig(machine(4, 1, nic=1e9, network={"hop_latency": "10 us", **ASKS}), fold=True).plan.layout
    assert rendezvous(alone, "all_reduce", "Ring", "Simple", 1e9, 1) == 0.0


def test_what_other_libraries_do_is_not_counted():
    assert added(two, "all_reduce", "HalvingDoubling", "Simple", 1e6) == 0.0
