"""Edge-disjoint rings: the published counts of a DGX-1V, and exhaustive search on small graphs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.collectives.routes.packing import pack_cycles, pack_paths
from tests.cluster.machines import CUBE_MESH


def slots_of(gpus):
    pairs = {tuple(int(end) for end in pair.split("-")): count for pair, count in CUBE_MESH.items()}
    return {order: count for pair, count in pairs.items() if set(pair) <= set(gpus) for order in (pair, pair[::-1])}


def rings_of(gpus):
    slots = slots_of(gpus)
    return len(pack_cycles(slots)) if {gpu for pair in slots for gpu in pair} == set(gpus) else 0


def used(orders, closed):
    return Counter(pair for order in orders for pair in zip(order, (*order[1:], *(order[:1] if closed else ())), strict=False))


@pytest.mark.parametrize(
    ("size", "rings"),
    [
        (8, {6: 1}),
        (7, {4: 8}),
        (6, {4: 4, 2: 24}),
        (5, {2: 24, 0: 32}),
        (4, {4: 2, 2: 6, 0: 62}),
        (3, {2: 8, 0: 48}),
        (2, {2: 8, 1: 8, 0: 12}),
    ],
)
def test_every_subset_of_a_dgx_1v(size, rings):
    """Oracle: an independent exact packing of all subsets of the cube mesh; NCCL itself reports 6 rings on all eight."""
    assert Counter(rings_of(gpus) for gpus in combinations(range(8), size)) == rings


def test_which_quads_keep_their_rings():
    """Oracle: the same independent packing."""
    rings_by_quad = {gpus: rings_of(gpus) for gpus in combinations(range(8), 4)}
    assert [gpus for gpus, rings in rings_by_quad.items() if rings == 4] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {gpus for gpus, rings in rings_by_quad.items() if rings == 2} == {
        (0, 3, 4, 7), (1, 2, 5, 6), (0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7),
    }  # fmt: skip


@given(st.integers(2, 4), st.data())
def test_packing_is_largest(n, data):
    """Oracle: exhaustive search over how often each directed cycle is taken."""
    pairs = list(permutations(range(n), 2))
    slots = {pair: data.draw(st.integers(0, 2)) for pair in pairs}
    slots = {pair: count for pair, count in slots.items() if count}
    cycles = [(0, *rest) for rest in permutations(range(1, n))]
    best = 0
    for times in product(range(3), repeat=len(cycles)):
        load = used([cycle for cycle, count in zip(cycles, times, strict=True) for _ in range(count)], closed=True)
        if all(count <= slots.get(pair, 0) for pair, count in load.items()):
            best = max(best, sum(times))
    packed = pack_cycles(slots) if {vertex for pair in slots for vertex in pair} == set(range(n)) else ()
    assert len(packed) == best
    assert all(count <= slots[pair] for pair, count in used(packed, closed=True).items())


def test_four_gpus_fully_joined_by_four_links_each_use_every_link():
    """Bound: no more rings than links leave a GPU, and here all of them are used."""
    assert len(pack_cycles(dict.fromkeys(permutations(range(4), 2), 4))) == 12


def test_paths_respect_ends_and_slots():
    """Invariant of the four channels of a DGX-1 with a card under each switch: they begin and end under their own switch."""
    slots = slots_of(range(8))
    paths = pack_paths(slots, range(8), [frozenset({(2 * k, 2 * k + 1), (2 * k + 1, 2 * k)}) for k in range(4)])
    assert paths is not None
    assert [{path[0], path[-1]} for path in paths] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert all(sorted(path) == list(range(8)) for path in paths)
    assert all(count <= slots[pair] for pair, count in used(paths, closed=False).items())


def test_no_path_where_a_gpu_has_no_link():
    assert pack_paths({(0, 1): 1, (1, 0): 1}, (0, 1, 2), [frozenset(permutations(range(3), 2))]) is None
    assert pack_cycles({}) == ()
