"""In which order does a ring visit GPUs? Oracles: all orders tried; walks of described trees by hand."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.topology import PATH_CLASSES, node_graph
from sim.training.collectives.routes.tours import shortest_tour, tree_order
from tests.cluster import machines


@given(st.lists(st.sampled_from(range(8)), min_size=2, max_size=6, unique=True))
def test_tours_are_the_best_there_are(gpus):
    """Oracle: all orders tried; the best has the fewest hops of the worst class, then of the next, and so on."""
    graph = node_graph(machines.p3_16xlarge())

    def classes(order):
        hops = [graph.route(src, dst) for src, dst in zip(order, (*order[1:], order[0]), strict=True)]
        count = Counter(len(PATH_CLASSES) if hop.staged else PATH_CLASSES.index(hop.path_class) for hop in hops)
        return [count[place] for place in range(len(PATH_CLASSES), -1, -1)]

    best = min(classes((gpus[0], *rest)) for rest in permutations(gpus[1:]))
    assert classes(shortest_tour(graph, gpus)) == best


def test_a_tour_through_a_card_stages_nothing_it_need_not():
    """By hand: 1-0-4-6 is all NVLink, and its end on the far socket costs one hop to the card instead of two staged ones."""
    assert shortest_tour(node_graph(machines.p3_16xlarge()), (0, 1, 4, 6), 0) == (1, 0, 4, 6)


def test_a_walk_of_the_tree_begins_and_ends_under_the_switch_of_its_card():
    assert tree_order(node_graph(machines.dgx_1v()), tuple(range(8)), 2) == (4, 0, 1, 2, 3, 6, 7, 5)
    assert tree_order(node_graph(machines.p2_16xlarge()), tuple(range(16)), 0) == (0, 1, 2, 3, *range(8, 16), 4, 5, 6, 7)


@pytest.mark.parametrize(("gpus", "nic"), [((), None), ((3,), None), ((3,), 0)])
def test_few_gpus_need_no_tour(gpus, nic):
    assert shortest_tour(node_graph(machines.p3_16xlarge()), gpus, nic) == gpus


def test_beyond_nine_devices_the_walk_stands_in():
    """Nine GPUs and a card are ten devices; nine GPUs alone are still toured exactly."""
    graph, gpus = node_graph(machines.p2_16xlarge()), tuple(range(9))
    assert shortest_tour(graph, gpus, 0) == tree_order(graph, gpus, 0)
    assert sorted(shortest_tour(graph, gpus)) == list(gpus)


@given(st.permutations(range(8)))
def test_a_walk_does_not_ask_in_which_order_gpus_are_named(gpus):
    graph = node_graph(machines.p3_16xlarge())
    assert tree_order(graph, gpus) == tree_order(graph, range(8)) and tree_order(graph, gpus, 0) == tree_order(graph, range(8), 0)
