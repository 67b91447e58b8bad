"""What would end an input stall? Oracles: closed forms of the toy's cores and disk, and runs on what is said to be needed."""

from __future__ import annotations

import pytest

from sim.spec.hardware import PageCache
from sim.study.needs import GONE, Needs, least_sufficient_factor, needs
from tests.harness import cluster, layer, machine, run, toy_node, toy_workload, volume


@pytest.mark.parametrize("knee", [1.5, 7.0, 300.0])
def test_the_least_factor_is_found_to_a_hundredth(knee: float) -> None:
    """Closed form: 1/factor down to a floor is within 1% of the floor from 1/1.01 of the knee on."""
    least = least_sufficient_factor(lambda factor: max(1.0, knee / factor), 1.0)
    assert least == pytest.approx(knee / GONE, rel=0.011)


def test_no_factor_is_needed_or_none_is_enough() -> None:
    assert least_sufficient_factor(lambda factor: 1.0, 1.0) is None
    assert least_sufficient_factor(lambda factor: 2.0, 1.0) is None


def test_cores_that_keep_up_with_the_gpus() -> None:
    """Closed form: a batch takes 4 core-seconds, a step computes 0.3 s: 13.3 cores, with as many workers; 4 are there."""
    workload = toy_workload(loader="dali_cpu", prep=4.0, samples=200, inputs={"num_threads": 1000})
    needed = needs(run(machine(1, cores=4, disk=volume()), workload))
    assert needed.cores == pytest.approx(4.0 / 0.3 / GONE, rel=0.03)
    assert (needed.disk_bandwidth, needed.cached_fraction) == (None, None)


def test_a_disk_that_keeps_up_with_the_gpus() -> None:
    """Closed form: 3 MB in 0.3 s of compute are 10 MB/s; later epochs find all in memory."""
    workload = toy_workload(loader="dali_cpu", sample=3e6, samples=200, inputs={"num_threads": 8})
    needed = needs(run(machine(1, disk=volume(bandwidth=2e6), memory=1e12), workload))
    assert needed.disk_bandwidth == pytest.approx(10e6 / GONE, rel=0.03)
    assert needed.cached_fraction is None


def test_memory_that_keeps_up_with_the_gpus() -> None:
    """Closed form: without evictions a share c of reads is served from memory; (1 - c) 3 MB at 2 MB/s are 0.3 s where c is 0.8."""
    workload = toy_workload(loader="dali_cpu", sample=3e6, samples=200, inputs={"num_threads": 8})
    node = toy_node(1, disk=volume(bandwidth=2e6), memory=0.5 * 600e6)
    node = node.model_copy(update={"page_cache": PageCache(policy="never_evict", memory_share=1.0)})
    needed = needs(run(cluster(node), workload))
    assert needed.cached_fraction == pytest.approx(0.8, abs=0.02)


def test_of_unlike_nodes_the_most_is_said() -> None:
    """By hand: the same factor for all; for nodes with 2 and 8 cores the answer is for 8."""
    workload = toy_workload([layer(0.1, 0.2, 1000)], loader="dali_cpu", prep=4.0, samples=200, inputs={"num_threads": 1000})
    both = needs(run(cluster(toy_node(1, cores=2, disk=volume()), toy_node(1, cores=8, disk=volume())), workload))
    few = needs(run(machine(1, cores=2, disk=volume()), workload))
    assert both.cores is not None and few.cores is not None
    assert both.cores == pytest.approx(4 * few.cores, rel=0.05)


def test_synthetic_data_need_nothing() -> None:
    assert needs(run(machine(1), toy_workload())) == Needs(None, None, None)
