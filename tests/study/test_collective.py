"""Which sizes and machines does a table of collectives take? Oracles: sizes by hand, bandwidths of links."""

from __future__ import annotations

from typing import Any

import pytest

from sim.cli import main
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table, sizes_of
from sim.training.collectives.price.collective_plan import Tuning


def test_sizes() -> None:
    assert sizes_of("25MiB") == [25 * 2**20]
    assert sizes_of("1MiB..8MiB") == [2**20 << step for step in range(4)]
    assert sizes_of("1MiB..3MiB") == [2**20, 2**21, 3 * 2**20]
    assert sizes_of("1KiB..1MiB:3") == [2**10, 2**15, 2**20]


@pytest.mark.parametrize("text", ["", "1MiB..", "8MiB..1MiB", "1MiB..8MiB:1", "1MiB..8MiB:x", "0B", "1Gbps", "5"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(SpecError, match="--bytes"):
        sizes_of(text)


def test_bus_bandwidth_is_what_ranks_must_send() -> None:
    """Oracle: nccl-tests' factors, 2(n-1)/n of an all-reduce, 1 of a broadcast, a reduce and sends to the next (its sources)."""
    for op, factor in (
        ("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("broadcast", 1.0), ("reduce", 1.0), ("send_recv", 1.0), ("gather", 7 / 8),
        ("scatter", 7 / 8),
    ):  # fmt: skip
        (row,) = collective_table("p3.16xlarge", op, [2**26]).rows
        assert row.algbw == pytest.approx(2**26 / row.time) and row.busbw == pytest.approx(factor * row.algbw)


def test_small_messages_name_the_latency_that_limits_them() -> None:
    """A kilobyte waits for hops, a gigabyte for the slowest link; the class of links says whether GPUDirect crosses the processor."""
    between, inside = (
        collective_table("p4d.24xlarge", "all_reduce", [2**10, 2**30], nodes=2),
        collective_table("hgx-h100", "all_gather", [2**10, 2**30]),
    )
    assert [row.bottleneck for row in between.rows] == ["nvlink3 latency", "PCIe port of GPU0"]
    assert [row.bottleneck for row in inside.rows] == ["nvlink4 latency", "18 NVLinks GPU0-NVSwitch"]
    assert between.carrier == "efa-read with GPUDirect"
    far = collective_table("p4d.24xlarge", "all_reduce", [2**30], nodes=2, overrides=["node.topology.switches=[]", *_ON_SOCKETS])
    assert far.carrier == "efa-read with GPUDirect through the processor"


_ON_SOCKETS = (
    "node.topology.sockets=[{gpus: [0, 1, 2, 3], nics: [0, 1]}, {gpus: [4, 5, 6, 7], nics: [2, 3]}]", "node.nic.gpudirect_level=phb",
)  # fmt: skip
"""A p4d without PCIe switches, whose GPUs reach their NICs through a host bridge."""


def test_nothing_is_faster_than_its_links() -> None:
    """Oracle: each node of two sends every byte once through 25 Gbps, whatever is chosen."""
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for row in collective_table("p3.16xlarge", op, [2**20, 2**30], nodes=2).rows:
            assert row.busbw < 2 * 25e9 / 8


@pytest.mark.parametrize(("op", "meant"), [("alltoall", "all_to_all"), ("AllGather", "all_gather"), ("reduce-scatter", "reduce_scatter")])
def test_operations_may_have_the_names_of_nccl_and_nccl_tests(op: str, meant: str) -> None:
    table = collective_table("p3.16xlarge", op, [2**20])
    assert table.op == meant and table.rows == collective_table("p3.16xlarge", meant, [2**20]).rows


def test_a_rank_that_receives_thrice_takes_its_link_so_much_longer() -> None:
    """Oracle: seven blocks of 3/10 of the payload instead of 1/8 come in by its 18 NVLinks."""
    even, (loaded,) = (collective_table("hgx-h100", "all_to_all", [2**30], shares=shares).rows for shares in (None, "3,1,1,1,1,1,1,1"))
    assert loaded.time / even[0].time == pytest.approx(8 * 3 / 10, rel=0.02)
    (equal,) = collective_table("hgx-h100", "all_to_all", [2**30], shares="2,2,2,2,2,2,2,2").rows
    assert equal.time == pytest.approx(even[0].time, rel=1e-9)


@pytest.mark.parametrize(
    ("hardware", "op", "options", "words"),
    [
        ("p3.2xlarge", "all_reduce", {}, "a collective needs at least 2 ranks, not 1; --nodes 2 adds a node"),
        ("p3.16xlarge", "all_redux", {}, "--op all_redux: write one of all_reduce"),
        ("p3.16xlarge", "all_reduce", {"gpus": 99}, "99"),
        ("p3.16xlarge", "all_reduce", {"tuning": Tuning("2.30", "HalvingDoubling", "LL")}, "--proto LL: protocols apply only to NCCL's"),
        ("p3.16xlarge", "all_to_all", {"tuning": Tuning("2.30", "Ring")}, "--op all_to_all: point-to-point transfers have no algorithm"),
        ("p3.16xlarge", "gather", {"tuning": Tuning("2.30", None, "LL")}, "--op gather: point-to-point transfers have no algorithm"),
        ("p3.16xlarge", "reduce", {"tuning": Tuning("2.30", "Tree")}, "NCCL_ALGO=Tree allows no way to run reduce"),
        (
            "p3.16xlarge",
            "reduce",
            {"tuning": Tuning("2.30", "HalvingDoubling")},
            "HalvingDoubling is an all-reduce algorithm, not one for reduce",
        ),
        ("p3.16xlarge", "all_reduce", {"shares": "1,1"}, "--shares 1,1: applies only to --op all_to_all"),
        ("p3.16xlarge", "all_to_all", {"shares": "1,1"}, "8 ranks need one row of 8 numbers"),
        ("p3.16xlarge", "all_to_all", {"shares": "1,x"}, "write numbers"),
        ("p3.16xlarge", "all_to_all", {"shares": "1,1,1,1,1,1,1,-1"}, "finite and at least 0"),
        ("p3.16xlarge", "all_to_all", {"shares": "0,0,0,0,0,0,0,0"}, "no rank sends data"),
        ("p3.2xlarge", "send_recv", {}, "a collective needs at least 2 ranks"),
    ],
)
def test_what_cannot_be_is_told(hardware: str, op: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        collective_table(hardware, op, [2**20], **options)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("collective hgx-h100 --algo foo", "--algo: 'foo' is not known to NCCL 2.30; write any of Tree, Ring, "),
        ("collective hgx-h100 --nccl 2.4 --algo foo", "--algo: 'foo' is not known to NCCL 2.4; write any of Ring, Tree"),
        ("collective hgx-h100 --proto foo", "--proto: 'foo' is not known to NCCL 2.30; write any of LL, LL128, Simple"),
        ("collective hgx-h100 --algo pat", "--algo pat allows no way to run all_reduce: "),
        ("collective hgx-h100 --group tp --tp 8 --algo foo", "--algo: 'foo' is not known"),
        (
            "run hgx-h100 resnet50 --fast --set training.stack.nccl_algo=foo",
            "training.stack.nccl_algo: 'foo' is not known to NCCL 2.14.3; ",
        ),
        ("run hgx-h100 llama-3.2-1b --tp 8 --set training.stack.nccl_proto=foo", "training.stack.nccl_proto: 'foo' is not known to NCCL"),
        ("plan hgx-h100 llama-3.2-1b --set training.stack.nccl_algo=foo", "training.stack.nccl_algo: 'foo' is not known to NCCL"),
    ],
)
def test_errors_about_algorithms_name_the_option_or_the_field(capsys: pytest.CaptureFixture[str], command: str, says: str) -> None:
    """The messages do not name environment variables, because none was set."""
    assert main(command.split()) == 2
    assert capsys.readouterr().err.startswith(says)
