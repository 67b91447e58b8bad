"""Is the output of nccl-tests read as it was printed? Oracle: an output in the format of src/common.cu, and the same rows as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.cli import main
from calibration.collectives.table import read_table
from sim.spec.yaml import SpecError

SIZES = ((1048576, 88.12), (1073741824, 5200.1))


def output(ranks: int = 16, per_node: int = 8, started: str = "# Collective test starting: all_reduce_perf\n") -> str:
    """Return an output of *ranks* ranks, *per_node* of them on each host."""
    hosts = "".join(
        f"#  Rank {rank:2d} Group  0 Pid  {rank} on   node{rank // per_node} device  {rank % per_node} [0x1b] NVIDIA H100 80GB HBM3\n"
        for rank in range(ranks)
    )
    rows = "".join(
        f"{size:12d} {size // 4:12d}     float     sum      -1  {time:7.2f}   11.90   22.31      0  99.00   11.98   22.47      0\n"
        for size, time in SIZES
    )
    return (
        f"{started}# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20 validation: 1\n#\n"
        f"# Using devices\n{hosts}NCCL version 2.27.3+cuda12.9\n#\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
        f"{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 236.8\n"
    )


def test_an_output_is_the_table_of_its_rows(tmp_path: Path) -> None:
    """Out-of-place times; ranks and nodes from the list of devices; the network from the machine."""
    printed, table = tmp_path / "node-pair.txt", tmp_path / "node-pair.csv"
    printed.write_text(output())
    header = "system,network,hardware,nodes,gpus_per_node,gpus_per_process,op,bytes,time_us,nccl\n"
    lines = "".join(f"node-pair,infiniband,hgx-h100,2,8,1,all_reduce,{size},{time},2.27.3\n" for size, time in SIZES)
    table.write_text(header + lines)
    read, same = read_table(printed, "hgx-h100"), read_table(table)
    assert read.records == same.records and len(read.records) == len(SIZES) and not read.skipped


def test_one_node_measures_what_joins_its_gpus(tmp_path: Path) -> None:
    (tmp_path / "all_gather_perf.txt").write_text(output(8, started=""))
    (first, _) = read_table(tmp_path / "all_gather_perf.txt", "hgx-h100").records
    assert (first.network, first.nodes, first.op) == ("nvlink", 1, "all_gather")


@pytest.mark.parametrize(("text", "hardware", "said"), [
    (output(), "", "add --hardware"),
    (output(started=""), "hgx-h100", "does not name its collective"),
    (output(12), "hgx-h100", "12 ranks on 2 hosts, not the same number on each"),
    (output(0), "hgx-h100", "lists no ranks"),
    ("hardware,op\n", "hgx-h100", "--hardware hgx-h100: is for outputs of nccl-tests"),
])  # fmt: skip
def test_what_an_output_lacks_is_told(tmp_path: Path, text: str, hardware: str, said: str) -> None:
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_table(tmp_path / "mine.txt", hardware)


def test_an_output_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pair.txt").write_text(output())
    assert main(["collectives", str(tmp_path / "pair.txt"), "--hardware", "hgx-h100"]) == 0
    assert "all_reduce" in capsys.readouterr().out
    assert main(["collectives", "--hardware", "hgx-h100"]) == 2
