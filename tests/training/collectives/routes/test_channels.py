"""Rings on real link graphs: how many, over which links, and where they leave the node."""

from __future__ import annotations

import time
from collections import Counter
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.topology import node_graph
from sim.spec.library import load_hardware
from sim.training.collectives.routes.channels import Channels, nic_of, ring_channels
from tests.cluster import machines

EIGHT = tuple(range(8))


def rings(machine, gpus=EIGHT, nodes=1) -> Channels:
    return ring_channels(node_graph(machine()), gpus, nodes)


def test_rings_of_one_node():
    """Check values of NVIDIA/nccl: a DGX-1V gives 6 rings, p3.8xlarge's quad 4; NVSwitch one per NVLink of a GPU."""
    assert len(rings(machines.p3_16xlarge).channels) == 6
    assert len(rings(machines.p3_16xlarge, (0, 1, 2, 3)).channels) == 4
    assert len(rings(machines.p4d).channels) == 12
    assert len(rings(machines.hgx_h100, (1, 5)).channels) == 18
    assert rings(machines.p3_16xlarge).kind == "nvlink"


def test_rings_enter_at_the_gpu_next_to_their_nic():
    """Four GH200, each with a NIC of its own on its own processor, and NVLinks between all of them: NCCL_CROSS_NIC=0, as on Alps."""
    graph = node_graph(load_hardware("calibration/hardware/alps-gh200.yaml").spec.groups[0].node)
    for nic, channel in enumerate(ring_channels(graph, (0, 1, 2, 3), 2).channels):
        arriving, leaving = channel.hops[0], channel.hops[-1]
        assert (channel.gpus[0], nic_of(arriving), nic_of(leaving)) == (nic, nic, nic)
        assert not arriving.staged and arriving.route.path_class == "PHB" and leaving.route.path_class == "SYS"


def test_quads_with_nvlink_rings():
    """Check value: 8 of the 70 four-GPU subsets of a DGX-1V have any NVLink-only ring, 2 have four."""
    quads = [rings(machines.p3_16xlarge, gpus) for gpus in combinations(range(8), 4)]
    assert Counter(len(ring.channels) for ring in quads if ring.kind == "nvlink") == {4: 2, 2: 6}
    assert {len(ring.channels) for ring in quads if ring.kind == "pcie"} <= {1, 2}


def test_bridged_pairs_leave_the_way_back_to_a_second_ring():
    """Closed form: NVLink in every second hop uses one direction of each PCIe port; the ring the other way round takes the other."""
    sockets = "[{gpus: [0, 1, 2, 3, 4, 5, 6, 7], nics: [0, 1, 2, 3]}, {}]"
    changes = {"nvlink": "null", "switches": "[]", "bridged": "true", "peer_to_peer": "phb", "sockets": sockets}
    described = load_hardware("dgx-1-p100", ["node.gpu=a40", *(f"node.topology.{key}={value}" for key, value in changes.items())])
    node = described.spec.groups[0].node
    assert len(ring_channels(node_graph(node), (0, 1, 2, 3)).channels) == 2
    assert set(ring_channels(node_graph(node), (0, 1, 2, 3)).crossings.values()) == {1}
    assert len(ring_channels(node_graph(node), (0, 2, 4)).channels) == 1
    assert [channel.gpus for channel in ring_channels(node_graph(node), (0, 1)).channels] == [(0, 1)] * 4


@given(
    st.sampled_from([machines.p3_16xlarge, machines.dgx_1v, machines.p4d, machines.hgx_h100, machines.p2_16xlarge, machines.two_islands]),
    st.integers(1, 3),
    st.data(),
)
def test_every_channel_is_a_ring_through_every_gpu(machine, nodes, data):
    """Oracle: hops join end to end, each GPU is entered and left once, and NVLink pairs carry no more rings than they have links."""
    graph = node_graph(machine())
    gpus = tuple(data.draw(st.lists(st.integers(0, graph.node.gpu_count - 1), min_size=1, max_size=8, unique=True)))
    routed = ring_channels(graph, gpus, nodes)
    assert routed.channels
    for channel in routed.channels:
        assert sorted(channel.gpus) == sorted(gpus)
        ends = [(hop.src, hop.dst) for hop in channel.hops]
        if nodes > 1:
            assert ends[0][0] == ends[-1][1] == "net"
        if ends:
            assert [end for _, end in ends] == [*(start for start, _ in ends[1:]), ends[0][0]]
            assert len(channel.edges) == len(gpus)
        assert all(set(hop.links) <= set(graph.links) for hop in channel.hops)
    if routed.kind == "nvlink" and nodes == 1:
        for src, dst in permutations(gpus, 2):
            assert routed.crossings.get(f"gpu{src}>gpu{dst}", 0) <= graph.nvlinks(src, dst)
    assert ring_channels(graph, gpus, nodes) is routed


def test_crossings_count_every_hop():
    """Conservation: the crossings of all links are the links of all hops."""
    routed = rings(machines.dgx_1v, nodes=2)
    assert sum(routed.crossings.values()) == sum(len(hop.links) for channel in routed.channels for hop in channel.hops)


def test_one_ring_on_boards_crosses_each_uplink_once_each_way():
    """Closed form: a walk of a tree meets each of its edges once in each direction."""
    routed = rings(machines.p2_16xlarge, tuple(range(16)))
    assert len(routed.channels) == 1
    uplinks = {link: count for link, count in routed.crossings.items() if "socket" in link}
    assert set(uplinks.values()) == {1}
    assert Counter(hop.staged for hop in routed.channels[0].hops) == {False: 14, True: 2}  # staged only between the halves


def test_sixteen_gpus_are_quick():
    """A stated bound: under 50 ms of CPU time without the cache."""
    graph = node_graph(machines.p2_16xlarge())
    spent = []
    for _ in range(3):
        start = time.process_time()
        ring_channels.__wrapped__(graph, tuple(range(16)), 2)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05


def test_two_islands_use_their_nvlinks_and_stage_between():
    """NVLink where there is some, two staged hops between the islands, as NCCL's relaxed search ends."""
    hops = rings(machines.two_islands, (0, 2, 1, 3)).channels[0].hops
    assert Counter(hop.transport.name for hop in hops) == {"nvlink": 2, "host-staged": 2}


def test_channels_of_several_nodes_follow_their_cards():
    """One ring per 100 Gbps card of a DGX-1, in and out under its own switch, over NVLink inside."""
    routed = rings(machines.dgx_1v, nodes=4)
    assert [channel.hops[0].links[0] for channel in routed.channels] == [f"net>nic{k}" for k in range(4)]
    for k, channel in enumerate(routed.channels):
        assert {channel.gpus[0], channel.gpus[-1]} == {2 * k, 2 * k + 1}
        assert not channel.hops[0].staged and not channel.hops[-1].staged
        assert {hop.route.path_class for hop in channel.hops[1:-1]} == {"NVL"}


@pytest.mark.parametrize(("machine", "cards"), [(machines.hgx_h100, 8), (machines.p5, 32), (machines.p4d, 4)])
def test_each_card_carries_one_ring_each_way(machine, cards):
    """Balance: where a ring cannot leave near the card it came by, it leaves by a card of its last GPU that no other ring takes."""
    routed = rings(machine, nodes=2)
    assert {routed.crossings[f"nic{k}>net"] for k in range(cards)} == {routed.crossings[f"net>nic{k}"] for k in range(cards)} == {1}
    assert len(routed.channels) == cards


def test_one_card_for_all():
    """p3.16xlarge: one channel through the 25 Gbps card, staged through host memory, ends on the card's socket."""
    routed = rings(machines.p3_16xlarge, nodes=2)
    assert len(routed.channels) == 1
    channel = routed.channels[0]
    assert channel.hops[0].staged and channel.hops[0].tier == channel.hops[-1].tier == "network"
    assert channel.gpus[0] < 4 and channel.gpus[-1] < 4


def test_a_card_faster_than_an_nvlink_gets_two_channels():
    """Bound: a 400 Gbps card moves more than one V100 NVLink carries."""
    nic = {"bandwidth": "400 Gbps", "transport": machines.transport("infiniband")}
    node = machines.node(4, {"nvlink": machines.nvlink_pairs(dict.fromkeys(("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"), 2)),
                             "sockets": ({"gpus": (0, 1, 2, 3), "nics": (0,)},)}, nic=nic)  # fmt: skip
    assert len(ring_channels(node_graph(node), (0, 1, 2, 3), 2).channels) == 2


def test_faster_cards_never_carry_less():
    """Bound: cards faster than an NVLink keep equal shares; six paths would load two of four cards twice as much as the others."""
    node = machines.dgx_1v()
    nics = [node.nic.model_copy(update={"bandwidth": bandwidth}) for bandwidth in (12.5e9, 50e9)]
    graphs = [node_graph(node.model_copy(update={"nic": nic})) for nic in nics]
    routed = [ring_channels(graph, EIGHT, 2) for graph in graphs]
    slower, faster = (
        len(each.channels) * min(graph.links[link].capacity / count for link, count in each.crossings.items())
        for graph, each in zip(graphs, routed, strict=True)
    )
    assert faster >= slower
    assert {routed[1].crossings[f"nic{card}>net"] for card in range(4)} == {1}


@pytest.mark.parametrize("gpus", [(0, 1), (0, 3, 5, 6), EIGHT])
def test_gpus_with_cards_of_their_own_leave_by_the_card_of_the_last(gpus):
    """Balance: where no ring can come and leave by one card without the processor, each card carries one ring in and another out."""
    node = load_hardware("mi300x-platform").spec.groups[0].node
    routed = ring_channels(node_graph(node), gpus, 2)
    assert len(routed.channels) == len(gpus)
    assert not any(hop.staged for channel in routed.channels for hop in channel.hops)
    for card in gpus:
        assert routed.crossings[f"net>nic{card}"] == routed.crossings[f"nic{card}>net"] == 1


def test_single_gpus():
    """Alone a GPU exchanges nothing; with one on each node its edge goes out and in."""
    alone = rings(machines.p3_16xlarge, (5,))
    assert alone.channels[0].hops == () and alone.launch == 0
    hops = rings(machines.p3_16xlarge, (5,), nodes=2).channels[0].hops
    assert [(hop.src, hop.dst) for hop in hops] == [("net", "gpu5"), ("gpu5", "net")]


def test_flow_caps_carry_the_loss_on_small_chunks():
    """Definition: with a flow cap the efficiency curve is the flows', without it the links'."""
    tcp = rings(machines.p3_16xlarge, nodes=2).channels[0].hops[0]
    constants = tcp.transport
    assert constants.flow_cap is not None
    assert tcp.efficiency(1e5) == 1
    assert tcp.flow_cap(1e9) == pytest.approx(constants.flow_cap * constants.flows * constants.efficiency[-1][1])
    nvlink = rings(machines.p4d).channels[0].hops[0]
    assert nvlink.efficiency(1e9) == nvlink.transport.efficiency[-1][1] and nvlink.flow_cap(1e9) == float("inf")


def test_cutting_to_the_channels_of_a_smaller_node():
    assert rings(machines.dgx_1v, nodes=2).first(1).channels == rings(machines.dgx_1v, nodes=2).channels[:1]


@pytest.mark.parametrize(("gpus", "nodes"), [((), 1), ((0, 0), 1), ((0, 9), 1), ((0, 1), 0)])
def test_impossible_choices_are_refused(gpus, nodes):
    with pytest.raises(ValueError, match=r"choice of the node|at least one node"):
        rings(machines.p3_16xlarge, gpus, nodes)


def test_rings_through_nics_below_one_processor_begin_and_end_at_different_gpus():
    """Four A100 joined in pairs and four NICs at one processor (Perlmutter): each GPU's port has the rate of one ring in and one out.

    All rings had entered at the first GPU and left at the last, and so carried a quarter.
    """
    graph = node_graph(load_hardware("calibration/hardware/perlmutter.yaml").spec.groups[0].node)
    channels = ring_channels(graph, (0, 1, 2, 3), 2).channels
    assert sorted(channel.gpus[0] for channel in channels) == sorted(channel.gpus[-1] for channel in channels) == [0, 1, 2, 3]
    assert sorted(nic_of(channel.hops[0]) for channel in channels) == [0, 1, 2, 3]


ONE_NIC = (
    "node.nic.count=1",
    "node.topology.switches=[{name: plx0, parent: socket0, gpus: [0, 1, 2, 3], nics: [0]},"
    "{name: plx1, parent: socket1, gpus: [4, 5, 6, 7]}]",
)


def test_a_gpu_far_from_the_only_nic_sends_through_one_near_it():
    """NCCL's PXN: a ring comes back to its NIC over NVSwitch instead of through host memory, if the near GPU belongs to the job."""
    graph = node_graph(load_hardware("hgx-h100", ONE_NIC).spec.groups[0].node)
    leaving = ("gpu7>nvswitch", "nvswitch>gpu0", "gpu0>plx0", "plx0>nic0", "nic0>net")
    assert graph.to_nic(7, 0, EIGHT).links == leaving
    assert (graph.to_nic(7, 0, EIGHT).path_class, graph.to_nic(7, 0, EIGHT).staged) == ("PXN", False)
    assert graph.to_nic(7, 0).staged and graph.to_nic(7, 0, (4, 5, 6, 7)).staged
    assert graph.to_nic(3, 0, EIGHT) == graph.to_nic(3, 0)
    for relays, staged in ((False, True), (True, False)):
        (channel,) = ring_channels(graph, (0, 4, 5, 6, 7), 2, relays).channels
        assert channel.hops[-1].staged is staged


def test_cards_beside_every_gpu_need_no_relay():
    """The catalog's machines with NVSwitches have rings that leave at a GPU near their NIC."""
    for machine in (machines.hgx_h100, machines.p4d, machines.p5):
        assert rings(machine, nodes=2).channels == ring_channels(node_graph(machine()), EIGHT, 2, True).channels
