"""Routes on the link graph: who shares which link, what is staged, and which descriptions are refused."""

from __future__ import annotations

from itertools import pairwise

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.node_links import TopologyError
from sim.cluster.topology import NodeGraph, Route, node_graph
from sim.spec.library import load_hardware
from sim.study.collective import collective_table
from sim.training.collectives.price.collective_plan import Tuning
from tests.cluster import machines
from tests.harness import all_reduce_alone, cluster, toy_node

MACHINES = [machines.p3_16xlarge, machines.dgx_1v, machines.p4d, machines.hgx_h100, machines.p2_16xlarge, machines.two_islands]


def ends(stage: tuple[str, ...]) -> list[tuple[str, str]]:
    return [tuple(link.split(">")) for link in stage if ">" in link]  # type: ignore[misc]


def as_networkx(graph: NodeGraph) -> networkx.DiGraph[str]:
    return networkx.DiGraph(ends(tuple(graph.links)))


def check_connected(graph: NodeGraph, route: Route) -> None:
    assert set(route.links) <= set(graph.links)
    for stage in route.stages:
        for (_, arrived), (left, _) in pairwise(ends(stage)):
            assert arrived == left


@given(st.sampled_from(MACHINES), st.data())
def test_routes_lead_from_source_to_target_over_links_that_exist(machine, data):
    """Oracle: a route is a walk of the graph from its source to its target, link by link."""
    graph = node_graph(machine())
    gpus = st.integers(0, graph.node.gpu_count - 1)
    src, dst = data.draw(gpus), data.draw(gpus)
    if src != dst:
        route = graph.route(src, dst)
        check_connected(graph, route)
        steps = ends(route.links)
        assert steps[0][0] == f"gpu{src}" and steps[-1][1] == f"gpu{dst}"
        assert route.staged == (len(route.stages) == 2) == any(link.startswith("dram") for link in route.links)
    nic = data.draw(st.integers(0, graph.node.nic.count - 1))
    out, back = graph.to_nic(src, nic), graph.from_nic(nic, src)
    for route in (out, back):
        check_connected(graph, route)
    assert out.links[0].startswith(f"gpu{src}>") and out.links[-1] == f"nic{nic}>net"
    assert back.links[0] == f"net>nic{nic}" and back.links[-1].endswith(f">gpu{src}")
    assert [link for link in graph.device_to_host(src).links if ">" in link] == [
        ">".join(reversed(link.split(">"))) for link in reversed(graph.host_to_device(src).links) if ">" in link
    ]


@given(st.sampled_from([machines.p4d, machines.p2_16xlarge]), st.data())
def test_pcie_paths_are_shortest(machine, data):
    """Oracle: networkx's breadth-first search on the same graph without NVLink."""
    graph = node_graph(machine())
    picture = as_networkx(graph)
    picture.remove_nodes_from(["nvswitch", "net"])
    gpu = f"gpu{data.draw(st.integers(0, graph.node.gpu_count - 1))}"
    other = f"nic{data.draw(st.integers(0, graph.node.nic.count - 1))}"
    path = graph._pcie_path(gpu, other)
    assert len([link for link in path if ">" in link]) == networkx.shortest_path_length(picture, gpu, other)


@pytest.mark.parametrize("machine", MACHINES)
def test_graph_is_connected_both_ways(machine):
    """Oracle: networkx."""
    assert networkx.is_strongly_connected(as_networkx(node_graph(machine())))


def test_dgx_1v_classes_are_those_nvidia_smi_prints():
    """Measured record: the published `nvidia-smi topo -m` of eight V100 (kyumdoctor.tistory.com/74); NV1 and NV2 are NVL here."""
    matrix = """
        X NV1 NV1 NV2 NV2 SYS SYS SYS
        NV1 X NV2 NV1 SYS NV2 SYS SYS
        NV1 NV2 X NV2 SYS SYS NV1 SYS
        NV2 NV1 NV2 X SYS SYS SYS NV1
        NV2 SYS SYS SYS X NV1 NV1 NV2
        SYS NV2 SYS SYS NV1 X NV2 NV1
        SYS SYS NV1 SYS NV1 NV2 X NV2
        SYS SYS SYS NV1 NV2 NV1 NV2 X"""
    graph = node_graph(machines.p3_16xlarge())
    for src, row in enumerate(matrix.split("\n")[1:]):
        for dst, printed in enumerate(row.split()):
            if src != dst:
                assert graph.nvlinks(src, dst) == (int(printed[2]) if printed.startswith("NV") else 0)
                assert graph.route(src, dst).path_class == ("NVL" if printed.startswith("NV") else printed)


def test_k80_classes_and_staging():
    """p2.16xlarge: a board is one switch, a socket a host bridge, peers reach up to PHB and the other half is staged."""
    graph = node_graph(machines.p2_16xlarge())
    assert [graph.route(0, other).path_class for other in (1, 2, 7, 8)] == ["PIX", "PHB", "PHB", "SYS"]
    assert graph.route(0, 1).stages == (("gpu0>board0", "board0>gpu1"),)
    assert graph.route(0, 1).transport.name == graph.route(0, 2).transport.name == "pcie-peer"
    far = graph.route(0, 8)
    assert far.stages == (
        ("gpu0>board0", "board0>socket0", "socket0>socket1", "dram1"),
        ("dram1", "socket1>board4", "board4>gpu8"),
    )
    assert far.transport.name == "host-staged"


@pytest.mark.parametrize(("limit", "direct"), [("none", []), ("pix", [1]), ("pxb", [1, 2]), ("phb", [1, 2, 4]), ("sys", [1, 2, 4, 6])])
def test_peer_to_peer_ends_at_the_given_class(limit, direct):
    """GPU 1 lies under the same switch as GPU 0, GPU 2 under a switch above both, GPU 4 on the socket, GPU 6 on the other."""
    switches = [
        {"name": "root", "parent": "socket0"},
        {"name": "left", "parent": "root", "gpus": (0, 1)},
        {"name": "right", "parent": "root", "gpus": (2, 3)},
    ]
    topology = {"sockets": ({"gpus": (4, 5), "nics": (0,)}, {"gpus": (6,)}), "switches": switches, "peer_to_peer": limit}
    graph = node_graph(machines.node(7, topology))
    assert [graph.route(0, other).path_class for other in (1, 2, 4, 6)] == ["PIX", "PXB", "PHB", "SYS"]
    assert [other for other in (1, 2, 4, 6) if not graph.route(0, other).staged] == direct


@pytest.mark.parametrize("peers", [True, False])
def test_gpus_whose_driver_forbids_peers_copy_through_host_memory(peers):
    """The path alone would allow peer access; NVLink does not need it."""
    described = machines.node(
        4,
        {
            "sockets": ({"nics": (0,)},),
            "switches": [{"name": "plx", "parent": "socket0", "gpus": (0, 1, 2, 3)}],
            "nvlink": {"link": machines.link("nvlink2"), "pairs": {"0-1": 2}},
        },
    )
    graph = node_graph(described.model_copy(update={"gpu": described.gpu.model_copy(update={"pcie_peers": peers})}))
    assert [graph.route(0, other).path_class for other in (1, 2)] == ["NVL", "PIX"]
    assert [graph.route(0, other).staged for other in (1, 2)] == [False, not peers]


def test_staged_copies_add_in_series():
    """Closed form: 1/rate = 1/down + 1/up, so two copies over equal ports go at half the rate of one."""
    graph = node_graph(machines.on_one_socket(2))
    port = graph.links["gpu0>socket0"].capacity
    assert graph.isolated_rate(graph.route(0, 1)) == pytest.approx(port / 2)
    assert graph.isolated_rate(graph.host_to_device(0)) == port


def test_gpudirect_stays_on_pcie_and_other_cards_go_through_host_memory():
    """NVIDIA/nccl paths.cc: GPUDirect RDMA up to PXB."""
    graph = node_graph(machines.dgx_1v())
    assert graph.to_nic(0, 0).links == ("gpu0>plx0", "plx0>nic0", "nic0>net")
    assert not graph.to_nic(0, 0).staged
    assert graph.to_nic(0, 1).staged and graph.to_nic(0, 1).path_class == "PHB"
    assert graph.from_nic(2, 0).links.count("dram0") == 2  # written by the card, read by the GPU
    tcp = node_graph(machines.p3_16xlarge())
    assert tcp.to_nic(0, 0).staged
    assert tcp.to_nic(0, 0).stages == (("gpu0>plx0", "plx0>socket0", "dram0"), ("dram0", "socket0>nic0", "nic0>net"))  # copied, then read


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_all_copies_through_host_memory_share_what_a_node_carries(gpus):
    """Closed form: n ranks send 2(n-1)/n of 1 GB each, all through the 4 GB/s that they share; the same in separate pods as without
    peers."""
    for keys in ({"peer_to_peer": "none"}, {"isolated": "host"}):
        node = toy_node(gpus, wiring="pcie", pcie=1e12, host={"efficiency": 1.0})
        topology = node.topology.model_copy(update={"host_copy_bandwidth": 4e9, **keys})
        node = node.model_copy(update={"topology": topology})
        assert all_reduce_alone(cluster(node), "phase", 1e9) == pytest.approx(2 * (gpus - 1) / 4, rel=1e-6)


@pytest.mark.parametrize("level", ["pix", "pxb", "phb", "sys"])
def test_gpudirect_ends_at_the_given_level(level):
    """Closed form: a card at the host bridge reads 1 GB at 1 GB/s from a GPU that it may address, else after a copy of as long."""
    node = toy_node(1, nic=1e9, pcie=1e9, peer_to_peer="none")
    nic = node.nic.model_copy(update={"gpudirect": True, "gpudirect_level": level})
    node = node.model_copy(update={"nic": nic})
    direct = level in ("phb", "sys")
    route = node_graph(node).to_nic(0, 0)
    assert (route.path_class, route.staged) == ("PHB", not direct)
    assert "dram0" not in route.links or not direct
    assert all_reduce_alone(cluster(node, count=2), "phase", 1e9) == pytest.approx(1.0 if direct else 2.0, rel=1e-6)


def test_copies_from_the_host_share_memory_and_the_uplink():
    """Issue of who shares what: GPUs 0 and 1 of a DGX-1 meet on the uplink of their switch, GPUs 0 and 4 nowhere."""
    graph = node_graph(machines.p3_16xlarge())
    one, two, far = (graph.host_to_device(gpu).links for gpu in (0, 1, 4))
    assert one == ("dram0", "socket0>plx0", "plx0>gpu0")
    assert set(one) & set(two) == {"dram0", "socket0>plx0"}
    assert not set(one) & set(far)
    assert graph.memory_of(4) == "dram1"


def test_capacities_are_what_links_deliver():
    """Measured record: two bonded V100 NVLinks copy at 47.9 GB/s (Dell white paper on C4130)."""
    graph = node_graph(machines.p3_16xlarge())
    assert graph.links["gpu0>gpu3"].capacity == pytest.approx(47.9e9, rel=1e-3)
    assert graph.links["gpu0>gpu1"].capacity == pytest.approx(graph.links["gpu0>gpu3"].capacity / 2)
    nic = graph.links["net>nic0"]
    assert nic.capacity == pytest.approx(25e9 / 8 * graph.node.nic.transport.total_efficiency)
    assert nic.tier == "network"
    assert {link.tier for link in graph.links.values() if "net" not in link.name} == {"interconnect"}
    assert graph.links["dram0"].capacity == 76.8e9


def test_numa_nodes_of_one_socket_share_its_memory_channels():
    """Conservation: four NUMA nodes on two sockets have the memory bandwidth of two sockets."""
    sockets = tuple({"gpus": (k,), "nics": (0,) if k == 0 else ()} for k in range(4))
    node = machines.node(4, {"sockets": sockets})
    node = node.model_copy(update={"host": node.host.model_copy(update={"sockets": 2})})
    graph = node_graph(node)
    assert sum(graph.links[f"dram{k}"].capacity for k in range(4)) == pytest.approx(2 * 76.8e9)


def test_a_narrow_host_bridge_is_crossed_by_all_that_passes_the_socket():
    topology = {"sockets": ({"gpus": (0, 1), "nics": (0,)},), "peer_to_peer": "phb", "host_bridge_bandwidth": "20 GB/s"}
    graph = node_graph(machines.node(2, topology))
    assert graph.links["bridge0"].capacity == 20e9
    assert graph.route(0, 1).links == ("gpu0>socket0", "bridge0", "socket0>gpu1")
    assert "bridge0" in graph.host_to_device(0).links
    assert graph.to_nic(0, 0).links.count("bridge0") == 2  # in from the GPU, out to the card


def test_what_copies_to_another_socket_share_is_crossed_by_them_alone():
    """By hand: the sender writes to the receiver's memory, so only that half of a copy crosses, and peers do not copy."""
    sockets = ({"gpus": (0, 1), "nics": (0,)}, {"gpus": (2,)})
    topology = {"sockets": sockets, "peer_to_peer": "none", "socket_copy_bandwidth": "3 GB/s"}
    graph = node_graph(machines.node(3, topology))
    assert {name: link.capacity for name, link in graph.links.items() if "copies" in name} == {"copies0to1": 3e9, "copies1to0": 3e9}
    assert graph.route(0, 2).stages == (("gpu0>socket0", "socket0>socket1", "dram1", "copies0to1"), ("dram1", "socket1>gpu2"))
    assert "copies0to1" not in graph.route(0, 1).links
    peers = node_graph(machines.node(3, topology | {"peer_to_peer": "sys"}))
    assert not any("copies" in link for link in peers.route(0, 2).links)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("gpu0>gpu1", "single NVLink GPU0-GPU1"),
        ("gpu3>gpu0", "double NVLink GPU0-GPU3"),
        ("plx0>socket0", "PCIe uplink of plx0"),
        ("gpu0>plx0", "PCIe port of GPU0"),
        ("nic0>net", "NIC 0, 25 Gbps"),
        ("dram1", "host memory of socket 1"),
        ("socket1>socket0", "socket link qpi 0-1"),
    ],
)
def test_links_are_named_in_words(link, words):
    assert node_graph(machines.p3_16xlarge()).links[link].description == words


def test_equal_descriptions_share_one_graph():
    node = machines.p3_16xlarge()
    assert node_graph(node) is node_graph(node.model_copy(deep=True))
    wider = node.model_copy(update={"nic": node.nic.model_copy(update={"gpudirect": True})})
    assert node_graph(node) is not node_graph(wider)


BOTH = ({"gpus": (0, 1), "nics": (0,)},)


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ({"sockets": ({"gpus": (0,), "nics": (0,)},)}, "gpu1 is attached to no socket"),
        ({"sockets": ({"gpus": (0, 1)},)}, "nic0 is attached to no socket"),
        ({"sockets": ({"gpus": (0, 1, 1), "nics": (0,)},)}, "gpu1 is attached to both socket0 and socket0"),
        ({"sockets": ({"gpus": (0, 1, 2), "nics": (0,)},)}, "no such device: gpu2"),
        ({"sockets": BOTH, "switches": ({"name": "a", "parent": "socket1"},)}, "leads to 'socket1'"),
        ({"sockets": BOTH, "switches": ({"name": "a", "parent": "b"}, {"name": "b", "parent": "a"})}, "which is not a socket"),
        ({"sockets": BOTH, "switches": ({"name": "gpu0", "parent": "socket0"},)}, "is already used"),
        ({"sockets": BOTH, "switches": ({"name": "a", "parent": "socket0"},) * 2}, "is already used"),
        ({"sockets": BOTH, "nvlink": {"pairs": {"0-2": 1}}}, "'0-2' is not a pair"),
        ({"sockets": BOTH, "nvlink": {"pairs": {"0": 1}}}, "'0' is not a pair"),
        ({"sockets": BOTH, "nvlink": {"pairs": {"0-0": 1}}}, "'0-0' is not a pair"),
        ({"sockets": BOTH, "nvlink": {"pairs": {"0-1": 1, "1-0": 1}}}, "given twice"),
    ],
)
def test_a_graph_with_a_hole_is_refused(topology, words):
    if "nvlink" in topology:
        topology = topology | {"nvlink": topology["nvlink"] | {"link": machines.link("nvlink2")}}
    with pytest.raises(TopologyError, match=words):
        node_graph(machines.node(2, topology))


@pytest.mark.parametrize(("name", "transport", "cards"), [("a3-highgpu-8g", "gpudirect-tcpx", 4), ("a3-megagpu-8g", "gpudirect-tcpxo", 8)])
def test_gpudirect_over_tcp_is_no_plain_socket(name, transport, cards):
    """The card writes into the GPU's memory, and no flow bounds it: 1 GiB by rings reaches 85% of 200 Gbps a card, sockets no half."""
    node = load_hardware(name).spec.groups[0].node
    assert (node.nic.transport.name, node.nic.count) == (transport, cards)
    graph = node_graph(node)
    assert all(not graph.to_nic(gpu, graph.nearest_nic(gpu)).staged for gpu in range(8))
    wire = cards * 25e9
    rates = [
        collective_table(name, "all_reduce", [2**30], nodes=4, tuning=Tuning(algorithms="Ring"), overrides=extra).rows[0].busbw
        for extra in ((), ("node.nic.transport=tcp",))
    ]
    assert 0.85 * wire < rates[0] <= wire
    assert rates[1] < 0.5 * wire
