"""One all-reduce alone: the closed form on uniform rings, and published nccl-tests tables with transport constants only."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import Slot
from sim.cluster.topology import node_graph
from sim.spec.hardware import Transport
from sim.training.collectives.price.collective_plan import Tuning, plan_collectives
from sim.training.collectives.price.table import time_in_loop
from sim.training.collectives.routes.channels import ring_channels
from tests.cluster import machines
from tests.oracle.collectives.single_ring import all_reduce_time, hop_rate

KIB, MIB, GIB = 2**10, 2**20, 2**30


def estimate(machine, gpus, nbytes, nodes=1):
    graph = node_graph(machine)
    return all_reduce_time(graph, ring_channels(graph, tuple(range(gpus)), nodes), nbytes)


@given(st.integers(2, 8), st.floats(1, 1e10))
def test_uniform_ring(gpus, nbytes):
    """Closed form: launch + 2(n-1)/n * S/B + 2(n-1) * latency, with B all links of a GPU to NVSwitch."""
    ideal = Transport(name="ideal", hop_latency="2 us", launch="10 us", efficiency=1.0, source="test")
    node = machines.p4d().model_copy(update={"nvlink_transport": ideal})
    bandwidth = node_graph(node).links["gpu0>nvswitch"].capacity
    expected = 10e-6 + 2 * (gpus - 1) / gpus * nbytes / bandwidth + 2 * (gpus - 1) * 2e-6
    assert estimate(node, gpus, nbytes).time == pytest.approx(expected, rel=1e-12)


def test_alone_there_is_nothing_to_exchange():
    assert estimate(machines.p4d(), 1, 1e9) == (0.0, 0.0, "")


def test_the_card_bounds_two_nodes():
    """Bound: an all-reduce over a 25 Gbps card takes at least the payload's time on the wire."""
    alone = estimate(machines.p3_16xlarge(), 8, GIB, nodes=2)
    assert alone.bottleneck in ("net>nic0", "nic0>net")
    assert alone.time > 2 * 15 / 16 * GIB / (25e9 / 8)


def test_more_nodes_never_take_less():
    """Monotone: a longer ring sends more bytes over each hop and takes more steps."""
    for nbytes in (KIB, MIB, GIB):
        times = [estimate(machines.dgx_1v(), 8, nbytes, nodes).time for nodes in (2, 3, 4, 8, 64)]
        assert times == sorted(times)


def test_a_bad_slice_is_slower_than_the_whole_quad():
    """The quad of a p3.8xlarge has four NVLink rings; the quad 0, 1, 4, 6 of the same board has none."""
    graph = node_graph(machines.p3_16xlarge())
    good, bad = (all_reduce_time(graph, ring_channels(graph, gpus), 100 * MIB).time for gpus in ((0, 1, 2, 3), (0, 1, 4, 6)))
    assert bad > 5 * good


@given(
    st.sampled_from([machines.p3_16xlarge, machines.p2_16xlarge, machines.two_islands, machines.p5]), st.integers(1, 4), st.floats(1e3, 1e9)
)
def test_no_link_carries_more_than_its_capacity(machine, nodes, nbytes):
    """Conservation: at the rates of an all-reduce alone, the crossings of a link times the slowest hop's rate fit on it."""
    graph = node_graph(machine())
    channels = ring_channels(graph, tuple(range(graph.node.gpu_count)), nodes)
    ranks = graph.node.gpu_count * nodes
    chunk = nbytes / ranks / len(channels.channels)
    rate = min(hop_rate(graph, channels.crossings, hop, chunk)[0] for channel in channels.channels for hop in channel.hops)
    assert all(rate * crossings <= graph.links[link].capacity * (1 + 1e-12) for link, crossings in channels.crossings.items())


def p3dn(transport):
    nic = {"bandwidth": "100 Gbps", "transport": machines.transport(transport)}
    topology = {"nvlink": machines.nvlink_pairs(machines.CUBE_MESH), "sockets": ({"nics": (0,)}, {}), "switches": machines.PAIRED}
    return machines.node(8, topology, nic=nic)


def test_an_intel_processor_relays_at_five_sixths():
    """Oracle: NCCL's own figure (src/graph/topo.h, INTEL_P2P_OVERHEAD), at the bridge of an Intel processor alone, not below a switch."""
    switch = {"sockets": ({"nics": (0,)},), "switches": [{"name": "plx0", "parent": "socket0", "gpus": (0, 1)}]}
    bridge = {"sockets": ({"gpus": (0, 1), "nics": (0,)},), "peer_to_peer": "phb"}
    intel, below = machines.node(2, bridge), machines.node(2, switch)
    amd = intel.model_copy(update={"host": intel.host.model_copy(update={"cpu": intel.host.cpu.model_copy(update={"vendor": "amd"})})})
    times = {name: estimate(machine, 2, GIB).time for name, machine in (("intel", intel), ("amd", amd), ("switch", below))}
    latency = estimate(amd, 2, 1).time
    assert (times["intel"] - latency) / (times["amd"] - latency) == pytest.approx(6 / 5, rel=1e-6)
    assert times["switch"] == pytest.approx(times["amd"])


def test_copies_through_host_memory_share_the_uplink_of_a_switch():
    """Conservation: two GPUs below one switch write and read what they exchange over its uplink, half each; a card there takes a third.

    Without a card four and eight GPUs are no slower than two: the ring crosses no uplink oftener.
    """
    switches = [{"name": f"plx{at}", "parent": f"socket{at // 2}", "gpus": (2 * at, 2 * at + 1)} for at in range(4)]
    switches[0]["nics"] = (0,)
    overlapped = Transport(name="copies", hop_latency="0 us", launch="0 us", efficiency=2.0, source="test")
    verbs = Transport(name="verbs", hop_latency="0 us", launch="0 us", efficiency=1.0, source="test")
    topology = {"sockets": ({}, {}), "switches": switches, "peer_to_peer": "none"}
    machine = machines.node(8, topology, nic={"bandwidth": "200 Gbps", "transport": verbs})
    machine = machine.model_copy(update={"host_transport": overlapped})
    uplink = node_graph(machine).links["plx0>socket0"].capacity
    for gpus, nodes, share in ((2, 1, 2), (4, 1, 2), (8, 1, 2), (8, 2, 3)):
        ranks = gpus * nodes
        assert estimate(machine, gpus, GIB, nodes).time == pytest.approx(2 * (ranks - 1) / ranks * GIB / (uplink / share), rel=1e-6)


def test_a_networks_headers_stay_on_its_wire():
    """Conservation: PCIe carries what a card takes from it, not the headers that the card adds; on the wire they count."""
    verbs = Transport(name="verbs", hop_latency="0 us", launch="0 us", efficiency=0.8, source="test")
    port = machines.link("pcie3-x16").bandwidth * machines.link("pcie3-x16").efficiency
    for gbps, rate in ((100, 0.8 * 12.5e9), (200, port)):
        card = {"bandwidth": f"{gbps} Gbps", "transport": verbs, "gpudirect": True, "gpudirect_level": "phb"}
        machine = machines.node(1, {"sockets": ({"gpus": (0,), "nics": (0,)},)}, nic=card)
        assert estimate(machine, 1, GIB, nodes=2).time == pytest.approx(GIB / rate, rel=1e-9)


def four_below_a_switch():
    return machines.node(4, {"sockets": ({"nics": (0,)},), "switches": [{"name": "plx0", "parent": "socket0", "gpus": (0, 1, 2, 3)}]})


def four_on_two_sockets():
    return machines.node(4, {"sockets": ({"gpus": (0, 1), "nics": (0,)}, {"gpus": (2, 3)})})


TABLES = {
    # nccl-tests of 2019-09 on 8 x V100 SXM2, hybrid cube mesh; 1 GiB: OCI BM.GPU3.8
    "8 x V100": (machines.p3_16xlarge, 8, 1, {64 * KIB: 52.78, MIB: 89.27, 8 * MIB: 203.8, 32 * MIB: 550.8, 128 * MIB: 1818.8, GIB: 13867}),
    # stas00/ml-engineering @744d01e1 network/README.md
    "8 x A100": (machines.p4d, 8, 1, {64 * KIB: 46.8, MIB: 101.9, 8 * MIB: 133.5, 32 * MIB: 424, 128 * MIB: 1327.6, GIB: 8203.9}),
    # NCCL 2.26 on 4 x V100 without NVLink
    "4 x V100 staged": (four_on_two_sockets, 4, 1, {64 * KIB: 39.85, MIB: 236.8, 8 * MIB: 1739, 128 * MIB: 28279, GIB: 222838}),
    # baidu-research/DeepBench, GTX 1080 Ti, NCCL 2.0: its README has five below a switch
    "4 x 1080 Ti": (four_below_a_switch, 4, 1, {400_000: 91.07, 16_777_216: 2313, 258_000_000: 35105.65}),
    # AWS EC2 user guide, 2 x p3dn.24xlarge, NCCL 2.4.8, ring
    "2 x p3dn EFA": (lambda: p3dn("efa"), 8, 2, {KIB: 151, 64 * KIB: 167.7, MIB: 709.3, 16 * MIB: 4631.7, 128 * MIB: 33403, GIB: 228178}),
    # zarzen/nccl-tests @150149d2, one GPU per node
    "2 x p3dn TCP": (lambda: p3dn("tcp"), 1, 2, {64 * KIB: 231.3, MIB: 592, 8 * MIB: 1984.5, 64 * MIB: 15096, 512 * MIB: 117092}),
    "4 x p3dn TCP": (lambda: p3dn("tcp"), 1, 4, {64 * KIB: 426.7, MIB: 1198.6, 8 * MIB: 4158.9, 64 * MIB: 19864, 512 * MIB: 160234}),
}


ONE_PROCESS = ("8 x V100", "8 x A100", "4 x 1080 Ti")
"""Tables of one process that launches on all GPUs; the others have a process for each."""


@pytest.mark.parametrize("table", TABLES)
def test_published_tables(table):
    """Measured record (bytes: microseconds): the transport constants were fitted on these tables, so this guards model and constants."""
    machine, gpus, nodes, rows = TABLES[table]
    tuning = {"2 x p3dn EFA": Tuning("2.10", "Ring"), "4 x V100 staged": Tuning("2.30")}.get(table, Tuning("2.10"))
    plan = plan_collectives([(Slot("n0", machine(), nodes, ()), tuple(range(gpus)))], None, tuning)
    in_one = gpus if table in ONE_PROCESS else 1
    errors = [abs(time_in_loop(plan.cost(nbytes).uncontended_time, in_one) / (measured * 1e-6) - 1) for nbytes, measured in rows.items()]
    assert median(errors) < 0.15
    assert max(errors) < 0.45
