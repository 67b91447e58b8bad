"""Which links has a node, and what do they deliver? Oracles: capacities by hand from the toy's figures."""

from __future__ import annotations

import pytest

from sim.cluster.node_links import links_of, parents_of
from sim.spec.hardware import Node
from tests.cluster import machines
from tests.harness import toy_node


def capacities(node: Node) -> dict[str, float]:
    return {link.name: link.capacity for link in links_of(node, parents_of(node))}


def test_every_device_has_a_port_each_way() -> None:
    """By hand: two GPUs below a switch, its uplink, an NVSwitch port a GPU, the NIC's own port and its way out, and the DRAM."""
    bandwidths = capacities(toy_node(2, pcie=10e9, nvlink=20e9, nic=1e9, dram=5e9))
    ways = [("gpu0", "plx0"), ("gpu1", "plx0"), ("plx0", "socket0"), ("nic0", "socket0"), ("gpu0", "nvswitch"), ("gpu1", "nvswitch")]
    assert set(bandwidths) == {f"{a}>{b}" for one, other in [*ways, ("nic0", "net")] for a, b in ((one, other), (other, one))} | {"dram0"}
    assert bandwidths["gpu0>plx0"] == bandwidths["socket0>plx0"] == 10e9 and bandwidths["gpu1>nvswitch"] == 20e9
    assert bandwidths["nic0>net"] == 1e9 and bandwidths["dram0"] == 5e9


def test_nvlinks_between_pairs_add_up_and_say_so() -> None:
    node = toy_node(3, wiring={"0-1": 1, "1-2": 2}, nvlink=20e9)
    links = {link.name: link for link in links_of(node, parents_of(node))}
    assert links["gpu0>gpu1"].capacity == 20e9 and links["gpu2>gpu1"].capacity == 40e9
    assert links["gpu0>gpu1"].description == "single NVLink GPU0-GPU1" and links["gpu1>gpu2"].description == "double NVLink GPU1-GPU2"
    assert "gpu0>gpu2" not in links


def test_links_between_gpus_have_their_vendors_names() -> None:
    for name, expected in {"xgmi4": "single Infinity Fabric link GPU0-GPU1", "ici3": "single ICI link GPU0-GPU1"}.items():
        node = toy_node(2, wiring={"0-1": 1}, nvlink=20e9)
        assert node.nvlink is not None
        link = node.nvlink.link.model_copy(update={"name": name})
        topology = node.topology.model_copy(update={"nvlink": node.nvlink.model_copy(update={"link": link})})
        links = links_of(node.model_copy(update={"topology": topology}), parents_of(node))
        assert {one.name: one.description for one in links}["gpu0>gpu1"] == expected


def test_a_capacity_is_what_a_large_copy_reaches() -> None:
    """Bandwidth times efficiency of the catalog's PCIe; a NIC's by what its transport carries in all."""
    node = machines.p3_16xlarge()
    bandwidths, pcie = capacities(node), node.topology.pcie
    assert bandwidths["plx0>socket0"] == pytest.approx(pcie.bandwidth * pcie.efficiency) and pcie.efficiency < 1
    assert bandwidths["net>nic0"] == pytest.approx(node.nic.bandwidth * node.nic.transport.total_efficiency)


def test_sockets_are_joined_and_share_the_host_s_memory() -> None:
    """By hand: two sockets, a link each way; each has the DRAM of one processor."""
    node = machines.p3_16xlarge()
    bandwidths = capacities(node)
    assert bandwidths["socket0>socket1"] == bandwidths["socket1>socket0"] > 0
    assert bandwidths["dram0"] == bandwidths["dram1"] == node.host.cpu.memory_bandwidth * node.host.sockets / 2


def test_only_nics_belong_to_the_network() -> None:
    node = machines.p3_16xlarge()
    network = {link.name for link in links_of(node, parents_of(node)) if link.tier == "network"}
    assert network == {"nic0>net", "net>nic0"}
    assert parents_of(node)["gpu0"] == "plx0" and parents_of(node)["plx0"] == "socket0"
