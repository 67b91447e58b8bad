"""What does a reduction in switches cost, in NVSwitch or in the fabric? Closed forms on uniform networks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import place, slots, with_nodes
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import plan_collectives
from sim.training.collectives.price.pricing import cost as cost_on
from sim.training.collectives.price.pricing import nvls_channels, nvls_piece, nvls_shards
from sim.training.job import job_slots
from tests.harness import Rig, cluster, machine, toy_node
from tests.oracle.collectives.nvls import nvls_all_reduce_time
from tests.oracle.collectives.tree import depth
from tests.training.collectives.price.forced_cost import cost


@pytest.mark.parametrize(("name", "channels"), [("hgx-h100", 16), ("hgx-b200", 24)])
def test_shards_of_a_reduction_in_nvswitch(name, channels):
    """NVIDIA/nccl src/transport/nvls.cc: 16 channels of its own on one node of Hopper, 24 from Blackwell on; each has a shard a GPU."""
    assert nvls_shards(Rig(load_hardware(name).spec, fold=True).plan.layout) == 8 * channels


@pytest.mark.parametrize(
    ("algorithm", "gpus", "payloads"), [("CollNetChain", 2, 1), ("CollNetChain", 4, 2), ("CollNetDirect", 2, 1), ("CollNetDirect", 4, 1.5)]
)
def test_a_switch_that_adds_is_fed_by_the_gpus_of_a_node(algorithm, gpus, payloads):
    """Closed forms of large payloads on any number of nodes: S through each NIC; inside, up and down a chain, or 2(g-1)/g to all others."""
    slow_card = cluster(toy_node(gpus, nic=1e9, nvlink=1e12, pcie=1e15), count=8, in_network_reduction=True)
    slow_links = cluster(toy_node(gpus, nic=1e12, nvlink=1e9, pcie=1e15), count=8, in_network_reduction=True)
    assert cost(slow_card, 1e11, algorithm).uncontended_time == pytest.approx(100.0, rel=1e-3)
    assert cost(slow_links, 1e11, algorithm).uncontended_time == pytest.approx(100.0 * payloads, rel=1e-3)


@given(n=st.integers(3, 16), nbytes=st.floats(1e8, 1e10), latency=st.floats(0, 1e-5))
def test_reduction_in_nvswitch(n, nbytes, latency):
    """Closed form: (n+1)/n S/B + 2 l, as words are stored while others are loaded, where nothing but the ports counts.

    A piece smaller than the largest waits for as much of the latency to the switch, l/2, as it is smaller. Without latency, many pieces
    reach the schedule's.
    """
    toys = machine(n, nvlink=1e11, hop_latency=latency)
    piece = nvls_piece(nbytes, shards := nvls_shards(Rig(toys, fold=True).plan.layout), 1)
    waits = (nbytes / piece - 1) * latency / 2 * (1 - piece / shards / 131072)
    duration = cost(toys, nbytes, "NVLS").uncontended_time
    assert duration == pytest.approx((n + 1) / n * nbytes / 1e11 + 2 * latency + waits, rel=1e-9)
    quick, pieces = (
        cost(machine(n, nvlink=1e11, hop_latency=0.0), 10 * nbytes, "NVLS").uncontended_time,
        10 * nbytes / nvls_piece(10 * nbytes, shards, 1),
    )
    assert quick == pytest.approx(nvls_all_reduce_time(n, 10 * nbytes, 1e11, 0.0, int(1 + pieces)), rel=0.1)


@pytest.mark.parametrize(("name", "gpus", "heads"), [("hgx-h100", 8, 8), ("hgx-b200", 8, 8), ("gb200-nvl72", 72, 32)])
def test_blocks_bound_a_reduction_in_nvswitch(name, gpus, heads):
    """Closed form: pieces are copied in and back by blocks of c bytes/s, and cross ports of B once: (S + p)/(C c) + (h+1)/h p/B + 2 l.

    At most 32 GPUs head it, so that those of a rack of 72 are as fast as 32 would be.
    """
    layout = Rig(load_hardware(name).spec, fold=True).plan.layout
    part, size = layout.parts[0], 2.0**34
    links, blocks = part.slot.node.nvlink, part.slot.node.over_nvlink
    port = links.switch_links * links.link.bandwidth * links.link.efficiency * blocks.efficiency[-1][1]
    assert len(part.gpus) == gpus and nvls_shards(layout) == heads * nvls_channels(layout)
    piece = nvls_piece(size, nvls_shards(layout), 1)
    copied = (size + piece) / nvls_channels(layout) / blocks.nvls_cap
    expected = blocks.launch + copied + (heads + 1) / heads * piece / port + 2 * blocks.hop_latency
    assert cost(load_hardware(name).spec, size, "NVLS").uncontended_time == pytest.approx(expected, rel=1e-6)


def test_blocks_move_less_between_nvswitches_than_within():
    """Closed form of large payloads: of four threads in three for copies on one node, 15.4 of 17.0 GB/s a block are left between two."""
    spec = load_hardware("hgx-h100", ["node.nic.bandwidth=100 Tbps"]).spec
    times = [cost(with_nodes(spec, nodes), 1e12, name).uncontended_time for nodes, name in ((1, "NVLS"), (2, "NVLSTree"))]
    assert times[0] / times[1] == pytest.approx(15.4 / 17.0, rel=1e-2)


@pytest.mark.parametrize(
    ("nodes", "nbytes", "expected"),
    [(1, 2**20, 16), (1, 2**23, 32), (1, 2**26, 64), (1, 2**30, 128), (2, 2**20, 32), (2, 2**23, 64), (2, 2**30, 128), (4, 2**30, 64)],
)
def test_pieces_of_a_reduction_in_nvswitch(nodes, nbytes, expected):
    """NVIDIA/nccl enqueue.cc, KiB of each of 32 shards: 128 cut where rounds are few; 64 at most between four nodes and more."""
    assert nvls_piece(nbytes, 32, nodes) == min(nbytes, 32 * expected * 1024.0)


@given(nbytes=st.floats(1e3, 1e10), latency=st.sampled_from([0.0, 1e-5]))
def test_trees_between_nvswitches_never_gain_from_nodes(nbytes, latency):
    """Monotone: from four nodes on, each node carries as much, and the tree only grows deeper."""
    toys = [machine(8, nodes, nic=10e9, nvlink=1e11, hop_latency=latency, network_latency=latency) for nodes in (4, 8, 16, 64)]
    times = [cost(toy, nbytes, "NVLSTree").uncontended_time for toy in toys]
    assert times == sorted(times)


def test_switches_of_the_fabric_may_add_up():
    """In-network reduction: S out of each node and S in, whatever the number of nodes; NCCL takes it by name."""
    toys = cluster(toy_node(1, nic=1e9, pcie=1e15), count=8, in_network_reduction=True)
    rig = Rig(toys, algorithm="CollNetChain", fold=True)
    assert rig.plan.choice(1e9).algorithm == "CollNetChain"
    assert rig.plan.cost(1e9).uncontended_time == pytest.approx(1.0, rel=0.01)
    with pytest.raises(SpecError, match="needs a network that reduces"):
        Rig(machine(1, 8), algorithm="CollNetChain", fold=True).plan.choice(1e9)


@given(nodes=st.integers(2, 32), nbytes=st.floats(1e5, 1e10))
def test_a_tree_between_nvswitches(nodes, nbytes):
    """Closed form without latency and inside: the first piece's way beside half of the streams, then min(N, 4)/2 S at the NIC."""
    toys = machine(8, nodes, nic=1e9, nvlink=1e18, pcie=1e18)
    piece = nvls_piece(nbytes, nvls_shards(Rig(toys, fold=True).plan.layout), nodes)
    expected = min(nodes, 4) / 2 * (depth(nodes) * piece + nbytes - piece) / 1e9
    assert cost(toys, nbytes, "NVLSTree").uncontended_time == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("nodes", [2, 8])
def test_nvswitches_of_several_nodes_are_fed_by_links_and_nics(nodes):
    """Closed forms of large payloads: S through the NIC to a network that adds; inside, 2 S where one GPU by that NIC heads it."""
    slow_card = cluster(toy_node(8, nic=1e9, nvlink=1e12, pcie=1e15), count=nodes, in_network_reduction=True)
    slow_links = cluster(toy_node(8, nic=1e15, nvlink=1e9, pcie=1e15), count=nodes, in_network_reduction=True)
    assert cost(slow_card, 1e11, "NVLS").uncontended_time == pytest.approx(100.0, rel=2e-2)
    assert cost(slow_links, 1e11, "NVLS").uncontended_time == pytest.approx(2 * 100.0, rel=2e-2)


@pytest.mark.parametrize(("gpus", "heads"), [(8, 8), (64, 32)])
def test_heads_of_a_reduction_in_nvswitch_send_between_nodes(gpus, heads):
    """Closed form of large payloads between two nodes with a NIC for each GPU: the NICs of at most 32 carry S each way."""
    spec = with_nodes(load_hardware("gb200-nvl72", ["node.nic.bandwidth=1 Gbps"]).spec, 2)
    layout = plan_collectives(job_slots(0, slots(spec, [place(spec, 2 * gpus)]))).layout
    nic = spec.groups[0].node.nic
    assert layout.nvls_heads == tuple(range(heads))
    price = cost_on(layout, "all_reduce", "NVLSTree", "Simple", 1e12, 32)
    assert 1e12 / heads / (price.uncontended_time * nic.bandwidth * nic.transport.efficiency[-1][1]) == pytest.approx(1.0, rel=5e-2)


@pytest.mark.parametrize("algorithm", ["NVLS", "CollNetChain"])
def test_leaves_that_add_send_one_payload_up_whatever_is_below(algorithm):
    """Closed form: S through each uplink, from two nodes as from three, of which double binary trees would send 2 S."""
    for nodes, below in ((4, 2), (9, 3)):
        leaves = {"nodes_per_leaf": below, "uplink_bandwidth": "100 MB/s"}
        toys = cluster(toy_node(8, nic=1e12, nvlink=1e12, pcie=1e15), count=nodes, in_network_reduction=True, leaf_spine=leaves)
        assert cost(toys, 1e10, algorithm).uncontended_time == pytest.approx(100.0, rel=2e-2)
