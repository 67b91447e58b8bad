"""Which measured collectives answer for a table? Oracles: the summary's own groups, and machines that nobody measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.report.collective import collective_document, collective_text
from sim.report.collective_error import SUMMARY, collective_error, error_lines, unmeasured
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table, sizes_of
from sim.training.collectives.price.collective_plan import Tuning
from sim.training.collectives.price.table import LAUNCH

ROOT = Path(__file__).resolve().parents[2]


def test_the_same_operation_over_the_same_link_answers_by_size() -> None:
    groups = json.loads((ROOT / SUMMARY).read_text(encoding="utf-8"))["groups"]
    table = collective_table("dgx-a100", "all_reduce", [2**10, 2**22, 2**30])
    expected_error = collective_error(table)
    assert expected_error is not None and not expected_error["extrapolates"]
    assert [(band["band"], band["median"]) for band in expected_error["bands"]] == [
        (band, groups[f"{table.carrier}, all_reduce, {band}"]["median"]) for band in ("< 1 MB", "1-64 MB", "> 64 MB")
    ]
    assert "a100-nvswitch" in expected_error["basis"] and expected_error["basis"] in error_lines(expected_error)[1]
    assert collective_document(table)["expected_error"] == expected_error and expected_error["basis"] in collective_text(table)


def test_what_was_not_measured_is_said() -> None:
    """An operation, a number of nodes, a library's algorithm and a link of which there is no row."""
    gathered = collective_error(collective_table("dgx-a100", "gather", [2**30]))
    assert gathered is not None and "no measured gather of > 64 MB" in gathered["basis"] and gathered["extrapolates"]
    many = collective_error(collective_table("hgx-h100", "all_reduce", [2**30], nodes=64))
    assert many is not None and "64 nodes, measured up to" in many["basis"]
    both = collective_error(collective_table("hgx-h100", "all_reduce", [10**15], nodes=64))
    assert both is not None and both["basis"].endswith("; 1,000 TB, measured up to 17.2 GB") and "64 nodes, measured up to" in both["basis"]
    large = collective_error(collective_table("hgx-h100", "all_reduce", [2**20, 10**15]))
    assert large is not None and large["extrapolates"] and "extrapolated: 1,000 TB, measured up to 17.2 GB" in large["basis"]
    rounded = collective_error(
        collective_table("hgx-h100", "all_to_all", [2**26], nodes=2)
    )  # measured: 64 MiB less a few bytes of 10 ranks
    assert rounded is not None and "measured up to" not in rounded["basis"]
    with pytest.raises(SpecError, match="--bytes 1e30 GB: more than the 1,000 TB allowed"):
        sizes_of("1e30 GB")
    other = collective_table("hgx-h100", "all_reduce", [2**20], nodes=2, tuning=Tuning("2.30", "HalvingDoubling"))
    assert collective_error(other) is None and "no measurements of HalvingDoubling" in unmeasured(other)[0]
    pods = collective_table("dgx-a100", "all_reduce", [2**20], nodes=2, overrides=["node.nic.transport=tcp-single-flow"])
    assert collective_error(pods) is None and "no measurements over tcp-single-flow" in unmeasured(pods)[0]
    assert collective_document(pods)["warnings"] == unmeasured(pods)


def test_evidence_is_of_the_links_and_chips_in_question() -> None:
    """Boards of TPUs are no NVLink; all-to-all on a cube mesh crosses host memory; AMD's GPUs were never measured over RoCE."""
    board = collective_table("tpu-v2-board", "all_reduce", [2**20])
    assert board.carrier == "ici" and collective_error(board) is None and "no measurements over ici" in unmeasured(board)[0]
    mesh = {op: collective_table("p3.16xlarge", op, [2**20]).carrier for op in ("all_reduce", "all_to_all", "scatter")}
    assert mesh == {"all_reduce": "nvlink", "all_to_all": "host-staged", "scatter": "host-staged"}
    instinct = collective_error(collective_table("mi325x-platform", "all_reduce", [2**20], nodes=2))
    assert instinct is not None and instinct["extrapolates"] and "no MI325X or other GPU of its architecture measured" in instinct["basis"]
    direct = collective_error(collective_table("p4d.24xlarge", "all_reduce", [2**20], nodes=2))
    assert (
        direct is not None
        and direct["basis"].startswith("measured over efa on p3dn")
        and "measured through host memory only, over efa with other latencies" in direct["basis"]
    )
    hopper = collective_error(collective_table("hgx-h100", "all_reduce", [2**30], nodes=2))
    assert hopper is not None and "deepbench" not in hopper["basis"], "those servers copy through host memory"
    ampere = collective_error(collective_table("dgx-a100", "all_reduce", [2**20]))
    assert ampere is not None and not ampere["extrapolates"]


def test_sizes_of_clusters_are_compared_by_band() -> None:
    """Only a band that was measured on fewer nodes is extrapolated, and named."""
    groups = json.loads((ROOT / SUMMARY).read_text(encoding="utf-8"))["groups"]
    most = {band: groups[f"infiniband with GPUDirect, all_reduce, {band}"]["most_nodes"] for band in ("< 1 MB", "1-64 MB", "> 64 MB")}
    least, largest = min(most.values()), max(most.values())
    assert least < largest
    between = collective_error(collective_table("hgx-h100", "all_reduce", [2**12, 2**22, 2**28], nodes=largest))
    fewer = [band for band, nodes in most.items() if nodes < largest]
    assert between is not None and between["extrapolates"]
    assert f"{largest} nodes, measured up to {max(most[band] for band in fewer)} ({', '.join(fewer)})" in between["basis"]


def test_one_process_launches_one_gpu_after_another() -> None:
    """Oracle: NVIDIA/nccl-tests issue 123, where 3 to 8 GPUs take 4.2 us each; a large message hides the launches of the next."""
    alone, together = (collective_table("dgx-a100", "broadcast", [2**10, 2**30], per_process=count).rows for count in (1, 8))
    assert together[0].time == 8 * LAUNCH == pytest.approx(33.7e-6, rel=0.5) and together[0].time > alone[0].time
    assert together[0].bottleneck == "launches of each process on its GPUs"
    assert together[1] == alone[1]
    with pytest.raises(SpecError, match="-g 3: 8 GPUs of a node are not divisible into processes of 3"):
        collective_table("dgx-a100", "broadcast", [2**10], per_process=3)
