"""GPUs in containers of their own: no NVLink, no peer access; everything through host memory or through the NIC and back."""

from __future__ import annotations

import math

import pytest

from sim.cluster.build import place
from sim.cluster.topology import node_graph
from sim.spec.hardware import Node
from sim.training.collectives.price.machine import machine_of
from sim.training.job import EXECUTORS
from tests.harness import Rig, all_reduce_alone, cluster, toy_node

executors = pytest.mark.parametrize("executor", EXECUTORS)


def isolated(how: str, gpus: int = 4, **keys) -> Node:
    made = toy_node(gpus, nvlink=1e12, pcie=1e13, **keys)
    return made.model_copy(update={"topology": made.topology.model_copy(update={"isolated": how})})


@executors
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_edge_goes_through_the_nic(executor, nodes):
    """Closed form: n edges a node share one NIC, whichever node they end on: 2(n-1)/n S over B/4; as fast on two nodes as on one."""
    n = 4 * nodes
    toys = cluster(isolated("nic", nic=1e9), count=nodes)
    expected = 2 * (n - 1) / n * 1e9 * 4 / 1e9
    # the hops share the NIC fairly all the while; played one by one they seldom want it at once
    assert all_reduce_alone(toys, executor, 1e9) == pytest.approx(expected, rel=0.02)


def test_through_host_memory():
    """Closed form: each byte is written to DRAM and read again, on every one of 4 edges: 2(n-1)/n S over B/8."""
    toys = cluster(isolated("host", dram=8e9))
    assert all_reduce_alone(toys, "phase", 1e9) == pytest.approx(1.5 * 1e9 / 1e9)


def test_no_nvlink_between_them():
    graph = node_graph(isolated("host"))
    assert graph.switch_links == 0
    assert graph.route(0, 1).staged
    assert node_graph(toy_node(4)).switch_links == 1
    out = node_graph(isolated("nic")).route(0, 1).links
    assert "nic0>net" in out and out.index("nic0>net") < out.index("net>nic0")


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_tree_spans_them_all(nodes):
    """Closed form of a message without bytes to speak of: up and down log2 n hops, where a chain in each node would take more."""
    toys = cluster(isolated("nic", gpus=8, nic=1e12, network_latency=1e-4), count=nodes)
    expected = 2 * (3 + nodes - 1) * 1e-4
    assert all_reduce_alone(toys, "phase", 1.0, algorithm="Tree") == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("how", ["nic", "host"])
def test_the_tree_of_one_machine_takes_the_bytes_of_its_schedule(how):
    """The transfer executor plays NCCL's double binary tree, piece by piece; what they share is DRAM or the NIC."""
    toys = cluster(isolated(how, gpus=8, nic=1e9, dram=8e9))
    played, priced = (all_reduce_alone(toys, executor, 1e8, algorithm="Tree") for executor in ("transfer", "phase"))
    assert priced == pytest.approx(played, rel=0.1)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_gather_in_doubling_steps_spans_them_all(nodes, op):
    """Closed form of PAT: log2 n hops, and (n-1)/n S from each of 4 GPUs through the NIC that they share."""
    n = 4 * nodes
    toys = cluster(isolated("nic", nic=1e9, network_latency=1e-3), count=nodes)
    expected = math.log2(n) * 1e-3 + (n - 1) / n * 1e9 * 4 / 1e9
    priced = Rig(toys, fold=True).plan.cost_of(1e9, "PAT", "Simple", 1, op)
    assert priced.uncontended_time == pytest.approx(expected, rel=1e-9)


def test_a_gather_in_doubling_steps_of_machines_with_other_numbers_of_them():
    """NCCL has PAT for one rank a node, which these are: 1 on one machine and 3 on the other, whose NIC and memory carry more."""
    toys = cluster(isolated("host", nic=1e9), count=2)
    uneven = Rig(toys, placement=place(toys, pattern="1+3")).plan.cost_of(1e9, "PAT", "Simple", 1, "all_gather")
    assert math.isfinite(uneven.uncontended_time) and uneven.uncontended_time >= 0.75


def test_to_nccl_every_one_is_a_node():
    """NVIDIA/nccl: ranks whose host hash or shared memory differ are on different nodes."""
    tuner_machine = machine_of(Rig(cluster(isolated("nic"), count=2), fold=True).plan.layout, "2.30")
    assert (tuner_machine.ranks, tuner_machine.nodes, tuner_machine.nvswitch) == (8, 8, False)
