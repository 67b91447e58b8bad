"""Oracle: the least cut of the explicit graph over all halves (networkx maximum flow, brute force), and closed forms."""

from __future__ import annotations

from itertools import combinations, product

import networkx as nx
import pytest

from sim.cluster.bisection import bisection_bandwidth
from tests.cluster.test_fabric import GB, dragonfly, leaves
from tests.harness import cluster, toy_node


def narrowest(graph: nx.Graph, nodes: list[object]) -> float:
    """The least maximum flow between halves of *nodes*; capacities are of both directions."""
    flows = []
    for half in combinations(nodes[1:], len(nodes) // 2 - 1):
        joined = nx.Graph(graph)
        for node in nodes:
            joined.add_edge("one" if node == nodes[0] or node in half else "other", node, capacity=float("inf"))
        flows.append(nx.maximum_flow_value(joined, "one", "other"))
    return min(flows)


@pytest.mark.parametrize(("per_leaf", "count", "ratio"), [(2, 4, 4), (4, 2, 2), (2, 2, 1), (8, 1, 3)])
def test_leaf_and_spine(per_leaf, count, ratio):
    graph = nx.Graph()
    for node in range(per_leaf * count):
        graph.add_edge(node, ("leaf", node // per_leaf), capacity=GB)
    for leaf in range(count):
        graph.add_edge(("leaf", leaf), "spine", capacity=per_leaf * GB / ratio)
    bandwidth = bisection_bandwidth(leaves(per_leaf * count, per_leaf, ratio))
    assert bandwidth == pytest.approx(narrowest(graph, list(range(per_leaf * count))))


def test_pods_halve_what_crosses_the_core():
    """Closed form: two pods of two leaves of two nodes; 1 of 2 pods x 2 leaves x 2 GB/s / 4."""
    assert bisection_bandwidth(leaves(8, 2, 1, pods={"leaves": 2, "oversubscription": 4})) == GB


@pytest.mark.parametrize("lengths", [(8,), (4, 2), (2, 2), (2, 4, 1)])
def test_torus(lengths):
    graph = nx.Graph()
    places = list(product(*map(range, lengths)))
    for place in places:
        for axis, length in enumerate(lengths):
            onward = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
            if onward != place:
                graph.add_edge(place, onward, capacity=GB)
    torus = {"dimensions": lengths, "link_bandwidth": "1 GB/s"}
    bandwidth = bisection_bandwidth(cluster(toy_node(1, nic=1e12), count=len(places), torus=torus))
    assert bandwidth == pytest.approx(narrowest(graph, places))


def test_dragonfly():
    """Closed form: 1 x 2 pairs of three groups, four routers' links shared by two pairs: 2 x 2 x 2 GB/s."""
    assert bisection_bandwidth(dragonfly()) == pytest.approx(2 * 2 * 2e9)


def test_one_switch_gives_what_nics_do():
    assert bisection_bandwidth(cluster(toy_node(1, nic=GB), count=6)) == 3 * GB
    assert bisection_bandwidth(cluster(toy_node(1, nic=GB), count=6, core_bandwidth="2 GB/s")) == 2 * GB
    assert bisection_bandwidth(cluster(toy_node(1, nic=GB))) == 0.0
