"""Oracle: closed forms of phases that wait for one another, by both executors; those within one rack are in test_pricing."""

from __future__ import annotations

import pytest

from sim.spec.yaml import SpecError
from tests.cluster.test_fabric import GB, executors, leaves
from tests.harness import all_reduce_alone, cluster, toy_node
from tests.oracle.collectives.hierarchical import Level, hierarchical_all_reduce_time


@executors
def test_hierarchical_across_racks(executor):
    """Closed form: three levels of two; a rank's port on a node's NIC is half of it, on the uplinks of two nodes at 4 to 1 an eighth."""
    toys = leaves(4, 2, 4, gpus=2, nvlink=1e10, network_latency=1e-3, hop_latency=1e-4)
    levels = [Level(2, 1e10, 1e-4), Level(2, GB / 2, 1e-3), Level(2, 0.5 * GB / 4, 1e-3)]
    expected = hierarchical_all_reduce_time(8e6, *levels)
    assert all_reduce_alone(toys, executor, 8e6, algorithm="RackHierarchical") == pytest.approx(expected, rel=1e-9)


def test_hierarchical_across_racks_has_fewer_hops_than_a_ring():
    """Direction: 64 nodes on 8 leaves at 1 ms a hop; the bytes on the uplinks are nearly the same."""
    toys = leaves(64, 8, 4, network_latency=1e-3)
    assert all_reduce_alone(toys, "phase", 1e6, fold=True, algorithm="RackHierarchical") < 0.3 * all_reduce_alone(
        toys, "phase", 1e6, fold=True
    )
    with pytest.raises(SpecError, match=r"RackHierarchical needs a fabric\.leaf_spine"):
        all_reduce_alone(cluster(toy_node(1), count=4), "phase", 1e6, algorithm="RackHierarchical")
