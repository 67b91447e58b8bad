"""Can `run` and `collective` use constants fitted to a table of collectives? Oracle: times predicted with known factors on the classes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from calibration.cli import main as calibration_main
from calibration.collectives.records import CollectiveRecord
from calibration.collectives.table import read_table
from calibration.machines.collective_table import write_machine
from calibration.machines.nccl_fit import MeasuredCollective, PredictedTimes
from sim.cli import main
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError

MACHINE = "p4d.24xlarge"
TRUTH = {("nic", "efficiency"): 0.7, ("nic", "latency"): 1.6}
"""The cards of this machine are wider than the PCIe ports of its GPUs, so they do not bind as described, and do with this factor."""
HEADER = "system,network,hardware,nodes,gpus_per_node,op,bytes,time_us,nccl\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write collectives of one and of two nodes of `MACHINE` with the factors `TRUTH`."""
    measured = [MeasuredCollective(8 * nodes, nodes, "all_reduce", 2**power) for nodes in (1, 2) for power in range(10, 31, 4)]
    times = PredictedTimes(load_hardware(MACHINE).spec, measured).times({key: math.log(factor) for key, factor in TRUTH.items()})
    rows = [
        f"mine,{'efa' if one.nodes > 1 else 'nvlink'},{MACHINE},{one.nodes},8,{one.op},{one.nbytes},{1e6 * time:.2f},2.30"
        for one, time in zip(measured, times, strict=True)
    ]
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def rows_of(path: Path) -> list[CollectiveRecord]:
    return list(read_table(path).records)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the document that the command prints."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_what_is_written_predicts_the_rows_and_slows_steps(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "fitted.yaml"
    fitted = write_machine(rows_of(table), table, written)
    assert fitted.fit["nic efficiency"].value == pytest.approx(0.7, rel=0.02)
    assert fitted.fit["nic latency"].value == pytest.approx(1.6, rel=0.1)
    assert max(map(abs, fitted.after)) < 0.03 < 0.2 < max(map(abs, fitted.before))
    one = printed(capsys, "collective", str(written), "--nodes", "2", "--bytes", "1GiB")
    measured = next(record.time for record in rows_of(table) if record.nodes == 2 and record.nbytes == 2**30)
    assert one["rows"][0]["time_s"] == pytest.approx(measured, rel=0.03)
    before, after = (printed(capsys, "run", name, "bert-large-seq384", "--nodes", "2") for name in (MACHINE, str(written)))
    assert after["step_time_s"] > before["step_time_s"]
    assert after["expected_error"] == before["expected_error"]  # the classes keep their names


def test_constants_that_no_row_determines_keep_the_values_of_the_class(table: Path, tmp_path: Path) -> None:
    one_node = [record for record in rows_of(table) if record.nodes == 1]
    written = tmp_path / "fitted.yaml"
    write_machine([record._replace(time=1.5 * record.time) for record in one_node], table, written)
    assert load_hardware(str(written)).spec.groups[0].node.nic == load_hardware(MACHINE).spec.groups[0].node.nic


def test_a_machine_from_a_file_is_extended_by_its_path(table: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(f"extends: {MACHINE}\n", encoding="utf-8")
    (tmp_path / "fits").mkdir()
    rows = [record._replace(hardware=str(tmp_path / "cluster.yaml")) for record in rows_of(table) if record.nodes == 1]
    write_machine(rows, table, tmp_path / "fits" / "fitted.yaml")
    assert "extends: ../cluster.yaml" in (tmp_path / "fits" / "fitted.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        ({}, "fitted.txt", "must end in .yaml"),
        ({"hardware": "hgx-h100"}, "fitted.yaml", "has rows of p4d.24xlarge, hgx-h100; fit a table of one machine"),
    ],
)
def test_what_cannot_be_written_says_why_and_writes_nothing(
    table: Path, tmp_path: Path, change: dict[str, str], name: str, says: str
) -> None:
    rows = rows_of(table)
    with pytest.raises(SpecError, match=says):
        write_machine([*rows[:-1], rows[-1]._replace(**change)], table, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.nightly
def test_the_command_shows_the_factors_and_what_to_run_next(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "fitted.yaml"
    assert calibration_main(["collectives", str(table), "--hardware-out", str(written)]) == 0
    shown = capsys.readouterr()
    assert "nic efficiency times" in shown.out
    assert re.search(r"\nmedian \(largest\) error of these rows: \d+% \(\d+%\) as described, \d+% \(\d+%\) fitted", shown.out)
    assert f"next: python -m sim run {written} resnet50 --nodes 2" in shown.err
    assert calibration_main(["collectives", "--hardware-out", str(written)]) == 2
    assert "name their FILE" in capsys.readouterr().err
