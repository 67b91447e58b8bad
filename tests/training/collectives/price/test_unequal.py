"""Oracles: the closed form of ports, equal shares as they were priced before, and what no exchange can beat."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import place, slots, with_nodes
from sim.cluster.fabric import job_fabric
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware
from sim.training.collectives.price.collective_plan import CollectivePlan, plan_collectives
from sim.training.collectives.price.unequal import of_matrix, one_receives_most
from sim.training.job import job_slots
from tests.harness import machine

Matrix = list[list[float]]
sizes = st.floats(1e4, 1e9)


def plan(hardware: Hardware) -> CollectivePlan:
    """Every node a part by itself."""
    placed = place(hardware)
    between = job_fabric(hardware, [[part.node for part in placed]], 0)
    return plan_collectives(job_slots(0, slots(hardware, [placed], fold=False)), hardware.fabric, job_fabric=between)


def seconds(hardware: Hardware, nbytes: float, shares: Matrix) -> float:
    made = plan(hardware)
    return made.exchange(nbytes, of_matrix(made.layout, shares)).uncontended_time


def matrices(ranks: int) -> st.SearchStrategy[Matrix]:
    row = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]), min_size=ranks, max_size=ranks)
    return st.lists(row, min_size=ranks, max_size=ranks).filter(
        lambda rows: any(rows[p][q] for p in range(ranks) for q in range(ranks) if p != q)
    )


def heaviest(shares: Matrix) -> tuple[float, float]:
    """Most that one rank sends to others and most that one receives, in mean blocks."""
    ranks, mean = range(len(shares)), sum(map(sum, shares)) / len(shares) ** 2
    sent = max(sum(shares[p][q] for q in ranks if q != p) for p in ranks)
    got = max(sum(shares[p][q] for p in ranks if p != q) for q in ranks)
    return sent / mean, got / mean


CATALOG = ["hgx-h100", "p3.16xlarge", "p4d.24xlarge"]


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("nbytes", [1e4, 1e6, 1e9])
def test_equal_shares_cost_what_an_all_to_all_costs(name: str, nodes: int, nbytes: float) -> None:
    """Oracle: `sends.pairwise`, on described machines: time, load on every link, and what bounds it."""
    made = plan(with_nodes(load_hardware(name).spec, nodes))
    ranks = made.ranks
    one = made.exchange(nbytes, of_matrix(made.layout, [[1.0] * ranks] * ranks))
    other = made.cost(nbytes, "all_to_all")
    assert one.uncontended_time == pytest.approx(other.uncontended_time, rel=1e-9)
    assert (one.cause, one.protocol, one.channels) == (other.cause, other.protocol, other.channels)
    assert dict(one.load) == pytest.approx(dict(other.load), rel=1e-9)


@given(st.integers(2, 9).flatmap(matrices), st.floats(1e7, 1e9), st.floats(1e8, 1e11), st.sampled_from([0.0, 1e-5]))
def test_ports_carry_the_most_that_a_rank_sends_or_receives(shares: Matrix, nbytes: float, nic: float, latency: float) -> None:
    """Closed form of one full-duplex port a rank: the busiest port's bytes, and one latency (up to sixteen partners)."""
    ranks = len(shares)
    hardware = machine(1, ranks, nic=nic, network_latency=latency, pcie=1e21)
    expected = max(heaviest(shares)) * nbytes / ranks / nic + latency
    assert seconds(hardware, nbytes, shares) == pytest.approx(expected, rel=1e-9)


@given(st.integers(2, 6).flatmap(matrices), st.data())
def test_it_does_not_matter_which_rank_is_which(shares: Matrix, data: st.DataObject) -> None:
    """On equal nodes of one GPU ranks may be numbered in any order."""
    ranks = len(shares)
    order = data.draw(st.permutations(range(ranks)))
    hardware = machine(1, ranks, nic=1e9, network_latency=1e-5)
    mixed = [[shares[p][q] for q in order] for p in order]
    assert seconds(hardware, 1e7, mixed) == pytest.approx(seconds(hardware, 1e7, shares), rel=1e-9)


@given(matrices(6), st.sampled_from([(6, 1), (3, 2), (2, 3), (1, 6)]), sizes)
def test_nothing_beats_the_busiest_rank_s_own_links(shares: Matrix, shape: tuple[int, int], nbytes: float) -> None:
    """Bounds: a rank's bytes over all NVLinks and NICs that it has, and a node's over its card."""
    gpus, nodes = shape
    nvlink, nic = 1e10, 1e9
    duration = seconds(machine(gpus, nodes, nic=nic, nvlink=nvlink, pcie=1e15), nbytes, shares)
    block, (sent, got) = nbytes / 6, heaviest(shares)
    assert duration * (1 + 1e-9) >= max(sent, got) * block / (nvlink * max(1, gpus - 1) + nic)
    mean = sum(map(sum, shares)) / 36
    node = [rank // gpus for rank in range(6)]
    for one in range(nodes):
        out = sum(shares[p][q] for p in range(6) for q in range(6) if node[p] == one != node[q])
        into = sum(shares[p][q] for p in range(6) for q in range(6) if node[p] != one == node[q])
        assert duration * (1 + 1e-9) >= max(out, into) / mean * block / nic


@given(st.integers(1, 4), st.integers(2, 4), st.floats(1.0, 2.0), sizes)
def test_one_rank_that_receives_most_is_a_matrix_like_any(gpus: int, nodes: int, load: float, nbytes: float) -> None:
    """The closed form for a hot rank, whose node stands by itself and all others for one, equals its whole matrix."""
    hardware = machine(gpus, nodes, nic=1e9, nvlink=1e10, network_latency=1e-5, pcie=1e15)
    ranks = gpus * nodes
    rest = (ranks - load) / (ranks - 1)
    made = plan(hardware)
    folded = made.exchange(nbytes, one_receives_most(made.layout, (0, 0), load)).uncontended_time
    assert folded == pytest.approx(seconds(hardware, nbytes, [[load] + [rest] * (ranks - 1)] * ranks), rel=1e-9)
    into_the_node = (ranks - gpus) * (load + (gpus - 1) * rest)  # by its one card
    assert folded >= into_the_node * nbytes / ranks / 1e9
    if math.isclose(load, 1.0):
        assert folded == pytest.approx(made.cost(nbytes, "all_to_all").uncontended_time, rel=1e-9)
