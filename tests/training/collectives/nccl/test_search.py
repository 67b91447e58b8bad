"""What NCCL's search makes of a link graph, against its own printed logs and the facts on DGX-1, NVSwitch and NICs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from sim.cluster.topology import NodeGraph, node_graph
from sim.spec.hardware import Node
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl.cost import ChannelPattern, TunerMachine
from sim.training.collectives.nccl.search import nccl_bandwidth, nccl_machine
from tests.cluster import machines


def pattern(channels: int, bandwidth: float, inter: float | None = None) -> ChannelPattern:
    """*bandwidth* in GB/s."""
    return ChannelPattern(channels, bandwidth * 1e9, (inter or bandwidth) * 1e9)


@cache
def graph(name: str) -> NodeGraph:
    return node_graph(load_hardware(name).spec.groups[0].node)


def cataloged(name: str, nodes: int = 1, version: str = "2.30") -> TunerMachine:
    links = graph(name)
    return nccl_machine(links, tuple(range(links.node.gpu_count)), nodes, version)


def like(name: str, topology: dict[str, Any], nic: dict[str, Any] | None = None) -> NodeGraph:
    """Return a node wired by hand with the GPUs and processors of a cataloged one."""
    parts = load_hardware(name).spec.groups[0].node
    gpus = sum(len(holder.get("gpus", ())) for holder in (*topology["sockets"], *topology.get("switches", ())))
    built: Node = machines.node(gpus, topology, gpu=parts.gpu, host=parts.host, nic=nic or {})
    return node_graph(built)


@pytest.mark.parametrize(
    ("name", "nodes", "channels", "bandwidth"),
    [("p3.16xlarge", 1, 6, 20), ("p3.8xlarge", 1, 4, 20), ("p3.8xlarge", 2, 1, 1.2), ("p3.16xlarge", 2, 1, 3.0),
     ("p4d.24xlarge", 1, 12, 20),
     ("hgx-h100", 1, 12, 30), ("p2.16xlarge", 1, 1, 5), ("dgx-1-p100", 1, 4, 18), ("dgx-a100", 1, 12, 20)],
)  # fmt: skip
def test_channels_of_cataloged_machines(name, nodes, channels, bandwidth):
    """Check values of NVIDIA/nccl @5067397c: 6 rings on a DGX-1V, 4 on its quad, 12 x 20 and 12 x 30 behind NVSwitch, NIC speeds."""
    links = graph(name)
    bandwidths = nccl_bandwidth(links, tuple(range(links.node.gpu_count)), nodes)
    assert (bandwidths.channels, bandwidths.inter / 1e9) == (channels, pytest.approx(bandwidth))


@pytest.mark.parametrize(
    ("name", "nodes", "channels", "bandwidth"), [("p3.16xlarge", 1, 6, 22), ("p4d.24xlarge", 1, 12, 22), ("p3.16xlarge", 2, 1, 3)]
)
def test_channels_in_2_10(name, nodes, channels, bandwidth):
    """Rule of v2.10.3-1: 22 GB/s per NVLink, and a list that has it."""
    assert cataloged(name, nodes, "2.10").ring == pattern(channels, bandwidth)


def test_one_ring_over_pcie_as_nccl_printed_it():
    """Measured records: 8 x RTX 4090, four under a switch, 1 x 5 (nccl-tests issue 307); 2 x L4 apart, 1 x 10 (nccl issue 1358)."""
    four = [{"name": f"plx{k}", "parent": f"socket{k}", "gpus": tuple(range(4 * k, 4 * k + 4))} for k in range(2)]
    pcie = machines.link("pcie4-x16")
    board = like("g4dn.metal", {"pcie": pcie, "sockets": ({"nics": (0,)}, {}), "switches": four, "peer_to_peer": "none"})
    assert nccl_bandwidth(board, tuple(range(8))) == pattern(1, 5)
    pair = like("g4dn.metal", {"pcie": pcie, "sockets": ({"gpus": (0,), "nics": (0,)}, {"gpus": (1,)})})
    assert nccl_bandwidth(pair, (0, 1)) == pattern(1, 10)


def test_rings_between_nodes_over_pcie_as_nccl_printed_them():
    """Measured records: four 10 Gbps cards, 4 x 1.2 (nccl issue 601); 8 x T4 and one 100 Gbps card, 1 x 9 (nccl-tests issue 89).

    The last is 12 GB/s less 6/5 for what the host bridge relays and 1/8 for what the card reads back; without cards it is 10.
    """
    sockets = ({"gpus": (0, 1), "nics": (0, 1)}, {"gpus": (2, 3), "nics": (2, 3)})
    cards = like("p3.16xlarge", {"sockets": sockets}, {"count": 4, "bandwidth": "10 Gbps"})
    assert nccl_bandwidth(cards, (0, 1, 2, 3), 2) == pattern(4, 1.2)
    assert cataloged("g4dn.metal", 2, "2.10").ring == cataloged("g4dn.metal", 2).ring == pattern(1, 9)
    assert cataloged("g4dn.12xlarge").ring == pattern(1, 10)


def test_a_link_between_sockets_bounds_a_ring_across_it():
    """Rule: a ring crosses it once each way, and only the host bridge's relaying within a socket is charged extra: QPI gives 6."""
    switches = machines.PAIRED
    assert nccl_bandwidth(like("p3.16xlarge", {"sockets": ({"nics": (0,)}, {}), "switches": switches}), tuple(range(8))) == pattern(1, 6)


def test_trees_between_nodes_are_up_to_twice_as_fast_inside():
    """Rule of the second pass: the list is climbed from the NIC's speed until twice it; on one node trees are as fast as rings."""
    assert cataloged("p3.16xlarge", 2).tree == pattern(1, 6, 3) and cataloged("p4d.24xlarge", 2).tree == pattern(4, 24, 12)
    assert cataloged("p4d.24xlarge").tree == cataloged("p4d.24xlarge").ring


def test_reduction_in_nvswitch_leaves_room_for_each_head_twice():
    """By hand: 18 x 20.6 GB/s over nine channels is 41.2, so 40 of the list; only H100 and later, in 2.30, with three GPUs or more."""
    assert cataloged("hgx-h100").nvls == pattern(8, 40, 60)
    assert cataloged("hgx-h100", 4).nvls == pattern(8, 40, 48)
    assert cataloged("p4d.24xlarge").nvls is None and cataloged("hgx-h100", 1, "2.10").nvls is None
    assert nccl_machine(graph("hgx-h100"), (0, 1)).nvls is None


def test_what_else_the_tuner_learns_of_a_machine():
    """Rule by rule, from the catalog's words."""
    far, near = cataloged("p3.16xlarge", 2), cataloged("p4d.24xlarge", 4)
    assert (far.ranks, far.nodes, far.compute_capability, far.cpu_vendor, far.intra_path) == (16, 2, 70, "intel", "nvlink")
    assert not far.nic_near and near.nic_near and near.plugin_latency == pytest.approx(75e-6)
    assert cataloged("hgx-h100").same_channels and not cataloged("p3.16xlarge").same_channels
    assert cataloged("g4dn.12xlarge").intra_path == "pcie" and cataloged("p4d.24xlarge").nvswitch and not far.nvswitch


def test_nothing_fits_below_the_slowest_speed():
    """Rule: one channel of 0.1 GB/s in plain order, as NCCL falls back to."""
    slow = like("p3.16xlarge", {"sockets": ({"gpus": (0, 1), "nics": (0,)},)}, {"bandwidth": "0.1 Gbps"})
    assert nccl_bandwidth(slow, (0, 1), 2) == pattern(1, 0.1)


def test_unknown_versions_have_no_search():
    with pytest.raises(SpecError, match="'3' is no release of NCCL 2"):
        nccl_bandwidth(graph("p3.8xlarge"), (0, 1), 1, "3")
