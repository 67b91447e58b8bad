"""What did NCCL take before it had a tuner? Oracle: ``ncclTreeThreshold`` and ``getKernelInfo`` of 2.4, by hand."""

from __future__ import annotations

import math

import pytest

from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.training.collectives.nccl.cost import ChannelPattern, TunerMachine
from sim.training.collectives.nccl.threshold import by_threshold, tree_threshold
from sim.training.collectives.nccl.tuner import choose
from sim.training.collectives.price.collective_plan import Tuning

PCIE = TunerMachine(16, 4, ChannelPattern(2, 3e9, 3e9), ChannelPattern(2, 3e9, 3e9), 70, "pcie", "intel")


def test_trees_end_where_the_two_lines_cross() -> None:
    """By hand: rings 6 us x 15 = 90 us at 5 GB/s, trees 15 x 2 + 4 x 3 = 42 us at 3.33 GB/s: 48 us x 10 GB/s = 480 kB."""
    assert tree_threshold(PCIE) == pytest.approx(480e3, rel=1e-9)
    assert choose("all_reduce", 479e3, PCIE, "2.4").algorithm == "Tree"
    assert choose("all_reduce", 479e3, PCIE, "2.4.8") == choose("all_reduce", 479e3, PCIE, "2.4")
    assert choose("all_reduce", 481e3, PCIE, "2.4").algorithm == "Ring"
    times = {row.algorithm: row.time for row in choose("all_reduce", tree_threshold(PCIE), PCIE, "2.4").table}
    assert times["Ring"] == pytest.approx(times["Tree"], rel=1e-9)


def test_trees_have_no_end_over_nvlink_on_two_nodes_and_never_begin_inside_one() -> None:
    """By hand: 3/4 of the rings' bandwidth, twice on two nodes; on four 15 GB/s of 20 with two channels of 5."""
    nvlink = PCIE._replace(intra_path="nvlink")
    assert tree_threshold(nvlink._replace(nodes=2, ranks=8)) == math.inf
    assert tree_threshold(nvlink) == pytest.approx(10e9 * 7.5e9 / 2.5e9 * 48e-6, rel=1e-9)
    assert tree_threshold(nvlink._replace(nodes=1, ranks=8)) == 0.0
    assert tree_threshold(PCIE._replace(nodes=2, ranks=2)) == 0.0  # 6 us of a ring are less than 15 of a tree


def test_the_number_of_ranks_moves_the_end() -> None:
    """A ring's latency grows with the ranks, a tree's with their logarithm."""
    thresholds = [tree_threshold(PCIE._replace(nodes=nodes, ranks=4 * nodes)) for nodes in (2, 4, 8, 16)]
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == pytest.approx(10e9 * (6 * 63 - 15 * 4 - 4 * 3) * 1e-6, rel=1e-9)


def test_ll_is_taken_while_threads_have_few_bytes() -> None:
    """By hand: a tree's loop is one piece; 2 channels x 256 threads x 64 B x 2 (nodes) x 4 (tree) = 256 KiB; pre-Volta half."""
    below = 256 * 1024
    assert by_threshold("all_reduce", below, PCIE, "2.4", None, None) == ("Tree", "LL", 2)
    assert by_threshold("all_reduce", below + 1, PCIE, "2.4", None, None) == ("Tree", "Simple", 2)
    pascal = PCIE._replace(compute_capability=61)
    assert by_threshold("all_reduce", below // 2 + 1, pascal, "2.4", None, None)[1] == "Simple"
    # a ring's has one for every rank: 2 x 256 x 16 x 64 x 2 = 1 MiB, and 64 threads of one channel do for 8 KiB
    assert by_threshold("all_reduce", 2**20, PCIE, "2.3", None, None) == ("Ring", "LL", 2)
    assert by_threshold("all_reduce", 2**20 + 1, PCIE, "2.3", None, None) == ("Ring", "Simple", 2)
    assert by_threshold("all_reduce", 8192, PCIE, "2.3", None, None) == ("Ring", "LL", 1)


def test_versions_differ_in_what_a_job_takes() -> None:
    """Four nodes of four V100 over sockets: 2.3 knows rings alone, 2.4 trees up to 1.4 MB, and none of them LL128."""
    sizes, said = [2**power for power in range(12, 29, 2)], {}
    for version in ("2.3", "2.4", "2.10", "2.30"):
        rows = collective_table("p3.8xlarge", "all_reduce", sizes, nodes=4, tuning=Tuning(version)).rows
        said[version] = [(row.algorithm, row.protocol) for row in rows]
    assert {name for name, _ in said["2.3"]} == {"Ring"}
    assert [name for name, _ in said["2.4"]] == sorted((name for name, _ in said["2.4"]), reverse=True)  # Tree, then Ring
    assert {name for name, _ in said["2.4"]} == {"Tree", "Ring"}
    assert len({tuple(chosen) for chosen in said.values()}) == 4


def test_names_that_the_version_does_not_know_are_refused() -> None:
    assert by_threshold("all_reduce", 1e9, PCIE, "2.4", "Tree", "LL")[:2] == ("Tree", "LL")
    assert by_threshold("all_reduce", 8.0, PCIE, "2.4", "^Tree", "^LL")[:2] == ("Ring", "Simple")
    for algorithms, protocols in (("NVLS", None), (None, "LL128"), ("^Tree,Ring", None)):
        with pytest.raises(SpecError, match=r"NCCL 2\.4"):
            by_threshold("all_reduce", 1e6, PCIE, "2.4", algorithms, protocols)
