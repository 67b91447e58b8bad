"""Oracles: copies counted one by one over random experts, and the two ends of the formula."""

from __future__ import annotations

import numpy as np
import pytest

from sim.parallel.routing import copies_between, expert_host_time, sorted_bytes


@pytest.mark.parametrize(("nodes", "copies"), [(2, 8), (4, 2), (8, 8), (32, 4)])
def test_a_token_goes_once_to_each_node_that_has_experts_for_it(nodes: int, copies: int) -> None:
    chosen = np.random.default_rng(0).integers(0, nodes, (20_000, copies))
    once = np.mean([len(set(row) - {0}) for row in chosen.tolist()])  # node 0 has the token
    every = np.mean((chosen > 0).sum(axis=1))
    assert copies_between(nodes, copies, one_copy=True) == pytest.approx(once / every, rel=0.02)


def test_one_node_and_one_expert_save_nothing() -> None:
    assert copies_between(1, 8, one_copy=True) == copies_between(8, 1, one_copy=True) == copies_between(8, 8, one_copy=False) == 1.0


def test_graphs_leave_a_part_of_the_experts_to_the_host() -> None:
    assert 0 < expert_host_time(2e-3, graphs=True) < expert_host_time(2e-3, graphs=False) == 2e-3


def test_copies_are_read_and_written_once_to_be_sorted() -> None:
    assert sorted_bytes(1e6, 16, one_copy=False) == 2e6
    assert sorted_bytes(1e6, 1, one_copy=False) == sorted_bytes(1e6, 16, one_copy=True) == 0.0
